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

With GPipe, where all forward passes come first, stage s takes (M-1)·u_s beside RT_0. The link after stage s carries 2M
messages one after the other, of which RT_{s+1} may be hidden; with GPipe the stages below hide nothing.

With own_s the largest of these terms, D_s is when stage s ends its last backward pass at the earliest, counted from
its first input, and Z_s when it and all below it have reduced their gradients. exposed_s is the part of a stage's
all-reduce that its last backward pass cannot hide. Where it goes over the links to the stage before (cost.staged,
`shares_link`) it goes before the last gradient that the stage before waits for: delay_s is exposed_s there, else 0.

    D_s = max(u_s + 2·x_s + D_{s+1} + delay_{s+1},  RT_s + own_s,  u_s + 2M·x_s)
    Z_s = max(f_s + x_s + Z_{s+1},  D_s + exposed_s)
    step ≥ Z_0
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import warm_up
from automap_models.cost.staged import before_stage, before_transfer


class StageTimes(NamedTuple):
    """What stages take, arrays of any shape.

    Attributes:
        both_s, forward_s: u and f.
        exposed_s: what of the all-reduce the last backward pass cannot hide; all of it where nothing overlaps.
        delay_s: what of that keeps the stage before waiting.
    """

    both_s: FloatArray
    forward_s: FloatArray
    exposed_s: FloatArray
    delay_s: FloatArray


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
    def before_stage(self, stage: int, times: StageTimes, suffix: FloatArray) -> FloatArray:
        """The suffix with one more stage before it.

        Args:
            stage: which it is.
            times: what it takes.
            suffix: with the transfer into its first stage.
        """

    @abstractmethod
    def least(
        self,
        suffix: FloatArray,
        busy: FloatArray | float,
        forward: FloatArray | float,
        excess: FloatArray | float = 0.0,
    ) -> FloatArray:
        """Lower bound on what any plan costs that ends in the suffix.

        Args:
            suffix: with the transfer into its first stage.
            busy, forward: Σ (u + 2x) and Σ (f + x) over the stages before it and between them, at least.
            excess: what one of these stages adds to the round trip of a micro-batch at least (`own_weights`).
        """

    @abstractmethod
    def own_weights(self, stage: int) -> tuple[float, float]:
        """Weights of u and of f in what a stage adds to the round trip of a micro-batch at least; 0 if it adds none."""


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

    def before_stage(self, stage: int, times: StageTimes, suffix: FloatArray) -> FloatArray:
        """See cost.staged.before_stage."""
        both_s, backward_s = times.both_s, times.both_s - times.forward_s
        return np.stack(before_stage(both_s, backward_s, times.exposed_s, suffix[0], suffix[1], self.micro_batches))

    def least(
        self,
        suffix: FloatArray,
        busy: FloatArray | float,
        forward: FloatArray | float,
        excess: FloatArray | float = 0.0,
    ) -> FloatArray:
        """T + max(busy, R + forward)."""
        least: FloatArray = suffix[0] + np.maximum(busy, suffix[1] + forward)
        return least

    def own_weights(self, stage: int) -> tuple[float, float]:
        """None: the span T has no round trips."""
        return 0.0, 0.0


class StepSuffixes(Suffixes):
    """Round trip RT, end D of the last backward pass and end Z of the last all-reduce: the step is Z or more.

    Args:
        micro_batches: M.
        stages: S.
        schedule: a key of core.schedules.WARM_UPS.
    """

    numbers = 3
    overlap = True

    def __init__(self, micro_batches: int, stages: int, schedule: str) -> None:
        super().__init__(micro_batches)
        self.warm_up = [warm_up(schedule, stage, stages, micro_batches) for stage in range(stages)]
        self.all_forwards_first = schedule == "gpipe"

    def nothing(self, *shape: int) -> FloatArray:
        """RT = D = 0, Z = -∞."""
        return np.stack((np.zeros(shape), np.zeros(shape), np.full(shape, -np.inf)))

    def before_transfer(self, transfer_s: FloatArray, suffix: FloatArray) -> FloatArray:
        """The link carries 2M messages."""
        trip, end, reduced = suffix
        messages = 2.0 * self.micro_batches * transfer_s
        if self.all_forwards_first:
            messages = messages + trip
        return np.stack((trip + 2.0 * transfer_s, np.maximum(end + 2.0 * transfer_s, messages), reduced + transfer_s))

    def before_stage(self, stage: int, times: StageTimes, suffix: FloatArray) -> FloatArray:
        """The stage's own passes, and the round trips that it waits for."""
        trip = suffix[0] + times.both_s
        end = np.maximum(times.both_s + suffix[1], trip + self._own(stage, times.both_s, times.forward_s, trip))
        reduced = np.maximum(times.forward_s + suffix[2], end + times.exposed_s)
        return np.stack((trip, end + times.delay_s, reduced))

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

    def least(
        self,
        suffix: FloatArray,
        busy: FloatArray | float,
        forward: FloatArray | float,
        excess: FloatArray | float = 0.0,
    ) -> FloatArray:
        """max(busy + max(D, RT + excess), forward + Z)."""
        least: FloatArray = np.maximum(busy + np.maximum(suffix[1], suffix[0] + excess), forward + suffix[2])
        return least

    def own_weights(self, stage: int) -> tuple[float, float]:
        """(M-1)·u - (w-1)·f, with GPipe (M-1)·u."""
        return self.micro_batches - 1.0, 0.0 if self.all_forwards_first else 1.0 - self.warm_up[stage]
