"""A model's instructions: the parts of its forward pass between two cuts, with what they hold and send.

A cut is where torch.distributed.pipelining can cut, and has the name by which a split_spec has it.
A split_spec names a module and one of SplitPoint.BEGINNING and END: the cut is before or after its call. So a place
between two operators has a name if a module that is called once starts or ends there. (One that is called twice would
be cut twice.) A split_spec holds a module once, so every module names one cut only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.core.profile import FloatArray
from automap_models.cost.kernel_traffic import MATRIX_OPCODES, VIEW_OPCODES
from automap_models.errors import BadInput
from automap_models.hlo.graph import instruction_graph
from automap_models.torch_export.capture import Captured, module_path
from automap_models.torch_export.operators import CONSTANT
from automap_models.torch_export.step import TracedStep, traced_step

BEFORE = "before "
"""Prefix of the name of a cut at the beginning of a module; the others are at the end of one."""
Frame = list[tuple[str, str]]
"""The calls of modules that an operator is in, outermost first: a key that tells the call, and the module's name."""
LAST = "end of forward"
_SHOW_OTHERS = VIEW_OPCODES | {CONSTANT, "slice", "broadcast_in_dim"}
"""Words of what launches no kernel in a framework with strides."""


@dataclass(frozen=True)
class Cut:
    """A place to cut: after operator `call`, called `name`."""

    call: int
    name: str


def choose_cuts(
    calls: Sequence[fx.Node], model: nn.Module, computes: NDArray[np.bool_], crossing: FloatArray
) -> list[Cut]:
    """All the cuts of a forward pass worth having, in order, under names that can be used together.

    Of the places that have no kernel between them only the one with the fewest bytes is left. The place with the fewest
    bytes of all chooses its name first; in a tie, one at the end of a module does. One that finds no name is no cut.

    Args:
        calls: the m operators of the forward pass.
        model: the model whose modules they are of.
        computes: [m] whether an operator launches a kernel.
        crossing: [m] bytes that cross a cut after each operator.
    """
    options = cut_options(calls, model)
    kernels_before = np.cumsum(computes)

    def rank(call: int) -> tuple[float, bool, int]:
        return float(crossing[call]), options[call][0].startswith(BEFORE), call

    best: dict[int, int] = {}
    for call in sorted(options, key=rank):
        if 0 < kernels_before[call] < kernels_before[-1]:
            best.setdefault(int(kernels_before[call]), call)
    used: set[int] = set()
    cuts = []
    for call in sorted(best.values(), key=rank):
        for name in options[call]:
            module = id(model.get_submodule(name.removeprefix(BEFORE)))
            if module not in used:
                used.add(module)
                cuts.append(Cut(call, name))
                break
    return sorted(cuts, key=lambda cut: cut.call)


def cut_options(calls: Sequence[fx.Node], model: nn.Module) -> dict[int, list[str]]:
    """Operator → names of the cut after it: the modules that end there, then those that begin, outermost first."""
    frames = module_frames(calls)
    shared = [_common(here, there) for here, there in pairwise([[], *frames])]
    started = [frame[same:] for frame, same in zip(frames, shared, strict=True)]
    times = Counter(id(model.get_submodule(path)) for frame in started for _, path in frame)

    def once(frame: Frame, prefix: str = "") -> list[str]:
        return [prefix + path for _, path in frame if times[id(model.get_submodule(path))] == 1]

    names = {i: once(frames[i][shared[i + 1] :]) + once(started[i + 1], BEFORE) for i in range(len(frames) - 1)}
    return {i: options for i, options in names.items() if options}


def module_frames(calls: Sequence[fx.Node]) -> list[Frame]:
    """[m] the frame of each operator."""
    frames: list[Frame] = []
    for node in calls:
        stack = node.meta.get("nn_module_stack")
        if stack is None:  # put in by torch.export itself
            frames.append(frames[-1] if frames else [])
        else:
            frames.append([(key, path) for key, (path, _) in stack.items() if path])
    return frames


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@dataclass(frozen=True)
class Parameter:
    """A parameter, buffer or constant, tied ones being the same.

    Attributes:
        names: all its names in the model.
        size_bytes: its size.
        instructions: those that read it, in order.
    """

    names: tuple[str, ...]
    size_bytes: int
    instructions: tuple[int, ...]


