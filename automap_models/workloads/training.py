"""A flax.linen model → its training step: loss, gradients, Adam's update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from automap_models.collection import uncollected
from automap_models.errors import BadInput
from automap_models.hlo.adapter import trace
from automap_models.hlo.module import Module
from automap_models.hlo.repetition import repeated
from automap_models.hlo.step import TrainingStep
from automap_models.workloads.bert import Bert
from automap_models.workloads.blocks import token_shapes
from automap_models.workloads.decoder import Decoder
from automap_models.workloads.sizes import (
    Architecture,
    BertConfig,
    DecoderConfig,
    ImageConfig,
    Seq2SeqConfig,
    T5Config,
    Traced,
)
from automap_models.workloads.t5 import T5

Tree = Any
"""A pytree of arrays; jax has no type for it."""

Batch = Mapping[str, Any]
"""Name → array."""

_TRANSFORMERS: dict[type, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    DecoderConfig: (Decoder, ("ids",)),
    BertConfig: (Bert, ("ids", "types")),
    T5Config: (T5, ("ids", "decoder_ids")),
}
"""Sizes → the model, and what it reads."""
OPTIMIZER = optax.adam(1e-3)


@uncollected()
def step_module(name: str, architecture: Architecture, labels: tuple[int, ...], dtype: str) -> Module:
    """The traced training step of a model; of one with many blocks, a few are traced and repeated.

    Args:
        labels: the labels' shape, see JaxArchitecture.inputs.
        dtype: what the layers compute in.

    Raises:
        BadInput: XLA refuses the step.
    """
    if isinstance(architecture, Traced):
        deep = [stack for stack in architecture.stacks if stack.traced < stack.layers]
        sizes: dict[str, Any] = {stack.size: stack.traced for stack in architecture.stacks}
        shallow = replace(architecture, **sizes)
        module = repeated(trace(training_step(name, shallow, labels, dtype)), deep) if deep else None
        if module is not None:
            return module
    return trace(training_step(name, architecture, labels, dtype))


def training_step(name: str, architecture: Architecture, labels: tuple[int, ...], dtype: str) -> TrainingStep:
    """The shapes of a model, its state and its batch, and the function that trains it.

    The function's arguments are the parameters, the optimiser's state, the model's own state (batch statistics; empty
    for most) and the batch.

    Args:
        labels: the labels' shape, see JaxArchitecture.inputs.
        dtype: what the layers compute in.
    """
    module, shapes = jax_model(architecture, dtype), batch_shapes(architecture, labels)
    state = jax.eval_shape(partial(initial_state, module), shapes)
    return TrainingStep(name, step_function(module), (*state, shapes), 0, (3,), labels[0], dtype, unread=True)


def jax_model(architecture: Architecture, dtype: str) -> nn.Module:
    """The model whose layers compute in `dtype`; called with the batch's arrays but the labels, gives logits.

    Raises:
        BadInput: only closed forms are known of some of its layers, see `DecoderConfig.untraced`.
    """
    if what := getattr(architecture, "untraced", None):
        do = "plan strategies, or give a factory of your own"
        raise BadInput(f"{what} of this model are priced by strategies, and not traced", do=do)
    if isinstance(architecture, Traced):
        return _TRANSFORMERS[type(architecture)][0](architecture, jnp.dtype(dtype))
    assert not isinstance(architecture, Seq2SeqConfig | ImageConfig)
    return architecture.module(jnp.dtype(dtype))


def batch_shapes(architecture: Architecture, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    """Name → shape of what a step reads, see JaxArchitecture.inputs; labels of decoders are the ids shifted left."""
    if isinstance(architecture, Traced):
        return token_shapes(labels, *_TRANSFORMERS[type(architecture)][1], "labels", random=architecture.drops)
    assert not isinstance(architecture, Seq2SeqConfig | ImageConfig)
    return architecture.inputs(labels)


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
