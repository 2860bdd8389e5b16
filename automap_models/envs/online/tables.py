"""The tables and the states of online pipeline planning, batched in torch: values, all float64 or int64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from automap_models.envs.online.pivots import Candidates

ROUNDING = 1e-12
"""Relative error allowed to a difference of prefix sums where a stage is held against the memory."""


class Place(NamedTuple):
    """Places between instructions, tensors of one shape: prefix sums up to there, and what crosses.

    compute_s, forward_s, weights_bytes, stash_bytes: Σ C, F, W, H; variables: number of instructions with W > 0;
    crossing_bytes: A; instructions: how many there are.
    """

    compute_s: Tensor
    forward_s: Tensor
    weights_bytes: Tensor
    stash_bytes: Tensor
    variables: Tensor
    crossing_bytes: Tensor
    instructions: Tensor


class Behind(NamedTuple):
    """What the finished stages come to, tensors of one shape (notation of cost-model.md).

    sender, device: first device of the last finished stage and of the current one; busy_s: Σ u of stages and of the
    transfers between them; hidden_s: Σ B of the same; span_s: what they make of T; exposed_s: max of AR - hidden;
    slowest_s, fastest_s: of their u; transfer_s, all_reduce_s: the largest x and AR; fits: 1 or 0.
    """

    sender: Tensor
    device: Tensor
    busy_s: Tensor
    hidden_s: Tensor
    span_s: Tensor
    exposed_s: Tensor
    slowest_s: Tensor
    fastest_s: Tensor
    transfer_s: Tensor
    all_reduce_s: Tensor
    fits: Tensor


NOTHING = Behind(0, 0, 0, 0, 0, -np.inf, 0, np.inf, 0, 0, 1)  # type: ignore[arg-type]


class Pivots(NamedTuple):
    """The candidate pivots of one problem; all episodes of a batch share them. P pivots a cut, at most J device cuts.

    cut, slot: int64 [S-1, P] instruction, and which of the candidate device cuts; exists: bool [S-1, P]; place: float64
    [S-1, 7, P], the parts of Place; device: float64 [S-1, J], the last one repeated where there are fewer; end: float64
    [7], the place after the last instruction; uses: int64 [T, n+1], how many of the first instructions use each shared
    parameter; copy_bytes: float64 [T] of a copy of each. The scalars are those of problem and cluster; known_s: length
    by which the pivots were pruned, inf where they were not; reward_s: what a plan of 1 s would earn.
    """

    cut: Tensor
    slot: Tensor
    exists: Tensor
    place: Tensor
    device: Tensor
    end: Tensor
    uses: Tensor
    copy_bytes: Tensor
    stages: int
    micro_batches: int
    devices: int
    per_node: Tensor
    inter: float
    inter_over_intra: Tensor
    memory: float
    state_factor: float
    known_s: float
    reward_s: float

    @classmethod
    def from_candidates(cls, candidates: Candidates, reward_s: float) -> Pivots:
        """All candidate pivots of a problem."""
        problem, cuts = candidates.problem, torch.from_numpy(candidates.cuts)
        profile, cluster = problem.profile, problem.cluster
        sums = (profile.C, profile.C_fwd, profile.W, profile.stash, (profile.W > 0).astype(np.float64))
        counted = np.arange(1.0, len(profile) + 1)
        through = torch.from_numpy(np.stack([*(np.cumsum(array) for array in sums), profile.A, counted]))
        end = through[:, -1].clone()
        end[Place._fields.index("crossing_bytes")] = 0.0
        shared = profile.shared_parameters
        uses = np.zeros((len(shared), len(profile) + 1), dtype=np.int64)
        for own, parameter in zip(uses, shared, strict=True):
            own[np.array(parameter.instructions) + 1] = 1
        most = max(devices.size for devices in candidates.device_cuts)
        slot = torch.arange(most).repeat_interleave(len(cuts)).expand(problem.stages - 1, -1)
        number = torch.tensor([devices.size for devices in candidates.device_cuts])
        padded = [np.pad(devices, (0, most - devices.size), mode="edge") for devices in candidates.device_cuts]
        return cls(
            cut=cuts.repeat(most).expand_as(slot),
            slot=slot,
            exists=slot < number.unsqueeze(1),
            place=through[:, cuts].repeat(1, most).expand(problem.stages - 1, -1, -1),
            device=torch.from_numpy(np.stack(padded)).double(),
            end=end,
            uses=torch.from_numpy(uses.cumsum(axis=1)),
            copy_bytes=torch.tensor([parameter.nbytes for parameter in shared], dtype=torch.float64),
            stages=problem.stages,
            micro_batches=problem.micro_batches,
            devices=cluster.devices,
            per_node=torch.tensor(float(cluster.devices_per_node), dtype=torch.float64),
            inter=cluster.inter,
            inter_over_intra=torch.tensor(cluster.inter / cluster.intra, dtype=torch.float64),
            memory=cluster.memory,
            state_factor=problem.state_factor,
            known_s=float("inf"),
            reward_s=reward_s,
        )

    def take(self, index: Tensor) -> Pivots:
        """The same: all episodes share them."""
        return self

    @property
    def ideal_s(self) -> float:
        """ΣC·M / D: perfect speed-up without any communication."""
        return float(self.end[0]) * self.micro_batches / self.devices

    @property
    def number(self) -> int:
        """Pivots of all cuts together."""
        return int(self.exists.sum())

    def within(self, known_s: float) -> Pivots:
        """Only the pivots that a plan shorter than a known one can have.

        All before a pivot runs on d devices, so some stage there has M·u ≥ M·ΣC/d, and L ≥ M·u; likewise behind it.
        """
        device = self.device.gather(1, self.slot)
        compute = self.place[:, 0]
        least = torch.maximum(compute / device, (self.end[0] - compute) / (self.devices - device))
        keep = self.exists & (self.micro_batches * least <= known_s * (1.0 + ROUNDING))
        size = int(keep.sum(1).max().clamp(min=1))
        order = keep.int().argsort(dim=1, descending=True, stable=True)[:, :size]
        return self._replace(
            cut=self.cut.gather(1, order),
            slot=self.slot.gather(1, order),
            exists=keep.gather(1, order),
            place=self.place.gather(2, order.unsqueeze(1).expand(-1, len(self.end), -1)),
            known_s=known_s,
        )


class Chosen(NamedTuple):
    """B states: pivots int64 [B, S-1, 2], instruction and device cuts, -1 where not chosen yet; step int64 [B]; place
    float64 [B, 7], the parts of Place at the last cut; behind float64 [B, 11], the parts of Behind.
    """

    pivots: Tensor
    step: Tensor
    place: Tensor
    behind: Tensor

    def take(self, index: Tensor) -> Chosen:
        """The states selected by an index or a mask."""
        return Chosen(*(tensor[index] for tensor in self))

    def distinct(self) -> tuple[Chosen, Tensor]:
        """Each different state once, and int64 [B] which of them each state is; the pivots say all about a state."""
        _, which = torch.unique(self.pivots.flatten(1), dim=0, return_inverse=True)
        first = torch.zeros(int(which.max()) + 1, dtype=torch.int64)
        first[which] = torch.arange(len(which))
        return self.take(first), which
