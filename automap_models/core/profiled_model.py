"""A model profiled once, with everything that any kind of plan is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from automap_models.core.profile import FloatArray, Profile, SharedParameter
from automap_models.errors import BadInput

UNSHARDED = "whole"
"""Name of the partitioning that divides nothing."""

_IN_PROPORTION = ("A", "boundary_bytes", "stash", "reduced_fwd", "reduced_bwd")
"""What grows with the samples of a micro-batch."""


@dataclass(frozen=True, eq=False)
class ShardedProfile:
    """One micro-batch of a training step on `degree` devices that share every instruction, n instructions.

    It is a profile's instructions one for one, under a sharding plan that needs no resharding: results that are summed
    over a partitioned dimension are all-reduced, nothing else moves. All arrays are float64 of shape [n].

    Attributes:
        name: what people call the choice of dimensions.
        degree: devices t that share a micro-batch; 1 is the profile itself.
        C: forward + backward time of each instruction on each device, without all-reduces, seconds.
        C_fwd: forward part of C.
        A: bytes that cross the boundary right after an instruction, as in the profile.
        boundary_bytes: how many of these a device holds: A/t where they are partitioned, A where they are replicated.
        W: bytes of trainable parameters on each device.
        stash: bytes that each device keeps for the backward pass.
        reduced_fwd, reduced_bwd: bytes that the devices all-reduce in the forward and the backward pass.
        starts_fwd, starts_bwd: how many all-reduces these are.
        gradients: bytes of parameter gradients that the devices all-reduce once for a global batch.
        dims: the dimension of each variable that is partitioned; variables that are not in it are replicated.
        shared_bytes: [k] of each of the profile's k shared parameters, how many bytes a device holds.
        frozen: bytes on each device that are not trained.
        shared_frozen_bytes: [f] the same as shared_bytes of the profile's f shared ones that are not trained.
    """

    name: str
    degree: int
    C: FloatArray
    C_fwd: FloatArray
    A: FloatArray
    boundary_bytes: FloatArray
    W: FloatArray
    stash: FloatArray
    reduced_fwd: FloatArray
    reduced_bwd: FloatArray
    starts_fwd: FloatArray
    starts_bwd: FloatArray
    gradients: FloatArray
    frozen: FloatArray
    dims: Mapping[str, int] = field(default_factory=dict)
    shared_bytes: FloatArray = field(default_factory=lambda: np.zeros(0))
    shared_frozen_bytes: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        for array in self._arrays().values():
            array.setflags(write=False)

    def __len__(self) -> int:
        return int(self.C.size)

    def rescaled(self, factor: float, forward: FloatArray, backward: FloatArray) -> ShardedProfile:
        """The same for micro-batches of so many times the samples, see core.microbatch.

        Args:
            factor: of what grows with the samples.
            forward, backward: [n] of the times of each pass (core.microbatch.time_factors).
        """
        amounts = {name: factor * getattr(self, name) for name in _IN_PROPORTION}
        return replace(self.timed(forward, backward), **amounts)

    def timed(self, forward: FloatArray | float, backward: FloatArray | float) -> ShardedProfile:
        """The same with so many times the time of the forward and the backward pass."""
        C_fwd = forward * self.C_fwd
        return replace(self, C=C_fwd + backward * (self.C - self.C_fwd), C_fwd=C_fwd)

    @property
    def gathered(self) -> FloatArray:
        """[n+1] bytes that a device gathers of the others when the model is cut before instruction i; 0 at both ends.

        A stage's devices hand over, and are handed, a slice of 1/t each; what is replicated they put together again.
        """
        gathered = np.zeros(len(self) + 1)
        gathered[1:-1] = (self.boundary_bytes - self.A / self.degree)[:-1]
        return gathered

    def weights_bytes(self, shared_parameters: Sequence[SharedParameter], begin: int, stop: int) -> FloatArray:
        """[stop - begin] bytes of the parameters that a stage of the instructions begin … stop-1 holds on each device.

        It is W and, at their first use in the stage, the copies of those that instructions before it use, too.

        Args:
            shared_parameters: of the profile.
        """
        return _with_copies(self.W, shared_parameters, self.shared_bytes, begin, stop)

    def frozen_bytes(self, shared_frozen: Sequence[SharedParameter], begin: int, stop: int) -> FloatArray:
        """[stop - begin] the same of what is not trained.

        Args:
            shared_frozen: of the profile.
        """
        return _with_copies(self.frozen, shared_frozen, self.shared_frozen_bytes, begin, stop)

    def _arrays(self) -> dict[str, FloatArray]:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}


def _with_copies(
    first_used: FloatArray, shared: Sequence[SharedParameter], shared_bytes: FloatArray, begin: int, stop: int
) -> FloatArray:
    """[stop - begin] bytes at the instructions that first use them, and the copies that a stage of these holds."""
    size_bytes = first_used[begin:stop]
    for parameter, nbytes in zip(shared, shared_bytes, strict=True):
        position = parameter.copied_at(begin, stop)
        if position is not None:
            size_bytes = size_bytes.copy()
            size_bytes[position - begin] += nbytes
    return size_bytes


def unsharded(profile: Profile) -> ShardedProfile:
    """The profile itself, on one device."""
    alike = {name: getattr(profile, name) for name in ("C", "C_fwd", "A", "W", "stash", "frozen")}
    sums = ("reduced_fwd", "reduced_bwd", "starts_fwd", "starts_bwd", "gradients")
    nothing: dict[str, Any] = dict.fromkeys(sums, np.zeros(len(profile)))
    return ShardedProfile(
        UNSHARDED,
        1,
        **alike,
        boundary_bytes=profile.A,
        **nothing,
        shared_bytes=np.array([parameter.nbytes for parameter in profile.shared_parameters]),
        shared_frozen_bytes=np.array([parameter.nbytes for parameter in profile.shared_frozen]),
    )


def require_alike(profile: Profile, partitioned: ShardedProfile) -> ShardedProfile:
    """The partitioning itself if it divides this profile.

    Raises:
        BadInput: it has other instructions or shared parameters, or something between them that the profile has not.
    """
    shared = (partitioned.shared_bytes.size, partitioned.shared_frozen_bytes.size)
    alike = len(partitioned) == len(profile) and shared == (len(profile.shared_parameters), len(profile.shared_frozen))
    if not alike or not np.array_equal(partitioned.A, profile.A):
        what = f"partitioning {partitioned.name!r} has other instructions than the profile"
        raise BadInput(what, where=profile.model, do="make both of the same training step at the same micro-batch size")
    return partitioned


@dataclass(frozen=True, eq=False)
class ProfiledModel:
    """A profile, and the shardings of the operators behind it.

    Attributes:
        profile: of one micro-batch.
        shardings: of that profile, of every degree that a stage, or the model as a whole, may run in; empty for a
            profile without operators.
        launch_s: of a kernel.
        batch_dims: the dimension of each input of the step that data parallelism partitions, by propagation; None
            where nothing was propagated.
        notes: sentences for people.
    """

    profile: Profile
    shardings: tuple[ShardedProfile, ...] = ()
    launch_s: float = 0.0
    batch_dims: Mapping[str, int] | None = None
    notes: tuple[str, ...] = field(default=())
