"""Pipeline planning by online training as a Markov decision process on one profile, batched in torch (Auto-MAP §3.4).

Specification:
    state    the pivots chosen so far, front to back, and what the stages that they finish come to
    action   one of the candidate pivots of the current cut: the instruction that the stage ends with and the first
             device of the next one (envs.online.pivots)
    legal    later instruction and device than the last pivot's; a trainable variable in this stage and each later one
    reward   0 until the end; then `reward_s` / L; -1 if a stage is out of memory
    end      after S-1 pivots; or, where pivots were pruned by a known length (`within`), when none is legal: then no
             plan from here is shorter than that length, and what such a plan would earn is the reward

Everything is float64. Tables and states are values (envs.online.tables); `reset`, `legal` and `step` are pure functions
of them, and what they cost is the matter of envs.online.costs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from automap_models.envs.online.costs import final_length_s, finish_current, of_stage, places
from automap_models.envs.online.tables import NOTHING, Behind, Chosen, Pivots, Place

OUT_OF_MEMORY_REWARD = -1.0


class OnlinePipelineEnv:
    """B episodes on one problem; everything about it stands in its pivots."""

    def __init__(self, episodes: int = 1) -> None:
        self.episodes = episodes

    def reset(self, problems: Pivots) -> Chosen:
        """Nothing is cut."""
        rows = self.episodes
        return Chosen(
            torch.full((rows, problems.stages - 1, 2), -1),
            torch.zeros(rows, dtype=torch.int64),
            torch.zeros(rows, len(Place._fields), dtype=torch.float64),
            torch.tensor([NOTHING], dtype=torch.float64).repeat(rows, 1),
        )

    def legal(self, problems: Pivots, states: Chosen) -> Tensor:
        """bool [B, P]; none after the end."""
        return legal_pivots(problems, states)

    def step(self, problems: Pivots, states: Chosen, action: Tensor) -> tuple[Chosen, Tensor, Tensor]:
        """The next states, rewards [B], whether the episode ended, bool [B]."""
        following = chosen(problems, states, action)
        complete = following.step == problems.stages - 1
        stuck = ~complete & ~legal_pivots(problems, following).any(1)
        reward = torch.where(stuck, problems.reward_s / problems.known_s, 0.0)
        reward = torch.where(complete, final_reward(problems, following), reward)
        return following, reward.float(), complete | stuck


def legal_pivots(problems: Pivots, states: Chosen) -> Tensor:
    """bool [B, P] the pivots that the current stage may end with."""
    stage = states.step.clamp(max=problems.stages - 2)
    place, before = places(problems, stage), Place(*states.place.unsqueeze(2).unbind(1))
    device = of_stage(problems.device, stage).gather(1, of_stage(problems.slot, stage))
    later = (problems.stages - 1 - stage).unsqueeze(1)
    trains = (place.variables > before.variables) & (problems.end[4] - place.variables >= later)
    further = device > Behind(*states.behind.unsqueeze(2).unbind(1)).device
    running = (states.step < problems.stages - 1).unsqueeze(1)
    return of_stage(problems.exists, stage) & trains & further & running


def chosen(problems: Pivots, states: Chosen, action: Tensor) -> Chosen:
    """The states after one more pivot each; action int64 [B]."""
    stage, at = states.step, action.unsqueeze(1)
    cut = problems.cut[stage].gather(1, at)
    device = problems.device[stage].gather(1, problems.slot[stage].gather(1, at))
    place = problems.place[stage, :, action]
    behind = finish_current(problems, states, Place(*place.unsqueeze(2).unbind(1)), device)
    here = (torch.arange(problems.stages - 1) == stage.unsqueeze(1)).unsqueeze(2)
    pivot = torch.cat([cut, device.long()], 1).unsqueeze(1)
    finished = torch.cat([part.expand(len(cut), 1) for part in behind], 1)
    return Chosen(torch.where(here, pivot, states.pivots), stage + 1, place, finished)


def final_reward(problems: Pivots, states: Chosen) -> Tensor:
    """[B] `reward_s` / L, or -1 where a plan does not fit."""
    length = final_length_s(problems, states)
    return torch.where(length.isfinite(), problems.reward_s / length, OUT_OF_MEMORY_REWARD)
