"""Constants of several kinds of devices fitted together, and with sources of measured steps left out (accuracy.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict

import numpy as np

from automap_models.core.device import USUAL, Device, StepConstants
from automap_models.cost.measured_step import MeasuredStep, SkippedStep
from automap_models.simulate.calibration import CONSTANTS, exponentials, fit_constants, logarithms, predicted_s
from automap_models.simulate.observations import FloatArray, MeasuredKind, step_observation
from automap_models.workloads.measured import step_work


def shared_constants(others: Iterable[StepConstants]) -> StepConstants:
    """What a kind of device has in common with others: the geometric mean of their constants and, half, of USUAL."""
    logs = [logarithms(asdict(constants)) for constants in others]
    shared = (sum(logs) + 0.5 * logarithms(asdict(USUAL))) / (len(logs) + 0.5)
    return StepConstants(**exponentials(tuple(CONSTANTS), shared))


def fit_kinds(
    kinds: Mapping[str, MeasuredKind],
    start: Mapping[str, StepConstants],
    again: Collection[str] | None = None,
    pull: float = 5.0,
) -> dict[str, StepConstants]:
    """The constants of several kinds of devices, each pulled to what those of the others have in common.

    Peaks differ between kinds, and shares of them that kernels of a size reach differ less. So a kind that few have
    measured borrows from the others. Kinds of a single source lend nothing: what they say may be the source's.

    Args:
        kinds: name → its steps; none of a kind are as good as a fit to nothing.
        start: name → where its fit begins.
        again: names of the kinds that are fitted; the others stay as in `start`. None is all.
        pull: to what others have in common, see `fit_constants`; benchmarks/results/measured_steps.md compares weights.

    Returns:
        name → constants.

    Raises:
        BadInput: see `fit_constants`.
    """
    constants = dict(start)

    def logs(name: str, of_kinds: Mapping[str, StepConstants]) -> FloatArray:
        return logarithms(asdict(of_kinds[name]))

    lending = [name for name, kind in kinds.items() if len(kind.sources) > 1]
    for _ in range(3):  # in turn, each to what the others came to
        before = dict(constants)
        for name in kinds if again is None else again:
            shared = shared_constants(constants[other] for other in lending if other != name)
            kind = kinds[name]
            has_steps = bool(kind.observations)
            constants[name] = fit_constants(kind, constants[name], shared, pull) if has_steps else shared
        changes = [
            np.abs(logarithms(asdict(constants[name])) - logarithms(asdict(before[name]))).max() for name in kinds
        ]
        if max(changes) < 0.02:  # of logarithms
            break
    return constants


def parted(kind: MeasuredKind, source: str) -> tuple[MeasuredKind, MeasuredKind]:
    """The steps of a source, and those of all others."""
    parts, others = ([o for o in kind.observations if (o.source == source) == same] for same in (True, False))
    return kind._replace(observations=parts), kind._replace(observations=others)


def left_out_of_kinds_s(kinds: Mapping[str, MeasuredKind], start: Mapping[str, StepConstants]) -> dict[str, FloatArray]:
    """Name of a kind → [n] seconds of its steps with the constants that are fitted without their source.

    A source is left out of all kinds at once, of which those are fitted again that it has steps of.

    Args: see `fit_kinds`; `start` are the constants that are fitted to all sources.
    """
    seconds = {name: np.zeros(len(kind.observations)) for name, kind in kinds.items()}
    for source in sorted({source for kind in kinds.values() for source in kind.sources}):
        kind_names = [name for name, kind in kinds.items() if source in kind.sources]
        constants = fit_kinds({name: parted(kind, source)[1] for name, kind in kinds.items()}, start, kind_names)
        for name in kind_names:
            places = [i for i, observation in enumerate(kinds[name].observations) if observation.source == source]
            seconds[name][places] = predicted_s(parted(kinds[name], source)[0], asdict(constants[name]))
    return seconds


def left_out_s(steps: Iterable[MeasuredStep | SkippedStep], devices: Mapping[str, Device]) -> dict[str, float]:
    """Name of a step → its seconds with constants of devices that are fitted without its source.

    Of the steps that constants are fitted to (`fitted_to`). Devices have their constants in common that are fitted to
    the same sources.

    Args:
        steps: as they were read.
        devices: name → device.
    """
    groups: dict[tuple[str, ...], list[MeasuredStep]] = defaultdict(list)
    for step in steps:
        if isinstance(step, MeasuredStep) and step.step_s and step.source in devices[step.device].fitted_to:
            groups[devices[step.device].fitted_to].append(step)
    by_kind = {some[0].device: some for fitted_to, some in groups.items() if len(fitted_to) > 1}
    kinds = {}
    for kind, some in by_kind.items():
        observations = [step_observation(step, step_work(step)) for step in some]
        kinds[kind] = MeasuredKind(observations, [devices[name] for name in sorted({step.device for step in some})])
    seconds = left_out_of_kinds_s(kinds, {kind: devices[kind].constants for kind in kinds})
    pairs = ((by_kind[kind], seconds[kind].tolist()) for kind in kinds)
    return {step.name: s for some, of_kind in pairs for step, s in zip(some, of_kind, strict=True)}
