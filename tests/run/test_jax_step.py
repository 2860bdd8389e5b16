"""A step's arguments and results, and how a global batch becomes micro-batches."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np

from automap_models.errors import BadInput
from automap_models.hlo.step import TrainingStep
from automap_models.run.jax_step import drawn_arguments, drawn_batch, micro_batches, step_results

SHAPE = jax.ShapeDtypeStruct


def step_of(function: Any, *arguments: Any, inputs: tuple[int, ...]) -> TrainingStep:
    """A step of 4 samples whose first argument is trained."""
    return TrainingStep("step", function, arguments, 0, inputs, 4)


def test_results_are_matched_with_arguments_by_their_shapes_in_order() -> None:
    """Wherever the loss stands; of two trees of the same shapes, the first one is the first argument's."""
    weights = {"a": SHAPE((3,), jnp.float32), "b": SHAPE((2, 2), jnp.float32)}
    x = SHAPE((4, 3), jnp.float32)
    step = step_of(
        lambda p, m, x: (x.sum(), p, m, x.shape[0] * jnp.ones((), jnp.int32)), weights, weights, x, inputs=(2,)
    )
    results = step_results(step)
    assert results.replaces == {0: 1, 1: 2, 2: 3, 3: 4}
    assert results.loss == 0


def test_the_loss_is_a_floating_point_number() -> None:
    step = step_of(
        lambda p, x: (p, jnp.zeros((), jnp.int32), x[0, 0]),
        SHAPE((3,), jnp.float32),
        SHAPE((4, 1), jnp.float32),
        inputs=(1,),
    )
    assert step_results(step).loss == 2


def test_a_batch_is_cut_a_key_is_folded_and_the_rest_is_for_all() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    batch = {"x": SHAPE((4, 2), jnp.float32), "key": key, "scale": SHAPE((), jnp.float32)}
    step = step_of(lambda p, batch: (p, batch["scale"]), SHAPE((3,), jnp.float32), batch, inputs=(1,))
    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    parts = micro_batches(step, [{"x": x, "key": jax.random.key(7), "scale": np.float32(3.0)}], 3)
    for m, (bits, scale, own) in enumerate(parts):
        np.testing.assert_array_equal(bits, jax.random.key_data(jax.random.fold_in(jax.random.key(7), m)))
        assert scale == 3.0
        np.testing.assert_array_equal(own, x[4 * m : 4 * m + 4])
    keys = jax.random.split(jax.random.key(1), 3)  # or one for each micro-batch
    parts = micro_batches(step, [{"x": x, "key": keys, "scale": np.float32(3.0)}], 3)
    np.testing.assert_array_equal(parts[2][0], jax.random.key_data(keys[2]))
    with pytest.raises(BadInput, match="another structure"):
        micro_batches(step, [{"x": x}], 3)


def test_keys_of_samples_are_cut_and_those_of_layers_are_folded_each() -> None:
    """`fold_in` takes one key: an array of them once ended in its error."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    batch = {"x": SHAPE((4, 2), jnp.float32), "samples": SHAPE((4,), key.dtype), "layers": SHAPE((3,), key.dtype)}
    step = step_of(lambda p, batch: (p, batch["x"].sum()), SHAPE((3,), jnp.float32), batch, inputs=(1,))
    samples, layers = jax.random.split(jax.random.key(1), 8), jax.random.split(jax.random.key(2), 3)
    parts = micro_batches(step, [{"x": np.zeros((8, 2)), "samples": samples, "layers": layers}], 2)
    for m, (of_layers, of_samples, _) in enumerate(parts):
        np.testing.assert_array_equal(of_samples, jax.random.key_data(samples)[4 * m : 4 * m + 4])
        for own, layer in zip(of_layers, layers, strict=True):
            np.testing.assert_array_equal(own, jax.random.key_data(jax.random.fold_in(layer, m)))
    (drawn,) = drawn_batch(step, seed=1, count=2, largest=5)
    assert (drawn["samples"].shape, drawn["layers"].shape) == ((8,), (3,))


def test_drawn_values_are_the_seeds() -> None:
    weights = {"kernel": SHAPE((100, 50), jnp.float32), "scale": SHAPE((200,), jnp.float32)}
    state = {"mean": SHAPE((3,), jnp.float32), "count": SHAPE((), jnp.int32)}
    batch = (SHAPE((4, 2), jnp.float32), SHAPE((4,), jnp.int32))
    step = step_of(lambda p, s, x, y: (p, s, x.sum()), weights, state, *batch, inputs=(2, 3))
    first, second = drawn_arguments(step, 1), drawn_arguments(step, 1)
    for own, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(own, other)
    assert first[0]["kernel"].std() == pytest.approx(0.1, rel=0.05)
    assert first[0]["scale"].mean() == pytest.approx(1.0, abs=0.05)
    assert (first[1]["mean"] == np.float32(1e-3)).all()
    assert first[1]["count"] == 0
    assert first[2] is None
    x, y = drawn_batch(step, 2, 5, 7)
    assert x.shape == (20, 2)
    assert y.shape == (20,)
    assert set(y.tolist()) <= set(range(7))
