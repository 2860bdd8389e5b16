"""One profile on many clusters, in many numbers of stages and micro-batches: what if?"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import microbatch_size, required_size, rescaled
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.result import TIE
from automap_models.core.staged import DEFAULT_MICRO_BATCHES, StagedPlan, StagedProblem
from automap_models.errors import AutomapError, BadInput, Infeasible
from automap_models.formats.sweep_yaml import SweepSpec, require_few
from automap_models.planners.base import Deadline, Planner
from automap_models.planners.portfolio.contender import Contender
from automap_models.planners.portfolio.descent import improve
from automap_models.planners.portfolio.space import OutOfRange, PlanningSpace, default_stages, stage_numbers
from automap_models.planners.staged.batch import Outcome, plan_batch

IMPROVE_S, IMPROVE_ALL_S = 0.1, 20.0
"""Processor time for improving the plan of one combination under its schedule, and those of all."""
StagedPlanner = Planner[StagedProblem, StagedPlan, Any]


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
        """How much of the devices' time computes: ideal / step with the ideal Σ C·M / D."""
        if self.outcome.problem is None or self.step_s is None:
            return None
        work_s = float(self.outcome.problem.profile.C.sum()) * self.micro_batches
        return work_s / self.cluster.devices / self.step_s


@dataclass(frozen=True, eq=False)
class Sweep:
    """What a sweep came to.

    Attributes:
        profile: of the model.
        rows: one a combination.
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
        where: the sweep's file, for messages.

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
    one_stage = StagedProblem(profile, cluster, stages=1, **fields)
    stages = _stages(spec, one_stage)
    if spec.micro_batches == "auto":
        try:
            space = PlanningSpace(
                ProfiledModel(profile),
                cluster,
                spec.global_batch,
                stages=stages,
                state_factor=one_stage.state_factor,
                granularity=one_stage.granularity,
                constraints=one_stage.constraints,
                schedule=one_stage.schedule,
            )
            problems = space.pipelines(out_of_range).problems
        except BadInput as error:
            required_size(profile)  # that this profile has none is not this cluster's fault
            yield from ((cluster, S, 1, error) for S in stages)
            return
        yield from ((cluster, p.stages, p.micro_batches, p) for p in problems)
        return
    sized = {M: _sized(spec, profile, M) for M in _micro_batches(spec, profile)}
    for S, (M, own) in itertools.product(stages, sized.items()):
        problem = own if isinstance(own, AutomapError) else _attempt(fields, own, cluster, S, M)
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
        raise BadInput(
            f"{spec.global_batch} samples are no multiple of the {size} profiled", where="global_batch", do=do
        )
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
    quick: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Plan every combination.

    Args:
        chosen: see `combinations`.
        planner: for every combination.
        quick: whether it is the shorter of the planner's plan and uniform cuts instead, improved for its schedule.
        progress: called with how many problems are done and how many there are.
    """
    problems = [problem for *_, problem in chosen if isinstance(problem, StagedProblem)]
    outcomes = iter(plan_batch(problems, planner, progress))
    if quick:
        outcomes = _improved(_better(problems, outcomes), len(problems))
    return [
        Row(
            cluster,
            S,
            M,
            microbatch_size(problem.profile) if isinstance(problem, StagedProblem) else None,
            next(outcomes) if isinstance(problem, StagedProblem) else Outcome(None, error=problem),
        )
        for cluster, S, M, problem in chosen
    ]


def _better(problems: list[StagedProblem], planned: Iterator[Outcome]) -> Iterator[Outcome]:
    """The shorter of a planner's plan and uniform cuts for each problem; both planners' errors lead to one."""
    uniform = plan_batch(problems, "uniform")
    for problem, ours, theirs in zip(problems, planned, uniform, strict=True):
        if problem.stages == 1:
            yield from plan_batch([problem], "data-parallel")
        elif theirs.step_s is not None and (ours.step_s is None or theirs.step_s < ours.step_s):
            yield replace(theirs, outside=ours.outside)
        elif ours.ok or isinstance(ours.error, Infeasible):
            yield ours
        else:  # too large for the planner
            yield replace(theirs, outside=ours.outside)


def _improved(outcomes: Iterator[Outcome], count: int) -> Iterator[Outcome]:
    """The plans of several stages for a schedule, moved to where no neighbour has a shorter step, as far as time goes.

    Args:
        outcomes: of the problems.
        count: how many there are.
    """
    part_s = min(IMPROVE_S, IMPROVE_ALL_S / max(count, 1))
    for outcome in outcomes:
        if outcome.problem is None or outcome.plan is None or outcome.problem.schedule is None:
            yield outcome
            continue
        contender = Contender(outcome.problem)
        if outcome.result is not None and outcome.plan.stages > 1:
            contender.take(outcome.result)
            improve(contender, outcome.plan, Deadline(part_s, time.process_time))
            result = replace(outcome.result, plan=contender.plan, cost=contender.cost)
            yield replace(outcome, result=result)
        else:
            yield outcome


def best_rows(rows: list[Row]) -> dict[str, Row]:
    """Cluster name → its row with the best pace, the first of those that tie, where any has a plan."""
    best: dict[str, Row] = {}
    for row in rows:
        held = best.get(row.cluster.name)
        if row.outcome.ok and (held is None or row.pace_s < held.pace_s * (1.0 - TIE)):
            best[row.cluster.name] = row
    return best
