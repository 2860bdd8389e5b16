"""One profile on many clusters, in many numbers of stages and micro-batches: what if?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import microbatch_size, required_size, rescaled
from automap_models.core.profile import Profile
from automap_models.core.result import TIE, Result
from automap_models.core.staged import DEFAULT_MICRO_BATCHES, StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.errors import AutomapError, BadInput
from automap_models.formats.hardware_yaml import step_device
from automap_models.formats.sweep_yaml import SweepSpec, require_few
from automap_models.planners.base import Planner
from automap_models.planners.portfolio.auto import AutoPlanner
from automap_models.planners.portfolio.space import PlanningSpace, default_stages, stage_numbers
from automap_models.planners.staged.batch import Outcome, plan_batch
from automap_models.simulate.plan_step import step_cost

StagedPlanner = Planner[StagedProblem, StagedPlan, Any]
OutOfRange = Callable[[StagedProblem], str | None]


@dataclass(frozen=True, eq=False)
class Row:
    """One combination and what came of it.

    Attributes:
        cluster, stages, micro_batches: where, S and M.
        microbatch_size: samples in a micro-batch, where the profile says so.
        outcome: its plan, or why there is none.
    """

    cluster: Cluster
    stages: int
    micro_batches: int
    microbatch_size: int | None
    outcome: Outcome

    @property
    def step_s(self) -> float | None:
        """What a step of its plan takes (StagedCost.step_s); None where there is no plan."""
        return self.outcome.step_s

    @property
    def pace_s(self) -> float:
        """Seconds for a sample, or for a micro-batch where their size is unknown; inf without a plan.

        Rows of one global batch are in the order of their steps; others can be compared all the same.
        """
        if self.step_s is None:
            return math.inf
        return self.step_s / self.micro_batches / (self.microbatch_size or 1)

    @property
    def efficiency(self) -> float | None:
        """How much of the devices' time computes: ideal / step with the ideal Σ C·M / D, D the devices' capacity."""
        if self.outcome.problem is None or self.step_s is None:
            return None
        work_s = float(self.outcome.problem.profile.C.sum()) * self.micro_batches
        return work_s / self.outcome.problem.capacity / self.step_s


@dataclass(frozen=True, eq=False)
class Sweep:
    """What a sweep came to.

    Attributes:
        global_batch: samples between two updates, if they are the same for all rows.
    """

    profile: Profile
    rows: list[Row]
    global_batch: int | None


Combination = tuple[Cluster, int, int, StagedProblem | AutomapError]


def combinations(
    spec: SweepSpec, profile: Profile, fields: Mapping[str, Any], out_of_range: OutOfRange, where: str
) -> list[Combination]:
    """Every combination with its problem, or with what is wrong about it.

    Args:
        fields: of every StagedProblem, where they are not the defaults.
        out_of_range: says for which problems a policy is not made; `auto` leaves those out.

    Raises:
        BadInput: there are too many of them, or the profile does not say how many samples it describes.
    """
    chosen: list[Combination] = []
    for cluster in spec.clusters:
        for combination in _on_cluster(spec, profile, cluster, fields, out_of_range):
            chosen.append(combination)
            require_few(len(chosen), where)
    return chosen


def _on_cluster(
    spec: SweepSpec, profile: Profile, cluster: Cluster, fields: Mapping[str, Any], out_of_range: OutOfRange
) -> Iterator[Combination]:
    fields = {**fields, "device": step_device(profile, cluster)}
    one_stage = StagedProblem(profile, cluster, stages=1, **fields)
    stages = _stages(spec, one_stage)
    if spec.micro_batches == "auto":
        try:
            space = replace(PlanningSpace.from_problem(one_stage), global_batch=spec.global_batch, stages=stages)
            problems = space.pipelines()
            inside = [p for p in problems if p.stages == 1 or out_of_range(p) is None]
            problems = tuple(inside) if any(p.stages > 1 for p in inside) else problems
        except BadInput as error:
            required_size(profile)  # that this profile has none is not this cluster's fault
            yield from ((cluster, S, 1, error) for S in stages)
            return
        yield from ((cluster, p.stages, p.micro_batches, p) for p in problems)
        return
    sized = {M: _sized(spec, profile, M) for M in _micro_batches(spec, profile)}
    for S, (M, resized) in itertools.product(stages, sized.items()):
        problem = resized if isinstance(resized, AutomapError) else _attempt(fields, resized, cluster, S, M)
        outside = isinstance(problem, StagedProblem) and S > 1 and out_of_range(problem) is not None
        if spec.stages != "auto" or not outside:
            yield cluster, S, M, problem


def _stages(spec: SweepSpec, one_stage: StagedProblem) -> tuple[int, ...]:
    if isinstance(spec.stages, tuple):
        return spec.stages
    if spec.stages == "auto":
        return tuple(stage_numbers(one_stage))
    default = default_stages(one_stage.profile, one_stage.cluster, one_stage.granularity)
    return tuple(sorted({1, default}))


def _micro_batches(spec: SweepSpec, profile: Profile) -> tuple[int, ...]:
    if isinstance(spec.micro_batches, tuple):
        return spec.micro_batches
    if spec.global_batch is None:
        return (DEFAULT_MICRO_BATCHES,)
    size = required_size(profile)
    if spec.global_batch % size:
        do = "give a multiple, or micro_batches"
        what = f"{spec.global_batch} samples are no multiple of the {size} profiled"
        raise BadInput(what, where="global_batch", do=do)
    return (spec.global_batch // size,)


def _sized(spec: SweepSpec, profile: Profile, micro_batches: int) -> Profile | AutomapError:
    """The profile of a micro-batch of B / M samples."""
    if spec.global_batch is None:
        return profile
    required_size(profile)
    if spec.global_batch % micro_batches:
        what = f"{spec.global_batch} samples do not make {micro_batches} equal micro-batches"
        return BadInput(what, where="micro_batches", do="give divisors of global_batch")
    return rescaled(profile, spec.global_batch // micro_batches)


def _attempt(
    fields: Mapping[str, Any], profile: Profile, cluster: Cluster, stages: int, micro_batches: int
) -> StagedProblem | AutomapError:
    try:
        return StagedProblem(profile, cluster, stages, micro_batches, **fields)
    except BadInput as error:
        return error


def sweep(
    chosen: list[Combination],
    planner: StagedPlanner,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Plan every combination.

    Args:
        planner: for every combination; those of `auto` share their plans.
        progress: called with how many problems are done and how many there are.
    """
    problems = [problem for *_, problem in chosen if isinstance(problem, StagedProblem)]
    outcomes = plan_batch(problems, planner, progress)
    shared = iter(_shared(outcomes) if planner.name == AutoPlanner.name else outcomes)
    return [
        Row(
            cluster,
            S,
            M,
            microbatch_size(problem.profile) if isinstance(problem, StagedProblem) else None,
            next(shared) if isinstance(problem, StagedProblem) else Outcome(None, error=problem),
        )
        for cluster, S, M, problem in chosen
    ]


