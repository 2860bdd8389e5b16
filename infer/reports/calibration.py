"""The fit of a device and of a runtime to what was measured, as people read it: numbers, and errors by source."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from automap_models.export.targets import PLANNED_FOR
from automap_models.formats.hardware_yaml import write_device
from automap_models.formats.runtime_yaml import write_runtime
from automap_models.requests import CalibrateRequest
from automap_models.requests.calibration import Calibrated
from automap_models.simulate.calibration import ends_of_ranges
from automap_models.simulate.runtime_numbers import NUMBERS
from automap_models.version import __version__

from ..runner import Report
from .text import Column, Table, plain, print_parts

OF_CONSTANTS: Mapping[str, str] = {
    "product_efficiency": "a step of a wide model",
    "half_size": "a step of a narrow model",
    "attention_efficiency": "a step of long samples",
    "bandwidth_efficiency": "a step of small micro-batches",
    "launch_s": "a step of a narrow model",
    "intra_efficiency": "a step with tp > 1 or dp > 1 inside a node",
    "inter_efficiency": "a step over two nodes",
    "overlap": "a step with dp > 1 by a runtime without gradient_overlap",
}
"""Constant of a device → the step that tells of it."""


def report(request: CalibrateRequest, answer: Calibrated) -> Report:
    """The numbers, and errors by source."""
    rows = ", ".join(path.name for path in request.files)

    def write(path: Path) -> None:
        if answer.runtime is None:
            write_fitted_device(path)
            return
        about = f"{request.runtime}, its numbers fitted to {rows} on {date.today()}"
        base = answer.runtime
        runs = base.runs or (base.name if base.name in PLANNED_FOR else None)
        named = msgspec.structs.replace(base, name=path.stem, about=about, runs=runs)
        write_runtime(path, named, comment(answer, f"Numbers of {request.runtime}", rows))

    def write_fitted_device(path: Path) -> None:
        assert answer.device is not None
        write_device(path, answer.device, comment(answer, "step:", rows))

    return Report(
        partial(print_calibration, answer),
        partial(calibration_document, answer),
        {"fit": write, "device": write_fitted_device},
        names={"fit": "device" if answer.runtime is None else "runtime"},
    )


def print_calibration(calibrated: Calibrated) -> None:
    """Print the numbers beside those that there were, errors by source, and what the rows do not tell of."""
    names = [name for name in calibrated.usual if _resolved(calibrated, name)]
    numbers_table = (
        Column("number", [_words(name) for name in names], text=True),
        Column("was", [f"{calibrated.usual[name]:.3g}" for name in names]),
        Column("fitted", [f"{calibrated.values[name]:.3g}" for name in names]),
        Column("told by\nthe steps", [f"{calibrated.resolution[name]:.0%}" for name in names]),
    )
    errors_of = {errors.source: errors for errors in calibrated.left_out}
    rows = [(errors, errors_of.get(errors.source)) for errors in calibrated.fitted]
    if len(rows) > 1:
        rows.append(calibrated.together)
    before = [_share(errors.median) for errors in calibrated.before]
    errors_table = (
        Column("source", [errors.source for errors, _ in rows], text=True),
        Column("steps", [str(errors.steps) for errors, _ in rows]),
        Column("was:\nmedian", [*before, *[""] * (len(rows) - len(before))]),
        Column("fitted:\nmedian", [_share(errors.median) for errors, _ in rows]),
        Column("90 %\nbelow", [_share(errors.p90) for errors, _ in rows]),
        Column("left out:\nmedian", ["" if out is None else _share(out.median) for _, out in rows]),
        Column("90 %\nbelow", ["" if out is None else _share(out.p90) for _, out in rows]),
    )
    print_parts(
        [f"{calibrated.steps} steps on {', '.join(calibrated.devices)}"],
        [Table(numbers_table)] if names else [],
        [Table(errors_table)],
        *([plain(remark)] for remark in _remarks(calibrated)),
    )


def _remarks(calibrated: Calibrated) -> Iterator[str]:
    if len(calibrated.fitted) == 1:
        yield "There is one source: parts of its steps were left out; how far off another one is, is not known."
    silent = defaultdict(list)
    for name in calibrated.usual:
        if not _resolved(calibrated, name):
            silent[_evidence(name)].append(f"{_words(name)} {calibrated.usual[name]:.3g}")
    if silent:
        yield "The steps tell little or nothing of these numbers, which stay as they were; it takes\n" + "\n".join(
            f"  {evidence}: {', '.join(numbers)}" for evidence, numbers in silent.items()
        )
    if calibrated.device is not None:
        for name, end in ends_of_ranges(calibrated.device.constants):
            yield f"{_words(name)} is at the end of its range, {end:g}: check the peaks of the device."
    for reason, count in Counter(row.reason for row in calibrated.skipped).items():
        yield f"{count} row(s) left out: {reason}"
    if calibrated.others:
        yield f"{calibrated.others} row(s) left out: of other devices or runtimes, or without seconds"


def _resolved(calibrated: Calibrated, name: str) -> bool:
    return calibrated.values[name] != calibrated.usual[name]


def _evidence(name: str) -> str:
    return OF_CONSTANTS[name] if name in OF_CONSTANTS else NUMBERS[name].evidence


def _words(name: str) -> str:
    return name.replace("_", " ")


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def calibration_document(calibrated: Calibrated) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "device": None if calibrated.device is None else calibrated.device.name,
        "runtime": None if calibrated.runtime is None else calibrated.runtime.name,
        "steps": calibrated.steps,
        "other_rows": calibrated.others,
        "constants": None if calibrated.device is None else asdict(calibrated.device.constants),
        "numbers": [
            {
                **{"name": name, "was": value, "fitted": calibrated.values[name]},
                **{"resolution": calibrated.resolution[name], "evidence": _evidence(name)},
            }
            for name, value in calibrated.usual.items()
        ],
        "before": [errors._asdict() for errors in calibrated.before],
        "fitted": [errors._asdict() for errors in calibrated.fitted],
        "left_out": [errors._asdict() for errors in calibrated.left_out],
        "together": [errors._asdict() for errors in calibrated.together if errors is not None],
        "skipped": [{"id": row.name, "reason": row.reason} for row in calibrated.skipped],
    }


def comment(calibrated: Calibrated, what: str, rows: str) -> str:
    """What stands at the beginning of the written file."""
    sources = ", ".join(f"{errors.source} ({errors.steps})" for errors in calibrated.fitted)
    omitted = "; ".join(f"{e.source} {_share(e.median)}, {_share(e.p90)}" for e in calibrated.left_out)
    part = "a source" if len(calibrated.fitted) > 1 else "parts of the steps"
    error = f"\nMedian and 90th percentile of the error of {part} left out of the fit: {omitted}." if omitted else ""
    by = f"fitted by automap calibrate {__version__} on {date.today()} to {rows}"
    return f"{what} {by}: steps of {sources}.{error}"
