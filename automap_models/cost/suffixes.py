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
- (M-1)·b_s + (M-w_s)·f_s after B_0, or (M-1)·f_s + (M-w_s)·b_s before F_{M-1}: the others.

With GPipe, where all forward passes come first, stage s takes (M-1)·u_s beside RT_0. The link after stage s carries M
messages one after the other, the last of which makes its round trip below and comes back: (M+1)·x_s + RT_{s+1}. With
GPipe the M messages back follow that round trip: 2M·x_s + RT_{s+1}.

With own_s the largest of these terms, D_s is when stage s ends its last backward pass at the earliest, counted from
its first input, and Z_s when it and all below it have updated their parameters. ending_s is what a stage takes after
its last backward pass: what of its all-reduce that cannot hide, and the update.

**What delays the last micro-batch.** wait_s is how long after F_0 the last forward pass F_{M-1} of stage s starts at
least: (M-1)·f_s. Where M > w_s it comes after B_{M-1-w_s}, and wait_s is RT_s for B_0 and then (M-1-w_s) times the
period of the steady phase. The period is never below

- u_s: the stage by itself;
- RT_s / w_s: every w_s-th micro-batch waits for the round trip of the one that is w_s before it;
- cycle / (1 + w_s - w_t) for any later stage t, with cycle = Σ u + 2·Σ x over the stages s … t: stage t runs
  B_{j-w_t+1} right after F_j, which stage s follows with F_{j+1+w_s-w_t};
- x_s: the messages of B_0 to B_{M-1-w_s} arrive one after the other.

The stages before a suffix may delay the last micro-batch, too: `least` counts the round trips of the whole pipeline and
the cycle through its first stages up to the first one of the suffix.