def _shared(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """The plans of several stages for a schedule, each the best of those of all rows that it may be a plan of.

    A plan of a slow cluster is one of a faster cluster, so that faster links never make a row longer than that plan is
    on them.
    """
    plans: dict[tuple[int | None, ...], dict[object, StagedPlan]] = {}
    for outcome in outcomes:
        key, plan = _exchange(outcome), outcome.plan
        if key is not None and plan is not None and not any(plan.shardings):
            plans.setdefault(key, {})[plan.cuts, plan.device_cuts] = plan
    for outcome in outcomes:
        key, problem = _exchange(outcome), outcome.problem
        best = None
        if key is not None and problem is not None:
            best = _shortest(problem, plans.get(key, {}).values(), outcome.step_s)
        if best is None:
            yield outcome
        elif outcome.result is not None and outcome.plan is not None:
            yield replace(outcome, result=replace(outcome.result, plan=best[0], cost=best[1]))
        else:
            yield replace(outcome, result=Result(problem, *best, "feasible"), error=None)  # type: ignore[arg-type]


def _exchange(outcome: Outcome) -> tuple[int | None, ...] | None:
    """What rows agree in whose plans are plans of one another; None for a row of one stage, or by the length L."""
    problem = outcome.problem
    if problem is None or problem.schedule is None or problem.stages == 1:
        return None
    return problem.stages, problem.micro_batches, microbatch_size(problem.profile), problem.cluster.devices


def _shortest(
    problem: StagedProblem, plans: Iterable[StagedPlan], below_s: float | None
) -> tuple[StagedPlan, StagedCost] | None:
    """The shortest of some plans that fit and are shorter than a step; None where none is."""
    best, best_s = None, math.inf if below_s is None else below_s * (1.0 - TIE)
    for plan in plans:
        if plan.check_valid(problem)[0]:
            cost = step_cost(problem, plan)
            if cost.feasible and cost.step_s < best_s:
                best, best_s = (plan, cost), cost.step_s
    return best


def best_rows(rows: list[Row]) -> dict[str, Row]:
    """Cluster name → its row with the best pace, the first of those that tie, where any has a plan."""
    best: dict[str, Row] = {}
    for row in rows:
        incumbent = best.get(row.cluster.name)
        if row.outcome.ok and (incumbent is None or row.pace_s < incumbent.pace_s * (1.0 - TIE)):
            best[row.cluster.name] = row
    return best
