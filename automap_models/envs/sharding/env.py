"""Partitioning operators and data as a Markov decision process, batched in torch (Auto-MAP §3.2, §3.3).

Specification:
    state    the decision vector: 1 partitioned, 0 replicated, -1 undecided for each (variable, dimension), and the
             position of the dimension that comes next
    action   0 replicates that dimension, 1 partitions it
    step     the decision and everything that follows from it (envs.sharding.propagation);
             then the next undecided dimension
    order    with linkage groups, dimensions in descending size of theirs; without, as the variables come
    legal    with linkage groups, known beforehand, no decision that conflicts by itself; without, both always
    reward   +0.4 per dimension partitioned and +0.1 per dimension replicated by the step, its consequences counted;
             -1 for a conflict, which ends the episode
    end      nothing is undecided, or a conflict

Dimensions of one class are always decided alike, so states hold one entry a class; `decision_vector` spreads them out.
States and tables are values; `reset`, `step` and `legal` are pure functions of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from automap_models.core.sharding import ShardingProblem
from automap_models.envs.sharding.propagation import (
    CONFLICT_REWARD,
    PARTITION_REWARD,
    PARTITIONED,
    REPLICATE_REWARD,
    REPLICATED,
    UNDECIDED,
    Propagation,
)


class Decided(NamedTuple):
    """B states: classes int8 [B, k] with 1, 0 or -1; position int64 [B], place in the order, m at the end."""

    classes: Tensor
    position: Tensor

    def take(self, index: Tensor) -> Decided:
        """The states selected by an index or a mask."""
        return Decided(self.classes[index], self.position[index])


class ShardingTables(NamedTuple):
    """What one problem's steps look up; all episodes of a batch share it.

    order: int64 [m] dimensions in the order in which they are decided; dim_classes: int64 [m] the class of each of
    these; excludes: bool [k, k] classes in conflict; live: bool [k] classes that can be sharded; sizes: float32 [k]
    dimensions of candidates in each class; prunes: whether decisions that conflict by themselves are illegal.
    """

    order: Tensor
    dim_classes: Tensor
    excludes: Tensor
    live: Tensor
    sizes: Tensor
    prunes: bool

    @classmethod
    def from_problem(cls, problem: ShardingProblem, *, linkage_groups: bool) -> ShardingTables:
        """The tables of a problem of one axis, with linkage groups or without."""
        (along,) = problem.along
        propagation = Propagation(along)
        order = torch.from_numpy(propagation.order(linkage_groups=linkage_groups))
        return cls(
            order=order,
            dim_classes=torch.from_numpy(propagation.dim_classes)[order],
            excludes=torch.from_numpy(problem.classes.adjacency),
            live=torch.from_numpy(along.live),
            sizes=torch.from_numpy(propagation.sizes).float(),
            prunes=linkage_groups,
        )

    def decision_vector(self, states: Decided) -> Tensor:
        """int8 [B, m] the decision on each dimension, in the order in which they are decided."""
        return states.classes[:, self.dim_classes]

    def current(self, states: Decided) -> Tensor:
        """int64 [B] the class that the next decision is about; any class after the end."""
        return self.dim_classes[states.position.clamp(max=len(self.order) - 1)]

    def legal(self, states: Decided) -> Tensor:
        """bool [B, 2]: replicate, partition; none after the end."""
        running = states.position < len(self.order)
        partition = running & self.live[self.current(states)] if self.prunes else running
        return torch.stack([running, partition], 1)

    def next_undecided(self, classes: Tensor) -> Tensor:
        """int64 [B] place of the first undecided dimension, m where everything is decided."""
        undecided = classes[:, self.dim_classes] == UNDECIDED
        first = undecided.int().argmax(1)
        return torch.where(undecided.any(1), first, len(self.order))

    def reset(self, episodes: int) -> Decided:
        """So many episodes in which nothing is decided, but for classes without a dimension to decide on."""
        return self.start(torch.full((episodes, len(self.live)), UNDECIDED, dtype=torch.int8))

    def start(self, classes: Tensor) -> Decided:
        """States with these decisions, int8 [B, k], at the first dimension that is not decided."""
        return Decided(classes, self.next_undecided(classes))

    def step(self, states: Decided, action: Tensor) -> tuple[Decided, Tensor, Tensor]:
        """The next states, rewards [B], whether the episode ended, bool [B]."""
        current = self.current(states)
        partitions = action == PARTITIONED
        excluded = self.excludes[current] & partitions.unsqueeze(1)
        before = states.classes
        clash = ((before == PARTITIONED) & excluded).any(1)
        conflict = partitions & (clash | ~self.live[current])
        new = torch.where(excluded & (before == UNDECIDED), REPLICATED, before)
        new = new.scatter(1, current.unsqueeze(1), action.to(torch.int8).unsqueeze(1))
        after = torch.where(conflict.unsqueeze(1), before, new)
        position = torch.where(conflict, len(self.order), self.next_undecided(after))
        decided = (after != before) * self.sizes
        earned = (decided * torch.where(after == PARTITIONED, PARTITION_REWARD, REPLICATE_REWARD)).sum(1)
        reward = torch.where(conflict, CONFLICT_REWARD, earned)
        return Decided(after, position), reward, position == len(self.order)
