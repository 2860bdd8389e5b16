"""What a training step costs on a device that is not there: operators seen on the meta device, timed by a roofline.

    time = max(FLOP / attainable FLOP/s, bytes moved / attainable bytes/s)

with the FLOP formulas of torch.utils.flop_counter and the bytes of an operator's inputs and outputs, each once.
3×3 convolutions of stride 1 need 2.25 times fewer multiplications than their FLOP count says, because cuDNN runs
them by Winograd's F(2×2, 3×3) (arXiv 1509.09308). The backward pass runs, too: each of its operators is charged to
the forward instruction whose gradient it computes. Launch overheads and overlap are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Device:
    """A device's roofline: peaks and the part of them that good kernels reach."""

    name: str
    flop_per_s: float
    bytes_per_s: float
    compute_efficiency: float
    bandwidth_efficiency: float

    def seconds(self, flop: float, moved_bytes: float) -> float:
        """Time of a kernel that computes and moves that much."""
        return max(
            flop / (self.flop_per_s * self.compute_efficiency),
            moved_bytes / (self.bytes_per_s * self.bandwidth_efficiency),
        )


@dataclass
class Instruction:
    """One kernel of the forward pass with all that is charged to it."""

    operator: str
    layer: str
    forward_s: float
    backward_s: float = 0.0
    weights_bytes: int = 0
    stash_bytes: int = 0
    flop: int = 0
    backward_flop: int = 0


@dataclass
class Value:
    """A storage that an instruction produced: its size and its life."""

    size_bytes: int
    produced: int
    last_used: int


@dataclass(eq=False)
class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every ATen operator of a step on the meta device.

    Autograd numbers its nodes: the node of a forward operator is created just before the operator is dispatched, and
    packs its saved tensors under the same number. So that number leads from a saved tensor and from a backward
    operator to the forward instruction they belong to. Views launch no kernel; they count to the instruction before.
    """

    device: Device
    weights: dict[int, int]
    layer: list[str] = field(default_factory=lambda: [""])
    instructions: list[Instruction] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    of_node: dict[int, int] = field(default_factory=dict)
    saved: list[tuple[int, int, int]] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator on its shapes and book it."""
        out = func(*args, **(kwargs or {}))
        inputs, outputs = _tensors((args, kwargs)), _tensors(out)
        self.alive += [t.untyped_storage() for t in (*inputs, *outputs)]  # an address names one storage to the end
        node = torch._C._current_autograd_node()
        given = {_storage(t) for t in inputs}
        is_view = not func._schema.is_mutable and all(_storage(t) in given for t in outputs)
        if node is None:
            if not is_view:
                self._forward(func, args, kwargs, inputs, outputs, out)
            self.of_node.setdefault(_node_being_made(), max(len(self.instructions) - 1, 0))
        elif not is_view:
            self._backward(node, func, args, kwargs, inputs, outputs, out)
        return out

    def pack(self, tensor: Tensor) -> Tensor:
        """Autograd keeps this tensor for the backward pass."""
        self.alive.append(tensor.untyped_storage())
        self.saved.append((_node_being_made(), _storage(tensor), tensor.untyped_storage().nbytes()))
        return tensor

    def _forward(
        self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], outputs: list[Tensor], out: Any
    ) -> None:
        index, flop = len(self.instructions), _flop(func, args, kwargs, out)
        seconds = self.device.seconds(flop / _winograd_saving(func, args), _moved_bytes(func, inputs, outputs))
        booked = Instruction(func._overloadpacket.__name__.strip("_"), self.layer[-1], seconds, flop=flop)
        for tensor in inputs:
            storage = _storage(tensor)
            booked.weights_bytes += self.weights.pop(storage, 0)
            if storage in self.values:
                self.values[storage].last_used = index
        for tensor in outputs:
            self.values.setdefault(_storage(tensor), Value(tensor.untyped_storage().nbytes(), index, index))
        self.instructions.append(booked)

    def _backward(
        self, node: Any, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], outputs: list[Tensor], out: Any
    ) -> None:
        booked = self.instructions[self.of_node[node._sequence_nr()]]
        flop = _flop(func, args, kwargs, out)
        booked.backward_flop += flop
        moved = _moved_bytes(func, inputs, outputs)
        booked.backward_s += self.device.seconds(flop / _winograd_saving(func, args), moved)

    def charge_saved(self, parameters: Iterable[int]) -> None:
        """Charge each saved storage once, to the first instruction that keeps it; parameters are no activations."""
        charged = set(parameters)
        for node, storage, size_bytes in self.saved:
            if storage not in charged:
                charged.add(storage)
                self.instructions[self.of_node[node]].stash_bytes += size_bytes

    def crossing_bytes(self) -> list[int]:
        """[n] bytes of the values made up to instruction i and read after it; every stage loads its own batch."""
        crossing = [0] * len(self.instructions)
        for value in self.values.values():
            for i in range(value.produced, value.last_used):
                crossing[i] += value.size_bytes
        return crossing


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _node_being_made() -> int:
    return int(torch._C._autograd._get_sequence_nr()) - 1


def _flop(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    formula = flop_registry.get(func._overloadpacket)
    return int(formula(*args, **(kwargs or {}), out_val=out)) if formula else 0


def _winograd_saving(func: Any, args: tuple[Any, ...]) -> float:
    """How many times fewer multiplications a convolution needs: 36 of 16 for 3×3 kernels moved by one."""
    convolution, gradient = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    if func._overloadpacket not in (convolution, gradient):
        return 1.0
    weight, stride = (args[1], args[3]) if func._overloadpacket is convolution else (args[2], args[4])
    return 2.25 if tuple(weight.shape[2:]) == (3, 3) and tuple(stride) == (1, 1) else 1.0


def _moved_bytes(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Each input is read once, each output written once; a lookup reads the rows it returns, not the table."""
    if func._overloadpacket is torch.ops.aten.embedding:
        inputs = [inputs[1], *outputs]
    moved = (min(t.numel() * t.element_size(), t.untyped_storage().nbytes()) for t in (*inputs, *outputs))
    return sum(moved)


def _follow_layers(model: nn.Module, layer: list[str]) -> None:
    """Keep the path of the module being run on top of `layer`."""

    def enter(path: str) -> Callable[..., None]:
        return lambda *_: layer.append(path)

    def leave(*_: object) -> None:
        layer.pop()

    for path, module in model.named_modules():
        if path:
            module.register_forward_pre_hook(enter(path.replace(".", "/")))
            module.register_forward_hook(leave)


def trace(model: nn.Module, inputs: tuple[Tensor, ...], device: Device) -> Tracer:
    """Run one training step of a model whose forward returns the loss, everything on the meta device."""
    parameters = list(model.parameters())
    sizes = {_storage(p): p.untyped_storage().nbytes() for p in parameters}
    tracer = Tracer(device, weights=dict(sizes))
    _follow_layers(model, tracer.layer)
    with tracer, saved_tensors_hooks(tracer.pack, lambda tensor: tensor):
        loss = model(*inputs)
    seed = torch.ones_like(loss)
    with tracer:
        torch.autograd.grad(loss, parameters, seed)
    tracer.charge_saved(sizes)
    return tracer
