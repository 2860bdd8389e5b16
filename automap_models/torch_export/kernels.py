"""Every kernel of a training step, seen on the meta device: what it computes and moves, and whose it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import conv_flop_count, flop_registry

from automap_models.core.device import Device
from automap_models.core.profile import FloatArray
from automap_models.cost.kernel_traffic import VOCABULARY, WINOGRAD_SAVING, product_sizes

aten = torch.ops.aten

ALLOCATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
LOOKUPS = {aten.embedding, aten.gather, aten.index, aten.index_select}
"""They read the rows that they return and the indices, not the whole table."""
CONVOLUTIONS = {aten.convolution: (1, 3), aten.convolution_backward: (2, 4)}
"""Where the kernel and the stride stand among their arguments."""


@dataclass(frozen=True)
class Kernel:
    """One ATen operator that computes.

    Attributes:
        call: index of the operator of the forward graph that it belongs to.
        is_backward: whether it computes a gradient.
        flop: floating-point operations by torch.utils.flop_counter: matrix products and convolutions, else 0. Each
            gradient of a convolution is counted as the convolution itself.
        moved_bytes: its inputs, read once, and its outputs, written once.
        dtype: element type of its first floating-point input, such as `float32`.
        sizes: of a product, how many there are, rows, columns and depth; of a convolution's gradients, those of it.
            None of an attention core, which is one flash kernel, and of what is no product.
        is_convolution: whether it is a convolution or the gradient of one.
        is_winograd: whether, in addition, it is 3×3 of stride 1 in float32.
    """

    call: int
    is_backward: bool
    flop: float
    moved_bytes: float
    dtype: str
    sizes: tuple[float, float, float, float] | None
    is_convolution: bool
    is_winograd: bool


def grown(kernel: Kernel, twice: Kernel, factor: float) -> Kernel:
    """A kernel with so many times the samples.

    Args:
        kernel, twice: the same one with some samples and with twice as many. All amounts are linear in these, but for
            sizes of convolutions with fewer positions than depth.
    """

    def amount(once: float, doubled: float) -> float:
        return once + (factor - 1.0) * (doubled - once)

    flop, moved = amount(kernel.flop, twice.flop), amount(kernel.moved_bytes, twice.moved_bytes)
    if kernel.sizes is None or twice.sizes is None:
        return replace(kernel, flop=flop, moved_bytes=moved)
    count, rows, columns, depth = map(amount, kernel.sizes, twice.sizes)
    return replace(kernel, flop=flop, moved_bytes=moved, sizes=(count, rows, columns, depth))


def kernel_times(kernels: Sequence[Kernel], device: Device) -> FloatArray:
    """Time of each kernel on a device, [n] seconds; nothing is fused, as in PyTorch's eager mode.

    float32 is float32, as by every other command: products run in TF32 only where the device can and the user has asked
    torch for it (`torch.set_float32_matmul_precision`).

    Raises:
        BadInput: the device has no rate for the element type of a matrix product.
    """
    saved = [WINOGRAD_SAVING if device.winograd and kernel.is_winograd else 1.0 for kernel in kernels]
    flop = np.array([float(kernel.flop) for kernel in kernels]) / saved
    moved_bytes = np.array([kernel.moved_bytes for kernel in kernels], np.float64)
    times_s = device.seconds(flop, moved_bytes)
    for i in np.flatnonzero(flop).tolist():
        times_s[i] = device.seconds(flop[i], moved_bytes[i], _rate(kernels[i], device))
    return times_s


def _rate(kernel: Kernel, device: Device) -> float:
    """FLOP/s of a product."""
    dtype = kernel.dtype
    if dtype == "float32" and "tf32" in device.matrix and torch.get_float32_matmul_precision() != "highest":
        dtype = "tf32"
    if kernel.sizes is None:
        return device.attention_rate(dtype)
    aligned = kernel.is_convolution or max(kernel.sizes[1:]) >= VOCABULARY
    return float(device.product_rates(np.array(kernel.sizes), dtype, aligned))


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows to which operator of the forward graph what runs under it belongs.

    Autograd numbers its nodes in the order of the forward operators that made them. `enter` notes the number at which
    each operator of the graph starts, so a node's number leads from the gradient that it computes to that operator.

    Attributes:
        alive: storages that must not be given back: an address names one storage to the end.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: list[Any] = []
        self._first_numbers: list[int] = []

    def enter(self) -> None:
        """The next operator of the forward graph starts."""
        self._first_numbers.append(int(torch._C._autograd._get_sequence_nr()))

    @property
    def call(self) -> int:
        """Index of the operator of the forward graph that runs, or whose gradient is computed; -1 before the first."""
        node, numbers = torch._C._current_autograd_node(), self._first_numbers
        return (len(numbers) if node is None else bisect_right(numbers, node._sequence_nr())) - 1


class KernelRecorder(OperatorRecorder):  # type: ignore[no-untyped-call]
    """Books each ATen operator that runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator on its shapes and book it, unless it only makes views or memory."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        inputs, outputs = _tensors((args, kwargs)), _tensors(out)
        self.alive += [t.untyped_storage() for t in (*inputs, *outputs)]
        given = {storage_id(t) for t in inputs}
        is_view = not func._schema.is_mutable and all(storage_id(t) in given for t in outputs)
        if not is_view and func._overloadpacket not in ALLOCATIONS:
            flop = _flop(func, args, kwargs, out)
            kernel = Kernel(
                call=self.call,
                is_backward=torch._C._current_autograd_node() is not None,
                flop=flop,
                moved_bytes=_moved_bytes(func, inputs, outputs),
                dtype=next((str(t.dtype).removeprefix("torch.") for t in inputs if t.is_floating_point()), "float32"),
                sizes=_sizes(func, args, out, flop),
                is_convolution=func._overloadpacket in CONVOLUTIONS,
                is_winograd=_is_winograd(func, args),
            )
            self.kernels.append(kernel)
        return out


