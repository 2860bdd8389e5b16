"""Auto-MAP's step on a sharding problem along one axis: decide one dimension of a variable, and what follows from it.

Sharding a dimension shards its class and replicates every class that conflicts with it; replicating a dimension
replicates its class (Auto-MAP §3.2). A conflict is a decision that contradicts what is decided already, or that shards
a class which cannot be sharded. A state is two bit sets over the classes, so a step takes microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import IntArray
from automap_models.core.sharding import AxisCandidates

PARTITIONED, REPLICATED, UNDECIDED = 1, 0, -1
PARTITION_REWARD, REPLICATE_REWARD, CONFLICT_REWARD = 0.4, 0.1, -1.0
"""Of each dimension that a step partitions or replicates, and of a conflict (Auto-MAP §3.2)."""


class State(NamedTuple):
    """What is decided: class c is sharded where bit c of `sharded` is set, replicated likewise."""

    sharded: int = 0
    replicated: int = 0


class Step(NamedTuple):
    """What a decision brings about.

    Attributes:
        state: afterwards; as before where the decision conflicts.
        partitioned, replicated: number of dimensions of candidates that it decides, its own among them.
        conflict: whether it contradicts the state or can never be.
    """

    state: State
    partitioned: int
    replicated: int
    conflict: bool = False

    @property
    def reward(self) -> float:
        """Auto-MAP's reward for the step."""
        if self.conflict:
            return CONFLICT_REWARD
        return PARTITION_REWARD * self.partitioned + REPLICATE_REWARD * self.replicated


class LinkageGroup(NamedTuple):
    """Everything that one decision alone decides, itself included; positions among the axis's `candidate_dims`."""

    partitioned: IntArray
    replicated: IntArray


class Replay(NamedTuple):
    """An episode that makes a plan: how many dimensions it decided itself, its end and the sum of its rewards."""

    decisions: int
    state: State
    reward: float


class Propagation:
    """The m dimensions to decide on along one axis, and how decisions on them spread.

    Attributes:
        along: whose candidates' dimensions are decided.
        dim_classes: [m] class of each dimension, by its position among `along.candidate_dims`.
        sizes: [k] how many of those dimensions each class holds.
    """

    def __init__(self, along: AxisCandidates) -> None:
        classes = along.classes
        self.along = along
        self.dim_classes: list[int] = classes.dim_classes[along.candidate_dims].tolist()
        self.sizes: list[int] = np.bincount(self.dim_classes, minlength=len(classes)).tolist()
        self._excluded = [0] * len(classes)
        for first, second in classes.conflicts.tolist():
            self._excluded[first] |= 1 << second
            self._excluded[second] |= 1 << first
        self._live = sum(1 << c for c in np.flatnonzero(along.live).tolist())

    def __len__(self) -> int:
        return len(self.dim_classes)

    def decide(self, state: State, dim: int, decision: int) -> Step:
        """Partition (1) or replicate (0) a dimension, and whatever follows.

        Args:
            dim: position among `along.candidate_dims`; one that is decided already may be decided the same again.
        """
        number = self.dim_classes[dim]
        bit = 1 << number
        if decision == REPLICATED:
            if state.sharded & bit:
                return Step(state, 0, 0, conflict=True)
            new = bit & ~state.replicated
            return Step(State(state.sharded, state.replicated | bit), 0, self._dims(new))
        excluded = self._excluded[number]
        if not self._live & bit or (state.replicated & bit) or (state.sharded & excluded):
            return Step(state, 0, 0, conflict=True)
        after = State(state.sharded | bit, state.replicated | excluded)
        return Step(after, self._dims(bit & ~state.sharded), self._dims(excluded & ~state.replicated))

    def decided(self, state: State, dim: int) -> bool:
        """Whether a dimension is decided."""
        return bool((state.sharded | state.replicated) >> self.dim_classes[dim] & 1)

    def decisions(self, state: State) -> NDArray[np.int8]:
        """[m] 1 for partitioned, 0 for replicated, -1 for undecided: the paper's decision vector."""
        of_class = np.full(len(self.sizes), UNDECIDED, dtype=np.int8)
        of_class[list(_bits(state.replicated))] = REPLICATED
        of_class[list(_bits(state.sharded))] = PARTITIONED
        return of_class[self.dim_classes]

    def linkage_group(self, dim: int, decision: int) -> LinkageGroup | None:
        """The consequences of one decision on the empty state; None where it conflicts in itself."""
        step = self.decide(State(), dim, decision)
        if step.conflict:
            return None
        decided = self.decisions(step.state)
        return LinkageGroup(np.flatnonzero(decided == PARTITIONED), np.flatnonzero(decided == REPLICATED))

    def group_sizes(self) -> IntArray:
        """[m, 2] dimensions in the linkage group of replicating and of partitioning each; 0 where that conflicts."""
        replicating = np.array(self.sizes)
        shard = np.where(self.along.live, replicating + self.along.classes.adjacency @ replicating, 0)
        return np.stack([replicating, shard], axis=1)[self.dim_classes]

    def by_group_size(self) -> IntArray:
        """[m] the dimensions in descending size of their largest linkage group: the order in which to decide them."""
        return np.argsort(-self.group_sizes().max(axis=1), kind="stable")

    def order(self, *, linkage_groups: bool) -> IntArray:
        """[m] the order in which dimensions are decided: by the size of linkage groups, or as they come without."""
        return self.by_group_size() if linkage_groups else np.arange(len(self))

    def greedy(self, *, linkage_groups: bool, unavailable: Collection[int] = ()) -> Replay:
        """The episode that partitions every dimension unless that conflicts.

        Args:
            linkage_groups: see `order`.
            unavailable: classes that stay replicated along this axis.
        """
        state, decisions, reward = State(0, sum(1 << number for number in set(unavailable))), 0, 0.0
        for dim in self.order(linkage_groups=linkage_groups).tolist():
            if not self.decided(state, dim):
                step = self.decide(state, dim, PARTITIONED)
                step = self.decide(state, dim, REPLICATED) if step.conflict else step
                state, decisions, reward = step.state, decisions + 1, reward + step.reward
        return Replay(decisions, state, reward)

    def replay(self, sharded: Collection[int]) -> Replay:
        """The episode that decides in the order of `by_group_size` and ends with these classes sharded, all else not.

        Args:
            sharded: classes that can be sharded together.
        """
        state, chosen, decisions, reward = State(), set(sharded), 0, 0.0
        for dim in self.by_group_size().tolist():
            if not self.decided(state, dim):
                step = self.decide(state, dim, PARTITIONED if self.dim_classes[dim] in chosen else REPLICATED)
                state, decisions, reward = step.state, decisions + 1, reward + step.reward
        return Replay(decisions, state, reward)

    def _dims(self, classes: int) -> int:
        return sum(self.sizes[c] for c in _bits(classes))


def sharded_classes(state: State) -> tuple[int, ...]:
    """The classes that are sharded in a state."""
    return tuple(_bits(state.sharded))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
