"""How long one layer of a model takes on a device under a strategy, and what it keeps there.

    LayerWork ── marks: what b, cp, tp, ep divide ──→ sizes and bytes on a device ── constants of the device ──→ seconds

A kernel takes the longer of its arithmetic and of its bytes, and its launch:

    product   FLOP / (peak · efficiency(count, rows, columns, depth) · alignment)     both: core.device
    any       bytes / (bandwidth · share)

Alignment is that of blocks; frameworks pad a vocabulary.

An attention core is one flash kernel a pass unless it is told otherwise. It moves no scores, reaches its own share of
the peak, and takes 2.5 times the forward arithmetic in the backward pass, two of its products being made again (Dao,
2307.08691, section 4). Of a causal model it skips the half of the scores that is masked; kernels of their own do not.

In fp8, products of blocks run at the peak of `float8`. Activations and weights are cast in the forward pass, gradients
of results in the backward pass, at the speed of the memory; products of gradients of weights find both operands cast.
Tokens that tensor parallelism gathers are cast before. Products of activations with each other, as in attention cores
and recurrences, and what comes before and after the blocks run in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from automap_models.core.device import Device, StepConstants, alignment_shares
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.model_work import Amounts, Kernels, LayerWork, Mark, WorkKind, WorkPass
from automap_models.core.strategy import NARROW, Strategy
from automap_models.cost.process_groups import ProcessGroups
from automap_models.cost.recompute import Again
from automap_models.cost.runtime import CAST_GRADIENT_BYTES, Runtime

FLASH_BACKWARD = 2.5
"""Arithmetic of a flash kernel's backward pass over that of its forward pass."""
FLASH_2 = 3e14
"""FLOP/s that kernels of FlashAttention-2 reach in steps on H100, and no more on later devices: alone 370 TFLOP/s
there (Shah et al., 2407.08608, figure 5), and 352 to 362 on B200 (meta-pytorch/tritonbench, pull request 171)."""
FLASH_2_SHARE = 0.5
"""Of the peak that they reach on devices before these: half to 0.73 of an A100's, where kernels before them reached a
quarter to 0.4, which constants of devices are of (Dao, 2307.08691, abstract)."""
WIDENED = 0.4
"""Share of the bytes/s of other kernels at which weights in 4 bits are widened, which are looked up in a table: Llama 2
7B takes 79 ms longer with bitsandbytes' NF4 than in bfloat16 on an A100 with 40 GB, where two passes over the bytes
take 32 (LitGPT's tutorials/resource-tables.md of October 2023; of 13B they are 191 and 62)."""
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
EXPERT_ROWS = 16
"""Tokens of an expert are filled up to a multiple of these, as products in 8 bits need it: Megatron's
`moe_router_padding_for_fp8` and TorchTitan's token groups."""
PREFETCHED = 0.9
"""Least share of ZeRO-3's communication that goes on beside computation where it prefetches, of all devices."""
BoolArray = NDArray[np.bool_]
_MARKED = {mark: np.arange(16) & mark > 0 for mark in (Mark.SAMPLES, Mark.TOKENS, Mark.TENSOR, Mark.EXPERTS)}
"""Mark → [16] which combinations of marks have it."""


