"""A training step from a user's factory: what it may return, and what is said about anything else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_models import workloads
from automap_models.errors import BadInput, UserCodeError
from automap_models.hlo.step import TrainingStep

PARAMS = {"w": jax.ShapeDtypeStruct((3, 2), jnp.bfloat16)}
BATCH = {"x": jax.ShapeDtypeStruct((8, 3), jnp.float32), "y": jax.ShapeDtypeStruct((8,), jnp.int32)}


def step(params: Any, count: Any, batch: Any) -> Any:
    """A step that adds."""
    return params["w"].sum() + count + batch["x"].sum()


def good_step(**changes: Any) -> TrainingStep:
    """What a factory may return itself."""
    fields = {"name": "mine", "function": step, "arguments": (BATCH, PARAMS), "trainable": 1, "inputs": (0,)}
    return TrainingStep(**{**fields, "microbatch_size": 4, **changes})


@pytest.fixture
def from_factory(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainingStep]:
    """A function: make a step by a factory that returns this."""

    def make(returned: Any, **options: Any) -> TrainingStep:
        def factory(batch: int = 8, sequence: int = 1, dtype: str = "") -> Any:
            return returned

        monkeypatch.setitem(sys.modules, "their_module", SimpleNamespace(factory=factory))
        return workloads.from_factory("their_module:factory", **options)

    return make


def test_of_a_tuple_the_first_argument_is_trained_the_last_is_the_batch_the_rest_is_state(
    from_factory: Callable[..., TrainingStep],
) -> None:
    count = jax.ShapeDtypeStruct((), jnp.float32)
    assert from_factory((step, (PARAMS, count, BATCH))) == TrainingStep(
        "their_module:factory", step, (PARAMS, count, BATCH), 0, (2,), microbatch_size=8, dtype="bfloat16"
    )
    assert from_factory((step, [PARAMS, BATCH])).inputs == (1,)


def test_tokens_labels_and_a_key_one_by_one_are_the_batch_too(from_factory: Callable[..., TrainingStep]) -> None:
    """Tokens that counted as state once made all that a layer keeps cross every later cut, in silence."""
    state = {"m": PARAMS, "t": jax.ShapeDtypeStruct((), jnp.int32)}
    key = jax.eval_shape(lambda: jax.random.key(0))
    own_step = from_factory((step, (PARAMS, state, key, BATCH["x"], BATCH["y"])))
    assert (own_step.inputs, own_step.microbatch_size) == ((2, 3, 4), 8)


@pytest.mark.parametrize(
    "key", [jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((2,), jnp.uint32)], ids=["typed", "bare"]
)
def test_random_keys_and_scalars_in_a_batch_are_no_samples(
    from_factory: Callable[..., TrainingStep], key: jax.ShapeDtypeStruct
) -> None:
    layers_keys = jax.eval_shape(lambda: jax.random.split(jax.random.PRNGKey(0), 5))
    numbers = {"temperature": jax.ShapeDtypeStruct((), jnp.float32), "seed": jax.ShapeDtypeStruct((), jnp.uint32)}
    batch = {**BATCH, **numbers, "key": key, "keys": layers_keys}
    assert from_factory((step, (PARAMS, batch))).microbatch_size == 8


@pytest.mark.parametrize(
    "key", [jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((2,), jnp.uint32)], ids=["typed", "bare"]
)
def test_a_key_may_be_the_last_argument(from_factory: Callable[..., TrainingStep], key: jax.ShapeDtypeStruct) -> None:
    own_step = from_factory((step, (PARAMS, {"m": PARAMS}, BATCH["x"], BATCH["y"], key)))
    assert (own_step.inputs, own_step.microbatch_size) == ((2, 3, 4), 8)


def test_a_batch_of_nothing_but_bare_keys_has_a_size(from_factory: Callable[..., TrainingStep]) -> None:
    assert from_factory((step, (PARAMS, {"x": jax.ShapeDtypeStruct((6, 2), jnp.uint32)}))).microbatch_size == 6


def test_the_dtype_asked_for_is_the_steps_dtype(from_factory: Callable[..., TrainingStep]) -> None:
    assert from_factory((step, (PARAMS, BATCH)), dtype="float16").dtype == "float16"


def test_of_arrays_only_the_shapes_are_kept(from_factory: Callable[..., TrainingStep]) -> None:
    arrays = {"w": np.ones((3, 2), np.float32)}, {"x": jnp.zeros((5, 3)), "scale": 2.0}
    arguments = from_factory((step, arrays)).arguments
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(arguments))
    assert (arguments[0]["w"].shape, arguments[1]["x"].shape, arguments[1]["scale"].shape) == ((3, 2), (5, 3), ())
    assert from_factory((step, arrays)).microbatch_size == 5
    assert from_factory(good_step(arguments=(BATCH, arrays[0]))).arguments == (BATCH, arguments[:1][0])


def test_a_training_step_is_taken_as_it_is(from_factory: Callable[..., TrainingStep]) -> None:
    assert from_factory(good_step()) == good_step()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"returned a NoneType; return a TrainingStep, or \(function, arguments\) with the trainable .*"),
        (step, r"returned a function; return a TrainingStep, or .*; for PyTorch, \(model, inputs\)"),
        ((step,), r"returned a tuple of function; .*"),
        ((step, PARAMS), r"returned a tuple of function, dict; .*"),
        ((step, (PARAMS,)), r"returned a tuple of function, tuple; .* the batch as the last .*"),
        (((PARAMS, BATCH), step), r"returned a tuple of tuple, function; .*"),
        ((step, (PARAMS, "text")), r"an argument is not made of arrays: .*; return .*"),
        ((step, ({}, BATCH)), r"argument 0, the trainable parameters, has no arrays; .*"),
        ((step, (PARAMS, ())), r"the batch has no arrays; .*"),
        ((step, (PARAMS, 3.0)), r"the arrays of the batch have the first dimensions \[\], .*; return a TrainingStep.*"),
        ((step, (PARAMS, {**BATCH, "z": PARAMS["w"]})), r".* the first dimensions \[3, 8\], .*"),
        (good_step(trainable=2), r"of 2 arguments, trainable is 2 and inputs are \(0,\); .*"),
        (good_step(inputs=(0, 1)), r"of 2 arguments, trainable is 1 and inputs are \(0, 1\); .*"),
        (good_step(arguments=(BATCH, {})), r"argument 1, the trainable parameters, has no arrays; .*"),
    ],
)
def test_anything_else_is_refused_with_what_a_factory_has_to_return(
    from_factory: Callable[..., TrainingStep], returned: Any, message: str
) -> None:
    with pytest.raises(BadInput, match=rf"^their_module:factory: {message}$"):
        from_factory(returned)


def test_a_factory_in_a_file_is_called_with_the_options_and_can_be_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_users_model.py").write_text(
        "import jax\n"
        "def train_step(params, batch):\n"
        "    loss = lambda p: ((batch['x'] @ p['w'] - batch['y']) ** 2).mean()\n"
        "    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))\n"
        "def make_step(batch=2):\n"
        "    shape = lambda *s: jax.ShapeDtypeStruct(s, 'float32')\n"
        "    return train_step, ({'w': shape(3)}, {'x': shape(batch, 3), 'y': shape(batch)})\n"
        "def fail(): raise KeyError('lost')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    custom = workloads.from_factory("a_users_model:make_step", batch=6)
    assert (custom.microbatch_size, custom.dtype) == (6, "float32")
    assert "dot_general" in jax.jit(custom.function).lower(*custom.arguments).as_text()
    with pytest.raises(BadInput, match="takes no argument 'sequence'"):
        workloads.from_factory("a_users_model:make_step", sequence=6)
    with pytest.raises(UserCodeError, match="KeyError"):
        workloads.from_factory("a_users_model:fail")
