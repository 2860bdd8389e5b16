"""A calibration as people read it: the constants, and errors by source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from automap_models.core.device import Device, StepConstants
from automap_models.core.instruction_graph import FloatArray
from automap_models.cost.measured import SkippedStep
from automap_models.simulate.calibration import (
    Calibration,
    Observation,
    SourceErrors,
    ends_of_ranges,
    errors_by_source,
    errors_of_all,
)

from .text import Column, plain, print_parts, table


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a calibration came to.

    Attributes:
        device: with the fitted constants.
        observations: that it was fitted to.
        skipped: rows that cannot be priced.
        others: rows of other kinds of devices, or without seconds.
        usual: what constants were pulled to.
        links: whether steps of several devices may say something of links and of overlap.
        fit: the constants.
        left_out_s: [n] what each observation is predicted to take by the others' sources; empty where there is one.
    """

    device: Device
    observations: list[Observation]
    skipped: list[SkippedStep]
    others: int
    usual: StepConstants
    links: bool
    fit: Calibration
    left_out_s: FloatArray

    @property
    def fitted(self) -> list[SourceErrors]:
        """Errors by source in the fit."""
        return errors_by_source(self.observations, self.fit.predicted_s)

    @property
    def validated(self) -> list[SourceErrors]:
        """Errors by source of fits without the source; none where there is only one."""
        return errors_by_source(self.observations, self.left_out_s) if self.left_out_s.size else []

    @property
    def together(self) -> tuple[SourceErrors, SourceErrors | None]:
        """Errors of all in the fit, and of all when left out."""
        left_out = errors_of_all(self.observations, self.left_out_s) if self.left_out_s.size else None
        return errors_of_all(self.observations, self.fit.predicted_s), left_out


def print_calibration(calibrated: Calibrated) -> None:
    """Print the constants beside the usual ones, errors by source, and why rows were left out."""
    fitted, usual = asdict(calibrated.fit.constants), asdict(calibrated.usual)
    columns = (
        Column("constant", [name.replace("_", " ") for name in fitted], left=True),
        Column("fitted", [f"{value:.3g}" for value in fitted.values()]),
        Column("usual", [f"{usual[name]:.3g}" for name in fitted]),
    )
    left_out = {errors.source: errors for errors in calibrated.validated}
    rows = [(errors, left_out.get(errors.source)) for errors in calibrated.fitted]
    if len(rows) > 1:
        rows.append(calibrated.together)
    errors_table = (
        Column("source", [errors.source for errors, _ in rows], left=True),
        Column("steps", [str(errors.steps) for errors, _ in rows]),
        Column("median\nerror", [_share(errors.median) for errors, _ in rows]),
        Column("90 %\nbelow", [_share(errors.p90) for errors, _ in rows]),
        Column("left out:\nmedian", ["" if out is None else _share(out.median) for _, out in rows]),
        Column("90 %\nbelow", ["" if out is None else _share(out.p90) for _, out in rows]),
    )
    print_parts(
        [f"{len(calibrated.observations)} steps on {calibrated.device.name}"],
        [lambda width: table(width, columns)],
        [lambda width: table(width, errors_table)],
        *([plain(remark)] for remark in _remarks(calibrated)),
    )


def _remarks(calibrated: Calibrated) -> Iterator[str]:
    if not calibrated.validated:
        yield "There is one source: how well the constants predict another one is not known."
    if not calibrated.links:
        yield "Profiles say nothing of links and of overlap: their three constants are as before."
    for name, end in ends_of_ranges(calibrated.fit.constants):
        yield f"{name.replace('_', ' ')} is at the end of its range, {end:g}: check the peaks of the device."
    for reason, count in Counter(row.reason for row in calibrated.skipped).items():
        yield f"{count} row(s) left out: {reason}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def calibration_document(calibrated: Calibrated) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "device": calibrated.device.name,
        "steps": len(calibrated.observations),
        "other_rows": calibrated.others,
        "constants": asdict(calibrated.fit.constants),
        "fitted": [errors._asdict() for errors in calibrated.fitted],
        "left_out": [errors._asdict() for errors in calibrated.validated],
        "together": [errors._asdict() for errors in calibrated.together if errors is not None],
        "skipped": [{"id": row.name, "reason": row.reason} for row in calibrated.skipped],
    }


def device_comment(calibrated: Calibrated, rows: str) -> str:
    """What stands at the beginning of the written file."""
    sources = ", ".join(f"{errors.source} ({errors.steps})" for errors in calibrated.fitted)
    left_out = "; ".join(f"{e.source} {_share(e.median)}, {_share(e.p90)}" for e in calibrated.validated)
    shown = (
        f"\nMedian and 90th percentile of the error of a source left out of the fit: {left_out}." if left_out else ""
    )
    return f"step: fitted by automap-calibrate on {date.today()} to {rows}: steps of {sources}.{shown}"
