"""The trained policy: one ONNX graph run by onnxruntime; no torch.

The graph is the whole planner (train.onnx_graph): it takes encoded problems and follows the first cuts with the largest
action values greedily to their ends. Measured on random problems, an ordinary beam plans worse: it fills up with one
first cut's near-equal continuations, and the first cut is the decision that is hardest to rate. What it decides is then
joined: of all places at which its plans begin a stage, and those beside the best plan's, a beam search takes the
shortest way through (planners.staged.beam_search). That takes a tenth of the graph's time and half of what is lost.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.pipeline.encoding import EncodedProblems, cut_masks, encode
from automap_models.errors import BadInput, Infeasible
from automap_models.onnx_runtime import EXPORT_AGAIN, OnnxFile
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.staged.beam_search import route_of, shortest_through
from automap_models.planners.staged.costs import StagedResult, plain, result_of
from automap_models.planners.staged.device_tables import MOST_DEVICES
from automap_models.planners.staged.local_search import every_pair
from automap_models.planners.staged.plan_batch import PlanBatch, batch_costs, steps_s
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.stage_tables import stage_tables
from automap_models.resources import is_file, zoo_dir

KIND = "pipeline-planner"
SHIPPED = "pipeline.onnx"
LENGTH = "length"
SHIPPED_FOR = {"1f1b": "pipeline_1f1b.onnx"}
"""Schedule → the shipped policy that was trained for its simulated step."""
CHUNK = 16
"""Problems planned at a time: the tables over points and devices stay in the cache."""
RANGES = ("stages", "micro_batches", "nodes", "devices_per_node", "inter_over_intra")
"""The values of a problem that must lie within what the policy was trained for."""

COUNTS = ("stages", "micro_batches", "nodes", "devices_per_node")
"""Those of them that count something."""
ALLOWANCE_S, ALLOWANCE_PER_PLAN_S = 5.0, 1.0
"""Processor time after which a run is stopped: 50 to 300 times what the shipped policy takes."""

PLANS = ("cuts", "device_cuts", "reward")
"""The graph's outputs that make a plan."""

Ints = NDArray[np.int64]


