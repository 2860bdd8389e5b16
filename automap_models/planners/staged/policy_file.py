"""A policy file: a trained network as one ONNX graph, run by onnxruntime; no torch.

The graph is the whole planner (train.onnx_graph): it takes encoded problems and follows the first cuts with the largest
action values greedily to their ends. Measured on random problems, an ordinary beam plans worse: it fills up with one
first cut's near-equal continuations, and the first cut is the decision that is hardest to rate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from automap_models.core.constraints import UNCONSTRAINED
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.envs.pipeline.encoding import EncodedProblems, cut_masks, encode
from automap_models.errors import BadInput
from automap_models.onnx_runtime import EXPORT_AGAIN, OnnxFile
from automap_models.resources import is_file

KIND = "pipeline-planner"
LENGTH = "length"
RANGES = ("stages", "micro_batches", "nodes", "devices_per_node", "inter_over_intra")
"""The values of a problem that must lie within what the policy was trained for."""

COUNTS = ("stages", "micro_batches", "nodes", "devices_per_node")
"""Those of them that count something."""
ALLOWANCE_S, ALLOWANCE_PER_PLAN_S = 5.0, 1.0
"""Processor time after which a run is stopped: 50 to 300 times what the shipped policy takes."""

PLANS = ("cuts", "device_cuts", "reward")
"""The graph's outputs that make a plan."""

Ints = NDArray[np.int64]


def outside(problem: StagedProblem, ranges: Mapping[str, tuple[float, float]], purpose: str) -> str | None:
    """A sentence on which value of a problem lies outside some ranges, of the values in RANGES; None if none does.

    Args:
        problem: on equal nodes.
        ranges: least and most of each.
        purpose: what they were, such as `the policy was trained`.
    """
    cluster = problem.cluster
    values = (
        problem.stages,
        problem.micro_batches,
        cluster.nodes,
        cluster.devices_per_node,
        cluster.inter / cluster.intra,
    )
    for name, value in zip(RANGES, values, strict=True):
        low, high = ranges[name]
        if not low * (1 - 1e-6) <= value <= high * (1 + 1e-6):
            return f"{name.replace('_', ' ')} {value:g} is outside {low:g} … {high:g}, for which {purpose}"
    return None


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
        return outside(problem, self.ranges, "the policy was trained")

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

    def best_plans(self, problems: Sequence[StagedProblem], beam: int, planner: str) -> list[list[StagedPlan]]:
        """The plans of each problem from its `beam` best first cuts, the best first by what the graph says of them.

        Args:
            problems: with several stages, of the policy's granularity and in its sizes.
            beam: first cuts that are followed.
            planner: name of who plans.

        Raises:
            BadInput: the graph fails or answers something else.
        """
        plans = []
        for problem, points, devices, earned in zip(problems, *self.plans(encode(problems), beam), strict=True):
            order = np.argsort(-earned, kind="stable")[: int(np.isfinite(earned).sum()) or 1]
            plans.append([self.plan_of(problem, points[row], devices[row], planner) for row in order.tolist()])
        return plans

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
            valid, reason = plan.check_valid(replace(problem, constraints=UNCONSTRAINED))  # it knows none
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
