"""The learned placer (GDP): the shipped policy proposes placements, which have to beat the baselines.

    baselines ── groups, features, their placements ── policy.onnx ── logits ──┬─ likeliest device of every group
                                                                               └─ drawn placements ── simulated ── best

Whoever made the best placement is named: the policy or a baseline. Until a deadline, or for `finetune_s`, annealing
goes on from it (step_search), and then that is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from automap_models.core.placement import FloatArray, IntArray, PlacementPlan, PlacementProblem
from automap_models.envs.placement.features import DEVICES, GROUPS, unknown_opcodes
from automap_models.errors import BadInput
from automap_models.onnx_runtime import EXPORT_AGAIN, OnnxFile
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.placement.placer_state import PlacerState
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig, no_placement, require_step
from automap_models.planners.placement.step_search import StepScore, anneal
from automap_models.resources import zoo_dir

KIND, VERSION, OUTPUT = "placer", 1, "logits"
"""What the file's metadata must say, and its output."""
ALLOWANCE_S = 60.0
"""Processor time of one pass."""


@dataclass(frozen=True)
class LearnedConfig(SeedConfig):
    """The configuration of `learned`.

    Attributes:
        policy: an ONNX file; None is the shipped one.
        samples: placements drawn beside the likeliest.
        finetune_s: seconds of annealing from the best placement.
    """

    policy: str | None = None
    samples: int = 32
    finetune_s: float = 0.0


class LearnedPlanner(PlacementPlanner[LearnedConfig]):
    """The policy's best placement, or the best baseline where that is shorter."""

    name: ClassVar[str] = "learned"
    config_type: ClassVar[type[LearnedConfig]] = LearnedConfig
    plans_steps: ClassVar[bool] = True

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The placement; none where none of those that it looked at fits the memory.

        Raises:
            BadInput: the objective is not the step, there are too many devices, or the policy file cannot be used.
        """
        require_step(self.name, problem)
        policy = read_placer(Path(self.config.policy or zoo_dir() / "placer.onnx"))
        watch(Progress(f"baselines for {len(problem.graph):,} operations"))
        state = PlacerState.of(problem, self.config.seed, deadline)
        maker, score = state.best, state.scores[state.best]
        device = state.baselines[maker]
        if not deadline.passed:
            watch(Progress("asking the policy"))
            drawn = proposals(policy, state, self.config.samples, self.config.seed)
            values, excess = state.values(drawn)
            best = int(np.lexsort((values, excess))[0])
            proposed = StepScore(float(excess[best]), float(values[best]))
            if proposed < score:
                maker, score, device = "the policy", proposed, state.placed(drawn[best])
        notes = [f"the best placement is by {maker}; the best baseline, {state.best}, has {_ms(state)}"]
        if self.config.finetune_s > 0 and not deadline.passed:
            refined, better = anneal(
                state.units, device, score, self.config.seed, deadline.part(self.config.finetune_s), watch
            )
            if better < score:
                share = 1.0 - better.value_s / score.value_s
                notes.append(f"annealing from it for {self.config.finetune_s:g} s shortened it by {share:.1%}")
                device, score = refined, better
        unknown = unknown_opcodes(problem.graph.opcodes)
        if unknown:
            notes.append(f"operations of types unknown to the policy: {', '.join(unknown[:5])}")
        if score.excess_bytes > 0:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, state.units.expand(device)), notes=tuple(notes))


def _ms(state: PlacerState) -> str:
    return f"{state.scores[state.best].value_s * 1e3:.4g} ms"


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


def _logits(policy: OnnxFile, state: PlacerState) -> FloatArray:
    """[GROUPS, DEVICES] what the policy answers.

    Raises:
        BadInput: it fails, or answers something else.
    """
    (answer,) = policy.run(state.inputs.feed(), [OUTPUT], ALLOWANCE_S)
    if answer.shape != (1, GROUPS, DEVICES) or answer.dtype.kind != "f":
        shape = " × ".join(map(str, answer.shape)) or "a single value"
        what = f"answers {shape} of {answer.dtype}, not 1 × {GROUPS} × {DEVICES} of floats"
        raise BadInput(what, where=str(policy.path), do=EXPORT_AGAIN)
    if np.isnan(answer).any() or not np.isfinite(answer[..., : state.units.problem.devices].max(axis=-1)).all():
        raise BadInput("answers numbers that are not finite", where=str(policy.path), do=EXPORT_AGAIN)
    return np.asarray(answer[0])


def proposals(policy: OnnxFile, state: PlacerState, samples: int, seed: int) -> IntArray:
    """[1 + samples, GROUPS] devices: the likeliest, then as many drawn from the policy's distribution."""
    logits = _logits(policy, state)[:, : state.units.problem.devices].astype(np.float64)
    probability = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probability /= probability.sum(axis=-1, keepdims=True)
    random = np.random.default_rng(seed)
    below = probability.cumsum(axis=-1)
    drawn = (random.random((samples, below.shape[0], 1)) > below[None]).sum(axis=-1)
    most = state.units.problem.devices - 1
    return np.concatenate([probability.argmax(axis=-1)[None], np.minimum(drawn, most)]).astype(np.int64)
