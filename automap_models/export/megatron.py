"""Megatron-LM: one argument a line, as `torchrun pretrain_gpt.py $(grep -v '^#' FILE) …` takes them.

Stages are written in Megatron's own layout (`--pipeline-model-parallel-layout`): E is the embedding, t a layer, L the
loss, and a bar ends a stage. Stages stand in the order of the model, so that with vp virtual stages rank r has the
stages r, r + pp, r + 2·pp, …; m before the loss is a layer that predicts a further token:

    Ett|tttt|tttt|ttL      four stages of 2, 4, 4 and 2 layers, written Et*2|(t*4|)*2t*2,L

Checked against Megatron-Core 0.19 (core/transformer/transformer_config.py, training/arguments.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from automap_models.core.framework import Limits, both_halves
from automap_models.core.strategy import MODULES, ONCE_A_NODE, RECOMPUTE, Strategy, modules_of
from automap_models.export.model_blocks import BlockPlan, block_target
from automap_models.export.target import Written, parser_module, require_same

NAME = "megatron"
DISTRIBUTION = "megatron-core"


LIMITS = Limits(
    name=NAME,
    schedules={"1f1b": "1F1B", "interleaved": "interleaved 1F1B"},
    modules=MODULES,
    own_code=False,
    one_series=True,
    zeros=(0, 1),
    whole_rounds=True,
    stacked=False,
    sequence=both_halves,
    dispatchers=("deepep", "hybridep", "alltoall", "allgather"),
    replicates=True,
    recompute=RECOMPUTE,
    offloads=("none", "optimizer"),
    sequence_beside_experts=True,
)
"""ZeRO-2 and ZeRO-3 would be Megatron-FSDP, which stages of a layout do not have. Megatron-Core 0.19 refuses
interleaved micro-batches whose last round is smaller than the pipeline (core/pipeline_parallel/schedules.py)."""
BESIDE = (
    "add the kind of attention (latent, compressed, windows, sinks, head size), norms, activation, positions, "
    "residual streams, routing, tokenizer, data, --lr and --train-iters; "
    "--mock-data --tokenizer-type NullTokenizer --vocab-size N does without data"
)
MIXTURE = (
    "of experts, too: --moe-router-topk, shared ones, and which layers have none, with their --ffn-hidden-size; "
    "with etp --disable-bias-linear"
)
RECURRENT = (
    "add all sizes of the model and the kinds of its layers, or give these degrees to Megatron-Bridge's recipe of it: "
    "pretrain_gpt.py does not build recurrent layers"
)
ENCODER = (
    "pretrain_gpt.py builds no encoders: give these degrees to pretrain_bert.py, pretrain_t5.py or "
    "pretrain_vision_classify.py, or to code of the model's own"
)
TOWER = (
    "pretrain_gpt.py builds no tower of images: give these degrees to Megatron-Bridge's recipe of the model, or to "
    "pretrain_vlm.py, which has the tower on the first stage"
)
COUNTS: Mapping[str, str] = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
    "dp_replicate": "--num-distributed-optimizer-instances",
    "micro_batch": "--micro-batch-size",
    "global_batch": "--global-batch-size",
}
"""Field of a strategy → its argument."""
REMAKING = frozenset({"layernorm", "moe_act"})
"""Modules that Megatron does not recompute in 8 bits with the recipe that is its default, `delayed`."""
SIZES: Mapping[str, str] = {
    "hidden": "--hidden-size",
    "ffn": "--ffn-hidden-size",
    "heads": "--num-attention-heads",
    "kv_heads": "--num-query-groups",
    "sequence": "--seq-length",
    "experts": "--num-experts",
}
"""Size of a model → its argument."""
PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "fp16": ("--fp16",),
    "nvfp4": ("--bf16", "--fp4-format", "e2m1"),
    "fp8": ("--bf16", "--fp8-format", "hybrid"),
    "bf16": ("--bf16",),
    "fp32": (),
}
"""Precision → its arguments; those of 8 and 4 bits have --bf16, too, and stand before it."""


def write(plan: BlockPlan, path: Path) -> Written:
    """The arguments."""
    program = "pretrain_mamba.py" if plan.facts.recurrent else "pretrain_gpt.py"
    line = f"# {plan.model} for Megatron-LM, written by automap export: torchrun … {program} $(grep -v '^#' FILE)"
    written = [shlex.join(argument) for argument in arguments(plan)]
    shape = plan.facts.shape
    notes: tuple[str, ...] = (RECURRENT,) if plan.facts.recurrent else () if shape is None else (BESIDE,)
    notes += (MIXTURE,) if shape is not None and shape.experts and not plan.facts.recurrent else ()
    notes += (ENCODER,) if plan.facts.encodes else ()
    notes += (TOWER,) if shape is not None and shape.tower_heads else ()
    return Written("\n".join([line, *written]) + "\n", notes=notes, program=" ".join([program, *written]))


def arguments(plan: BlockPlan) -> Iterator[tuple[str, ...]]:
    """Every argument with its value."""
    s = plan.strategy
    usual = {"cp": 1, "ep": 1, "etp": s.tp, "dp_replicate": 1}
    for name, argument in COUNTS.items():
        count = s.expert_tensor if name == "etp" else getattr(s, name)
        if count != usual.get(name):
            yield argument, str(count)
    yield from _dispatcher(s)
    yield "--num-layers", str(sum(plan.layers))
    yield from _sizes(plan)
    mtp = (plan.facts.shape is not None and plan.facts.shape.mtp_layers) or 0
    if mtp:
        yield "--mtp-num-layers", str(mtp)
    if s.stages > 1:
        yield "--pipeline-model-parallel-layout", layout_text(plan.layers, mtp)
    if s.sequence_parallel and s.tp > 1:
        yield ("--sequence-parallel",)
    yield from _recomputation(plan)
    yield from _data_parallelism(s)
    if s.offload == "optimizer":
        yield ("--optimizer-cpu-offload",)
        yield "--optimizer-offload-fraction", "1.0"
        yield ("--overlap-cpu-optimizer-d2h-h2d",)
        yield ("--use-precision-aware-optimizer",)
    if precision := PRECISIONS[s.precision]:
        yield precision


def _data_parallelism(s: Strategy) -> Iterator[tuple[str, ...]]:
    """Gradients and weights on their way beside passes, as they are priced; Megatron does neither unasked."""
    distributed = bool(s.zero) or s.offload == "optimizer"
    if distributed:
        yield ("--use-distributed-optimizer",)
    if s.dp * s.cp > 1:
        yield ("--overlap-grad-reduce",)
        if distributed and s.offload == "none":
            yield ("--overlap-param-gather",)


def _recomputation(plan: BlockPlan) -> Iterator[tuple[str, ...]]:
    """Of what is recomputed, or saved on hosts."""
    recompute = plan.recompute(NAME)
    if recompute == "selective" or modules_of(recompute):
        yield "--recompute-granularity", "selective"
    if names := modules_of(recompute):
        yield "--recompute-modules", *names
        if plan.strategy.precision == "fp8" and not REMAKING.isdisjoint(names):
            yield "--fp8-recipe", "tensorwise"
    if recompute == "full":
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "uniform"
        yield "--recompute-num-layers", "1"
    if recompute == "offload":
        yield "--cpu-offloading-num-layers", str(plan.offloaded)


def _dispatcher(s: Strategy) -> Iterator[tuple[str, ...]]:
    """Of tokens to experts that several devices share; DeepEP takes the router's probabilities in fp32 alone."""
    if s.dispatcher is None or s.ep * s.expert_tensor == 1:
        return
    once = s.dispatcher in ONCE_A_NODE
    yield "--moe-token-dispatcher-type", "flex" if once else s.dispatcher
    if once:
        yield "--moe-flex-dispatcher-backend", s.dispatcher
        yield "--moe-router-dtype", "fp32"


