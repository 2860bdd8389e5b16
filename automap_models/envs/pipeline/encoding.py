"""Pipeline problems as plain arrays: what data sets hold, environments step on and policies read; numpy only.

Everything is scale-free: times are in units of the problem's joint MAX, memory in units of a device's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.coarsen import Grid, coarse_arrays
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.errors import BadInput

_REMAKE = "make the data set again with datagen/run.py"
CHANNELS = ("C", "A", "W", "F", "stash")
"""Order of the coarse arrays along axis 1: prefix sums of all but A (see core.coarsen.CoarseArrays)."""
COMPUTE, SENT, WEIGHTS, FORWARDS, SAVED = range(len(CHANNELS))


@dataclass(frozen=True, eq=False)
class EncodedProblems:
    """B problems on a grid of P points.

    Attributes:
        arrays: float32 [B, 5, P] in the order of CHANNELS.
        instructions: int32 [B] number of instructions n; with n < P points repeat and cannot all be cut.
        nodes, devices_per_node: int32 [B].
        inter_over_intra: float32 [B] ratio of the two bandwidths.
        state_over_memory: float32 [B] σ·inter·MAX / memory: a stage's share of device memory per unit of W.
        stages, micro_batches: int32 [B].
    """

    arrays: NDArray[np.float32]
    instructions: NDArray[np.int32]
    nodes: NDArray[np.int32]
    devices_per_node: NDArray[np.int32]
    inter_over_intra: NDArray[np.float32]
    state_over_memory: NDArray[np.float32]
    stages: NDArray[np.int32]
    micro_batches: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.arrays.shape[0])

    def as_dict(self) -> dict[str, NDArray[Any]]:
        """Field name → array."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def take(self, index: slice | NDArray[np.int64] | NDArray[np.bool_]) -> EncodedProblems:
        """The problems selected by an index array, slice or mask."""
        return EncodedProblems(**{name: array[index] for name, array in self.as_dict().items()})

    @classmethod
    def from_mapping(cls, arrays: Mapping[str, NDArray[Any]], where: str = "data set") -> EncodedProblems:
        """Pick this record's fields out of a mapping, e.g. an opened data set, and check what they hold.

        Args:
            arrays: field name → array, and others.

        Raises:
            BadInput: an array is missing, of another type or shape, or holds what no problem has.
        """
        numbers = {field.name: arrays[field.name] for field in fields(cls) if field.name in arrays}
        for field in fields(cls):
            if field.name not in numbers:
                raise BadInput(f"has no array {field.name}", where=where, do=_REMAKE)
            _require_array(field.name, numbers[field.name], len(numbers[fields(cls)[0].name]), where)
        encoded = cls(**numbers)
        least = np.minimum(encoded.instructions, encoded.arrays.shape[2])
        devices = encoded.nodes.astype(np.int64) * encoded.devices_per_node
        if (encoded.stages > np.minimum(least, devices)).any():
            raise BadInput("has problems of more stages than devices or instructions", where=where, do=_REMAKE)
        return encoded


def _require_array(name: str, array: NDArray[Any], groups: int, where: str) -> None:
    """One array is what its field says.

    Raises:
        BadInput: it is not.
    """
    real = name in ("arrays", "inter_over_intra", "state_over_memory")
    kind, shape = np.float32 if real else np.int32, (groups, len(CHANNELS)) if name == "arrays" else (groups,)
    if (
        array.dtype != kind
        or array.shape[:2] != shape
        or array.ndim != (3 if name == "arrays" else 1)
        or not array.size
    ):
        raise BadInput(f"array {name} is of type {array.dtype} and shape {array.shape}", where=where, do=_REMAKE)
    least = {"arrays": 0.0, "state_over_memory": 0.0, "inter_over_intra": np.finfo(np.float32).tiny}.get(name, 1)
    if not np.isfinite(array).all() or array.min() < least:
        raise BadInput(f"array {name} holds what no problem has", where=where, do=_REMAKE)
    summed = [channel for channel, what in enumerate(CHANNELS) if what != "A"]
    if name == "arrays" and (np.diff(array[:, summed], axis=2) < 0).any():
        raise BadInput("its sums of times and sizes fall from one point to the next", where=where, do=_REMAKE)


def encode(problems: Sequence[StagedProblem]) -> EncodedProblems:
    """Coarsen and normalise problems of one granularity.

    Raises:
        BadInput: a cluster is mixed.
    """
    for problem in problems:
        problem.cluster.require_uniform("the environment of pipelines")
    coarse = [coarse_arrays(p.profile, p.cluster, p.granularity) for p in problems]
    return EncodedProblems(
        arrays=np.array([[getattr(c, channel) for channel in CHANNELS] for c in coarse], dtype=np.float32),
        instructions=np.array([len(p.profile) for p in problems], dtype=np.int32),
        nodes=np.array([p.cluster.nodes for p in problems], dtype=np.int32),
        devices_per_node=np.array([p.cluster.devices_per_node for p in problems], dtype=np.int32),
        inter_over_intra=np.array([p.cluster.inter / p.cluster.intra for p in problems], dtype=np.float32),
        state_over_memory=np.array(
            [
                p.state_factor * p.cluster.inter * c.scale_s / p.cluster.memory
                for p, c in zip(problems, coarse, strict=True)
            ],
            dtype=np.float32,
        ),
        stages=np.array([p.stages for p in problems], dtype=np.int32),
        micro_batches=np.array([p.micro_batches for p in problems], dtype=np.int32),
    )


def cut_masks(instructions: NDArray[np.int32], granularity: int) -> NDArray[np.bool_]:
    """[B, P] where a stage may end: `Grid.cut_mask` for many problems at once."""
    j = np.arange(1, granularity + 1, dtype=np.int64)
    point = -(-j * instructions[:, None].astype(np.int64) // granularity)
    mask = np.ones(point.shape, dtype=bool)
    mask[:, :-1] = point[:, 1:] != point[:, :-1]
    mask[:, -1] = False
    return mask


def decode(encoded: EncodedProblems, i: int) -> StagedProblem:
    """Problem i as records again, in units in which MAX = 1 s, inter = 1 byte/s and memory = 1 byte.

    One instruction stands for each distinct point, so that its grid cuts are the problem's grid cuts.
    """
    points = encoded.arrays.shape[2]
    n = min(int(encoded.instructions[i]), points)
    grid = Grid(n, points)
    last_point = np.append(grid.cut_points, points - 1)
    C, A, W, F, saved = (encoded.arrays[i, channel, last_point].astype(np.float64) for channel in range(5))
    compute = np.diff(C, prepend=0.0)
    profile = Profile.create(
        C=compute,
        A=A,
        W=np.diff(W, prepend=0.0),
        C_fwd=np.minimum(np.diff(F, prepend=0.0), compute),
        stash=np.diff(saved, prepend=0.0),
    )
    cluster = Cluster(
        nodes=int(encoded.nodes[i]),
        devices_per_node=int(encoded.devices_per_node[i]),
        intra=1.0 / float(encoded.inter_over_intra[i]),
        inter=1.0,
        memory=1.0,
        name="normalised",
    )
    return StagedProblem(
        profile,
        cluster,
        stages=int(encoded.stages[i]),
        micro_batches=int(encoded.micro_batches[i]),
        state_factor=float(encoded.state_over_memory[i]),
        granularity=points,
    )
