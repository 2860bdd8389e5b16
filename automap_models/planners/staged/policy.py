"""The planner `policy`: plans in milliseconds, by compiled tables, by a trained network, or by both.

What plans is what measured best at equal time (docs/explanation/what-training-buys.md):

    for the length L                                     compiled tables and beam searches beside their plans
                                                         (planners.staged.table_plans)
    for the simulated step under a schedule              the same, then compiled moves (planners.staged.step_plans);
                                                         under 1F1B, where pipeline_1f1b.onnx was trained for the size,
                                                         moves from its plans, too: the best at equal time but for
                                                         greedy plans and where a search follows
    where numba is not installed                         networks: pipeline_1f1b.onnx under 1F1B, in the ranges of its
                                                         training, else pipeline.onnx
    a policy file given                                  the network in it

A network's plans are joined to a shorter one (planners.staged.policy_plans), or under a schedule moved on from, and so
are those of the tables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.staged.costs import StagedResult, plain, result_of
from automap_models.planners.staged.policy_file import Policy, outside, policy_of
from automap_models.planners.staged.policy_plans import Grouped, grouped, joined, shortest_step
from automap_models.resources import zoo_dir

SHIPPED = "pipeline.onnx"
SHIPPED_FOR = {"1f1b": "pipeline_1f1b.onnx"}
"""Schedule → the shipped policy that was trained for its simulated step."""
TABLE_RANGES = {
    "stages": (2.0, 16.0),
    "micro_batches": (1.0, 256.0),
    "nodes": (1.0, 128.0),
    "devices_per_node": (1.0, 16.0),
    "inter_over_intra": (0.005, 1.0),
}
"""The problems on which plans by tables have been measured: those of the shipped network, and more devices."""
CHUNK = 16
"""Problems planned at a time: a network's tables over points and devices stay in the cache."""

Part = Callable[[], Sequence[StagedPlan]]
"""Plans some of the problems."""


@dataclass(frozen=True)
class PolicyConfig:
    """Which policy, and how widely it is asked.

    Attributes:
        policy: policy file; None is what is shipped: compiled tables and moves, or networks without numba.
        beam: first decisions from which it goes on greedily, or plans by tables from which moves set out; 1 is plain
            greedy.
        reach: boundaries and devices beside those of its best plan at which a stage may begin in the end; with 0 its
            best plan stays as it is.
        network: whether a beam of 2 or more asks the shipped network as well as tables, where it was trained for the
            schedule: twice the time, and a quarter of a second to open it. Whoever searches on does without.
    """

    policy: Path | None = None
    beam: int = 4
    reach: int = 8
    network: bool = True


