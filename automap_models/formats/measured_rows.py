"""Rows of measured training steps: what others ran on which cluster, and the seconds and bytes that they published.

    {"rows": [{"id": "…", "source": "…", "system": "Megatron-LM 2021",
               "model": {"name": "…", "arch": "gpt", "layers": 96, "hidden": 12288, "ffn": 49152, "heads": 96, …},
               "gpus": 384, "gpu_type": "A100-80GB SXM", "gpus_per_node": 8, "tp": 8, "pp": 12, "dp": 4, …,
               "measured": {"iteration_s": 66.7, "memory_gib": 61.5}}]}

A key that is missing, or has a value of another kind, makes the file bad input. A null is what nobody published: the
row's system says what it did by default (runtime_yaml), or the row is skipped with a reason. So is a row whose
strategy cannot be, or that ran on what no device is shipped for.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from automap_models.core.cluster import Cluster
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import (
    DISPATCHERS,
    MODULES,
    RECOMPUTE,
    Dispatcher,
    Precision,
    Recompute,
    Strategy,
    TransformerShape,
)
from automap_models.core.sublayer_sizes import GatedDelta, Latent, Mamba, Mixture, Rotary
from automap_models.core.tuning import Training
from automap_models.cost.measured_step import Family, MeasuredModel, MeasuredStep, SkippedStep
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.formats.measured_documents import (
    GIB,
    HybridDocument,
    LatentDocument,
    MixtureDocument,
    ModelDocument,
    RowDocument,
    RowsDocument,
    SourceDocument,
    TrainingDocument,
)
from automap_models.formats.runtime_yaml import WITHOUT_FLASH, RuntimeFile, runtime_named, split_layers, year_named
from automap_models.formats.schema import read_json

T = TypeVar("T")

ROWS_DO = "give a file of measured steps, as docs/reference/files.md describes it"
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("gpt", "gpt2", "gpt3", "gpt-2", "gpt-3", "mpt", "opt", "bloom"), "gpt"),
    **dict.fromkeys(("llama", "llama2", "llama3", "mistral", "qwen2", "qwen3", "mixtral", "moe"), "llama"),
    "bert": "bert",
}
"""A row's `arch` → the family that is built in; a mixture of experts is a Llama with several perceptrons."""
HARDWARE = (
    (r"^(?!.*\b40 ?gb)(?=.*\ba100)(?=.*pcie)", "a100-pcie", ""),
    (r"pcie|\bnvl\b", "", ""),
    (r"\bgb200", "gb200", "gb200-nvl72"),
    (r"\bh20\b", "h20", ""),
    *((rf"\b{name}", name, "") for name in ("gb300", "b200", "b300", "h200")),
    *((rf"\b{name}", name, "") for name in ("mi250x", "mi300x", "mi325x", "mi355x")),
    (r"\btpu ?v5e", "tpu-v5e", ""),
    (r"\btpu ?v5p", "tpu-v5p", ""),
    (r"\btpu ?v6e|trillium", "tpu-v6e", ""),
    (r"\btpu ?(v?7x)|ironwood", "tpu7x", ""),
    (r"\bascend ?910b", "ascend-910b", ""),
    (r"\bh100.*(\b96 ?gb|hbm2e)", "h100-96", ""),
    (r"\bh[18]00", "h100", ""),
    (r"\ba100.*\b40 ?gb", "a100-40", ""),
    (r"\ba[18]00", "a100", ""),
    (r"\bv100.*\b16 ?gb", "v100", "v100-edr-4"),
    (r"\bv100", "v100", ""),
    (r"\bgaudi ?3\b", "gaudi3", ""),
    (r"\btrainium ?2\b|\btrn2\b", "trainium2", ""),
    (r"\brtx ?pro ?6000\b", "rtx-pro-6000", ""),
    *((rf"\brtx ?{number}\b", f"rtx{number}", "") for number in (4090, 5090)),
    *((rf"\b{name}\b", name, "") for name in ("t4", "l4", "l40s", "a10g", "cpu")),
)
"""Pattern of a row's `gpu_type` → the shipped device, and the shipped cluster whose links and memory it has, where that
is not the device's usual one; the first that matches counts, and an empty device is none."""
NOT_PRICED = {
    "attention_note": "attention but plain, windowed or through latents",
    "moe.every": "experts in some of its layers only",
}
"""Field of a row's model → what it says that would be priced as another model."""
DELTAS = {"qwen3-next": GatedDelta(heads=32, key_heads=16, key_width=128, value_width=128)}
"""A row's `family` → the gated delta networks of three in four of its blocks, by its published config.json."""
_GBIT_PER_S = "(?:gb/s|gbps|gbit/s)"
PRECISIONS: tuple[tuple[str, Precision], ...] = (
    ("fp4|float4", "nvfp4"),
    ("fp8|float8", "fp8"),
    ("bf16|bfloat16", "bf16"),
    ("fp16|float16", "fp16"),
    ("fp32|float32|tf32", "fp32"),
)
SCHEDULE_NAMES = {
    "1f1b": "1f1b",
    "1f1bi": "interleaved",
    "interleaved1f1b": "interleaved",
    "gpipe": "gpipe",
    "zb1p": "zb-h1",
    "zb2p": "zb-h2",
} | {name.replace("-", ""): name for name in SCHEDULES}
"""A row's `schedule` in small letters and figures → its name here; ZB-1p and ZB-2p are those of arXiv 2401.10241."""
_CUTS = re.compile(r"pipeline cuts \(layer indices of the DeepSpeed module list\): \[([\d, ]+)\]")
_COUNTED = ("gpt", "gpt2", "gpt3")
"""Whose FLOP `narayanan_flop` counts."""
ASYNC_OVERLAP = 0.35
"""Share of the sums of tensor parallelism that async tensor parallelism hides, of all devices."""
_ASYNC = re.compile(r"\basync ?tp\b", re.IGNORECASE)
_DAY = re.compile(r"(?:(?<![\d-])\d{4}-|(?<=, ))(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?![\d-])")
"""2022-02-25; 02-25 after a comma."""
_read_once = lru_cache(read_cluster)


