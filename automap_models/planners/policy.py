"""The trained policy: an ONNX graph stepped by onnxruntime, greedily or from several first decisions; no torch.

The graph holds everything learned and derived (features, masks, values); what is left here is to write each decision
into the partial plan. A beam follows the first decisions with the largest values greedily to their ends; the complete
plans are compared by the cost model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from automap_models.core.plan import PipelinePlan
from automap_models.core.problem import PipelineProblem
from automap_models.core.resources import zoo_dir
from automap_models.cost.pipeline import PipelineCost, plan_cost
from automap_models.envs.encoding import EncodedProblems, cut_masks, encode
from automap_models.errors import BadInput
from automap_models.planners.base import Planner, refuse_unless_feasible

KIND = "pipeline-policy"
SHIPPED = "pipeline.onnx"
CHUNK = 32
"""Problems planned at a time: the tables over points and devices stay in the cache."""
RANGES = ("stages", "micro_batches", "nodes", "devices_per_node", "inter_over_intra")
"""The values of a problem that must lie within what the policy was trained for."""

Ints = NDArray[np.int64]


class Policy:
    """A policy file: action values for batches of states at the same step.

    Raises:
        BadInput: the file is missing, truncated or not one of ours.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        if not path.is_file():
            raise BadInput("no such policy file", where=str(path), do="train one with python train/run.py")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # small graphs lose more to threads than they gain
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common base class
            raise BadInput("cannot be read as an ONNX model", where=str(path), do="export the policy again") from error
        self.metadata: dict[str, str] = self.session.get_modelmeta().custom_metadata_map
        if self.metadata.get("automap_kind") != KIND:
            raise BadInput("an ONNX model, but not a pipeline policy of automap", where=str(path), do="export it again")
        try:
            self.points, self.max_stages, self.max_devices = (
                int(self.metadata[key]) for key in ("points", "max_stages", "max_devices")
            )
            ranges = json.loads(self.metadata["ranges"])
            self.ranges = {name: (float(ranges[name][0]), float(ranges[name][1])) for name in RANGES}
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise BadInput(
                "does not say which problems it was trained for", where=str(path), do="export the policy again"
            ) from error
        self.actions = self.points + self.max_devices - 1

    def values(self, feed: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        """[B, A] action values, -∞ for illegal actions."""
        values: NDArray[np.float32] = self.session.run(["values"], feed)[0]
        return values


def _problem_feed(encoded: EncodedProblems) -> dict[str, NDArray[Any]]:
    """The problems' half of the graph's inputs: see envs.encoding."""
    scalars = {
        name: array.astype(np.float32)
        for name, array in encoded.as_dict().items()
        if name not in ("arrays", "instructions")
    }
    mask = cut_masks(encoded.instructions, encoded.arrays.shape[2])
    return {"arrays": encoded.arrays, "cut_mask": mask, **scalars}


def search(policy: Policy, encoded: EncodedProblems, stages: int, beam: int) -> tuple[Ints, Ints]:
    """Search from the `beam` best first decisions of B problems of the same number of stages.

    Each of them goes on greedily. The first cut is the decision that is hardest to rate, and a beam that may drop it
    fills up with one first cut's near-equal continuations: measured on random problems, it plans worse.

    Returns:
        Grid cuts and device cuts of the complete plans, int64 [B, beam, S-1] each, best action value first; a row of
        -1 where fewer plans exist.
    """
    batch, problem_feed = len(encoded), _problem_feed(encoded)
    cuts = np.full((batch, 1, policy.max_stages - 1), -1, dtype=np.int64)
    device_cuts = cuts.copy()
    alive = np.ones((batch, 1), dtype=bool)
    for step in range(2 * (stages - 1)):
        problem, place = np.nonzero(alive)
        feed = {name: array[problem] for name, array in problem_feed.items()}
        feed |= {"cuts": cuts[alive], "device_cuts": device_cuts[alive], "step": np.full(problem.size, step)}
        values = np.full((*alive.shape, policy.actions), -np.inf, dtype=np.float32)
        values[problem, place] = policy.values(feed)
        if step:
            values[values < values.max(2, keepdims=True)] = -np.inf
        flat = values.reshape(batch, -1)
        chosen = np.argsort(-flat, axis=1, kind="stable")[:, :beam]
        alive = np.isfinite(np.take_along_axis(flat, chosen, 1))
        parent, action = np.divmod(chosen, policy.actions)
        cuts, device_cuts = (np.take_along_axis(made, parent[:, :, None], 1) for made in (cuts, device_cuts))
        made, decided = (device_cuts, action - policy.points + 1) if step % 2 else (cuts, action)
        made[:, :, step // 2] = decided
        cuts[~alive], device_cuts[~alive] = -1, -1
    return cuts[:, :, : stages - 1], device_cuts[:, :, : stages - 1]


class PolicyPlanner(Planner):
    """Plans by the trained policy; options.beam = 1 is greedy."""

    name: ClassVar[str] = "policy"

    @cached_property
    def policy(self) -> Policy:
        """The policy file, opened when first needed."""
        return Policy(self.options.policy or zoo_dir() / SHIPPED)

    def out_of_range(self, problem: PipelineProblem) -> str | None:
        """A sentence on which value lies outside what the policy was trained for; None if none does."""
        if problem.granularity != self.policy.points:
            return f"granularity {problem.granularity} is not the policy's {self.policy.points}"
        cluster = problem.cluster
        values = (
            problem.stages,
            problem.micro_batches,
            cluster.nodes,
            cluster.devices_per_node,
            cluster.inter / cluster.intra,
        )
        for name, value in zip(RANGES, values, strict=True):
            low, high = self.policy.ranges[name]
            if not low * (1 - 1e-6) <= value <= high * (1 + 1e-6):
                what = name.replace("_", " ")
                return f"{what} {value:g} is outside {low:g} … {high:g}, for which the policy was trained"
        return None

    def plan(self, problem: PipelineProblem) -> PipelinePlan:
        """The policy's best plan; its promise holds inside the trained ranges only (see out_of_range).

        Raises:
            BadInput: the problem is larger than the policy can express.
            Infeasible: the best plan found does not fit the memory.
        """
        return refuse_unless_feasible(problem, self.plan_batch([problem])[0])

    def plan_batch(self, problems: Sequence[PipelineProblem]) -> list[PipelinePlan]:
        """Best plans of many problems in a few calls of the graph; plans that do not fit are returned as they are."""
        plans: list[PipelinePlan | None] = [None] * len(problems)
        for stages in sorted({problem.stages for problem in problems}):
            rows = [i for i, problem in enumerate(problems) if problem.stages == stages]
            for row, plan in zip(rows, self._plan_same_stages([problems[i] for i in rows], stages), strict=True):
                plans[row] = plan
        return [plan for plan in plans if plan is not None]

    def _plan_same_stages(self, problems: list[PipelineProblem], stages: int) -> list[PipelinePlan]:
        for problem in problems:
            self._require_expressible(problem)
        if stages == 1:
            return [PipelinePlan((), (), problem.micro_batches, self.name, ()) for problem in problems]

        def plan_part(part: list[PipelineProblem]) -> list[PipelinePlan]:
            found = search(self.policy, encode(part), stages, self.options.beam)
            return [self._best(problem, *plans) for problem, *plans in zip(part, *found, strict=True)]

        parts = [problems[start : start + CHUNK] for start in range(0, len(problems), CHUNK)]
        if len(parts) == 1:
            return plan_part(parts[0])
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # the graph runs outside Python's lock
            return [plan for plans in pool.map(plan_part, parts) for plan in plans]

    def _best(self, problem: PipelineProblem, cuts: Ints, device_cuts: Ints) -> PipelinePlan:
        """The shortest feasible plan of a beam, or the one that lacks the least memory."""
        plans = [
            PipelinePlan(
                problem.grid.to_instructions(points.tolist()),
                tuple(devices.tolist()),
                problem.micro_batches,
                self.name,
                tuple(points.tolist()),
            )
            for points, devices in zip(cuts, device_cuts, strict=True)
            if points[0] >= 0
        ]
        if len(plans) == 1:
            return plans[0]

        def rank(plan: PipelinePlan) -> tuple[bool, float]:
            cost: PipelineCost = plan_cost(problem, plan)
            return not cost.feasible, cost.length_s if cost.feasible else float(cost.memory_bytes.max())

        return min(plans, key=rank)

    def _require_expressible(self, problem: PipelineProblem) -> None:
        policy = self.policy
        if (
            problem.granularity != policy.points
            or problem.stages > policy.max_stages
            or problem.cluster.devices > policy.max_devices
        ):
            raise BadInput(
                f"{problem.stages} stages on {problem.cluster.devices} devices at granularity {problem.granularity} "
                f"are beyond the policy's {policy.max_stages}, {policy.max_devices} and {policy.points}",
                where="planner policy",
                do="use --planner exact",
            )
