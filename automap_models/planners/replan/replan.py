"""Runtime adjustment: from the measured stage times of a running job to a corrected profile and a better plan.

As compilers do it (arXiv 1906.08168: assistants at run time move work where the measured distribution is off), for
pipelines: `fit_speeds` finds by how much the profile is off for each stage's instructions and how much slower each
device is; the corrected profile is planned again for devices of these speeds, in whatever order of nodes and devices
they serve best; and the move is held against what it saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.formats.observed_json import Observed
from automap_models.planners.replan.cost import idle_positions, stage_rates, unequal_cost
from automap_models.planners.replan.migration import Moving, Placed, moving
from automap_models.planners.replan.search import search
from automap_models.planners.replan.speeds import Attribution, Speeds, fit_speeds

PLANNER = "adjusted"
CORRECTED = "corrected_under"
"""Key of a profile's meta: cuts of the plan whose measured times corrected it."""
WORTH = 1e-3
"""A plan that moves more must be shorter by this share to be preferred."""
MOST_NODES_PERMUTED = 5
"""Nodes up to which all their orders are looked at; beyond, the slow ones first or last or as they are."""
SEARCHED = 4
"""Orders of devices for which device cuts are searched, the most promising at equal nodes' cuts."""


@dataclass(frozen=True, eq=False)
class Adjustment:
    """What came out.

    Attributes:
        problem: the running plan's, with the corrected profile.
        speeds: what the measured times say.
        before, after: the running plan and the new one with their devices; the same where none is better.
        before_cost, after_cost: what they cost on devices of these speeds.
        moving: what it takes to go from the one to the other.
        restart_s: what a move takes beside moving bytes.
    """

    problem: StagedProblem
    speeds: Speeds
    before: Placed
    after: Placed
    before_cost: StagedCost
    after_cost: StagedCost
    moving: Moving
    restart_s: float = 0.0

    @property
    def saved_s(self) -> float:
        """What the new plan saves in every step."""
        return self.before_cost.length_s - self.after_cost.length_s

    @property
    def pays_after_steps(self) -> int | None:
        """Steps after which the move has paid; None where there is nothing to gain."""
        if self.saved_s <= 0:
            return None
        return math.ceil((self.moving.moving_s + self.restart_s) / self.saved_s)


def adjust(
    problem: StagedProblem,
    running: Placed,
    observed: Observed,
    *,
    attribute: Attribution | None = None,
    known: FloatArray | None = None,
    starts: Callable[[StagedProblem], Sequence[StagedPlan]] = lambda _: (),
    restart_s: float = 0.0,
) -> Adjustment:
    """Correct the profile by what was measured and plan again.

    Args:
        problem: with the profile that the running plan was made for.
        running: the plan that runs, with its devices.
        observed: its measured times.
        attribute: see planners.replan.speeds; None: as the profile's past suggests, see `attribution`.
        known: [D] slowdowns found before.
        starts: makes plans of the corrected problem from whose device cuts to search, beside the running one.
        restart_s: what a move takes beside moving bytes.

    Raises:
        BadInput: the times are not those of this plan.
    """
    speeds = fit_speeds(
        observed,
        *healthy_times(problem.profile, running),
        running.stage_of_device(),
        attribute or attribution(problem.profile, running.plan),
        known,
    )
    corrected = replace(problem, profile=corrected_profile(problem.profile, running.plan, speeds))
    after = replan(corrected, running, speeds.slowdown, starts(corrected))
    return Adjustment(
        corrected,
        speeds,
        running,
        after,
        placed_cost(corrected, running, speeds.slowdown),
        placed_cost(corrected, after, speeds.slowdown),
        moving(corrected, running, after),
        restart_s,
    )


def healthy_times(profile: Profile, running: Placed) -> tuple[FloatArray, FloatArray]:
    """[S], [S] forward and backward time of a device's part of a micro-batch, as predicted for a healthy one."""
    replicas = np.bincount(running.stage_of_device()[running.working()], minlength=running.plan.stages)
    first = [0, *(cut + 1 for cut in running.plan.cuts)]
    forward, both = (np.add.reduceat(array, first) for array in (profile.C_fwd, profile.C))
    return forward / replicas, (both - forward) / replicas


def corrected_profile(profile: Profile, plan: StagedPlan, speeds: Speeds) -> Profile:
    """The profile with every instruction's time scaled as its stage's was found to be, and a mark that it was."""
    stage = np.searchsorted([cut + 1 for cut in plan.cuts], np.arange(len(profile)), side="right")
    forward = profile.C_fwd * speeds.forward_scale[stage]
    backward = (profile.C - profile.C_fwd) * speeds.backward_scale[stage]
    meta = {key: value for key, value in profile.meta.items() if key != "rescaled_from"}  # it is a measured one now
    meta[CORRECTED] = list(plan.cuts)
    return Profile.create(
        C=forward + backward,
        A=profile.A,
        W=profile.W,
        C_fwd=forward,
        stash=profile.stash,
        names=profile.names,
        layers=profile.layers,
        meta=meta,
    )


