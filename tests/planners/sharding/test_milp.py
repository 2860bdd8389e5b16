"""The proven optimum against brute force, and as the plans that Auto-MAP and others published."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import Mesh, MeshAxis
from automap_models.core.result import Result
from automap_models.core.sharding import Objective, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import MergedSums, ShardingClasses, ShardingWork, Variable
from automap_models.cost.sharding import ShardingCount, ShardingPrice, classes_price
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import Deadline, Progress
from automap_models.planners.registry import make_planner
from automap_models.planners.sharding.milp import ShardingMilpPlanner

MODEL = (MeshAxis("model", 4),)
BOTH = (MeshAxis("data", 2), MeshAxis("model", 4))
Draw = Callable[[int], ShardingProblem]
Solved = Result[ShardingProblem, ShardingPlan]


def solve(problem: ShardingProblem, **config: Any) -> Solved:
    return make_planner("milp", kind="sharding", **config).solve(problem)


def draw_problem(seed: int, mesh: Mesh, objective: Objective = "time", memory: float = 1e12) -> ShardingProblem:
    """Six classes of parameters and inputs, any pairs of them in conflict, and instructions with up to three."""
    random = np.random.default_rng(seed)
    k = 6
    pairs = [pair for pair in combinations(range(k), 2) if random.random() < 0.3]
    kinds = ["parameter", "input", *random.choice(["parameter", "input"], k - 2)]
    variables = tuple(Variable(f"v{i}", (8,), "f32", 32.0 + i, kind) for i, kind in enumerate(kinds))
    divisors = np.array([8, 8, *random.choice([1, 2, 4, 8], k - 2)])
    conflicts = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    classes = ShardingClasses(variables, np.arange(k), divisors, conflicts)
    compute, held, activations, gradients = np.zeros((4, k, k))
    starts = np.zeros(k)
    for _ in range(12):
        met = random.choice(k, int(random.integers(1, 4)), replace=False)
        compute[np.ix_(met, met)] += random.random()
        held[np.ix_(met, met)] += random.random() * 1e9
        sums = activations if random.random() < 0.5 else gradients
        sums[met[0], met] += random.random() * 2e9
        starts[met[0]] += 1
    merged = []
    for _ in range(4):  # never more than the least of what is summed over these classes
        over, late = np.sort(random.choice(k, 2, replace=False)), bool(random.random() < 0.5)
        least = min((gradients if late else activations)[c, c] for c in over) / 8
        dims = tuple(c for c in range(k) if c not in over and random.random() < 0.3)
        merged.append(MergedSums(tuple(over.tolist()), dims[:1], random.random() * least, 1, late))
    work = ShardingWork(12.0, 0.1, compute, 12e9, held, activations, gradients, starts, tuple(merged))
    cluster = Cluster(2, 4, intra=5e9, inter=1e9, memory=memory)
    return ShardingProblem("drawn", classes, cluster, mesh, objective, work, launch_s=1e-2)


def every_choice(problem: ShardingProblem) -> Iterator[np.ndarray]:
    """Every legal axis of each class."""
    conflicts = problem.classes.conflicts.tolist()
    options = [[-1, *np.flatnonzero(problem.allowed[:, c]).tolist()] for c in range(len(problem.classes))]
    for choice in product(*options):
        if all(choice[a] != choice[b] or choice[a] < 0 for a, b in conflicts):
            yield np.array(choice)


def every_price(problem: ShardingProblem) -> list[ShardingPrice]:
    return [classes_price(problem, choice) for choice in every_choice(problem)]


def best_count(problem: ShardingProblem) -> ShardingCount:
    """Candidates and bytes that the best of all legal choices partitions, in this order."""

    def count(choice: np.ndarray) -> ShardingCount:
        on = [(along, choice == a) for a, along in enumerate(problem.along)]
        return ShardingCount(
            sum(int(along.weights[sharded].sum()) for along, sharded in on),
            sum(float(along.weights_bytes[sharded].sum()) for along, sharded in on),
        )

    return max(count(choice) for choice in every_choice(problem))


class TestCount:
    @pytest.mark.parametrize("seed", range(12))
    def test_no_legal_set_partitions_more_variables_nor_as_many_and_more_bytes(
        self, seed: int, random_sharding_problem: Draw
    ) -> None:
        problem = random_sharding_problem(seed)
        result = solve(problem)
        assert result.required_plan().check_valid(problem) == (True, "")
        assert result.cost == best_count(problem)
        assert result.required_plan().partitioned() == result.cost.partitioned
        assert result.status == "optimal"
        assert result.bound is not None
        assert (result.bound.value, result.bound.proof) == (result.cost.partitioned, "exact")

    @pytest.mark.parametrize("seed", range(10))
    def test_along_two_axes_what_both_partition_counts(self, seed: int) -> None:
        problem = draw_problem(seed, BOTH, "count")
        result = solve(problem)
        assert result.required_plan().check_valid(problem) == (True, "")
        assert result.cost == best_count(problem)

    def test_without_the_time_to_prove_it_the_bound_is_honest(self, random_sharding_problem: Draw) -> None:
        problem = random_sharding_problem(3)
        result = solve(problem, nodes=0)
        assert result.required_plan().check_valid(problem) == (True, "")
        assert result.bound is not None
        assert result.bound.value >= best_count(problem).partitioned

    def test_the_figures_are_those_of_an_episode_that_makes_the_plan(self) -> None:
        """Two parameters share a class and a third excludes it: one decision partitions two and replicates one."""
        variables = tuple(Variable(f"p{i}", (4,), "f32", 16.0, "parameter") for i in range(3))
        classes = ShardingClasses(variables, np.array([0, 0, 1]), np.array([4, 4]), np.array([[0, 1]]))
        result = solve(ShardingProblem("three", classes, Cluster(1, 8, 1e9, 1e9, 1e9), MODEL))
        assert result.required_plan().dims == ((0, 0, -1),)
        assert result.facts["decided_by_propagation"] == (2,)
        assert result.facts["reward"] == (pytest.approx(2 * 0.4 + 0.1),)


class TestTimeAndMemory:
    @pytest.mark.parametrize("seed", range(12))
    @pytest.mark.parametrize("mesh", [MODEL, BOTH], ids=["one axis", "two axes"])
    def test_no_legal_choice_is_faster(self, seed: int, mesh: Mesh) -> None:
        problem = draw_problem(seed, mesh)
        result = solve(problem)
        plan = result.required_plan()
        assert plan.check_valid(problem) == (True, "")
        assert result.cost == classes_price(problem, plan.axis_of(problem.classes))
        assert result.cost.time_s == pytest.approx(min(price.time_s for price in every_price(problem)), rel=1e-9)
        assert result.bound is not None
        assert (result.bound.value, result.bound.proof) == (result.cost.time_s, "exact")

    @pytest.mark.parametrize("seed", range(10))
    def test_none_takes_less_memory_and_of_those_none_is_faster(self, seed: int) -> None:
        problem = draw_problem(seed, BOTH, "memory")
        prices = every_price(problem)
        least = min(price.memory_bytes for price in prices)
        fastest = min(price.time_s for price in prices if price.memory_bytes <= least * (1 + 1e-9))
        cost = solve(problem).cost
        assert cost.memory_bytes == pytest.approx(least, rel=1e-8)
        assert cost.time_s <= fastest * (1 + 1e-6)

    @pytest.mark.parametrize("seed", range(10))
    def test_the_fastest_plan_that_fits_the_memory_is_taken(self, seed: int) -> None:
        memories = sorted({price.memory_bytes for price in every_price(draw_problem(seed, BOTH))})
        limit = float(np.mean(memories[:2])) if len(memories) > 1 else memories[0] + 1
        problem = draw_problem(seed, BOTH, memory=limit)
        cost = solve(problem).cost
        assert cost.memory_bytes <= limit
        fitting = [price.time_s for price in every_price(problem) if price.memory_bytes <= limit]
        assert cost.time_s == pytest.approx(min(fitting), rel=1e-9)

    def test_what_fits_nowhere_says_how_much_it_needs(self) -> None:
        result = solve(draw_problem(0, BOTH, memory=1.0))
        assert (result.plan, result.status) == (None, "infeasible")
        with pytest.raises(Infeasible, match=r"every plan needs .* GB or more on each device, cluster .* has 0\.0 GB"):
            result.required_plan()

    @pytest.mark.parametrize("objective", ["time", "memory"])
    def test_without_the_time_to_prove_it_the_bound_is_honest(self, objective: Objective) -> None:
        problem = draw_problem(1, BOTH, objective)
        result = solve(problem, nodes=0)
        figure = "time_s" if objective == "time" else "memory_bytes"
        least = min(getattr(price, figure) for price in every_price(problem))
        assert result.required_plan().check_valid(problem) == (True, "")
        assert result.bound is not None
        assert result.bound.value <= least * (1 + 1e-9) <= getattr(result.cost, figure) * (1 + 2e-9)

    @pytest.mark.parametrize("memory", [4e9, 8e9, 11e9])
    @pytest.mark.parametrize("seed", range(5))
    def test_out_of_time_a_plan_fits_the_memory_or_nothing_is_ruled_out(self, memory: float, seed: int) -> None:
        problem = draw_problem(seed, BOTH, memory=memory)
        result = solve(problem, nodes=0)
        if result.plan is None:
            assert result.status == "stopped"
        else:
            assert result.plan.check_valid(problem) == (True, "")
            assert result.cost.memory_bytes <= memory


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        ((), "no axis"),
        ((MeshAxis("rows", 2),), "rows=2"),
        ((MeshAxis("data", 2), MeshAxis("data", 2)), "data=2, data=2"),
        ((MeshAxis("data", 1),), "1 device.* along the axis data"),
        ((MeshAxis("data", 4), MeshAxis("model", 4)), "16 devices, cluster cluster has 8"),
    ],
)
def test_a_mesh_that_the_cluster_has_not_is_refused(mesh: Mesh, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        draw_problem(0, mesh)


def test_a_watcher_is_told_what_is_solved() -> None:
    news: list[Progress] = []
    ShardingMilpPlanner().solve(draw_problem(0, BOTH, "memory"), watch=news.append)
    assert [progress.done for progress in news] == [0, 1, 2]


def test_an_option_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(BadInput, match="has no option 'episodes'"):
        make_planner("milp", kind="sharding", episodes=3)


@pytest.mark.parametrize("planner", ["milp", "agent"])
def test_a_deadline_holds_and_leaves_a_valid_plan_with_an_honest_bound(
    planner: str, hard_sharding_problem: ShardingProblem
) -> None:
    if planner == "agent":
        pytest.importorskip("torch")
    problem = hard_sharding_problem
    maker = make_planner(planner, kind="sharding")
    begun = time.process_time()
    result = maker.solve(problem, deadline=Deadline(0.5, time.process_time))
    assert time.process_time() - begun <= 5.0  # room for a busy machine
    assert result.required_plan().check_valid(problem) == (True, "")
    assert result.bound is not None
    assert result.bound.value >= result.cost.partitioned
    assert result.status == "feasible"


# --- published plans ---------------------------------------------------------------------------------------------


@cache
def optimum(model: str, mesh: Mesh, objective: Objective, topo: str, rules: str) -> Solved:
    """The proven best plan of a workload."""
    pytest.importorskip("jax")
    from automap_models.formats.hardware_yaml import read_device

    classes, work = traced(model, rules)
    cluster, launch_s = read_cluster(topo), read_device("v100").constants.launch_s
    problem = ShardingProblem(model, classes, cluster, mesh, objective, work, rules, launch_s)
    result = solve(problem)
    assert result.required_plan().check_valid(problem) == (True, "")
    assert result.bound is not None and result.bound.proof == "exact"
    return result


@cache
def traced(model: str, rules: str) -> tuple[ShardingClasses, ShardingWork]:
    """The classes and the work of a workload under a rule set."""
    from automap_models.formats.hardware_yaml import read_device
    from automap_models.hlo.dimension_classes import sharding_classes
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.hlo.sharding_work import sharding_work, step_times
    from automap_models.hlo.shardy import sharding_rules
    from automap_models.hlo.step_classes import StepClasses

    module = module_of(model)
    sharding = sharding_classes(module, sharding_rules(module), read_rule_set(rules))
    graph = instruction_graph(module)
    return sharding.classes, sharding_work(StepClasses(module, sharding, graph), step_times(graph, read_device("v100")))


@cache
def module_of(model: str) -> Any:
    from automap_models import workloads
    from automap_models.hlo.adapter import trace

    return trace(workloads.build(model))


def published(model: str, axis_size: int, axis: str = "model") -> ShardingPlan:
    """The plan that partitions the most variables under the paper's rules along one axis of cluster C."""
    return optimum(model, (MeshAxis(axis, axis_size),), "count", "C", "paper").required_plan()


