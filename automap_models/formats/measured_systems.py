"""What the name of a training system says of a measured step, where its row leaves it open.

Rows name the system and perhaps its year, `Megatron-LM 2021`. SYSTEMS holds what such a system did by default, for
everybody who measured it. Nothing in it is of one source or one model, and no number in it is fitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SequenceParallel = Literal["never", "with tp", "with selective recomputation"]
Remainder = Literal["ends", "last"]
"""Which stages have fewer layers where they do not divide: the first and the last one, or only the last ones."""
TODAY = 9999
"""Year of a system whose name holds none, but for those that hardly anybody runs any more."""


_DEEPSPEED_MOVED = {"bf16": 18.0}
"""The same optimizers: BF16_Optimizer.update_hp_grads casts a gradient to fp32, 2 + 4 bytes, and adds it, 4 + 4 + 4;
gradients in fp16 are added up where the backward pass writes them."""
_DEEPSPEED_BYTES = {"fp16": 2, "bf16": 6}
"""FP16_Optimizer widens fp16 gradients where it updates; BF16_Optimizer adds up in fp32 beside bf16 gradients."""


@dataclass(frozen=True)
class System:
    """What a training system does by default.

    Attributes:
        pattern: of its name, a regular expression.
        flash_from: the first year in which attention runs in one kernel.
        sequence_parallel: when the devices of tensor parallelism share what is between their operators.
        dropout: whether its GPT drops activations.
        remainder: which stages have fewer layers.
        vocabulary_multiple: to which the vocabulary is padded.
        chunk_layers: of a virtual stage of an interleaved schedule; None: there are two virtual stages a rank.
        undated: the year that it is of where its name holds none.
        zero: which stage of ZeRO it runs unless a row says.
        untied: whether GPT's output matrix is not the word embedding.
        async_tensor: whether sums of tensor parallelism go on beside products.
        zero_beside_pipeline: the most that ZeRO divides where there is a pipeline.
        gathers_parameters: whether ZeRO-3 gathers every parameter alone, and not a layer at once.
        gradient_bytes: precision → bytes of a parameter's gradient while it adds up, where these are not 4.
        buffer_bytes: of buffers that ZeRO reduces and gathers in.
        micro_batches_are_ranks: whether a pipeline runs as many micro-batches as it has ranks, unless it is told.
        gradient_moved_bytes: precision → bytes that are moved of a parameter's gradient in every micro-batch beyond
            what its product writes, where these are not 6 (cost.layer_times.Runtime).
        fused_gradients_from: the first year in which products of gradients add to what is there, and move none.
        casts_weights_once: whether weights are cast to 8 bits once a step.
        hopper_attention: whether flash kernels are those written for Hopper, where that is the device.
        loss_copies, tensor_loss_copies: logits in fp32 that are held at once (cost.layer_times.Runtime).
    """

    pattern: str
    flash_from: int
    sequence_parallel: SequenceParallel = "never"
    dropout: bool = True
    remainder: Remainder = "ends"
    vocabulary_multiple: int = 1
    chunk_layers: int | None = None
    undated: int = TODAY
    zero: int = 0
    untied: bool = False
    async_tensor: bool = False
    zero_beside_pipeline: int = 3
    gathers_parameters: bool = False
    gradient_bytes: Mapping[str, int] = field(default_factory=dict)
    buffer_bytes: float = 0.0
    micro_batches_are_ranks: bool = False
    gradient_moved_bytes: Mapping[str, float] = field(default_factory=dict)
    fused_gradients_from: int = TODAY + 1
    casts_weights_once: bool = False
    hopper_attention: bool = False
    loss_copies: float = 2.0
    tensor_loss_copies: float = 2.0

    def moved_bytes(self, year: int, precision: str) -> float:
        """See `gradient_moved_bytes`."""
        return 0.0 if year >= self.fused_gradients_from else self.gradient_moved_bytes.get(precision, 6.0)

    def shares_tokens(self, year: int, tp: int, selective: bool) -> bool:
        """Whether tensor parallelism shares tokens, too, in that year's system."""
        if tp == 1 or self.sequence_parallel == "never":
            return False
        return self.sequence_parallel == "with tp" or (selective and year >= 2022)


