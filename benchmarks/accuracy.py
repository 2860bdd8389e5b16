"""How far off the clock is, of all measured steps together: docs/reference/accuracy.md.

    OMP_NUM_THREADS=1 python benchmarks/accuracy.py ROWS.json|FOLDER … [--left-out]

Figures are of three kinds. A source is in the fit where the file of the row's device or runtime names it (`fitted_to`),
else no fit has seen it. Errors of a source that is left out of the fit come from fits to the other sources: with
--left-out they are made again, of devices (measured_steps) and of runtimes (runtimes), half an hour on one core;
without, the page keeps those that it has, with their day.
"""

from __future__ import annotations

import argparse
import datetime
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import runtimes
from common import ROOT, refuse
from joint_fit import left_out_s
from ladders import TERM_COLUMNS, errors_of_terms, pairs_of_terms
from measured_steps import FIGURES, Price, figures, files_in, percent, price_files, shares_of

from automap_models.cost.measured_step import MeasuredStep
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_text
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.formats.runtime_yaml import read_runtime
from automap_models.simulate.calibration import predicted_s
from automap_models.simulate.observations import errors_of

PAGE = ROOT / "docs" / "reference" / "accuracy.md"
UNSEEN = ROOT / "benchmarks" / "unseen_steps.json"
"""Rows that were found when all numbers stood; they are part of the repository, and of every page."""
Cell = tuple[str, str, str]
"""Source, device and runtime."""
Row = Sequence[str]
CELLS, LEFT_OUT, TERMS = "By source", "Left out of the fit", "Single terms"
"""Headings whose tables are read again."""
GLANCE = ("device", "program", "sources", "rows", "in the fit", "left out", "never seen")
OMITTED = ("source", "device", "runtime", "fit of", "rows", "median", "p90", "bias")
OF_TERMS = """Pairs of steps that differ in one thing, and in measured seconds by more than 3 %: in how many the
predicted ones differ the same way (`sign`, target 90 %), how far the logarithm of their ratio is off in the
median (`size`, target 30 %), and the median of predicted over measured logarithm (`step`): below 1 the clock
takes the term for smaller than it is. `benchmarks/results/ladders.md` says what is wrong,
`benchmarks/ladders.py --term TERM` prints the pairs.
"""
INTRODUCTION = """# Accuracy

How far the seconds of strategies are off what others measured and published, by kind of device and program. Figures are
medians of the medians of sources, which weigh equally:

- **in the fit**: numbers of the device or of the runtime are fitted to the source (`fitted_to` in their files);
- **left out**: the same sources, each with numbers that are fitted to the other ones;
- **never seen**: no number is fitted to the source. Rows of `benchmarks/unseen_steps.json` were found after the terms
  of the clock were chosen; the others were there.

What you run is to be expected as far off as sources that are left out, or never seen.
"""
NOTE = """`make accuracy ROWS=FOLDER` writes this page from files of [measured steps](files.md#measured-steps),
on {day}: {coverage}. A step is off by |predicted / measured - 1|, `p90` is the 90th percentile, `bias` the
median of predicted / measured, less 1: below 0 the clock is too fast. `fits` counts verdicts that are right, of
runs that ended or ran out of memory and say what they recompute. `groups` are of four or more plans of one model,
cluster and batch: τ is Kendall's of predicted and measured seconds, and `regret` how much longer than the shortest
plan the one took that is predicted to be the shortest, both in the mean.
"""


def cell_of(price: Price) -> Cell | None:
    """Whose figures a row counts for; None where it cannot be priced at all."""
    step = price.step
    return (step.source, step.device, step.runtime.name) if isinstance(step, MeasuredStep) else None


def is_fitted(cell: Cell) -> bool:
    """Whether numbers of the device or of the runtime are fitted to the source."""
    source, device, runtime = cell
    return source in read_device(device).fitted_to or source in read_runtime(runtime).fitted_to


def grouped(prices: Iterable[Price]) -> dict[Cell, list[Price]]:
    """The rows of each cell, by name."""
    groups: dict[Cell, list[Price]] = defaultdict(list)
    for price in prices:
        if (cell := cell_of(price)) is not None:
            groups[cell].append(price)
    return dict(sorted(groups.items()))


def share(percent: str) -> float:
    """The number that a cell of a table has; NaN of an empty one."""
    return float(percent.rstrip(" %")) / 100 if percent else np.nan


def median_of(shares: Sequence[float]) -> str:
    """As a table has it; empty where there are none."""
    return percent(float(np.median(shares))) if shares else ""


def by_source(prices: Iterable[Price]) -> Iterator[Row]:
    """Figures of every cell."""
    for cell, rows in grouped(prices).items():
        yield (*cell, "in the fit" if is_fitted(cell) else "never seen", *figures(rows))


def together(prices: Sequence[Price]) -> Iterator[Row]:
    """Figures of all rows of a kind, and of all."""
    groups = grouped(prices)
    for kind, wanted in (("in the fit", [True]), ("never seen", [False]), ("all", [True, False])):
        of_source: dict[str, list[Price]] = defaultdict(list)
        for cell, rows in groups.items():
            if is_fitted(cell) in wanted:
                of_source[cell[0]] += rows
        medians = [share(median) for rows in of_source.values() if (median := shares_of(rows, "step_s")[1])]
        rows = [price for of_one in of_source.values() for price in of_one]
        yield (kind, str(len(of_source)), median_of(medians), *figures(rows))


def together_left_out(left_out: Iterable[Row]) -> Row:
    """The median of the medians of sources that were left out; of a source its cells'."""
    of_source: dict[str, list[float]] = defaultdict(list)
    for source, _, _, _, _, median, *_ in left_out:
        of_source[source].append(share(median))
    medians = [float(np.median(shares)) for shares in of_source.values()]
    return ("left out", str(len(medians)), median_of(medians), *[""] * len(FIGURES))