@dataclass(frozen=True)
class Shares:
    """What B strategies make of quantities with marks.

    Attributes:
        strategies: [B] that divide layers alike but for micro-batches, cp and ep.
        widening: bytes of an element over those of the element that quantities are counted in.
        sizes: [B] samples of a micro-batch; none given are the strategies'. Of a tower they may be parts of samples.
    """

    strategies: Sequence[Strategy]
    widening: float = 1.0
    sizes: tuple[float, ...] = ()

    @property
    def strategy(self) -> Strategy:
        """The first one, for what they have in common."""
        return self.strategies[0]

    @cached_property
    def samples(self) -> FloatArray:
        """[B] of a micro-batch."""
        return np.array(self.sizes or [strategy.micro_batch for strategy in self.strategies], np.float64)

    @cached_property
    def ep(self) -> FloatArray:
        """[B] devices among which experts are."""
        return np.array([strategy.ep for strategy in self.strategies], np.float64)

    @cached_property
    def gathered(self) -> FloatArray:
        """[B, 16] factor of each combination of marks where the devices of tp have whole tokens."""
        s, cp = self.strategy, np.array([strategy.cp for strategy in self.strategies])
        factors = np.where(_MARKED[Mark.SAMPLES], self.samples[:, None], 1.0)
        factors /= np.where(_MARKED[Mark.EXPERTS], self.ep[:, None], 1)
        factors /= np.where(_MARKED[Mark.TOKENS], cp[:, None], 1)
        return factors / np.where(_MARKED[Mark.TENSOR], np.where(_MARKED[Mark.EXPERTS], s.expert_tensor, s.tp), 1)

    @cached_property
    def divided(self) -> FloatArray:
        """[B, 16] factor where they share the tokens, with sequence parallelism."""
        shared = _MARKED[Mark.TOKENS] & ~_MARKED[Mark.TENSOR] & self.strategy.sequence_parallel
        return np.asarray(self.gathered / np.where(shared, self.strategy.tp, 1))

    def bytes_of(self, amounts: Amounts, *, gathered: bool = False) -> FloatArray:
        """[B, …] bytes of [k, …] amounts on a device."""
        if not amounts.values.size:
            return np.zeros((len(self.samples), *amounts.values.shape[1:]))
        factors = self.gathered if gathered else self.divided
        return np.asarray(factors[:, amounts.marks] @ amounts.values * self.widening)

    def summed(self, sums: Amounts) -> Amounts:
        """Sums of a layer: those of experts are none where a device has them whole."""
        of_experts, is_whole = (sums.marks & Mark.EXPERTS) > 0, self.strategy.expert_tensor == 1
        return Amounts(np.where(of_experts & is_whole, 0.0, sums.values), sums.marks & ~Mark.EXPERTS, sums.modules)

    def parameters_of(self, amounts: Amounts) -> FloatArray:
        """[B, 2] parameters of a layer on a device, those of experts apart: others, and they."""
        if not amounts.values.size:
            return np.zeros((len(self.samples), 2))
        of_experts = (amounts.marks & Mark.EXPERTS) > 0
        values = np.array([amounts.values * ~of_experts, amounts.values * of_experts])
        return np.asarray(self.gathered[:, amounts.marks] @ values.T)

    def sizes_of(self, kernels: Kernels) -> FloatArray:
        """[B, n, 4] sizes of products on a device: how many, rows, columns, depth.

        A device has a share of a layer's experts, and each of them the tokens of all devices of ep. Frameworks fill
        the tokens of an expert up to a multiple of EXPERT_ROWS.
        """
        s, marks = self.strategy, kernels.size_marks
        sizes = kernels.sizes * self.gathered[:, marks]
        if kernels.of_experts.any():
            of_tokens = kernels.of_experts[:, None] & ((marks & Mark.SAMPLES) > 0)
            sizes = np.where(of_tokens, np.ceil(sizes * self.ep[:, None, None] / EXPERT_ROWS) * EXPERT_ROWS, sizes)
        if s.sequence_parallel and s.tp > 1:
            replicated = ~kernels.of_tensor[:, None]
            sizes = np.where(replicated & ((marks & Mark.TOKENS) > 0), sizes / s.tp, sizes)
        return np.asarray(sizes)


