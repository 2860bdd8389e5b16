"""What runtimes' numbers are fitted to, and what a source is predicted like that is left out of the fit.

    OMP_NUM_THREADS=1 python benchmarks/runtimes.py ROWS.json … [--left-out]

ROWS.json are files of measured steps (docs/reference/files.md). Two groups of numbers of `conf/runtime/` are fitted to
steps of the systems that run so: those of mixtures of experts under Megatron, and those of nanotron's eager program.
The cost is that of `automap calibrate`: a soft L1 of log(predicted / measured), sources weighing equally, and a pull to
the shipped numbers. The table says what each source is off with the shipped numbers and with the fitted ones; with
--left-out also with numbers fitted to the other sources of its group.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import print_rows
from numpy.typing import NDArray
from rich.progress import track
from scipy.optimize import least_squares

from automap_models.core.device import Device
from automap_models.core.model_work import ModelWork
from automap_models.cost.measured_step import MeasuredStep
from automap_models.cost.runtime import Runtime
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.formats.runtime_yaml import RuntimeFile, read_runtime
from automap_models.simulate.calibration import errors_of, measured_estimate
from automap_models.workloads.measured import step_work

PULL = 0.3
"""Weight of the square of each number's logarithm, beside steps of weight 1."""
MOST_STEPS = 24
"""Of a source that a fit reads: every n-th one."""
FloatArray = NDArray[np.float64]


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
            *("routing", "expert_overlap", "dispatch_in", "dispatch_across", "exchange_in", "exchange_across"),
            *("mixture_host_s", "ungraphed"),
        ),
    ),
    Numbers("nanotron", (), False, ("compute", "tensor_overlap", "gradient_overlap", "host_s")),
)
"""`ungraphed` is 1 - graphed; the others are keys of a runtime's file, pairs by their members."""


class Row(NamedTuple):
    """A measured step, its model, and its device."""

    step: MeasuredStep
    work: ModelWork
    device: Device


def shipped(numbers: Numbers) -> FloatArray:
    """The logarithms of the shipped numbers."""
    file: RuntimeFile = read_runtime(numbers.runtime)
    exchange = file.exchange_shares or (1.0, 1.0)
    values: Mapping[str, float] = {
        **{name: getattr(file, name) for name in numbers.names if hasattr(file, name)},
        **dict(zip(("dispatch_in", "dispatch_across"), file.dispatch_shares, strict=True)),
        **dict(zip(("exchange_in", "exchange_across"), exchange, strict=True)),
        "ungraphed": 1.0 - file.graphed,
    }
    return np.log([values[name] for name in numbers.names])


def with_numbers(runtime: Runtime, numbers: Numbers, logs: FloatArray) -> Runtime:
    """A step's runtime with other numbers; shares stay below 1, and what a step does not do stays off."""
    values = dict(zip(numbers.names, np.exp(logs).tolist(), strict=True))
    changes: dict[str, object] = {}
    for name, value in values.items():
        if name in ("compute", "host_s", "mixture_host_s"):
            changes[name] = value
        elif name in ("routing", "tensor_overlap", "gradient_overlap"):
            changes[name] = min(value, 0.99)
    if numbers.mixtures:
        kind = "dispatch" if runtime.once_a_node else "exchange"
        changes["expert_shares"] = tuple(min(values[f"{kind}_{where}"], 1.0) for where in ("in", "across"))
        changes["expert_overlap"] = min(values["expert_overlap"], 0.99) if runtime.expert_overlap else 0.0
        changes["graphed"] = 1.0 - min(values["ungraphed"], 1.0) if 0.0 < runtime.graphed < 1.0 else runtime.graphed
    return replace(runtime, **changes)  # type: ignore[arg-type]


def ratios(rows: Sequence[Row], numbers: Numbers, logs: FloatArray) -> FloatArray:
    """[n] predicted over measured seconds."""
    values = []
    for step, work, device in rows:
        priced = measured_estimate(replace(step, runtime=with_numbers(step.runtime, numbers, logs)), work, device)
        values.append(priced.step_s / (step.step_s or math.nan))
    return np.array(values)


