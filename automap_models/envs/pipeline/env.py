"""Pipeline planning as a Markov decision process, batched in torch (cost-model.md; Auto-MAP §3.5).

Specification:
    state    a problem (arrays, cluster, S, M), the instruction cuts and device cuts made so far, the step
    action   one shared space of P + max_devices - 1 actions: 0 … P-1 end the current stage at that grid
             point; P + d - 1 gives the devices from d on to the next stage
    step     even steps cut instructions, odd steps cut devices, front to back; 2(S-1) steps an episode
    legal    cuts increase, on distinct points, and leave room for what is still to be cut
    reward   0 until the end; then ideal / L with ideal = ΣC·M / D, in (0, 1]; -1 if a stage is out of memory
             (`inverse_length`: the paper's 1 / L instead, with L in units of the problem's joint MAX);
             with an objective other than `length` the simulated step of that schedule stands for L

States and parameters are values; `reset`, `step` and `legal_actions` are pure functions of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from automap_models.cost.staged_torch import BatchCost, pipeline_cost_batch
from automap_models.envs.pipeline.cost_to_go import CostToGo, Scaled, cost_to_go
from automap_models.envs.pipeline.encoding import EncodedProblems, cut_masks
from automap_models.envs.pipeline.objective import LENGTH, simulated_steps, warm_ups

OUT_OF_MEMORY_REWARD = -1.0
IDEAL_OVER_LENGTH, INVERSE_LENGTH = REWARDS = ("ideal_over_length", "inverse_length")
"""What a plan that fits may earn. The first tells nothing of a problem's size, so that problems of all sizes are one
task; the second is Auto-MAP's (§3.5), whose rewards differ several hundredfold between problems."""


SCALARS = ("nodes", "devices_per_node", "inter_over_intra", "state_over_memory", "stages", "micro_batches")
"""The fields of Problems that hold one number a problem."""
GIVEN = ("arrays", "cut_mask", *SCALARS)
"""All fields of Problems that are given, in their order."""


