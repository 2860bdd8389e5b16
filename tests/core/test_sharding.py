"""Sharding problems and plans: what they refuse, and what they say to the frameworks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import MeshAxis
from automap_models.core.sharding import UNUSED, ShardingPlan, ShardingProblem, variable_rows
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.errors import BadInput

CLUSTER = Cluster(2, 8, 130e9, 3e9, 16e9, "test")

# y = w2 · relu(w1 · x + b1), with w1's moment; the classes: 0 input features, 1 hidden, 2 outputs (7, prime), 3 batch
VARIABLES = (
    Variable("params/l1/kernel", (6, 8), "f32", 192.0, "parameter"),
    Variable("params/l1/bias", (8,), "f32", 32.0, "parameter"),
    Variable("params/l2/kernel", (8, 7), "f32", 224.0, "parameter"),
    Variable("state/mu/l1/kernel", (6, 8), "f32", 192.0, "state"),
    Variable("state/count", (), "i32", 4.0, "state"),
    Variable("x", (4, 6), "f32", 96.0, "input"),
)
CLASSES = ShardingClasses(
    variables=VARIABLES,
    dim_classes=np.array([0, 1, 1, 1, 2, 0, 1, 3, 0]),
    divisors=np.array([6, 8, 7, 4]),
    conflicts=np.array([[0, 1], [0, 3], [1, 2], [1, 3]]),
)


BOTH = (MeshAxis("data", 2), MeshAxis("model", 2))


def problem(axis: str = "model", size: int = 2) -> ShardingProblem:
    return ShardingProblem("mlp", CLASSES, CLUSTER, (MeshAxis(axis, size),))


def plan(dims: tuple[int, ...]) -> ShardingPlan:
    return ShardingPlan((MeshAxis("model", 2),), VARIABLES, (dims,), "by hand")


COLUMN_ROW = (1, 0, 0, 1, -1, -1)
"""Column-parallel first layer, row-parallel second: Megatron-LM's (arXiv 1909.08053) feed-forward layer."""


def test_weights_count_candidates_and_their_bytes() -> None:
    assert problem().along[0].weights.tolist() == [1, 3, 1, 0]
    assert problem().along[0].weights_bytes.tolist() == [192.0, 448.0, 224.0, 0.0]
    assert problem("data").along[0].weights.tolist() == [1, 0, 0, 1]


def test_megatrons_plan_is_valid_and_counts_parameters_alone() -> None:
    megatron = plan(COLUMN_ROW)
    assert megatron.check_valid(problem()) == (True, "")
    assert megatron.partitioned() == 3
    assert CLASSES.dims([1]) == COLUMN_ROW
    assert megatron == ShardingPlan.from_classes(problem(), np.array([UNUSED, 0, UNUSED, UNUSED]), "by hand")
    assert megatron.axis_of(CLASSES).tolist() == [UNUSED, 0, UNUSED, UNUSED]


BATCH = (-1, -1, -1, -1, -1, 0)


def test_a_plan_of_two_axes_decides_on_inputs_along_one_and_on_parameters_along_the_other() -> None:
    both = ShardingPlan(BOTH, VARIABLES, (BATCH, COLUMN_ROW), "by hand")
    assert both.check_valid(ShardingProblem("mlp", CLASSES, CLUSTER, BOTH)) == (True, "")
    assert (both.partitioned(0), both.partitioned(1)) == (1, 3)
    assert both.axis_of(CLASSES).tolist() == [UNUSED, 1, UNUSED, 0]


def test_no_class_is_partitioned_along_both_axes() -> None:
    """The input's features are the first layer's rows: inputs and parameters may both be asked to partition them."""
    features = (0, -1, -1, 0, -1, 1)
    twice = ShardingPlan(BOTH, VARIABLES, (features, features), "by hand")
    assert twice.check_valid(ShardingProblem("mlp", CLASSES, CLUSTER, BOTH)) == (
        False,
        "partitions a dimension along both axes",
    )


def test_the_axis_along_which_propagation_objects_is_named() -> None:
    plan_of_both = ShardingPlan(BOTH, VARIABLES, (BATCH, (1, -1, 0, 1, -1, -1)), "by hand")
    valid, reason = plan_of_both.check_valid(ShardingProblem("mlp", CLASSES, CLUSTER, BOTH))
    assert not valid
    assert reason.startswith("along axis model, leaves variables undecided")


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_time_and_memory_need_the_work_of_a_step(objective: Any) -> None:
    with pytest.raises(BadInput, match=f"objective {objective} needs the work of a step"):
        ShardingProblem("mlp", CLASSES, CLUSTER, BOTH, objective)


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ((1, -1, 0, 1, -1, -1), "undecided"),
        ((0, 0, 0, 1, -1, 1), "dimension 0 of params/l1/kernel and dimension 1 of params/l1/kernel cannot both"),
        ((-1, -1, 1, -1, -1, -1), "dimension 1 of params/l2/kernel cannot be partitioned by 2"),
        ((2, -1, -1, -1, -1, -1), "does not have"),
        ((-1,), "other variables"),
    ],
)
def test_a_plan_that_propagation_contradicts_says_where(dims: tuple[int, ...], reason: str) -> None:
    valid, objection = plan(dims).check_valid(problem())
    assert not valid
    assert reason in objection


