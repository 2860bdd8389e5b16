"""A user's model with its inputs, and its forward pass as one graph: torch.export on the meta device.

What shall run is exported as it is (`in_place`): its graph reads the model's own parameters and buffers.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from automap_models.errors import BadInput

OUTPUT_KEY = "loss"
"""Under this key a mapping holds the loss."""
FORMS = (
    "return (model, tensor), (model, tuple of arguments), (model, dict of keyword arguments), (model, args, kwargs), "
    "or (model, args, kwargs, loss, target) with loss(output, target)"
)


@dataclass(frozen=True)
class Example:
    """A model with the inputs of one micro-batch: `model(*args, **kwargs)` is its forward pass.

    Attributes:
        model: on any device; on "meta" it needs no memory.
        args, kwargs: example inputs; only their shapes and element types count, unless the step is measured or run.
        loss: function of the model's output and the target, a mean over samples; None where the model has its own.
        target: of these samples, for the loss.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any, Any], Tensor] | None = None
    target: Any = None


def read_example(returned: object, source: str) -> Example:
    """What the factory called `source` returned: (model, inputs), (model, args, kwargs), or with a loss and its target.

    Inputs are one tensor, a tuple or list of positional arguments, or a mapping of keyword arguments.

    Raises:
        BadInput: anything else.
    """
    if not isinstance(returned, tuple) or len(returned) not in (2, 3, 5):
        raise BadInput(f"returned a {type(returned).__name__}, not a model with its inputs", where=source, do=FORMS)
    model, inputs, *rest = returned
    if not isinstance(model, nn.Module):
        raise BadInput(f"returned a {type(model).__name__} for the model, not an nn.Module", where=source, do=FORMS)
    if isinstance(inputs, Mapping) and not rest:
        return Example(model, kwargs=dict(inputs))
    args = (inputs,) if isinstance(inputs, Tensor) else inputs
    kwargs, loss, target = (*rest, None, None)[:3] if rest else ({}, None, None)
    if loss is not None and not callable(loss):
        raise BadInput(f"returned a {type(loss).__name__} for the loss, not a function", where=source, do=FORMS)
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        raise BadInput(f"returned a {type(inputs).__name__} for the inputs", where=source, do=FORMS)
    return Example(model, tuple(args), dict(kwargs), loss, target)


@dataclass(frozen=True)
class Captured:
    """A forward pass that has been exported.

    Attributes:
        model: in training mode, the copy on the meta device or the one that runs; its modules and parameters have the
            user's names.
        graph_module: the graph of ATen operators; parameters and buffers are read through get_attr nodes.
        out_spec: how the graph's flat outputs make up what the model returns.
    """

    model: nn.Module
    graph_module: fx.GraphModule
    out_spec: Any

    @cached_property
    def calls(self) -> list[fx.Node]:
        """The operators in execution order."""
        return [node for node in self.graph_module.graph.nodes if node.op not in {"placeholder", "get_attr", "output"}]


