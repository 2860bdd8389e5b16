"""Collectives read from compiled HLO, arguments drawn for a step, and what counts as a difference."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from automap_models.core.sharding import Collectives
from automap_models.errors import BadInput
from automap_models.hlo.random_keys import physical
from automap_models.hlo.sharded_step import (
    communication,
    compile_step,
    differences,
    on_one_device,
    partition_specs,
    run,
)
from automap_models.hlo.step import TrainingStep

HLO = """
  %all-reduce.1 = f32[8,12]{1,0} all-reduce(%dot.1), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  %all-reduce.2 = (f32[3]{0}, bf16[2,2]{1,0}, /*index=2*/pred[]) all-reduce(%a, %b, %c), channel_id=2
  %ag = f32[16]{0} all-gather(%x), dimensions={0}
  %all-gather.1 = f32[16]{0} fusion(%all-reduce.1), kind=kLoop, calls=%computation
  %cp = s32[5]{0} collective-permute(%y), source_target_pairs={{0,1}}
"""


def test_collectives_are_counted_with_the_bytes_of_their_results() -> None:
    assert communication(HLO) == {
        "all-reduce": Collectives(2, 8 * 12 * 4 + 3 * 4 + 4 * 2 + 1),
        "all-gather": Collectives(1, 16 * 4),
        "collective-permute": Collectives(1, 5 * 4),
    }
    assert communication("ENTRY %main { ROOT %add = f32[] add(%a, %b) }") == {}


def test_each_leaf_gets_the_spec_of_its_dimensions() -> None:
    plan = ["data", "model"], [[0, -1, -1], [1, 2, -1]]
    assert partition_specs(*plan, 3) == [P("data", "model"), P(None, None, "model"), P()]
    with pytest.raises(BadInput, match="the plan has 3 arguments, the step 4"):
        partition_specs(*plan, 4)


def test_differences_are_relative_scalars_apart() -> None:
    expected = [np.float32(2.0), np.array([3.0, 4.0]), np.array([7])]
    results = [np.float32(2.002), np.array([3.0, 4.005]), np.array([9])]  # integers do not count
    assert differences(results, expected) == (pytest.approx(1e-3, rel=1e-3), pytest.approx(1e-3))


def embedding_step(bound: int) -> TrainingStep:
    """Looks up rows of a table; an index beyond it gives NaN, as jnp.take does."""

    def step(params: Any, ids: Any) -> Any:
        def loss(table: Any) -> Any:
            return jnp.square(jnp.take(table, ids, axis=0)).sum()

        return params - 0.1 * jax.grad(loss)(params), loss(params)

    f32, i32 = jnp.float32, jnp.int32
    return TrainingStep(
        "lookup", step, (jax.ShapeDtypeStruct((bound, 9), f32), jax.ShapeDtypeStruct((64,), i32)), 0, (1,), 64
    )


def test_integers_are_drawn_in_the_range_of_the_table_that_they_index() -> None:
    (_, ids), results = on_one_device(embedding_step(5), seed=0)
    assert 0 <= ids.min() <= ids.max() < 5
    assert all(np.isfinite(result).all() for result in results)


def test_a_step_that_is_never_finite_is_refused() -> None:
    step = TrainingStep(
        "broken",
        lambda params, x: params.sum() / 0.0 * x,
        (jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.float32)),
        0,
        (1,),
        1,
    )
    with pytest.raises(BadInput, match="gives no finite results"):
        on_one_device(step, seed=0)


def test_a_step_with_random_keys_runs_with_a_plan_as_on_one_device() -> None:
    """A typed key was once drawn as a whole number, which it cannot be: no step with dropout could be verified."""

    def step(params: Any, batch: Any, key: Any) -> Any:
        kept = jax.random.bernoulli(key, 0.5, batch["x"].shape)
        noise = jax.vmap(jax.random.normal)(batch["keys"])
        return params, (batch["x"] * kept @ params).sum() + noise.sum(), jax.random.split(key)[0]

    f32, key = jnp.float32, jax.eval_shape(lambda: jax.random.key(0))
    batch = {"x": jax.ShapeDtypeStruct((8, 3), f32), "keys": jax.ShapeDtypeStruct((8,), key.dtype)}
    dropout = TrainingStep("dropout", step, (jax.ShapeDtypeStruct((3,), f32), batch, key), 0, (1, 2), 8)
    values, expected = on_one_device(dropout, seed=3)
    compiled = compile_step(dropout, {"data": 1}, [[-1, -1, 0, -1]])
    assert differences(run(compiled, dropout, values), expected) == (0.0, 0.0)
    again, _ = on_one_device(dropout, seed=3)
    for one, other in zip(values, again, strict=True):
        np.testing.assert_array_equal(physical(one), physical(other))


def test_a_mesh_of_more_devices_than_there_are_is_refused() -> None:
    devices = jax.device_count() + 1
    with pytest.raises(BadInput, match=f"{devices} devices are needed"):
        compile_step(embedding_step(5), {"data": devices}, [[-1, 0]])
