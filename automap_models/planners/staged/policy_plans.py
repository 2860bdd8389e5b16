"""What is made of a policy's plans: joined to a shorter one, or of several the one whose step is the shortest.

What a network decides is joined: of all places at which its plans begin a stage, and those beside the best plan's, a
beam search takes the shortest way through (planners.staged.beam_search). That takes a tenth of the network's time and
half of what is lost. Devices that are more than a network knows are planned as groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.staged.beam_search import route_of, shortest_through
from automap_models.planners.staged.device_tables import MOST_DEVICES
from automap_models.planners.staged.local_search import every_pair
from automap_models.planners.staged.stage_tables import stage_tables


def shortest_step(problem: StagedProblem, plans: Sequence[StagedPlan]) -> StagedPlan:
    """The plan with the shortest simulated step of those that fit; the first where none does.

    Args:
        problem: with a schedule.
        plans: for it.
    """
    if len(plans) == 1:
        return plans[0]
    from automap_models.planners.staged.improve import Moves  # numba takes half a second to import

    steps = [Moves(problem).step_s(plan) for plan in plans]
    return plans[int(np.argmin(steps))]


def joined(problem: StagedProblem, plans: Sequence[StagedPlan], reach: int) -> StagedPlan:
    """The shortest plan found that begins its stages where any of the plans does, or near where the first does.

    Args:
        problem: without a schedule; on more devices than searches know the best plan comes back as it is.
        plans: for it, the best first; that one comes back where none is shorter.
        reach: how far beside it, in boundaries and in devices.
    """
    best = plans[0]
    if not reach or problem.cluster.devices > MOST_DEVICES:
        return best
    tables, cost, beside = stage_tables(problem), plan_cost(problem, best), np.arange(-reach, reach + 1)
    routes = [route_of(tables, plan, np.inf) for plan in plans]
    known = replace(routes[0], length_s=cost.length_s if cost.feasible else np.inf)
    places = []
    for s in range(1, problem.stages):
        boundaries = np.concatenate([known.boundary[s] + beside, *(route.boundary[s : s + 1] for route in routes)])
        devices = np.concatenate([known.device[s] + beside, *(route.device[s : s + 1] for route in routes)])
        places.append(every_pair(tables, s, boundaries, devices))
    shortest = shortest_through(tables, known, places)
    if shortest is None:
        return best
    cuts, device_cuts = shortest.cuts(tables)
    return StagedPlan(cuts, device_cuts, problem.micro_batches, best.planner, problem.grid.to_points(cuts))


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

    k neighbouring devices of one node that always work for the same stage are like one device k times as fast that
    keeps a k-th of the activations; whole nodes joined in the same way are like one node with as many links. What this
    gets wrong is how much of an all-reduce or a transfer stays inside a group, and that stages can only have whole
    groups: the plan is costed, proven and refined as one of the cluster as it is.

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
        device=cluster.device,
    )
    p = problem.profile
    profile = Profile.create(p.C / size, p.A, p.W, p.C_fwd / size, p.stash / size, frozen=p.frozen)
    return Grouped(replace(problem, profile=profile, cluster=fewer), size)


def _least_divisor(count: int, most: int) -> int:
    """The smallest divisor that leaves at most so many, but not one alone; 1 where there is none."""
    divisors = (d for d in range(1, count) if count % d == 0 and count // d <= most)
    return next(divisors, 1)
