"""How a framework runs a strategy, which the strategy does not say: the program's part of the clock, beside
the device's (Device.step). Runtimes are files of their own (formats.runtime_yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from automap_models.core.cluster import RESERVE
from automap_models.core.strategy import ONCE_A_NODE, Dispatcher, Strategy
from automap_models.errors import BadInput

Selects = Literal["products", "attention"]
CAST_GRADIENT_BYTES = 6.0
"""Moved per gradient that is read in 16 bits and written in 32, as the models are traced."""

_NVL8 = frozenset({"a100-40", "a100", "a800", "h20", "h100", "h100-96", "h200", "h800", "b200", "b300"})
DISPATCHER_DEVICES: Mapping[Dispatcher, frozenset[str]] = {"deepep": _NVL8, "hybridep": _NVL8 | {"gb200", "gb300"}}
"""What sends tokens once a node, the preferred one first → the devices that it runs on, as Megatron-Bridge says
(training/flex_dispatcher_backend.py)."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How a framework runs a strategy, which the strategy does not say.

    Attributes:
        name: of the file that it comes from; empty of programs in general.
        flash: whether attention cores are flash kernels.
        tensor_overlap: share of the sums of tensor parallelism that goes on beside products, as async tensor
            parallelism of torch and user buffers of Transformer Engine have it; none where the processor beside a
            device takes twice as long as x86 hosts to launch the pieces of products that this takes.
        gradient_bytes: of a parameter's gradient that adds up over micro-batches, 2 where it does in
            16 bits, 4 where in 32, 6 where in 32 beside those of 16 that the backward pass writes; then those in 32 are
            summed over devices, otherwise those of 16.
        buffer_bytes: of memory that it keeps on every device for what ZeRO reduces and gathers.
        gathers_a_layer: collectives in which ZeRO-3 gathers a block, and reduces its gradients: FSDP makes one of all
            its parameters, DeepSpeed one of each.
        prefetches: whether ZeRO-3 gathers the next layer's weights while it computes, as FSDP does.
        gradient_moved_bytes: of a parameter's gradient in every micro-batch, beyond what its product writes: 6 where it
            is cast to fp32, or added up in 16 bits; 18 where it is cast and then added to one in fp32; 0 where the
            product itself adds to what is there (gradient accumulation fusion of Megatron).
        casts_weights_once: whether weights are cast to 8 bits once a step, and not for every micro-batch; frozen ones
            lie there in 8 bits (`fp8_param_gather` of Megatron-Bridge).
        hopper_attention: whether flash kernels are written for Hopper and later devices, as cuDNN's are: there they are
            faster than those of FlashAttention-2, 1.5 to 2.0 times forward and 1.5 to 1.75 times backward (Shah et al.,
            2407.08608, section 4.1).
        flash_2: whether they are those of FlashAttention-2, which no device after H100 runs faster than that does, and
            devices before it at half of their peak.
        loss_copies: logits in fp32 that are held at once in the backward pass of the loss: Megatron's writes gradients
            in place of the softmax, and holds the logits besides.
        tensor_loss_copies: the same where tensor parallelism divides the vocabulary.
        holds_logits: whether logits of a micro-batch are held until there are those of the next one.
        dispatcher: how tokens go to experts where a strategy does not say.
        exchange_shares, dispatch_shares: of the bandwidth inside a node and across nodes that tokens on their way to
            experts reach, which go other ways than sums do: once to every expert, and once a node; None is the
            device's shares of collectives.
        expert_overlap: share of the way of tokens to experts that goes on beside computation.
        selects: what selective recomputation runs again where attention is a flash kernel: every second product
            (torchtitan), or attention (Megatron's core_attn).
        routing: share of the bytes that tokens move on a device on their way to experts and back, beside those of a
            framework that has a kernel for every step of it, and fuses none.
        imbalance: tokens for the experts of the fullest device over the mean of all, 1 or more; the others wait for it.
        stops_early: whether a layer that is recomputed ends before its last product, whose result nothing reads again:
            XLA leaves out what nobody reads, and PyTorch's checkpoints stop there unless they are reentrant
            (`set_checkpoint_early_stop`, since 2.1).
        joins: whether products that read one value are one product: queries, keys and values, or a perceptron's gate
            and what it gates.
        experts_apart: whether a product of several experts, and its casts, are a kernel for each expert of a device, as
            GroupedLinear of Transformer Engine has it (its pull request 853).
        compute: seconds of kernels over those that the device's constants tell, which are of programs whose small
            operations are fused.
        gradient_overlap: share of the communication of data parallelism that goes on beside computation; None is the
            device's.
        exposes_gathers: whether ZeRO-1 and 2 scatter gradients and gather weights one after the other, beside nothing;
            and gradients without ZeRO, too, go beside nothing where messages of a pipeline, or sums of tensor
            parallelism across nodes, wait in the same queue of the device (CUDA_DEVICE_MAX_CONNECTIONS=1).
        bucket_bytes: of the 16-bit gradients that are summed together; a larger matrix is alone. None are one sum.
        shard_s: that gradients and weights take for each of the devices among which ZeRO-1 or 2 divides, where they are
            reduced to one after the other and broadcast from it, beside nothing.
        eager: whether norms, positions and gates are several kernels, of which each moves its bytes, and saves what it
            reads.
        frees_gradients: whether gradients are freed after an update, as by `zero_grad` of PyTorch from 2.0 on: where
            there is no pipeline, and one micro-batch a step, a layer has then its activations or its gradients.
        copies_moments: whether an update holds a copy of AdamW's second moments, all of them at once, as PyTorch's does
            (`foreach`).
        casts_gathered: whether ZeRO-3 on several ranks divides weights in fp32 and casts to 16 bits what it gathers, as
            PyTorch's FSDP does; others hold weights in 16 bits beside those.
        saves_gathered: whether tokens that sequence parallelism gathers for a product are saved whole, and not gathered
            again in the backward pass.
        weighs_within: whether a token's experts are weighted before their last product, whose result the backward pass
            then needs not: Megatron-LM has it so since its commit 2659630721 of April 2025.
        host_s, mixture_host_s: of every operation of a layer, and of a layer with experts, whose routing the host waits
            for: as long as the host takes to launch them a pass takes at least.
        sum_host_s: that the host waits for a sum of tensor parallelism, for each rank of it, where there is a pipeline,
            too: passes take at least as long as the host.
        sum_across_s: that a sum of tensor parallelism over several nodes takes longer, for each rank of it.
        graphed: share of the operations that the host launches together with others, by CUDA graphs.
        offloads_gradients: whether gradients that ZeRO divides lie beside an optimiser's state in the host's memory.
        reserve: share of a device's memory by which estimates may fall short: 95 % of the devices whose memory its rows
            state hold less than an estimate that leaves it free.

    Raises:
        BadInput: gradients of other bytes.
    """

    name: str = ""
    flash: bool = True
    tensor_overlap: float = 0.0
    gradient_bytes: int = 4
    buffer_bytes: float = 0.0
    gathers_a_layer: int = 1
    prefetches: bool = True
    gradient_moved_bytes: float = CAST_GRADIENT_BYTES
    casts_weights_once: bool = False
    hopper_attention: bool = False
    flash_2: bool = False
    loss_copies: float = 2.0
    tensor_loss_copies: float = 2.0
    holds_logits: bool = False
    dispatcher: Dispatcher = "alltoall"
    exchange_shares: tuple[float, float] | None = None
    dispatch_shares: tuple[float, float] | None = (0.6, 0.7)
    expert_overlap: float = 0.0
    selects: Selects = "products"
    routing: float = 1.0
    imbalance: float = 1.0
    stops_early: bool = False
    joins: bool = False
    experts_apart: bool = False
    compute: float = 1.0
    gradient_overlap: float | None = None
    exposes_gathers: bool = False
    bucket_bytes: float = 0.0
    shard_s: float = 0.0
    eager: bool = False
    frees_gradients: bool = False
    copies_moments: bool = False
    casts_gathered: bool = False
    saves_gathered: bool = False
    weighs_within: bool = False
    host_s: float = 0.0
    mixture_host_s: float = 0.0
    sum_host_s: float = 0.0
    sum_across_s: float = 0.0
    graphed: float = 0.0
    offloads_gradients: bool = False
    reserve: float = RESERVE

    def __post_init__(self) -> None:
        if self.gradient_bytes not in (2, 4, 6):
            raise BadInput(f"gradients of {self.gradient_bytes} bytes", where="`gradient_bytes`", do="give 2, 4 or 6")

    def once_a_node(self, strategy: Strategy) -> bool:
        """Whether a token of a strategy goes once to each node that has experts of it."""
        return (strategy.dispatcher or self.dispatcher) in ONCE_A_NODE

    def expert_shares(self, strategy: Strategy) -> tuple[float, float] | None:
        """Of the bandwidth inside a node and across, that tokens of a strategy reach; None is the device's shares."""
        return self.dispatch_shares if self.once_a_node(strategy) else self.exchange_shares

    def overlap(self, of_device: float) -> float:
        """Share of the communication of data parallelism that goes on beside computation, where it has its own."""
        return of_device if self.gradient_overlap is None else self.gradient_overlap


DEFAULT_RUNTIME = Runtime()
