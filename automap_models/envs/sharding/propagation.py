"""Auto-MAP's decisions on a sharding problem along one axis: decide one dimension of a variable, and what follows.

Sharding a dimension shards its class and replicates every class that conflicts with it; replicating a dimension
replicates its class (Auto-MAP §3.2). A conflict is a decision that contradicts what is decided already, or that shards
a class which cannot be sharded. envs.sharding.env plays episodes of such decisions; what is here has closed forms.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from automap_models.core.instruction_graph import IntArray
from automap_models.core.sharding import AxisCandidates

PARTITIONED, REPLICATED, UNDECIDED = 1, 0, -1
PARTITION_REWARD, REPLICATE_REWARD, CONFLICT_REWARD = 0.4, 0.1, -1.0
"""Of each dimension that a step partitions or replicates, and of a conflict (Auto-MAP §3.2)."""


class Replay(NamedTuple):
    """An episode that makes a plan: how many dimensions it decided itself, and the sum of its rewards."""

    decisions: int
    reward: float


class Propagation:
    """The m dimensions to decide on along one axis, and how decisions on them spread over the k classes.

    Attributes:
        dim_classes: [m] class of each dimension, by its position among `along.candidate_dims`.
        sizes: [k] how many of those dimensions each class holds: what a decision to replicate decides.
        excluded_sizes: [k] how many of them sharding a class replicates.
    """

    def __init__(self, along: AxisCandidates) -> None:
        classes = along.classes
        self.along = along
        self.dim_classes: IntArray = classes.dim_classes[along.candidate_dims]
        self.sizes: IntArray = np.bincount(self.dim_classes, minlength=len(classes))
        self.excluded_sizes: IntArray = classes.adjacency @ self.sizes

    def __len__(self) -> int:
        return self.dim_classes.size

    def group_sizes(self) -> IntArray:
        """[m, 2] dimensions in the linkage group of replicating and of partitioning each; 0 where that conflicts."""
        shard = np.where(self.along.live, self.sizes + self.excluded_sizes, 0)
        return np.stack([self.sizes, shard], axis=1)[self.dim_classes]

    def order(self, *, linkage_groups: bool) -> IntArray:
        """[m] the order in which dimensions are decided.

        Args:
            linkage_groups: in descending size of their largest linkage group; else as they come.
        """
        if not linkage_groups:
            return np.arange(len(self))
        return np.argsort(-self.group_sizes().max(axis=1), kind="stable")

    def greedy(self, *, linkage_groups: bool, unavailable: Collection[int] = ()) -> list[int]:
        """The classes that are sharded in the end, ascending, where every dimension is unless that conflicts.

        Args:
            unavailable: classes that stay replicated along this axis.
        """
        open_classes, sharded = self.along.live.copy(), []
        open_classes[[*unavailable]] = False
        for number in self.dim_classes[self.order(linkage_groups=linkage_groups)].tolist():
            if open_classes[number]:
                sharded.append(number)
                open_classes &= ~self.along.classes.adjacency[number]
                open_classes[number] = False
        return sorted(sharded)

    def replay(self, sharded: Collection[int]) -> Replay:
        """The episode that decides the largest linkage groups first and ends with these classes sharded, all else not.

        Args:
            sharded: classes that can be sharded together.
        """
        chosen = np.zeros(self.sizes.size, dtype=np.bool_)
        chosen[[*sharded]] = True
        decided, decisions = np.zeros_like(chosen), 0
        for number in self.dim_classes[self.order(linkage_groups=True)].tolist():
            if not decided[number]:
                decisions += 1
                decided |= self.along.classes.adjacency[number] & chosen[number]
                decided[number] = True
        reward = np.where(chosen, PARTITION_REWARD, REPLICATE_REWARD) @ self.sizes
        return Replay(decisions, float(reward))