class Problems(NamedTuple):
    """B encoded problems as tensors; scalars are float32 [B] (see envs.pipeline.encoding.EncodedProblems).

    cost_to_go: tables derived from the rest, made once for all states of an episode (`with_cost_to_go`).
    samples: float32 [B] of a micro-batch, which replicas get as a whole, 0 where it splits evenly; None where all do.
        Policies in files do not know them.
    """

    arrays: Tensor
    cut_mask: Tensor
    nodes: Tensor
    devices_per_node: Tensor
    inter_over_intra: Tensor
    state_over_memory: Tensor
    stages: Tensor
    micro_batches: Tensor
    cost_to_go: CostToGo | None = None
    samples: Tensor | None = None

    @classmethod
    def from_encoded(cls, encoded: EncodedProblems) -> Problems:
        """The tensors of an encoded batch."""
        masks = torch.from_numpy(cut_masks(encoded.instructions, encoded.arrays.shape[2]))
        scalars = (torch.as_tensor(getattr(encoded, name)).float() for name in SCALARS)
        samples = None if encoded.samples is None else torch.as_tensor(encoded.samples).float()
        return cls._make((torch.as_tensor(encoded.arrays), masks, *scalars, None, samples))

    @property
    def devices(self) -> Tensor:
        """[B] number of devices D."""
        return self.nodes * self.devices_per_node

    @property
    def points(self) -> int:
        """Number of grid points P."""
        return int(self.arrays.shape[2])

    def take(self, index: Tensor) -> Problems:
        """The problems selected by an index or a mask."""
        tables = None if self.cost_to_go is None else self.cost_to_go.take(index)
        samples = None if self.samples is None else self.samples[index]
        return Problems._make((*(tensor[index] for tensor in self.tensors), tables, samples))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The fields that every problem has, not derived."""
        return tuple(getattr(self, name) for name in GIVEN)

    def scaled(self) -> Scaled:
        """The problems with times in units of their ideal length."""
        ideal = ideal_length(self)
        per_channel = torch.stack([1 / ideal] * 4 + [torch.ones_like(ideal)], 1)
        columns = (
            self.devices,
            self.devices_per_node,
            self.inter_over_intra,
            self.state_over_memory * ideal,
            self.stages,
            self.micro_batches,
        )
        samples = None if self.samples is None else self.samples.view(-1, 1, 1)
        arrays = self.arrays * per_channel.unsqueeze(2)
        return Scaled._make((arrays, *(c.view(-1, 1, 1) for c in columns), samples))

    def with_cost_to_go(self, max_stages: int) -> Problems:
        """The same with their tables, made now unless they are there."""
        if self.cost_to_go is not None:
            return self
        return self._replace(cost_to_go=cost_to_go(self.scaled(), self.cut_mask, max_stages))

    def to(self, device: torch.device | str) -> Problems:
        """The same on another device."""
        tables = None if self.cost_to_go is None else CostToGo(*(table.to(device) for table in self.cost_to_go))
        samples = None if self.samples is None else self.samples.to(device)
        return Problems._make((*(tensor.to(device) for tensor in self.tensors), tables, samples))


class Partial(NamedTuple):
    """Partial plans: cuts and device_cuts int64 [B, S_max-1], -1 where not made yet; step int64 [B]."""

    cuts: Tensor
    device_cuts: Tensor
    step: Tensor

    def take(self, index: Tensor) -> Partial:
        """The partial plans selected by an index or a mask."""
        return Partial(*(tensor[index] for tensor in self))

    def at_step(self, step: Tensor) -> Partial:
        """The same plans as they were when only `step` decisions had been made."""
        stage = torch.arange(self.cuts.shape[1], device=step.device)
        cuts = torch.where(2 * stage < step.unsqueeze(1), self.cuts, -1)
        device_cuts = torch.where(2 * stage + 1 < step.unsqueeze(1), self.device_cuts, -1)
        return Partial(cuts, device_cuts, step)


def reset(batch: int, max_stages: int, device: torch.device | str = "cpu") -> Partial:
    """Empty plans."""
    unset = torch.full((batch, max_stages - 1), -1, dtype=torch.int64, device=device)
    return Partial(unset, unset.clone(), torch.zeros(batch, dtype=torch.int64, device=device))


def episode_steps(problems: Problems) -> Tensor:
    """[B] int64: decisions in an episode, 2(S-1)."""
    return 2 * (problems.stages.long() - 1)


def last_cut(partial: Partial) -> tuple[Tensor, Tensor]:
    """[B] the last point and the first device cut off so far (-1 and 0 at the start), as int64."""
    return partial.cuts.amax(1), partial.device_cuts.amax(1).clamp(min=0)


def legal_cuts(problems: Problems, partial: Partial) -> Tensor:
    """bool [B, P]: points at which the current stage may end."""
    stage = partial.step // 2
    still = (problems.stages.long() - 1 - stage).unsqueeze(1)
    point = torch.arange(problems.points, device=problems.arrays.device)
    from_here = problems.cut_mask.long().flip(1).cumsum(1).flip(1)
    return problems.cut_mask & (point > last_cut(partial)[0].unsqueeze(1)) & (from_here >= still)


def device_cuts(problems: Problems, max_devices: int) -> Tensor:
    """[max_devices - 1] every device but the first: those that a stage behind the first may begin with."""
    return torch.arange(1, max_devices, dtype=problems.arrays.dtype, device=problems.arrays.device)


def legal_device_cuts(problems: Problems, partial: Partial, first: Tensor) -> Tensor:
    """bool [B, a]: which of some devices [a] the next stage may begin with."""
    stage = partial.step // 2
    still = (problems.stages.long() - 1 - stage).unsqueeze(1)
    return (first > last_cut(partial)[1].unsqueeze(1)) & (first <= problems.devices.unsqueeze(1) - still)


def legal_actions(problems: Problems, partial: Partial, max_devices: int) -> Tensor:
    """bool [B, P + max_devices - 1]: the legal actions of the shared space; none after the end."""
    cuts_instructions = (partial.step % 2 == 0).unsqueeze(1)
    running = (partial.step < episode_steps(problems)).unsqueeze(1)
    cuts = legal_cuts(problems, partial) & cuts_instructions
    devices = legal_device_cuts(problems, partial, device_cuts(problems, max_devices)) & ~cuts_instructions
    return torch.cat([cuts, devices], 1) & running


def apply(partial: Partial, action: Tensor, points: int) -> Partial:
    """The partial plans after one more decision each; action int64 [B] in the shared space."""
    stage = torch.arange(partial.cuts.shape[1], device=action.device)
    here = stage == (partial.step // 2).unsqueeze(1)
    cuts_instructions = (partial.step % 2 == 0).unsqueeze(1)
    decided = action.unsqueeze(1)
    return Partial(
        torch.where(here & cuts_instructions, decided, partial.cuts),
        torch.where(here & ~cuts_instructions, decided - points + 1, partial.device_cuts),
        partial.step + 1,
    )


class _Stages(NamedTuple):
    """Complete plans as cost.staged_torch takes them: points int64 and devices float32 [B, S_max+1]."""

    points: Tensor
    devices: Tensor


def _stages(problems: Problems, complete: Partial) -> _Stages:
    end, devices = problems.points - 1, problems.devices.unsqueeze(1)
    points = torch.nn.functional.pad(torch.where(complete.cuts < 0, end, complete.cuts), (1, 1), value=end)
    points[:, 0] = -1
    firsts = torch.where(complete.device_cuts < 0, devices, complete.device_cuts.float())
    return _Stages(points, torch.cat([torch.zeros_like(devices), firsts, devices], 1))


def complete_cost(problems: Problems, complete: Partial, held: Tensor | None = None) -> BatchCost:
    """Costs of complete plans.

    Args:
        held: see cost.staged_torch.pipeline_cost_batch.
    """
    return pipeline_cost_batch(
        problems.arrays,
        *_stages(problems, complete),
        problems.devices_per_node,
        problems.inter_over_intra,
        problems.state_over_memory,
        problems.micro_batches,
        problems.samples,
        held,
    )


class Taken(NamedTuple):
    """What plans take: time [B] in units of the problem's joint MAX, and whether they fit the memory, bool [B]."""

    time: Tensor
    feasible: Tensor