class Policy:
    """A policy file.

    Raises:
        BadInput: the file is missing, truncated or not one of ours.
    """

    def __init__(self, path: Path) -> None:
        self.file = OnnxFile(path)
        self.metadata = self.file.metadata
        if self.metadata.get("automap_kind") != KIND:
            raise BadInput("an ONNX model, but not a pipeline policy of automap", where=str(path), do=EXPORT_AGAIN)
        try:
            self.points, self.max_stages, self.max_devices = (
                int(self.metadata[key]) for key in ("points", "max_stages", "max_devices")
            )
            self.objective = self.metadata.get("objective", LENGTH)
            ranges = json.loads(self.metadata["ranges"])
            self.ranges = {name: (float(ranges[name][0]), float(ranges[name][1])) for name in RANGES}
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadInput(
                "does not say which problems it was trained for", where=str(path), do=EXPORT_AGAIN
            ) from error
        sizes = (self.points, self.max_stages, self.max_devices, *(self.ranges[name][1] for name in COUNTS))
        if not all(0 < low <= high < math.inf for low, high in self.ranges.values()) or min(sizes) < 1:
            raise BadInput("says that it was trained for impossible problems", where=str(path), do=EXPORT_AGAIN)

    def out_of_range(self, problem: StagedProblem) -> str | None:
        """A sentence on which value lies outside what the policy was trained for; None if none does."""
        if problem.granularity != self.points:
            return f"granularity {problem.granularity} is not the policy's {self.points}"
        cluster = problem.cluster
        values = (
            problem.stages,
            problem.micro_batches,
            cluster.nodes,
            cluster.devices_per_node,
            cluster.inter / cluster.intra,
        )
        for name, value in zip(RANGES, values, strict=True):
            low, high = self.ranges[name]
            if not low * (1 - 1e-6) <= value <= high * (1 + 1e-6):
                what = name.replace("_", " ")
                return f"{what} {value:g} is outside {low:g} … {high:g}, for which the policy was trained"
        return None

    def run(self, feed: dict[str, NDArray[Any]], beam: int, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Some of the graph's outputs; see train.onnx_graph.planner_graph.

        Raises:
            BadInput: the graph fails.
        """
        allowance_s = ALLOWANCE_S + len(feed["arrays"]) * beam * ALLOWANCE_PER_PLAN_S
        return self.file.run(feed | {"beam": np.array([beam])}, outputs, allowance_s)

    def plans(self, encoded: EncodedProblems, beam: int) -> tuple[Ints, Ints, NDArray[np.float32]]:
        """The greedy plans of B problems from each of the `beam` best first cuts, best first.

        Returns:
            Grid cuts and device cuts, int64 [B, beam, max_stages - 1], -1 beyond a problem's stages; and [B, beam]
            ideal / L of each plan, or minus the fraction of device memory it takes where that is too much, and -∞
            where there are fewer first cuts.

        Raises:
            BadInput: the graph fails or answers something else.
        """
        scalars = {
            name: array.astype(np.float32)
            for name, array in encoded.as_dict().items()
            if name not in ("arrays", "instructions", "samples")
        }
        mask = cut_masks(encoded.instructions, encoded.arrays.shape[2])
        beam = min(beam, self.points)
        cuts, device_cuts, reward = self.run({"arrays": encoded.arrays, "cut_mask": mask, **scalars}, beam, PLANS)
        shape = (len(encoded), beam)
        for name, array, kind, length in (
            ("cuts", cuts, np.int64, (self.max_stages - 1,)),
            ("device_cuts", device_cuts, np.int64, (self.max_stages - 1,)),
            ("reward", reward, np.float32, ()),
        ):
            if array.dtype != kind or array.shape != (*shape, *length):
                raise BadInput(
                    f"answers {name} of type {array.dtype} and shape {array.shape}, not {np.dtype(kind)} and "
                    f"{(*shape, *length)}",
                    where=str(self.file.path),
                    do=EXPORT_AGAIN,
                )
        return cuts, device_cuts, np.where(np.isnan(reward), -np.inf, reward)

    def plan_of(self, problem: StagedProblem, points: Ints, device_cuts: Ints, planner: str) -> StagedPlan:
        """A row of `plans`, [max_stages - 1] each, as a plan of its problem.

        Raises:
            BadInput: it is none.
        """
        cuts = tuple(points[: problem.stages - 1].tolist())
        devices = tuple(device_cuts[: problem.stages - 1].tolist())
        try:
            instructions = problem.grid.to_instructions(cuts)
            plan = StagedPlan(instructions, devices, problem.micro_batches, planner, cuts)
            valid, reason = plan.check_valid(problem)
        except BadInput as error:
            valid, reason = False, error.what
        if not valid:
            raise BadInput(f"makes no valid plan ({reason})", where=str(self.file.path), do=EXPORT_AGAIN)
        return plan


def policy_of(path: Path) -> Policy:
    """A policy file, opened once a process for as long as the file stays the same: opening takes longer than planning.

    Raises:
        BadInput: as Policy.
    """
    if not is_file(path):
        return Policy(path)  # which says so
    status = path.stat()
    return _opened(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=4)
def _opened(path: Path, _version: tuple[int, ...]) -> Policy:
    return Policy(path)


@dataclass(frozen=True)
class PolicyConfig:
    """Which policy, and how widely it is asked.

    Attributes:
        policy: policy file; None is the shipped one: for each schedule its own where there is one and the problem is
            like those that it was trained for, else the one for the length L.
        beam: first decisions from which it goes on greedily; 1 is plain greedy.
        reach: boundaries and devices beside those of its best plan at which a stage may begin in the end; with 0 its
            best plan stays as it is.
    """

    policy: Path | None = None
    beam: int = 4
    reach: int = 8


class PolicyPlanner(Planner[StagedProblem, StagedPlan, PolicyConfig]):
    """Plans by the trained policies. They know neither shardings nor constraints, and are for L or for one schedule.

    Under a schedule the one of the plans from its first cuts is taken whose step is the shortest.
    """

    name: ClassVar[str] = "policy"
    config_type: ClassVar[type[PolicyConfig]] = PolicyConfig

    @cached_property
    def policy(self) -> Policy:
        """The policy file for the length L, or the one given, opened when first needed."""
        return policy_of(self.config.policy or zoo_dir() / SHIPPED)

    def _policy_for(self, problem: StagedProblem) -> Policy:
        """The file that plans a problem."""
        name = None if self.config.policy or problem.schedule is None else SHIPPED_FOR.get(problem.schedule)
        if name is None or problem.stages < 2:
            return self.policy
        own = policy_of(zoo_dir() / name)
        return own if own.out_of_range(problem) is None else self.policy

    def out_of_range(self, problem: StagedProblem) -> str | None:
        """A sentence on which value lies outside what the policy was trained for; None if none does.

        Of a cluster that is too large the groups of devices count that the policy sees in their place.
        """
        if not problem.cluster.is_uniform:
            return f"cluster {problem.cluster.name} is mixed, and the policy was trained for clusters of equal nodes"
        return self.policy.out_of_range(self._grouped(problem).problem)

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The policy's best plan; its promise holds inside the trained ranges only (see out_of_range).

        Raises:
            BadInput: the problem is larger than the policy can express.
        """
        return self.solve_batch([problem], deadline=deadline, watch=watch)[0]

    def solve_batch(
        self, problems: Sequence[StagedProblem], *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> list[StagedResult]:
        """Best plans of many problems in a few calls of the graph.

        Raises:
            BadInput: one of them is larger than the policy can express.
        """
        begun_s = time.perf_counter()
        watch(Progress(f"planning {len(problems)} problem(s) by the policy", 0, len(problems)))
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
        groups = [self._grouped(problem) for problem in problems]
        whole = [
            replace(group.problem, schedule=problem.schedule if group.size == 1 else None)
            for group, problem in zip(groups, problems, strict=True)
        ]
        plans = self._plan_all(whole, deadline)
        return [None if plan is None else group.ungrouped(plan) for group, plan in zip(groups, plans, strict=True)]

    def _grouped(self, problem: StagedProblem) -> Grouped:
        most_nodes, most_per_node = (int(self.policy.ranges[name][1]) for name in ("nodes", "devices_per_node"))
        return grouped(replace(plain(problem), schedule=None), most_nodes, most_per_node)

    def _plan_all(self, problems: Sequence[StagedProblem], deadline: Deadline) -> list[StagedPlan | None]:
        """A plan for each, None for those that the deadline kept it from."""
        policies = [self._policy_for(problem) for problem in problems]
        for problem, policy in zip(problems, policies, strict=True):
            _require_expressible(problem, policy)
        parts = []
        for policy in dict.fromkeys(policies):
            # The graph goes on until the problem with the most stages is planned: equal ones share a call.
            own = [i for i, chosen in enumerate(policies) if chosen is policy and problems[i].stages > 1]
            own.sort(key=lambda i: problems[i].stages)
            parts += [own[start : start + CHUNK] for start in range(0, len(own), CHUNK)]

        def plan_part(part: list[int]) -> list[StagedPlan | None]:
            if deadline.passed:
                return [None] * len(part)
            return [*self._plan_part(policies[part[0]], [problems[i] for i in part])]

        if len(parts) <= 1:
            planned = [plan_part(part) for part in parts]
        else:
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # the graph runs outside Python's lock
                planned = list(pool.map(plan_part, parts))
        plans: list[StagedPlan | None] = [
            StagedPlan((), (), problem.micro_batches, self.name, ()) for problem in problems
        ]
        for part, part_plans in zip(parts, planned, strict=True):
            for i, plan in zip(part, part_plans, strict=True):
                plans[i] = plan
        return plans

    def _plan_part(self, policy: Policy, problems: list[StagedProblem]) -> list[StagedPlan]:
        """The best of each beam: joined with the others for the length L, or under a schedule the shortest step."""
        cuts, device_cuts, reward = policy.plans(encode(problems), self.config.beam)
        plans = []
        for problem, points, devices, earned in zip(problems, cuts, device_cuts, reward, strict=True):
            order = np.argsort(-earned, kind="stable")[: int(np.isfinite(earned).sum()) or 1]
            own = [policy.plan_of(problem, points[row], devices[row], self.name) for row in order.tolist()]
            if problem.schedule is None:
                plans.append(joined(problem, own, self.config.reach))
            else:
                plans.append(shortest_step(problem, own))
        return plans


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


def shortest_step(problem: StagedProblem, plans: Sequence[StagedPlan]) -> StagedPlan:
    """The plan with the shortest simulated step of those that fit; the first where none does.

    Args:
        problem: with a schedule.
        plans: for it.
    """
    if len(plans) == 1:
        return plans[0]
    tables = tables_of(problem)
    boundaries = np.searchsorted(tables.boundary, np.array([plan.cuts for plan in plans], dtype=np.int64) + 1)
    batch = PlanBatch.of(tables, boundaries, np.array([plan.device_cuts for plan in plans], dtype=np.int64))
    costs = batch_costs(tables, batch)
    fits = np.flatnonzero(costs.feasible)
    if not fits.size:
        return plans[0]
    steps = steps_s(problem, tables, batch.take(fits), costs.take(fits))
    return plans[int(fits[steps.argmin()])]


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
    profile = Profile.create(p.C / size, p.A, p.W, p.C_fwd / size, p.stash / size)
    return Grouped(replace(problem, profile=profile, cluster=fewer), size)


def _least_divisor(count: int, most: int) -> int:
    """The smallest divisor that leaves at most so many, but not one alone; 1 where there is none."""
    divisors = (d for d in range(1, count) if count % d == 0 and count // d <= most)
    return next(divisors, 1)