def _sizes(plan: BlockPlan) -> Iterator[tuple[str, ...]]:
    """Of the model, where they are known."""
    shape = plan.facts.shape
    if shape is None or plan.facts.recurrent:
        return
    for name, argument in SIZES.items():
        if name == "kv_heads" and shape.kv_heads == shape.heads:
            continue
        if (size := getattr(shape, name)) is not None:
            yield argument, str(size)
    if shape.kv_heads < shape.heads:
        yield ("--group-query-attention",)
    yield "--max-position-embeddings", str(shape.sequence)
    if shape.experts is not None:
        yield "--moe-ffn-hidden-size", str(shape.ffn)
        yield ("--moe-grouped-gemm",)
    if not plan.facts.tied:
        yield ("--untie-embeddings-and-output-weights",)


def layout_text(layers: tuple[int, ...], mtp: int = 0) -> str:
    """The layout of stages of so many layers each, and `mtp` of them that predict further tokens.

    Equal neighbours are written once, in Megatron's `(…|)*n`.
    """
    stages = ["t" * count if count < 2 else f"t*{count}" for count in layers]
    stages[0], last = "E" + stages[0], stages.pop() if len(stages) > 1 else None
    loss = "m" * mtp + "L"
    if last is None:
        return f"{stages[0]}{loss}"
    text = ""
    for stage, alike in groupby(stages):
        count = len(list(alike))
        text += f"({stage}|)*{count}" if count > 1 else f"{stage}|"
    return f"{text}{last}{loss}"