SYSTEMS = (
    # Its perf_recipes: sequence_parallel and tp_comm_overlap (user buffers) wherever tp > 1, attention by cuDNN, no
    # dropout, gradients reduced in bfloat16 (grad_reduce_in_fp32 off).
    System(
        "megatron-bridge|nemo",
        0,
        "with tp",
        dropout=False,
        vocabulary_multiple=128,
        chunk_layers=1,
        async_tensor=True,
        gradient_bytes={"fp16": 2, "bf16": 2, "fp8": 2},
        fused_gradients_from=0,
        casts_weights_once=True,
        hopper_attention=True,
    ),
    # Its functional_tests' model_config.yaml: transformer_engine, untied embeddings, no sequence parallelism.
    System("megatron-lm ci", 0, vocabulary_multiple=128, chunk_layers=1, untied=True, fused_gradients_from=0),
    # Stages by `type:transformer` of DeepSpeed's PipelineModule, which fills each up to the fullest one.
    # Buffers: 5e8 elements of 2 bytes to reduce, and as many to gather (reduce_bucket_size, allgather_bucket_size).
    System(
        "megatron-deepspeed",
        2024,
        remainder="last",
        vocabulary_multiple=128,
        chunk_layers=1,
        gradient_bytes=_DEEPSPEED_BYTES,
        gradient_moved_bytes=_DEEPSPEED_MOVED,
        buffer_bytes=2e9,
    ),
    # arXiv 2205.05198 brought sequence parallelism and selective recomputation together, Transformer Engine attention
    # in one kernel by default; --make-vocab-size-divisible-by is 128.
    # Gradients are added up by products (gradient_accumulation_fusion) since 2022, weights cast to fp8 once a step
    # (is_first_microbatch of Transformer Engine).
    System(
        "megatron",
        2024,
        "with selective recomputation",
        vocabulary_multiple=128,
        chunk_layers=1,
        fused_gradients_from=2022,
        casts_weights_once=True,
        hopper_attention=True,
    ),
    # ZeRO-3 gathers parameter by parameter.
    System(
        "deepspeed",
        2024,
        remainder="last",
        undated=2021,
        gradient_bytes=_DEEPSPEED_BYTES,
        gradient_moved_bytes=_DEEPSPEED_MOVED,
        buffer_bytes=2e9,
        gathers_parameters=True,
    ),
    System("oneflow", 2024, undated=2021),
    # parallelize_llama.py: SequenceParallel in the plan of tensor parallelism; the number of micro-batches
    # is the pipeline's degree unless an option says otherwise; fsdp_reshard_after_forward: weights stay gathered beside
    # a pipeline, and so do gradients until its last micro-batch. Its memory is the allocator's reserved one. The loss,
    # cross_entropy of logits that are widened to fp32, holds the logarithm of the softmax, the gradient of it and that
    # of the logits at once, and blocks of the 16-bit logits, which are freed and not of their sizes; over a divided
    # vocabulary (torch/distributed/tensor/parallel/loss.py) the exponential besides.
    System(
        "torchtitan",
        0,
        "with tp",
        dropout=False,
        zero=3,
        zero_beside_pipeline=1,
        micro_batches_are_ranks=True,
        loss_copies=3.5,
        tensor_loss_copies=4.5,
    ),
    # NVIDIA's BERT and GPT before Transformer Engine.
    System("deeplearningexamples", 2024, undated=2021),
    # PyTorch 2 brought attention in one kernel; llm-foundry's MPT has it, too, and no dropout (scripts/train/yamls).
    System("fsdp", 2023, dropout=False, zero=3),
    System("", 2023, dropout=False),
)
"""The first whose pattern is in a name counts."""


def system_named(name: str) -> System:
    """The system of that name; the last of SYSTEMS where none is known."""
    return next(system for system in SYSTEMS if re.search(system.pattern, name.lower()))


def year_named(name: str) -> int:
    """The year in a system's name, or the one that it is of where there is none."""
    match = re.search(r"\b20\d\d\b", name)
    return int(match[0]) if match else system_named(name).undated


def split_layers(layers: int, stages: int, remainder: Remainder) -> tuple[int, ...] | None:
    """[stages] layers of each stage; None where they divide evenly.

    Embedding and output matrix take about as long as a layer each, so that systems leave one layer out at both ends
    where that makes the rest equal. Otherwise stages are filled one after the other (`last`), or as many as needed of
    those in the middle have one more (`ends`).
    """
    share, rest = divmod(layers, stages)
    if not rest:
        return None
    if stages > 1 and (layers + 2) % stages == 0:
        whole = (layers + 2) // stages
        return (whole - 1, *[whole] * (stages - 2), whole - 1)
    if remainder == "last":
        filled = [min(share + 1, max(0, layers - (share + 1) * i)) for i in range(stages)]
        return tuple(filled)
    first = (stages - rest) // 2
    return tuple(share + (first <= i < first + rest) for i in range(stages))
