"""What a run is held against: the model whole, on one process, with the same weights, data and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch import nn

from automap_models.run.layout import Layout, parts
from automap_models.run.torch_stages import Loss, Sampled, loss_of, rows
from automap_models.torch_export.structure import BEFORE

_PROBABILITIES = {
    "dropout": (1, "p"),
    "dropout1d": (1, "p"),
    "dropout2d": (1, "p"),
    "dropout3d": (1, "p"),
    "alpha_dropout": (1, "p"),
    "feature_alpha_dropout": (1, "p"),
    "scaled_dot_product_attention": (4, "dropout_p"),
}
"""Function of torch.nn.functional → where it takes the probability of dropout."""


@contextmanager
def without_dropout() -> Iterator[list[str]]:
    """Functions of torch.nn.functional drop nothing inside; the list names those that would have."""
    dropping: list[str] = []
    functions: dict[str, Any] = {
        name: _undropping(name, getattr(nn.functional, name), dropping) for name in _PROBABILITIES
    }
    with patch.multiple(nn.functional, **functions):
        yield dropping


def _undropping(function_name: str, function: Callable[..., Any], dropping: list[str]) -> Callable[..., Any]:
    position, name = _PROBABILITIES[function_name]
    default = 0.0 if name == "dropout_p" else 0.5

    def run(*args: Any, **kwargs: Any) -> Any:
        given = args[position] if len(args) > position else kwargs.get(name, default)
        if given:
            dropping.append(function_name)
        if len(args) > position:
            return function(*args[:position], 0.0, *args[position + 1 :], **kwargs)
        return function(*args, **{**kwargs, name: 0.0})

    return run


@dataclass
class Reference:
    """The whole model; a step does what all processes together do.

    Attributes:
        model: in the values that the run begins with.
        layout: of the run.
        cut_names: [S-1] where its stages end; random numbers are seeded anew there.
        loss: see `Pipeline`.
        of_batch, of_target: which of the leaves of a batch and of a target hold samples.
        replicas: parts of a micro-batch that the model computes one by one, as each replica of the run does; 1 where
            nothing depends on which samples are together.
        seeds: is called with (stage, micro-batch, replica) when a stage begins; None where nothing is random.
        place: micro-batch and replica that it computes.
    """

    model: nn.Module
    layout: Layout
    cut_names: Sequence[str]
    loss: Loss | None
    of_batch: Sampled
    of_target: Sampled
    replicas: int
    seeds: Callable[[int, int, int], None] | None
    place: tuple[int, int] = (0, 0)

    def step(self, batch: tuple[tuple[Any, ...], dict[str, Any]], target: Any) -> float:
        """Forward and backward of a whole batch; `grad` of the model's parameters holds the gradients."""
        self.model.zero_grad(set_to_none=True)
        samples, micro_batches = self.layout.samples, self.layout.schedule.micro_batches
        total = 0.0
        with self._seeded():
            for m in range(micro_batches):
                for replica, (begin, end) in enumerate(parts(samples, self.replicas)):
                    self.place = m, replica
                    if self.seeds is not None:
                        self.seeds(0, m, replica)
                    first = m * samples
                    picked = slice(first + begin, first + end)
                    args, kwargs = rows(batch, self.of_batch, picked)
                    own_target = rows(target, self.of_target, picked)
                    loss = loss_of(self.model(*args, **kwargs), self.loss, own_target, end - begin)
                    part = loss * ((end - begin) / (samples * micro_batches))
                    part.backward()  # type: ignore[no-untyped-call]
                    total += float(part.detach())
        return total

    def _seeded(self) -> ExitStack:
        """Every stage begins with its own seed inside."""
        hooks, seeds = ExitStack(), self.seeds
        if seeds is not None:
            for s, name in enumerate(self.cut_names):
                module = self.model.get_submodule(name.removeprefix(BEFORE))
                add = module.register_forward_pre_hook if name.startswith(BEFORE) else module.register_forward_hook
                hooks.enter_context(add(lambda *_, s=s: seeds(s + 1, *self.place)))
        return hooks
