"""A plan of four instructions on two nodes of two devices, whose figures can be worked out by hand."""

from __future__ import annotations

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.result import Bound, PlanReport, Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost

CLUSTER = Cluster(nodes=2, devices_per_node=2, intra=100.0, inter=10.0, memory=1000.0, name="tiny")
PROFILE = Profile.create(
    C=[3.0, 6.0, 9.0, 6.0],
    A=[10.0, 20.0, 30.0, 0.0],
    W=[1.0, 2.0, 3.0, 4.0],
    C_fwd=[1.0, 2.0, 3.0, 2.0],
    stash=[5.0, 5.0, 5.0, 5.0],
    names=["a", "b", "c", "d"],
    layers=["in", "mid/1", "mid/2", "out"],
    meta={"model": "toy"},
)


def toy_report(
    cuts: tuple[int, ...] = (1,),
    device_cuts: tuple[int, ...] = (2,),
    *,
    profile: Profile = PROFILE,
    cluster: Cluster = CLUSTER,
    bound: Bound | None = None,
) -> PlanReport:
    problem = StagedProblem(profile, cluster, stages=len(cuts) + 1, micro_batches=4, state_factor=2.0)
    plan = StagedPlan(cuts, device_cuts, micro_batches=4, planner="exact")
    return PlanReport(
        **vars(Result(problem, plan, plan_cost(problem, plan), "feasible", bound, ("a note",), taken_s=0.25)),
        simulated_length_s={"1f1b": 50.0, "1f1b-deep": 49.0, "gpipe": np.float64(51.0)},
        single_device_s=96.0,
        data_parallel_s=None,
        uniform_s=60.0,
        policy="pp-1",
        seed=7,
    )