def storage_id(tensor: Tensor) -> int:
    """A number for the memory behind a tensor, shared by all views of it, as long as it lives."""
    return int(tensor.untyped_storage()._cdata)


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements, each once however often a view repeats it."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _moved_bytes(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    if func._overloadpacket in LOOKUPS:
        inputs = [*inputs[1:], *outputs]
    return sum(tensor_bytes(tensor) for tensor in (*inputs, *outputs))


def _flop(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Floating-point operations of a kernel; torch's formula for a convolution's kernel gradient knows no groups."""
    if func._overloadpacket is aten.convolution_backward:
        gradient, images, kernel, is_transposed, wanted = (args[i] for i in (0, 1, 2, 7, 10))
        return int(sum(wanted[:2]) * conv_flop_count(images.shape, kernel.shape, gradient.shape, is_transposed))
    formula = flop_registry.get(func._overloadpacket)
    return int(formula(*args, **kwargs, out_val=out)) if formula else 0


def _sizes(func: Any, args: Any, out: Any, flop: int) -> tuple[float, float, float, float] | None:
    """See Kernel."""
    packet = func._overloadpacket
    if not flop or "scaled_dot_product" in str(packet):
        return None
    if packet is aten.convolution_backward:
        c, a, b = (args[i].numel() for i in (0, 1, 2))
        flop //= max(1, sum(args[10][:2]))
    else:
        of_product = [leaf for leaf in args if isinstance(leaf, Tensor)]
        a, b = (tensor.numel() for tensor in (of_product[:2] if packet in CONVOLUTIONS else of_product[-2:]))
        c = out.numel()
    count, rows, columns, depth = product_sizes(a, b, c, flop, packet in CONVOLUTIONS).tolist()
    return count, rows, columns, depth


def _is_winograd(func: Any, args: tuple[Any, ...]) -> bool:
    if func._overloadpacket not in CONVOLUTIONS:
        return False
    weight, stride = (args[i] for i in CONVOLUTIONS[func._overloadpacket])
    return weight.dtype == torch.float32 and tuple(weight.shape[2:]) == (3, 3) and set(stride) == {1}
