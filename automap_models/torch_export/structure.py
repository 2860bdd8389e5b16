"""A model's instructions: the parts of its forward pass between two cuts, with what they hold and send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from automap_models.errors import BadInput
from automap_models.torch_export.capture import Captured, capture, module_path
from automap_models.torch_export.cuts import Cut, choose_cuts
from automap_models.torch_export.kernels import Kernel
from automap_models.torch_export.trace import Trace, trace

FloatArray = NDArray[np.float64]
LAST = "end of forward"


@dataclass(frozen=True)
class Parameter:
    """A trainable parameter, tied ones being the same.

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
        names: [n] what the cut after each instruction is called (see cuts.py).
        layers: [n] fully qualified name of the module that does most of the work.
        cuts: [n-1] after each instruction but the last.
        A, W, stash: [n] bytes, as in Profile.
        kernels: all kernels of the step.
        owner: [kernels] the instruction that each kernel belongs to.
        parameters: the trainable ones that are used.
        unused: names of the trainable ones that are not.
    """

    names: tuple[str, ...]
    layers: tuple[str, ...]
    cuts: tuple[Cut, ...]
    A: FloatArray
    W: FloatArray
    stash: FloatArray
    kernels: list[Kernel]
    owner: NDArray[np.int64]
    parameters: tuple[Parameter, ...]
    unused: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def totals(self, of_kernels: FloatArray, *, backward: bool) -> FloatArray:
        """[n] sums over the forward or the backward kernels of each instruction."""
        chosen = np.array([kernel.is_backward is backward for kernel in self.kernels], np.bool_)
        return np.bincount(self.owner[chosen], of_kernels[chosen], minlength=len(self)).astype(np.float64)


def analyse(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, name: str) -> Structure:
    """Capture a model's step, trace it and divide it into instructions.

    Raises:
        BadInput: see `capture` and `trace`; or no module boundary to cut at.
    """
    captured = capture(model, args, kwargs, name=name)
    traced = trace(captured, name=name)
    computes = np.zeros(len(traced.calls), np.bool_)
    computes[[kernel.call for kernel in traced.kernels if not kernel.is_backward]] = True
    cuts = choose_cuts(traced.calls, captured.model, computes, traced.crossing)
    if not cuts:
        raise BadInput(
            "has no place to cut: no module that is called once starts or ends between two of its operators",
            where=name,
            do="make its layers modules of their own",
        )
    return _divide(captured, traced, cuts)


def _divide(captured: Captured, traced: Trace, cuts: list[Cut]) -> Structure:
    after = np.array([cut.call for cut in cuts])
    of_call = np.searchsorted(after, np.arange(len(traced.calls)))
    owner = of_call[[kernel.call for kernel in traced.kernels]]
    n = len(cuts) + 1
    parameters, unused = _parameters(captured, of_call)
    W = np.zeros(n)
    for parameter in parameters:
        W[parameter.instructions[0]] += parameter.size_bytes
    return Structure(
        names=(*(cut.name for cut in cuts), LAST),
        layers=_layers(traced, owner, n),
        cuts=tuple(cuts),
        A=np.append(traced.crossing[after], 0.0),
        W=W,
        stash=np.bincount(of_call, traced.stash, minlength=n).astype(np.float64),
        kernels=traced.kernels,
        owner=owner,
        parameters=parameters,
        unused=unused,
    )


def _layers(traced: Trace, owner: NDArray[np.int64], n: int) -> tuple[str, ...]:
    """The module of each instruction's heaviest kernel: the most FLOP, then the most bytes, then the first."""
    heaviest: list[tuple[tuple[int, int], str]] = [((-1, -1), "")] * n
    for kernel, i in zip(traced.kernels, owner, strict=True):
        work = kernel.flop, kernel.moved_bytes
        if not kernel.is_backward and work > heaviest[i][0]:
            heaviest[i] = work, module_path(traced.calls[kernel.call])
    return tuple(path for _, path in heaviest)


def _parameters(captured: Captured, of_call: NDArray[np.int64]) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """The trainable parameters with the instructions that read them, and the names of those that none reads."""
    named = list(captured.model.named_parameters(remove_duplicate=False))
    names: dict[nn.Parameter, list[str]] = {}
    for path, parameter in named:
        if parameter.requires_grad:
            names.setdefault(parameter, []).append(path)
    readers: dict[nn.Parameter, set[int]] = {parameter: set() for parameter in names}
    of_path, index = dict(named), {node: i for i, node in enumerate(captured.calls)}
    for node in captured.graph_module.graph.nodes:
        if node.op == "get_attr" and of_path.get(str(node.target)) in readers:
            reading = (int(of_call[index[user]]) for user in node.users if user in index)
            readers[of_path[str(node.target)]].update(reading)
    used = [
        Parameter(tuple(paths), parameter.numel() * parameter.element_size(), tuple(sorted(readers[parameter])))
        for parameter, paths in names.items()
        if readers[parameter]
    ]
    return tuple(used), tuple(paths[0] for parameter, paths in names.items() if not readers[parameter])
