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
of them. Costs, bounds and the paper's features equal cost.staged but for rounding (notation of cost-model.md), stage by
stage and over all pivots at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from automap_models.cost.staged_torch import all_reduce_factor, span_after, transfer_factor
from automap_models.envs.online.tables import NOTHING, ROUNDING, Behind, Chosen, Pivots, Place

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


class PivotCosts(NamedTuple):
    """What each pivot of the current cut would come to, float64 [B, P]; meaningless where it is not legal.

    bound_s: lower bound on L of all plans that go on from it, infinite where none fits the memory; L itself for the
    last cut. stage_s, leaving_s, rest_s: M rounds of this stage with the transfer into it, of the transfer out of it,
    and of all that is left on all its devices. The paper's three features, of the pipeline
    whose last stage is all that is left: all_reduce_s and transfer_s, the largest ones; balance: the fastest stage's
    computation over the slowest one's.
    """

    bound_s: Tensor
    stage_s: Tensor
    leaving_s: Tensor
    rest_s: Tensor
    all_reduce_s: Tensor
    transfer_s: Tensor
    balance: Tensor


def finish_stage(
    problems: Pivots,
    stage: Tensor,
    before: Place,
    behind: Behind,
    place: Place,
    device: Tensor,
    transfer_s_per_byte: Tensor,
    all_reduce_s_per_byte: Tensor,
) -> Behind:
    """The stages up to one that ends at a place, `device` being the next one's first; all arguments broadcast.

    Args:
        problems: for its scalars.
        stage: which stage that is.
        before, behind: where it begins, and the stages before it.
        place: where it ends.
        device: one past its last device.
        transfer_s_per_byte: of the transfer into it.
        all_reduce_s_per_byte: of its gradients.
    """
    micro, replicas = problems.micro_batches, device - behind.device
    both = (place.compute_s - before.compute_s) / replicas
    backward = both - (place.forward_s - before.forward_s) / replicas
    x = before.crossing_bytes * transfer_s_per_byte
    weights = place.weights_bytes - before.weights_bytes + copies_bytes(problems, before, place)
    all_reduce = weights * all_reduce_s_per_byte
    arrived, hidden = behind.busy_s + 2 * x, behind.hidden_s + x
    span = span_after(behind.span_s, behind.busy_s, x, both, micro)
    in_flight = (problems.stages - stage).clamp(max=micro)
    held = problems.state_factor * weights + in_flight * (place.stash_bytes - before.stash_bytes) / replicas
    return Behind(
        sender=behind.device,
        device=device,
        busy_s=arrived + both,
        hidden_s=hidden + backward,
        span_s=span,
        exposed_s=torch.maximum(behind.exposed_s, all_reduce - hidden),
        slowest_s=torch.maximum(behind.slowest_s, both),
        fastest_s=torch.minimum(behind.fastest_s, both),
        transfer_s=torch.maximum(behind.transfer_s, x),
        all_reduce_s=torch.maximum(behind.all_reduce_s, all_reduce),
        fits=behind.fits * (held <= problems.memory * (1 + ROUNDING)),
    )


def copies_bytes(problems: Pivots, before: Place, place: Place) -> Tensor:
    """What a stage between two places holds of parameters that instructions before it use, too (cost.staged)."""
    copies = torch.zeros(())
    for uses, nbytes in zip(problems.uses, problems.copy_bytes, strict=True):
        earlier, by_then = (uses[at.instructions.long()] for at in (before, place))
        copies = copies + nbytes * ((earlier > 0) & (by_then > earlier))
    return copies


