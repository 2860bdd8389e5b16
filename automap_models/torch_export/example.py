"""What a user's factory returns: a PyTorch model and the inputs of one micro-batch, perhaps with a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from automap_models.errors import BadInput

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
