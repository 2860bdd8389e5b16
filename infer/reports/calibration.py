"""A calibration as people read it: the constants, and errors by source."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from automap_models.core.device import Device
from automap_models.core.measured import SkippedStep
from automap_models.simulate.calibration import USUAL, Calibration, Observation, SourceErrors

from .text import Column, console, table


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a calibration came to.

    Attributes:
        device: with the fitted constants.
        observations: that it was fitted to.
        skipped: rows that cannot be priced.
        others: rows of other kinds of devices, or without seconds.
        fit: the constants.
        fitted, validated: errors by source of the fit, and of fits without the source.
    """

    device: Device
    observations: list[Observation]
    skipped: list[SkippedStep]
    others: int
    fit: Calibration
    fitted: list[SourceErrors]
    validated: list[SourceErrors]


def print_calibration(calibrated: Calibrated) -> None:
    """Print the constants beside the usual ones, errors by source, and why rows were left out."""
    screen = console()
    screen.print(f"{len(calibrated.observations)} steps on {calibrated.device.name}\n")
    fitted, usual = asdict(calibrated.fit.constants), asdict(USUAL)
    columns = (
        Column("constant", [name.replace("_", " ") for name in fitted], left=True),
        Column("fitted", [f"{value:.3g}" for value in fitted.values()]),
        Column("usual", [f"{usual[name]:.3g}" for name in fitted]),
    )
    screen.print(table(screen.width, columns))
    screen.print()
    left_out = {errors.source: errors for errors in calibrated.validated}
    rows = [(errors, left_out.get(errors.source)) for errors in calibrated.fitted]
    errors_table = (
        Column("source", [errors.source for errors, _ in rows], left=True),
        Column("steps", [str(errors.steps) for errors, _ in rows]),
        Column("median\nerror", [_share(errors.median) for errors, _ in rows]),
        Column("90 %\nbelow", [_share(errors.p90) for errors, _ in rows]),
        Column("left out:\nmedian", ["" if out is None else _share(out.median) for _, out in rows]),
        Column("90 %\nbelow", ["" if out is None else _share(out.p90) for _, out in rows]),
    )
    screen.print(table(screen.width, errors_table))
    if not calibrated.validated:
        screen.print("\nThere is one source: how well the constants predict another one is not known.")
    for reason, count in Counter(row.reason for row in calibrated.skipped).items():
        screen.print(f"\n{count} row(s) left out: {reason}", markup=False)


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def calibration_document(calibrated: Calibrated) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "device": calibrated.device.name,
        "steps": len(calibrated.observations),
        "other_rows": calibrated.others,
        "constants": asdict(calibrated.fit.constants),
        "fitted": [_errors_document(errors) for errors in calibrated.fitted],
        "left_out": [_errors_document(errors) for errors in calibrated.validated],
        "skipped": [{"id": row.name, "reason": row.reason} for row in calibrated.skipped],
    }


def _errors_document(errors: SourceErrors) -> dict[str, Any]:
    return errors._asdict()


def device_comment(calibrated: Calibrated, rows: str) -> str:
    """What stands at the beginning of the written file."""
    sources = ", ".join(f"{errors.source} ({errors.steps})" for errors in calibrated.fitted)
    left_out = "; ".join(f"{e.source} {_share(e.median)}, {_share(e.p90)}" for e in calibrated.validated)
    shown = (
        f"\nMedian and 90th percentile of the error of a source left out of the fit: {left_out}." if left_out else ""
    )
    return f"step: fitted by automap-calibrate on {date.today()} to {rows}: steps of {sources}.{shown}"
