"""What ranks of a schedule hold, counted pass by pass."""

from __future__ import annotations

from collections.abc import Sequence

from automap_models.core.passes import Schedule


def most_held(
    schedule: Schedule, saved: Sequence[float] | None = None, for_weights: Sequence[float] = ()
) -> tuple[float, ...]:
    """[S] the most that a rank holds at once for passes that are still to come, counted from its order.

    Args:
        schedule: of S ranks with vp virtual stages each.
        saved: [S·vp] what a virtual stage saves of a micro-batch from F until B or I; None is 1 each.
        for_weights: [S·vp] what of it a virtual stage keeps from I until W, for gradients of weights; empty is 0 each.
    """
    saved = [1.0] * schedule.stages if saved is None else saved
    for_weights = for_weights if len(for_weights) else [0.0] * schedule.stages
    most = []
    for order in schedule.orders:
        held, at_once = 0.0, [0.0]
        for kind, stage, _ in order:
            held += {
                "F": saved[stage],
                "B": -saved[stage],
                "I": for_weights[stage] - saved[stage],
                "W": -for_weights[stage],
            }[kind]
            at_once.append(held)
        most.append(max(at_once))
    return tuple(most)
