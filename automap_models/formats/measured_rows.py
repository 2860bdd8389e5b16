"""Rows of measured training steps: what others ran on which cluster, and the seconds and bytes that they published.

    {"rows": [{"id": "…", "source": "…", "system": "Megatron-LM 2021",
               "model": {"name": "…", "arch": "gpt", "layers": 96, "hidden": 12288, "ffn": 49152, "heads": 96, …},
               "gpus": 384, "gpu_type": "A100-80GB SXM", "gpus_per_node": 8, "tp": 8, "pp": 12, "dp": 4, …,
               "measured": {"iteration_s": 66.7, "memory_gib": 61.5}}]}

A key that is missing, or has a value of another kind, makes the file bad input. A null is what nobody published: the
row's system says what it did by default (measured_systems), or the row is skipped with a reason. So is a row whose
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
from typing import TypeVar

from automap_models.core.cluster import Cluster
from automap_models.core.measured import Family, MeasuredStep, SkippedStep
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import Precision, Recompute, Strategy, TransformerShape
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.formats.measured_systems import System, split_layers, system_named, year_named
from automap_models.formats.schema import Count, Foreign, Index, Positive, Text, read_json

T = TypeVar("T")

GIB = 1 << 30
ROWS_DO = "give a file of measured steps, as docs/reference/files.md describes it"
FAMILIES: Mapping[str, Family] = {"gpt": "gpt", "llama": "llama", "bert": "bert"}
"""A row's `arch` → the family that is built in."""
HARDWARE = (
    (r"pcie|nvl\b", "", ""),
    (r"\bgb200", "gb200", "gb200-nvl72"),
    (r"\bb200", "b200", "dgx-b200-4"),
    (r"\bh200", "h200", "dgx-h200-4"),
    (r"\bh100.*(\b96 ?gb|hbm2e)", "h100-96", "grand-teton-4"),
    (r"\bh100", "h100", "dgx-h100-4"),
    (r"\ba100.*\b40 ?gb", "a100-40", "oci-a100-40-4"),
    (r"\ba100", "a100", "dgx-a100-4"),
    (r"\bv100.*\b16 ?gb", "v100", "v100-edr-4"),
    (r"\bv100", "v100", "dgx-1"),
    (r"\bt4\b", "t4", "g4dn-4"),
)
"""Pattern of a row's `gpu_type` → the shipped device, and the shipped cluster whose links and memory it has; the first
that matches counts, and an empty name is none."""
NETWORKS = (("bigscience", "a100", "jean-zay-a100"), ("bigscience", "v100", "jean-zay-v100"))
"""Beginning of a source's name, device → the cluster that it says it ran on, where that is not the usual one."""
PRECISIONS: tuple[tuple[str, Precision], ...] = (
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
MOST_FLOP = 1.05
"""Of the FLOP of a row's sizes that its time and TFLOP/s may make."""
_CUTS = re.compile(r"pipeline cuts \(layer indices of the DeepSpeed module list\): \[([\d, ]+)\]")
_ASYNC = re.compile(r"\basync ?tp\b", re.IGNORECASE)
_MODULES_BEFORE = 2
"""The embedding and a transposition, which come before the layers in DeepSpeed's list of a GPT's modules."""


class ModelDocument(Foreign):
    """A row's model."""

    name: Text
    arch: Text
    layers: Count
    hidden: Count
    ffn: Count | None
    heads: Count | None
    kv_heads: Count | None
    seq: Count
    vocab: Count | None
    experts: Index | None = None


class MeasuredDocument(Foreign):
    """What was published of a step, in one unit or another."""

    iteration_s: Positive | None = None
    tokens_per_s_per_gpu: Positive | None = None
    samples_per_s: Positive | None = None
    tflops_per_gpu: Positive | None = None
    flop_formula: str | None = None
    memory_max_allocated_bytes: Positive | None = None
    memory_gib: Positive | None = None
    memory_gb: Positive | None = None
    memory_params_optimizer_gib: Positive | None = None
    memory_activations_gib: Positive | None = None
    oom: bool = False
    failed: bool = False


class DerivedDocument(Foreign):
    """What whoever collected the rows worked out."""

    iteration_s: Positive | None = None


class RowDocument(Foreign):
    """A row; names as in Megatron and DeepSpeed."""

    id: Text
    source: Text
    system: Text
    model: ModelDocument
    gpus: Count
    gpu_type: Text
    gpus_per_node: Count
    tp: Count | None
    pp: Count | None
    dp: Count | None
    vp: Count | None
    micro_batch: Count | None
    global_batch: Count | None
    schedule: str | None
    recompute: str | None
    zero: Index | None
    precision: Text
    measured: MeasuredDocument
    cp: Count | None = 1
    ep: Count | None = 1
    derived: DerivedDocument | None = None
    note: str | None = None
    sequence_parallel: bool | None = None
    layers_per_stage: list[Index] | None = None
    topo: Text | None = None


class RowsDocument(Foreign):
    """A file of rows."""

    rows: list[RowDocument]


def read_measured_steps(path: str | os.PathLike[str]) -> list[MeasuredStep | SkippedStep]:
    """The steps in a file of measured rows, in its order.

    Raises:
        BadInput: the file cannot be read or is no JSON, a row lacks a field or has one of a wrong kind, or two rows
            have the same id.
    """
    rows = read_json(path, RowsDocument, do=ROWS_DO).rows
    twice = [name for name, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise BadInput(f"{len(twice)} id(s) stand there twice, {twice[0]!r} first", where=str(path), do=ROWS_DO)
    return [step_of(row) for row in rows]


def step_of(row: RowDocument) -> MeasuredStep | SkippedStep:
    """The step that a row describes, or why it cannot be priced."""
    try:
        return _step(row)
    except BadInput as error:
        return SkippedStep(row.id, row.source, str(error))


def _step(row: RowDocument) -> MeasuredStep:
    system, year = system_named(row.system), year_named(row.system)
    device, cluster = _hardware(row)
    shape = _shape(row, system)
    strategy = _strategy(row, system, year)
    strategy.require_cluster(cluster)
    strategy.require_model(shape)
    family = _one_of(FAMILIES, row.model.arch, "arch")
    _require_flop(row)
    measured = row.measured
    step_s = _step_s(row)
    memory_bytes = _memory_bytes(measured)
    if step_s is None and memory_bytes is None and not (measured.oom or measured.failed):
        raise BadInput("neither time nor memory is stated", where="`measured`")
    return MeasuredStep(
        name=row.id,
        source=row.source,
        system=row.system,
        family=family,
        shape=shape,
        tied=family != "llama" and not system.untied,
        dropout=family != "llama" and system.dropout,
        strategy=strategy,
        device=device,
        cluster=cluster,
        flash=year >= system.flash_from,
        async_tensor=strategy.tp > 1 and (system.async_tensor or bool(_ASYNC.search(row.note or ""))),
        gradient_bytes=2 if system.half_gradients and strategy.precision == "fp16" else 4,
        step_s=step_s,
        memory_bytes=memory_bytes,
        fits=False if measured.oom else None if measured.failed else True,
    )


def _stated(value: T | None, key: str) -> T:
    if value is None:
        raise BadInput("is not stated", where=f"`{key}`")
    return value


def _one_of(names: Mapping[str, T], name: str, key: str) -> T:
    if name not in names:
        raise BadInput(f"{name!r} is none of {', '.join(names)}", where=f"`{key}`")
    return names[name]


def _hardware(row: RowDocument) -> tuple[str, Cluster]:
    """The device's name, and the cluster with as many nodes as the row has."""
    kind = row.gpu_type.lower()
    device, topo = next(((device, topo) for pattern, device, topo in HARDWARE if re.search(pattern, kind)), ("", ""))
    if not device:
        raise BadInput(f"no device is shipped for {row.gpu_type!r}", where="`gpu_type`")
    for source, network, name in NETWORKS:
        topo = name if row.source.startswith(source) and device == network else topo
    nodes, rest = divmod(row.gpus, row.gpus_per_node) if row.gpus > row.gpus_per_node else (1, 0)
    if rest:
        raise BadInput(f"{row.gpus} devices do not fill nodes of {row.gpus_per_node}", where="`gpus`")
    usual = _usual_cluster(row.topo or topo)
    return device, replace(usual, nodes=nodes, devices_per_node=row.gpus // nodes)


@lru_cache
def _usual_cluster(name: str) -> Cluster:
    return read_cluster(name)


def _shape(row: RowDocument, system: System) -> TransformerShape:
    model = row.model
    if model.experts:
        raise BadInput(f"{model.experts} experts, of which the row does not say how they are built", where="`experts`")
    heads = model.heads or _usual_heads(model.hidden, row.tp or 1)
    vocabulary = _stated(model.vocab, "vocab")
    padded = math.ceil(vocabulary / system.vocabulary_multiple) * system.vocabulary_multiple
    return TransformerShape(
        name=model.name,
        layers=model.layers,
        hidden=model.hidden,
        heads=heads,
        kv_heads=model.kv_heads or heads,
        ffn=model.ffn or 4 * model.hidden,
        sequence=model.seq,
        vocabulary=padded,
    )


def _usual_heads(hidden: int, tp: int) -> int:
    """Heads as near to 128 wide as can be that tp divides, in multiples of 16 as published models have them."""
    heads = [count for count in range(tp, hidden + 1, tp) if hidden % count == 0]
    usual = [count for count in heads if count % 16 == 0] or heads
    if not usual:
        raise BadInput(f"no number of heads that tp {tp} divides makes {hidden}", where="`heads`")
    return min(usual, key=lambda count: abs(math.log(hidden / count / 128)))


def _strategy(row: RowDocument, system: System, year: int) -> Strategy:
    tp, pp, dp = _stated(row.tp, "tp"), _stated(row.pp, "pp"), _stated(row.dp, "dp")
    global_batch = _stated(row.global_batch, "global_batch")
    schedule = _schedule(row, pp)
    vp = row.vp or _usual_virtual(row, schedule, system)
    recompute = _recompute(row)
    shares = system.shares_tokens(year, tp, recompute == "selective")
    return Strategy(
        micro_batch=_micro_batch(row, system, global_batch, pp * dp),
        global_batch=global_batch,
        tp=tp,
        pp=pp,
        dp=dp,
        vp=vp,
        cp=row.cp or 1,
        ep=row.ep or 1,
        schedule=schedule,
        recompute=recompute,
        zero=min(row.zero or 0, system.zero_beside_pipeline if pp > 1 else 3),
        sequence_parallel=shares if row.sequence_parallel is None else row.sequence_parallel,
        precision=_precision(row),
        layers=_layers(row, pp * vp, system),
    )


def _schedule(row: RowDocument, pp: int) -> str:
    if row.schedule is None:
        return "interleaved" if pp > 1 and (row.vp or 1) > 1 else "1f1b"
    name = SCHEDULE_NAMES.get(re.sub(r"[^a-z0-9]", "", row.schedule.lower()))
    if name is None:
        raise BadInput(f"{row.schedule!r} is none of {', '.join(SCHEDULES)}", where="`schedule`")
    return name


def _usual_virtual(row: RowDocument, schedule: str, system: System) -> int:
    """Virtual stages a rank where the row does not say."""
    if schedule == "interleaved":
        return 2 if system.chunk_layers is None else math.ceil(row.model.layers / ((row.pp or 1) * system.chunk_layers))
    return SCHEDULES[schedule].virtual or 1


def _micro_batch(row: RowDocument, system: System, global_batch: int, pipelines: int) -> int:
    if row.micro_batch is None and system.micro_batches_are_ranks and global_batch % pipelines == 0:
        return global_batch // pipelines
    return _stated(row.micro_batch, "micro_batch")


def _recompute(row: RowDocument) -> Recompute:
    word = (row.recompute or "none").lower().split()[0]
    values: Mapping[str, Recompute] = {"none": "none", "selective": "selective", "full": "full"}
    return _one_of(values, word, "recompute")


def _precision(row: RowDocument) -> Precision:
    words = row.precision.lower()
    if "rowwise" in words:
        raise BadInput("float8 with a scale for every row runs at no rate that devices state", where="`precision`")
    known = next((precision for pattern, precision in PRECISIONS if re.search(pattern, words)), None)
    if known is None:
        raise BadInput(f"{row.precision!r} is none of fp32, fp16, bf16, fp8", where="`precision`")
    return known


def _layers(row: RowDocument, stages: int, system: System) -> tuple[int, ...] | None:
    """Layers of each virtual stage: as the row says, or as the system splits them."""
    if row.layers_per_stage is not None:
        return tuple(row.layers_per_stage)
    if match := _CUTS.search(row.note or ""):
        cuts = [int(cut) - _MODULES_BEFORE for cut in match[1].split(",")]
        inside = [min(max(cut, 0), row.model.layers) for cut in cuts]
        return tuple(after - before for before, after in pairwise(inside))
    return split_layers(row.model.layers, stages, system.remainder)


def _step_s(row: RowDocument) -> float | None:
    """Seconds of a step, from whatever was published."""
    measured, samples = row.measured, row.global_batch or 0
    if measured.iteration_s is not None:
        return measured.iteration_s
    if measured.tokens_per_s_per_gpu is not None:
        return samples * row.model.seq / (measured.tokens_per_s_per_gpu * row.gpus)
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
    tokens = (row.global_batch or 0) * model.seq
    per_layer = (96 if _recompute(row) == "full" else 72) * model.hidden**2 * (1 + model.seq / (6 * model.hidden))
    return tokens * (model.layers * per_layer + 6 * model.hidden * (model.vocab or 0))


def _require_flop(row: RowDocument) -> None:
    """Refuse a row whose published time and TFLOP/s are of a larger model than its sizes make.

    A publisher's count of FLOP may leave parts out. It counts nothing that is not in `narayanan_flop`.
    """
    measured = row.measured
    if measured.iteration_s is None or measured.tflops_per_gpu is None:
        return
    published = measured.iteration_s * measured.tflops_per_gpu * 1e12 * row.gpus
    if published > MOST_FLOP * narayanan_flop(row):
        share = published / narayanan_flop(row)
        raise BadInput(f"its time and TFLOP/s are {share:.2f} of the FLOP of its sizes", where="`measured`")


def _memory_bytes(measured: MeasuredDocument) -> float | None:
    """Bytes of the fullest device; GB are 10⁹ bytes, GiB 2³⁰."""
    if measured.memory_max_allocated_bytes is not None:
        return measured.memory_max_allocated_bytes
    if measured.memory_gib is not None:
        return measured.memory_gib * GIB
    if measured.memory_gb is not None:
        return measured.memory_gb * 1e9
    if measured.memory_params_optimizer_gib is not None and measured.memory_activations_gib is not None:
        return (measured.memory_params_optimizer_gib + measured.memory_activations_gib) * GIB
    return None
