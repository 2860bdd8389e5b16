"""What a plan's last stages cost, in a few numbers: recursions from the last stage to the first.

Both have the same shape: numbers of the stages s … S-1, counted from the start of stage s, so that what a whole plan
costs never falls when one of them rises. So of two ways to go on after the same place, one with no larger number is
never worse, and a search need not keep the other (planners.staged.label_setting).

**The length L** (`LengthSuffixes`): the span T and the exposed all-reduce R of cost.staged; exact.

**The step under a schedule** (`StepSuffixes`): a lower bound on what is simulated (simulate.engine), from paths through
the passes of the schedule on which nothing can overlap. Stage s runs w_s forward passes before its first backward pass
(core.schedules), and from then on by turns, so that B_m comes right after F_{m+w_s-1} and right before F_{m+w_s}:

    stage s      F0 F1 … F_{w-1}  B0 F_w  B1 F_{w+1}  …  B_{M-w-1} F_{M-1}  B_{M-w} … B_{M-1}
    below it     F0 ──► stage S-1 ──► B0                 F_{M-1} ──► stage S-1 ──► B_{M-1}
                 └─ round trip RT_s ─┘                   └────── round trip RT_s ───────┘

With u = f + b and x the transfer after a stage, RT_s = u_s + 2·x_s + RT_{s+1}. The way of the first micro-batch down to
stage s, and of the last one back from there, takes RT_0 - RT_s. In between, stage s alone takes at least

- M·u_s - RT_s: its passes one after the other;
- (M-1)·b_s + (M-w_s)·f_s after B_0, or (M-1)·f_s + (M-w_s)·b_s before F_{M-1}: the others;
- where M > w_s, (M-1-w_s)·u_s between B_0 and F_{M-1}, and RT_s once more for the last micro-batch;
- where c = ⌊(M-1)/w_s⌋ ≥ 1, c·RT_s and (M-1-c·w_s)·u_s: every w_s-th micro-batch waits for the round trip of the
  one that is w_s before it.

The link after stage s carries 2M messages one after the other: 2(M-1)·x_s beside RT_0, less RT_{s+1}, for which the
first message need not wait. With GPipe, where all forward passes come first, stage s takes (M-1)·u_s and its link
2(M-1)·x_s beside RT_0. With E_s the largest of all these terms over the stages from s on, and exposed_s the part of a
stage's all-reduce that its last backward pass cannot hide,

    Z_s = max(RT_s + E_s + exposed_s, f_s + x_s + Z_{s+1}),        step ≥ Z_0:

whenever stage s begins, its last backward pass ends RT_s + E_s later at the earliest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import warm_up
from automap_models.cost.staged import before_stage, before_transfer


class Suffixes(ABC):
    """A recursion over a plan's last stages; suffixes are arrays [c, …] of c numbers each.

    Attributes:
        numbers: c.
        micro_batches: M.
        overlap: whether all-reduces may overlap the last backward pass.
    """

    numbers: int
    overlap: bool

    def __init__(self, micro_batches: int) -> None:
        self.micro_batches = micro_batches

    @abstractmethod
    def nothing(self, *shape: int) -> FloatArray:
        """What comes after the last stage: [c, *shape]."""

    @abstractmethod
    def before_transfer(self, transfer_s: FloatArray, suffix: FloatArray) -> FloatArray:
        """The suffix with the transfer into its first stage, one direction."""

    @abstractmethod
    def before_stage(
        self, stage: int, both_s: FloatArray, forward_s: FloatArray, exposed_s: FloatArray, suffix: FloatArray
    ) -> FloatArray:
        """The suffix with one more stage before it.

        Args:
            stage: which it is.
            both_s, forward_s: u and f.
            exposed_s: what of its all-reduce its last backward pass cannot hide; all of it where nothing overlaps.
            suffix: with the transfer into its first stage.
        """

    @abstractmethod
    def least(self, suffix: FloatArray, busy: FloatArray | float, forward: FloatArray | float) -> FloatArray:
        """Lower bound on what any plan costs that ends in the suffix.

        Args:
            suffix: with the transfer into its first stage.
            busy, forward: Σ (u + 2x) and Σ (f + x) over the stages before it and between them, at least.
        """


class LengthSuffixes(Suffixes):
    """Span T and exposed all-reduce R: the length L is their sum."""

    numbers = 2
    overlap = False

    def nothing(self, *shape: int) -> FloatArray:
        """T = 0, R = -∞."""
        return np.stack((np.zeros(shape), np.full(shape, -np.inf)))

    def before_transfer(self, transfer_s: FloatArray, suffix: FloatArray) -> FloatArray:
        """See cost.staged.before_transfer."""
        return np.stack(before_transfer(transfer_s, suffix[0], suffix[1], self.micro_batches))

    def before_stage(
        self, stage: int, both_s: FloatArray, forward_s: FloatArray, exposed_s: FloatArray, suffix: FloatArray
    ) -> FloatArray:
        """See cost.staged.before_stage."""
        backward_s = both_s - forward_s
        return np.stack(before_stage(both_s, backward_s, exposed_s, suffix[0], suffix[1], self.micro_batches))

    def least(self, suffix: FloatArray, busy: FloatArray | float, forward: FloatArray | float) -> FloatArray:
        """T + max(busy, R + forward)."""
        least: FloatArray = suffix[0] + np.maximum(busy, suffix[1] + forward)
        return least


class StepSuffixes(Suffixes):
    """Round trip RT, excess E and end Z: the step is Z or more.

    Args:
        micro_batches: M.
        stages: S.
        schedule: a key of core.schedules.SCHEDULES.
    """

    numbers = 3
    overlap = True

    def __init__(self, micro_batches: int, stages: int, schedule: str) -> None:
        super().__init__(micro_batches)
        self.warm_up = [warm_up(schedule, stage, stages, micro_batches) for stage in range(stages)]
        self.all_forwards_first = schedule == "gpipe"

    def nothing(self, *shape: int) -> FloatArray:
        """RT = 0, E = 0, Z = -∞."""
        return np.stack((np.zeros(shape), np.zeros(shape), np.full(shape, -np.inf)))

    def before_transfer(self, transfer_s: FloatArray, suffix: FloatArray) -> FloatArray:
        """The link carries 2M messages."""
        trip, excess, end = suffix
        messages = 2.0 * (self.micro_batches - 1) * transfer_s
        if not self.all_forwards_first:
            messages = messages - trip
        return np.stack((trip + 2.0 * transfer_s, np.maximum(excess, messages), end + transfer_s))

    def before_stage(
        self, stage: int, both_s: FloatArray, forward_s: FloatArray, exposed_s: FloatArray, suffix: FloatArray
    ) -> FloatArray:
        """The stage's own passes, and the round trips that it waits for."""
        trip = suffix[0] + both_s
        excess = np.maximum(suffix[1], self._own(stage, both_s, forward_s, trip))
        return np.stack((trip, excess, np.maximum(forward_s + suffix[2], trip + excess + exposed_s)))

    def _own(self, stage: int, both_s: FloatArray, forward_s: FloatArray, trip: FloatArray) -> FloatArray:
        """What the stage adds to RT_0 at least."""
        others, warm = self.micro_batches - 1, self.warm_up[stage]
        if self.all_forwards_first:
            return others * both_s
        hidden_s = np.minimum(trip - both_s, (warm - 1) * np.minimum(forward_s, both_s - forward_s))
        own: FloatArray = others * both_s - hidden_s
        rounds, rest = divmod(others, warm)
        if rounds:
            own = np.maximum(own, rounds * trip + rest * both_s)
            own = np.maximum(own, trip + (others - warm) * both_s)
        return own

    def least(self, suffix: FloatArray, busy: FloatArray | float, forward: FloatArray | float) -> FloatArray:
        """max(busy + RT + E, forward + Z)."""
        least: FloatArray = np.maximum(busy + suffix[0] + suffix[1], forward + suffix[2])
        return least
