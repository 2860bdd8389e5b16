"""What one device holds under a strategy: training state, gathered weights, and saved activations.

Bytes a parameter, of which ZeRO divides more with every stage by the ranks of data and context parallelism:

    precision           weights   gradients   optimiser (Adam)
    fp32                4         4           8 = two moments
    fp16, bf16, fp8     2         4           12 = master weight, two moments
    the same            2         2           16 = these, and the gradient in fp32
    the same            2         2 + 4       12
    divided by ZeRO     3         2, 3        1, 2, 3

The first two rows of 16 bits are those of Megatron-LM's distributed optimizer, 6 + 12/d and 4 + 16/d bytes on d ranks;
the third is DeepSpeed's BF16_Optimizer, which adds gradients up in fp32 beside those that the backward pass writes.

Activations are counted from the order of the schedule (PassTable.most_held), per rank of the pipeline:

    rank r   Σ over its virtual stages of what they save of a micro-batch × micro-batches in flight, at the fullest time
"""

from __future__ import annotations

from collections.abc import Sequence

from automap_models.core.estimate import DeviceMemory
from automap_models.core.passes import PassTable, pass_table
from automap_models.core.schedules import repeating_micro_batches
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput

GRADIENT_BYTES = (2, 4, 6)
"""Of a parameter: added up in 16 bits, in 32, or in 32 beside those of 16 that the backward pass writes."""


def device_memory(
    strategy: Strategy,
    parameters: Sequence[float],
    saved_bytes: Sequence[float],
    kept_bytes: Sequence[float] = (),
    gathered_parameters: Sequence[float] = (),
    gradient_bytes: int = 4,
    expert_parameters: Sequence[float] = (),
    temporary_bytes: Sequence[float] = (),
    runtime_bytes: float = 0.0,
) -> tuple[DeviceMemory, ...]:
    """[pp] what a device of each rank of the pipeline holds.

    Args:
        strategy: how the model is trained.
        parameters: [pp·vp] of each virtual stage on one device, divided by tp, without those of experts.
        saved_bytes: [pp·vp] what a virtual stage saves of a micro-batch from the forward to the backward pass, on one
            device, with the strategy's recomputation.
        kept_bytes: [pp·vp] what of that it keeps from the input-gradient to the weight-gradient pass, of schedules that
            split the backward pass; empty is all of it.
        gathered_parameters: [pp] of the largest unit that ZeRO-3 gathers on a rank; empty is none.
        gradient_bytes: a parameter, one of GRADIENT_BYTES, where precision is not fp32.
        expert_parameters: [pp·vp] of experts, divided by ep and `Strategy.expert_tensor`, which
            `Strategy.expert_data` devices hold; empty is none.
        temporary_bytes: [pp·vp] what a virtual stage needs beside that while a pass of it runs; empty is none.
        runtime_bytes: of the driver, libraries and buffers, on every device.

    Raises:
        BadInput: figures of another number of stages, or gradients of other bytes.
    """
    experts, temporary = (
        given if len(given) else [0.0] * strategy.stages for given in (expert_parameters, temporary_bytes)
    )
    kept_bytes = kept_bytes if len(kept_bytes) else saved_bytes
    figures = {
        "parameters": parameters,
        "saved_bytes": saved_bytes,
        "kept_bytes": kept_bytes,
        "expert_parameters": experts,
        "temporary_bytes": temporary,
    }
    for where, given in figures.items():
        if len(given) != strategy.stages:
            what = f"{len(given)} figures for {strategy.stages} virtual stages"
            raise BadInput(what, where=f"`{where}`", do="give one each")
    if gradient_bytes not in GRADIENT_BYTES:
        raise BadInput(f"gradients of {gradient_bytes} bytes", where="`gradient_bytes`", do="give 2, 4 or 6")
    table = laid_out(strategy)
    activations = table.most_held(saved_bytes, kept_bytes)
    held = [[0.0, 0.0, 0.0] for _ in range(strategy.pp)]
    for rank, others, of_experts, needed in zip(table.rank_of.tolist(), parameters, experts, temporary, strict=True):
        held[rank] = [held[rank][0] + others, held[rank][1] + of_experts, max(held[rank][2], needed)]
    return tuple(
        DeviceMemory(
            *state_bytes(strategy, others, of_experts, gradient_bytes),
            gathered=gathered_bytes(strategy, gathered),
            activations=saved,
            temporary=needed,
            runtime=runtime_bytes,
        )
        for (others, of_experts, needed), saved, gathered in zip(
            held, activations, gathered_parameters or [0.0] * strategy.pp, strict=True
        )
    )


def laid_out(strategy: Strategy) -> PassTable:
    """As many of a strategy's passes as show what ranks hold."""
    micro_batches, _ = repeating_micro_batches(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    return pass_table(strategy.schedule, strategy.pp, micro_batches, strategy.vp)


def state_bytes(
    strategy: Strategy, others: float, of_experts: float, gradient_bytes: int = 4
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and the optimiser's state of so many parameters without those of experts, and those.

    What ZeRO divides from a stage on a device has the ranks' share of; the others are whole.
    """
    whole = others + of_experts
    shared = others / (strategy.dp * strategy.cp) + of_experts / strategy.expert_data
    weight, gradient, optimizer = parameter_bytes(strategy, gradient_bytes)
    return (
        weight * (whole if strategy.zero < 3 else shared),
        gradient * (whole if strategy.zero < 2 else shared),
        optimizer * (whole if strategy.zero < 1 else shared),
    )


def gathered_bytes(strategy: Strategy, gathered_parameters: float) -> float:
    """Bytes of the largest unit that ZeRO-3 gathers, of so many parameters."""
    return parameter_bytes(strategy)[0] * gathered_parameters if strategy.zero == 3 else 0.0


def parameter_bytes(strategy: Strategy, gradient_bytes: int = 4) -> tuple[int, int, int]:
    """Bytes of the weight, the gradient and the optimiser's state of a parameter, undivided."""
    if strategy.precision == "fp32":
        return 4, 4, 8
    return (2, 2, 16) if gradient_bytes == 2 else (2, gradient_bytes, 12)
