"""A strategy: how a model is trained on a cluster, in the words of Megatron, torchtitan and DeepSpeed.

    devices        = tp · cp · dp · pp
    micro-batches  = global batch / (dp · micro-batch)

Experts lie on the devices of a rank of the pipeline in a way of their own (Megatron's parallel folding, 2504.14960):

    tp · cp · dp = etp · ep · expert data parallelism

Expert tensor parallelism etp is tp, so that the devices of tp share each expert, or 1: each expert is whole on its
devices. Where nobody says it is tp if ep divides dp, and else 1.

Every stage has as many devices as the others. Stages may differ in their layers and in what they recompute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, get_args

from automap_models.core.schedules import DEFAULT_SCHEDULE, require_runnable
from automap_models.errors import BadInput

if TYPE_CHECKING:
    from automap_models.core.cluster import Cluster
    from automap_models.core.passes import Schedule

Recompute = str
"""What the backward pass computes again: one of RECOMPUTE, or some of MODULES, such as `layernorm+moe_act`."""
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "offload", "full")
"""Nothing, the attention core, nothing of a layer whose host saves what it needs, or its whole forward pass."""
ON_DEVICES: tuple[Recompute, ...] = ("none", "selective", "full")
"""Those without a host."""
MODULES = ("layernorm", "mla_up_proj", "moe_act", "shared_experts", "mlp", "moe", "core_attn")
"""Parts of a block, by Megatron's names: norms before latent attention and experts, what makes queries, keys and values
of latents, activations of experts, shared experts, perceptrons, whole mixtures, attention cores."""
Precision = Literal["fp32", "fp16", "bf16", "fp8", "nvfp4"]
"""Of weights and activations; all but fp32 have master weights in fp32. With fp8 (mxfp8, too) and nvfp4 these are in
bf16, and products of blocks read them in 8 and 4 bits."""
NARROW = {"fp8": "float8", "nvfp4": "float4"}
"""Precision → element type of the operands of products of blocks, where it is narrower than that of weights."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
"""How tokens go to experts: once to each of them (NCCL's all-to-all, or all-gathers), or once to each node that has
experts of a token, where NVLink spreads it (DeepEP, and HybridEP for NVL72)."""
DISPATCHERS: tuple[Dispatcher, ...] = get_args(Dispatcher)
ONCE_A_NODE: Mapping[Dispatcher | None, str] = {"deepep": "DeepEP", "hybridep": "HybridEP"}
"""Those that send tokens once a node → what people call them."""
Offload = Literal["none", "optimizer"]
"""What lies in the memory of the host: nothing, or the optimiser's state, which the host then updates."""
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
ZERO_STAGES = (0, 1, 2, 3)
"""What the ranks of data parallelism share: nothing, the optimiser's state, gradients too, weights too (FSDP)."""


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """The sizes of a transformer that a strategy divides.

    Attributes:
        name: what people call it.
        layers: blocks, of which stages hold whole ones.
        hidden: width of a token.
        heads, kv_heads: of attention; of its keys and values, where they are fewer.
        ffn: width inside the multi-layer perceptron.
        sequence: tokens in a sample.
        vocabulary: rows of the embedding.
        experts: in a layer; None where there are none.
        outputs: columns of the output matrix; None where they are those of the vocabulary.
        tower_heads: of attention in a tower of images; None where there is none.
        images: of a sample, that the tower encodes; None likewise.
        tower_layers: blocks that add up what the tower hands on, the first ones; None where the first of all reads it.
        mtp_layers: that predict further tokens, on the last rank; None where there are none.

    Raises:
        BadInput: a size that is no positive whole number, or heads that are no multiple of `kv_heads`.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    sequence: int
    vocabulary: int
    experts: int | None = None
    outputs: int | None = None
    tower_heads: int | None = None
    images: int | None = None
    tower_layers: int | None = None
    mtp_layers: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "name" and not (value is None and field.default is None):
                _require_count(field.name, value)
        if self.heads % self.kv_heads:
            what = f"{self.heads} heads share {self.kv_heads} of keys and values unevenly"
            raise BadInput(what, where="`kv_heads`", do="give a divisor of the heads")


_COUNTS = ("micro_batch", "global_batch", "tp", "pp", "dp", "vp", "cp", "ep", "dp_replicate")
_counts = attrgetter(*_COUNTS)
_NAMES = {"zero": ZERO_STAGES, "precision": PRECISIONS, "dispatcher": (None, *DISPATCHERS), "offload": OFFLOADS}
_names = attrgetter(*_NAMES)


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How a model is trained: into what it is divided, in which order it runs, and what is kept.

    Attributes:
        micro_batch: samples of a micro-batch on one rank of data parallelism.
        global_batch: samples of a step.
        tp: devices that share every operator.
        pp: ranks of the pipeline, S.
        dp: ranks of data parallelism.
        dp_replicate: groups of neighbours that they are in, within which ZeRO divides; between groups the parts of
            gradients are summed (hybrid sharding: FSDP's HSDP, Megatron's distributed-optimizer instances).
        vp: virtual stages a rank of the pipeline.
        cp: devices that share every sequence.
        ep: ranks that share the experts of a layer: of data parallelism, or of tp · cp · dp.
        etp: devices that share each expert: those of tp, or 1; None: see above.
        tower_tp: devices that share the operators of a tower of images, a divisor of tp; tp · cp / tower_tp groups of
            them encode different images of a micro-batch. None: those of tp, and every device of cp encodes all images.
        schedule: a key of `core.schedules.SCHEDULES`.
        recompute: what the backward pass computes again; of all virtual stages, or [pp·vp] of each.
        recompute_blocks: [pp·vp] of how many blocks of each virtual stage, its first ones; None for all of them.
        zero: which of ZERO_STAGES.
        sequence_parallel: whether the devices of tp share what is between their operators, too.
        precision: of weights and activations.
        dispatcher: how tokens go to experts; None: as the runtime has it by default.
        offload: what lies in the memory of the host.
        layers: [pp·vp] of each virtual stage in the order of the model; None for equally many.

    Raises:
        BadInput: a number that is not positive, a name that is unknown, a global batch that dp · micro_batch does not
            divide, a schedule that does not run so many micro-batches or virtual stages, etp that is neither 1 nor tp,
            etp · ep that does not divide tp · cp · dp, tower_tp that does not divide tp, layers or recomputation of
            another number of virtual stages.
    """

    micro_batch: int
    global_batch: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dp_replicate: int = 1
    vp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    tower_tp: int | None = None
    schedule: str = DEFAULT_SCHEDULE
    recompute: Recompute | tuple[Recompute, ...] = "none"
    recompute_blocks: tuple[int, ...] | None = None
    zero: int = 0
    sequence_parallel: bool = False
    precision: Precision = "bf16"
    dispatcher: Dispatcher | None = None
    offload: Offload = "none"
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for key, count in zip(_COUNTS, _counts(self), strict=True):
            if type(count) is not int or count < 1:  # quick, as searches make thousands
                _require_count(key, count)
        of_stages = self.recompute if isinstance(self.recompute, tuple) else (self.recompute,)
        unknown = [("recompute", kind) for kind in of_stages if kind not in RECOMPUTE and not modules_of(kind)]
        unknown += [(key, value) for key, value in zip(_NAMES, _names(self), strict=True) if value not in _NAMES[key]]
        for key, value in unknown:
            do = f"choose from {', '.join(map(str, _NAMES.get(key, RECOMPUTE)))}"
            raise BadInput(f"{value!r} is none of them", where=f"`{key}`", do=do)
        samples = self.dp * self.micro_batch
        if self.global_batch % samples:
            what = f"{self.dp} × {self.micro_batch} samples (dp × micro-batch) do not divide {self.global_batch}"
            raise BadInput(what, where="`global_batch`", do=f"give a multiple of {samples}")
        if self.tp * self.cp * self.dp % self.ep:
            what = f"{self.ep} ranks do not divide the {self.tp * self.cp * self.dp} devices of tp · cp · dp"
            raise BadInput(what, where="`ep`", do="give a divisor of them")
        if self.etp not in (None, 1, self.tp):
            what = f"{self.etp} devices share no expert where tp is {self.tp}"
            raise BadInput(what, where="`etp`", do=f"give 1, or {self.tp}")
        if self.tp * self.cp * self.dp % (self.expert_tensor * self.ep):
            what = f"{self.etp} × {self.ep} (etp × ep) do not divide the {self.tp * self.cp * self.dp} of tp · cp · dp"
            raise BadInput(what, where="`etp`", do="give 1, or an ep that divides dp · cp")
        if self.tower_tp is not None and (not _is_count(self.tower_tp, 1) or self.tp % self.tower_tp):
            what = f"{self.tower_tp} devices share no tower of images where tp is {self.tp}"
            raise BadInput(what, where="`tower_tp`", do="give a divisor of tp")
        if self.dp_replicate > 1:
            self._require_replicas()
        require_runnable(self.schedule, self.pp, self.micro_batches, self.vp)
        if isinstance(self.recompute, tuple) and len(self.recompute) != self.stages:
            what = f"{len(self.recompute)} kinds for {self.pp} × {self.vp} stages (pp × vp)"
            raise BadInput(what, where="`recompute`", do="give one for all, or one for each stage")
        for key, unit in (("layers", "layers"), ("recompute_blocks", "blocks")):
            counts = getattr(self, key)
            if counts is not None and (len(counts) != self.stages or any(not _is_count(n, 0) for n in counts)):
                what = f"{len(counts)} numbers of {unit} for {self.pp} × {self.vp} stages (pp × vp)"
                raise BadInput(what, where=f"`{key}`", do="give one whole number of 0 or more for each stage")

    def _require_replicas(self) -> None:
        where, n = "`dp_replicate`", self.dp_replicate
        if not self.zero:
            raise BadInput(f"{n} groups divide nothing without ZeRO", where=where, do="give `zero`, or leave it out")
        for name, ranks in (("dp", self.dp), ("ranks that hold the same experts", self.expert_data)):
            if ranks % n:
                raise BadInput(f"{n} does not divide the {ranks} {name}", where=where, do="give a divisor")
        if self.shards == 1:
            raise BadInput(f"{n} groups of one rank divide nothing", where=where, do="give fewer, or `zero` 0")

    @property
    def shards(self) -> int:
        """Devices among which ZeRO divides what it does, but for experts: of dp · cp those of one group."""
        return self.dp * self.cp // self.dp_replicate

    @property
    def expert_shards(self) -> int:
        """Devices among which ZeRO divides experts."""
        return self.expert_data // self.dp_replicate

    @property
    def devices(self) -> int:
        """tp · cp · dp · pp."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_tensor(self) -> int:
        """Devices that share every expert."""
        return expert_tensor(self.tp, self.dp, self.ep, self.etp)

    @property
    def expert_data(self) -> int:
        """Devices of a rank of the pipeline that hold the same part of the experts."""
        return self.tp * self.cp * self.dp // (self.ep * self.expert_tensor)

    @property
    def image_groups(self) -> int:
        """Groups of the devices of tp · cp that encode different images of a micro-batch."""
        return 1 if self.tower_tp is None else self.tp * self.cp // self.tower_tp

    @property
    def dtype(self) -> str:
        """Element type of weights and activations; of all but operands of products where these are NARROW."""
        return {"fp32": "float32", "fp16": "float16"}.get(self.precision, "bfloat16")

    @property
    def product_dtype(self) -> str:
        """Element type of the operands of products of blocks."""
        return NARROW.get(self.precision, self.dtype)

    @property
    def stages(self) -> int:
        """Virtual stages pp · vp."""
        return self.pp * self.vp

    @property
    def recompute_kinds(self) -> tuple[Recompute, ...]:
        """[pp·vp] what each virtual stage recomputes."""
        return self.recompute if isinstance(self.recompute, tuple) else (self.recompute,) * self.stages

    @property
    def micro_batches(self) -> int:
        """M, that a step takes through the pipeline."""
        return self.global_batch // (self.dp * self.micro_batch)

    def build_schedule(self) -> Schedule:
        """The order of passes of every rank of the pipeline."""
        from automap_models.core.passes import build_schedule  # here, because help imports no numpy

        with batch_in_samples(self.dp * self.micro_batch):
            return build_schedule(self.schedule, self.pp, self.micro_batches, self.vp)

    def stage_layers(self, shape: TransformerShape) -> tuple[int, ...]:
        """[pp·vp] layers of each virtual stage, in the order of the model.

        Raises:
            BadInput: the layers do not make equally large stages, or are others than the model's.
        """
        if self.layers is not None:
            if sum(self.layers) != shape.layers:
                what = f"they hold {sum(self.layers)} layers, {shape.name} has {shape.layers}"
                raise BadInput(what, where="`layers`", do="let them add up to the model's")
            return self.layers
        count, rest = divmod(shape.layers, self.stages)
        if rest:
            what = f"{shape.layers} layers of {shape.name} do not make {self.pp} × {self.vp} equal stages (pp × vp)"
            raise BadInput(what, where="`pp`", do="give divisors of the layers, or `layers` for each stage")
        return (count,) * self.stages

    def stage_recompute(self, shape: TransformerShape) -> tuple[tuple[Recompute, int], ...]:
        """[pp·vp] what each virtual stage recomputes, and of how many blocks, its first ones.

        Raises:
            BadInput: see `stage_layers`; or it is of more blocks than the stage has.
        """
        layers = self.stage_layers(shape)
        if self.recompute_blocks is None:
            return tuple(zip(self.recompute_kinds, layers, strict=True))
        for stage, (blocks, count) in enumerate(zip(self.recompute_blocks, layers, strict=True)):
            if blocks > count:
                what = f"{blocks} of the {count} layers of virtual stage {stage}"
                raise BadInput(what, where="`recompute_blocks`", do=f"give at most {count}")
        return tuple(zip(self.recompute_kinds, self.recompute_blocks, strict=True))

    def require_cluster(self, cluster: Cluster) -> None:
        """Refuse a cluster of another number of devices.

        Raises:
            BadInput: it has.
        """
        if self.devices != cluster.devices:
            parts = f"tp {self.tp} × cp {self.cp} × dp {self.dp} × pp {self.pp}"
            what = f"{parts} are {self.devices} devices, cluster {cluster.name} has {cluster.devices}"
            raise BadInput(what, where="`dp`", do="let their product be the number of devices")

    def require_model(self, shape: TransformerShape) -> None:
        """Refuse a model that cannot be divided like this.

        Raises:
            BadInput: see `require_parts`, `stage_layers` and `stage_recompute`; or the first stage lacks a layer that
                reads what a tower hands on.
        """
        self.stage_recompute(shape)
        first, least = self.stage_layers(shape)[0], shape.tower_layers or 0
        if first < least:
            what = f"the first stage has {first} of the {least} layers that read the tower of {shape.name}"
            raise BadInput(what, where="`layers`", do=f"give it {least} or more")
        require_parts(shape, **{name: getattr(self, name) for name in PARTS})


@lru_cache(maxsize=1024)
def modules_of(recompute: Recompute) -> tuple[str, ...]:
    """The modules that are recomputed by name, in the order of MODULES; none for one of RECOMPUTE."""
    names = set(recompute.split("+"))
    return tuple(filter(names.__contains__, MODULES)) if names.issubset(MODULES) else ()


def in_words(recompute: Recompute) -> str:
    """What people call a kind of recomputation."""
    return "activations on hosts" if recompute == "offload" else f"{recompute} recomputation"


def expert_tensor(tp: int, dp: int, ep: int, etp: int | None) -> int:
    """Devices that share every expert, see `Strategy`."""
    return (tp if dp % ep == 0 else 1) if etp is None else etp


@contextmanager
def batch_in_samples(samples: int) -> Iterator[None]:
    """What asks for other micro-batches asks for another global batch: a strategy has no number of micro-batches.

    Args:
        samples: of a micro-batch on all replicas.
    """
    try:
        yield
    except BadInput as error:
        if error.where != "`micro_batches`":
            raise
        do = f"{error.do}, of {samples} sample(s) each (dp × micro-batch)"
        raise BadInput(error.what, where="`global_batch`", do=do) from None


PARTS = ("tp", "cp", "ep", "sequence_parallel", "dispatcher", "etp", "tower_tp")
"""Fields that say into how many parts operators, samples and experts are divided, and how experts get their tokens."""


def require_parts(
    shape: TransformerShape,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    sequence_parallel: bool = False,
    dispatcher: Dispatcher | None = None,
    etp: int | None = None,
    tower_tp: int | None = None,
) -> None:
    """Refuse a model whose operators, samples or experts cannot be divided like this.

    Args:
        tp, cp, ep, sequence_parallel, dispatcher, etp, tower_tp: see `Strategy`.

    Raises:
        BadInput: tp does not divide its heads or its perceptron, or keys and values neither divide nor are divided by
            it; tower_tp, or tp without, does not divide the heads of its tower; cp, or tp with sequence parallelism,
            does not divide its tokens; ep does not divide its experts; there are none, or no tower, and it is said how
            they are divided or get their tokens.
    """
    for key, value in (("dispatcher", dispatcher), ("etp", etp)):
        if value is not None and shape.experts is None:
            raise BadInput(f"{shape.name} has no experts", where=f"`{key}`", do="leave it out")
    if tower_tp is not None and shape.tower_heads is None:
        raise BadInput(f"{shape.name} has no tower of images", where="`tower_tp`", do="leave it out")
    tokens = tp * cp if sequence_parallel else cp
    for key, parts, noun, total in (
        ("tp", tp, "heads", shape.heads),
        ("tp", tp, "columns of the perceptron", shape.ffn),
        ("tower_tp" if tower_tp else "tp", tower_tp or tp, "heads of the tower", shape.tower_heads or tower_tp or tp),
        ("cp" if tokens == cp else "sequence_parallel", tokens, "tokens of a sample", shape.sequence),
        ("ep", ep, "expert(s) of a layer", shape.experts or 1),
    ):
        if total % parts:
            what = f"{parts} does not divide the {total} {noun} of {shape.name}"
            raise BadInput(what, where=f"`{key}`", do="give a divisor")
    if shape.kv_heads % tp and tp % shape.kv_heads:
        what = f"{tp} and the {shape.kv_heads} heads of keys and values of {shape.name} do not divide each other"
        raise BadInput(what, where="`tp`", do=f"give a divisor or a multiple of {shape.kv_heads}")


def _is_count(value: object, least: int) -> bool:
    return (type(value) is int or (isinstance(value, int) and not isinstance(value, bool))) and value >= least


def _require_count(key: str, value: object) -> None:
    if not _is_count(value, 1):
        raise BadInput(f"{value!r} is no number of them", where=f"`{key}`", do="give a whole number from 1 on")
