"""Prefix sums, coarsening to a fixed number of points, joint normalisation, and the way back.

Auto-MAP §3.5 and cost-model.md, "The planning problem as an array problem".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray, Profile
from automap_models.errors import BadInput

DEFAULT_GRANULARITY = 128


@dataclass(frozen=True)
class Grid:
    """An even grid of `granularity` points over n instructions.

    Point j stands for instruction ⌈(j+1)·n/granularity⌉ - 1. With n < granularity points repeat
    instructions; a cut between two points of one instruction is no cut.
    """

    n: int
    granularity: int = DEFAULT_GRANULARITY

    @cached_property
    def instruction_of_point(self) -> NDArray[np.int64]:
        """[granularity] the instruction each point stands for, non-decreasing."""
        j = np.arange(1, self.granularity + 1, dtype=np.int64)
        return -(-j * self.n // self.granularity) - 1

    @cached_property
    def cut_mask(self) -> NDArray[np.bool_]:
        """[granularity] whether a stage may end at this point: the last of its instruction, and not the model's end."""
        point = self.instruction_of_point
        mask = np.ones(self.granularity, dtype=bool)
        mask[:-1] = point[1:] != point[:-1]
        mask[-1] = False
        return mask

    @cached_property
    def cut_points(self) -> NDArray[np.int64]:
        """The points at which a stage may end."""
        return np.flatnonzero(self.cut_mask)

    def to_instructions(self, coarse_cuts: Sequence[int]) -> tuple[int, ...]:
        """The instruction cuts that these grid cuts stand for.

        Raises:
            BadInput: a point outside the grid or one where no stage can end.
        """
        for point in coarse_cuts:
            if not 0 <= point < self.granularity or not self.cut_mask[point]:
                what = f"point {point} is no cut point of {self.n} instructions at granularity {self.granularity}"
                raise BadInput(what, where="coarse_cuts", do="cut at the last point of an instruction, before the end")
        return tuple(int(self.instruction_of_point[point]) for point in coarse_cuts)

    def to_points(self, cuts: Sequence[int]) -> tuple[int, ...] | None:
        """The grid cuts that stand for these instruction cuts, or None when one is not on the grid."""
        points = []
        for cut in cuts:
            j = int(np.searchsorted(self.instruction_of_point, cut, side="right")) - 1
            if j < 0 or self.instruction_of_point[j] != cut or not self.cut_mask[j]:
                return None
            points.append(j)
        return tuple(points)


grid_of = lru_cache(maxsize=64)(Grid)
"""The grid over so many instructions, of so many points; many problems are often planned on the same one."""


@dataclass(frozen=True, eq=False)
class CoarseArrays:
    """A profile on the grid, in seconds scaled by one MAX: what a policy reads.

    Attributes:
        C, F, W: prefix sums at each point: time, its forward part, parameters over `inter`; in [0, 1].
        A: activations over `inter` at each point, in [0, 1].
        stash: prefix sum of kept bytes as a fraction of device memory (not part of the joint MAX).
        scale_s: the joint MAX in seconds: multiply by it to come back.
        cut_mask: points at which a stage may end.
    """

    C: FloatArray
    A: FloatArray
    W: FloatArray
    F: FloatArray
    stash: FloatArray
    scale_s: float
    cut_mask: NDArray[np.bool_]


def coarse_arrays(profile: Profile, cluster: Cluster, granularity: int = DEFAULT_GRANULARITY) -> CoarseArrays:
    """Prefix-sum, coarsen and jointly normalise a profile for a cluster."""
    grid = Grid(len(profile), granularity)
    point = grid.instruction_of_point
    compute = np.cumsum(profile.C)[point]
    forward = np.cumsum(profile.C_fwd)[point]
    weights = np.cumsum(profile.W)[point] / cluster.inter
    activations = profile.A[point] / cluster.inter
    scale = float(max(compute.max(), weights.max(), activations.max()))
    return CoarseArrays(
        C=compute / scale,
        A=activations / scale,
        W=weights / scale,
        F=forward / scale,
        stash=np.cumsum(profile.stash)[point] / cluster.memory,
        scale_s=scale,
        cut_mask=grid.cut_mask,
    )
