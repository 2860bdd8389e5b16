"""A flax.linen model → its training step: loss, gradients, Adam's update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from automap_models.collection import uncollected
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import TransformerShape
from automap_models.errors import BadInput
from automap_models.hlo.adapter import trace
from automap_models.hlo.block_labels import BlockStack
from automap_models.hlo.model_work import model_work
from automap_models.hlo.module import Module
from automap_models.hlo.repetition import repeated
from automap_models.hlo.rule_sets import RuleSet
from automap_models.hlo.sharding_classes import sharding_classes
from automap_models.hlo.shardy import sharding_rules
from automap_models.hlo.step import TrainingStep

Tree = Any
"""A pytree of arrays; jax has no type for it."""

Batch = Mapping[str, Any]
"""Name → array."""

OPTIMIZER = optax.adam(1e-3)

_TRACED_SAMPLES = 2
"""Of a trace whose work is that of one: with one alone, the dimension of samples could not be told from others of 1."""


class Architecture(Protocol):
    """The sizes of a model."""

    def module(self, dtype: jnp.dtype) -> nn.Module:
        """The model whose layers compute in `dtype`; called with the batch's arrays but the labels, gives logits."""

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """Name → shape of what a step reads, given the labels' shape: (batch,) for images, (batch, sequence) for text.

        `labels` are class numbers, below 0 where nothing is to be predicted; `key`, of models with dropout, is a random
        key.
        """


@runtime_checkable
class RepeatingArchitecture(Architecture, Protocol):
    """The sizes of a model that repeats blocks."""

    @property
    def stacks(self) -> tuple[BlockStack, ...]:
        """Its repeated blocks, in the order in which the forward pass runs them."""

    def with_blocks(self, blocks: Mapping[str, int]) -> Self:
        """The same with so many blocks in the stack of each scope."""


@runtime_checkable
class TransformerArchitecture(RepeatingArchitecture, Protocol):
    """The sizes of a transformer."""

    def shape(self, name: str, sequence: int) -> TransformerShape:
        """What a strategy divides, of samples of so many tokens."""


@uncollected()
def step_module(name: str, architecture: Architecture, labels: tuple[int, ...], dtype: str) -> Module:
    """The traced training step of a model; of one with many blocks, a few are traced and repeated.

    Args:
        labels: the labels' shape, see Architecture.inputs.
        dtype: what the layers compute in.

    Raises:
        BadInput: XLA refuses the step.
    """
    if isinstance(architecture, RepeatingArchitecture):
        deep = [stack for stack in architecture.stacks if stack.traced < stack.layers]
        shallow = architecture.with_blocks({stack.scope: stack.traced for stack in architecture.stacks})
        module = repeated(trace(training_step(name, shallow, labels, dtype)), deep) if deep else None
        if module is not None:
            return module
    return trace(training_step(name, architecture, labels, dtype))


def required_transformer(name: str, architecture: Architecture) -> TransformerArchitecture:
    """The architecture itself.

    Raises:
        BadInput: it is no transformer.
    """
    if not isinstance(architecture, TransformerArchitecture):
        do = "give a transformer: a decoder, BERT or T5"
        raise BadInput("has no layers that a strategy can divide", where=name, do=do)
    return architecture


def architecture_work(name: str, architecture: Architecture, sequence: int, dtype: str) -> ModelWork:
    """The work of a transformer by layers, from a trace with a few of its blocks.

    Args:
        sequence: tokens of a sample.
        dtype: what the layers compute in.

    Raises:
        BadInput: it is no transformer, or XLA refuses the step.
    """
    transformer = required_transformer(name, architecture)
    stacks = [replace(stack, instances=3) for stack in transformer.stacks]  # the first, one for all between, the last
    shallow = transformer.with_blocks({stack.scope: stack.traced for stack in stacks})
    module = trace(training_step(name, shallow, (_TRACED_SAMPLES, sequence), dtype))
    sharding = sharding_classes(module, sharding_rules(module), RuleSet("shardy", "without restrictions"))
    return model_work(module, sharding, transformer.shape(name, sequence), stacks, dtype)


def training_step(name: str, architecture: Architecture, labels: tuple[int, ...], dtype: str) -> TrainingStep:
    """The shapes of a model, its state and its batch, and the function that trains it.

    The function's arguments are the parameters, the optimiser's state, the model's own state (batch statistics; empty
    for most) and the batch.

    Args:
        labels: the labels' shape, see Architecture.inputs.
        dtype: what the layers compute in.
    """
    module = architecture.module(jnp.dtype(dtype))
    shapes = architecture.inputs(labels)
    state = jax.eval_shape(partial(initial_state, module), shapes)
    return TrainingStep(name, step_function(module), (*state, shapes), 0, (3,), labels[0], dtype)


def initial_state(module: nn.Module, batch: Batch, seed: int = 0) -> tuple[Tree, Tree, Tree]:
    """Parameters, the optimiser's state and the model's own, by the layers' default initialisers."""
    variables = dict(module.init(jax.random.key(seed), **_inputs(batch)))
    params = variables.pop("params")
    variables.pop("losses", None)  # what a step computes, not what it keeps
    return params, OPTIMIZER.init(params), variables


def step_function(module: nn.Module) -> Callable[..., tuple[Tree, Tree, Tree, jax.Array]]:
    """(params, optimizer_state, model_state, batch) → the first three updated, and the loss."""

    def train_step(
        params: Tree, optimizer_state: Tree, model_state: Tree, batch: Batch
    ) -> tuple[Tree, Tree, Tree, jax.Array]:
        gradient = jax.value_and_grad(partial(_loss, module), has_aux=True)
        (loss, model_state), gradients = gradient(params, model_state, batch)
        with jax.named_scope("optimizer"):
            updates, optimizer_state = OPTIMIZER.update(gradients, optimizer_state, params)
            params = optax.apply_updates(params, updates)
        return params, optimizer_state, model_state, loss

    return train_step


def _loss(module: nn.Module, params: Tree, model_state: Tree, batch: Batch) -> tuple[jax.Array, Tree]:
    variables = {"params": params, **model_state}
    random = {"dropout": batch["key"]} if "key" in batch else None
    logits, computed = module.apply(variables, **_inputs(batch), rngs=random, mutable=[*model_state, "losses"])
    updated = dict(computed)
    with jax.named_scope("loss"):
        auxiliary = jax.tree.leaves(updated.pop("losses", {}))
        return sum(auxiliary, start=cross_entropy(logits, batch["labels"])), updated


def _inputs(batch: Batch) -> dict[str, Any]:
    return {name: array for name, array in batch.items() if name not in ("key", "labels")}


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """[..., classes], [...] → float32 [], the mean over the labels that are not negative (0 if all are)."""
    counted = labels >= 0
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), jnp.where(counted, labels, 0))
    mean: jax.Array = losses.sum(where=counted) / jnp.maximum(counted.sum(), 1)
    return mean
