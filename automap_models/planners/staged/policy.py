"""The planner `policy`: a trained network plans (policy_file), and a search looks beside and between its plans."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.staged.costs import Costs, StagedResult, plain, result_of
from automap_models.planners.staged.improve import Moves, cut_places
from automap_models.planners.staged.policy_file import Policy, policy_of
from automap_models.planners.staged.search import LOOK_S, around, late
from automap_models.resources import zoo_dir

SHIPPED = "pipeline.onnx"
CHUNK = 16
"""Problems planned together: what a network reads of their states stays in the cache."""


@dataclass(frozen=True)
class PolicyConfig:
    """Which policy, and how widely it is asked.

    Attributes:
        policy: policy file; None is the one that is shipped.
        beam: first cuts from which it goes on greedily; 1 is plain greedy.
        search: whether all plans beside and between its own are looked at; else its best one stays as it is.
    """

    policy: Path | None = None
    beam: int = 4
    search: bool = True


class PolicyPlanner(Planner[StagedProblem, StagedPlan, PolicyConfig]):
    """Plans by a trained network, which knows neither shardings nor constraints; the search beside its plans does."""

    name: ClassVar[str] = "policy"
    config_type: ClassVar[type[PolicyConfig]] = PolicyConfig

    @cached_property
    def policy(self) -> Policy:
        """The policy file, opened when first needed."""
        return policy_of(self.config.policy or zoo_dir() / SHIPPED)

    def out_of_range(self, problem: StagedProblem) -> str | None:
        """A sentence on which value lies outside what the network was trained for; None if none does."""
        return _mixed(problem) or self.policy.out_of_range(problem)

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The policy's best plan; its promise holds inside the ranges only (see out_of_range).

        Raises:
            BadInput: the problem is larger than the policy can express, or its cluster is mixed.
        """
        return self.solve_batch([problem], deadline=deadline, watch=watch)[0]

    def solve_batch(
        self, problems: Sequence[StagedProblem], *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> list[StagedResult]:
        """Best plans of many problems, in few calls of the network.

        Raises:
            BadInput: one of them is larger than the policy can express, or its cluster is mixed.
        """
        begun_s = time.perf_counter()
        watch(Progress(f"planning {len(problems)} problem(s) by the policy", 0, len(problems)))
        plans = dict(self._plans(problems, deadline))
        return [
            result_of(problem, plans[i], begun_s=begun_s) if i in plans else late(problem, self.name)
            for i, problem in enumerate(problems)
        ]

    def _plans(self, problems: Sequence[StagedProblem], deadline: Deadline) -> Iterator[tuple[int, StagedPlan]]:
        """Number and plan of each problem that there is time for."""
        for i, problem in enumerate(problems):
            problem.cluster.require_uniform("the policy")
            if problem.stages == 1:
                yield i, StagedPlan((), (), problem.micro_batches, self.name, ())
            else:
                _require_expressible(problem, self.policy)
        several = sorted((i for i, p in enumerate(problems) if p.stages > 1), key=lambda i: problems[i].stages)
        for start in range(0, len(several), CHUNK):
            numbers = several[start : start + CHUNK]
            if deadline.passed:
                return
            pipelines = [_by_length(problems[i]) for i in numbers]
            best = self.policy.best_plans(pipelines, self.config.beam, self.name)
            for i, plans in zip(numbers, best, strict=True):
                yield i, self._searched(problems[i], plans, deadline) if self.config.search else plans[0]

    def _searched(self, problem: StagedProblem, plans: list[StagedPlan], deadline: Deadline) -> StagedPlan:
        """The shortest plan found beside the best of the network's and between the cuts of all of them."""
        cuts = cut_places(problem)
        if cuts is None:
            cuts = problem.grid.instruction_of_point[problem.grid.cut_points]
        if problem.schedule is not None:  # the network's order is by the length L
            plans = sorted(plans, key=Moves(problem, cuts).step_s)
        deadline = deadline.part(LOOK_S, effort.counted_s)
        return around(plans, Costs(problem), cuts, problem.granularity // 2, deadline)


def _by_length(problem: StagedProblem) -> StagedProblem:
    """What the network was trained for: plain pipelines by the length L."""
    problem = plain(problem)
    return problem if problem.schedule is None else replace(problem, schedule=None)


def _require_expressible(problem: StagedProblem, policy: Policy) -> None:
    if (
        problem.granularity != policy.points
        or problem.stages > policy.max_stages
        or problem.cluster.devices > policy.max_devices
    ):
        raise BadInput(
            f"{problem.stages} stages on {problem.cluster.devices} devices at granularity {problem.granularity} "
            f"are beyond the policy's {policy.max_stages}, {policy.max_devices} and {policy.points}",
            where="planner policy",
            do="use `planner='exact'`",
        )


def _mixed(problem: StagedProblem) -> str | None:
    """That a cluster has nodes of different kinds; None where it has not."""
    if problem.cluster.is_uniform:
        return None
    return f"cluster {problem.cluster.name} is mixed, and the policy is for clusters of equal nodes"
