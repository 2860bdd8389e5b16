"""How long the instructions of a training step take on a device: the clock of strategies, on any graph.

    instructions ── fusion, modules ──→ kernels: FLOP, bytes ── clock of a device (core.device) ──→ seconds
                    cost.kernel_traffic, hlo.module_kernels

A kernel's time is that of the instruction which writes its result; the others in it take none. So are the layers of a
strategy priced (cost.layer_times), and a product of these sizes takes the same in both.

Sides of a convolution count as aligned, and so does one from VOCABULARY on: libraries and frameworks pad them.

Parameters are at hand in the type and the order that products read them in: the update, once a step, writes them so.

An attention core that a location names (hlo.locations) is one flash kernel a pass. It moves only what is made or read
outside, and skips the masked half of a causal one's scores.

With s times as many samples, what has samples (hlo.samples) grows: bytes, one size of each product, cores. Devices that
share instructions have a part of the same each (`Sharing`): so do the devices of a strategy's tensor parallelism.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from automap_models.collection import uncollected
from automap_models.core.dag import post_order
from automap_models.core.device import Device
from automap_models.core.instruction_graph import FloatArray, InstructionGraph, IntArray, Phase
from automap_models.cost.kernel_traffic import (
    MATRIX_OPCODES,
    PART_OPCODE,
    REDUCTION_OPCODES,
    VOCABULARY,
    WINOGRAD_SAVING,
    is_winograd,
    kernel_traffic,
    product_type,
)
from automap_models.cost.layer_times import FLASH_BACKWARD
from automap_models.errors import BadInput
from automap_models.hlo.attribution import MOVES
from automap_models.hlo.module_kernels import module_traffic
from automap_models.hlo.samples import FLASH_OPCODES, graph_products, per_sample, sample_sides
from automap_models.hlo.saved_values import saved_values

BoolArray = NDArray[np.bool_]
_BEHIND_MASKS = frozenset(
    {"add", "broadcast", "broadcast_in_dim", "compare", "convert", "reshape", "select", "transpose"}
)


@dataclass(frozen=True, eq=False)
class Sharing:
    """How devices share the work of a graph with n instructions and v values.

    Attributes:
        degree: devices, t.
        instructions: [n] whether each device does a part of an instruction.
        values: [v] whether each device has a part of a value.
        sides: [n] which size of a product (hlo.samples) is 1/t on each device; NO_SIDE for none.
    """

    degree: int
    instructions: BoolArray
    values: BoolArray
    sides: IntArray


@uncollected()
def clock_times(
    graph: InstructionGraph, device: Device, samples: float = 1.0, sharding: Sharing | None = None
) -> FloatArray:
    """Time of each instruction on a device, [n] seconds.

    Args:
        samples: of a micro-batch, over those of the graph.
        sharding: among the devices that share the graph, if it is not one's alone.

    Raises:
        BadInput: the device has no rate for the element type of a matrix product.
    """
    if graph not in _CACHE:
        _CACHE[graph] = _graph_kernels(graph)
    return _CACHE[graph].times_s(device, samples, sharding)


def clock_seconds(graph: InstructionGraph, devices: Iterable[Device]) -> dict[str, float]:
    """Name of each device → seconds of one micro-batch; devices without a rate for it are left out."""
    seconds = {}
    for device in devices:
        with suppress(BadInput):
            seconds[device.name] = float(clock_times(graph, device)[graph.in_microbatch].sum())
    return seconds


@dataclass(frozen=True, eq=False)
class _Products:
    """k products of one element type.

    Attributes:
        members: [k] instructions.
        sizes: [k, 4] count, rows, columns, depth.
        sides: [k] which of these has the samples; -1 for none.
        aligned: [k] whether their sides count as aligned.
        saved: [k] multiplications over those of Winograd's algorithm.
        flash: [k] whether it is an attention core by itself.
    """

    members: IntArray
    sizes: FloatArray
    sides: IntArray
    aligned: BoolArray
    saved: FloatArray
    flash: BoolArray

    def rates(
        self, device: Device, dtype: str, samples: float, sharding: Sharing | None
    ) -> tuple[FloatArray, FloatArray]:
        """[k] FLOP and FLOP/s."""
        sizes = self.sizes.copy()
        of_samples = self.sides >= 0
        sizes[of_samples, self.sides[of_samples]] *= samples
        if sharding is not None:
            sides = sharding.sides[self.members]
            sizes[sides >= 0, sides[sides >= 0]] /= sharding.degree
        flop = 2.0 * sizes.prod(axis=1) / (self.saved if device.winograd else 1.0)
        rates = device.product_rates(sizes, dtype, self.aligned)
        return flop, np.where(self.flash, device.attention_rate(dtype), rates)


@dataclass(frozen=True, eq=False)
class _Core:
    """One pass of an attention core: a flash kernel.

    Attributes:
        members: its instructions, of which the first has the time, and moves what the kernel moves.
        flop: of the kernel.
        dtype: of its products.
    """

    members: IntArray
    flop: float
    dtype: str


@dataclass(frozen=True, eq=False)
class _GraphKernels:
    """What the kernels of a graph of n instructions compute and move.

    Attributes:
        flop: [n] of kernels that are no products.
        flop_sampled: [n] whether that grows with the samples.
        kernels, values, nbytes, sampled: [m] of what is moved: whose kernel, what, how much, whether it has samples.
        products: by element type.
        cores: attention cores.
    """

    flop: FloatArray
    flop_sampled: BoolArray
    kernels: IntArray
    values: IntArray
    nbytes: FloatArray
    sampled: BoolArray
    products: dict[str, _Products]
    cores: tuple[_Core, ...]

    def times_s(self, device: Device, samples: float, sharding: Sharing | None) -> FloatArray:
        """[n] seconds."""
        flop = _grown(self.flop, self.flop_sampled, samples)
        if sharding is not None:
            flop = _grown(flop, sharding.instructions, 1.0 / sharding.degree)
        nbytes = _grown(self.nbytes, self.sampled, samples)
        if sharding is not None:
            nbytes = _grown(nbytes, sharding.values[self.values], 1.0 / sharding.degree)
        moved = np.bincount(self.kernels, nbytes, minlength=flop.size)
        times_s = device.seconds(flop, moved)
        for dtype, of_type in self.products.items():
            flop, rates = of_type.rates(device, dtype, samples, sharding)
            times_s[of_type.members] = device.seconds(flop, moved[of_type.members], rates)
        for core in self.cores:
            core_flop = samples * core.flop
            if sharding is not None and sharding.instructions[core.members].any():
                core_flop /= sharding.degree
            first = core.members[0]
            times_s[first] = float(device.seconds(core_flop, moved[first], device.attention_rate(core.dtype)))
        return times_s


_CACHE: WeakKeyDictionary[InstructionGraph, _GraphKernels] = WeakKeyDictionary()
"""A graph never changes, and its kernels are the same on every device."""


def _grown(amounts: FloatArray, sampled: BoolArray, samples: float) -> FloatArray:
    return np.asarray(np.where(sampled, samples * amounts, amounts))


def _graph_kernels(graph: InstructionGraph) -> _GraphKernels:
    sampled = per_sample(graph)
    saved = saved_values(graph) if (graph.phases == Phase.BACKWARD).any() else np.zeros(sampled.size, dtype=bool)
    traffic = kernel_traffic(graph, (graph.phases == Phase.UPDATE).tolist(), np.flatnonzero(saved).tolist())
    traffic = module_traffic(graph, traffic, _modules(graph, sampled), saved)
    product = np.array([opcode in MATRIX_OPCODES for opcode in graph.opcodes], dtype=bool)
    in_core = graph.in_core & ~np.isin(graph.phases, [Phase.UPDATE])
    casts = _casts_of_parameters(graph)
    cores, kernel = list(_cores(graph, in_core)), np.where(in_core, -1, np.arange(len(graph)))
    for core in cores:
        kernel[core.members] = core.members[0]
    kernel[casts] = -1
    moves = (kernel[traffic.kernels] >= 0) & (~in_core[traffic.kernels] | _outside(graph, in_core)[traffic.values])
    grows = np.logical_or.reduceat(sampled, graph.result_offsets[:-1]) if len(graph) else np.zeros(0, dtype=bool)
    return _GraphKernels(
        flop=np.where(product | in_core | casts | (traffic.moved == 0), 0.0, traffic.flop),
        flop_sampled=grows,
        kernels=kernel[traffic.kernels[moves]],
        values=traffic.values[moves],
        nbytes=traffic.nbytes[moves],
        sampled=sampled[traffic.values[moves]],
        products=_products(graph, sampled, np.flatnonzero(product & ~in_core)),
        cores=tuple(cores),
    )


def _casts_of_parameters(graph: InstructionGraph) -> BoolArray:
    """[n] whether an instruction of the forward pass gives a parameter, or a part of one, another type or order."""
    shows_parameter = np.zeros(len(graph.shapes), dtype=bool)
    shows_parameter[: len(graph.arguments)] = [argument.kind == "parameter" for argument in graph.arguments]
    casts = np.zeros(len(graph), dtype=bool)
    for i in np.flatnonzero(graph.phases == Phase.FORWARD).tolist():
        if graph.opcodes[i] in MOVES | {PART_OPCODE} and shows_parameter[graph.operands[graph.operand_offsets[i]]]:
            shows_parameter[graph.result_offsets[i]] = casts[i] = True
    return casts


def _modules(graph: InstructionGraph, sampled: BoolArray) -> IntArray:
    """[n] one number for each module, phase and core; negative for what runs on its own: of no known module, sums over
    the samples, and the update."""
    numbers: dict[tuple[object, ...], int] = {}
    keys = list(zip(graph.layers, graph.phases.tolist(), graph.in_core.tolist(), strict=True))
    first = graph.operand_offsets
    alone = []
    for i, (layer, phase, _) in enumerate(keys):
        read = graph.operands[first[i] : first[i + 1]]
        sums = graph.opcodes[i] in REDUCTION_OPCODES and sampled[read].any() and not sampled[graph.result_offsets[i]]
        alone.append(layer == "" or phase == Phase.UPDATE or bool(sums))
    return np.where(alone, -1, [numbers.setdefault(key, len(numbers)) for key in keys])


def _products(graph: InstructionGraph, sampled: BoolArray, members: IntArray) -> dict[str, _Products]:
    by_type: dict[str, list[int]] = defaultdict(list)
    for i in members.tolist():
        by_type[product_type(graph, i)].append(i)
    return {dtype: _of_type(graph, sampled, np.array(indices)) for dtype, indices in by_type.items()}


def _of_type(graph: InstructionGraph, sampled: BoolArray, members: IntArray) -> _Products:
    sizes = graph_products(graph, members)
    convolution = np.array([graph.opcodes[i] == "convolution" for i in members.tolist()])
    return _Products(
        members,
        sizes,
        sample_sides(graph, members, sampled),
        aligned=convolution | (sizes[:, 1:] >= VOCABULARY).any(axis=1),
        saved=np.array([WINOGRAD_SAVING if is_winograd(graph, i) else 1.0 for i in members.tolist()]),
        flash=np.array([graph.opcodes[i] in FLASH_OPCODES for i in members.tolist()]),
    )


def _cores(graph: InstructionGraph, in_core: BoolArray) -> Iterator[_Core]:
    """Each pass of each attention core that has a product."""
    of_core: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i in np.flatnonzero(in_core).tolist():
        of_core[graph.layers[i], int(graph.phases[i])].append(i)
    forward_flop: dict[str, float] = {}
    for (layer, phase), members in sorted(of_core.items(), key=lambda core: core[0][1]):
        products = [i for i in members if graph.opcodes[i] in MATRIX_OPCODES]
        if phase == Phase.FORWARD:
            masked = _is_masked(graph, members, in_core)
            forward_flop[layer] = float(graph.flop[products].sum()) / (2 if masked else 1)
        if products:
            yield _Core(
                np.array([products[0], *(i for i in members if i != products[0])]),
                forward_flop.get(layer, 0.0) * (1.0 if phase == Phase.FORWARD else FLASH_BACKWARD),
                product_type(graph, products[0]),
            )


def _outside(graph: InstructionGraph, in_core: BoolArray) -> BoolArray:
    """[v] whether a value is made, or read, outside attention cores."""
    producers = graph.producers
    outside = ~in_core[producers] | (producers < 0)
    outside[graph.operands[~in_core[graph.consumers]]] = True
    outside[graph.outputs] = True
    return outside


def _is_masked(graph: InstructionGraph, core: list[int], in_core: BoolArray) -> bool:
    """Whether a core's scores are added to, or chosen by, what comparisons make of constants alone."""

    def behind(i: int) -> list[int]:
        makers = graph.producers[graph.operands[slice(*graph.operand_offsets[i : i + 2])]].tolist()
        return [
            maker for maker in makers if maker >= 0 and not in_core[maker] and graph.opcodes[maker] in _BEHIND_MASKS
        ]

    made_of = post_order(behind, core)
    return any(graph.opcodes[i] == "compare" and len(graph.shapes[graph.result_offsets[i]]) > 1 for i in made_of)
