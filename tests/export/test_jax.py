"""The generated JAX module runs, and its shardings are the plan's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from draw_counts import counts
from drawn_plans import block_end, cut_plan, draw_sharding, profile, sharding_source, staged_source
from export_readers import run

from automap_models.core.cluster import Cluster
from automap_models.export.jax import TARGET


@pytest.mark.parametrize("draws", counts(30, 60, 1000))
def test_shardings_are_those_that_the_plan_itself_gives_to_jax(draws: int, tmp_path: Path) -> None:
    """ShardingPlan.partition_specs is tested against compiled steps; here the file must say the same."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(5)
    for _ in range(draws):
        plan = draw_sharding(rng)
        source = sharding_source(plan)
        read = run(TARGET.write(source, tmp_path / "plan.py").text)
        size = int(np.prod([axis.size for axis in plan.mesh]))
        assert read["STAGES"] == [(0, {axis.name: axis.size for axis in plan.mesh}, "plan")]
        params: dict[str, dict[str, object]] = {}
        for variable in plan.variables:
            _, block, leaf = variable.name.split("/")
            params.setdefault(block, {})[leaf] = jax.ShapeDtypeStruct(variable.shape, "float32")
        devices = [jax.devices()[0]] * size
        if size == 1:
            mesh = read["mesh"](0, devices)
        else:
            sizes, names = tuple(axis.size for axis in plan.mesh), tuple(axis.name for axis in plan.mesh)
            mesh = jax.sharding.AbstractMesh(sizes, names)
        shardings = read["shardings"](params, mesh)
        specs = jax.tree_util.tree_map(lambda sharding: tuple(sharding.spec), shardings)
        expected = jax.tree_util.tree_map(
            tuple, plan.partition_specs(params), is_leaf=lambda leaf: isinstance(leaf, jax.sharding.PartitionSpec)
        )
        assert specs == expected


def test_an_argument_that_is_none_of_the_plans_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    plan = draw_sharding(np.random.default_rng(6))
    read = run(TARGET.write(sharding_source(plan), tmp_path / "plan.py").text)
    with pytest.raises(KeyError, match="no argument of the plan"):
        read["spec"]("somewhere/else")


def test_every_stage_has_a_mesh_of_its_own_devices(tmp_path: Path) -> None:
    """Device cuts (3, 5): three, two and three replicas."""
    pytest.importorskip("jax")
    cluster = Cluster(2, 4, 1e11, 1e10, 1e12, "drawn")
    problem, plan = cut_plan(profile(6), cluster, (block_end(1), block_end(3)), (3, 5))
    source = staged_source(problem, plan, tmp_path)
    path = tmp_path / "plan.py"
    path.write_text(TARGET.write(source, path).text, encoding="utf-8")
    assert TARGET.check(source, path).startswith("jax ")
    read = run(path.read_text("utf-8"))
    meshes = [(first, axes["data"], axes["model"]) for first, axes, _ in read["STAGES"]]
    assert meshes == [(0, 3, 1), (3, 2, 1), (5, 3, 1)]