def read_measured_steps(
    path: str | os.PathLike[str], runtime: RuntimeFile | None = None
) -> list[MeasuredStep | SkippedStep]:
    """The steps in a file of measured rows, in its order.

    Args:
        path: the file.
        runtime: what runs systems; see `runtime_named`.

    Raises:
        BadInput: the file cannot be read or is no JSON, a row lacks a field or has one of a wrong kind, or two rows
            have the same id.
    """
    document = read_json(path, RowsDocument, do=ROWS_DO)
    if document.run is not None and document.run.no_row is not None:
        raise BadInput(f"is a run that no row can say: {document.run.no_row}", where=str(path), do=ROWS_DO)
    if document.rows is UNSET:
        raise BadInput("$.rows is missing", where=str(path), do=ROWS_DO)
    rows, sources = document.rows, document.sources or {}
    twice = [name for name, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise BadInput(f"{len(twice)} id(s) stand there twice, {twice[0]!r} first", where=str(path), do=ROWS_DO)
    return [step_of(row, sources.get(row.source, SourceDocument()), runtime) for row in rows]


def step_of(row: RowDocument, source: SourceDocument, runtime: RuntimeFile | None = None) -> MeasuredStep | SkippedStep:
    """The step that a row describes, or why it cannot be priced."""
    try:
        return _step(row, source, runtime)
    except BadInput as error:
        return SkippedStep(row.id, row.source, str(error))


def _step(row: RowDocument, source: SourceDocument, runtime: RuntimeFile | None) -> MeasuredStep:
    ran, year = _ran(row, runtime), year_named(row.system)
    device, cluster = _hardware(row, source)
    model = _model(row, ran)
    shape = model.shape
    strategy = _strategy(row, ran, year, device)
    strategy.require_cluster(cluster)
    strategy.require_model(shape)
    _require_flop(row)
    measured, memory_bytes = row.measured, row.measured.memory_bytes(cluster.memory)
    step_s = _step_s(row)
    if step_s is None and memory_bytes is None and not (measured.oom or measured.failed):
        raise BadInput("neither time nor memory is stated", where="`measured`")
    unfused = device in WITHOUT_FLASH or "attention unfused" in (row.flags or ())
    # where nobody published what is recomputed, or lies elsewhere, whether it fits tells nothing
    unknown = {"recompute", "which tensors are kept"}.intersection(row.unknown or ())
    return MeasuredStep(
        name=row.id,
        source=row.source,
        system=row.system,
        model=model,
        strategy=strategy,
        training=Training.of_options(**msgspec.structs.asdict(row.training or TrainingDocument())),
        device=device,
        cluster=cluster,
        runtime=ran.runtime(strategy.precision, device, year, flash=False if unfused else row.flash),
        step_s=step_s,
        memory_bytes=memory_bytes,
        only_tensors=measured.only_tensors or ran.states_tensors,
        fits=None if unknown or (step_s is None and not measured.oom) else not measured.oom,
        day=day[0] if (day := _DAY.search(row.note or "")) else "",
    )


def _ran(row: RowDocument, runtime: RuntimeFile | None) -> RuntimeFile:
    """The runtime of the row's system, with what the row says of it."""
    stated: dict[str, Any] = {}
    if row.cuda_graph is not None:
        stated["cuda_graph"] = "all" if "full_iteration" in row.cuda_graph else "some"
    elif row.recipe is not None or row.ladder is not None:
        stated["cuda_graph"] = "none"
    ran = runtime_named(row.system, runtime, stated.get("cuda_graph", "none"))
    if _ASYNC.search(row.note or "") and row.tp != 1:
        stated["tensor_overlap"] = ASYNC_OVERLAP
    if row.tp_comm_overlap is False:
        stated["tensor_overlap"] = 0.0
    if row.ep_overlap is not None:
        stated["overlaps_experts"] = row.ep_overlap
    return msgspec.structs.replace(ran, **stated)


def _stated(value: T | None, key: str) -> T:
    if value is None:
        raise BadInput("is not stated", where=f"`{key}`")
    return value


def _one_of(names: Mapping[str, T], name: str, key: str) -> T:
    if name not in names:
        raise BadInput(f"{name!r} is none of {', '.join(names)}", where=f"`{key}`")
    return names[name]


def _hardware(row: RowDocument, source: SourceDocument) -> tuple[str, Cluster]:
    """The device's name, and the cluster with as many nodes as the row has."""
    kind = row.gpu_type.lower()
    device, topo = next(((device, topo) for pattern, device, topo in HARDWARE if re.search(pattern, kind)), ("", ""))
    if not device:
        raise BadInput(f"no device is shipped for {row.gpu_type!r}", where="`gpu_type`")
    if row.cluster is not None:
        return device, row.cluster.cluster("$.cluster")
    usual = _read_once(row.topo or topo or read_device(device).cluster or "")
    per_node = row.gpus_per_node or usual.devices_per_node
    nodes, rest = divmod(row.gpus, per_node) if row.gpus > per_node else (1, 0)
    if rest:
        raise BadInput(f"{row.gpus} devices do not fill nodes of {per_node}", where="`gpus`")
    inter = usual.inter if row.topo else network_in(f"{row.note or ''}; {source.words}", per_node) or usual.inter
    memory = usual.memory * (GIB / 1e9)  # drivers find 81,920 MiB in an A100 whose data sheet says 80 GB
    count = row.gpus // nodes
    links = tuple(line[:count] for line in usual.links[:count]) if per_node == usual.devices_per_node else ()
    return device, replace(usual, nodes=nodes, devices_per_node=count, inter=inter, memory=memory, links=links)


def network_in(words: str, devices_per_node: int) -> float | None:
    """Bytes/s of a node's network by the first words of its Gb/s; None where there are none.

    `4 Omni-Path links a node (100 Gb/s each`, `400 Gb/s RDMA per GPU`, `EDR 100 Gb/s, one HCA a node`.
    """
    of_links = rf"(?<!\d)(\d{{1,4}}) [\w-]+(?: [\w-]+)? (?:a|per) node \((\d{{1,6}}) ?{_GBIT_PER_S} each"
    links = re.search(of_links, words, re.IGNORECASE)
    if links:
        return int(links[1]) * int(links[2]) * (1e9 / 8)
    rate = re.search(rf"(?<![\d.])(\d{{1,6}}(?:\.\d{{1,6}})?) ?{_GBIT_PER_S}([^.;,()]*)", words, re.IGNORECASE)
    if rate is None:
        return None
    per_device = re.search(r"\b(?:per|a) (?:gpu|device)\b|/gpu", rate[2], re.IGNORECASE)
    return float(rate[1]) * (1e9 / 8) * (devices_per_node if per_device else 1)


def _model(row: RowDocument, ran: RuntimeFile) -> MeasuredModel:
    """The row's model.

    Raises:
        BadInput: it has what no model here has.
    """
    model, shape = row.model, _shape(row, ran)
    family = _one_of(FAMILIES, model.arch.lower(), "arch")
    moe = model.moe if isinstance(model.moe, MixtureDocument) else MixtureDocument(shape.ffn)
    window, delta = model.window, DELTAS.get(model.family or "")
    for key, value in (("attention_note", model.attention_note and not delta), ("moe.every", moe.every > 1)):
        if value:
            raise BadInput(f"has no price: no model here has {NOT_PRICED[key]}", where=f"`model.{key}`")
    return MeasuredModel(
        family=family,
        shape=shape,
        tied=(family != "llama" and not ran.untied) or any("embedding is tied" in flag for flag in row.flags or ()),
        dropout=family != "llama" and ran.dropout,
        head_width=model.head_dim,
        gated=moe.gated,
        mixture=_mixture(model, moe, shared_gate=delta is not None),
        dense_layers=moe.dense_layers,
        dense_width=moe.dense_ffn,
        latent=_latent(model.mla) if model.mla else None,
        predicting_layers=model.mtp_layers or 0,
        window=window.tokens if window else None,
        windowed_layers=window.layers if window else 0,
        recurrence=_mamba(model.hybrid) if model.hybrid else delta,
        blocks=_blocks(model, delta),
    )


def _mixture(model: ModelDocument, moe: MixtureDocument, *, shared_gate: bool) -> Mixture | None:
    if not model.experts:
        return None
    per_token, width = _stated(model.topk or None, "topk"), _stated(model.ffn, "ffn")
    shared = moe.shared_ffn or 0
    return Mixture(model.experts, per_token, width, shared, latent=moe.latent, shared_gate=shared_gate)


def _mamba(hybrid: HybridDocument) -> Mamba:
    sizes = _stated(hybrid.mamba, "model.hybrid.mamba")
    return Mamba(heads=sizes.heads, head_width=sizes.head_dim, groups=sizes.groups, state=sizes.state)


def _blocks(model: ModelDocument, delta: GatedDelta | None) -> tuple[str, ...] | None:
    """Sublayers of each block, see workloads.sizes; None where all blocks have attention."""
    layers = _stated(model.layers, "layers")
    if model.hybrid is None:
        return tuple("*E" if i % 4 == 3 else "ME" for i in range(layers)) if delta else None
    pattern = model.hybrid.pattern
    if len(pattern) != layers or set(pattern) - set("M*-E"):
        raise BadInput(f"is not {layers} of the letters M, *, - and E", where="`model.hybrid.pattern`")
    return tuple(pattern)


def _latent(widths: LatentDocument) -> Latent:
    return Latent(
        query_rank=widths.q_lora_rank,
        rank=_stated(widths.kv_lora_rank, "model.mla.kv_lora_rank"),
        plain_width=_stated(widths.qk_nope, "model.mla.qk_nope"),
        rotary=Rotary(_stated(widths.qk_rope, "model.mla.qk_rope")),
        value_width=_stated(widths.v, "model.mla.v"),
    )


def _shape(row: RowDocument, ran: RuntimeFile) -> TransformerShape:
    model = row.model
    hidden, vocabulary = _stated(model.hidden, "hidden"), _stated(model.vocab, "vocab")
    heads = model.heads or _usual_heads(hidden, row.tp or 1)
    llama = FAMILIES.get(model.arch.lower()) == "llama"
    return TransformerShape(
        name=model.name,
        layers=_stated(model.layers, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=model.kv_heads or heads,
        ffn=_stated(model.ffn, "ffn") if llama else model.ffn or 4 * hidden,
        sequence=_stated(model.seq, "seq"),
        vocabulary=math.ceil(vocabulary / ran.vocabulary_multiple) * ran.vocabulary_multiple,
        experts=model.experts or None,
    )


def _usual_heads(hidden: int, tp: int) -> int:
    """Heads as near to 128 wide as can be that tp divides, in multiples of 16 as published models have them."""
    heads = [count for count in range(tp, hidden + 1, tp) if hidden % count == 0]
    usual = [count for count in heads if count % 16 == 0] or heads
    if not usual:
        raise BadInput(f"no number of heads that tp {tp} divides makes {hidden}", where="`heads`")
    return min(usual, key=lambda count: abs(math.log(hidden / count / 128)))


def _strategy(row: RowDocument, ran: RuntimeFile, year: int, device: str) -> Strategy:
    zero = ran.zero if row.zero is None else row.zero
    alone = zero == 3 or row.dp == row.gpus
    tp, pp = (1 if value is None and alone else _stated(value, key) for key, value in (("tp", row.tp), ("pp", row.pp)))
    dp = row.dp or max(1, row.gpus // (tp * pp * (row.cp or 1)))
    global_batch = _stated(row.global_batch, "global_batch")
    schedule = _schedule(row, pp)
    vp = row.vp or _usual_virtual(row, schedule, ran)
    recompute = _recompute(row)
    shares = ran.shares_tokens(year, tp, recompute == "selective")
    return Strategy(
        micro_batch=_stated(row.micro_batch or _usual_micro_batch(ran, global_batch, pp, dp), "micro_batch"),
        global_batch=global_batch,
        tp=tp,
        pp=pp,
        dp=dp,
        dp_replicate=_replicas(row, dp, tp) if zero else 1,
        vp=vp,
        cp=row.cp or 1,
        ep=row.ep or 1,
        etp=row.etp if tp > 1 else None,
        schedule=schedule,
        recompute=recompute,
        zero=min(zero, ran.zero_beside_pipeline if pp > 1 else 3),
        sequence_parallel=shares if row.sequence_parallel is None else row.sequence_parallel,
        precision=_precision(row, device),
        dispatcher=_dispatcher(row),
        layers=_layers(row, pp * vp, ran),
    )


def _replicas(row: RowDocument, dp: int, tp: int) -> int:
    """Groups in which ZeRO divides, as the note says: `zero1=8`, of so many ranks each, or `HSDP`, inside nodes."""
    if row.dp_replicate is not None:
        return row.dp_replicate
    shards = re.search(r"\bzero1=(\d{1,4})\b", row.note or "")
    if shards or re.search(r"\bHSDP\b", row.note or ""):
        return max(1, dp // max(1, int(shards[1]) if shards else (row.gpus_per_node or 8) // tp))
    return 1


def _schedule(row: RowDocument, pp: int) -> str:
    if row.schedule is None:
        return "interleaved" if pp > 1 and (row.vp or 1) > 1 else "1f1b"
    name = SCHEDULE_NAMES.get(re.sub(r"[^a-z0-9]", "", row.schedule.lower()))
    if name is None:
        raise BadInput(f"{row.schedule!r} is none of {', '.join(SCHEDULES)}", where="`schedule`")
    return name


def _usual_virtual(row: RowDocument, schedule: str, ran: RuntimeFile) -> int:
    """Virtual stages a rank where the row does not say."""
    if schedule == "interleaved" and ran.chunk_layers is not None:
        return math.ceil((row.model.layers or 1) / ((row.pp or 1) * ran.chunk_layers))
    return 2 if schedule == "interleaved" else SCHEDULES[schedule].virtual or 1


def _usual_micro_batch(ran: RuntimeFile, global_batch: int, pp: int, dp: int) -> int | None:
    """All samples of a rank at once, in a pipeline as the system cuts them; None where that does not say."""
    parts = dp * pp if ran.micro_batches_are_ranks else dp
    return None if (pp > 1 and not ran.micro_batches_are_ranks) or global_batch % parts else global_batch // parts


def _recompute(row: RowDocument) -> Recompute:
    kind = (row.recompute or "none").lower().split()[0]
    if kind == "selective" and row.recompute_modules is not None:
        return "+".join(name for name in MODULES if name in row.recompute_modules) or "none"
    return _one_of({kind: kind for kind in RECOMPUTE}, kind, "recompute")


def _dispatcher(row: RowDocument) -> Dispatcher | None:
    word = (row.moe_dispatcher or "none").split()[0]
    return None if word == "none" else _one_of({name: name for name in DISPATCHERS}, word, "moe_dispatcher")


def _precision(row: RowDocument, device: str) -> Precision:
    words = (row.precision or ("fp16" if device in WITHOUT_FLASH else "bf16")).lower()
    if "rowwise" in words:
        raise BadInput("float8 with a scale for every row runs at no rate that devices state", where="`precision`")
    for pattern, precision in PRECISIONS:
        if re.search(pattern, words):
            return precision
    raise BadInput(f"{row.precision!r} is none of fp32, fp16, bf16, fp8, nvfp4", where="`precision`")


def _layers(row: RowDocument, stages: int, ran: RuntimeFile) -> tuple[int, ...] | None:
    """Layers of each virtual stage: as the row says, or as the system splits them."""
    count = _stated(row.model.layers, "layers")
    if row.layers_per_stage is not None:
        return tuple(row.layers_per_stage)
    if match := _CUTS.search(row.note or ""):
        # the embedding and a transposition come before the layers in DeepSpeed's list of a GPT's modules
        cuts = [int(cut) - 2 for cut in match[1].split(",")]
        inside = [min(max(cut, 0), count) for cut in cuts]
        return tuple(after - before for before, after in pairwise(inside))
    if stages > count + 2:  # what comes before and after the layers may have stages of its own
        raise BadInput(f"{stages} virtual stages of {count} layers", where="`pp`")
    return split_layers(count, stages, ran.remainder)


def _step_s(row: RowDocument) -> float | None:
    """Seconds of a step, from whatever was published."""
    measured, samples = row.measured, row.global_batch or 0
    if measured.iteration_s is not None:
        return measured.iteration_s
    if measured.tokens_per_s_per_gpu is not None:
        return samples * (row.model.seq or 0) / (measured.tokens_per_s_per_gpu * row.gpus)
    if measured.samples_per_s is not None:
        return samples / measured.samples_per_s
    if measured.tflops_per_gpu is not None and (measured.flop_formula or "").startswith("narayanan2021"):
        return narayanan_flop(row) / (measured.tflops_per_gpu * 1e12 * row.gpus)
    return row.derived.iteration_s if row.derived else None


def narayanan_flop(row: RowDocument) -> float:
    """FLOP of a step by equation 3 of arXiv 2104.04473: 96·B·s·l·h²·(1 + s/6h + V/16lh).

    It is 72 in place of 96 where nothing is recomputed; the share of the logits, 6·B·s·h·V, never is.
    """
    model = row.model
    hidden, sequence = _stated(model.hidden, "hidden"), _stated(model.seq, "seq")
    per_layer = (96 if _recompute(row) == "full" else 72) * hidden**2 * (1 + sequence / (6 * hidden))
    of_token = _stated(model.layers, "layers") * per_layer + 6 * hidden * (model.vocab or 0)
    return _stated(row.global_batch, "global_batch") * sequence * of_token


def _require_flop(row: RowDocument) -> None:
    """Refuse a row whose published time and TFLOP/s are of a larger model than its sizes make.

    A publisher's count of FLOP may leave parts out. It counts nothing that is not in `narayanan_flop`, up to 5 %.
    """
    measured = row.measured
    if measured.iteration_s is None or measured.tflops_per_gpu is None or row.model.arch.lower() not in _COUNTED:
        return
    published = measured.iteration_s * measured.tflops_per_gpu * 1e12 * row.gpus
    share = published / narayanan_flop(row)
    if share > 1.05:
        raise BadInput(f"its time and TFLOP/s are {share:.2f} of the FLOP of its sizes", where="`measured`")