def fitted(rows: Sequence[Row], numbers: Numbers) -> FloatArray:
    """The logarithms of the numbers with which the rows are priced best."""
    of_source = {source: [row for row in rows if row.step.source == source] for source in {r.step.source for r in rows}}
    few = [row for source in sorted(of_source) for row in _few_of(of_source[source])]
    counts, start = Counter(row.step.source for row in few), shipped(numbers)
    weights = np.sqrt([min(10, counts[row.step.source]) / counts[row.step.source] for row in few])

    def residuals(logs: FloatArray) -> FloatArray:
        errors = np.log(ratios(few, numbers, logs))
        soft = np.copysign(np.sqrt(2 * 0.1**2 * (np.sqrt(1 + (errors / 0.1) ** 2) - 1)), errors)
        return np.concatenate([weights * soft, math.sqrt(PULL) * (logs - start)])

    fit = least_squares(residuals, start, diff_step=[0.02] * start.size, max_nfev=8, xtol=1e-2)
    return np.asarray(fit.x, np.float64)


def _few_of(rows: Sequence[Row]) -> Sequence[Row]:
    return rows[:: math.ceil(len(rows) / MOST_STEPS)]


def read_rows(paths: Sequence[Path], numbers: Numbers) -> list[Row]:
    """The timed steps of a group that have a price."""
    rows = []
    for path in paths:
        for step in read_measured_steps(path):
            if not isinstance(step, MeasuredStep) or step.step_s is None:
                continue
            if step.runtime.name not in (numbers.runtime, *numbers.others):
                continue
            if numbers.mixtures != (step.model.shape.experts is not None):
                continue
            try:
                row = Row(step, step_work(step), read_device(step.device))
                measured_estimate(*row)
            except BadInput:
                continue
            rows.append(row)
    return rows


def table(rows: Sequence[Row], numbers: Numbers, leave_out: bool) -> Iterator[tuple[str, ...]]:
    """A row for each source, and one of the means over sources."""
    sources = sorted({row.step.source for row in rows})
    first, best = shipped(numbers), fitted(rows, numbers)
    errors = []
    for source in track(sources, description="fitting", transient=True):
        of_source = [row for row in rows if row.step.source == source]
        others = [row for row in rows if row.step.source != source]
        columns = [first, best] + ([fitted(others, numbers)] if leave_out and others else [])
        of_columns = [errors_of(source, ratios(of_source, numbers, logs)) for logs in columns]
        errors.append([column.median for column in of_columns])
        cells = [
            cell
            for column in of_columns
            for cell in (f"{column.median:.1%}", f"{column.p90:.1%}", f"{column.ratio:.2f}")
        ]
        yield (source, str(len(of_source)), *cells)
    means = [f"{mean:.1%}" for mean in np.mean([row for row in errors if len(row) == len(errors[0])], axis=0)]
    yield ("mean of medians", str(len(rows)), *(cell for mean in means for cell in (mean, "", "")))
    values = ", ".join(f"{name} {value:.3g}" for name, value in zip(numbers.names, np.exp(best), strict=True))
    print(f"\nfitted: {values}")


def main() -> None:
    """Print a table for each group of numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--left-out", action="store_true")
    arguments = parser.parse_args()
    kinds = ["shipped", "fitted", *(["left out"] if arguments.left_out else [])]
    for numbers in GROUPS:
        print(f"\n{numbers.runtime}: {', '.join(numbers.names)}\n")
        rows = read_rows(arguments.rows, numbers)
        headings = [f"{kind}: {what}" for kind in kinds for what in ("median", "p90", "ratio")]
        print_rows(("source", "rows", *headings), table(rows, numbers, arguments.left_out))


if __name__ == "__main__":
    main()