From the start of its last forward pass a stage takes last_s until the last backward pass is done, and done_s until it
and all below it have updated their parameters.

    last_s = max(u_s + 2·x_s + last_{s+1},  f_s + w_s·b_s)
    done_s = max(f_s + x_s + done_{s+1},  last_s + ending_s)
    D_s = max(u_s + 2·x_s + D_{s+1},  RT_s + own_s,  u_s + (M+1)·x_s + RT_{s+1},  wait_s + last_s)
    Z_s = max(f_s + x_s + Z_{s+1},  D_s + ending_s,  wait_s + done_s)
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
        ending_s: what they take after their last backward pass; the all-reduce where nothing overlaps.
    """

    both_s: FloatArray
    forward_s: FloatArray
    ending_s: FloatArray


class Prefix(NamedTuple):
    """What the stages before a suffix take at least; numbers, or arrays of any shape.

    Attributes:
        stages: how many they are.
        busy_s: Σ (u + 2x) over them and between them.
        forward_s: Σ (f + x) over them and between them.
        excess_s: what one of them adds to the round trip of a micro-batch (`Suffixes.own_weights`).
    """

    stages: int
    busy_s: FloatArray | float
    forward_s: FloatArray | float
    excess_s: FloatArray | float = 0.0


NO_PREFIX = Prefix(0, 0.0, 0.0)
"""What comes before the first stage."""


class Suffixes(ABC):
    """A recursion over a plan's last stages; suffixes are arrays [c, …] of c numbers each.

    Attributes:
        micro_batches: M.
        overlap: whether all-reduces may overlap the last backward pass.
    """

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
    def least(self, suffix: FloatArray, prefix: Prefix = NO_PREFIX) -> FloatArray:
        """Lower bound on what any plan costs that ends in the suffix, with the transfer into its first stage."""

    def rounded(self, suffix: FloatArray, grain_s: float) -> FloatArray:
        """Numbers no larger than these, so that fewer differ; what a plan costs at least falls by a few grains a stage.

        Where the numbers give the cost itself, they stay as they are.
        """
        return suffix

    @abstractmethod
    def most_busy_s(self, stage: int, room_s: FloatArray, trip_s: FloatArray | float) -> FloatArray:
        """How large u of a stage can be, of any shape, in a plan within a limit.

        Args:
            stage: which it is.
            room_s: what the stages before it leave of the limit (`Prefix.busy_s`).
            trip_s: the first number of the suffix after it, with the transfer into that, at least.
        """

    @abstractmethod
    def own_weights(self, stage: int) -> tuple[float, float]:
        """Weights of u and of f in what a stage adds to the round trip of a micro-batch at least; 0 if it adds none."""


class LengthSuffixes(Suffixes):
    """Span T and exposed all-reduce R: the length L is their sum."""

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
        return np.stack(before_stage(both_s, backward_s, times.ending_s, suffix[0], suffix[1], self.micro_batches))

    def least(self, suffix: FloatArray, prefix: Prefix = NO_PREFIX) -> FloatArray:
        """T + max(busy, R + forward)."""
        least: FloatArray = suffix[0] + np.maximum(prefix.busy_s, suffix[1] + prefix.forward_s)
        return least

    def most_busy_s(self, stage: int, room_s: FloatArray, trip_s: FloatArray | float) -> FloatArray:
        """As M·u and u + T are no more than the room."""
        most: FloatArray = np.minimum(room_s / self.micro_batches, room_s - trip_s)
        return most

    def own_weights(self, stage: int) -> tuple[float, float]:
        """None: the span T has no round trips."""
        return 0.0, 0.0


class StepSuffixes(Suffixes):
    """Seven numbers of the stages s … S-1 under a schedule: the step is Z or more.

    These are RT, D, Z, last and done, u of the first stage, and the transfer into it (0 until there is one).

    Args:
        micro_batches: M.
        stages: S.
        schedule: a key of core.pass_orders.WARM_UPS.
    """

    overlap = True

    def __init__(self, micro_batches: int, stages: int, schedule: str) -> None:
        super().__init__(micro_batches)
        self.warm_up = [warm_up(schedule, stage, stages, micro_batches) for stage in range(stages)]
        self.all_forwards_first = schedule == "gpipe"

    def nothing(self, *shape: int) -> FloatArray:
        """Z = done = -∞, all else 0."""
        numbers = np.zeros((7, *shape))
        numbers[[2, 4]] = -np.inf
        return numbers

    def before_transfer(self, transfer_s: FloatArray, suffix: FloatArray) -> FloatArray:
        """The link carries M messages each way."""
        trip, end, finish, last, done, both, _ = suffix
        back = self.micro_batches if self.all_forwards_first else 1
        messages = trip + float(self.micro_batches + back) * transfer_s
        there_and_back = 2.0 * transfer_s
        arriving = np.empty((7, *np.broadcast_shapes(transfer_s.shape, trip.shape)))
        arriving[0] = trip + there_and_back
        arriving[1] = np.maximum(end + there_and_back, messages)
        arriving[2] = finish + transfer_s
        arriving[3] = last + there_and_back
        arriving[4] = done + transfer_s
        arriving[5] = both
        arriving[6] = transfer_s
        return arriving

    def before_stage(self, stage: int, times: StageTimes, suffix: FloatArray) -> FloatArray:
        """The stage's own passes, and the round trips and cycles that it waits for."""
        both_s, forward_s = times.both_s, times.forward_s
        trip, drain = suffix[0] + both_s, forward_s + self.warm_up[stage] * (both_s - forward_s)
        last = np.maximum(suffix[3] + both_s, drain)
        wait = self._wait(stage, both_s, forward_s, trip, suffix)
        end = np.maximum(np.maximum(both_s + suffix[1], trip + self._own(stage, both_s, forward_s, trip)), wait + last)
        done = np.maximum(forward_s + suffix[4], last + times.ending_s)
        finish = np.maximum(np.maximum(forward_s + suffix[2], end + times.ending_s), wait + done)
        return np.stack((trip, end, finish, last, done, both_s, np.zeros_like(both_s)))

    def rounded(self, suffix: FloatArray, grain_s: float) -> FloatArray:
        """To a grain over how often the number is counted: RT once a round, u and x up to M times."""
        if np.isinf(grain_s):
            return suffix
        others = self.micro_batches - 1
        counts = np.array([1 + others // self.warm_up[0], 1, 1, 1, 1, 1 + others / 2, 1 + 2 * others])
        grains = (grain_s / counts).reshape(-1, *[1] * (suffix.ndim - 1))
        rounded: FloatArray = np.floor(suffix / grains) * grains
        return rounded

    def _own(self, stage: int, both_s: FloatArray, forward_s: FloatArray, trip: FloatArray) -> FloatArray:
        """What the stage adds to RT_0 at least."""
        others, warm = self.micro_batches - 1, self.warm_up[stage]
        if self.all_forwards_first:
            return others * both_s
        hidden_s = np.minimum(trip - both_s, (warm - 1) * np.minimum(forward_s, both_s - forward_s))
        own: FloatArray = others * both_s - hidden_s
        return own

    def _wait(
        self, stage: int, both_s: FloatArray, forward_s: FloatArray, trip: FloatArray, suffix: FloatArray
    ) -> FloatArray:
        """How long the last forward pass starts after the first one at least."""
        warm = self.warm_up[stage]
        left = self.micro_batches - 1 - warm
        if left < 0:
            return (self.micro_batches - 1) * forward_s
        rounds, rest = divmod(left, warm)
        steady: FloatArray = np.maximum(left * both_s, rounds * trip + rest * both_s)
        if stage + 1 < len(self.warm_up) and left:
            next_s, transfer_s = suffix[5], suffix[6]
            further = warm - self.warm_up[stage + 1]
            rounds, rest = divmod(left, 1 + further)
            cycle = both_s + next_s + 2.0 * transfer_s
            steady = np.maximum(np.maximum(steady, rounds * cycle + rest * both_s), left * transfer_s)
        return trip + steady

    def least(self, suffix: FloatArray, prefix: Prefix = NO_PREFIX) -> FloatArray:
        """max(busy + max(D, RT + excess), forward + Z), and the last micro-batch after what delays it."""
        trip, end, finish, last, done, both, transfer_s = suffix
        _, busy, forward, excess = prefix
        least: FloatArray = np.maximum(busy + np.maximum(end, trip + excess), forward + finish)
        first = self.warm_up[0]
        left = self.micro_batches - 1 - first
        if not prefix.stages or left < 0:
            return least
        trips = 1 + left // first
        wait = np.maximum(trip + excess * ((left + 1) / (left + first)), trips * (busy + trip))
        if prefix.stages < len(self.warm_up):
            rounds, rest = divmod(left, 1 + first - self.warm_up[prefix.stages])
            inside = rounds + rest // (1 + first - self.warm_up[prefix.stages - 1])
            if inside:
                cycles = rounds * (both + 2.0 * transfer_s) + inside * busy
                wait = np.maximum(wait, busy + trip + cycles)
        least = np.maximum(least, wait + np.maximum(busy + last, forward + done))
        return least

    def most_busy_s(self, stage: int, room_s: FloatArray, trip_s: FloatArray | float) -> FloatArray:
        """As M·u is no more than the room, and M·u - (w-1)·u/2 no more than what the round trip leaves of it."""
        hidden = 0.0 if self.all_forwards_first else (self.warm_up[stage] - 1) / 2
        most: FloatArray = np.minimum(room_s / self.micro_batches, (room_s - trip_s) / (self.micro_batches - hidden))
        return most

    def own_weights(self, stage: int) -> tuple[float, float]:
        """(M-1)·u - (w-1)·f, with GPipe (M-1)·u."""
        return self.micro_batches - 1.0, 0.0 if self.all_forwards_first else 1.0 - self.warm_up[stage]
