"""What runtimes' numbers are fitted to, and what steps are predicted like that are left out of the fit.

    OMP_NUM_THREADS=1 python benchmarks/runtimes.py ROWS.json … [--left-out] [--nodes]

ROWS.json are files of measured steps (docs/reference/files.md). Numbers of `conf/runtime/` are fitted to steps of the
systems that run so: those of mixtures of experts under Megatron and Megatron-Bridge 26.06, those of nanotron's program.
The fit is that of `automap calibrate`. The first table says what each source is off with the shipped numbers and with
the fitted ones; with --left-out also with numbers fitted to the other sources of its group.

With --nodes the second table says what a cluster's steps are off that is benched on one node: the numbers of a runtime
are fitted to the steps of a source on 8 devices at most, and price its steps on 32 and more.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import print_rows
from rich.progress import track

from automap_models.cost.measured_step import MeasuredStep
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.formats.runtime_yaml import numbers_of, read_runtime
from automap_models.simulate.calibration import RUNTIME_PULL, fit, fit_resolved, predicted_s
from automap_models.simulate.observations import MeasuredKind, Observation, Values, errors_of_all, step_observation
from automap_models.workloads.measured import step_work

MOST_STEPS = 24
"""Of a source that a fit of a group reads: every n-th one."""
NODE, CLUSTER = 8, 32
"""Devices at most of the steps that a node is benched with, and at least of those that are predicted."""


class Numbers(NamedTuple):
    """Numbers of a runtime that are fitted together, and whose steps tell of them."""

    runtime: str
    others: tuple[str, ...]
    mixtures: bool
    names: tuple[str, ...]


GROUPS = (
    Numbers(
        "megatron-bridge",
        ("megatron", "automodel"),
        True,
        (
            *("routing", "expert_overlap", "dispatch_inside", "dispatch_across", "exchange_inside", "exchange_across"),
            *("mixture_host_s", "graphed"),
        ),
    ),
    Numbers("megatron-bridge-26.06", (), True, ("routing", "expert_overlap", "dispatch_inside", "dispatch_across")),
    Numbers(
        "nanotron",
        (),
        False,
        ("compute", "tensor_overlap", "gradient_overlap", "host_s", "sum_host_s", "sum_across_s"),
    ),
    Numbers("internevo", (), False, ("gradient_overlap", "shard_s")),
)
Row = tuple[MeasuredStep, Observation]


def usual_numbers(runtime: str) -> Values:
    """The shipped numbers of a runtime, beside an H100."""
    return numbers_of(read_runtime(runtime), read_device("h100").constants)


def read_rows(paths: Sequence[Path], wanted: Callable[[MeasuredStep], bool], usual: Values | None = None) -> list[Row]:
    """The timed steps that are wanted and have a price.

    Args:
        usual: numbers of their runtime; None takes those of each step's.
    """
    rows = []
    for step in (step for path in paths for step in read_measured_steps(path)):
        if not isinstance(step, MeasuredStep) or step.step_s is None or not wanted(step):
            continue
        numbers = usual_numbers(step.runtime.name) if usual is None else usual
        try:
            row = step, step_observation(step, step_work(step), numbers)
            predicted_s(kind_of([row]), {})
        except BadInput:
            continue
        rows.append(row)
    return rows


def group_rows(paths: Sequence[Path], group: Numbers) -> tuple[list[Row], Values]:
    """The steps that tell of a group of numbers, and these as shipped."""
    usual = {name: usual_numbers(group.runtime)[name] for name in group.names}

    def wanted(step: MeasuredStep) -> bool:
        ran = step.runtime.name in (group.runtime, *group.others)
        return ran and group.mixtures == (step.model.shape.experts is not None)

    return read_rows(paths, wanted, usual), usual


def kind_of(rows: Sequence[Row]) -> MeasuredKind:
    """The steps, and the devices that they ran on."""
    return MeasuredKind(
        [row[1] for row in rows], [read_device(name) for name in sorted({row[0].device for row in rows})]
    )


def fitted(rows: Sequence[Row], usual: Values) -> Values:
    """The numbers with which a few steps of each source are priced best."""
    few = []
    for source in sorted({step.source for step, _ in rows}):
        of_source = [row for row in rows if row[0].source == source]
        few += of_source[:: math.ceil(len(of_source) / MOST_STEPS)]
    return fit(kind_of(few), usual, usual, RUNTIME_PULL).values


def cells(rows: Sequence[Row], values: Values) -> tuple[float, str, str, str]:
    """Median, and median, 90th percentile and ratio as a table has them, of the steps with these numbers."""
    kind = kind_of(rows)
    errors = errors_of_all(kind.observations, predicted_s(kind, values))
    return errors.median, f"{errors.median:.1%}", f"{errors.p90:.1%}", f"{errors.ratio:.2f}"


def group_table(rows: Sequence[Row], usual: Values, leave_out: bool) -> Iterator[tuple[str, ...]]:
    """A row for each source, and one of the means over sources."""
    best, medians = fitted(rows, usual), []
    for source in track(sorted({step.source for step, _ in rows}), description="fitting", transient=True):
        of_source, others = ([row for row in rows if (row[0].source == source) == same] for same in (True, False))
        columns = [usual, best] + ([fitted(others, usual)] if leave_out and others else [])
        errors = [cells(of_source, values) for values in columns]
        medians.append([median for median, *_ in errors])
        yield (source, str(len(of_source)), *(cell for _, *texts in errors for cell in texts))
    means = np.mean([row for row in medians if len(row) == len(medians[0])], axis=0)
    yield ("mean of medians", str(len(rows)), *(cell for mean in means for cell in (f"{mean:.1%}", "", "")))
    print("\nfitted: " + ", ".join(f"{name} {value:.3g}" for name, value in best.items()))


def node_table(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """A row for each runtime of a source that has steps on one node and on several."""
    for source, runtime in track(sorted({(s.source, s.runtime.name) for s, _ in rows}), transient=True):
        of_source = [row for row in rows if (row[0].source, row[0].runtime.name) == (source, runtime)]
        node = [row for row in of_source if row[0].strategy.devices <= NODE]
        cluster = [row for row in of_source if row[0].strategy.devices >= CLUSTER]
        if len(node) < 3 or len(cluster) < 3:
            continue
        usual = usual_numbers(runtime)
        best = fit_resolved(kind_of(node), usual, RUNTIME_PULL)
        moved = ", ".join(f"{name} {usual[name]:.2g} → {value:.2g}" for name, value in best.values.items())
        (_, before, high, _), (_, after, later, ratio) = cells(cluster, {}), cells(cluster, best.values)
        yield (source, runtime, str(len(node)), str(len(cluster)), before, high, after, later, ratio, moved)


OF_NODES = (
    *("source", "runtime", "≤ 8", "≥ 32", "shipped: median", "p90", "fitted: median", "p90", "ratio"),
    "what the steps on a node moved",
)


def main() -> None:
    """Print a table for each group of numbers, or the one of nodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--left-out", action="store_true")
    parser.add_argument("--nodes", action="store_true")
    arguments = parser.parse_args()
    if arguments.nodes:
        print_rows(OF_NODES, node_table(read_rows(arguments.rows, lambda _: True)))
        return
    kinds = ["shipped", "fitted", *(["left out"] if arguments.left_out else [])]
    for numbers in GROUPS:
        print(f"\n{numbers.runtime}: {', '.join(numbers.names)}\n")
        headings = ("source", "rows", *(f"{kind}: {what}" for kind in kinds for what in ("median", "p90", "ratio")))
        rows, usual = group_rows(arguments.rows, numbers)
        print_rows(headings, group_table(rows, usual, arguments.left_out))


if __name__ == "__main__":
    main()
