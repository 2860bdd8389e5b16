"""The learned placer (GDP): from the best baseline on, the shipped policy says which pieces to move where.

    baselines ── best one ── pieces, their simulated step ── policy.onnx ── logits of moves ── drawn, simulated, kept
                                  ↑                                                               │
                                  └───────────────────────────────────────────────────────────────┘

Whoever made the plan is named: the policy, or a baseline that it could not shorten.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from automap_models.core.placement import FloatArray, Objective, PlacementGraph, PlacementProblem
from automap_models.core.units import counted, percent, seconds
from automap_models.envs.placement.features import DEVICES, PlacerInputs, unknown_opcodes
from automap_models.errors import BadInput
from automap_models.onnx_runtime import EXPORT_AGAIN, OnnxFile
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig
from automap_models.planners.placement.step_groups import StepUnits
from automap_models.planners.placement.step_moves import MoveSpace
from automap_models.planners.placement.step_search import ANNEALING, anneal, best_start
from automap_models.resources import zoo_dir

KIND, VERSION, OUTPUT = "placer", 2, "logits"
"""What the file's metadata must say, and its output."""


@dataclass(frozen=True)
class LearnedConfig(SeedConfig):
    """The configuration of `learned`.

    Attributes:
        policy: an ONNX file; None is the shipped one.
        finetune_s: further moves, in seconds as the search counts them (step_search.Annealing), beside those that take
            at most about ten seconds.
    """

    policy: str | None = None
    finetune_s: float = 0.0


class LearnedPlanner(PlacementPlanner[LearnedConfig]):
    """The best baseline, made shorter by moves that the policy draws."""

    name: ClassVar[str] = "learned"
    config_type: ClassVar[type[LearnedConfig]] = LearnedConfig
    objectives: ClassVar[tuple[Objective, ...]] = ("step",)

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The placement; none where none of those that it looked at fits the memory.

        Raises:
            BadInput: there are too many devices, or the policy file cannot be used.
        """
        policy = read_placer(Path(self.config.policy or zoo_dir() / "placer.onnx"))
        _require_devices(problem)
        units, seed = StepUnits.from_problem(problem), self.config.seed
        maker, device, score = best_start(units, seed, deadline.part(deadline.remaining_s / 4), watch)
        notes = [f"the best baseline, {maker}, has {seconds(score.value_s)}"]
        if problem.devices > 1 and not deadline.passed:
            watch(Progress("asking the policy"))
            moves = partial(MoveSpace(units, seed).moves, partial(move_logits, policy))
            total = ANNEALING.moves(units, deadline.remaining_s)
            moved, better = anneal(units, (device, score), moves, total, seed, deadline, watch)
            if self.config.finetune_s > 0 and not deadline.passed:
                total = ANNEALING.moves(units, min(self.config.finetune_s, deadline.remaining_s))
                moved, better = anneal(units, (moved, better), moves, total, seed + 1, deadline, watch)
            if better < score:
                notes[0] += f"; the policy's moves made it {percent(1.0 - better.value_s / score.value_s)} shorter"
                device, score = moved, better
            else:
                notes[0] += "; no move of the policy made it shorter, so that the plan is the baseline's"
        notes += _unknown(problem.graph)
        return self.outcome(problem, None if score.excess_bytes > 0 else units.expand(device), tuple(notes))


def _unknown(graph: PlacementGraph) -> list[str]:
    """What a person should know about types of operations that no training has seen."""
    if not graph.opcodes:
        return ["the graph does not say what its operations do: all are embedded as unknown to the policy"]
    unknown = unknown_opcodes(graph.opcodes)
    if not unknown:
        return []
    set_of = set(unknown)
    count = sum(code in set_of for code in graph.opcodes)
    listed = ", ".join(unknown[:5]) + (", …" if len(unknown) > 5 else "")
    return [f"{counted(count, 'operation')} of types unknown to the policy, embedded as unknown: {listed}"]


def _require_devices(problem: PlacementProblem) -> None:
    if problem.devices > DEVICES:
        raise BadInput(
            f"{problem.devices} devices; the policy places on at most {DEVICES}",
            where="planner learned",
            do="give fewer devices, or planner local-search",
        )


@lru_cache(maxsize=2)
def read_placer(path: Path) -> OnnxFile:
    """A policy that places.

    Raises:
        BadInput: the file cannot be read, is another policy, or one of another version.
    """
    policy = OnnxFile(path)
    if policy.metadata.get("kind") != KIND:
        raise BadInput("is no policy that places", where=str(path), do="give one from experiment=gdp_pretrain")
    if policy.metadata.get("version") != str(VERSION):
        raise BadInput(
            f"is a policy of version {policy.metadata.get('version')}, this program reads version {VERSION}",
            where=str(path),
            do="train and export it again",
        )
    return policy


def move_logits(policy: OnnxFile, inputs: PlacerInputs) -> FloatArray:
    """[P, D] what the policy answers.

    Raises:
        BadInput: it fails, or answers something else.
    """
    (answer,) = policy.run(inputs.feed(), [OUTPUT], 60.0)  # seconds of processor time
    wanted = (1, *inputs.move_mask.shape)
    if answer.shape != wanted or answer.dtype.kind != "f":
        shape = " × ".join(map(str, answer.shape)) or "a single value"
        what = f"answers {shape} of {answer.dtype}, not {' × '.join(map(str, wanted))} of floats"
        raise BadInput(what, where=str(policy.path), do=EXPORT_AGAIN)
    if not np.isfinite(answer[0][inputs.move_mask > 0]).all():
        raise BadInput("answers numbers that are not finite", where=str(policy.path), do=EXPORT_AGAIN)
    return np.asarray(answer[0], dtype=np.float64)
