"""What the virtual stages of a pipeline cost under a strategy: their passes, their messages, and their memory.

    layers of the model     0 (before the blocks)   1   2   3   4   5 (after them)
    virtual stages          └──────── 0 ────────────────┘   └──────── 1 ────────┘

Passes of a virtual stage for one micro-batch, in seconds:

    F   kernels + sums of tp + keys and values of cp + tokens of ep + weights that ZeRO-3 gathers
    I   the same of the gradients of activations + what is recomputed
    W   kernels of the gradients of weights

What a layer takes is said in cost.layer_costs. A stage may recompute its first blocks and no others.

Communication of data parallelism hides behind a share of the computation beside it (`exposed_s`). Gradients go beside
the last backward pass of a rank; with ZeRO-1 and 2 they never take longer than all that ZeRO-3 exposes in a step, which
a framework may do as well. With ZeRO-3 the weights of the first layer of a stage are gathered beside none.

A rank computes nothing while it sends, in schedules whose backward pass is whole: Megatron's messages are sent and
received in one call. Schedules that split it, and 1f1b-deep, send beside their passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from automap_models.core.cluster import Cluster, group_bytes
from automap_models.core.device import Device
from automap_models.core.estimate import NO_HOST, DeviceMemory
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.model_work import ModelWork
from automap_models.core.schedules import SCHEDULES, ranks_of_stages
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_costs import LayerCosting, LayerCosts
from automap_models.cost.layer_times import PREFETCHED
from automap_models.cost.overlap import exposed_s
from automap_models.cost.process_groups import Message, Site
from automap_models.cost.runtime import DEFAULT_RUNTIME, Runtime
from automap_models.cost.strategy import device_memory, host_of, laid_out, state_bytes

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
        data_s: [S] exposed communication of data parallelism of each rank, once a step; with ZeRO-3 what it would be
            with ZeRO-1, sooner than which no rank ends.
        tied_s: of the sums over a word embedding that the first and the last rank hold, and over what others share.
        optimizer_s: of the update, on the slowest rank.
        memory: [S] of a device of each rank.
        host: bytes of the share that the fullest device has of its host's memory, and how large that is.
    """

    times: StageTimes
    transfer_s: FloatArray
    sends_beside: bool
    rank_of: tuple[int, ...]
    data_s: FloatArray
    tied_s: float
    optimizer_s: float
    memory: tuple[DeviceMemory, ...]
    host: tuple[float, float] = NO_HOST


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
    return StageCosting(LayerCosting(work, cluster, device, runtime), strategy).costs(strategy)


@lru_cache(maxsize=1)  # kinds of devices ask for the same ones
def _place_layers(work: ModelWork, strategy: Strategy) -> tuple[FloatArray, IntArray, list[int], list[int]]:
    """[V, k, R] how many of each distinct layer a virtual stage has with each kind of recomputation; the virtual stage
    of each place; and [V] the first and the last layer of each, of an empty one the next and the one before."""
    order, sizes, kinds = work.order, list(strategy.stage_layers(work.shape)), [0]
    for count, (kind, blocks) in zip(sizes, strategy.stage_recompute(work.shape), strict=True):
        kinds += [work.kind(kind)] * blocks + [0] * (count - blocks)
    kinds[0] = kinds[1] if sizes[0] else 0  # of a tower; the embedding recomputes nothing
    sizes[0] += 1
    sizes[-1] += 1
    stages, ends = np.repeat(np.arange(len(sizes)), sizes), list(accumulate(sizes))
    counts = np.zeros((len(sizes), len(work.layers), len(work.kinds)))
    np.add.at(counts, (stages, np.array(order), np.array([*kinds, 0])), 1.0)
    first = [order[0], *(order[min(end, len(order) - 1)] for end in ends[:-1])]
    return counts, stages, first, [order[end - 1] for end in ends]