def partitioned(plan: ShardingPlan, axis: int = 0) -> dict[str, int]:
    return {v.name.partition("/")[2]: dim for v, dim in plan.candidates(axis).items() if dim >= 0}


TABLE_4 = {"fc1/kernel": 1, "fc1/bias": 0, "fc2/kernel": 0, "predictions/kernel": 1, "predictions/bias": 0}


def test_vgg19_on_8_is_table_4() -> None:
    assert partitioned(published("vgg19", 8)) == TABLE_4
    assert len(published("vgg19", 8).candidates()) == 38  # hlo.md and Table 5


def test_vgg19_data_parallel_is_table_6() -> None:
    assert partitioned(published("vgg19", 8, "data")) == {"images": 0, "labels": 0}


def table_3(name: str) -> int:
    """The dimension that Table 3 of Auto-MAP partitions, by T5's published roles."""
    *_, parent, leaf = name.split("/")
    if leaf == "scale":
        return -1
    if leaf == "embedding":
        return 1 if parent == "relative_bias" else 0  # the table does not list the relative bias: its heads
    return {"q": 1, "k": 1, "v": 1, "o": 0, "wi": 1, "wo": 0}[parent]


def test_t5_base_is_table_3_and_table_6() -> None:
    plan = published("t5_base", 4)
    assert {v.name: dim for v, dim in plan.candidates().items()} == {v.name: table_3(v.name) for v in plan.candidates()}
    assert plan.partitioned() == 195
    assert published("t5_base", 8).partitioned() == 51  # 12 heads do not divide: wi, wo, embedding, relative biases
    assert partitioned(published("t5_base", 8, "data")) == {"ids": 0, "decoder_ids": 0, "labels": 0}


