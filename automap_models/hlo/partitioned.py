"""What is left of a profile's instructions on each device when operator partitioning divides a step's classes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from automap_models.core.device import Device
from automap_models.core.instruction_graph import FloatArray, Phase
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.sharding_classes import REPLICATED
from automap_models.errors import BadInput
from automap_models.hlo.attribution import homes
from automap_models.hlo.clock import Division, clock_times
from automap_models.hlo.liveness import NEVER
from automap_models.hlo.sharding_work import StepTimes
from automap_models.hlo.step_classes import StepClasses, Sum, meets


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
        same = len(profile) == step.liveness.forward.size and np.array_equal(profile.A, step.liveness.crossing_bytes)
        if not same or not np.allclose(self._at_home(self.times.total_s), profile.C, rtol=1e-6, atol=0.0):
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
        division = Division(degree, meets(self.step.of_instructions, chosen), divided, self.step.divided_sides(chosen))
        time_s = self.times.work_s * self._left(division) + self.times.launch_s
        A, sizes, liveness = self.profile.A, self.step.graph.value_bytes, self.step.liveness
        sharded_sizes = np.where(divided, sizes / degree, sizes)
        # Sums of whole bytes are exact: where everything that crosses is divided, A / degree is held and no bit more.
        replicated = liveness.crossing(np.where(divided, 0.0, sizes))
        forward, backward, late = self._sums(chosen)
        return ShardedProfile(
            name,
            degree,
            C=self._at_home(time_s),
            C_fwd=time_s[liveness.forward],
            A=A,
            held=A / degree + replicated * (1.0 - 1.0 / degree),
            W=liveness.trained.first_using(sharded_sizes),
            stash=liveness.keeping(sharded_sizes),
            reduced_fwd=self._bytes(forward),
            reduced_bwd=self._bytes(backward),
            starts_fwd=self._starts(forward),
            starts_bwd=self._starts(backward),
            gradients=self._bytes(late),
            frozen=liveness.frozen.first_using(sharded_sizes),
            dims=self._dims(chosen),
            shared_bytes=sharded_sizes[[v for v, _ in liveness.trained.shared]],
            shared_frozen_bytes=sharded_sizes[[v for v, _ in liveness.frozen.shared]],
        )

    def _left(self, division: Division) -> FloatArray:
        """[n] what is left of each instruction's time beside its launch; 1/t of those that the clock gives none."""
        launch_s = self.device.constants.launch_s
        whole_s, part_s = (
            np.maximum(clock_times(self.step.graph, self.device, division=of) - launch_s, 0.0)
            for of in (None, division)
        )
        left = np.where(division.instructions, 1.0 / division.degree, 1.0)
        return np.divide(part_s, whole_s, out=left, where=whole_s > 0)

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

    def _bytes(self, sums: Iterable[Sum]) -> FloatArray:
        return self._at_home(self._of_operations((total.operation, total.nbytes) for total in sums))

    def _starts(self, sums: Iterable[Sum]) -> FloatArray:
        return self._at_home(self._of_operations((total.operation, 1.0) for total in sums))

    def _of_operations(self, amounts: Iterable[tuple[int, float]]) -> FloatArray:
        """[n] totals of amounts by operation."""
        total = np.zeros(len(self.step.graph))
        for operation, amount in amounts:
            total[operation] += amount
        return total

    def _at_home(self, amounts: FloatArray) -> FloatArray:
        """[m] amounts of all instructions, [n], at the forward instructions that these belong to."""
        housed: NDArray[np.bool_] = self._home != NEVER
        at_home = np.bincount(self._home[housed], amounts[housed], minlength=len(self.profile))
        return np.asarray(at_home + amounts[~housed].sum() * (self.profile.C / self.profile.C.sum()))

    def _dims(self, chosen: frozenset[int]) -> dict[str, int]:
        classes = self.step.sharding.classes
        pairs = zip(classes.variables, classes.dims(chosen), strict=True)
        return {variable.name: dim for variable, dim in pairs if dim != REPLICATED}
