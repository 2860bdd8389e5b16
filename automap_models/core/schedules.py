"""A schedule is data: for every stage, the fixed order of its forward and backward passes.

The schedules differ in one number, the warm-up: how many forward passes a stage runs before its first backward pass.
From then on it alternates, and it ends with the backward passes that are left. As many micro-batches as the warm-up
has are in flight on the stage at once, and it keeps their activations.

    1f1b        min(M, S - s) on stage s: as many as there are stages from s on
    1f1b-deep   min(M, 2(S - s) - 1): more micro-batches in flight, which hide transfers between stages
    gpipe       M: all forward passes before the first backward pass

3 stages, 4 micro-batches, one row a stage (F0 and B0 are the forward and backward passes of micro-batch 0):

    1f1b                          1f1b-deep                     gpipe
    F0 F1 F2 B0 F3 B1 B2 B3       F0 F1 F2 F3 B0 B1 B2 B3       F0 F1 F2 F3 B0 B1 B2 B3
    F0 F1 B0 F2 B1 F3 B2 B3       F0 F1 F2 B0 F3 B1 B2 B3       F0 F1 F2 F3 B0 B1 B2 B3
    F0 B0 F1 B1 F2 B2 F3 B3       F0 B0 F1 B1 F2 B2 F3 B3       F0 F1 F2 F3 B0 B1 B2 B3

A row is an order, not a time: when a pass starts is for the simulation (simulate.engine) to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from automap_models.errors import BadInput


class Op(NamedTuple):
    """One pass of one micro-batch through a stage."""

    backward: bool
    micro_batch: int


def _warm_up_then_alternate(warm_up: int, micro_batches: int) -> list[Op]:
    """The order of a stage with so many forward passes before its first backward pass."""
    order = [Op(False, m) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        order += [Op(True, m), Op(False, warm_up + m)]
    return order + [Op(True, m) for m in range(micro_batches - warm_up, micro_batches)]


def _one_f_one_b(stage: int, stages: int, micro_batches: int) -> int:
    return min(micro_batches, stages - stage)


def _one_f_one_b_deep(stage: int, stages: int, micro_batches: int) -> int:
    return min(micro_batches, 2 * (stages - stage) - 1)


def _gpipe(stage: int, stages: int, micro_batches: int) -> int:
    return micro_batches


SCHEDULES: dict[str, Callable[[int, int, int], int]] = {
    "1f1b": _one_f_one_b,
    "1f1b-deep": _one_f_one_b_deep,
    "gpipe": _gpipe,
}
"""Schedules by name: function of (stage, stages, micro_batches) → the stage's warm-up, which is also the number of
micro-batches whose activations it holds at once."""


DEFAULT_SCHEDULE = "1f1b"
DEFAULT_MIN_GAIN = 0.005
"""How much shorter, relatively, a further stage has to make the step under a schedule."""
"""What frameworks run unless they are told otherwise."""


def require_schedule(name: str) -> str:
    """The name itself.

    Raises:
        BadInput: there is no such schedule.
    """
    if name not in SCHEDULES:
        what, do = f"unknown schedule {name!r}", f"choose from {', '.join(SCHEDULES)}"
        raise BadInput(what, where="`schedule`", do=do)
    return name


def require_gain(min_gain: float) -> None:
    """Refuse what is no share.

    Raises:
        BadInput: it is below 0 or above 1, or no number.
    """
    if not 0.0 <= min_gain <= 1.0:
        raise BadInput(f"a gain of {min_gain:g}", where="`min_gain`", do="give a share from 0 to 1, such as 0.005")


def warm_up(name: str | None, stage: int, stages: int, micro_batches: int) -> int:
    """Forward passes of a stage before its first backward pass; without a schedule those of 1F1B.

    Args:
        name: a key of SCHEDULES, or None.
        stage: counted from 0.
        stages: S.
        micro_batches: M.
    """
    return SCHEDULES[name or DEFAULT_SCHEDULE](stage, stages, micro_batches)


def schedule(name: str, stages: int, micro_batches: int) -> tuple[tuple[Op, ...], ...]:
    """The order of passes of every stage, [S][2M].

    Args:
        name: a key of SCHEDULES.
        stages: S.
        micro_batches: M.
    """
    return tuple(
        tuple(_warm_up_then_alternate(warm_up(name, stage, stages, micro_batches), micro_batches))
        for stage in range(stages)
    )
