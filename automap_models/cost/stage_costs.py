"""What the virtual stages of a pipeline cost under a strategy: their passes, their messages, and their memory.

    layers of the model     0 (before the blocks)   1   2   3   4   5 (after them)
    virtual stages          └──────── 0 ────────────────┘   └──────── 1 ────────┘

Passes of a virtual stage for one micro-batch, in seconds:

    F   kernels + sums of tp + keys and values of cp + tokens of ep + weights that ZeRO-3 gathers
    I   the same of the gradients of activations + what is recomputed
    W   kernels of the gradients of weights

Full recomputation runs the forward pass of every block again, with its collectives. Selective recomputation runs
attention cores again (2205.05198). Where these are flash kernels, which keep no scores in the first place, it is what
torchtitan means by the word: every second product and all kernels that are none. What comes before and after the
blocks is never recomputed.

Communication of data parallelism hides behind a share of the computation beside it, and never more than that share of
itself (`exposed_s`). Gradients go beside the last backward pass of a rank. With ZeRO-3 the weights of a layer are
gathered beside a forward and a backward pass of as large a layer, but those of the first layer of a stage beside none.

A rank computes nothing while it sends, in schedules whose backward pass is whole: Megatron's messages are sent and
received in one call. Schedules that split it, and 1f1b-deep, send beside their passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import DeviceMemory
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.model_work import LayerWork, ModelWork
from automap_models.core.schedules import SCHEDULES, rank_of
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_times import (
    DEFAULT_RUNTIME,
    ITEM_BYTES,
    PREFETCHED,
    LayerTimes,
    Runtime,
    Shares,
    StepClock,
)
from automap_models.cost.process_groups import ProcessGroups, process_groups
from automap_models.cost.strategy import device_memory, parameter_bytes

GROUP_BYTES = 1.5e9
"""Of the buffers, and of the memory that they break into pieces, of each kind of group that a device communicates in.
Chosen by trial on the published steps of benchmarks/results/measured_steps.md that state what a device held; no
source was left out."""
EIGHT_BITS = 2
"""How many times fewer bytes operands take that are cast to 8 bits; Transformer Engine saves them like this."""
SENDING_ALONE = frozenset({"gpipe", "1f1b", "interleaved"})
"""Schedules in which a rank computes nothing while it sends."""


class StageTimes(NamedTuple):
    """[V] seconds of virtual stages for one micro-batch, by what they are spent on.

    Attributes:
        forward, input, weight: kernels of the passes.
        recompute: of what the backward pass runs again.
        tensor, context, experts, gathers: forward and backward, [2, V] each; the last one is of ZeRO-3.
    """

    forward: FloatArray
    input: FloatArray
    weight: FloatArray
    recompute: FloatArray
    tensor: FloatArray
    context: FloatArray
    experts: FloatArray
    gathers: FloatArray

    @property
    def passes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of F, I and W."""
        others = self.tensor + self.context + self.experts + self.gathers
        return self.forward + others[0], self.input + self.recompute + others[1], self.weight


@dataclass(frozen=True)
class StageCosts:
    """Everything that the schedule is played with.

    Attributes:
        times: of virtual stages.
        transfer_s: [V-1] of a message between neighbouring ones.
        sends_beside: whether ranks compute while they send.
        rank_of: [V] the rank that each is on.
        data_s: [S] exposed communication of data parallelism of each rank, once a step.
        tied_s: of the sum over a word embedding that the first and the last rank hold.
        optimizer_s: of the update, on the slowest rank.
        memory: [S] of a device of each rank.
    """

    times: StageTimes
    transfer_s: FloatArray
    sends_beside: bool
    rank_of: tuple[int, ...]
    data_s: FloatArray
    tied_s: float
    optimizer_s: float
    memory: tuple[DeviceMemory, ...]


def exposed_s(communication_s: float, computation_s: float, overlap: float) -> float:
    """What communication takes beyond the computation beside it, of which it hides behind a share, and that of itself.

    max(communication - overlap · computation, (1 - overlap) · communication)
    """
    return communication_s - overlap * min(communication_s, computation_s)


def stage_costs(
    work: ModelWork, strategy: Strategy, cluster: Cluster, device: Device, runtime: Runtime = DEFAULT_RUNTIME
) -> StageCosts:
    """What the virtual stages of a strategy cost.

    Args:
        work: of the model.
        strategy: that fits the model and the cluster (`require_model`, `require_cluster`).
        cluster: of the devices.
        device: with constants of training steps.
        runtime: how the framework runs it.

    Raises:
        BadInput: the device has no constants, or no peak for the precision.
    """
    return _Pricing(work, strategy, cluster, device, runtime).costs()