def at_a_glance(cells: Iterable[Row], left_out: Iterable[Row]) -> Iterator[Row]:
    """Of each device and runtime how many sources and rows there are, and the medians of the sources' medians."""
    medians: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows: dict[tuple[str, str], int] = defaultdict(int)
    for _, device, runtime, kind, count, median, *_ in cells:
        if median:
            medians[device, runtime][kind].append(share(median))
            rows[device, runtime] += int(count)
    for _, device, runtime, _, _, median, *_ in left_out:
        if (device, runtime) in rows:  # else its rows have another runtime today
            medians[device, runtime]["left out"].append(share(median))
    for key, of_kind in sorted(medians.items()):
        sources = len(of_kind["in the fit"]) + len(of_kind["never seen"])
        kinds = [of_kind[kind] for kind in ("in the fit", "left out", "never seen")]
        yield (*key, str(sources), str(rows[key]), *map(median_of, kinds))


def left_out_rows(prices: Sequence[Price], paths: Sequence[Path]) -> Iterator[Row]:
    """Errors of every source with numbers that are fitted to the other ones, of devices and of runtimes."""
    devices = {name: read_device(name) for name in known_devices()}
    cells = {price.step.name: (cell, price.step) for price in prices if (cell := cell_of(price))}
    for numbers, seconds_of in (
        ("device", left_out_s([price.step for price in prices if price.estimate], devices)),
        ("runtime", left_out_of_runtimes_s(paths)),
    ):
        ratios: dict[Cell, list[float]] = defaultdict(list)
        for name, seconds in seconds_of.items():
            cell, step = cells[name]
            ratios[cell].append(seconds / (getattr(step, "step_s", None) or np.nan))
        for cell, of_cell in sorted(ratios.items()):
            errors = errors_of("", of_cell)
            shares = map(percent, (errors.median, errors.p90, errors.ratio - 1))
            yield (*cell, numbers, str(errors.steps), *shares)


def left_out_of_runtimes_s(paths: Sequence[Path]) -> dict[str, float]:
    """Name of a step → its seconds with a runtime's numbers that are fitted without its source."""
    seconds: dict[str, float] = {}
    for group in runtimes.GROUPS:
        rows, usual = runtimes.group_rows(paths, group)
        for source in read_runtime(group.runtime).fitted_to:
            of_source, others = ([row for row in rows if (row[0].source == source) == same] for same in (True, False))
            if of_source and others:
                values = runtimes.fitted(others, usual)
                of_rows = predicted_s(runtimes.kind_of(of_source), values).tolist()
                seconds |= {step.name: row_s for (step, _), row_s in zip(of_source, of_rows, strict=True)}
    return seconds


def table(headings: Row, rows: Iterable[Row]) -> str:
    """A Markdown table."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, ["---"] * len(headings), *rows))


def section(heading: str, text: str) -> str:
    """What stands under a heading of a page; empty where there is none."""
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def table_rows(text: str) -> list[Row]:
    """The rows of a table in a text."""
    return [line[2:-2].split(" | ") for line in re.findall(r"^\| .*$", text, re.MULTILINE)[2:]]


def unpriced(prices: Iterable[Price]) -> Iterator[Row]:
    """Why rows have no price, and how many of which sources."""
    sources: dict[str, list[str]] = defaultdict(list)
    for price in prices:
        if price.reason is not None:
            sources[price.reason].append(price.step.source)
    for reason, of_reason in sorted(sources.items()):
        yield (reason, str(len(of_reason)), ", ".join(sorted(set(of_reason))))


def page(prices: Sequence[Price], left_out: str, day: str) -> str:
    """The page, of the section of what is left out and of today's prices."""
    cells, sources = list(by_source(prices)), {price.step.source for price in prices}
    count, omitted = sum(price.estimate is not None for price in prices), table_rows(left_out)
    kinds = [*together(prices), together_left_out(omitted)]
    coverage = f"{count:,} of {len(prices):,} rows of {len(sources)} sources have a price"
    sections = {
        "All files together": table(("kind", "sources", "of sources", *FIGURES), kinds),
        CELLS: table(("source", "device", "runtime", "kind", *FIGURES), cells),
        LEFT_OUT: left_out,
        TERMS: f"{OF_TERMS}\n{table(TERM_COLUMNS, (e.row for e in errors_of_terms(pairs_of_terms(prices))))}",
        "Rows without a price": table(("reason", "rows", "sources"), unpriced(prices)),
    }
    glance = table(GLANCE, at_a_glance(cells, omitted))
    texts = "".join(f"\n## {name}\n\n{text.strip()}\n" for name, text in sections.items())
    return f"{INTRODUCTION}\n{glance}\n{NOTE.format(coverage=coverage, day=day)}{texts}"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="files of measured steps, or folders of them")
    parser.add_argument("--left-out", action="store_true", help="leave every source out of the fits in turn")
    arguments = parser.parse_args()
    today = datetime.date.today()
    day = f"{today.day} {today:%B %Y}"
    try:
        prices = price_files([*arguments.rows, UNSEEN])
        left_out = section(LEFT_OUT, PAGE.read_text("utf-8") if PAGE.exists() else "")
        if arguments.left_out:
            left_out = f"Fitted on {day}.\n\n" + table(OMITTED, left_out_rows(prices, files_in(arguments.rows)))
        write_text(PAGE, page(prices, left_out, day))
    except BadInput as error:
        refuse(str(error))


if __name__ == "__main__":
    main()