def test_t5_11b_on_32_is_table_3() -> None:
    plan = published("t5_11b", 32)
    assert {v.name: dim for v, dim in plan.candidates().items()} == {v.name: table_3(v.name) for v in plan.candidates()}
    assert plan.partitioned() == 387


def test_every_moment_of_adam_follows_its_parameter() -> None:
    dims = {variable.name: dim for variable, dim in published("vgg19", 8).by_variable().items()}
    moments = {name: dim for name, dim in dims.items() if "/mu/" in name or "/nu/" in name}
    assert len(moments) == 2 * 38
    for name, dim in moments.items():
        assert dim == dims["params/" + name.partition("/mu/" if "/mu/" in name else "/nu/")[2]]


def test_a_batch_that_the_axis_does_not_divide_is_refused() -> None:
    with pytest.raises(BadInput, match=r"by 24 .* by a divisor of 32"):
        published("vgg19", 24, "data")


def test_vgg19_is_one_weird_trick_where_the_model_axis_crosses_nodes() -> None:
    """Krizhevsky, arXiv 1404.5997: data-parallel convolutions, partitioned dense layers."""
    mesh = (MeshAxis("model", 2), MeshAxis("data", 8))
    plan = optimum("vgg19", mesh, "time", "A", "shardy").required_plan()
    assert partitioned(plan, 1) == {"images": 0, "labels": 0}
    assert partitioned(plan, 0) == TABLE_4
