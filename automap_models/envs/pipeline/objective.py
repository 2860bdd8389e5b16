"""What the plans of a batch take: Auto-MAP's length L, or the simulated step under a schedule.

    length              L = T + R (cost.staged_torch): the closed form, for which exact searches exist
    1f1b, 1f1b-deep,    the step that simulate.engine would draw: passes in the order of the schedule, one message at a
    gpipe               time on a link, gradients reduced while the last backward pass goes on

A schedule also sets how many micro-batches a stage holds, and so what fits. Encoded problems do not say how many bytes
their parameters are: the gradients of a stage are one bucket, which is ready when the backward pass of the first of its
points that has parameters is done, as cost.overlap has it of a stage that holds less than a bucket. Nor do they say
which part of a backward pass makes gradients of weights: schedules that split it are no objectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.schedules import warm_up
from automap_models.cost.staged_torch import BatchCost, equal_parts
from automap_models.simulate.rounds import PlanTimes, stage_ends

LENGTH = "length"
OBJECTIVES = (LENGTH, *WARM_UPS)


@lru_cache(maxsize=4096)
def _warm_ups(schedule: str, stages: int, micro_batches: int, width: int) -> NDArray[np.int64]:
    """[width] of the stages of one pipeline; 1 beyond them."""
    depth = np.ones(width, dtype=np.int64)
    depth[:stages] = [warm_up(schedule, s, stages, micro_batches) for s in range(stages)]
    return depth


def warm_ups(schedule: str, stages: Tensor, micro_batches: Tensor, width: int) -> Tensor:
    """int64 [B, width] forward passes of each stage before its first backward pass: micro-batches that it holds.

    Args:
        schedule: a key of `core.pass_orders.WARM_UPS`.
        stages, micro_batches: [B].
    """
    sizes = zip(stages.long().tolist(), micro_batches.long().tolist(), strict=True)
    rows = [_warm_ups(schedule, own, micro, width) for own, micro in sizes]
    return torch.from_numpy(np.stack(rows) if rows else np.ones((0, width), dtype=np.int64)).to(stages.device)


def gradients_ready(arrays: Tensor, points: Tensor, parts: Tensor) -> Tensor:
    """[B, S] when the gradients of a stage are there, counted from the end of its last backward pass; 0 or less.

    Args:
        arrays: [B, 5, P] as in cost.staged_torch.pipeline_cost_batch.
        points: int64 [B, S+1] last point of each stage, from -1.
        parts: [B, S] into which a micro-batch is split (cost.staged_torch.equal_parts).
    """
    count = arrays.shape[2]
    weights, backward = arrays[:, 2], functional.pad(arrays[:, 0] - arrays[:, 3], (1, 0))
    holds = weights > functional.pad(weights, (1, 0))[:, :-1]
    number = torch.where(holds, torch.arange(count, device=arrays.device), count)
    following = functional.pad(number.flip(1).cummin(1).values.flip(1), (0, 1), value=count)
    begin, end = points[:, :-1] + 1, points[:, 1:] + 1
    first = torch.minimum(following.gather(1, begin), end)
    return -(backward.gather(1, first) - backward.gather(1, begin)) / parts


def links_shared(devices: Tensor, per_node: Tensor) -> Tensor:
    """bool [B, S] whether a stage's all-reduce uses the link to the stage before: cost.staged.shares_link.

    Args:
        devices: [B, S+1] first device of each stage, and of those unused their number.
        per_node: [B].
    """
    node_of_first = torch.floor(devices[:, :-1] / per_node.unsqueeze(1))
    node_of_last = torch.floor((devices[:, 1:] - 1) / per_node.unsqueeze(1))
    across = node_of_last > node_of_first
    crosses = node_of_last[:, 1:] > node_of_first[:, :-1]
    return functional.pad(across[:, 1:] | ~crosses, (1, 0), value=False)


def alike(stages: Tensor, micro_batches: Tensor) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """S, M and the rows that have them, of [B] each."""
    sizes = torch.stack([stages.long(), micro_batches.long()], 1).cpu().numpy()
    distinct, number = np.unique(sizes, axis=0, return_inverse=True)
    for n, (own, micro) in enumerate(distinct.tolist()):
        yield own, micro, np.flatnonzero(number.reshape(-1) == n)


def simulated_steps(
    cost: BatchCost,
    arrays: Tensor,
    points: Tensor,
    devices: Tensor,
    per_node: Tensor,
    schedule: str,
    micro_batches: Tensor,
    samples: Tensor | None = None,
) -> Tensor:
    """[B] the simulated steps of plans.

    Args:
        cost: theirs.
        arrays, points, devices, per_node, micro_batches, samples: as cost.staged_torch.pipeline_cost_batch has them.
        schedule: a key of `core.pass_orders.WARM_UPS`.
    """
    used = devices[:, 1:] > devices[:, :-1]
    replicas = (devices[:, 1:] - devices[:, :-1]).clamp(min=1)
    parts = equal_parts(replicas, None if samples is None else samples.unsqueeze(1))
    late = gradients_ready(arrays, points, parts) + cost.all_reduce
    given = (cost.forward, cost.backward, cost.transfer, cost.all_reduce, late)
    times = [tensor.detach().cpu().numpy().astype(np.float64) for tensor in given]
    shares, steps = links_shared(devices, per_node).cpu().numpy(), np.zeros(len(devices))
    for stages, micro, rows in alike(used.sum(1), micro_batches):
        forward, backward, transfer, reduce, late_s = (of[rows, :stages] for of in times)
        own = PlanTimes(forward, backward, transfer[:, : stages - 1], reduce, late_s, shares[rows, :stages])
        nothing = np.zeros((rows.size, 0)), np.zeros((rows.size, 0, stages), dtype=bool)
        steps[rows] = stage_ends(schedule, micro, own, *nothing).max(axis=1)
    return torch.from_numpy(steps).to(arrays)
