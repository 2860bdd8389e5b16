"""What a file of measured rows holds, key by key; formats.measured_rows says what becomes of it."""

from __future__ import annotations

import math

from msgspec import UNSET, UnsetType

from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.formats.schema import Count, Foreign, Index, Positive, Text

GIB = 1 << 30


class MixtureDocument(Foreign):
    """The mixture of experts of a row's model."""

    expert_ffn: Count
    gated: bool = True
    dense_layers: Index = 0
    dense_ffn: Count | None = None
    shared_ffn: Index | None = None
    latent: Count | None = None
    every: Count = 1


class MambaDocument(Foreign):
    """The Mamba-2 layers of a row's model."""

    heads: Count
    head_dim: Count
    groups: Count
    state: Count


class HybridDocument(Foreign):
    """What blocks of one sublayer each are, by letter, and the sizes of those that are no attention."""

    pattern: Text
    mamba: MambaDocument | None = None


class LatentDocument(Foreign):
    """The latents of a row's attention."""

    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope: Count | None = None
    qk_rope: Count | None = None
    v: Count | None = None


class WindowDocument(Foreign):
    """Tokens that windowed attention reads, and the blocks that have it."""

    tokens: Count
    layers: Index


class ModelDocument(Foreign):
    """A row's model."""

    name: Text
    arch: Text
    layers: Count | None
    hidden: Count | None
    seq: Count | None
    vocab: Count | None
    ffn: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    experts: Index | None = None
    topk: Index | None = None
    head_dim: Count | None = None
    moe: MixtureDocument | bool | None = None
    mla: LatentDocument | None = None
    mtp_layers: Index | None = None
    window: WindowDocument | None = None
    hybrid: HybridDocument | None = None
    family: str | None = None
    attention_note: str | None = None


class TrainingDocument(Foreign):
    """What of a row's model is trained, and by which optimiser: options of `core.tuning.Training`."""

    lora: Text | None = None
    quantize: bool = False
    optimizer: Text = "adamw"
    states: Text = "fp32"
    packed: Index = 0


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
    memory_percent: Positive | None = None
    memory_params_optimizer_gib: Positive | None = None
    memory_activations_gib: Positive | None = None
    oom: bool = False
    failed: bool = False

    @property
    def only_tensors(self) -> bool:
        """Whether the memory is that of the tensors which PyTorch's allocator counts, or of their kinds."""
        of_device = (self.memory_gib, self.memory_gb, self.memory_percent)
        return self.memory_max_allocated_bytes is not None or of_device == (None, None, None)

    def memory_bytes(self, device_bytes: float) -> float | None:
        """Of the fullest device, which has so many; GB are 10⁹ bytes, GiB 2³⁰."""
        kinds = (self.memory_params_optimizer_gib, self.memory_activations_gib)
        of_kinds = None if None in kinds else math.fsum(kinds)  # type: ignore[arg-type]  # neither is None
        units = ((self.memory_max_allocated_bytes, 1), (self.memory_gib, GIB), (self.memory_gb, 1e9), (of_kinds, GIB))
        units += ((self.memory_percent, device_bytes / 100),)
        return next((amount * unit for amount, unit in units if amount is not None), None)


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
    tp: Count | None
    pp: Count | None
    global_batch: Count | None
    precision: Text | None
    measured: MeasuredDocument
    gpus_per_node: Count | None = None
    dp: Count | None = None
    dp_replicate: Count | None = None
    vp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    micro_batch: Count | None = None
    schedule: str | None = None
    recompute: str | None = None
    zero: Index | None = None
    derived: DerivedDocument | None = None
    note: str | None = None
    flags: list[str] | None = None
    sequence_parallel: bool | None = None
    layers_per_stage: list[Index] | None = None
    moe_dispatcher: str | None = None
    etp: int | None = None
    ep_overlap: bool | None = None
    tp_comm_overlap: bool | None = None
    cuda_graph: str | None = None
    recipe: str | None = None
    ladder: str | None = None
    recompute_modules: list[str] | None = None
    topo: Text | None = None
    cluster: ClusterDocument | None = None
    flash: bool | None = None
    unknown: list[str] | None = None
    training: TrainingDocument | None = None


class SourceDocument(Foreign):
    """What a file says of a source."""

    what: str | None = None
    note: str | None = None

    @property
    def words(self) -> str:
        """All of it."""
        return f"{self.what or ''}; {self.note or ''}"


class RunDocument(Foreign):
    """What the record of a run says of its row."""

    no_row: str | None = None


class RowsDocument(Foreign):
    """A file of rows, or the record of a run, which has one or says why not."""

    rows: list[RowDocument] | UnsetType = UNSET
    run: RunDocument | None = None
    sources: dict[str, SourceDocument] | None = None
