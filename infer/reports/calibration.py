"""The fit of a kind of device to what was measured on it, as people read it: the constants, and errors by source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from functools import partial
from typing import Any

from automap_models.formats.hardware_yaml import write_device
from automap_models.requests import CalibrateRequest
from automap_models.requests.calibration import Calibrated
from automap_models.simulate.calibration import ends_of_ranges

from ..runner import Report
from .text import Column, Table, plain, print_parts


def report(request: CalibrateRequest, answer: Calibrated) -> Report:
    """The constants, and errors by source."""
    rows = ", ".join(path.name for path in request.files)
    return Report(
        partial(print_calibration, answer),
        partial(calibration_document, answer),
        {"device": lambda path: write_device(path, answer.device, device_comment(answer, rows))},
    )


def print_calibration(calibrated: Calibrated) -> None:
    """Print the constants beside the usual ones, errors by source, and why rows were left out."""
    fitted, usual = asdict(calibrated.device.constants), asdict(calibrated.usual)
    columns = (
        Column("constant", [name.replace("_", " ") for name in fitted], text=True),
        Column("fitted", [f"{value:.3g}" for value in fitted.values()]),
        Column("usual", [f"{usual[name]:.3g}" for name in fitted]),
    )
    errors_of = {errors.source: errors for errors in calibrated.left_out}
    rows = [(errors, errors_of.get(errors.source)) for errors in calibrated.fitted]
    if len(rows) > 1:
        rows.append(calibrated.together)
    errors_table = (
        Column("source", [errors.source for errors, _ in rows], text=True),
        Column("steps", [str(errors.steps) for errors, _ in rows]),
        Column("median\nerror", [_share(errors.median) for errors, _ in rows]),
        Column("90 %\nbelow", [_share(errors.p90) for errors, _ in rows]),
        Column("left out:\nmedian", ["" if out is None else _share(out.median) for _, out in rows]),
        Column("90 %\nbelow", ["" if out is None else _share(out.p90) for _, out in rows]),
    )
    print_parts(
        [f"{calibrated.steps} steps on {calibrated.device.name}"],
        [Table(columns)],
        [Table(errors_table)],
        *([plain(remark)] for remark in _remarks(calibrated)),
    )


def _remarks(calibrated: Calibrated) -> Iterator[str]:
    if not calibrated.left_out:
        yield "There is one source: how well the constants predict another one is not known."
    if not calibrated.links:
        yield "Profiles say nothing of links and of overlap: their three constants are as before."
    for name, end in ends_of_ranges(calibrated.device.constants):
        yield f"{name.replace('_', ' ')} is at the end of its range, {end:g}: check the peaks of the device."
    for reason, count in Counter(row.reason for row in calibrated.skipped).items():
        yield f"{count} row(s) left out: {reason}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def calibration_document(calibrated: Calibrated) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "device": calibrated.device.name,
        "steps": calibrated.steps,
        "other_rows": calibrated.others,
        "constants": asdict(calibrated.device.constants),
        "fitted": [errors._asdict() for errors in calibrated.fitted],
        "left_out": [errors._asdict() for errors in calibrated.left_out],
        "together": [errors._asdict() for errors in calibrated.together if errors is not None],
        "skipped": [{"id": row.name, "reason": row.reason} for row in calibrated.skipped],
    }


def device_comment(calibrated: Calibrated, rows: str) -> str:
    """What stands at the beginning of the written file."""
    sources = ", ".join(f"{errors.source} ({errors.steps})" for errors in calibrated.fitted)
    omitted = "; ".join(f"{e.source} {_share(e.median)}, {_share(e.p90)}" for e in calibrated.left_out)
    comment = (
        f"\nMedian and 90th percentile of the error of a source left out of the fit: {omitted}." if omitted else ""
    )
    return f"step: fitted by automap-calibrate on {date.today()} to {rows}: steps of {sources}.{comment}"