def test_a_plan_for_another_axis_or_kind_is_not_valid() -> None:
    assert plan(COLUMN_ROW).check_valid(problem(size=4)) == (False, "is for the mesh model=2, not model=4")
    assert not plan(COLUMN_ROW).check_valid(problem("data"))[0]


def test_an_axis_that_divides_nothing_is_refused_with_the_sizes_that_do() -> None:
    with pytest.raises(BadInput, match=r"by 5 .* dimension 1 of params/l1/kernel by a divisor of 8"):
        problem(size=5)


@pytest.mark.parametrize("size", [-1, 0, 1, 17])
def test_an_axis_is_at_least_two_and_at_most_all_devices(size: int) -> None:
    with pytest.raises(BadInput, match="give 2 to 16"):
        problem(size=size)


def test_a_step_without_parameters_is_refused() -> None:
    inputs = tuple(replace(variable, kind="input") for variable in VARIABLES)
    with pytest.raises(BadInput, match="no trainable parameters"):
        ShardingProblem("mlp", replace(CLASSES, variables=inputs), CLUSTER, (MeshAxis("model", 2),))


class TestPartitionSpecs:
    @pytest.fixture(autouse=True)
    def _jax(self) -> None:
        self.jax = pytest.importorskip("jax")

    def leaf(self, *shape: int) -> Any:
        return self.jax.ShapeDtypeStruct(shape, "float32")

    def test_they_have_the_tree_of_the_parameters(self) -> None:
        P = self.jax.sharding.PartitionSpec
        params = {"l1": {"kernel": self.leaf(6, 8), "bias": self.leaf(8)}, "l2": {"kernel": self.leaf(8, 7)}}
        specs = plan(COLUMN_ROW).partition_specs(params, axes=["x"])
        assert specs == {"l1": {"kernel": P(None, "x"), "bias": P("x")}, "l2": {"kernel": P("x")}}

    def test_the_state_is_found_by_its_own_path(self) -> None:
        P = self.jax.sharding.PartitionSpec
        state = {"mu": {"l1": {"kernel": self.leaf(6, 8)}}, "count": self.leaf()}
        specs = plan(COLUMN_ROW).partition_specs(state)
        assert specs == {"mu": {"l1": {"kernel": P(None, "model")}}, "count": P()}

    def test_an_unknown_leaf_another_shape_and_an_ambiguous_path_are_refused(self) -> None:
        for tree, sentence in (
            ({"l3": {"kernel": self.leaf(8, 7)}}, "none of the plan's variables"),
            ({"l1": {"kernel": self.leaf(6, 9)}}, "has the shape"),
            ({"kernel": self.leaf(6, 8)}, "may be"),
        ):
            with pytest.raises(BadInput, match=sentence):
                plan(COLUMN_ROW).partition_specs(tree)


def test_dtensor_placements_go_by_name() -> None:
    torch = pytest.importorskip("torch.distributed.tensor")
    both = ShardingPlan(BOTH, VARIABLES, (BATCH, COLUMN_ROW), "by hand").placements()
    assert both["params/l1/kernel"] == [torch.Replicate(), torch.Shard(1)]
    assert both["x"] == [torch.Shard(0), torch.Replicate()]
    assert both["state/count"] == [torch.Replicate()] * 2
    assert set(both) == {variable.name for variable in VARIABLES}


def rows_of(*variables: tuple[str, tuple[int, ...], int]) -> list[tuple[str, int, int]]:
    """Name, number of variables and dimension of each row for variables of these names, shapes and dimensions."""
    parameters = tuple(Variable(name, shape, "f32", 4.0, "parameter") for name, shape, _ in variables)
    plan = ShardingPlan((MeshAxis("model", 2),), parameters, (tuple(dim for *_, dim in variables),), "by hand")
    assert {variable for row in variable_rows(plan) for variable in row.variables} == set(parameters)
    return [(row.name, len(row.variables), row.dim) for row in variable_rows(plan)]


def test_blocks_and_siblings_that_are_partitioned_alike_are_one_row() -> None:
    matrices = [(f"params/block_{i}/attention/{m}/kernel", (8, 8), 1) for i in range(3) for m in "kqv"]
    assert rows_of(*matrices) == [("block_*/attention/{k,q,v}/kernel", 9, 1)]


def test_another_dimension_or_shape_makes_another_row() -> None:
    assert rows_of(("p/a_1/w", (8, 8), 1), ("p/a_2/w", (8, 8), 0), ("p/b/w", (4, 8), 1)) == [
        ("a_1/w", 1, 1),
        ("a_2/w", 1, 0),
        ("b/w", 1, 1),
    ]


def test_names_without_a_path_in_common_are_whole() -> None:
    assert rows_of(("w", (2,), 0), ("b", (2,), -1)) == [("w", 1, 0), ("b", 1, -1)]
    assert rows_of(("first/w", (2,), 0), ("second/b", (2,), 0)) == [("first/w", 1, 0), ("second/b", 1, 0)]


def test_numbers_inside_a_name_tell_layers_apart() -> None:
    assert rows_of(("p/fc1/w", (2, 2), 1), ("p/fc2/w", (2, 2), 0)) == [("fc1/w", 1, 1), ("fc2/w", 1, 0)]
