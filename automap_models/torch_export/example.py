"""What a user's factory returns: a PyTorch model and the inputs of one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from automap_models.errors import BadInput

FORMS = (
    "return (model, tensor), (model, tuple of arguments), (model, dict of keyword arguments) or (model, args, kwargs)"
)


@dataclass(frozen=True)
class Example:
    """A model with the inputs of one micro-batch: `model(*args, **kwargs)` is its forward pass.

    Attributes:
        model: on any device; on "meta" it needs no memory.
        args, kwargs: example inputs; only their shapes and element types count, unless the step is measured.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def read_example(returned: object, source: str) -> Example:
    """What the factory called `source` returned: (model, inputs) or (model, args, kwargs).

    Inputs are one tensor, a tuple or list of positional arguments, or a mapping of keyword arguments.

    Raises:
        BadInput: anything else.
    """
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise BadInput(f"returned a {type(returned).__name__}, not a model with its inputs", where=source, do=FORMS)
    model, inputs, *rest = returned
    if not isinstance(model, nn.Module):
        raise BadInput(f"returned a {type(model).__name__} for the model, not an nn.Module", where=source, do=FORMS)
    if isinstance(inputs, Mapping) and not rest:
        return Example(model, kwargs=dict(inputs))
    args = (inputs,) if isinstance(inputs, Tensor) else inputs
    kwargs = rest[0] if rest else {}
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        raise BadInput(f"returned a {type(inputs).__name__} for the inputs", where=source, do=FORMS)
    return Example(model, tuple(args), dict(kwargs))
