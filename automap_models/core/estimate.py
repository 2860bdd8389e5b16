"""What a strategy costs on a cluster: an estimated step, what it consists of, and the memory of every rank."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from automap_models.core.cluster import RESERVE, MemoryVerdict, memory_verdict, upper_bytes
from automap_models.core.framework import ModelFacts
from automap_models.core.strategy import ONCE_A_NODE, RECOMPUTE, Strategy, in_words
from automap_models.core.units import counted, rounds

NO_HOST = (0.0, float("inf"))
"""What lies in the memory of a host, and how much of that there is, where nothing is offloaded."""


class DeviceMemory(NamedTuple):
    """Bytes of one device of a rank of the pipeline.

    Attributes:
        weights, gradients, optimizer: training state, as ZeRO divides it.
        gathered: weights of the units that ZeRO-3 holds gathered at once.
        activations: saved for passes to come, at the fullest time.
        temporary: of a layer while it is recomputed, and of logits and their gradients.
        runtime: of the driver, libraries and buffers of collectives.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    temporary: float = 0.0
    runtime: float = 0.0

    @property
    def state(self) -> float:
        """Weights, gradients and the optimiser's state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(self))


class StepParts(NamedTuple):
    """What the step consists of, seconds, on the rank of the pipeline that works longest; they add up to the step.

    Attributes:
        compute: kernels of the forward and backward passes, each once; and what the host takes beyond the former.
        recompute: what the backward passes run again, with its collectives, or wait for from the host.
        tensor_parallel: sums of tensor parallelism.
        context_parallel: keys and values on their way that attention does not hide.
        expert_parallel: tokens on their way to experts and back.
        bubble: the rank waits for others because of the order of passes and of unequal stages.
        transfers: it waits longer because messages between ranks of the pipeline take time.
        data_parallel: gradients and weights on their way that computation does not hide, and the sum over a word
            embedding that both ends of the pipeline hold.
        optimizer: the update.
    """

    compute: float
    recompute: float
    tensor_parallel: float
    context_parallel: float
    expert_parallel: float
    bubble: float
    transfers: float
    data_parallel: float
    optimizer: float

    @property
    def total(self) -> float:
        """The step."""
        return float(sum(self))


class Module(NamedTuple):
    """Where a part of a model with parallelism of its own lies.

    Attributes:
        name: `vision`, a tower of images with its projector, or `language`, all else.
        first_device, devices: the first one, and how many there are from it on.
        tp, cp, pp, dp: of the part; of a tower, cp is of devices that encode the same images.
    """

    name: str
    first_device: int
    devices: int
    tp: int
    cp: int
    pp: int
    dp: int


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A strategy's price.

    Attributes:
        strategy: that is priced.
        stage_layers: [pp·vp] of each virtual stage, in the order of the model.
        model, cluster, device: names.
        facts: what frameworks ask of the model.
        step_s: seconds of one global batch.
        tokens_per_s_per_device: of all samples of the global batch.
        mfu: model FLOP/s utilisation: FLOP of the model's own products without recomputation, over the peak of the
            precision.
        parts: what the step consists of.
        parts_rank: the rank of the pipeline that the parts are of: the others wait for it.
        bubble_rate: share of its passes' time that this rank waits, because of bubble and transfers.
        memory: [pp] of a device of each rank of the pipeline.
        memory_bytes: [pp] that a device of each rank has, the smallest one.
        host: bytes of the share that the fullest device has of its host's memory, and how large that is.
        passes_s: [3, pp·vp] of a micro-batch: forward passes, backward passes, and what of these makes gradients of
            weights.
        transfers_s: [pp·vp - 1] of a message to the next virtual stage, beside passes.
        reduced_s: [pp] what each rank does between its last pass and its update.
        runtime: name of the program that runs it; empty of programs in general.
        reserve: share of a device's memory by which estimates of that program may fall short.
        imbalance: tokens for the experts of the fullest device over the mean of all.
        unfitted: names of devices without constants fitted to them, which have those of others in the mean.
    """

    strategy: Strategy
    stage_layers: tuple[int, ...]
    model: str
    cluster: str
    device: str
    step_s: float
    tokens_per_s_per_device: float
    mfu: float
    parts: StepParts
    parts_rank: int
    bubble_rate: float
    memory: tuple[DeviceMemory, ...]
    memory_bytes: tuple[float, ...]
    facts: ModelFacts
    passes_s: tuple[tuple[float, ...], ...] = ()
    transfers_s: tuple[float, ...] = ()
    reduced_s: tuple[float, ...] = ()
    runtime: str = ""
    reserve: float = RESERVE
    imbalance: float = 1.0
    unfitted: tuple[str, ...] = ()
    host: tuple[float, float] = NO_HOST

    @property
    def tokens_per_s(self) -> float:
        """Of all devices."""
        return self.tokens_per_s_per_device * self.strategy.devices

    @property
    def peak_memory(self) -> float:
        """Bytes of the fullest device."""
        return max(device_memory.total for device_memory in self.memory)

    @property
    def fits(self) -> bool:
        """Whether every device holds what it has to, and its host, too."""
        return self.fullest[0] <= self.fullest[1] and self.host[0] <= self.host[1]

    @property
    def verdict(self) -> MemoryVerdict:
        """Whether every device holds what it has to, and would hold the upper bound of that, too."""
        nbytes, limit, _ = self.fullest
        if self.host[0] > self.host[1]:
            return "does not fit"
        return memory_verdict(nbytes, limit, reserve=self.reserve)

    def upper_bytes(self, nbytes: float) -> float:
        """What is at most there of what is estimated to be so much."""
        return upper_bytes(nbytes, self.reserve)

    @property
    def modules(self) -> tuple[Module, ...]:
        """Of a model with a tower of images; nothing of others. A first stage without blocks is the tower's own."""
        s, of_rank = self.strategy, self.strategy.devices // self.strategy.pp
        if self.facts.shape is None or self.facts.shape.images is None:
            return ()
        tp, cp = (s.tower_tp, 1) if s.tower_tp is not None else (s.tp, s.cp)
        alone = s.vp == 1 and self.stage_layers[0] == 0
        return (
            Module("vision", 0, of_rank, tp, cp, 1, of_rank // (tp * cp)),
            Module("language", alone * of_rank, s.devices - alone * of_rank, s.tp, s.cp, s.pp - alone, s.dp),
        )

    @property
    def fullest(self) -> tuple[float, float, int]:
        """Bytes that the device holds which has least left, bytes that it has, and its rank."""
        ranks = range(len(self.memory))
        rank = max(ranks, key=lambda r: self.memory[r].total - self.memory_bytes[r])
        return self.memory[rank].total, self.memory_bytes[rank], rank


def strategy_in_words(estimate: Estimate) -> str:
    """`tp 8, pp 16, dp 4, 64 micro-batches of 1, 1f1b, full recomputation, bf16`: what is not 1 or left out."""
    s = estimate.strategy
    degrees = [f"{name} {getattr(s, name)}" for name in ("tp", "cp", "ep", "dp", "pp", "vp")]
    parts = [degree for degree in degrees if not degree.endswith(" 1")] or ["one device"]
    if s.expert_tensor != s.tp:
        parts.append("experts whole")
    if s.tower_tp is not None and s.image_groups > 1:
        parts.append(f"images over {s.image_groups} groups of {counted(s.tower_tp, 'device')}")
    if s.ep > 1 and s.dispatcher in ONCE_A_NODE:
        parts.append(ONCE_A_NODE[s.dispatcher])
    parts.append(f"{rounds(s.micro_batches)} of {counted(s.micro_batch, 'sample')}")
    if s.stages > 1:
        parts.append(s.schedule)
    if s.layers is not None and s.stages > 1:
        parts.append(f"{_runs(s.layers)} layers a stage")
    parts += _recomputation(s, estimate.stage_layers)
    if s.zero:
        parts.append(f"ZeRO-{s.zero}" + (f" within {s.shards} ranks" if s.dp_replicate > 1 else ""))
    if s.offload == "optimizer":
        parts.append("optimizer on hosts")
    if s.sequence_parallel:
        parts.append("sequence parallelism")
    return ", ".join([*parts, s.precision])


def _runs(counts: tuple[int, ...]) -> str:
    """`3 × 8, 7`: equal neighbours together."""
    runs = [(value, len(list(same))) for value, same in groupby(counts)]
    return ", ".join(f"{times} × {value}" if times > 1 else str(value) for value, times in runs)


def _recomputation(strategy: Strategy, layers: tuple[int, ...]) -> list[str]:
    """What is recomputed of how many layers; nothing where nothing is."""
    blocks = layers if strategy.recompute_blocks is None else strategy.recompute_blocks
    words = []
    order = [*RECOMPUTE[1:], *sorted(set(strategy.recompute_kinds).difference(RECOMPUTE))]
    for kind in order:
        count = sum(n for n, block_kind in zip(blocks, strategy.recompute_kinds, strict=True) if block_kind == kind)
        if count:
            all_of_them = count == sum(layers)
            words.append(in_words(kind) + ("" if all_of_them else f" of {count} of {sum(layers)} layers"))
    return words
