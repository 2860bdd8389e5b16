"""What the plans of a batch take: Auto-MAP's length L, or the simulated step under a schedule.

    length              L = T + R (cost.staged_torch): the closed form, for which exact searches exist
    1f1b, 1f1b-deep,    the step that simulate.engine would draw: passes in the order of the schedule, one message at a
    gpipe               time on a link, gradients reduced while the last backward pass goes on

A schedule also sets how many micro-batches a stage holds, and so what fits. Encoded problems are of no kind of device
(StagedProblem.device). Nor do they say which part of a backward pass makes gradients of weights: schedules that split
it are no objectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.schedules import warm_up
from automap_models.cost.overlap import exposed_s
from automap_models.cost.staged_torch import BatchCost
from automap_models.simulate.rounds import PlanTimes, plan_steps

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


def alike(stages: Tensor, micro_batches: Tensor) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """S, M and the rows that have them, of [B] each."""
    sizes = torch.stack([stages.long(), micro_batches.long()], 1).cpu().numpy()
    distinct, number = np.unique(sizes, axis=0, return_inverse=True)
    for n, (own, micro) in enumerate(distinct.tolist()):
        yield own, micro, np.flatnonzero(number.reshape(-1) == n)


def simulated_steps(cost: BatchCost, devices: Tensor, schedule: str, micro_batches: Tensor) -> Tensor:
    """[B] the simulated steps of plans.

    Args:
        cost: theirs.
        devices, micro_batches: as cost.staged_torch.pipeline_cost_batch has them.
        schedule: a key of `core.pass_orders.WARM_UPS`.
    """
    used = devices[:, 1:] > devices[:, :-1]
    given = (cost.forward, cost.backward, cost.transfer, cost.all_reduce)
    times, steps = [tensor.detach().cpu().numpy().astype(np.float64) for tensor in given], np.zeros(len(devices))
    for stages, micro, rows in alike(used.sum(1), micro_batches):
        forward, backward, transfer, reduce = (of[rows, :stages] for of in times)
        late_s = exposed_s(reduce, backward, 1.0)
        own = PlanTimes(forward, backward, transfer[:, : stages - 1], late_s, np.zeros_like(late_s))
        nothing = np.zeros((rows.size, 0)), np.zeros((rows.size, 0, stages), dtype=bool)
        steps[rows] = plan_steps(schedule, micro, own, *nothing)
    return torch.from_numpy(steps).to(cost.forward)
