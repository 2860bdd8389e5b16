"""A captured forward pass, run on the meta device: what it makes and what autograd keeps of it, and its gradients."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from automap_models.core.profile import FloatArray
from automap_models.errors import BadInput
from automap_models.torch_export.capture import Captured, first_sentence, module_path, training_outputs

aten = torch.ops.aten


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


class _Life(NamedTuple):
    """A value: its size, the operator that makes it and the last one that reads it."""

    size_bytes: int
    maker: int
    last_read: int


_Lives = dict[tuple[int, int], dict[tuple[Any, ...], _Life]]
"""Storage and its bytes → the values in it that operators make, told apart by what they show of it."""


class ForwardRun(fx.Interpreter):
    """Calls the operators of a captured forward pass one by one, as a GPU would where the meta device differs.

    Attributes:
        index: operator → its number, of m.
        saved_bytes: [m] bytes that each keeps for the backward pass; what two keep counts for the first.
    """

    def __init__(self, captured: Captured, recorder: OperatorRecorder) -> None:
        super().__init__(captured.graph_module)
        self.captured, self.recorder = captured, recorder
        self.index: Mapping[fx.Node, int] = {node: i for i, node in enumerate(captured.calls)}
        self.saved_bytes = np.zeros(len(self.index))
        self._saved_storages: set[int] = set()
        self._lives: _Lives = {}

    def forward(self, inputs: Sequence[Any], name: str) -> list[Tensor]:
        """Run the forward pass under the recorder: the tensors that the backward pass starts from.

        Raises:
            BadInput: an operator needs data or has no meta kernel, or no output depends on a parameter.
        """
        try:
            with self.recorder, torch.enable_grad(), saved_tensors_hooks(self._keep, lambda tensor: tensor):
                returned = self.run(*inputs, enable_io_processing=False)
        except (NotImplementedError, RuntimeError) as error:
            call = self.captured.calls[max(self.recorder.call, 0)]
            where, reason = module_path(call) or "forward", first_sentence(error)
            what = f"{call.target} in {where} does not run without data: {reason}"
            raise BadInput(what, where=name, do="replace it, or leave it out of forward") from error
        outputs = training_outputs(pytree.tree_unflatten(list(returned), self.captured.out_spec))
        if not outputs:
            raise BadInput("no output depends on a trainable parameter", where=name, do="return the loss from forward")
        return outputs

    def run_node(self, n: fx.Node) -> Any:
        """Run one node of the graph, and note what it makes."""
        if n in self.index:
            self.recorder.enter()
        result = super().run_node(n)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        if n.op == "get_attr":
            self._saved_storages.update(map(storage_id, tensors))  # parameters are no activations
        if n in self.index:
            for tensor in tensors:
                self._note(n, tensor)
        return result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator."""
        if target is aten.dropout.default and args[2]:
            return aten.native_dropout(args[0], args[1], True)[0]
        if target is aten.scaled_dot_product_attention.default:
            return fused_attention(*args, **kwargs)
        return super().call_function(target, args, kwargs)

    def crossing_bytes(self) -> FloatArray:
        """[m] bytes alive after each operator; views of one storage never count for more than the storage."""
        crossing = np.zeros(len(self.index))
        for (_, storage_bytes), of_views in self._lives.items():
            lives = [life for life in of_views.values() if life.last_read > life.maker]
            if not lives:
                continue
            first, last = min(life.maker for life in lives), max(life.last_read for life in lives)
            alive = np.zeros(last - first)
            for life in lives:
                alive[life.maker - first : life.last_read - first] += life.size_bytes
            crossing[first:last] += np.minimum(alive, storage_bytes)
        return crossing

    def _keep(self, tensor: Tensor) -> Tensor:
        """Autograd keeps this tensor for the backward pass."""
        storage = storage_id(tensor)
        self.recorder.alive.append(tensor.untyped_storage())
        if storage not in self._saved_storages:
            self._saved_storages.add(storage)
            self.saved_bytes[self.recorder.call] += tensor.untyped_storage().nbytes()
        return tensor

    def _note(self, node: fx.Node, tensor: Tensor) -> None:
        storage, maker = storage_id(tensor), self.index[node]
        last_read = max((self.index.get(user, maker) for user in node.users), default=maker)
        lives = self._lives.setdefault((storage, tensor.untyped_storage().nbytes()), {})
        view = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        life = lives.get(view, _Life(tensor_bytes(tensor), maker, maker))
        lives[view] = life._replace(last_read=max(life.last_read, last_read))


def storage_id(tensor: Tensor) -> int:
    """A number for the memory behind a tensor, shared by all views of it, as long as it lives."""
    return int(tensor.untyped_storage()._cdata)


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements, each once however often a view repeats it."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def gradients_of(
    outputs: Sequence[Tensor], seeds: Sequence[Tensor], parameters: Sequence[Tensor], name: str
) -> list[Tensor | None]:
    """Run the backward pass from the gradients of outputs; None for parameters that these do not depend on.

    Raises:
        BadInput: an operator needs data or has no meta kernel.
    """
    try:
        return list(torch.autograd.grad(outputs, parameters, seeds, allow_unused=True))
    except (NotImplementedError, RuntimeError) as error:
        what = f"its backward pass does not run without data: {first_sentence(error)}"
        raise BadInput(what, where=name, do="replace the operator that it is about") from error


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention as the memory-efficient kernel that CUDA runs.

    The meta device would write out the matrix of scores. The kernel takes every mask and element type; flash
    attention, where it applies, does the same FLOP and keeps the same tensors. Grouped heads and inputs that are not
    [B, heads, T, head size] have no such kernel.
    """
    if enable_gqa or query.dim() != 4:
        written_out: Tensor = aten.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return written_out
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = aten.where.ScalarSelf(bias, 0.0, torch.empty_like(bias, dtype=query.dtype))
        bias = bias.expand(*query.shape[:3], key.shape[2])
    attended: Tensor = aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale
    )[0]
    return attended
