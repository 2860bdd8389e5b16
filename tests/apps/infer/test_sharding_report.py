"""Variables in rows: what is named and partitioned alike stands together, and nothing else does."""

from __future__ import annotations

from automap_models.core.mesh import MeshAxis
from automap_models.core.sharding import ShardingPlan
from automap_models.core.sharding_classes import Variable
from automap_models.infer.reports.sharding import rows


def names(*variables: tuple[str, tuple[int, ...], int]) -> list[tuple[str, int, int]]:
    """Name, number of variables and dimension of each row for variables of these names, shapes and dimensions."""
    parameters = tuple(Variable(name, shape, "f32", 4.0, "parameter") for name, shape, _ in variables)
    plan = ShardingPlan((MeshAxis("model", 2),), parameters, (tuple(dim for *_, dim in variables),), "by hand")
    assert {variable for row in rows(plan) for variable in row.variables} == set(parameters)
    return [(row.name, len(row.variables), row.dim) for row in rows(plan)]


def test_blocks_and_siblings_that_are_partitioned_alike_are_one_row() -> None:
    matrices = [(f"params/block_{i}/attention/{m}/kernel", (8, 8), 1) for i in range(3) for m in "kqv"]
    assert names(*matrices) == [("block_*/attention/{k,q,v}/kernel", 9, 1)]


def test_another_dimension_or_shape_makes_another_row() -> None:
    assert names(("p/a_1/w", (8, 8), 1), ("p/a_2/w", (8, 8), 0), ("p/b/w", (4, 8), 1)) == [
        ("a_1/w", 1, 1),
        ("a_2/w", 1, 0),
        ("b/w", 1, 1),
    ]


def test_names_without_a_path_in_common_are_whole() -> None:
    assert names(("w", (2,), 0), ("b", (2,), -1)) == [("w", 1, 0), ("b", 1, -1)]
    assert names(("first/w", (2,), 0), ("second/b", (2,), 0)) == [("first/w", 1, 0), ("second/b", 1, 0)]


def test_numbers_inside_a_name_tell_layers_apart() -> None:
    assert names(("p/fc1/w", (2, 2), 1), ("p/fc2/w", (2, 2), 0)) == [("fc1/w", 1, 1), ("fc2/w", 1, 0)]
