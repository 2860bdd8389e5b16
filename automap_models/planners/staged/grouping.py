"""Clusters too large for the policy, seen as fewer and larger devices.

k neighbouring devices of one node that always work for the same stage are like one device k times as fast that keeps a
k-th of the activations; whole nodes joined in the same way are like one node with as many links. What this gets wrong
is how much of an all-reduce or a transfer stays inside a group, and that stages can only have whole groups: the plan is
costed, proven and refined as one of the cluster as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem


@dataclass(frozen=True)
class Grouped:
    """A problem with groups of `size` devices for devices; the problem itself where `size` is 1."""

    problem: StagedProblem
    size: int

    def ungrouped(self, plan: StagedPlan) -> StagedPlan:
        """A plan of it as one of the problem it was made from."""
        return replace(plan, device_cuts=tuple(self.size * cut for cut in plan.device_cuts))


def grouped(problem: StagedProblem, most_nodes: int, most_per_node: int) -> Grouped:
    """The problem with the smallest equal groups that leave at most so many nodes and devices in a node.

    Where only a single node or device would be left, or too few groups for the stages, nothing is grouped.
    """
    cluster = problem.cluster
    inside = _least_divisor(cluster.devices_per_node, most_per_node)
    across = _least_divisor(cluster.nodes, most_nodes)
    size = inside * across
    if size == 1 or cluster.devices // size < max(problem.stages, 2):
        return Grouped(problem, 1)
    fewer = Cluster(
        nodes=cluster.nodes // across,
        devices_per_node=cluster.devices_per_node // inside,
        intra=cluster.intra,
        inter=cluster.inter * across,
        memory=cluster.memory,
        name=cluster.name,
    )
    p = problem.profile
    profile = Profile.create(p.C / size, p.A, p.W, p.C_fwd / size, p.stash / size)
    return Grouped(replace(problem, profile=profile, cluster=fewer), size)


def _least_divisor(count: int, most: int) -> int:
    """The smallest divisor that leaves at most so many, but not one alone; 1 where there is none."""
    divisors = (d for d in range(1, count) if count % d == 0 and count // d <= most)
    return next(divisors, 1)
