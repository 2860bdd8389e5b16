"""Re-planning: from the measured stage times of a running job to a corrected profile and a better plan.

Compilers do the same at run time: they move work where the measured distribution is off (arXiv 1906.08168). Here
`fit_speeds` finds by how much the profile is off for each stage's instructions and how much slower each device is. The
corrected profile is planned again for devices of these speeds, in the order of nodes and devices that serves best. The
migration to the new plan, the bytes that change device and how long they take, is then held against what it saves.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.observed import Attribution, PlacedPlan, ReplanProblem
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.errors import Infeasible
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Watch
from automap_models.planners.replan.search import ReplanConfig, placed_cost, search_orders
from automap_models.planners.replan.speeds import Speeds, fit_speeds

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Migration:
    """What a migration takes.

    Attributes:
        received_bytes: parameters and optimiser state that devices receive, over all of them.
        between_nodes_bytes: the part of them that crosses between nodes; what several devices of a node need crosses
            once.
        migration_s: how long that takes, nodes at a time in parallel: the busiest node's link, then the busiest
            device's.
    """

    received_bytes: float
    between_nodes_bytes: float
    migration_s: float


def migration(problem: StagedProblem, before: PlacedPlan, after: PlacedPlan) -> Migration:
    """What it takes to go from one plan to the other.

    A device needs what is not trained, and parameters and optimiser state, (σ - 1)·W without gradients (at least W),
    of the instructions of its new stage that its old one did not have. It receives them inside its node where a device
    there has them, and otherwise over the nodes' links from the node that sends least by then.

        instructions   0 ······ cut ······ cut' ······ n-1        pieces: between the cuts of either plan
        before         [stage 0][stage 1                  ]
        after          [stage 0           ][stage 1       ]       devices of stage 0 receive the piece cut … cut'
    """
    profile, cluster = problem.profile, problem.cluster
    state = max(problem.state_factor - 1.0, 1.0) * profile.W + profile.frozen
    pieces = np.unique([0, *(c + 1 for plan in (before.plan, after.plan) for c in plan.cuts), len(profile)])
    weight = np.add.reduceat(state, pieces[:-1])
    present, needed = (_holds(placed, pieces) for placed in (before, after))
    lacking = needed & ~present
    received = lacking @ weight
    into, out_of = _between_nodes(cluster, present, lacking, weight)
    link_s = float((np.maximum(into, out_of) / cluster.node_inter).max())
    inside_s = float((received / cluster.node_intra[cluster.node_of]).max())
    return Migration(float(received.sum()), float(into.sum()), link_s + inside_s)


def _holds(placed: PlacedPlan, pieces: NDArray[np.int64]) -> BoolArray:
    """[D, pieces] whether each device holds each piece of the model."""
    ends = [cut + 1 for cut in placed.plan.cuts]
    stage_of_piece = np.searchsorted(ends, pieces[:-1], side="right")
    holds: BoolArray = placed.stage_of_device()[:, None] == stage_of_piece[None, :]
    return holds & placed.working()[:, None]


def _between_nodes(
    cluster: Cluster, present: BoolArray, lacking: BoolArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """[N] bytes that enter each node, and [N] that leave it."""
    nodes = cluster.node_bounds[:-1]
    has: BoolArray = np.logical_or.reduceat(present, nodes, axis=0)
    lacks: BoolArray = np.logical_or.reduceat(lacking, nodes, axis=0)
    into, out_of = np.zeros(cluster.nodes), np.zeros(cluster.nodes)
    for node, piece in np.argwhere(lacks & ~has).tolist():
        sources = np.flatnonzero(has[:, piece])
        into[node] += weight[piece]
        out_of[sources[out_of[sources].argmin()]] += weight[piece]
    return into, out_of


CORRECTED = "corrected_under"
"""Key of a profile's meta: cuts of the plan whose measured times corrected it."""


