"""A module's work by classes: two dense layers worked out by hand, and all-reduces that are due once or twice."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ideal_devices import ideal_device

from automap_models.core.cluster import Cluster
from automap_models.core.sharding import UNUSED
from automap_models.core.sharding_classes import ShardingWork
from automap_models.cost.sharding import ShardingPrice, axis_costs, sharding_price
from automap_models.hlo.adapter import trace
from automap_models.hlo.dimension_classes import ModuleSharding, sharding_classes
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.rule_sets import RuleSet
from automap_models.hlo.sharding_work import sharding_work, step_times
from automap_models.hlo.shardy import sharding_rules
from automap_models.hlo.step import TrainingStep
from automap_models.hlo.step_classes import StepClasses

DEVICE = ideal_device("one", {"float32": 1e12, "bfloat16": 1e12}, 1e12, 1e30)
"""Nothing but FLOP counts, one a picosecond."""
CLUSTER = Cluster(1, 8, 100e9, 100e9, 16e9)
BATCH, WIDTH, HIDDEN, OUT = 32, 64, 256, 16
F32 = 4


def mlp(w: Any, v: Any, x: Any) -> Any:
    """One step of gradient descent on two dense layers, both parameters in one argument each."""

    def loss(w: Any, v: Any) -> Any:
        return jnp.square(jax.nn.relu(x @ w) @ v).sum()

    with_respect_to_both = jax.value_and_grad(loss, argnums=(0, 1))
    value, (dw, dv) = with_respect_to_both(w, v)
    with jax.named_scope("optimizer"):
        return w - 0.1 * dw, v - 0.1 * dv, value


def f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def sharding_and_work(function: Any, *arguments: Any) -> tuple[ModuleSharding, ShardingWork]:
    module = trace(TrainingStep("step", function, arguments, 0, (len(arguments) - 1,), 1))
    sharding = sharding_classes(module, sharding_rules(module), RuleSet("shardy", ""))
    graph = instruction_graph(module)
    return sharding, sharding_work(StepClasses(module, sharding, graph), step_times(graph, DEVICE))


@cache
def layers() -> tuple[ModuleSharding, ShardingWork]:
    return sharding_and_work(mlp, f32(WIDTH, HIDDEN), f32(HIDDEN, OUT), f32(BATCH, WIDTH))


def price(of_dims: dict[int, int], sizes: tuple[int, ...] = (4,)) -> ShardingPrice:
    """Of sharding the class of a dimension (of w, v, x in a row) along an axis."""
    sharding, work = layers()
    axis_of = np.full(len(sharding.classes), UNUSED)
    for dim, axis in of_dims.items():
        axis_of[sharding.classes.dim_classes[dim]] = axis
    return sharding_price(work, axis_costs(CLUSTER, sizes, 0.0), axis_of)


def test_data_parallelism_reduces_each_gradient_and_the_loss() -> None:
    priced = price({4: 0})
    assert priced.gradient_bytes[0] + priced.activation_bytes[0] == F32 * (WIDTH * HIDDEN + HIDDEN * OUT + 1)
    assert priced.gradient_bytes[0] >= F32 * (WIDTH * HIDDEN + HIDDEN * OUT)


def test_megatrons_columns_then_rows_reduce_one_activation_forward_and_none_for_inputs() -> None:
    priced = price({1: 0})
    assert priced.activation_bytes == (F32 * BATCH * OUT,)  # x @ w @ v, whole on every device; x needs no gradient
    assert priced.gradient_bytes == (0,)


def test_sharding_the_input_features_reduces_the_hidden_layer() -> None:
    assert price({0: 0}).activation_bytes == (F32 * BATCH * HIDDEN,)


def test_both_axes_divide_what_the_other_reduces() -> None:
    priced = price({4: 0, 1: 1}, (2, 4))
    assert priced.activation_bytes[1] == F32 * BATCH * OUT / 2
    assert priced.gradient_bytes[0] + priced.activation_bytes[0] == F32 * ((WIDTH * HIDDEN + HIDDEN * OUT) / 4 + 1)


def test_products_are_divided_by_the_axes_that_shard_one_of_their_factors() -> None:
    flop = 2 * BATCH * HIDDEN * (2 * WIDTH + 3 * OUT)  # forward, gradients of w and v, gradient of the hidden layer
    assert price({}).compute_s == pytest.approx(flop / 1e12, rel=0.06)  # and what is elementwise, some of it undivided
    for dims, sizes, parts in (({1: 0}, (4,), 4), ({4: 0}, (8,), 8), ({4: 0, 1: 1}, (2, 4), 8)):
        assert price(dims, sizes).compute_s == pytest.approx(flop / 1e12 / parts, abs=0.06 * flop / 1e12)


def test_memory_holds_parameters_gradients_inputs_and_what_the_backward_pass_reads() -> None:
    weights = F32 * (2 * WIDTH * HIDDEN + HIDDEN * OUT)  # w with its gradient; v is no parameter in this step
    hidden = (F32 + 1) * BATCH * HIDDEN  # relu's result, and a byte each for where it is positive
    x, outputs = F32 * BATCH * WIDTH, F32 * BATCH * OUT  # the square's derivative
    assert price({}).memory_bytes == weights + hidden + x + outputs
    assert price({1: 0}).memory_bytes == (weights + hidden) / 4 + x + outputs
    assert price({4: 0}).memory_bytes == weights + (hidden + x + outputs) / 4
    assert price({4: 0, 1: 1}, (2, 4)).memory_bytes == weights / 4 + hidden / 8 + (x + outputs) / 2


def test_results_that_are_added_are_reduced_once_after_the_addition() -> None:
    def step(w: Any, v: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda w: (x @ w @ v + x @ w @ v.T[:OUT].T).sum())(w)

    def apart(w: Any, v: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda w: (jnp.tanh(x @ w @ v) + jnp.tanh(x @ w @ v.T[:OUT].T)).sum())(w)

    sums = []
    for function in (step, apart):
        sharding, work = sharding_and_work(function, f32(WIDTH, HIDDEN), f32(HIDDEN, OUT), f32(BATCH, WIDTH))
        hidden = int(sharding.classes.dim_classes[1])
        sums.append(work.activation_sums[hidden, hidden])
    assert sums == [F32 * BATCH * OUT, 2 * F32 * BATCH * OUT]


def test_results_summed_over_different_dimensions_are_reduced_once_if_one_axis_partitions_both() -> None:
    """T5's decoder: gradients of the encoder's output, each summed over the heads of another layer, are added up."""

    def step(w: Any, v: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.tanh(sum(jnp.tanh(x @ w[name]) @ v[name] for name in ("a", "b", "c"))).sum()

        return jax.value_and_grad(loss)(w)

    w = {"a": f32(WIDTH, HIDDEN), "b": f32(WIDTH, 2 * HIDDEN), "c": f32(WIDTH, 4 * HIDDEN)}
    v = {"a": f32(HIDDEN, OUT), "b": f32(2 * HIDDEN, OUT), "c": f32(4 * HIDDEN, OUT)}
    sharding, work = sharding_and_work(step, w, v, f32(BATCH, WIDTH))
    hidden = [int(sharding.classes.dim_classes[2 * i + 1]) for i in range(3)]
    batch = int(sharding.classes.dim_classes[-2])
    assert len({*hidden, batch}) == 4

    def reduced(axis_of: dict[int, int], sizes: tuple[int, ...]) -> tuple[float, float]:
        """Bytes along the last axis, and all-reduces by what their starts take."""
        axes = axis_costs(CLUSTER, sizes, 1.0)
        chosen = np.full(len(sharding.classes), UNUSED)
        chosen[list(axis_of)] = list(axis_of.values())
        cost, free = (sharding_price(work, [axis._replace(start_s=s) for axis in axes], chosen) for s in (1.0, 0.0))
        return cost.activation_bytes[-1], cost.all_reduce_s[-1] - free.all_reduce_s[-1]

    one = F32 * BATCH * OUT
    a, b, c = hidden
    assert reduced({a: 0}, (4,)) == (one, pytest.approx(1))
    assert reduced({a: 0, b: 0}, (4,)) == (one, pytest.approx(1))
    assert reduced({a: 0, b: 0, c: 0}, (4,)) == (one, pytest.approx(1))
    assert reduced({b: 0, c: 0}, (4,)) == (2 * one, pytest.approx(2))  # a + b comes first, and a is whole
    assert reduced({a: 1, b: 1, batch: 0}, (2, 4)) == (one / 2, pytest.approx(1))
    assert reduced({a: 0, b: 1}, (2, 4)) == (one, pytest.approx(1))


def test_what_is_converted_before_it_is_added_is_reduced_as_it_is_added() -> None:
    """bfloat16 gradients of a shared embedding took back twice their bytes when they were added in float32."""

    def step(w: Any, v: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            hidden = x @ w
            one, other = (hidden @ matrix for matrix in (v, v.T[:OUT].T))
            return jnp.tanh(one.astype(jnp.float32) + other.astype(jnp.float32)).sum()

        return jax.value_and_grad(loss)(w)

    shapes = ((WIDTH, HIDDEN), (HIDDEN, OUT), (BATCH, WIDTH))
    sharding, work = sharding_and_work(step, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    hidden = int(sharding.classes.dim_classes[1])
    assert (work.activation_sums[hidden, hidden], work.starts[hidden]) == (F32 * BATCH * OUT, 1)


def test_a_loop_reduces_in_every_round() -> None:
    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=5)[0].sum()

        return jax.value_and_grad(loss)(w)

    sharding, work = sharding_and_work(step, f32(64, 64), f32(8, 64))
    batch = int(sharding.classes.dim_classes[2])
    assert sharding.classes.divisors[batch] == 8
    total = work.gradient_sums + work.activation_sums
    assert total[batch, batch] == pytest.approx(5 * F32 * 64 * 64, rel=0.01)


def test_launches_are_not_divided() -> None:
    device = ideal_device("slow start", {"float32": 1e12}, 1e12, 1e30, launch_s=1.0)
    module = trace(TrainingStep("step", mlp, (f32(8, 8), f32(8, 8), f32(8, 8)), 0, (2,), 1))
    sharding = sharding_classes(module, sharding_rules(module), RuleSet("shardy", ""))
    graph = instruction_graph(module)
    work = sharding_work(StepClasses(module, sharding, graph), step_times(graph, device))
    assert work.launch_s == pytest.approx(round(work.launch_s))
    assert work.compute_s < 1e-6