class StepClock:
    """Times of layers of B strategies at once, on one kind of device.

    A search prices each division of a model with every size that the global batch allows: in arrays of all of them a
    layer takes little longer than with one.

    Args:
        device: with constants of training steps.
        groups: [B] where the groups of each strategy lie; those of tp are alike.
        shares: what strategies make of quantities with marks.
        runtime: how the framework runs them.

    Raises:
        BadInput: the device has no constants, or no peak for the precision.
    """

    def __init__(self, device: Device, groups: Sequence[ProcessGroups], shares: Shares, runtime: Runtime) -> None:
        strategy = shares.strategy
        self.strategy, self.groups, self.shares, self.runtime = strategy, groups, shares, runtime
        self.sizes_of = lru_cache(maxsize=1)(shares.sizes_of)  # times and bytes of a layer ask for the same ones
        self.constants: StepConstants = device.constants
        self.bytes_per_s = device.bytes_per_s
        self.multiprocessors, self.host = device.multiprocessors, device.host
        self.peak = device.sustained * device.matrix_peak(strategy.dtype)
        self.imbalance = np.where(shares.ep > 1, runtime.imbalance, 1.0)  # one device has all experts
        self.narrow = strategy.precision in NARROW
        self.product_peak = device.sustained * device.matrix_peak(strategy.product_dtype)

    def layer(self, work: LayerWork, block: bool, again: Again) -> FloatArray:
        """[B, R, 12] seconds of a layer for one micro-batch on a device, with each kind of recomputation.

            0 … 3     kernels of the forward pass, of gradients of activations and of weights; what is recomputed, with
                      what that sends
            4 … 11    forward and backward each: sums of tensor parallelism; keys and values on their way that attention
                      does not hide; those that it hides, behind which nothing else can hide then; tokens on their way
                      to experts and back

        Args:
            work: of the layer.
            block: whether it is one of the blocks, and not what comes before or after them.
            again: what the kinds run again of it.
        """
        kernels_s, cores_s = self._kernels(work, block)
        passes = _by_pass(work.kernels.passes, kernels_s) + cores_s
        core_forward, core_backward = cores_s[:, 0], cores_s[:, 1] + cores_s[:, 2]
        shares, rings = self.shares, [groups.context.passed_on_s for groups in self.groups]
        passed_on_s = _collective_s(rings, shares.bytes_of(work.context, gathered=True))
        hidden = (np.minimum(passed_on_s, core_forward), np.minimum(2 * passed_on_s, core_backward))
        context = (passed_on_s - hidden[0], 2 * passed_on_s - hidden[1])
        exchanged = shares.bytes_of(work.exchanged)
        if self.strategy.expert_tensor < self.strategy.tp and not self.strategy.sequence_parallel:
            exchanged = exchanged / self.strategy.tp  # each device of tp sends its share of the tokens
        exchanges_s = 2 * (1.0 - self.runtime.expert_overlap) * self._exchange_s(exchanged, work)
        exchanges_s *= self.imbalance
        sums_s = self._sums_s(work.sums_forward)
        sums = (sums_s.sum(axis=1), self._sums_s(work.sums_backward).sum(axis=1))
        passes = self._launched(passes, work, sums, exchanges_s)
        columns = (*passes.T, np.zeros_like(exchanges_s), *sums, *context, *hidden, exchanges_s, exchanges_s)
        times = np.repeat(np.stack(columns, axis=1)[:, None], again.cores.size, axis=1)
        recomputed = kernels_s @ again.kernels + sums_s @ again.sums
        recomputed += np.multiply.outer(core_forward, again.cores) + np.multiply.outer(exchanges_s, again.exchanges)
        launched = self._host_s(work) * (self._launches(work.kernels) @ (again.kernels > 0))
        times[..., 3] = np.maximum(recomputed, launched) + np.multiply.outer(context[0], again.context)
        if not work.backward:
            times[..., [1, 2, 3, 5, 7, 9, 11]] = 0.0
        return times

    def _exchange_s(self, exchanged: FloatArray, work: LayerWork) -> FloatArray:
        """[B] of tokens to their experts, or back."""
        if not self.runtime.once_a_node(self.strategy) or not work.copies:
            return _collective_s([groups.experts.all_to_all_s for groups in self.groups], exchanged)
        return _collective_s(
            [partial(groups.experts.dispatch_s, copies=work.copies) for groups in self.groups], exchanged
        )

    def _launched(
        self, passes: FloatArray, work: LayerWork, sums: tuple[FloatArray, FloatArray], exchanges_s: FloatArray
    ) -> FloatArray:
        """[B, 3] passes that take as long, with what they send, as the host needs to launch them."""
        launched, waited = self._host_s(work), self._sum_host_s
        if not launched and not waited:
            return passes
        of_pass = np.bincount(work.kernels.passes[self._launches(work.kernels)], minlength=3)
        forward = launched * of_pass[0] + waited * len(work.sums_forward.values)
        backward = launched * of_pass[1:].sum() + waited * len(work.sums_backward.values)
        result = passes.copy()
        result[:, 0] += np.maximum(0.0, forward - passes[:, 0] - sums[0] - exchanges_s)
        result[:, 1] += np.maximum(0.0, backward - passes[:, 1:].sum(axis=1) - sums[1] - exchanges_s)
        return result

    def _host_s(self, work: LayerWork) -> float:
        """Seconds in which the host launches a kernel of a layer."""
        runtime = self.runtime
        host_s = runtime.mixture_host_s if work.exchanged.values.size else runtime.host_s
        return self.host * host_s * (1.0 - runtime.graphed)

    @property
    def _sum_host_s(self) -> float:
        """Seconds in which the host waits for a sum of tensor parallelism where it sends to a pipeline, too."""
        s = self.strategy
        return self.host * self.runtime.sum_host_s * s.tp if s.tp > 1 and s.pp > 1 else 0.0

    def _sums_s(self, sums: Amounts) -> FloatArray:
        """[B, m] all-reduces of tensor parallelism; an all-gather and a reduce-scatter are as many bytes."""
        if self.strategy.tp == 1:
            return np.zeros((len(self.groups), len(sums.values)))
        sums = self.shares.summed(sums)
        sent = sums.values * self.shares.gathered[:, sums.marks] * self.shares.widening
        all_reduce_s = [groups.tensor.all_reduce_s for groups in self.groups]
        across = np.array([[groups.tensor.nodes > 1] for groups in self.groups])
        hidden = self.runtime.tensor_overlap * max(0.0, 2.0 - self.host)  # of products in pieces, which a host launches
        sums_s = (1.0 - hidden) * _collective_s(all_reduce_s, sent)
        return np.asarray(sums_s + self.runtime.sum_across_s * self.strategy.tp * across)

    def _kernels(self, work: LayerWork, block: bool) -> tuple[FloatArray, FloatArray]:
        """[B, n] seconds of kernels, nothing for those of attention cores, and [B, 3] of these by pass."""
        kernels = work.kernels
        is_product, core = kernels.products, kernels.core
        moved, moved_core = self._moved_bytes(kernels, is_product)
        times_s = moved * self._moved_shares[kernels.kinds] / self.bytes_per_s
        sizes = self.sizes_of(kernels)[:, is_product]
        flop = np.zeros(times_s.shape)
        flop[:, is_product] = 2.0 * sizes.prod(axis=2)
        computed_s = flop[:, is_product] / self._rates(sizes, kernels.of_activations[is_product], block)
        times_s[:, is_product] = np.maximum(times_s[:, is_product], computed_s)
        times_s += self.constants.launch_s * self._launches(kernels) * self._repeats(kernels, block)
        times_s[:, kernels.casts] *= self.runtime.gradient_moved_bytes / CAST_GRADIENT_BYTES
        if block and self.narrow:
            times_s += self._casts_s(kernels)
        of_experts = kernels.of_experts | (kernels.kinds == WorkKind.ROUTING)
        times_s[:, of_experts] *= self.imbalance[:, None]
        cores = _by_pass(kernels.passes[core], times_s[:, core])
        if self.runtime.flash and core.any():
            forward = kernels.passes == WorkPass.FORWARD
            cores = self._flash_s(flop[:, core & forward].sum(axis=1) / (2 if work.causal else 1), moved_core)
        return self.runtime.compute * np.where(core, 0.0, times_s), self.runtime.compute * cores

    @cached_property
    def _moved_shares(self) -> FloatArray:
        """Of the bytes of a kernel that a program moves, or of what takes as long, by its WorkKind."""
        return np.array([1.0, 1.0, self.runtime.routing, float(self.runtime.eager), 1 / WIDENED])

    def _launches(self, kernels: Kernels) -> BoolArray:
        """[n] which kernels are launched, and not part of another one."""
        launched = (kernels.kinds != WorkKind.UNFUSED) | self.runtime.eager
        return np.asarray(launched & ~kernels.read_again if self.runtime.joins else launched)

    def _repeats(self, kernels: Kernels, block: bool) -> FloatArray:
        """[n] kernels that each is: of experts one for each of a device, and as many casts of what it reads."""
        if not self.runtime.experts_apart:
            return np.ones(len(kernels))
        count = kernels.sizes[:, 0] * self.shares.gathered[0, kernels.size_marks[:, 0]]
        casts = (kernels.passes != WorkPass.WEIGHT) & (block and self.narrow)
        return np.where(kernels.of_experts, count * (1 + casts), 1.0)

    def _rates(self, sizes: FloatArray, of_activations: BoolArray, block: bool) -> FloatArray:
        """[B, n] FLOP/s of products; `sizes`, [B, n, 4], are how many, rows, columns and depth."""
        rates = self.peak * self.constants.product_efficiencies(sizes, self.multiprocessors)
        if not block or self.strategy.precision == "fp32":
            return rates
        if self.narrow:
            rates = np.where(of_activations, rates, rates * (self.product_peak / self.peak))
        return rates * alignment_shares(sizes[..., 1:])

    def _casts_s(self, kernels: Kernels) -> FloatArray:
        """[B, n] seconds of casting to 8 bits what products are the first to read."""
        chosen = kernels.products & ~kernels.of_activations & (kernels.passes != WorkPass.WEIGHT)
        marks, forward = kernels.size_marks, kernels.passes == WorkPass.FORWARD
        count, rows, columns, depth = np.moveaxis(self.sizes_of(kernels), -1, 0)
        elements = np.zeros(count.shape)
        micro_batches = np.array([strategy.micro_batches for strategy in self.shares.strategies])[:, None]
        for side, other in ((1, rows), (2, columns)):
            of_tokens = (marks[:, side] & Mark.SAMPLES) > 0
            gathered = of_tokens & kernels.of_tensor & ((marks[:, side] | marks[:, 3]) & Mark.TENSOR == 0)
            shared = self.strategy.tp if self.strategy.sequence_parallel else 1
            amounts = count * depth * other / np.where(gathered, shared, 1)
            casts = np.where(forward | of_tokens, 1.0, 0.0)
            if self.runtime.joins:
                casts = np.where(forward & of_tokens & kernels.read_again, 0.0, casts)
            if self.runtime.casts_weights_once:
                casts = np.where(of_tokens, casts, 0.0 if kernels.frozen else casts / micro_batches)
            elements += casts * amounts
        # 5 bytes an element: it is read for the largest one in 16 bits, read again, and written in 8
        return np.where(chosen, elements, 0.0) * (5.0 / self.bytes_per_s)

    def _moved_bytes(self, kernels: Kernels, is_product: BoolArray) -> tuple[FloatArray, FloatArray]:
        """[B, n] bytes of kernels, [B, 3] of a flash kernel in the passes: products read tokens that are whole."""
        is_tensor_product = is_product & kernels.of_tensor
        marks = kernels.moved_marks
        gathered, divided = self.shares.gathered[:, marks], self.shares.divided[:, marks]
        factors = np.where(is_tensor_product[kernels.moved_kernels], gathered, divided)
        if self.runtime.joins:
            factors = np.where(kernels.moved_again, 0.0, factors)
        moved = kernels.moved_bytes * factors * self.shares.widening
        flash = kernels.core[kernels.moved_kernels] & ~kernels.moved_scores
        passes = kernels.passes[kernels.moved_kernels[flash]]
        return _sums_of(kernels.moved_kernels, moved, len(kernels)), _by_pass(passes, moved[:, flash])

    def selected_bytes(self, kernels: Kernels) -> FloatArray:
        """[B] bytes of results of every second forward product, from the first, and of the attention core."""
        products = kernels.products & (kernels.passes == WorkPass.FORWARD)
        results = self.sizes_of(kernels)[..., :3].prod(axis=-1)
        of_core = results[:, products & kernels.core]
        elements = results[:, products & ~kernels.core][:, ::2].sum(axis=1)
        if of_core.size:
            elements = elements + of_core.min(axis=1)
        return np.asarray(elements * ITEM_BYTES[self.strategy.dtype])

    def _flash_s(self, forward_flop: FloatArray, moved: FloatArray) -> FloatArray:
        """[B, 3] seconds of a flash kernel by pass; its backward pass makes gradients of activations only."""
        attained = self.peak * self.constants.attention_efficiency
        if self.runtime.hopper_attention:
            attained = min(self.peak, 1.6 * attained)  # see Runtime
        elif self.runtime.flash_2:
            attained = min(max(attained, FLASH_2_SHARE * self.peak), FLASH_2)
        flop = np.stack([forward_flop, FLASH_BACKWARD * forward_flop], axis=1)
        both = np.stack([moved[:, 0], moved[:, 1] + moved[:, 2]], axis=1)
        times_s = np.zeros((len(flop), 3))
        times_s[:, :2] = np.maximum(flop / attained, both / self.bytes_per_s) + self.constants.launch_s
        return times_s