def check(plan: BlockPlan, path: Path) -> None:
    """Megatron's TransformerConfig takes the arguments, and reads the stages of the plan in the layout."""
    check_arguments(plan, read_arguments(path))


def check_arguments(plan: BlockPlan, parsed: Mapping[str, str]) -> None:
    """The same of arguments that somebody read."""
    s = plan.strategy
    batches = (parsed["--micro-batch-size"], parsed["--global-batch-size"])
    require_same("samples", batches, (str(s.micro_batch), str(s.global_batch)))
    config = _transformer_config(parsed)
    degrees = (config.tensor_model_parallel_size, config.pipeline_model_parallel_size, config.context_parallel_size)
    require_same("degrees", degrees, (s.tp, s.pp, s.cp))
    recompute = plan.recompute(NAME)
    kind = "selective" if modules_of(recompute) else "none" if recompute == "offload" else recompute
    require_same("blocks on hosts", config.cpu_offloading_num_layers, plan.offloaded)
    require_same("recomputation", config.recompute_granularity or "none", kind)
    require_same("recomputed modules", parsed.get("--recompute-modules", ""), " ".join(modules_of(recompute)))
    require_same("sequence parallelism", config.sequence_parallel, s.sequence_parallel and s.tp > 1)
    if s.dispatcher in ONCE_A_NODE and s.ep > 1:
        require_same("dispatcher", config.moe_flex_dispatcher_backend, s.dispatcher)
    if s.stages > 1:
        kinds = parser_module("megatron.core.transformer.enums", DISTRIBUTION).LayerType
        read = config.pipeline_model_parallel_layout
        require_same("virtual stages", read.virtual_pipeline_model_parallel_size, s.vp)
        layers = [read.layout[stage % s.pp][stage // s.pp].count(kinds.decoder) for stage in range(s.stages)]
        require_same("layers", tuple(layers), plan.layers)


def _transformer_config(parsed: Mapping[str, str]) -> Any:
    """Megatron's own, as its training script makes it of these arguments; of a model of the least width."""
    tensor = int(parsed["--tensor-model-parallel-size"])
    recomputed, hosted = parsed.get("--recompute-num-layers"), int(parsed.get("--cpu-offloading-num-layers", 0))
    return parser_module("megatron.core.transformer.transformer_config", DISTRIBUTION).TransformerConfig(
        num_layers=int(parsed["--num-layers"]),
        hidden_size=8 * tensor,
        num_attention_heads=tensor,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=int(parsed["--pipeline-model-parallel-size"]),
        pipeline_model_parallel_layout=parsed.get("--pipeline-model-parallel-layout"),
        pipeline_dtype=parser_module("torch", "torch").bfloat16,
        context_parallel_size=int(parsed.get("--context-parallel-size", 1)),
        sequence_parallel="--sequence-parallel" in parsed,
        moe_token_dispatcher_type=parsed.get("--moe-token-dispatcher-type", "allgather"),
        moe_flex_dispatcher_backend=parsed.get("--moe-flex-dispatcher-backend", "deepep"),
        recompute_granularity=parsed.get("--recompute-granularity"),
        recompute_method=parsed.get("--recompute-method"),
        recompute_num_layers=int(recomputed) if recomputed else None,
        cpu_offloading=hosted > 0,
        cpu_offloading_num_layers=hosted,
    )


def read_arguments(path: Path) -> dict[str, str]:
    """Argument → its value, empty for a flag, as a shell reads the lines of a file."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    return {words[0]: " ".join(words[1:]) for words in map(shlex.split, lines)}


TARGET = block_target(LIMITS, DISTRIBUTION, ".args", write, check)
