"""A policy file: a trained network as an ONNX graph, run by onnxruntime; no torch.

The network says what the choices of a state are worth; the environment plays (envs.pipeline.env). Of each problem the
first cuts of the largest values are followed greedily to their ends. Measured on random problems, an ordinary beam
plans worse: it fills up with one first cut's near-equal continuations, and the first cut is the decision that is
hardest to rate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from automap_models.core.constraints import UNCONSTRAINED
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.envs.pipeline import features, flat
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Choices, Describe, Floats, Problems, States, follow, rewards, values_of
from automap_models.errors import BadInput
from automap_models.onnx_runtime import EXPORT_AGAIN, OnnxFile
from automap_models.resources import is_file

KIND, LEGAL, VALUES = "pipeline-network", "legal", "values"
"""What such a file says it is; the graph's last input, bool [B, K], and its output, float32 [B, K]."""
INPUTS = {"choices": ("features", "globally"), "flat": ("state",)}
"""Network → the graph's other inputs."""
RANGES = ("stages", "micro_batches", "nodes", "devices_per_node", "inter_over_intra")
"""The values of a problem that must lie within what the policy was trained for."""
LEAST = float(np.finfo(np.float32).min)
LARGEST = 1_024
"""Points, stages and devices of problems that a policy can be for: the paper's network reads a number for each pair."""
ALLOWANCE_S = 10.0
"""Processor time after which a call of the graph is stopped: hundreds of times what a network takes."""


class Policy:
    """A policy file.

    Raises:
        BadInput: the file is missing, truncated or not one of ours.
    """

    def __init__(self, path: Path) -> None:
        self.file = OnnxFile(path)
        metadata = self.file.metadata
        if metadata.get("automap_kind") != KIND or metadata.get("network") not in INPUTS:
            raise BadInput("an ONNX model, but not a pipeline policy of automap", where=str(path), do=EXPORT_AGAIN)
        try:
            self.points, self.max_stages, self.max_devices = (
                int(metadata[key]) for key in ("points", "max_stages", "max_devices")
            )
            ranges = json.loads(metadata["ranges"])
            self.ranges = {name: (float(ranges[name][0]), float(ranges[name][1])) for name in RANGES}
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadInput(
                "does not say which problems it was trained for", where=str(path), do=EXPORT_AGAIN
            ) from error
        sizes = (self.points, self.max_stages, self.max_devices, *(self.ranges[name][1] for name in RANGES[:4]))
        possible = min(sizes) >= 1 and max(self.points, self.max_stages, self.max_devices) <= LARGEST
        if not possible or not all(0 < low <= high < math.inf for low, high in self.ranges.values()):
            raise BadInput("says that it was trained for impossible problems", where=str(path), do=EXPORT_AGAIN)
        self.network = metadata["network"]

    @property
    def describe(self) -> Describe:
        """What the network reads of states."""
        if self.network == "flat":
            return partial(flat.describe, max_devices=self.max_devices)
        return features.describe

    def out_of_range(self, problem: StagedProblem) -> str | None:
        """A sentence on which value lies outside what the policy was trained for; None if none does."""
        if problem.granularity != self.points:
            return f"granularity {problem.granularity} is not the policy's {self.points}"
        cluster = problem.cluster
        ratio = cluster.inter / cluster.intra
        values = (problem.stages, problem.micro_batches, cluster.nodes, cluster.devices_per_node, ratio)
        for name, value in zip(RANGES, values, strict=True):
            low, high = self.ranges[name]
            if not low * (1 - 1e-6) <= value <= high * (1 + 1e-6):
                what = f"{name.replace('_', ' ')} {value:g} is outside {low:g} … {high:g}"
                return f"{what}, for which the policy was trained"
        return None

    def worth(self, choices: Choices) -> NDArray[np.float32]:
        """[B, K] what choices are worth.

        Raises:
            BadInput: the graph fails or answers something else.
        """
        feed = dict(zip(INPUTS[self.network], choices.inputs, strict=True)) | {LEGAL: choices.legal}
        (worth,) = self.file.run(feed, (VALUES,), ALLOWANCE_S)
        if worth.dtype != np.float32 or worth.shape != choices.choice.shape:
            raise BadInput(
                f"answers values of type {worth.dtype} and shape {worth.shape}, not float32 and {choices.choice.shape}",
                where=str(self.file.path),
                do=EXPORT_AGAIN,
            )
        finite: NDArray[np.float32] = np.nan_to_num(worth, nan=LEAST)  # -∞ are choices that there are not
        return finite

    def plans(self, problems: Problems, beam: int) -> tuple[States, Floats]:
        """The greedy plans of B problems from each of the `beam` best first cuts, best first.

        Returns:
            Complete states, [B·beam], and [B, beam] what they earn: ideal / L, -1 where a stage does not fit the
            memory, -∞ where there are fewer first cuts.
        """
        begun = States.empty(len(problems.stages), self.max_stages)
        choices = self.describe(problems, begun)
        worth = values_of(choices, self.worth)
        beam = min(beam, worth.shape[1])
        columns = np.argsort(-worth, axis=1, kind="stable")[:, :beam]
        chosen = np.take_along_axis(choices.choice, columns, axis=1)
        many = np.repeat(np.arange(len(chosen)), beam)
        first = np.maximum(chosen, choices.choice.max(axis=1, keepdims=True) * (chosen < 0))
        states = begun.take(many).after(first.ravel())
        part = problems.take(many)
        complete = follow(part, states, part.decisions, self.describe, self.worth)
        earned = rewards(part, complete).reshape(chosen.shape)
        return complete, np.where(chosen >= 0, earned, -np.inf)

    def best_plans(self, problems: Sequence[StagedProblem], beam: int, planner: str) -> list[list[StagedPlan]]:
        """The plans of each problem from its `beam` best first cuts, the shortest first.

        Args:
            problems: with several stages, of the policy's granularity and in its sizes.
            beam: first cuts that are followed.

        Raises:
            BadInput: the graph fails or answers something else.
        """
        complete, earned = self.plans(Problems.from_encoded(encode(problems)), beam)
        plans = []
        for number, (problem, of_problem) in enumerate(zip(problems, earned, strict=True)):
            order = np.argsort(-of_problem, kind="stable")[: int(np.isfinite(of_problem).sum())]
            rows, free = number * earned.shape[1] + order, replace(problem, constraints=UNCONSTRAINED)  # it knows none
            plans.append([self._plan(free, complete.take(row), planner) for row in rows.tolist()])
        return plans

    def _plan(self, problem: StagedProblem, complete: States, planner: str) -> StagedPlan:
        points = tuple(complete.cuts[: problem.stages - 1].tolist())
        devices = tuple(complete.firsts[: problem.stages - 1].tolist())
        plan = StagedPlan(problem.grid.to_instructions(points), devices, problem.micro_batches, planner, points)
        valid, reason = plan.check_valid(problem)
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