def taken(problems: Problems, complete: Partial, objective: str = LENGTH) -> Taken:
    """What complete plans take, by one of envs.pipeline.objective.OBJECTIVES."""
    if objective == LENGTH:
        cost = complete_cost(problems, complete)
        return Taken(cost.length, cost.feasible)
    micro, stages = problems.micro_batches, _stages(problems, complete)
    depth = warm_ups(
        objective, (stages.devices[:, 1:] > stages.devices[:, :-1]).sum(1), micro, complete.cuts.shape[1] + 1
    )
    cost = complete_cost(problems, complete, depth)
    return Taken(simulated_steps(cost, stages.devices, objective, micro), cost.feasible)


def ideal_length(problems: Problems) -> Tensor:
    """[B] ΣC·M / D: perfect speed-up without any communication."""
    return problems.arrays[:, 0, -1] * problems.micro_batches / problems.devices


def length_of_reward_one(problems: Problems, reward: str) -> Tensor:
    """[B] the length that earns 1; a plan that fits earns this over its own.

    Args:
        reward: one of REWARDS.
    """
    return ideal_length(problems) if reward == IDEAL_OVER_LENGTH else torch.ones_like(problems.stages)


def terminal_reward(
    problems: Problems, complete: Partial, reward: str = IDEAL_OVER_LENGTH, objective: str = LENGTH
) -> Tensor:
    """[B] ideal / L or what else is paid (one of REWARDS, by one of OBJECTIVES), or -1 where the plan does not fit."""
    time, feasible = taken(problems, complete, objective)
    return torch.where(feasible, length_of_reward_one(problems, reward) / time, OUT_OF_MEMORY_REWARD)


def step(
    problems: Problems,
    partial: Partial,
    action: Tensor,
    reward: str = IDEAL_OVER_LENGTH,
    objective: str = LENGTH,
) -> tuple[Partial, Tensor, Tensor]:
    """One decision in every episode: next partial plans, rewards [B], whether the episode ended, bool [B]."""
    following = apply(partial, action, problems.points)
    ended = following.step >= episode_steps(problems)
    earned = torch.zeros_like(problems.stages)
    if objective == LENGTH:
        earned = torch.where(ended, terminal_reward(problems, following, reward), earned)
    elif ended.any():
        rows = ended.nonzero().squeeze(1)
        paid = terminal_reward(problems.take(rows), following.take(rows), reward, objective)
        earned = earned.index_put((rows,), paid)
    return following, earned, ended


def interconnect_matrix(problems: Problems, max_devices: int) -> Tensor:
    """[B, D_max, D_max] bandwidth between devices over the larger one; 0 where a cluster has no such device."""
    device = torch.arange(max_devices, device=problems.arrays.device)
    node = torch.floor(device / problems.devices_per_node.unsqueeze(1))
    exists = device < problems.devices.unsqueeze(1)
    ratio = problems.inter_over_intra.view(-1, 1, 1)
    same_node = node.unsqueeze(2) == node.unsqueeze(1)
    matrix = torch.where(same_node, 1 / ratio, 1.0) / torch.maximum(1 / ratio, torch.ones_like(ratio))
    return matrix * (exists.unsqueeze(2) & exists.unsqueeze(1))


@dataclass(frozen=True)
class PipelineEnv:
    """The environment's sizes, its reward (one of REWARDS), what counts as L (one of OBJECTIVES), and its functions."""

    max_stages: int = 4
    max_devices: int = 32
    reward: str = IDEAL_OVER_LENGTH
    objective: str = LENGTH

    def reset(self, problems: Problems) -> Partial:
        """Empty plans for a batch of problems."""
        return reset(len(problems.stages), self.max_stages, problems.arrays.device)

    def legal(self, problems: Problems, partial: Partial) -> Tensor:
        """bool [B, A]."""
        return legal_actions(problems, partial, self.max_devices)

    def step(self, problems: Problems, partial: Partial, action: Tensor) -> tuple[Partial, Tensor, Tensor]:
        """Next partial plans, rewards [B], ended [B]."""
        return step(problems, partial, action, self.reward, self.objective)

    def terminal_reward(self, problems: Problems, complete: Partial) -> Tensor:
        """[B] what complete plans earn."""
        return terminal_reward(problems, complete, self.reward, self.objective)

    def taken(self, problems: Problems, complete: Partial) -> Taken:
        """What complete plans take, and whether they fit."""
        return taken(problems, complete, self.objective)

    def episode_steps(self, problems: Problems) -> Tensor:
        """[B] decisions in an episode."""
        return episode_steps(problems)
