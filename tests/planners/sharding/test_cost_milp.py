"""The cheapest plan against every choice of classes, and what it is for transformers and for VGG."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import Mesh, MeshAxis
from automap_models.core.priced_sharding import PricedShardingPlan, PricedShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.core.sharding_work import ShardingWork
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import PlannerOptions
from automap_models.planners.sharding.cost_milp import CheapestPlanner, price_of

MODEL = (MeshAxis("model", 4),)
BOTH = (MeshAxis("data", 2), MeshAxis("model", 4))


def draw_problem(seed: int, mesh: Mesh, objective: str = "time", memory: float = 1e12) -> PricedShardingProblem:
    """Six classes of parameters and inputs, any pairs of them in conflict, and instructions with up to three."""
    random = np.random.default_rng(seed)
    k = 6
    pairs = [pair for pair in combinations(range(k), 2) if random.random() < 0.3]
    kinds = ["parameter", "input", *random.choice(["parameter", "input"], k - 2)]
    variables = tuple(Variable(f"v{i}", (8,), "f32", 32.0, kind) for i, kind in enumerate(kinds))
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
    work = ShardingWork(12.0, 0.1, compute, 12e9, held, activations, gradients, starts)
    cluster = Cluster(2, 4, intra=5e9, inter=1e9, memory=memory)
    return PricedShardingProblem("drawn", classes, work, cluster, mesh, 1e-2, objective, "shardy")  # type: ignore[arg-type]


def choices(problem: PricedShardingProblem) -> Iterator[np.ndarray]:
    """Every legal axis of each class."""
    conflicts = problem.classes.conflicts.tolist()
    options = [[-1, *np.flatnonzero(problem.allowed[:, c]).tolist()] for c in range(len(problem.classes))]
    for choice in product(*options):
        if all(choice[a] != choice[b] or choice[a] < 0 for a, b in conflicts):
            yield np.array(choice)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("mesh", [MODEL, BOTH], ids=["one axis", "two axes"])
def test_no_legal_choice_is_faster(seed: int, mesh: Mesh) -> None:
    problem = draw_problem(seed, mesh)
    plan = CheapestPlanner().plan(problem)
    assert plan.check_valid(problem) == (True, "")
    reached = price_of(problem, plan.axis_of(problem)).time_s
    assert reached == pytest.approx(min(price_of(problem, choice).time_s for choice in choices(problem)), rel=1e-9)
    assert plan.optimality is not None
    assert (plan.optimality.bound, plan.optimality.proof) == (pytest.approx(reached), "exact")


@pytest.mark.parametrize("seed", range(10))
def test_none_takes_less_memory_and_of_those_none_is_faster(seed: int) -> None:
    problem = draw_problem(seed, BOTH, "memory")
    prices = [price_of(problem, choice) for choice in choices(problem)]
    least = min(price.memory_bytes for price in prices)
    found = price_of(problem, CheapestPlanner().plan(problem).axis_of(problem))
    assert found.memory_bytes == pytest.approx(least, rel=1e-6)
    fastest = min(price.time_s for price in prices if price.memory_bytes <= least * (1 + 1e-9))
    assert found.time_s <= fastest * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_the_fastest_plan_that_fits_the_memory_is_taken(seed: int) -> None:
    unlimited = draw_problem(seed, BOTH)
    held = sorted({price_of(unlimited, choice).memory_bytes for choice in choices(unlimited)})
    limit = float(np.mean(held[:2])) if len(held) > 1 else held[0] + 1
    problem = draw_problem(seed, BOTH, memory=limit)
    fitting = [p.time_s for p in (price_of(problem, choice) for choice in choices(problem)) if p.memory_bytes <= limit]
    found = price_of(problem, CheapestPlanner().plan(problem).axis_of(problem))
    assert found.memory_bytes <= limit
    assert found.time_s == pytest.approx(min(fitting), rel=1e-9)


def test_what_fits_nowhere_says_how_much_it_needs() -> None:
    with pytest.raises(Infeasible, match=r"every plan needs .* GB or more on each device, cluster .* has 0\.0 GB"):
        CheapestPlanner().plan(draw_problem(0, BOTH, memory=1.0))


def test_without_the_time_to_prove_it_the_bound_is_honest() -> None:
    problem = draw_problem(1, BOTH)
    try:
        plan = CheapestPlanner(PlannerOptions(time_limit_s=1e-9)).plan(problem)
    except Infeasible:  # not even a first solution
        return
    assert plan.optimality is not None
    assert plan.optimality.bound <= min(price_of(problem, choice).time_s for choice in choices(problem)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ((), "no axis"),
        ((MeshAxis("rows", 2),), "rows=2"),
        ((MeshAxis("data", 2), MeshAxis("data", 2)), "data=2, data=2"),
        ((MeshAxis("data", 1),), "1 device.* along the axis data"),
        ((MeshAxis("data", 4), MeshAxis("model", 4)), "16 devices, cluster cluster has 8"),
    ],
)
def test_a_mesh_that_the_cluster_has_not_is_refused(mesh: Mesh, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        draw_problem(0, mesh)


@cache
def cheapest(model: str, mesh: Mesh, topo: str, batch: int | None = None) -> PricedShardingPlan:
    """The fastest plan of a workload of which everything is allowed that propagates."""
    pytest.importorskip("jax")
    from automap_models import workloads
    from automap_models.formats.cluster_yaml import read_cluster
    from automap_models.formats.device_yaml import read_device
    from automap_models.hlo.adapter import trace
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.hlo.sharding_classes import sharding_classes
    from automap_models.hlo.sharding_work import sharding_work
    from automap_models.hlo.shardy import sharding_rules

    module = trace(workloads.build(model, batch=batch))
    sharding, device = sharding_classes(module, sharding_rules(module), read_rule_set("shardy")), read_device("v100")
    work = sharding_work(module, sharding, instruction_graph(module), device)
    problem = PricedShardingProblem(model, sharding.classes, work, read_cluster(topo), mesh, device.launch_s)
    plan = CheapestPlanner().plan(problem)
    assert plan.check_valid(problem) == (True, "")
    assert plan.optimality is not None and plan.optimality.proof == "exact"
    return plan


def partitioned(plan: PricedShardingPlan, axis: int) -> dict[str, int]:
    dims = plan.plans[axis].candidates
    return {variable.name.partition("/")[2]: dim for variable, dim in dims.items() if dim >= 0}


def test_vgg19_is_one_weird_trick_where_the_model_axis_crosses_nodes() -> None:
    """Krizhevsky, arXiv 1404.5997: data-parallel convolutions, partitioned dense layers."""
    plan = cheapest("vgg19", (MeshAxis("model", 2), MeshAxis("data", 8)), "A")
    assert partitioned(plan, 1) == {"images": 0, "labels": 0}
    assert partitioned(plan, 0) == {
        "fc1/kernel": 1,
        "fc1/bias": 0,
        "fc2/kernel": 0,
        "predictions/kernel": 1,
        "predictions/bias": 0,
    }


@pytest.mark.slow
def test_t5_base_is_megatrons_plan_with_the_batch_along_the_data_axis() -> None:
    """Shoeybi et al., arXiv 1909.08053: columns then rows, heads, the vocabulary of the embedding."""
    plan = cheapest("t5_base", BOTH, "A")
    assert partitioned(plan, 0) == {"ids": 0, "decoder_ids": 0, "labels": 0}
    roles = {"q": 1, "k": 1, "v": 1, "o": 0, "wi": 1, "wo": 0, "relative_bias": 1, "embedding": 0}
    for variable, dim in plan.plans[1].candidates.items():
        *_, parent, leaf = variable.name.split("/")
        assert dim == (-1 if leaf == "scale" else roles.get(parent, roles.get(leaf)))