@dataclass(frozen=True)
class Structure:
    """All of a profile but the times: n instructions in execution order.

    Attributes:
        names: [n] what the cut after each instruction is called (see the module).
        layers: [n] fully qualified name of the module that does most of the work.
        cuts: [n-1] after each instruction but the last.
        A, W, saved_bytes: [n] bytes, as in Profile.
        graph: the whole step, operation by operation.
        owner: [operations] the instruction that each of these belongs to.
        parameters: the trainable ones that are used.
        unused: names of the trainable ones that are not.
        frozen: what else the operators read of the model: parameters that are not trained, buffers, constants.
    """

    names: tuple[str, ...]
    layers: tuple[str, ...]
    cuts: tuple[Cut, ...]
    A: FloatArray
    W: FloatArray
    saved_bytes: FloatArray
    graph: InstructionGraph
    owner: NDArray[np.int64]
    parameters: tuple[Parameter, ...]
    unused: tuple[str, ...]
    frozen: tuple[Parameter, ...]

    def __len__(self) -> int:
        return len(self.names)

    def totals(self, of_operations: FloatArray, phase: Phase) -> FloatArray:
        """[n] sums over the operations of a phase of each instruction."""
        chosen = self.graph.phases == phase
        return np.bincount(self.owner[chosen], of_operations[chosen], minlength=len(self)).astype(np.float64)

    @property
    def product_flop(self) -> FloatArray:
        """[operations] FLOP of matrix products, convolutions and attention cores."""
        return np.where(np.isin(self.graph.opcodes, list(MATRIX_OPCODES)), self.graph.flop, 0.0)


def analyse(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, name: str) -> Structure:
    """Capture a model's step, trace it and divide it into instructions.

    Raises:
        BadInput: see `step_module`; or no module boundary to cut at.
    """
    traced = traced_step(model, args, kwargs, name=name)
    graph, calls = instruction_graph(traced.module), traced.captured.calls
    computes = np.zeros(len(calls), np.bool_)
    launches = (graph.phases == Phase.FORWARD) & ~np.isin(graph.opcodes, list(_SHOW_OTHERS))
    computes[np.array(traced.calls)[launches]] = True
    cuts = choose_cuts(calls, traced.captured.model, computes, traced.crossing)
    if not cuts:
        raise BadInput(
            "has no place to cut: no module that is called once starts or ends between two of its operators",
            where=name,
            do="make its layers modules of their own",
        )
    return _divide(traced, graph, cuts)


def _divide(traced: TracedStep, graph: InstructionGraph, cuts: list[Cut]) -> Structure:
    captured, after = traced.captured, np.array([cut.call for cut in cuts])
    of_call = np.searchsorted(after, np.arange(len(captured.calls)))
    n = len(cuts) + 1
    read = _parameters(captured, of_call)
    trained = {path for path, p in captured.model.named_parameters(remove_duplicate=False) if p.requires_grad}
    parameters = tuple(tensor for tensor in read if tensor.names[0] in trained)
    used = {name for parameter in parameters for name in parameter.names}
    structure = Structure(
        names=(*(cut.name for cut in cuts), LAST),
        layers=(),
        cuts=tuple(cuts),
        A=np.append(traced.crossing[after], 0.0),
        W=first_used(parameters, n),
        saved_bytes=np.bincount(of_call, traced.saved_bytes, minlength=n).astype(np.float64),
        graph=graph,
        owner=of_call[list(traced.calls)],
        parameters=parameters,
        unused=tuple(path for path, p in captured.model.named_parameters() if p.requires_grad and path not in used),
        frozen=tuple(tensor for tensor in read if tensor.names[0] not in trained),
    )
    return replace(structure, layers=_layers(structure, traced))


def first_used(parameters: Sequence[Parameter], n: int) -> FloatArray:
    """[n] bytes of what each instruction is the first to read."""
    nbytes = np.zeros(n)
    for parameter in parameters:
        nbytes[parameter.instructions[0]] += parameter.size_bytes
    return nbytes


def _layers(structure: Structure, traced: TracedStep) -> tuple[str, ...]:
    """The module of each instruction's heaviest operation: the most FLOP, then the most bytes, then the first."""
    graph, flop = structure.graph, structure.product_flop
    heaviest: list[tuple[tuple[float, float], str]] = [((-1, -1), "")] * len(structure)
    for i in np.flatnonzero(graph.phases == Phase.FORWARD).tolist():
        work, owner = (float(flop[i]), float(graph.bytes_accessed[i])), structure.owner[i]
        if graph.opcodes[i] not in _SHOW_OTHERS and work > heaviest[owner][0]:
            heaviest[owner] = work, module_path(traced.captured.calls[traced.calls[i]])
    return tuple(path for _, path in heaviest)


def _parameters(captured: Captured, of_call: NDArray[np.int64]) -> list[Parameter]:
    """What operators read of the model, with the instructions that read it, each tensor once."""
    model, index = captured.model, {node: i for i, node in enumerate(captured.calls)}
    names: dict[Tensor, list[str]] = {}
    for path, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        names.setdefault(tensor, []).append(path)
    readers: dict[Tensor, set[int]] = {tensor: set() for tensor in names}
    for node in captured.graph_module.graph.nodes:
        if node.op == "get_attr":
            tensor = attrgetter(str(node.target))(captured.graph_module)
            if isinstance(tensor, Tensor):
                names.setdefault(tensor, [str(node.target)])
                reading = (int(of_call[index[user]]) for user in node.users if user in index)
                readers.setdefault(tensor, set()).update(reading)
    return [
        Parameter(tuple(names[tensor]), tensor.numel() * tensor.element_size(), tuple(sorted(reading)))
        for tensor, reading in readers.items()
        if reading
    ]