class _Pricing:
    """Attributes: as of `stage_costs`; counts, [V, k], how many of the distinct layers each virtual stage holds."""

    def __init__(self, work: ModelWork, strategy: Strategy, cluster: Cluster, device: Device, runtime: Runtime) -> None:
        self.work, self.strategy, self.runtime = work, strategy, runtime
        self.constants = device.required_step
        self.groups: ProcessGroups = process_groups(strategy, cluster, self.constants)
        widening = ITEM_BYTES[strategy.dtype] / ITEM_BYTES[work.dtype]
        self.shares = Shares(strategy, widening)
        self.clock = StepClock(strategy, device, self.groups, self.shares, runtime)
        self.weight_bytes, self.gradient_bytes, self.state_bytes = parameter_bytes(strategy, runtime.gradient_bytes)
        self.reduced_bytes = self.weight_bytes
        placement = SCHEDULES[strategy.schedule].placement
        self.rank_of = tuple(rank_of(stage, strategy.pp, placement) for stage in range(strategy.stages))
        self._place_layers()

    def _place_layers(self) -> None:
        order = self.work.order
        ends = 1 + np.cumsum(self.strategy.stage_layers(self.work.shape))
        ends[-1] += 1
        self.counts = np.zeros((ends.size, len(self.work.layers)))
        self.last_layers = [order[end - 1] for end in ends.tolist()]
        self.first_layers = [order[0], *(order[min(end, len(order) - 1)] for end in ends[:-1].tolist())]
        stages = np.searchsorted(ends, np.arange(len(order)), side="right")
        np.add.at(self.counts, (stages, np.array(order)), 1.0)
        self.blocks = set(order[1:-1])

    def costs(self) -> StageCosts:
        parameters = np.array([self.shares.parameters_of(layer.parameters) for layer in self.work.layers])
        times = self._times(parameters)
        held = self.counts @ parameters
        tied = self.work.tied / self.strategy.tp
        first, last = self.rank_of[0], self.rank_of[-1]
        if first != last:
            held[-1, 0] += tied
        of_ranks = np.zeros((self.strategy.pp, 2))
        np.add.at(of_ranks, list(self.rank_of), held)
        sent = [self.shares.bytes_of(self.work.layers[layer].boundary) for layer in self.last_layers[:-1]]
        return StageCosts(
            times=times,
            transfer_s=np.array([self._transfer_s(*boundary) for boundary in enumerate(sent)]),
            sends_beside=self.strategy.schedule not in SENDING_ALONE,
            rank_of=self.rank_of,
            data_s=self._data_s(times, of_ranks),
            tied_s=0.0 if first == last else self.groups.ends_sum_s(tied * self.reduced_bytes),
            optimizer_s=max(map(self._optimizer_s, of_ranks.tolist())),
            memory=self._memory(held, parameters),
        )

    # ---- time

    def _times(self, parameters: FloatArray) -> StageTimes:
        rows, hidden = [], []
        for kind, (layer, of_layer) in enumerate(zip(self.work.layers, parameters.tolist(), strict=True)):
            times = self.clock.layer(layer, kind in self.blocks)
            recompute = self._recomputed_s(times, kind in self.blocks)
            gathers, hidden_s = self._gathers_s(times, recompute, kind in self.blocks, *of_layer)
            passes = (times.forward, times.input, times.weight, recompute)
            rows.append([*passes, *times.tensor, *times.context, *times.experts, *gathers])
            hidden.append(hidden_s)
        sums = (self.counts @ np.array(rows)).T
        stages = StageTimes(*sums[:4], *sums[4:].reshape(4, 2, -1))
        stages.gathers[0] += np.array(hidden)[self.first_layers]
        return stages

    def _recomputed_s(self, times: LayerTimes, block: bool) -> float:
        again = {"none": 0.0, "selective": times.again, "full": times.whole_forward}
        return again[self.strategy.recompute] if block else 0.0

    def _gathers_s(
        self, times: LayerTimes, recompute: float, block: bool, others: float, of_experts: float
    ) -> tuple[tuple[float, float], float]:
        """What ZeRO-3 exposes of a layer's weights and gradients forward and backward, and what it hides forward."""
        if self.strategy.zero < 3:
            return (0.0, 0.0), 0.0
        pieces = self.runtime.gathers_a_layer if block else 1
        gather = self._gather_s(others, of_experts, self.weight_bytes, pieces)
        reduce = self._gather_s(others, of_experts, self.reduced_bytes, pieces)
        overlap = max(PREFETCHED if self.runtime.prefetches else 0.0, self.constants.overlap)
        forward = exposed_s(gather, times.forward, overlap)
        computed = times.input + times.weight + recompute
        return (forward, exposed_s(gather + reduce, computed, overlap)), gather - forward

    def _gather_s(self, others: float, of_experts: float, each: int, pieces: int = 1) -> float:
        """Seconds of gathering so many parameters in pieces, or of reducing and scattering their gradients."""
        groups = self.groups
        return groups.data.gather_s(others * each, pieces) + groups.expert_data.gather_s(of_experts * each, pieces)

    def _data_s(self, times: StageTimes, of_ranks: FloatArray) -> FloatArray:
        """[S] gradients summed once a step; with ZeRO-1 and 2 they are scattered, and weights are gathered."""
        exposed = np.zeros(self.strategy.pp)
        if self.strategy.zero == 3:
            return exposed
        beside = np.zeros(self.strategy.pp)
        np.add.at(beside, list(self.rank_of), times.input + times.weight + times.recompute)
        for rank, (others, of_experts) in enumerate(of_ranks.tolist()):
            if self.strategy.zero == 0:
                sums = self.groups.data.all_reduce_s(others * self.reduced_bytes)
                sums += self.groups.expert_data.all_reduce_s(of_experts * self.reduced_bytes)
            else:
                sums = self._gather_s(others, of_experts, self.reduced_bytes)
                sums += self._gather_s(others, of_experts, self.weight_bytes)
            exposed[rank] = exposed_s(sums, float(beside[rank]), self.constants.overlap)
        return exposed

    def _optimizer_s(self, of_rank: list[float]) -> float:
        """Gradient read, state read and written, weight written (and in fp32, where it is the master, read)."""
        others, of_experts = of_rank
        ranks = self.strategy.dp * self.strategy.cp
        count = others + of_experts
        if self.strategy.zero:
            count = (others + of_experts * self.strategy.ep) / ranks
        weight = self.weight_bytes * (2 if self.strategy.precision == "fp32" else 1)
        return count * (self.gradient_bytes + 2 * self.state_bytes + weight) / self.clock.bytes_per_s

    def _transfer_s(self, boundary: int, sent_bytes: float) -> float:
        """Each device of tp sends its share of the tokens; without sequence parallelism they gather the whole again.

        This is the scatter/gather optimisation of Narayanan et al. (2104.04473, section 4.1).
        """
        tensor = self.groups.tensor
        if self.strategy.sequence_parallel or tensor.size == 1:
            return self.groups.transfer_s(boundary, sent_bytes)
        sent_s = self.groups.transfer_s(boundary, sent_bytes / tensor.size)
        return sent_s + tensor.gather_s(sent_bytes) if sent_s else 0.0

    # ---- memory

    def _memory(self, held: FloatArray, parameters: FloatArray) -> tuple[DeviceMemory, ...]:
        rows = [self._saved_bytes(layer, kind in self.blocks) for kind, layer in enumerate(self.work.layers)]
        saved, kept, needed = np.array(rows).T
        temporary = np.where(self.counts > 0, needed, 0.0).max(axis=1)
        temporary[-1] = max(temporary[-1], self._logits_bytes())
        sizes = parameters.sum(axis=1)[list(self.work.order)]
        return device_memory(
            self.strategy,
            held[:, 0].tolist(),
            (self.counts @ saved).tolist(),
            (self.counts @ kept).tolist(),
            gathered_parameters=float((sizes[1:] + sizes[:-1]).max()),
            gradient_bytes=self.runtime.gradient_bytes,
            expert_parameters=held[:, 1].tolist(),
            temporary_bytes=temporary.tolist(),
            runtime_bytes=self.runtime.buffer_bytes + GROUP_BYTES * self.kinds_of_groups,
        )

    @property
    def kinds_of_groups(self) -> int:
        """How many of tp, cp, ep, dp and pp have groups of more than one device."""
        s = self.strategy
        return sum(size > 1 for size in (s.tp, s.cp, s.ep, s.dp, s.pp))

    def _saved_bytes(self, layer: LayerWork, block: bool) -> tuple[float, float, float]:
        """Bytes saved from F to I, kept of them until W, and needed while the layer is recomputed."""
        kept, for_weights = self.shares.bytes_of(layer.kept), self.shares.bytes_of(layer.kept_for_weights)
        if block and self.strategy.precision == "fp8":
            for_weights /= EIGHT_BITS
            kept -= (EIGHT_BITS - 1) * for_weights
        core = 0.0 if self.runtime.flash else self.shares.bytes_of(layer.kept_core)
        recompute = self.strategy.recompute if block else "none"
        if recompute == "full":
            return self.shares.bytes_of(layer.boundary), for_weights, kept + core
        if recompute == "selective" and self.runtime.flash:
            saved = self.shares.bytes_of(layer.boundary) + self.clock.selected_bytes(layer.kernels)
            return min(kept, saved), for_weights, max(0.0, kept - saved)
        return kept + (0.0 if recompute == "selective" else core), for_weights, 0.0

    def _logits_bytes(self) -> float:
        """Logits in fp32 and their gradients, but for what of them is counted as saved."""
        shape, strategy = self.work.shape, self.strategy
        logits = 4.0 * shape.sequence * strategy.micro_batch * shape.vocabulary / (strategy.tp * strategy.cp)
        saved = self.shares.bytes_of(self.work.layers[self.work.order[-1]].kept)
        return max(logits, 2 * logits - saved)
