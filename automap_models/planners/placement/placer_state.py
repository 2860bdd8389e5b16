"""A step made ready for the learned placer: groups, baselines' placements, and the network's inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from automap_models.core.placement import FloatArray, IntArray, PlacementProblem
from automap_models.cost.makespan import step_values
from automap_models.envs.placement.features import DEVICES, GROUPS, HINT_NAMES, PlacerInputs, placer_inputs
from automap_models.errors import BadInput
from automap_models.planners.base import Deadline
from automap_models.planners.placement.step_groups import StepUnits, grouped
from automap_models.planners.placement.step_search import StepScore, score_of, starts

MISFIT = -10.0
"""Reward of a placement that passes the memory (GDP §3.4); one as long as the best baseline has -1."""


@dataclass(frozen=True, eq=False)
class PlacerState:
    """A problem with everything that an episode on it needs.

    Attributes:
        units: of the problem.
        group_of: [n] group of each operation.
        unit_group: [u] group of each unit.
        inputs: of the network.
        baselines: name → [u] devices.
        scores: name → how good each is.
        best: name of the best.
    """

    units: StepUnits
    group_of: IntArray
    unit_group: IntArray
    inputs: PlacerInputs
    baselines: dict[str, IntArray]
    scores: dict[str, StepScore]
    best: str

    @classmethod
    def of(cls, problem: PlacementProblem, seed: int, deadline: Deadline) -> PlacerState:
        """The state of a problem.

        Args:
            problem: of the objective step.
            seed: of METIS.
            deadline: after which no further baseline is begun.

        Raises:
            BadInput: it has more devices than the network knows, or pymetis is not installed.
        """
        if problem.devices > DEVICES:
            raise BadInput(
                f"{problem.devices} devices; the policy places on at most {DEVICES}",
                where="planner learned",
                do="give fewer devices, or planner local-search",
            )
        units = StepUnits.of(problem)
        baselines: dict[str, IntArray] = {}
        scores: dict[str, StepScore] = {}
        for name, device in starts(units, seed, deadline):
            score = score_of(units, device)
            if name not in scores or score < scores[name]:
                baselines[name], scores[name] = device, score
        best = min(scores, key=lambda name: scores[name])
        unit_group = grouped(units, GROUPS, seed)
        group_of = unit_group[units.unit_of]
        hints = np.stack([units.expand(baselines.get(name, baselines[best])) for name in HINT_NAMES])
        seen = [scores.get(name, scores[best]) for name in HINT_NAMES]
        hint_s = np.array([np.inf if score.excess_bytes > 0 else score.value_s for score in seen])
        inputs = placer_inputs(problem, units.tables, group_of, hints, hint_s)
        return cls(units, group_of, unit_group, inputs, baselines, scores, best)

    @property
    def expert(self) -> StepScore:
        """How good the human expert's placement is, or else the best baseline's."""
        return self.scores.get("expert", self.scores[self.best])

    def placed(self, device: IntArray) -> IntArray:
        """[u] devices of the units from the [GROUPS] ones of the groups."""
        return self.units.repaired(device[self.unit_group])

    def values(self, devices: IntArray) -> tuple[FloatArray, FloatArray]:
        """[S] makespans and [S] excess bytes of [S, GROUPS] placements."""
        placed = np.stack([self.units.expand(self.placed(device)) for device in devices])
        return step_values(self.units.tables, placed)

    def rewards(self, devices: IntArray) -> FloatArray:
        """[S] minus the root of each step over the best baseline's; MISFIT for one that passes the memory."""
        values, excess = self.values(devices)
        base_s = max(self.scores[self.best].value_s, 1e-12)
        return np.where(excess > 0, MISFIT, -np.sqrt(values / base_s))
