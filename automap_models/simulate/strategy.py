"""The price of a strategy: its stages' costs (cost.stage_costs), played in the order of its schedule.

    rank 0   F F F F . . . . . I I I I | gradients | update
    rank 1   . F F F F . . I I I I     | gradients |
             └──────── simulate.replay ──────────┘

The step ends when the last rank has run its passes and its gradients are summed, and all have updated their weights.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate, StepParts
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_times import DEFAULT_RUNTIME, Runtime, model_flop
from automap_models.cost.stage_costs import StageCosts, stage_costs
from automap_models.simulate.replay import rank_ends


def strategy_estimate(
    work: ModelWork, strategy: Strategy, cluster: Cluster, device: Device, runtime: Runtime = DEFAULT_RUNTIME
) -> Estimate:
    """What a strategy costs on a cluster.

    Args:
        work: of the model, see hlo.model_work.
        strategy: how it is trained.
        cluster: on what.
        device: of the cluster, with constants of training steps (`device.step`).
        runtime: how the framework runs it.

    Raises:
        BadInput: the strategy divides the model or the cluster otherwise than these can be divided, or the device has
            no constants or no peak for the precision.
    """
    strategy.require_cluster(cluster)
    strategy.require_model(work.shape)
    costs = stage_costs(work, strategy, cluster, device, runtime)
    parts = _parts(strategy, costs)
    step_s = parts.total
    tokens = strategy.global_batch * work.shape.sequence
    flop = strategy.global_batch * sum(
        work.order.count(i) * model_flop(layer.kernels) for i, layer in enumerate(work.layers)
    )
    peak = device.matrix_peak("float8" if strategy.precision == "fp8" else strategy.dtype)
    passes_s = step_s - parts.data_parallel - parts.optimizer
    return Estimate(
        strategy=strategy,
        model=work.shape.name,
        cluster=cluster.name,
        device=device.name,
        step_s=step_s,
        tokens_per_s_per_device=tokens / step_s / strategy.devices,
        mfu=flop / (step_s * strategy.devices * peak),
        parts=parts,
        bubble_rate=(parts.bubble + parts.transfers) / passes_s,
        memory=costs.memory,
        memory_bytes=cluster.memory,
    )


def require_device(device: Device, strategy: Strategy) -> None:
    """Refuse a device that a strategy cannot be priced on.

    Raises:
        BadInput: it has no constants of training steps, or no peak for the precision.
    """
    _ = device.required_step
    for dtype in (strategy.dtype, *(("float8",) if strategy.precision == "fp8" else ())):
        device.matrix_peak(dtype)


def _parts(strategy: Strategy, costs: StageCosts) -> StepParts:
    """Of the rank whose passes and gradients end last."""
    times, sends = costs.times, _sends(costs)
    ends = _ends(strategy, costs, costs.transfer_s)
    rank = int(np.argmax(ends + costs.data_s))
    on_rank = np.flatnonzero(np.array(costs.rank_of) == rank)

    def spent(amounts: FloatArray) -> float:
        return strategy.micro_batches * float(amounts[..., on_rank].sum())

    idle = float(ends[rank]) - spent(np.array(times.passes)) - spent(sends)
    waiting = 0.0
    if costs.sends_beside and costs.transfer_s.any():
        waiting = float(ends[rank] - _ends(strategy, costs, np.zeros_like(costs.transfer_s))[rank])
    return StepParts(
        compute=spent(times.forward + times.input + times.weight),
        recompute=spent(times.recompute),
        tensor_parallel=spent(times.tensor),
        context_parallel=spent(times.context),
        expert_parallel=spent(times.experts),
        bubble=max(0.0, idle - waiting),
        transfers=spent(sends) + waiting,
        data_parallel=spent(times.gathers) + float(costs.data_s[rank]) + costs.tied_s,
        optimizer=costs.optimizer_s,
    )


def _sends(costs: StageCosts) -> FloatArray:
    """[2, V] seconds in which a virtual stage does nothing but send, forward and backward."""
    sends = np.zeros((2, len(costs.rank_of)))
    if not costs.sends_beside:
        sends[0, :-1] = sends[1, 1:] = costs.transfer_s
    return sends


def _ends(strategy: Strategy, costs: StageCosts, transfer_s: FloatArray) -> FloatArray:
    """[S] when ranks have run their passes."""
    forward, inputs, weights = costs.times.passes
    if strategy.stages == 1:
        return np.array([strategy.micro_batches * float(forward[0] + inputs[0] + weights[0])])
    sends = _sends(costs)
    beside = transfer_s if costs.sends_beside else np.zeros_like(transfer_s)
    passes = (forward + sends[0], inputs + sends[1], weights)
    return rank_ends(strategy.schedule, strategy.micro_batches, strategy.vp, *passes, beside)