def attribution(profile: Profile, plan: StagedPlan) -> Attribution:
    """What a stage's common deviation is due to: a profile corrected under the same cuts is right, if any is."""
    under = profile.meta.get(CORRECTED)
    if under is None:
        return "instructions"
    return "devices" if under == list(plan.cuts) else "either"


def placed_cost(problem: StagedProblem, placed: Placed, slowdown: FloatArray) -> StagedCost:
    """Cost of a plan on its devices, those that stand idle left out (planners.replan.cost).

    Args:
        problem: with times of healthy devices.
        placed: the plan with its devices.
        slowdown: [D] of every device.
    """
    idle = [placed.order.index(device) for device in placed.idle]
    return unequal_cost(problem, placed.plan, slowdown[list(placed.order)], idle)


def replan(problem: StagedProblem, running: Placed, slowdown: FloatArray, starts: Sequence[StagedPlan] = ()) -> Placed:
    """The best plan found for devices of these speeds; the running one where none is shorter by WORTH.

    Args:
        problem: with times of healthy devices.
        running: the plan that runs.
        slowdown: [D] of every device.
        starts: further plans from whose device cuts to search.
    """
    cost = placed_cost(problem, running, slowdown)
    best, best_s = running, cost.length_s if cost.feasible else np.inf
    from_cuts = (running.plan, *starts)
    for order in _promising(problem.cluster, running, slowdown):
        at = slowdown[list(order)]
        found = search(problem, at, from_cuts, PLANNER)
        if found is not None and found[1] < best_s * (1.0 - WORTH):
            plan, best_s = found
            best = Placed(plan, order, tuple(order[p] for p in idle_positions(plan, at)))
    return best


def _promising(cluster: Cluster, running: Placed, slowdown: FloatArray) -> list[tuple[int, ...]]:
    """Orders of devices to search, the running one first; the others by how even work on equal nodes would be."""
    orders = list(dict.fromkeys(device_orders(cluster, running.order, slowdown)))
    bound = np.array([0, *running.plan.device_cuts, cluster.devices])

    def capacity(order: tuple[int, ...]) -> float:
        return float((1.0 / stage_rates(slowdown[list(order)]).rate[bound[:-1], bound[1:]]).sum())

    return [orders[0], *sorted(orders[1:], key=capacity, reverse=True)[: SEARCHED - 1]]


def device_orders(cluster: Cluster, running: Sequence[int], slowdown: FloatArray) -> Iterator[tuple[int, ...]]:
    """Orders of devices worth a look, those that move fewest nodes first; a node's devices stay together.

    Inside a node the devices are as they are, or the slow ones first or last.

    Args:
        cluster: nodes of G devices.
        running: [D] device at each position now.
        slowdown: [D] of every device.
    """
    nodes = np.array(running).reshape(cluster.nodes, cluster.devices_per_node)
    for inside in (nodes, _sorted_inside(nodes, slowdown), _sorted_inside(nodes, slowdown)[:, ::-1]):
        for order in node_orders([tuple(np.sort(slowdown[node]).tolist()) for node in nodes]):
            yield tuple(inside[list(order)].ravel().tolist())


def _sorted_inside(
    nodes: np.ndarray[tuple[int, int], np.dtype[np.int64]], slowdown: FloatArray
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """[N, G] each node's devices, the slow ones last."""
    return np.take_along_axis(nodes, np.argsort(slowdown[nodes], axis=1, kind="stable"), axis=1)


def node_orders(speeds: Sequence[tuple[float, ...]]) -> Iterator[tuple[int, ...]]:
    """Orders of nodes that differ in the speeds at some place, each by the order that moves fewest nodes.

    Args:
        speeds: [N] what tells nodes apart; nodes with the same are interchangeable.
    """
    same = range(len(speeds))
    if len(speeds) <= MOST_NODES_PERMUTED:
        every: Iterable[tuple[int, ...]] = permutations(same)
    else:
        slow_last = tuple(sorted(same, key=lambda node: sum(speeds[node])))
        every = (tuple(same), slow_last, slow_last[::-1])
    seen = set()
    for order in sorted(every, key=lambda order: sum(a != b for a, b in zip(order, same, strict=True))):
        pattern = tuple(speeds[node] for node in order)
        if pattern not in seen:
            seen.add(pattern)
            yield order
