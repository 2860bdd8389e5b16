"""What each distinct layer of a model costs under a strategy, whatever stage it comes to lie in.

    LayerWork ── cost.layer_times ──→ seconds and bytes of a layer ── counts of layers ──→ a stage (cost.stage_costs)

Strategies by the thousand differ in their schedule, their cuts and their ranks, and not in what a layer takes. So
kernels are timed once for all strategies that divide a layer alike (`LayerCosting`).

What blocks recompute is said in cost.recompute; what comes before and after them is never recomputed.

A tower of images with a division of its own (Strategy.tower_tp) is timed as that of another strategy on the same
devices, whose groups encode their share of a micro-batch's images. What it hands on is gathered then, and its gradient
scattered; gradients of its parameters are summed over dp · cp, as those of all other layers.

With ZeRO-3 the weights of a layer are gathered beside a forward and a backward pass of as large a layer. They hide
behind a share of the computation beside them, and never more than that share of themselves (`exposed_s`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.framework import Divided
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.model_work import LayerWork, ModelWork
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import NARROW, Strategy
from automap_models.cost.layer_times import ITEM_BYTES, PREFETCHED, Shares, StepClock
from automap_models.cost.overlap import exposed_s
from automap_models.cost.process_groups import ProcessGroups, Site, process_groups
from automap_models.cost.recompute import Kinds, kinds_of, run_again
from automap_models.cost.runtime import DEFAULT_RUNTIME, Runtime

AT_ONCE = 128
"""Strategies whose kernels are timed together, at most: more would be of no use to a search that ends before them."""
_of_devices = attrgetter("cp", "ep", "pp", "dp")


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """Of the k distinct layers of a model, with each of R kinds of recomputation (ModelWork.kinds) where that matters.

    Attributes:
        times: [k, R, 12] seconds for one micro-batch: kernels forward, of gradients of activations and of weights;
            what is recomputed; and forward and backward each: sums of tp, keys and values of cp, tokens of ep, what
            ZeRO-3 exposes.
        hidden_s: [k] of ZeRO-3's gathering, what the forward pass of the layer before it hides.
        memory: [k, R, 4] bytes saved from F to I, kept of them until W, and needed while the layer is recomputed, reads
            a matrix that is packed in 4 bits, or is on its way to the host and back; and what the host saves.
        parameters: [k, 2] on a device, without those of experts, and those.
        boundary_bytes: [k] handed to the next layer on a device.
        frozen_bytes: [k, 2] of what a layer holds and does not train, likewise.
        gathered_bytes: [k, 2] of both, as far as ZeRO-3 gathers them at once.
    """

    times: FloatArray
    hidden_s: FloatArray
    memory: FloatArray
    parameters: FloatArray
    boundary_bytes: FloatArray
    frozen_bytes: FloatArray
    gathered_bytes: FloatArray

    @cached_property
    def sums(self) -> FloatArray:
        """[k·R, 15] what stages have the sums of: times, and bytes saved, kept and saved by the host."""
        return np.concatenate([self.times, self.memory[..., [0, 1, 3]]], axis=2).reshape(-1, 15)

    @cached_property
    def stored(self) -> FloatArray:
        """[k, 4] parameters and frozen bytes."""
        return np.concatenate([self.parameters, self.frozen_bytes], axis=1)

    @cached_property
    def passes(self) -> FloatArray:
        """[k, R, 3] seconds of F, I and W."""
        both = self.times[..., 4:].reshape(*self.times.shape[:2], 4, 2).sum(axis=2)
        forward, inputs, weights, again = np.moveaxis(self.times[..., :4], -1, 0)
        return np.stack([forward + both[..., 0], inputs + again + both[..., 1], weights], axis=-1)

    @cached_property
    def seconds(self) -> FloatArray:
        """[k, R] of all of these."""
        return np.asarray(self.passes.sum(axis=-1))


class KernelCosts(NamedTuple):
    """What LayerCosts has but for ZeRO-3, with the times of each layer: [k, R, 12] as of StepClock.layer."""

    times: FloatArray
    memory: FloatArray
    parameters: FloatArray
    boundary_bytes: FloatArray
    frozen_bytes: FloatArray


class LayerCosting:
    """Costs of a model's layers under any strategy on one kind of device; those alike are computed once.

    Args:
        work: of the model.
        cluster: of the devices.
        device: with constants of training steps.
        runtime: how the framework runs strategies.

    Raises:
        BadInput: the device has no constants.
    """

    def __init__(self, work: ModelWork, cluster: Cluster, device: Device, runtime: Runtime = DEFAULT_RUNTIME) -> None:
        self.work, self.cluster, self.device, self.runtime = work, cluster, device, runtime
        self.constants = device.constants
        self.blocks = frozenset(work.order[1:-1])
        self.rows = (*work.layers, *(part.layer for part in work.tower))
        tower = {len(work.layers) + i for i, part in enumerate(work.tower) if part.recomputes}
        self.recomputed = np.array([i in self.blocks | tower for i in range(len(self.rows))])
        self.kinds = [work.kinds if again else ("none",) * len(work.kinds) for again in self.recomputed.tolist()]
        self.again = [run_again(layer, kinds, runtime) for layer, kinds in zip(self.rows, self.kinds, strict=True)]
        self._kernels: dict[object, KernelCosts] = {}
        self._costs: dict[object, LayerCosts] = {}
        self._groups: dict[object, ProcessGroups] = {}
        self._expected: dict[object, list[Divided]] = {}
        self._strategy_of: Callable[[Any], Strategy]

    def on(self, cluster: Cluster) -> LayerCosting:
        """The same on another cluster of such devices: costs are of groups, wherever they lie."""
        other = copy(self)
        other.cluster, other._groups, other._expected = cluster, {}, {}
        return other

    def expect(self, divided: Sequence[Divided], strategy_of: Callable[[Any], Strategy] = lambda one: one) -> None:
        """Have kernels of strategies, or of sets of degrees, timed with others that divide layers much like them.

        Args:
            divided: the first ones first.
            strategy_of: a strategy with such degrees.
        """
        self._expected, self._strategy_of = {}, strategy_of
        for degrees in reversed(divided):
            self._expected.setdefault(self._together(degrees), []).append(degrees)

    def groups(self, strategy: Strategy, site: Site | None = None) -> ProcessGroups:
        """The groups of a strategy's devices; `site` says of which ones."""
        s = strategy
        expert_shares = self.runtime.expert_shares(s)
        copies = s.dp, s.dp_replicate, s.pp, s.vp, SCHEDULES[s.schedule].placement
        key = (s.tp, s.cp, s.ep, s.expert_tensor, s.tower_tp, *copies, expert_shares, site)
        if key not in self._groups:
            of_devices = process_groups(strategy, self.cluster, self.constants, expert_shares, site)
            if s.tower_tp is not None and s.image_groups > 1:
                tower, embeddings = (self.groups(_apart(s, tp), site).tensor for tp in (s.tower_tp, s.tp * s.cp))
                of_devices = of_devices._replace(tower=tower, embeddings=embeddings)
            self._groups[key] = of_devices
        return self._groups[key]

    def costs(self, strategy: Strategy, groups: ProcessGroups) -> LayerCosts:
        """The costs of each distinct layer; of the strategy, neither its schedule nor its cuts nor what it recomputes.

        Raises:
            BadInput: the device has no peak for the precision.
        """
        of_kernels = self._divided(strategy, groups)
        key = (of_kernels, (groups.data, groups.expert_data, groups.replicas) if strategy.zero == 3 else None)
        if key not in self._costs:
            if of_kernels not in self._kernels:
                rows = {of_kernels: (strategy, groups), **self._expected_like(strategy, groups)}
                self._kernels |= zip(rows, self.timed(*zip(*rows.values(), strict=True)), strict=True)
            self._costs[key] = self._with_gathers(strategy, groups, self._kernels[of_kernels])
        return self._costs[key]

    def _expected_like(self, strategy: Strategy, groups: ProcessGroups) -> dict[object, tuple[Strategy, ProcessGroups]]:
        """Of the strategies that are expected, the next ones that differ from one in micro-batches, cp and ep."""
        expected, alike = self._expected.get(self._together(strategy), []), self._divided(strategy, groups)[0]
        if self.cluster.groups:  # nobody says of which site: others have the same groups
            same = (self._strategy_of(one) for one in expected if _of_devices(one) == _of_devices(strategy))
            return {self._divided(one, groups): (one, groups) for one in same}
        rows = dict[object, tuple[Strategy, ProcessGroups]]()
        while expected and len(rows) < AT_ONCE:
            one = self._strategy_of(expected.pop())
            others = self.groups(one, Site(0, tuple(range(one.pp))))
            key = self._divided(one, others)
            if key[0] == alike and key not in self._kernels:
                rows[key] = one, others
        return rows

    def _divided(self, strategy: Strategy, groups: ProcessGroups) -> tuple[object, ...]:
        """What kernels depend on; first that which is the same of all that are timed at once."""
        s = strategy
        once = s.micro_batches if self.runtime.casts_weights_once and s.precision in NARROW else 0
        apart = s.image_groups > 1, s.image_groups > 1 and s.cp > 1
        alike = *self._together(s), s.precision, groups.tensor, self.runtime.once_a_node(s), *apart
        return alike, s.cp, s.micro_batch, once, groups.context, groups.tower, groups.embeddings, s.ep, groups.experts

    def _together(self, divided: Divided) -> tuple[object, ...]:
        """What of degrees has to be alike where strategies are timed at once."""
        waits = self.runtime.sum_host_s > 0.0 and divided.pp > 1
        return divided.tp, divided.sequence_parallel, divided.expert_tensor, divided.tower_tp, waits

    def shares(self, strategies: Sequence[Strategy], sizes: tuple[float, ...] = ()) -> Shares:
        """What strategies make of quantities with marks, with micro-batches of these sizes, or of their own."""
        return Shares(strategies, ITEM_BYTES[strategies[0].dtype] / ITEM_BYTES[self.work.dtype], sizes)

    def timed(self, strategies: Sequence[Strategy], groups: Sequence[ProcessGroups]) -> list[KernelCosts]:
        """Of each of some strategies, with its groups, that are alike but for micro-batches, cp and ep."""
        clock, blocks = StepClock(self.device, groups, self.shares(strategies), self.runtime), self.recomputed.tolist()
        of_tower = clock if strategies[0].image_groups == 1 else self._tower_clock(strategies, groups)
        clocks = [clock] * len(self.work.layers) + [of_tower] * len(self.work.tower)
        of_rows = list(zip(clocks, self.rows, blocks, self.again, self.kinds, strict=True))
        amounts = (
            [one.layer(layer, block, again) for one, layer, block, again, _ in of_rows],
            [self._saved_bytes(one, layer, kinds_of(kinds), block) for one, layer, block, _, kinds in of_rows],
            [one.shares.bytes_of(layer.boundary) for one, layer, *_ in of_rows],
            [one.shares.parameters_of(layer.parameters) for one, layer, *_ in of_rows],
            [one.shares.parameters_of(layer.frozen) for one, layer, *_ in of_rows],
        )
        times, memory, boundary_bytes, parameters, frozen = (np.stack(of_layers, axis=1) for of_layers in amounts)
        if of_tower is not clock:
            self._add_embeddings(clock, times[:, -1])
        if self.work.training.has_reference:  # it runs forward, and of two messages forward one has one back
            times[..., 0], times[..., 4::2] = 2.0 * times[..., 0], 2.0 * times[..., 4::2]
            boundary_bytes = boundary_bytes * 1.5
        self._add_ways(times, memory[..., 3])
        return list(map(KernelCosts, times, memory, parameters, boundary_bytes, frozen))

    def _tower_clock(self, strategies: Sequence[Strategy], groups: Sequence[ProcessGroups]) -> StepClock:
        """Of the groups of a tower that have most images of a micro-batch."""
        apart, images = [_apart(s, s.tower_tp or s.tp) for s in strategies], self.work.shape.images or 1
        sizes = tuple(ceil(s.micro_batch * images / s.image_groups) / images for s in strategies)
        pairs = zip(apart, groups, strict=True)
        of_tower = [self.groups(parts)._replace(tensor=of_devices.tower) for parts, of_devices in pairs]
        return StepClock(self.device, of_tower, self.shares(apart, sizes), self.runtime)

    def _add_embeddings(self, clock: StepClock, times: FloatArray) -> None:
        """Add to [B, R, 12] seconds of a tower's last layer what gathering the embeddings of all images takes."""
        last, column = self.rows[-1], 6 if clock.strategy.cp > 1 else 4
        sent_bytes = clock.shares.bytes_of(last.boundary, gathered=True).tolist()
        pairs = zip(clock.groups, sent_bytes, strict=True)
        seconds = np.array([of_devices.embeddings.gather_s(sent) for of_devices, sent in pairs])
        times[..., column : column + 1 + last.backward] += seconds[:, None, None]

    def _add_ways(self, times: FloatArray, sent_bytes: FloatArray) -> None:
        """Let passes take as long as [B, k, R] bytes to the host, or back, where that is longer."""
        if self.device.host_memory is not None:
            sent_s = sent_bytes / self.device.host_memory.link
            times[..., 0] += np.maximum(0.0, sent_s - times[..., [0, 4, 6, 10]].sum(axis=-1))
            times[..., 3] += np.maximum(0.0, sent_s - times[..., [1, 2, 3, 5, 7, 11]].sum(axis=-1))

    def _saved_bytes(self, clock: StepClock, layer: LayerWork, kinds: Kinds, block: bool) -> FloatArray:
        """[B, R, 4] as of LayerCosts.memory; of blocks on the host two are on the device at once."""
        shares, runtime = clock.shares, self.runtime
        bits, selective, away, full, cores = kinds
        memory = np.zeros((shares.samples.size, bits.size, 4))
        # A part of a frozen tower saves nothing.
        if not layer.backward:
            return memory
        saved, for_weights = (shares.bytes_of(part)[:, None] for part in (layer.saved, layer.saved_for_weights))
        discarded = shares.bytes_of(layer.saved.made_by(bits))
        if runtime.eager:
            saved = saved + shares.bytes_of(layer.saved_eagerly)[:, None]
        if runtime.weighs_within:
            saved = saved - shares.bytes_of(layer.exchanged)[:, None]
            discarded = discarded - shares.bytes_of(layer.exchanged.made_by(bits))
        if runtime.saves_gathered:
            sums = shares.summed(layer.sums_backward)
            read = shares.bytes_of(sums, gathered=True) - shares.bytes_of(sums)
            saved, for_weights = saved + read[:, None], for_weights + read[:, None]
        if block and clock.strategy.precision in NARROW:
            for_weights = for_weights / 2  # Transformer Engine saves the operands as they were cast to 8 bits
            saved, discarded = (
                saved - for_weights,
                discarded - shares.bytes_of(layer.saved_for_weights.made_by(bits)) / 2,
            )
        core = np.zeros_like(saved) if runtime.flash else shares.bytes_of(layer.saved_core)[:, None]
        boundary, unpacked = (shares.bytes_of(part)[:, None] for part in (layer.boundary, layer.unpacked))
        memory[..., 0] = saved + np.where(selective | cores, 0.0, core) - discarded
        memory[..., 1], memory[..., 2] = for_weights, discarded + unpacked
        memory[:, full, 0], memory[:, full, 2] = boundary, saved + core + unpacked
        memory[:, away, 2], memory[:, away, 3] = 2 * (saved + core) + unpacked, saved + core
        memory[:, away, 0] = 0.0
        if runtime.flash and runtime.selects == "products":
            selected = np.minimum(saved, boundary + clock.selected_bytes(layer.kernels)[:, None])
            memory[:, selective, 0] = selected
            memory[:, selective, 2] = saved - selected + unpacked
        return memory

    def _with_gathers(self, strategy: Strategy, groups: ProcessGroups, kernels: KernelCosts) -> LayerCosts:
        forward, inputs, weights, _, *others = kernels.times[:, 0].T
        hidden_context, recompute = others[4:6], kernels.times[..., 3]
        backward = np.array([layer.backward for layer in self.rows])
        times, hidden_s = np.zeros_like(kernels.times), np.zeros(len(forward))
        times[..., :8], times[..., 8:10] = kernels.times[..., :8], kernels.times[..., 10:]
        weight_bytes, _, _ = self.work.training.parameter_bytes(strategy.precision)
        trained = kernels.parameters * weight_bytes
        gathered_bytes = trained + kernels.frozen_bytes
        if self.work.training.has_copy:  # half of it is that, which runs at another time
            gathered_bytes = gathered_bytes / 2
        if strategy.zero == 3:  # weights are gathered forward and backward, and gradients are as large
            pieces = np.where(self.recomputed & backward, self.runtime.gathers_a_layer, 1).tolist()
            scatter = gather = self._gathers_s(groups, trained, pieces)
            if kernels.frozen_bytes.any():  # gathered with the others, and without gradients
                gather = self._gathers_s(groups, gathered_bytes, pieces)
            if strategy.dp_replicate > 1:
                scatter = scatter + [groups.replicas_s(*moved) for moved in trained.tolist()]
            again, gather = gather, gather * (2 if self.work.training.has_copy else 1)
            of_runtime = self.runtime.overlap(self.constants.overlap)
            overlap = max(PREFETCHED if self.runtime.prefetches else 0.0, of_runtime)
            exposed = exposed_s(gather, forward - hidden_context[0], overlap)
            computed = recompute + (inputs + weights - hidden_context[1])[:, None]
            both = exposed_s((again + scatter)[:, None], computed, overlap)
            times[..., 10], times[..., 11] = exposed[:, None], np.where(backward[:, None], both, 0.0)
            hidden_s = gather - exposed
        return self._with_tower(LayerCosts(times, hidden_s, *kernels[1:], gathered_bytes))

    def _with_tower(self, costs: LayerCosts) -> LayerCosts:
        """The same with what the layers of a tower take as part of the first place; they are gathered one by one."""
        count, first = len(self.work.layers), self.work.order[0]
        if not self.work.tower:
            return costs
        sums = np.eye(count, len(self.rows))
        sums[first, count:] = [part.copies for part in self.work.tower]
        memory = np.tensordot(sums, costs.memory, axes=1)
        memory[..., 2] = costs.memory[:count, :, 2]
        memory[first, :, 2] = np.maximum(memory[first, :, 2], costs.memory[count:, :, 2].max(axis=0))
        gathered_bytes = costs.gathered_bytes[:count].copy()
        gathered_bytes[first] += costs.gathered_bytes[count:].max(axis=0)
        return LayerCosts(
            times=np.tensordot(sums, costs.times, axes=1),
            hidden_s=costs.hidden_s[:count],
            memory=memory,
            parameters=sums @ costs.parameters,
            boundary_bytes=costs.boundary_bytes[:count],
            frozen_bytes=sums @ costs.frozen_bytes,
            gathered_bytes=gathered_bytes,
        )

    @staticmethod
    def _gathers_s(groups: ProcessGroups, moved: FloatArray, pieces: list[int]) -> FloatArray:
        """[k] seconds of gathering so many bytes, [k, 2] without experts and of them, in pieces."""
        sized = zip(moved.tolist(), pieces, strict=True)
        return np.array([groups.gather_s(others, of_experts, count) for (others, of_experts), count in sized])


def _apart(strategy: Strategy, tp: int) -> Strategy:
    """Of so many devices that share operators, and of all others as ranks of data parallelism: what a tower divides."""
    dp, sizes = strategy.dp * strategy.cp * strategy.tp // tp, (strategy.micro_batch, strategy.micro_batches)
    return Strategy(
        micro_batch=sizes[0],
        global_batch=dp * sizes[0] * sizes[1],
        tp=tp,
        dp=dp,
        pp=strategy.pp,
        vp=strategy.vp,
        schedule=strategy.schedule,
        precision=strategy.precision,
    )
