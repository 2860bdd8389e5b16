"""The training step: it learns, computes in the dtype asked for, and its operations say where they belong."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_models import workloads
from automap_models.workloads.convolutional import ResNetConfig
from automap_models.workloads.sizes import Architecture
from automap_models.workloads.training import (
    batch_shapes,
    cross_entropy,
    initial_state,
    jax_model,
    step_function,
    training_step,
)

Tiny = tuple[Architecture, tuple[int, ...]]
TRAINED = ("gpt2", "bert", "t5", "moe", "vgg", "resnet")
trains = pytest.mark.parametrize("tiny", TRAINED, indirect=True, scope="module")
"""Of a test that compiles and runs the step, which takes seconds."""


def _batch(architecture: Architecture, labels: tuple[int, ...]) -> dict[str, Any]:
    """Random images, ids and labels; the ids are classes or token types, too."""
    random = np.random.default_rng(0)
    highest = {"types": 2, "labels": 5}
    return {
        name: random.normal(size=shape.shape).astype(np.float32)
        if shape.dtype == jnp.float32
        else random.integers(0, highest.get(name, 40), shape.shape, dtype=np.int32)
        for name, shape in batch_shapes(architecture, labels).items()
    }


def _op_names(step: Any) -> set[str]:
    text = jax.jit(step.function).lower(*step.arguments).as_text(dialect="hlo", debug_info=True)
    return set(re.findall(r'op_name="([^"]*)"', text))


def _compiled(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Without optimisation: of ten tiny steps, compiling is what takes time."""
    return jax.jit(function).lower(*arguments).compile(compiler_options={"xla_backend_optimization_level": 0})


@cache
def _trained(architecture: Architecture, labels: tuple[int, ...]) -> tuple[Any, Any, list[float]]:
    """The state before and after the first of ten steps on one batch, and each step's loss."""
    module, batch = jax_model(architecture, "float32"), _batch(architecture, labels)
    state = first = _compiled(partial(initial_state, module), batch)(batch)
    step = _compiled(step_function(module), *state, batch)
    states, losses = [], []
    for _ in range(10):
        *state, loss = step(*state, batch)
        states.append(state)
        losses.append(float(loss))
    return first, states[0], losses


@trains
def test_ten_steps_on_one_batch_lower_its_loss(tiny: Tiny) -> None:
    losses = _trained(*tiny)[2]
    assert all(np.isfinite(losses))
    assert losses[-1] < losses[0]


@trains
def test_every_parameter_gets_a_gradient(tiny: Tiny) -> None:
    before, after, _ = _trained(*tiny)
    same = jax.tree.map(lambda old, new: bool((old == new).all()), before[0], after[0])
    # A key's bias adds the same to all scores of a query, which the softmax takes out again.
    assert [path for path, still in jax.tree.leaves_with_path(same) if still and path[-2].key != "k"] == []


@trains
def test_batch_statistics_are_state_and_move(tiny: Tiny) -> None:
    before, after, _ = _trained(*tiny)
    assert set(before[2]) == ({"batch_stats"} if isinstance(tiny[0], ResNetConfig) else set())
    assert all((old != new).any() for old, new in zip(*map(jax.tree.leaves, (before[2], after[2])), strict=True))


@trains
def test_the_arguments_have_the_shapes_of_real_ones(tiny: Tiny) -> None:
    step = training_step("tiny", *tiny, "float32")
    real = (*_trained(*tiny)[0], _batch(*tiny))
    assert step.arguments == jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), real)
    assert step.microbatch_size == tiny[1][0]


@pytest.mark.parametrize(
    ("tiny", "dtype"),
    [
        *((name, "bfloat16") for name in TRAINED),
        ("gpt2", "float16"),
    ],
    indirect=["tiny"],
    scope="module",
)
def test_layers_compute_in_the_dtype_asked_for_and_parameters_stay_float32(tiny: Tiny, dtype: str) -> None:
    step = training_step("tiny", *tiny, dtype)
    text = jax.jit(step.function).lower(*step.arguments).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line or "stablehlo.convolution" in line]
    element = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    half = [line for line in products if f"x{element}>" in line.rpartition("->")[2]]
    assert len(half) > 0.8 * len(products)  # the router of a mixture of experts is float32
    outputs = jax.eval_shape(step.function, *step.arguments)
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs[0])} == {jnp.dtype("float32")}
    assert outputs[-1].dtype == jnp.float32


def test_a_step_returns_its_state_in_the_shapes_it_took(tiny: Tiny) -> None:
    step = training_step("tiny", *tiny, "bfloat16")
    *state, loss = jax.eval_shape(step.function, *step.arguments)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tuple(state)) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), step.arguments[:-1]
    )
    assert loss.shape == ()


def test_operations_name_their_layer_and_their_phase(tiny: Tiny) -> None:
    architecture, labels = tiny
    step = training_step("tiny", architecture, labels, "float32")
    names = _op_names(step)
    model = type(jax_model(architecture, "float32")).__name__
    kernels = [path for path, _ in jax.tree.leaves_with_path(step.arguments[0]) if path[-1].key == "kernel"]
    assert kernels
    for path in kernels:
        layer = "/".join(key.key for key in path[:-1])
        for phase in (f"jvp({model})", f"transpose(jvp({model}))"):
            products = {f"jit(train_step)/{phase}/{layer}/{op}" for op in ("dot_general", "conv_general_dilated")}
            assert products & names, (phase, layer)
    assert any(name.startswith("jit(train_step)/jvp(loss)/") for name in names)
    assert any(name.startswith("jit(train_step)/optimizer/") for name in names)


def test_the_loss_is_the_mean_over_labels_that_are_not_negative() -> None:
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(1).normal(size=(3, 4, 7)).astype(np.float32)
    labels = np.array([[0, -100, 6, 2], [-100] * 4, [3, 3, -1, 5]], dtype=np.int32)
    ignored = torch.tensor(np.where(labels < 0, -100, labels)).long().flatten()
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits).flatten(0, 1), ignored)
    assert float(cross_entropy(logits, labels)) == pytest.approx(float(expected), rel=1e-6)
    assert float(cross_entropy(logits, np.full((3, 4), -100))) == 0.0


def test_a_workload_in_full_size_lowers_without_allocating_its_arrays() -> None:
    """As do bert48 and t5_11b (tests/hlo/test_published_models.py) and vgg19 (tests/planners/sharding/test_milp.py)."""
    names = _op_names(workloads.build("resnet50"))
    assert any(op.startswith("jit(train_step)/optimizer/") for op in names)