def _by_pass(passes: NDArray[np.int8], amounts: FloatArray) -> FloatArray:
    """[B, 3] sums of [B, n] amounts by the pass that they are of."""
    return _sums_of(passes, amounts, 3)


def _sums_of(bins: NDArray[np.integer[Any]], amounts: FloatArray, count: int) -> FloatArray:
    """[B, count] sums of [B, n] amounts by the bin of each."""
    rows = len(amounts)
    places = bins + count * np.arange(rows)[:, None]
    sums = np.bincount(places.ravel(), amounts.ravel(), minlength=rows * count)
    return sums.reshape(rows, count).astype(np.float64)


def _collective_s(seconds: Sequence[Callable[[float], float]], sent_bytes: FloatArray) -> FloatArray:
    """[B, …] seconds of the collective of each of B strategies for so many bytes."""
    rows = zip(seconds, sent_bytes.reshape(len(sent_bytes), -1).tolist(), strict=True)
    return np.array([[of_bytes(sent) for sent in row] for of_bytes, row in rows]).reshape(sent_bytes.shape)


def model_flop(kernels: Kernels, forwards: int = 1) -> float:
    """FLOP of a layer's products for one sample, whole, without recomputation and with the scores that are masked.

    Args:
        kernels: of the layer.
        forwards: how often the forward pass runs.
    """
    runs = np.where(kernels.passes == WorkPass.FORWARD, forwards, 1)
    return float(2.0 * (kernels.sizes.prod(axis=1) * runs)[kernels.products].sum())