def pivot_costs(problems: Pivots, states: Chosen) -> PivotCosts:
    """What every pivot of the current cut would come to; the states must be before their end."""
    stage, number, micro = states.step, states.step.unsqueeze(1), problems.micro_batches
    before, behind = Place(*states.place.unsqueeze(2).unbind(1)), Behind(*states.behind.unsqueeze(2).unbind(1))
    place, slot, device = places(problems, stage), of_stage(problems.slot, stage), of_stage(problems.device, stage)
    end, all_devices = Place(*problems.end.view(-1, 1, 1)), torch.full_like(device, problems.devices)

    def at(table: Tensor) -> Tensor:
        """[B, J] → [B, P]."""
        return table.gather(1, slot)

    into = _factors(problems, behind.sender, behind.device, device)
    out = _factors(problems, behind.device, device, all_devices)
    after = finish_stage(problems, number, before, behind, place, at(device), *map(at, into))
    rest = finish_stage(problems, number + 1, place, after, end, at(all_devices), *map(at, out))
    leaving = place.crossing_bytes * at(_least_out(problems, stage, behind.device, device))
    pace = micro * (end.compute_s - place.compute_s) / (problems.devices - after.device)
    span = after.busy_s + 2 * leaving + torch.maximum(pace, 2 * (micro - 1) * leaving)
    least = torch.maximum(after.span_s, span) + after.exposed_s.clamp(min=0.0)
    later = problems.stages - 1 - number  # stages, none of which has more than the devices that the others leave
    held = (end.stash_bytes - place.stash_bytes) / (problems.devices - after.device - later + 1).clamp(min=1)
    held = held + problems.state_factor * (end.weights_bytes - place.weights_bytes)
    fits = (after.fits > 0) & (held <= later * problems.memory * (1 + ROUNDING))
    least = torch.where(fits, least, torch.inf)
    exact = torch.where(rest.fits > 0, rest.span_s + rest.exposed_s, torch.inf)
    return PivotCosts(
        bound_s=torch.where(number == problems.stages - 2, exact, least),
        stage_s=micro * (after.busy_s - behind.busy_s),
        leaving_s=2 * micro * leaving,
        rest_s=pace,
        all_reduce_s=rest.all_reduce_s,
        transfer_s=rest.transfer_s,
        balance=rest.fastest_s / rest.slowest_s.clamp(min=torch.finfo(torch.float64).tiny),
    )


def finish_current(problems: Pivots, states: Chosen, place: Place, device: Tensor) -> Behind:
    """The stages up to the current one, [B, 1] each, if it ends at a place and the next begins on a device, [B, 1]."""
    before, behind = Place(*states.place.unsqueeze(2).unbind(1)), Behind(*states.behind.unsqueeze(2).unbind(1))
    speeds = _factors(problems, behind.sender, behind.device, device)
    return finish_stage(problems, states.step.unsqueeze(1), before, behind, place, device, *speeds)


def final_length_s(problems: Pivots, states: Chosen) -> Tensor:
    """[B] length L of complete plans, infinite where a stage does not fit the memory."""
    device = problems.end.new_full((len(states.step), 1), problems.devices)
    after = finish_current(problems, states, Place(*problems.end.view(-1, 1, 1)), device)
    return torch.where(after.fits > 0, after.span_s + after.exposed_s, torch.inf).squeeze(1)


def of_stage(table: Tensor, stage: Tensor) -> Tensor:
    """[B, …] rows of a table [S-1, …]; not copied where all states are at one stage, as they are while playing."""
    if len(stage) and bool((stage == stage[0]).all()):
        return table[stage[0]].expand(len(stage), *table.shape[1:])
    return table[stage]


def places(problems: Pivots, stage: Tensor) -> Place:
    """Where the pivots of each row's cut are, [B, P] each."""
    return Place(*of_stage(problems.place, stage).unbind(1))


def _factors(problems: Pivots, sender: Tensor, device: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """Seconds per byte of the transfer to a stage on device … stop-1 from one on sender …, and of its all-reduce."""
    speeds = problems.per_node, problems.inter_over_intra
    return (
        transfer_factor(sender, device, stop, *speeds) / problems.inter,
        all_reduce_factor(device, stop, *speeds) / problems.inter,
    )


def _least_out(problems: Pivots, stage: Tensor, first: Tensor, device: Tensor) -> Tensor:
    """[B, J] seconds per byte of the transfer over each candidate device cut, the least over the next one's."""
    following = (stage + 1).clamp(max=problems.stages - 2)
    stop = of_stage(problems.device, following).unsqueeze(1)
    factor, _ = _factors(problems, first.unsqueeze(2), device.unsqueeze(2), stop)
    least: Tensor = torch.where(stop > device.unsqueeze(2), factor, torch.inf).amin(2)
    return torch.where(least.isfinite(), least, 0.0)