class StageCosting:
    """Costs of stages and ranks under all strategies that differ in nothing but cuts and recomputation.

    Args:
        layers: costs of layers on the kind of device.
        strategy: one of these strategies.
        site: the devices; None: all of a uniform cluster.

    Attributes:
        of_layers: the costs of each distinct layer.
        trained_bytes: of the weight, the gradient and the optimiser's state of a parameter, on a device.
        standing_bytes: the same of what is there all the time: no gradient where each layer's replaces its activations.
        copied_bytes: of a parameter, that the update copies.
        memory: [k, R, 4] as of LayerCosts, of which the saved bytes are no less than gradients that replace them.
        groups, rank_of: of the devices; and [V] the rank of each virtual stage.

    Raises:
        BadInput: the device has no peak for the precision; see `host_of`.
    """

    def __init__(self, layers: LayerCosting, strategy: Strategy, site: Site | None = None) -> None:
        self.layers, self.work, self.runtime, self.constants = layers, layers.work, layers.runtime, layers.constants
        self.site = site
        self._run(strategy)
        self.of_layers: LayerCosts = layers.costs(strategy, self.groups)
        self.bytes_per_s = layers.device.bytes_per_s
        trained_bytes = self.work.training.parameter_bytes(strategy.precision, self.runtime.gradient_bytes)
        self.weight_bytes, self.gradient_bytes, self.state_bytes = trained_bytes
        self.host = host_of(layers.device, strategy)
        divides = strategy.zero == 3 and strategy.dp * strategy.cp > 1
        if self.runtime.casts_gathered and divides and self.work.training.states == "fp32":
            trained_bytes = self.work.training.parameter_bytes("fp32")
        self.sends_gradients = self.host is not None and self.runtime.offloads_gradients and self.divides_gradients
        of_device = (self.weight_bytes, 0.0 if self.sends_gradients else self.gradient_bytes, 0.0)
        self.trained_bytes = trained_bytes if self.host is None else of_device
        self.tied = self.work.tied / strategy.tp
        self.copied_bytes = self.work.training.copied_bytes * (self.runtime.copies_moments and self.host is None)
        self.standing_bytes, self.memory = self.trained_bytes, self.of_layers.memory
        if self.runtime.frees_gradients and strategy.pp == strategy.micro_batches == 1:
            self._free_gradients()

    def _free_gradients(self) -> None:
        """Let each layer hold the larger of its activations and its gradients, which replace them.

        forward    embedding   block 0   block 1   head        all activations
        backward   embedding   block 0 │ block 1   head        activations, and gradients right of a cut: no more
                                         ‾‾‾‾‾‾‾‾‾‾‾‾‾‾        than the larger one of each layer
        """
        weight, gradient, state = self.trained_bytes
        others, of_experts = self.of_layers.parameters.T
        _, of_layers, _ = state_bytes(self.strategy, others, of_experts, (0.0, gradient, 0.0))
        self.standing_bytes, self.memory = (weight, 0.0, state), self.memory.copy()
        self.memory[..., 0] = np.maximum(self.memory[..., 0], np.asarray(of_layers)[:, None])

    def _run(self, strategy: Strategy) -> None:
        """What the schedule and the virtual stages of a strategy decide."""
        self.strategy, self.groups = strategy, self.layers.groups(strategy, self.site)
        placement = SCHEDULES[strategy.schedule].placement
        self.rank_of = ranks_of_stages(strategy.stages, strategy.pp, placement)
        self.tied_apart = self.rank_of[0] != self.rank_of[-1]

    def run_by(self, strategy: Strategy) -> StageCosting:
        """The same for a strategy with another schedule and other virtual stages: its layers cost the same."""
        other = copy(self)
        other._run(strategy)
        return other

    def costs(self, strategy: Strategy, memory: tuple[DeviceMemory, ...] = ()) -> StageCosts:
        """Of one of the strategies; `memory` as of another kind of devices, which is the same. Raises as host_of."""
        host_of(self.layers.device, strategy)  # strategies that differ in what they recompute share this
        counts, stages, first_layers, last_layers = _place_layers(self.work, strategy)
        stored = counts.sum(axis=2) @ self.of_layers.stored
        if self.tied_apart:
            stored[-1, 0] += self.tied
        of_ranks, frozen = np.split(np.array([self._of_ranks(column) for column in stored.T]).T, 2, axis=1)
        copies_s = self._hold_copies(stages, of_ranks, frozen)
        sums = (counts.reshape(len(counts), -1) @ self.of_layers.sums).T
        times = StageTimes(*sums[:4], *sums[4:12].reshape(4, 2, -1))
        times.gathers[0] += self.of_layers.hidden_s[first_layers]
        ranks, sent = of_ranks.tolist(), self.of_layers.boundary_bytes[last_layers[:-1]].tolist()
        return StageCosts(
            times=times,
            transfer_s=np.array(list(map(self.transfer_s, self.groups.messages, sent))),
            sends_beside=strategy.schedule not in SENDING_ALONE,
            rank_of=self.rank_of,
            data_s=self._data_s(counts, first_layers, times, of_ranks) + self._sent_s(times, of_ranks),
            tied_s=self.tied_s + copies_s,
            optimizer_s=max(self.optimizer_s(*rank) for rank in set(map(tuple, ranks))),
            memory=memory or self._memory(strategy, counts, of_ranks, frozen, sums[12:14]),
            host=max(map(self.on_host, ranks, self._away(strategy, sums[14].tolist()))),
        )

    def _of_ranks(self, of_stages: FloatArray) -> FloatArray:
        """[S] sums of [V] amounts."""
        return np.asarray(np.bincount(self.rank_of, of_stages, self.strategy.pp), np.float64)

    def _hold_copies(self, stages: IntArray, of_ranks: FloatArray, frozen: FloatArray) -> float:
        """Add what ranks hold copies of to what they hold; returns the seconds of the sums over all copies.

        Args:
            stages: the virtual stage of each place.
            of_ranks: [S, 2] parameters.
            frozen: [S, 2] bytes.
        """
        sums_s = 0.0
        for count, frozen_bytes, places, _ in self.work.shared:
            parameters = count / self.strategy.tp
            _, *others = dict.fromkeys(self.rank_of[stage] for stage in stages[list(places)].tolist())
            of_ranks[others, 0] += parameters
            frozen[others, 0] += frozen_bytes / self.strategy.tp
            copies = 1 + len(others)
            if parameters:
                sums_s += 2 * (copies - 1) / copies * self.groups.ends.sent_s(parameters * self.weight_bytes)
        return sums_s

    # ---- time

    @property
    def tied_s(self) -> float:
        """Seconds of the sum over a word embedding that the first and the last rank hold."""
        return self.groups.ends.sent_s(self.tied * self.weight_bytes) if self.tied_apart else 0.0

    def gradients_s(self, others: float, of_experts: float) -> float:
        """Seconds in which a rank with so many parameters sums its gradients once a step, whatever goes on beside.

        With ZeRO-1 and 2 they are scattered, and weights are gathered. ZeRO-3 does as much, and gathers in every pass
        besides, which is part of its passes.
        """
        return self._summed_s(others, of_experts) + self._gathered_s(others, of_experts)

    def _summed_s(self, others: float, of_experts: float) -> float:
        """Seconds of the sums of gradients, scattered where ZeRO divides what they are for."""
        size = 4.0 if self.gradient_bytes > 4 else self.weight_bytes
        # NCCL has trees for all-reduces alone: what is scattered, or comes bucket by bucket, goes round rings.
        if self.strategy.zero or self.runtime.bucket_bytes:  # of many large ones each goes round a ring
            rounds, buckets = 1 if self.strategy.zero else 2, self._buckets(others + of_experts)
            scattered = rounds * self.groups.gather_s(others * size, of_experts * size, buckets)
            return scattered + self.groups.replicas_s(others * size, of_experts * size)
        return self.groups.data.all_reduce_s(others * size) + self.groups.expert_data.all_reduce_s(of_experts * size)

    def _gathered_s(self, others: float, of_experts: float) -> float:
        """Seconds of gathering the updated weights, with ZeRO."""
        if not self.strategy.zero:
            return 0.0
        pieces = self._pieces if self.runtime.exposes_gathers else 1
        return self.groups.gather_s(others * self.weight_bytes, of_experts * self.weight_bytes, pieces)

    @property
    def _pieces(self) -> int:
        """In which the weights of a rank of the pipeline are gathered one by one."""
        return self.runtime.gathers_a_layer * max(1, self.work.shape.layers // self.strategy.pp)

    def _buckets(self, parameters: float) -> float:
        """In which the gradients of so many parameters are summed, at most one for each piece of their weights."""
        size = self.runtime.bucket_bytes
        return max(1.0, min(self._pieces, parameters * self.weight_bytes / size)) if size else 1.0

    def _data_s(
        self, counts: FloatArray, first_layers: list[int], times: StageTimes, of_ranks: FloatArray
    ) -> FloatArray:
        """[S] what gradients take beyond the computation beside them, but no more than what ZeRO-3 would expose."""
        passes = np.stack([times.input + times.weight + times.recompute, np.zeros(len(self.rank_of))])
        shared = self.never_hidden < 1.0 - self.overlap
        if shared:
            passes[1] = self._gathers(counts, first_layers).sum(axis=0)
        beside, gathered = map(self._of_ranks, passes)
        ranks = list(map(tuple, of_ranks.tolist()))
        moved_s = {rank: self.gradients_s(*rank) for rank in set(ranks)}
        exposed = exposed_s(np.array([moved_s[rank] for rank in ranks]), beside, self.overlap)
        if shared:
            exposed = np.minimum(exposed, self.strategy.micro_batches * gathered)
        return exposed + (self.runtime.shard_s * self.strategy.shards if self.strategy.zero in (1, 2) else 0.0)

    def _sent_s(self, times: StageTimes, of_ranks: FloatArray) -> FloatArray | float:
        """[S] what gradients that hosts add up take on their way, in every micro-batch, beyond the backward passes."""
        if self.host is None or not self.sends_gradients:
            return 0.0
        backward = self._of_ranks(times.input + times.weight + times.recompute)
        sent = np.array([self.updated(*of_rank) * self.weight_bytes / self.host.link for of_rank in of_ranks.tolist()])
        return np.asarray(self.strategy.micro_batches * np.maximum(sent - backward, 0.0))

    def _gathers(self, counts: FloatArray, first_layers: list[int]) -> FloatArray:
        """[2, V] seconds of a micro-batch that ZeRO-3 exposes, forward and backward."""
        layers = self.of_layers
        if self.strategy.zero < 3:
            layers = self.layers.costs(replace(self.strategy, zero=3), self.groups)
        gathers = np.tensordot(counts, layers.times[..., -2:], axes=2).T
        gathers[0] += layers.hidden_s[first_layers]
        return np.asarray(gathers)

    @property
    def overlap(self) -> float:
        """Share of the communication of data parallelism that goes on beside computation."""
        return 0.0 if self._alone else self.runtime.overlap(self.constants.overlap)

    @property
    def _alone(self) -> bool:
        """Whether gradients are summed once a step, beside nothing; see `Runtime.exposes_gathers`."""
        # One queue of the device: behind messages or sums across nodes nothing of the gradients begins.
        waits = self.strategy.zero > 0 or self.strategy.pp > 1 or self.groups.tensor.nodes > 1
        return self.runtime.exposes_gathers and waits and self.strategy.zero < 3

    @property
    def never_hidden(self) -> float:
        """Least share of what a rank moves once a step for its gradients that the step is longer by; see _data_s.

        ZeRO-3 moves half as much again in every micro-batch, of which a framework that prefetches hides more.
        """
        overlap = self.overlap
        prefetched = max(PREFETCHED if self.runtime.prefetches else 0.0, overlap)
        more = 1.5 if self.strategy.dp_replicate == 1 else 1.0  # sums between groups are no more than once a step's
        every_micro_batch = more * self.strategy.micro_batches * (1.0 - prefetched)
        return min(1.0 - overlap, every_micro_batch) if self.strategy.zero and not self._alone else 1.0 - overlap

    @property
    def divides_gradients(self) -> bool:
        """Whether a device has but its part of the gradients when they are summed, which may be all of them."""
        return self.strategy.zero >= 2 or self.strategy.dp * self.strategy.cp == 1

    def updated(self, others: float, of_experts: float) -> float:
        """Of so many parameters those that a device updates, or its share of the host does."""
        strategy = self.strategy
        if not strategy.zero:
            return others + of_experts
        return others / strategy.shards + of_experts / strategy.expert_shards

    def optimizer_s(self, others: float, of_experts: float) -> float:
        """Gradient read, state read and written, weight written (and in fp32, where it is the master, read); where the
        host does that, as fast as its memory, gradients go there before and weights come back."""
        weight = self.weight_bytes * (2 if self.strategy.precision == "fp32" else 1)
        count, moved = self.updated(others, of_experts), self.gradient_bytes + 2 * self.state_bytes + weight
        if self.host is None:
            return count * moved / self.bytes_per_s
        sent_s = (self.gradient_bytes + self.weight_bytes) / self.host.link
        return count * (moved * self.layers.cluster.devices_per_node / self.host.bandwidth + sent_s)

    def _away(self, strategy: Strategy, saved: list[float]) -> list[float]:
        """[S] bytes that the host saves for a device of each rank, at the fullest time, of those of [V] stages."""
        nothing = [0.0] * len(saved)
        return list(laid_out(strategy).most_held(saved, nothing)) if any(saved) else nothing[: strategy.pp]

    def on_host(self, parameters: Sequence[float], saved: float) -> tuple[float, float]:
        """Bytes of the host's memory for so many parameters of a device, states and gradients in fp32, beside what it
        saves, and its share of that memory."""
        host = self.layers.device.host_memory
        if host is None or not (saved or self.host):
            return NO_HOST
        nbytes = self.updated(*parameters) * (self.state_bytes + 4.0) if self.host else 0.0
        return nbytes + saved, host.memory / self.layers.cluster.devices_per_node

    def transfer_s(self, message: Message, sent_bytes: float) -> float:
        """Each device of tp sends its share of the tokens; without sequence parallelism they gather the whole again.

        This is the scatter/gather optimisation of Narayanan et al. (2104.04473, section 4.1).
        """
        tensor = self.groups.tensor
        if self.strategy.sequence_parallel or tensor.size == 1:
            return message.sent_s(sent_bytes)
        sent_s = message.sent_s(sent_bytes / tensor.size)
        return sent_s + tensor.gather_s(sent_bytes) if sent_s else 0.0

    # ---- memory

    def _memory(
        self, strategy: Strategy, counts: FloatArray, of_ranks: FloatArray, frozen: FloatArray, saved: FloatArray
    ) -> tuple[DeviceMemory, ...]:
        of_stages = np.where(counts > 0, self.of_layers.memory[..., 2], 0.0).max(axis=(1, 2))
        of_stages[-1] = max(of_stages[-1], self.logits_bytes)
        temporary = np.zeros(strategy.pp)
        np.maximum.at(temporary, list(self.rank_of), of_stages)
        memory = device_memory(
            strategy,
            of_ranks.tolist(),
            frozen.tolist(),
            saved[0].tolist(),
            saved[1].tolist(),
            self._gathered_bytes(strategy) if strategy.zero == 3 else [0.0] * strategy.pp,
            temporary.tolist(),
            self.standing_bytes,
            self.runtime_bytes,
        )
        if self.memory is not self.of_layers.memory:
            more = self.memory[..., 0] - self.of_layers.memory[..., 0]
            memory = (memory[0]._replace(gradients=float((counts * more).sum())),)
        return self._with_updates(memory, of_ranks) if self.copied_bytes else memory

    def _with_updates(self, memory: tuple[DeviceMemory, ...], of_ranks: FloatArray) -> tuple[DeviceMemory, ...]:
        """What a device of each rank holds while it updates its [S, 2] parameters, where that is more than else."""
        others, of_experts = of_ranks.T
        _, gradients, _ = state_bytes(self.strategy, others, of_experts, self.trained_bytes)
        amounts = np.stack([gradients, self.copied_bytes * self.updated(others, of_experts)]).T.tolist()
        return tuple(
            one
            if gradient + copied <= one.gradients + one.gathered + one.activations + one.temporary
            else one._replace(gradients=gradient, gathered=0.0, activations=0.0, temporary=copied)
            for one, (gradient, copied) in zip(memory, amounts, strict=True)
        )

    def _gathered_bytes(self, strategy: Strategy) -> list[float]:
        """[S] that ZeRO-3 holds gathered at once on each rank."""
        ends = [0, *(1 + np.cumsum(strategy.stage_layers(self.work.shape))).tolist()]
        ends[-1] += 1
        stages = [self.work.order[begin:end] for begin, end in pairwise(ends)]
        of_ranks = ([stages[i] for i, on in enumerate(self.rank_of) if on == rank] for rank in range(strategy.pp))
        return [self.weight_bytes * self.gathered_parameters(rank_stages) for rank_stages in of_ranks]

    def gathered_parameters(self, stages: Sequence[Sequence[int]]) -> float:
        """Of a rank whose virtual stages have these layers: of the two neighbouring ones that have most.

        FSDP holds beside two blocks what the rank has before and after the blocks: it gathers that as one unit, which
        it does not divide again before the backward pass.
        """
        sizes, ends = self._shared_parameters, 0.0
        if self.strategy.pp == 1:  # its virtual stages are neighbours, too
            stages = [[layer for stage in stages for layer in stage]]
        if self.runtime.prefetches:
            ends = sum(sizes[layer] for stage in stages for layer in stage if layer not in self.layers.blocks)
            stages = [[layer for layer in stage if layer in self.layers.blocks] for stage in stages]
        pairs = [sizes[one] + sizes[next_one] for stage in stages for one, next_one in pairwise(stage)]
        alone = [sizes[stage[0]] for stage in stages if len(stage) == 1]
        return ends + max([*pairs, *alone], default=0.0)

    @cached_property
    def _shared_parameters(self) -> list[float]:
        """[k] of a layer that a device holds together with others of its groups of data parallelism."""
        groups = self.groups.data, self.groups.expert_data
        others, of_experts = (float(group.size > 1) for group in groups)
        parameters = self.of_layers.gathered_bytes @ (others, of_experts) / self.weight_bytes
        shared: list[float] = parameters.tolist()
        return shared

    @property
    def least_gathered(self) -> list[float]:
        """[S] parameters that ZeRO-3 holds gathered on each rank at least, whatever the schedule and the cuts.

        The first rank has what comes before the blocks, the last one a block or what comes after them.
        """
        order, pp, sizes = self.work.order, self.strategy.pp, self._shared_parameters
        if pp == 1:
            return [self.gathered_parameters([order])]
        block = min((sizes[layer] for layer in self.layers.blocks), default=0.0)
        return [sizes[order[0]], *(block,) * (pp - 2), min(block, sizes[order[-1]])]

    @cached_property
    def runtime_bytes(self) -> float:
        """Of the framework and of each kind of group of more than one device: gradients are summed over cp, too."""
        s = self.strategy
        buffers = self.runtime.buffer_bytes if s.zero else 0.0
        return buffers + group_bytes(s.tp, s.cp, s.ep, s.shards, s.dp_replicate, s.pp)

    @cached_property
    def logits_bytes(self) -> float:
        """Logits in fp32 and what the loss makes of them, but for what is counted as saved; a profile has it all."""
        if self.work.facts.shape is None:
            return 0.0
        shape, strategy = self.work.shape, self.strategy
        copies = self.runtime.loss_copies if strategy.tp == 1 else self.runtime.tensor_loss_copies
        copies += self.runtime.holds_logits and strategy.micro_batches > 1
        outputs = shape.outputs or shape.vocabulary
        logits = 4.0 * shape.sequence * strategy.micro_batch * outputs / (strategy.tp * strategy.cp)
        saved = float(self.of_layers.memory[self.work.order[-1], 0, 0])
        return max(logits, copies * logits - saved)