def capture(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, name: str, in_place: bool = False
) -> Captured:
    """Export the forward pass of a model in training mode; the user's model is left as it is.

    Args:
        in_place: the model itself is exported, with its values and on its device; it is put into training mode, and
            its `config.use_cache` is turned off.

    Raises:
        BadInput: no trainable parameter, inputs that forward does not take, shapes or control flow that depend on
            data, sparse tensors, or anything else that torch.export refuses.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadInput("has no trainable parameter", where=name, do="a model to be trained needs requires_grad")
    _require_accepted(model, args, kwargs, name)
    exporting: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if in_place:
        exported_model = model.train()
    else:
        exported_model = copy_model(model, lambda tensor: tensor.to("meta"))

        def shape_of(tensor: Tensor) -> Tensor:  # of its own: one that is given for two inputs is two
            return torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)

        args, kwargs = pytree.tree_map_only(Tensor, shape_of, (args, dict(kwargs)))
        exporting = torch.device("meta")  # for tensors that forward makes without naming a device
    _train_without_cache(exported_model)
    try:
        with exporting, _quiet():
            exported = torch.export.export(exported_model, args, dict(kwargs), strict=False)
    except Exception as error:  # torch.export's errors have no common base class
        raise BadInput(
            f"torch.export refuses its forward pass{_place(error)}: {first_sentence(error)}",
            where=name,
            do="control flow and shapes must not depend on data, and outputs must be tensors in tuples, lists or dicts "
            "(Hugging Face: use_cache=False)",
        ) from error
    captured = Captured(exported_model, exported.module(check_guards=False), exported.call_spec.out_spec)
    _require_static(captured, name)
    _require_dense(captured, name)
    return captured


def copy_model(model: nn.Module, convert: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy in training mode with every tensor converted, those that are no parameters or buffers included.

    The tensors themselves are not copied first, and tied ones stay tied.
    """
    attributes = [list(vars(module).values()) for module in model.modules()]
    tensors = [*model.parameters(), *model.buffers(), *pytree.tree_leaves(attributes)]
    converted: dict[int, Tensor] = {}
    for tensor in tensors:
        if isinstance(tensor, Tensor) and id(tensor) not in converted:
            new = convert(tensor.detach())
            is_parameter = isinstance(tensor, nn.Parameter)
            converted[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if is_parameter else new
    return copy.deepcopy(model, converted).train()


def _train_without_cache(model: nn.Module) -> None:
    """Hugging Face models remember keys and values for generation by default; its Trainer turns that off, too."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False


def first_dimension(args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str = "the inputs") -> int:
    """The samples of a micro-batch: the first dimension of the first tensor that has one.

    Args:
        name: of what the inputs are, as messages call it.

    Raises:
        BadInput: there is no such tensor.
    """
    for leaf in pytree.tree_leaves((args, dict(kwargs))):
        if isinstance(leaf, Tensor) and leaf.dim():
            return int(leaf.shape[0])
    do = "give inputs whose first dimension are the samples"
    raise BadInput("no tensor of the inputs has a batch dimension", where=name, do=do)


def training_outputs(returned: Any) -> list[Tensor]:
    """The tensors that the backward pass starts from.

    A `loss` in a mapping, as Hugging Face models return it; else the first scalar, be it alone or in a tuple; else
    every floating-point output that depends on a parameter, as if their sum were the loss.
    """
    if isinstance(returned, Mapping) and getattr(returned.get(OUTPUT_KEY), "requires_grad", False):
        return [returned[OUTPUT_KEY]]
    tensors = [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return [tensor for tensor in tensors if tensor.numel() == 1][:1] or tensors


def first_sentence(error: BaseException) -> str:
    """The first sentence on an exception's first line, or its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].split(". ")[0].rstrip(" .:;") if lines else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep back the graphs and the inner tracebacks that torch.export prints and logs before it raises."""
    before, printed = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "The tensor attributes? .* assigned during export", UserWarning
            )  # nn.LSTM
            yield
    finally:
        logging.disable(before)
    sys.stderr.write(printed.getvalue())  # what forward prints


def _place(error: BaseException) -> str:
    """` in my_model.py:12`, the innermost line of the model's code that led to an error; "" if all are torch's."""
    not_the_model = (Path(torch.__file__).parent, Path(__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file() and not any(map(Path(frame.filename).is_relative_to, not_the_model))
    ]
    return f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _require_accepted(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> None:
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise BadInput(
            f"its forward does not take the example inputs: {error}", where=name, do="return inputs that fit forward"
        ) from None


def _require_static(captured: Captured, name: str) -> None:
    for node in captured.calls:
        for value in pytree.tree_leaves(node.meta.get("val")):
            sizes = value.shape if isinstance(value, Tensor) else (value,)
            if any(isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) for size in sizes):
                raise BadInput(
                    f"the result of {node.target} in {module_path(node) or 'forward'} has a size that depends on data",
                    where=name,
                    do="make all shapes depend on the shapes of the inputs only",
                )


def _require_dense(captured: Captured, name: str) -> None:
    """Refuse sparse tensors, whose size depends on data: operators that make sparse gradients, and given ones."""
    for path, tensor in (*captured.model.named_parameters(), *captured.model.named_buffers()):
        if tensor.layout != torch.strided:
            raise BadInput(f"{path} is a sparse tensor", where=name, do="make it dense: `.to_dense()`")
    for node in captured.calls:
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema is not None else []
        if {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get("sparse"):
            what = f"{module_path(node) or 'forward'} has sparse gradients, whose size depends on data"
            raise BadInput(what, where=name, do="make it with sparse=False")


def module_path(node: fx.Node) -> str:
    """Fully qualified name of the module whose forward called an operator; "" for the model itself."""
    frames = list(node.meta.get("nn_module_stack", {}).values())
    return str(frames[-1][0]) if frames else ""
