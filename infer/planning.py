"""From the request of one plan to the evaluated plan: a new one, one read back, or the next one of a running job."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import (
    microbatch_size,
    profiled_size,
    require_samples,
    required_size,
    rescaled,
    sized,
)
from automap_models.core.observed import Observed, PlacedPlan, ReplanProblem
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.report import PlanReport
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import known_clusters, read_cluster
from automap_models.formats.files import read_profile
from automap_models.formats.observed_json import read_observed
from automap_models.formats.plan_json import AdjustmentDocument, read_plan
from automap_models.formats.schema import Foreign, read_json, wrong
from automap_models.planners.base import Planner
from automap_models.planners.portfolio.auto import AutoConfig
from automap_models.planners.portfolio.space import PlanningSpace, default_stages, stage_numbers
from automap_models.planners.registry import config_names, make_planner, planner_names
from automap_models.planners.staged.evaluate import evaluate
from automap_models.planners.staged.policy import SHIPPED
from automap_models.resources import exists, zoo_dir

from .requests import AUTO, InferRequest, PlannerRequest, ReplanRequest, given


def planned(request: InferRequest) -> PlanReport:
    """Read the profile and the cluster, plan, evaluate.

    Raises:
        BadInput: an argument or a file cannot be used.
        Infeasible: no plan fits the memory.
    """
    planner, problem = staged_planner(request.planner), planning_problem(request)
    if request.planner.name == "auto":
        with _watched(len(problem.stages)):
            result = planner.solve(problem.space)
    else:
        one = request.planner.name == "data-parallel"
        result = planner.solve(replace(problem.problem, stages=1) if one else problem.problem)
    solved, plan = result.problem, result.required_plan()
    replicas = max(last - first + 1 for first, last in plan.stage_devices(solved.cluster.devices))
    notes = (
        *(_few_cut_points(problem.problem) if request.stages is None else ()),
        *result.notes,
        *batch_notes(solved, replicas, profiled_size(solved.profile)),
    )
    certify_s = request.planner.certify_s
    chosen = request.stages == AUTO and solved.stages > 1
    return evaluate(
        replace(result, notes=notes),
        certify_s=AutoConfig().certify_s if certify_s is None else certify_s,
        uniform_stages=solved.stages if chosen else problem.problem.stages,
        policy=_policy_label(request.planner) if plan.planner == "policy" else None,
    )


def _watched(problems: int) -> AbstractContextManager[object]:
    """A line on the terminal where the choice is among several problems, which may take seconds."""
    if problems <= 2 or sys.stderr is None or not sys.stderr.isatty():
        return nullcontext()
    from .reports.text import Steps

    steps = Steps()
    steps.begin(f"choosing among {problems} combinations of stages and micro-batches")
    return steps


def read_back(request: InferRequest, path: Path) -> PlanReport:
    """A plan in a file, costed again.

    Raises:
        BadInput: the plan is none, or belongs to another profile or cluster.
        Infeasible: a stage does not fit the memory.
    """
    cluster = None if request.topo is None else read_cluster(request.topo)
    read = read_plan(path, sized_profile(request.profile, request.microbatch_size), cluster)
    return evaluate(read, notes=(f"read from {path}, costed again",))


def staged_planner(request: PlannerRequest, name: str | None = None) -> Planner[Any, StagedPlan, Any]:
    """The planner asked for, or another one, with the options that are given and that it has.

    Raises:
        BadInput: there is no such planner, or its policy file cannot be read.
    """
    name = request.name if name is None else name
    if name not in planner_names("staged"):
        raise BadInput(
            f"unknown planner {name!r}", where="--planner", do=f"choose from {', '.join(planner_names('staged'))}"
        )
    options = ("policy", "beam", "certify_s", "refine_s", "schedule")
    known = config_names(name)
    return make_planner(name, kind="staged", **given(request, *(option for option in options if option in known)))


def _policy_label(request: PlannerRequest) -> str:
    """The policy file's name and the beginning of its SHA-256."""
    path = request.policy or zoo_dir() / SHIPPED
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def _few_cut_points(problem: StagedProblem) -> tuple[str, ...]:
    if problem.stages == problem.cluster.nodes:
        return ()
    return (
        f"{problem.stages} stages rather than one for each of the {problem.cluster.nodes} nodes: "
        f"the profile can be cut in {problem.stages - 1} place(s)",
    )


@dataclass(frozen=True, eq=False)
class PlanningProblem:
    """What is to be planned.

    Attributes:
        problem: the one that a named planner plans, and whose uniform cuts a plan is held against: with the number of
            stages asked for, or one a node.
        stages: every S that may be chosen.
        global_batch: samples of which M micro-batches are to be made; None where M is known.
    """

    problem: StagedProblem
    stages: tuple[int, ...]
    global_batch: int | None

    @property
    def space(self) -> PlanningSpace:
        """The problems that compete."""
        problem = self.problem
        return PlanningSpace(
            ProfiledModel(problem.profile),
            problem.cluster,
            self.global_batch,
            problem.micro_batches,
            self.stages,
            problem.state_factor,
            problem.granularity,
        )


def planning_problem(request: InferRequest) -> PlanningProblem:
    """Read the profile and the cluster, and what is to be chosen.

    Raises:
        BadInput: an argument or a file cannot be used.
    """
    profile, global_batch = sized_profile(request.profile, request.microbatch_size), request.global_batch
    if global_batch is not None:
        require_samples(global_batch, "--global-batch")
    if request.topo is None:
        raise BadInput(
            "no cluster is given", where="--topo", do=f"choose from {', '.join(known_clusters())} or give a YAML file"
        )
    cluster = read_cluster(request.topo)
    fields = given(request, "state_factor", "granularity")
    if isinstance(request.micro_batches, str):
        if global_batch is None:
            raise BadInput(
                "needs to know how many samples a batch has", where="--micro-batches auto", do="give --global-batch"
            )
        required_size(profile)
    elif global_batch is not None:
        fields["micro_batches"], profile = _split(profile, global_batch, request.micro_batches)
        global_batch = None
    elif request.micro_batches is not None:
        fields["micro_batches"] = request.micro_batches
    one_stage = StagedProblem(profile, cluster, stages=1, **fields)
    number, stages = _stages(request.stages, profile, cluster, one_stage)
    return PlanningProblem(replace(one_stage, stages=number), stages, global_batch)


