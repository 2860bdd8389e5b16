"""What one device holds under a strategy: training state, gathered weights, and saved activations.

Bytes a parameter, of which ZeRO divides more with every stage by the ranks of data and context parallelism, or by those
of each group of them (`Strategy.shards`):

    precision           weights   gradients   optimiser (Adam; others: core.tuning)
    fp32                4         4           8 = two moments
    fp16, bf16, fp8     2         4           12 = master weight, two moments
    the same            2         2           16 = these, and the gradient in fp32
    the same            2         2 + 4       12
    the same, ZeRO-3    4         4           8, of PyTorch's FSDP: it casts what it gathers
    divided by ZeRO     3         2, 3        1, 2, 3

The first two rows of 16 bits are those of Megatron-LM's distributed optimizer, 6 + 12/d and 4 + 16/d bytes on d ranks;
the third is DeepSpeed's BF16_Optimizer, which adds gradients up in fp32 beside those that the backward pass writes.

Activations are counted from the order of the schedule (Schedule.most_held), per rank of the pipeline:

    rank r   Σ over its virtual stages of what they save of a micro-batch × micro-batches in flight, at the fullest time
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from automap_models.core.device import Device, HostMemory
from automap_models.core.estimate import DeviceMemory
from automap_models.core.passes import Schedule, build_schedule
from automap_models.core.schedules import repeating_micro_batches
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput


def device_memory(
    strategy: Strategy,
    parameters: Sequence[tuple[float, float]],
    frozen_bytes: Sequence[tuple[float, float]],
    saved_bytes: Sequence[float],
    kept_bytes: Sequence[float],
    gathered_bytes: Sequence[float],
    temporary_bytes: Sequence[float],
    trained_bytes: Sequence[float],
    runtime_bytes: float = 0.0,
) -> tuple[DeviceMemory, ...]:
    """[pp] what a device of each rank of the pipeline holds.

    Args:
        strategy: how the model is trained.
        parameters: [pp] of each rank on one device: divided by tp, without those of experts; and of experts, divided by
            ep and `Strategy.expert_tensor`, which `Strategy.expert_data` devices hold.
        frozen_bytes: [pp] of what a rank holds and does not train, likewise; ZeRO-3 divides it, too.
        saved_bytes: [pp·vp] what a virtual stage saves of a micro-batch from the forward to the backward pass, on one
            device, with the strategy's recomputation.
        kept_bytes: [pp·vp] what of that it keeps from the input-gradient to the weight-gradient pass, of schedules that
            split the backward pass.
        gathered_bytes: [pp] of the largest unit that ZeRO-3 gathers on a rank.
        temporary_bytes: [pp] what a rank needs beside that while a pass runs.
        trained_bytes: of the weight, the gradient and the optimiser's state of a parameter.
        runtime_bytes: of the driver, libraries and buffers, on every device.
    """
    activations = laid_out(strategy).most_held(saved_bytes, kept_bytes)
    others, of_experts = np.transpose(parameters)
    state = np.array(state_bytes(strategy, others, of_experts, trained_bytes)).T.tolist()
    shares = frozen_shares(strategy)
    return tuple(
        DeviceMemory(
            weights + shares[0] * frozen[0] + shares[1] * frozen[1],
            gradients,
            optimizer,
            gathered=gathered,
            activations=saved,
            temporary=needed,
            runtime=runtime_bytes,
        )
        for (weights, gradients, optimizer), frozen, saved, gathered, needed in zip(
            state, frozen_bytes, activations, gathered_bytes, temporary_bytes, strict=True
        )
    )


def laid_out(strategy: Strategy) -> Schedule:
    """As many of a strategy's passes as show what ranks hold."""
    micro_batches, _ = repeating_micro_batches(strategy.schedule, strategy.pp, strategy.micro_batches)
    return build_schedule(strategy.schedule, strategy.pp, micro_batches, strategy.vp)


def state_bytes(
    strategy: Strategy, others: float, of_experts: float, trained_bytes: Sequence[float]
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and the optimiser's state of so many parameters without those of experts, and those,
    each of `trained_bytes`.

    What ZeRO divides from a stage on a device has the ranks' share of; the others are whole.
    """
    total = others + of_experts
    shared = others / strategy.shards + of_experts / strategy.expert_shards
    weight, gradient, optimizer = trained_bytes
    return (
        weight * (total if strategy.zero < 3 else shared),
        gradient * (total if strategy.zero < 2 else shared),
        optimizer * (total if strategy.zero < 1 else shared),
    )


def frozen_shares(strategy: Strategy) -> tuple[float, float]:
    """Shares that a device holds of what its rank does not train, without experts and of them."""
    return (1.0 / strategy.shards, 1.0 / strategy.expert_shards) if strategy.zero == 3 else (1.0, 1.0)


def host_of(device: Device, strategy: Strategy) -> HostMemory | None:
    """The memory of the hosts where a strategy's optimiser lies; None where it is on the devices.

    Raises:
        BadInput: the device does not say it.
    """
    blocks = "offload" in strategy.recompute_kinds
    if device.host_memory is None and (blocks or strategy.offload != "none"):
        name, other = ("recompute", "full") if blocks else ("offload", "none")
        do = f"give `host_memory` in its file, or take {name} {other}"
        raise BadInput(f"{device.name} does not say the memory of its hosts", where=f"`{name}`", do=do)
    return None if strategy.offload == "none" else device.host_memory
