"""Pipeline planning as a gymnasium environment, for agents of other libraries; one episode at a time.

Specification:
    observation  a Dict of float32 boxes in [0, 1]: `arrays` [5, P] (C, A, W, F as encoded; stash x as x / (1 + x)),
                 `interconnect` [D_max, D_max], `cuts` and `device_cuts` [S_max-1] (0 where not made yet),
                 `scalars` [4] (S / S_max, 1 / M, share of the steps made, σ·inter·MAX / memory = x as x / (1 + x))
    action       Discrete(P + D_max - 1), as in envs.pipeline.env
    mask         `action_masks()` and info["action_mask"]: bool [P + D_max - 1]; none is legal after the end
    reward       0 until the end; then ideal / L in (0, 1], or -1 if a stage is out of memory
    illegal      an action outside the mask ends the episode with -1 and leaves the plan as it was
    terminated   all 2(S-1) decisions are made, or an illegal action; an episode is never truncated
    reset        draws one of the problems from the seed; options={"problem": i} picks problem i;
                 info["problem"] says which it is

The numbers are those of the batched functions in envs.pipeline.env, which this wraps.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from automap_models.envs.pipeline import env as pipeline
from automap_models.envs.pipeline.encoding import EncodedProblems
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.errors import BadInput

Observation = dict[str, Any]
"""Name → float32 array."""

ILLEGAL_ACTION_REWARD = pipeline.OUT_OF_MEMORY_REWARD


class PipelineGymEnv(gymnasium.Env[Observation, np.int64]):
    """One pipeline planning episode at a time, on one problem drawn from a batch.

    Args:
        encoded: at least one problem (envs.pipeline.encoding.encode).
        max_stages: S_max; the largest S among the problems where not given.
        max_devices: D_max; the largest D among the problems where not given.

    Raises:
        BadInput: no problems, a problem of one stage, or one larger than S_max or D_max.
    """

    def __init__(self, encoded: EncodedProblems, max_stages: int | None = None, max_devices: int | None = None) -> None:
        _refuse_unplayable(encoded, max_stages, max_devices)
        self.problems = Problems.from_encoded(encoded)
        self.max_stages = max_stages or int(encoded.stages.max())
        self.max_devices = max_devices or int((encoded.nodes * encoded.devices_per_node).max())
        points, boundaries = self.problems.points, self.max_stages - 1
        shapes: dict[str, tuple[int, ...]] = {
            "arrays": (5, points),
            "interconnect": (self.max_devices, self.max_devices),
            "cuts": (boundaries,),
            "device_cuts": (boundaries,),
            "scalars": (4,),
        }
        boxes: dict[str, spaces.Space[Any]] = {
            name: spaces.Box(0.0, 1.0, shape, np.float32) for name, shape in shapes.items()
        }
        self.observation_space = spaces.Dict(boxes)
        self.actions = points + self.max_devices - 1
        self.action_space = spaces.Discrete(self.actions)
        self._problem: Problems | None = None
        self._partial = pipeline.reset(1, self.max_stages)
        self._ended = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode on a problem drawn from the seed, or on options["problem"].

        Raises:
            BadInput: there is no such problem.
        """
        super().reset(seed=seed)
        count = len(self.problems.stages)
        index = int((options or {}).get("problem", self.np_random.integers(count)))
        if not 0 <= index < count:
            raise BadInput(f"problem {index}", where="reset options", do=f"choose one of 0..{count - 1}")
        self._problem = self.problems.take(torch.tensor([index]))
        self._partial = pipeline.reset(1, self.max_stages)
        self._ended = False
        return self._observation(self._problem), {"problem": index, "action_mask": self.action_masks()}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Make one decision: observation, reward, terminated, truncated (never), info.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset or after the end of an episode.
            BadInput: the action is not in the action space.
        """
        if self._problem is None or self._ended:
            raise gymnasium.error.ResetNeeded("no episode is under way: call reset() first")
        if not self.action_space.contains(action):
            raise BadInput(f"action {action!r}", where="step", do=f"give a whole number of 0..{self.actions - 1}")
        legal = bool(self.action_masks()[action])
        if legal:
            self._partial, earned, ended = pipeline.step(self._problem, self._partial, torch.tensor([int(action)]))
            reward, self._ended = float(earned), bool(ended)
        else:
            reward, self._ended = ILLEGAL_ACTION_REWARD, True
        info = {"action_mask": self.action_masks(), "legal": legal}
        return self._observation(self._problem), reward, self._ended, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """bool [P + D_max - 1]: the legal actions; none before the first reset and after the end of an episode."""
        if self._problem is None or self._ended:
            return np.zeros(self.actions, dtype=np.bool_)
        mask: NDArray[np.bool_] = pipeline.legal_actions(self._problem, self._partial, self.max_devices)[0].numpy()
        return mask

    @property
    def plan(self) -> Partial:
        """The decisions made so far, a batch of one."""
        return self._partial

    def _observation(self, problem: Problems) -> Observation:
        partial, state = self._partial, problem.state_over_memory
        arrays = problem.arrays[0].clone()
        arrays[4] /= 1 + arrays[4]
        scalars = [
            problem.stages / self.max_stages,
            1 / problem.micro_batches,
            partial.step / pipeline.episode_steps(problem),
            state / (1 + state),
        ]
        tensors = {
            "arrays": arrays,
            "interconnect": pipeline.interconnect_matrix(problem, self.max_devices)[0],
            "cuts": (partial.cuts[0] + 1) / problem.points,
            "device_cuts": partial.device_cuts[0].clamp(min=0) / self.max_devices,
            "scalars": torch.cat(scalars),
        }
        return {name: tensor.float().numpy() for name, tensor in tensors.items()}


def _refuse_unplayable(encoded: EncodedProblems, max_stages: int | None, max_devices: int | None) -> None:
    """BadInput unless every problem has a decision to make and fits the given sizes."""
    if not len(encoded):
        raise BadInput("no problems", where="PipelineGymEnv", do="give at least one")
    devices = encoded.nodes * encoded.devices_per_node
    refused = (
        (encoded.stages < 2, "has one stage and nothing to decide", "leave it out"),
        (encoded.stages > (max_stages or np.inf), f"has more than {max_stages} stages", "raise max_stages"),
        (devices > (max_devices or np.inf), f"has more than {max_devices} devices", "raise max_devices"),
    )
    for wrong, reason, remedy in refused:
        if wrong.any():
            raise BadInput(f"problem {int(np.argmax(wrong))} {reason}", where="PipelineGymEnv", do=remedy)