class ReplanPlanner(Planner[ReplanProblem, PlacedPlan, ReplanConfig]):
    """The best plan that the search finds for a running job, or the running plan where none is shorter.

    The cost of its results is that of the plan on devices of the fitted speeds. Its facts are

        corrected         the running plan's problem with the corrected profile (StagedProblem)
        speeds            what the measured times say (Speeds)
        running_cost      of the running plan on these devices (StagedCost)
        saved_s           seconds that the new plan saves in every step
        migration         what it takes to go from the running plan to the new one (Migration)
        pays_after_steps  steps after which the migration and the restart have paid; None where nothing is saved
    """

    name: ClassVar[str] = "replan"
    config_type: ClassVar[type[ReplanConfig]] = ReplanConfig

    def solve(
        self, problem: ReplanProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> Result[ReplanProblem, PlacedPlan]:
        """Correct the profile by what was measured, and plan again.

        Raises:
            BadInput: the times are not those of this plan, or the cluster has too many devices to be searched.
        """
        begun_s = time.perf_counter()
        running = problem.running
        speeds = speeds_of(problem)
        corrected = replace(problem.staged, profile=corrected_profile(problem.staged.profile, running.plan, speeds))
        starts = self._starting_plans(corrected, deadline)
        search = search_orders(
            corrected, running, speeds.slowdown, starts, config=self.config, deadline=deadline, watch=watch
        )
        cost, running_cost = (placed_cost(corrected, plan, speeds.slowdown) for plan in (search.plan, running))
        moved = migration(corrected, running, search.plan)
        saved_s = running_cost.step_s - cost.step_s
        pays_after = math.ceil((moved.migration_s + problem.restart_s) / saved_s) if saved_s > 0 else None
        return Result(
            problem,
            search.plan if cost.feasible else None,
            cost if cost.feasible else None,
            "feasible" if cost.feasible else "stopped",
            notes=search.notes,
            search_log=search.log,
            facts={
                "corrected": corrected,
                "speeds": speeds,
                "running_cost": running_cost,
                "saved_s": saved_s,
                "migration": moved,
                "pays_after_steps": pays_after,
            },
            taken_s=time.perf_counter() - begun_s,
            reason=None if cost.feasible else _does_not_fit(corrected, cost),
        )

    def _starting_plans(self, corrected: StagedProblem, deadline: Deadline) -> list[StagedPlan]:
        """Plans for equal devices, made in at most half of the time that is left."""
        plans = []
        limit = deadline.part(deadline.remaining_s / 2)
        for planner in self.config.starts:
            try:
                plan = planner.solve(corrected, deadline=limit).plan
            except Infeasible:
                continue
            if plan is not None:
                plans.append(plan)
        return plans


def speeds_of(problem: ReplanProblem) -> Speeds:
    """What the measured times of a running job say about its profile and devices.

    Raises:
        BadInput: the times are not those of its plan.
    """
    profile, running = problem.staged.profile, problem.running
    kinds = problem.staged.cluster.slowdown
    if kinds is not None and problem.observed.unit == "stage":  # idle devices do not hold their stage up
        kinds = np.where(running.working(), kinds, 0.0)
    return fit_speeds(
        problem.observed,
        *healthy_times(problem.staged, running),
        running.stage_of_device(),
        problem.attribution or attribution(profile, running.plan),
        problem.known_slowdown,
        kinds,
    )


def healthy_times(problem: StagedProblem, running: PlacedPlan) -> tuple[FloatArray, FloatArray]:
    """[S], [S] forward and backward time of a device's part of a micro-batch, by the profile's times."""
    replicas = np.bincount(running.stage_of_device()[running.working()], minlength=running.plan.stages)
    parts, profile = problem.shares[replicas], problem.profile
    first = [0, *(cut + 1 for cut in running.plan.cuts)]
    forward, both = (np.add.reduceat(array, first) for array in (profile.C_fwd, profile.C))
    return forward / parts, (both - forward) / parts


def corrected_profile(profile: Profile, plan: StagedPlan, speeds: Speeds) -> Profile:
    """The profile with every instruction's time scaled as its stage's is, and a mark that says under which cuts."""
    stage = np.searchsorted([cut + 1 for cut in plan.cuts], np.arange(len(profile)), side="right")
    forward = profile.C_fwd * speeds.forward_scale[stage]
    backward = (profile.C - profile.C_fwd) * speeds.backward_scale[stage]
    meta = {key: value for key, value in profile.meta.items() if key != "rescaled_from"}  # it is a measured one now
    meta[CORRECTED] = list(plan.cuts)
    return replace(profile, C=forward + backward, C_fwd=forward, meta=meta)


def attribution(profile: Profile, plan: StagedPlan) -> Attribution:
    """What a stage's common deviation is due to: a profile corrected under the same cuts is right, if any is."""
    under = profile.meta.get(CORRECTED)
    if under is None:
        return "instructions"
    return "devices" if under == list(plan.cuts) else "either"


def _does_not_fit(problem: StagedProblem, cost: StagedCost) -> Infeasible:
    stage = cost.fullest
    return Infeasible(
        f"no plan was found that fits, and stage {stage} of the running one needs "
        f"{cost.memory_bytes[stage] / 1e9:.1f} GB on each working device, "
        f"cluster {problem.cluster.name} has {cost.limit_bytes[stage] / 1e9:.1f} GB",
        where="planner replan",
        do="plan again with more stages or smaller micro-batches",
    )