def _stages(
    number: int | str | None, profile: Profile, cluster: Cluster, one_stage: StagedProblem
) -> tuple[int, tuple[int, ...]]:
    """S of the reference problem, and every S that may be chosen."""
    default = default_stages(profile, cluster, one_stage.granularity)
    if number is None:
        return default, tuple(sorted({1, default}))
    if isinstance(number, str):
        return default, tuple(stage_numbers(one_stage))
    return number, (number,)


def sized_profile(path: Path, size: int | None) -> Profile:
    """The profile in a file, with the micro-batch size that the user gives it.

    Raises:
        BadInput: it cannot be read, or says another size itself.
    """
    if not exists(path):
        from .sources import require_no_model

        require_no_model(path)
    return sized(read_profile(path), size)


def _split(profile: Profile, global_batch: int, micro_batches: int | None) -> tuple[int, Profile]:
    """M and the profile of B / M samples; without M that of the profiled micro-batch."""
    if micro_batches is None:
        size = required_size(profile)
        if global_batch % size:
            raise BadInput(
                f"{global_batch} samples are no multiple of the {size} of the profiled micro-batch",
                where="--global-batch",
                do="give a multiple, or choose --micro-batches",
            )
        return global_batch // size, profile
    if micro_batches < 1 or global_batch % micro_batches:
        raise BadInput(
            f"{global_batch} samples do not make {micro_batches} equal micro-batches",
            where="--micro-batches",
            do="give a divisor of the global batch, or auto",
        )
    return micro_batches, rescaled(profile, global_batch // micro_batches)


def batch_notes(problem: StagedProblem, replicas: int, profiled: int | None) -> Iterator[str]:
    """What the cost model takes for granted about the micro-batches of a plan whose size was not that profiled.

    Args:
        replicas: of the stage that has the most.
        profiled: samples in the micro-batch that was profiled.
    """
    samples = microbatch_size(problem.profile)
    if samples is None or samples == profiled:
        return
    yield (
        f"times of {samples} sample(s) are taken in proportion from the {profiled} profiled, "
        "though small micro-batches run less efficiently: profile the model at the size chosen"
    )
    if samples < replicas:
        yield f"{samples} sample(s) leave some of {replicas} replicas idle, and the length takes them for evenly split"


@dataclass(frozen=True, eq=False)
class Replanned:
    """What planning again came to.

    Attributes:
        result: the next plan on these devices, and what the times say about them.
        report: the same plan on healthy devices, as in every plan.json.
        observed: the times.
    """

    result: Result[ReplanProblem, PlacedPlan]
    report: PlanReport
    observed: Observed


def replanned(request: ReplanRequest) -> Replanned:
    """Read profile, plan and times, and plan again.

    Raises:
        BadInput: a file cannot be used, or the files do not belong together.
        Infeasible: the plan does not fit the memory.
    """
    cluster = None if request.topo is None else read_cluster(request.topo)
    read = read_plan(request.plan, sized_profile(request.profile, request.microbatch_size), cluster)
    problem, plan = read.problem, read.required_plan()
    observed = read_observed(request.observed)
    running, known = _running(request.plan, plan, problem.cluster.devices)
    starts = make_planner("auto", policy=request.policy, certify_s=0.0, refine_s=0.0)
    result = make_planner("replan", kind="replan", starts=(starts,)).solve(
        ReplanProblem(problem, running, observed, request.attribute, known, request.restart_s)
    )
    corrected, plan = result.facts["corrected"], result.required_plan().plan
    healthy = Result(corrected, plan, plan_cost(corrected, plan), "feasible", taken_s=result.taken_s)
    return Replanned(result, evaluate(healthy), observed)


class _AdjustedPlan(Foreign):
    """What a plan.json says about the devices of the running job, if it was adjusted to them."""

    adjustment: AdjustmentDocument | UnsetType = UNSET


def _running(path: Path, plan: StagedPlan, devices: int) -> tuple[PlacedPlan, FloatArray]:
    """The plan with its devices, as they are numbered or as an earlier adjustment put them, and their slowdowns [D].

    Raises:
        BadInput: the adjustment in the file is none of this plan.
    """
    earlier = read_json(path, _AdjustedPlan).adjustment
    if earlier is UNSET:
        return PlacedPlan(plan, tuple(range(devices))), np.ones(devices)
    at, order, idle = "$.adjustment", tuple(earlier.device_order), tuple(earlier.idle)
    if sorted(order) != list(range(devices)):
        raise wrong(str(path), f"{at}.device_order", order, f"each of the devices 0 to {devices - 1} once")
    if not set(idle) <= set(order):
        raise wrong(str(path), f"{at}.idle", idle, f"some of the devices 0 to {devices - 1}")
    running = PlacedPlan(plan, order, idle)
    if set(running.stage_of_device()[running.working()].tolist()) != set(range(plan.stages)):
        raise wrong(str(path), f"{at}.idle", idle, "devices that leave every stage one that works")
    if len(earlier.slowdown) != devices:
        raise wrong(str(path), f"{at}.slowdown", earlier.slowdown, f"{devices} positive numbers")
    return running, np.array(earlier.slowdown, dtype=np.float64)