class PolicyPlanner(Planner[StagedProblem, StagedPlan, PolicyConfig]):
    """Plans by tables, moves or trained networks. They know neither shardings nor constraints."""

    name: ClassVar[str] = "policy"
    config_type: ClassVar[type[PolicyConfig]] = PolicyConfig

    @cached_property
    def policy(self) -> Policy:
        """The policy file for the length L, or the one given, opened when first needed."""
        return policy_of(self.config.policy or zoo_dir() / SHIPPED)

    @property
    def by_tables(self) -> bool:
        """Whether plans are made by compiled tables and moves."""
        return self.config.policy is None

    def out_of_range(self, problem: StagedProblem) -> str | None:
        """A sentence on which value lies outside what its plans were measured or trained for; None if none does.

        Of a cluster that is too large the groups of devices count that a network sees in their place.
        """
        if not problem.cluster.is_uniform:
            return f"cluster {problem.cluster.name} is mixed, and the policy was made for clusters of equal nodes"
        if self.by_tables:
            return outside(problem, TABLE_RANGES, "the policy was measured")
        return self.policy.out_of_range(self._grouped(problem).problem)

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The policy's best plan; its promise holds inside the ranges only (see out_of_range).

        Raises:
            BadInput: the problem is larger than the policy can express.
        """
        return self.solve_batch([problem], deadline=deadline, watch=watch)[0]

    def solve_batch(
        self, problems: Sequence[StagedProblem], *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> list[StagedResult]:
        """Best plans of many problems, in few calls of a network.

        Raises:
            BadInput: one of them is larger than the policy can express.
        """
        begun_s = time.perf_counter()
        once = " (its loops are compiled the first time, for half a minute)" if self.by_tables else ""
        watch(Progress(f"planning {len(problems)} problem(s) by the policy{once}", 0, len(problems)))
        plans = self.raw_plans(problems, deadline)
        late = Infeasible("the time was up before the policy was asked", where="planner policy", do="allow more time")
        return [
            Result(problem, None, None, "stopped", taken_s=time.perf_counter() - begun_s, reason=late)
            if plan is None
            else result_of(problem, plan, begun_s=begun_s)
            for problem, plan in zip(problems, plans, strict=True)
        ]

    def raw_plans(self, problems: Sequence[StagedProblem], deadline: Deadline = NEVER) -> list[StagedPlan | None]:
        """Its plans, whether they fit the memory or not; None for what the deadline kept it from.

        Raises:
            BadInput: a problem is larger than the policy can express, or its cluster is mixed.
        """
        for problem in problems:
            problem.cluster.require_uniform("the policy")
        parts = self._by_tables(problems) if self.by_tables else self._by_network(problems)

        def plan_part(part: tuple[list[int], Part]) -> Sequence[StagedPlan | None]:
            return [None] * len(part[0]) if deadline.passed else part[1]()

        if len(parts) <= 1:
            planned = [plan_part(part) for part in parts]
        else:
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # graphs and compiled loops run outside Python's lock
                planned = list(pool.map(plan_part, parts))
        plans: list[StagedPlan | None] = [
            StagedPlan((), (), problem.micro_batches, self.name, ()) for problem in problems
        ]
        for (part, _), part_plans in zip(parts, planned, strict=True):
            for i, plan in zip(part, part_plans, strict=True):
                plans[i] = plan
        return plans

    def _by_tables(self, problems: Sequence[StagedProblem]) -> list[tuple[list[int], Part]]:
        """What the tables plan, in parts."""
        own = [i for i, problem in enumerate(problems) if problem.stages > 1]
        own.sort(key=lambda i: problems[i].stages)  # for the network beside them, see _by_network

        def part_of(part: list[int]) -> Part:
            return lambda: self._by_table([plain(problems[i]) for i in part])

        return [(part, part_of(part)) for part in _chunks(own)]

    def _by_table(self, problems: list[StagedProblem]) -> list[StagedPlan]:
        """By tables alone, or under a schedule by moves from their plans and those of a network."""
        arguments = (self.config.beam, self.config.reach, self.name)

        def planned(problem: StagedProblem, beside: list[StagedPlan]) -> StagedPlan:  # numba takes half a second
            if problem.schedule is None:
                from automap_models.planners.staged.table_plans import table_plans

                return table_plans(problem, *arguments)[0]
            from automap_models.planners.staged.step_plans import step_plan

            return step_plan(problem, *arguments, beside)

        return [planned(problem, own) for problem, own in zip(problems, self._beside(problems), strict=True)]

    def _beside(self, problems: list[StagedProblem]) -> list[list[StagedPlan]]:
        """What the networks that are shipped for schedules plan, from which moves set out as well as from tables."""
        plans: list[list[StagedPlan]] = [[] for _ in problems]
        if self.config.network and self.config.beam > 1:
            policies = [_trained_for(problem) for problem in problems]
            for policy in {policy for policy in policies if policy is not None}:
                own = [i for i, chosen in enumerate(policies) if chosen is policy]
                best = policy.best_plans([problems[i] for i in own], self.config.beam, self.name)
                for i, of_problem in zip(own, best, strict=True):
                    plans[i] = of_problem
        return plans

    def _by_network(self, problems: Sequence[StagedProblem]) -> list[tuple[list[int], Part]]:
        """What the network plans, in parts."""
        groups = [self._grouped(problem) for problem in problems]
        for group in groups:
            _require_expressible(group.problem, self.policy)
        # The graph goes on until the problem with the most stages is planned: equal ones share a call.
        own = sorted((i for i, p in enumerate(problems) if p.stages > 1), key=lambda i: problems[i].stages)

        def part_of(part: list[int]) -> Part:
            whole = [
                replace(groups[i].problem, schedule=problems[i].schedule if groups[i].size == 1 else None) for i in part
            ]
            return lambda: [groups[i].ungrouped(plan) for i, plan in zip(part, self._planned(whole), strict=True)]

        return [(part, part_of(part)) for part in _chunks(own)]

    def _grouped(self, problem: StagedProblem) -> Grouped:
        most_nodes, most_per_node = (int(self.policy.ranges[name][1]) for name in ("nodes", "devices_per_node"))
        return grouped(replace(plain(problem), schedule=None), most_nodes, most_per_node)

    def _planned(self, problems: list[StagedProblem]) -> list[StagedPlan]:
        """What the plans of each beam lead to."""
        best = self.policy.best_plans(problems, self.config.beam, self.name)
        return [self._shortened(problem, own) for problem, own in zip(problems, best, strict=True)]

    def _shortened(self, problem: StagedProblem, plans: list[StagedPlan]) -> StagedPlan:
        """A network's plans joined for the length L, or under a schedule the one of the shortest step.

        Compiled beam searches, or moves, go on from there, unless the reach is 0.
        """
        reach = self.config.reach
        if problem.schedule is None:
            plan = joined(problem, plans, reach)
            if not reach:
                return plan
            from automap_models.planners.staged.table_plans import shortened

            return shortened(problem, plan, reach)
        if not reach:
            return shortest_step(problem, plans)
        from automap_models.planners.staged.step_plans import moved_plan

        return moved_plan(problem, plans)


def _trained_for(problem: StagedProblem) -> Policy | None:
    """The shipped network for the simulated step of a problem; None where there is none of its schedule and size."""
    name = None if problem.schedule is None or problem.stages < 2 else SHIPPED_FOR.get(problem.schedule)
    if name is None:
        return None
    policy = policy_of(zoo_dir() / name)
    return policy if policy.out_of_range(problem) is None else None


def _chunks(indices: list[int]) -> list[list[int]]:
    return [indices[start : start + CHUNK] for start in range(0, len(indices), CHUNK)]


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
