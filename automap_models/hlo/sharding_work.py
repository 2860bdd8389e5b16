"""A step's work by classes of dimensions: what its instructions take, which results are summed, what is kept.

`sharding_work` is all of it, for any choice of classes; `DivisibleProfile` is what is left of a profile's instructions
on each device when operator partitioning divides some of the classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from automap_models.core.device import Device
from automap_models.core.instruction_graph import FloatArray, InstructionGraph, Phase
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.sharding_classes import REPLICATED, MergedSums, ShardingWork
from automap_models.errors import BadInput
from automap_models.hlo.attribution import homes
from automap_models.hlo.clock import Sharing, clock_times
from automap_models.hlo.liveness import NEVER
from automap_models.hlo.step_classes import Classes, Merge, StepClasses, Sum, meets


class StepTimes(NamedTuple):
    """Time of each of n instructions on one device, float64 [n] each, seconds.

    Attributes:
        work_s: what partitioning divides.
        launch_s: launches of kernels, which nothing divides.
    """

    work_s: FloatArray
    launch_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """[n] both."""
        return self.work_s + self.launch_s

    def in_microbatch(self, graph: InstructionGraph) -> StepTimes:
        """The same without the update of this graph, which runs once for a global batch."""
        return StepTimes(*(np.where(graph.in_microbatch, times_s, 0.0) for times_s in self))


def step_times(graph: InstructionGraph, device: Device, times_s: ArrayLike | None = None) -> StepTimes:
    """The times of a graph's instructions, by the clock of a device if they are not given.

    Args:
        times_s: [n] whole times; of those, launches are what they are by the clock.

    Raises:
        BadInput: the device has no rate for a matrix product's element type.
    """
    clock_s = clock_times(graph, device)
    given_s = clock_s if times_s is None else np.asarray(times_s, dtype=np.float64)
    launch_s = np.minimum(np.where(clock_s > 0, device.constants.launch_s, 0.0), given_s)
    return StepTimes(given_s - launch_s, launch_s)


def sharding_work(step: StepClasses, times: StepTimes, *, reassociated: bool = True) -> ShardingWork:
    """The work of a training step whose instructions take these times.

    Args:
        reassociated: whether what is added is summed once, as XLA does for accelerators (see StepClasses.sums).
    """
    k = len(step.sharding.classes)
    terms, sums = list(_memory_terms(step)), step.sums if reassociated else step.separate_sums
    merges = step.merges if reassociated else ()
    waited = [total for total in sums if not total.late]
    return ShardingWork(
        compute_s=float(times.work_s.sum()),
        launch_s=float(times.launch_s.sum()),
        compute=_pairs(k, zip(step.of_instructions, times.work_s.tolist(), strict=True)),
        held_bytes=sum(nbytes for _, nbytes in terms),
        memory=_pairs(k, terms),
        activation_sums=_summed(k, waited),
        gradient_sums=_summed(k, (total for total in sums if total.late)),
        starts=np.bincount([total.over for total in waited], minlength=k).astype(np.float64),
        merged=_merged(merges),
    )


def _memory_terms(step: StepClasses) -> Iterator[tuple[Classes, float]]:
    """Classes and bytes of arguments, constants, gradients and activations for the backward pass."""
    graph, of_constants = step.graph, np.intersect1d(step.liveness.constants, step.liveness.untrained)
    for v, argument in enumerate(graph.arguments):
        copies = 2.0 if argument.kind == "parameter" else 1.0
        yield step.of_values[v], copies * float(graph.value_bytes[v])
    for v in (*of_constants.tolist(), *np.flatnonzero(step.liveness.saved).tolist()):
        yield step.of_values[v], float(graph.value_bytes[v])


def _pairs(k: int, amounts: Iterable[tuple[Classes, float]]) -> FloatArray:
    """[k, k] sums of the amounts with classes i and j."""
    total: Counter[Classes] = Counter()
    for classes, amount in amounts:
        total[classes] += amount  # type: ignore[assignment]
    matrix = np.zeros((k, k))
    for classes, amount in total.items():
        matrix[np.ix_(classes, classes)] += amount
    return matrix


def _summed(k: int, sums: Iterable[Sum]) -> FloatArray:
    """[k, k] bytes summed over class i, and of those of results with class j."""
    matrix = np.zeros((k, k))
    for total in sums:
        matrix[total.over, total.over] += total.nbytes
        matrix[total.over, [c for c in total.classes if c != total.over]] += total.nbytes
    return matrix


def _merged(merges: Iterable[Merge]) -> tuple[MergedSums, ...]:
    """The merges, those of the same classes together."""
    saved: dict[tuple[Classes, Classes, bool], list[float]] = {}
    for merge in merges:
        key = (merge.over, merge.total.classes, merge.total.late)
        saved.setdefault(key, []).append(merge.saved_bytes)
    return tuple(
        MergedSums(over, classes, sum(nbytes), len(nbytes), late) for (over, classes, late), nbytes in saved.items()
    )


class DivisibleProfile:
    """A step's profile, and what of it a choice of classes divides; made once for many choices.

    What partitioning costs is attributed to the profile's instructions as the step's time is: each instruction's share
    and each all-reduce to the forward instruction at home with the one that takes or makes it (attribution.py), what
    belongs nowhere in proportion to the profile's times.

    Attributes:
        step: the classes of the step's instructions and values, and the sums over them.
        times: of the step's n instructions in one micro-batch: those of the update take none.
        profile: that `profile_from_graph` makes of the step's graph and these times.
        device: whose clock says what smaller kernels take.

    Raises:
        BadInput: the profile was made of another graph or other times.
    """

    def __init__(self, step: StepClasses, times: StepTimes, profile: Profile, device: Device) -> None:
        self.step, self.times, self.profile, self.device = step, times.in_microbatch(step.graph), profile, device
        self._home = homes(step.liveness)
        same = len(profile) == step.liveness.forward.size and np.array_equal(profile.A, step.liveness.crossing())
        if not same or not np.allclose(self._by_home(self.times.total_s), profile.C, rtol=1e-6, atol=0.0):
            what = "the profile has other instructions or times than the step that is to be partitioned"
            raise BadInput(what, where=profile.model, do="make it of the same model, micro-batch size and times")

    def partitioned(self, sharded: Collection[int], degree: int, name: str) -> ShardedProfile:
        """The profile with these classes sharded along one axis.

        Instructions and values with a sharded class are divided by `degree`, launches are not. What is left of an
        instruction's time is as the clock has it (hlo.clock): smaller kernels reach less. Results that are summed
        over a sharded class are all-reduced, added ones after the addition: in the forward or the backward pass if
        further layers wait for them, else, as gradients, once for a global batch.

        Args:
            sharded: classes that do not conflict and that `degree` divides; none are with degree 1.
            degree: devices along the axis.
            name: what people call the choice.
        """
        chosen = frozenset(sharded) if degree > 1 else frozenset[int]()
        divided = meets(self.step.of_values, chosen)
        shares = Sharing(degree, meets(self.step.of_instructions, chosen), divided, self.step.divided_sides(chosen))
        time_s = self.times.work_s * self._remaining_share(shares) + self.times.launch_s
        A, sizes, liveness = self.profile.A, self.step.graph.value_bytes, self.step.liveness
        sharded_sizes = np.where(divided, sizes / degree, sizes)
        # Sums of whole bytes are exact: where everything that crosses is divided, A / degree is held and no bit more.
        replicated = liveness.crossing(np.where(divided, 0.0, sizes))
        forward, backward, late = map(self._of_sums, self._sums(chosen))
        classes = self.step.sharding.classes
        dims = classes.dims(chosen)
        return ShardedProfile(
            name,
            degree,
            C=self._by_home(time_s),
            C_fwd=time_s[liveness.forward],
            A=A,
            boundary_bytes=A / degree + replicated * (1.0 - 1.0 / degree),
            W=liveness.trained.first_using(sharded_sizes),
            stash=liveness.keeping(sharded_sizes),
            reduced_fwd=forward[0],
            reduced_bwd=backward[0],
            starts_fwd=forward[1],
            starts_bwd=backward[1],
            gradients=late[0],
            frozen=liveness.frozen.first_using(sharded_sizes),
            dims={axis.name: d for axis, d in zip(classes.variables, dims, strict=True) if d != REPLICATED},
            shared_bytes=sharded_sizes[[v for v, _ in liveness.trained.shared]],
            shared_frozen_bytes=sharded_sizes[[v for v, _ in liveness.frozen.shared]],
        )

    def _remaining_share(self, shares: Sharing) -> FloatArray:
        """[n] what is left of each instruction's time beside its launch; 1/t of those that the clock gives none."""
        launch_s = self.device.constants.launch_s
        undivided_s, part_s = (
            np.maximum(clock_times(self.step.graph, self.device, sharding=choice) - launch_s, 0.0)
            for choice in (None, shares)
        )
        remaining = np.where(shares.instructions, 1.0 / shares.degree, 1.0)
        return np.divide(part_s, undivided_s, out=remaining, where=undivided_s > 0)

    def _sums(self, chosen: frozenset[int]) -> tuple[list[Sum], list[Sum], list[Sum]]:
        """The sums over these classes: in the forward pass, after it, and those that only the update reads."""
        due = self.step.sums_over(chosen)
        forward = self.step.graph.phases == Phase.FORWARD
        waited = [total for total in due if not total.late]
        return (
            [total for total in waited if forward[total.operation]],
            [total for total in waited if not forward[total.operation]],
            [total for total in due if total.late],
        )

    def _of_sums(self, sums: Sequence[Sum]) -> list[FloatArray]:
        """[2, m] bytes and number of sums at home with the operations that make them."""
        operations = np.array([total.operation for total in sums], dtype=np.int64)
        amounts = [total.nbytes for total in sums], [1.0] * len(sums)
        of_operations = (np.bincount(operations, some, minlength=len(self.step.graph)) for some in amounts)
        return [self._by_home(some.astype(np.float64)) for some in of_operations]

    def _by_home(self, amounts: FloatArray) -> FloatArray:
        """[m] amounts of all instructions, [n], at the forward instructions that these belong to."""
        housed: NDArray[np.bool_] = self._home != NEVER
        amounts_home = np.bincount(self._home[housed], amounts[housed], minlength=len(self.profile))
        return np.asarray(amounts_home + amounts[~housed].sum() * (self.profile.C / self.profile.C.sum()))
