"""Shardings of a stage: no legal choice is faster or smaller, and one stage of them costs what a sharding plan does."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

from ideal_devices import ideal_device

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.sharding import UNUSED
from automap_models.core.sharding_classes import ShardingWork
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.sharding import ShardingPrice, axis_costs, sharding_price
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.hlo.adapter import trace
from automap_models.hlo.clock import clock_times
from automap_models.hlo.dimension_classes import ModuleSharding, sharding_classes
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.module import MlirModule
from automap_models.hlo.profile import profile_from_graph
from automap_models.hlo.rule_sets import RuleSet
from automap_models.hlo.sharding_work import sharding_work, step_times
from automap_models.hlo.shardy import sharding_rules
from automap_models.hlo.step import TrainingStep
from automap_models.hlo.step_classes import StepClasses
from automap_models.planners.staged.stage_shardings import degrees, stage_shardings
from automap_models.workloads import build
from automap_models.workloads.convolutional import VggConfig
from automap_models.workloads.sizes import T5Config
from automap_models.workloads.training import training_step

DEVICE = ideal_device("slow", {"float32": 1e11}, 1e11, 1e10, launch_s=1e-6)
CLUSTER = Cluster(2, 4, intra=1e9, inter=1e8, memory=1.0, name="small")  # of whose memory nobody asks
CONFIGS = {
    "t5": (T5Config(width=16, heads=4, head_width=8, feed_forward=64, layers=1, vocabulary=64), (8, 16)),
    "vgg": (VggConfig(blocks=((16, 1), (32, 2)), width=256, classes=16, image=16), (32,)),
}


class Step(NamedTuple):
    """What `stage_shardings` takes of a step."""

    module: MlirModule
    sharding: ModuleSharding
    graph: InstructionGraph
    profile: Profile


def prepared(step: TrainingStep, device: Device) -> Step:
    module = trace(step)
    sharding = sharding_classes(module, sharding_rules(module), RuleSet("shardy", ""))
    graph = instruction_graph(module)
    return Step(module, sharding, graph, profile_from_graph(graph, clock_times(graph, device)))


@cache
def small(name: str) -> Step:
    architecture, labels = CONFIGS[name]
    return prepared(training_step(name, architecture, labels, "float32"), DEVICE)


def microbatch_work(step: Step, device: Device) -> ShardingWork:
    """The work of one micro-batch: of the whole step without its update."""
    times = step_times(step.graph, device).in_microbatch(step.graph)
    return sharding_work(StepClasses(step.module, step.sharding, step.graph), times)


def price(step: Step, device: Device, cluster: Cluster, classes: tuple[int, ...], degree: int) -> ShardingPrice:
    work = microbatch_work(step, device)
    axis_of = np.full(len(work), UNUSED)
    axis_of[list(classes)] = 0
    return sharding_price(work, axis_costs(cluster, [degree], device.constants.launch_s), axis_of)


def price_of(step: Step, device: Device, cluster: Cluster, sharding: ShardedProfile) -> ShardingPrice:
    """The price of the classes that hold a sharding's dimensions."""
    dims = [sharding.dims.get(variable.name, -1) for variable in step.sharding.classes.variables]
    return price(step, device, cluster, tuple(step.sharding.classes.sharded(dims).tolist()), sharding.degree)


def every_choice(step: Step, degree: int) -> list[tuple[int, ...]]:
    """All sets of classes of parameters that one axis can shard together."""
    classes = step.sharding.classes
    kinds = np.array([variable.kind == "parameter" for variable in classes.variables])
    of_parameters = np.unique(classes.dim_classes[kinds[classes.dim_variables]])
    live = [c for c in of_parameters.tolist() if classes.divisors[c] % degree == 0]
    return [
        chosen
        for size in range(len(live) + 1)
        for chosen in combinations(live, size)
        if not classes.adjacency[np.ix_(chosen, chosen)].any()
    ]


@pytest.mark.parametrize("degree", [2, 4])
def test_no_choice_is_faster_than_the_first_or_smaller_than_the_last_or_better_than_any(degree: int) -> None:
    step = small("vgg")
    work = microbatch_work(step, DEVICE)
    axes = axis_costs(CLUSTER, [degree], DEVICE.constants.launch_s)
    prices = []
    for chosen in every_choice(step, degree):
        axis_of = np.full(len(work), UNUSED)
        axis_of[list(chosen)] = 0
        prices.append(sharding_price(work, axes, axis_of))
    offered = [
        price_of(step, DEVICE, CLUSTER, sharding)
        for sharding in stage_shardings(*step, DEVICE, CLUSTER)
        if sharding.degree == degree
    ]
    assert len(prices) > 10 and offered
    assert offered[0].time_s == pytest.approx(min(price.time_s for price in prices))
    assert offered[-1].memory_bytes == pytest.approx(min(price.memory_bytes for price in prices), rel=1.1e-3)
    for price in offered:
        assert not any(
            other.time_s < price.time_s * (1 - 1e-9) and other.memory_bytes <= price.memory_bytes for other in prices
        )
    for faster, smaller in pairwise(offered):
        assert faster.time_s < smaller.time_s and faster.memory_bytes > smaller.memory_bytes


@pytest.mark.parametrize("name", CONFIGS)
def test_one_stage_on_all_devices_costs_what_the_sharding_plan_does(name: str) -> None:
    """Two models of one step, made apart: sums over instructions here, over classes in cost.sharding."""
    step = small(name)
    shardings = stage_shardings(*step, DEVICE, CLUSTER, across_nodes=True)
    assert {sharding.degree for sharding in shardings} == {2, 4, 8}
    for sharding in shardings:
        nodes = max(1, sharding.degree // 4)
        cluster = replace(CLUSTER, nodes=nodes, devices_per_node=sharding.degree // nodes, memory=1e12)
        problem = StagedProblem(
            step.profile,
            cluster,
            stages=1,
            micro_batches=1,
            state_factor=2.0,
            shardings=(sharding,),
            launch_s=DEVICE.constants.launch_s,
        )
        plan = StagedPlan((), (), 1, "test", shardings=(1,))
        assert plan.check_valid(problem) == (True, "")
        cost, expected = plan_cost(problem, plan), price_of(step, DEVICE, cluster, sharding)
        assert cost.length_s - cost.compute_s[0] == pytest.approx(sum(expected.all_reduce_s))
        assert cost.compute_s[0] >= expected.compute_s * (1 - 1e-9)  # which says t times less whatever the size
        variables = step.sharding.classes.variables
        others = [
            v.nbytes / (sharding.degree if v.name in sharding.dims else 1) for v in variables if v.kind != "parameter"
        ]
        assert cost.memory_bytes[0] + sum(others) == pytest.approx(expected.memory_bytes)


def test_names_tell_the_degree_and_what_is_least() -> None:
    shardings = stage_shardings(*small("vgg"), DEVICE, CLUSTER, across_nodes=True)
    names = [sharding.name for sharding in shardings]
    assert len(set(names)) == len(names)
    for sharding in shardings:
        suffix = r"-way(, least time|, less memory( \d)?|, least memory)?"
        assert re.fullmatch(f"{sharding.degree}{suffix}", sharding.name)
    assert [sharding.degree for sharding in shardings] == sorted(sharding.degree for sharding in shardings)


@pytest.mark.parametrize(
    ("nodes", "per_node", "inside", "beyond"),
    [
        (2, 8, (2, 4, 8), (16,)),
        (3, 8, (2, 4, 8), (24,)),
        (4, 8, (2, 4, 8), (16, 32)),
        (6, 6, (2,), (12, 18, 36)),
        (1, 1, (), ()),
        (2, 1, (), (2,)),
    ],
)
def test_degrees_divide_a_node_or_are_nodes_that_divide_the_cluster(
    nodes: int, per_node: int, inside: tuple[int, ...], beyond: tuple[int, ...]
) -> None:
    cluster = Cluster(nodes, per_node, 1e9, 1e9, 1e9)
    assert degrees(cluster) == inside
    assert degrees(cluster, across_nodes=True) == inside + beyond


def test_where_nothing_divides_there_is_no_sharding() -> None:
    odd = VggConfig(blocks=((3, 1), (5, 1)), width=15, classes=7, image=4)
    step = prepared(training_step("odd", odd, (4,), "float32"), DEVICE)
    assert stage_shardings(*step, DEVICE, CLUSTER, across_nodes=True) == ()


def test_a_sharding_divides_something_even_where_that_is_slower() -> None:
    """Between nodes so slow, every all-reduce takes longer than the whole step."""
    crawling = replace(CLUSTER, intra=1.0, inter=1.0)
    shardings = stage_shardings(*small("vgg"), DEVICE, crawling, across_nodes=True)
    assert shardings and all(
        sharding.dims and sharding.C.sum() < small("vgg").profile.C.sum() for sharding in shardings
    )


def test_times_of_another_making_are_divided_likewise() -> None:
    step = small("vgg")
    measured_s = 2 * clock_times(step.graph, DEVICE)
    profile = profile_from_graph(step.graph, measured_s)
    for sharding in stage_shardings(step.module, step.sharding, step.graph, profile, DEVICE, CLUSTER, measured_s):
        assert profile.C.sum() / sharding.degree < sharding.C.sum() < profile.C.sum()
    with pytest.raises(BadInput, match="other instructions or times"):
        stage_shardings(step.module, step.sharding, step.graph, step.profile, DEVICE, CLUSTER, measured_s)


def test_t5_base_is_megatrons_plan_as_far_as_its_twelve_heads_divide() -> None:
    """Shoeybi et al., arXiv 1909.08053; by 8 only the feed-forward layers and the vocabulary do not stay whole."""
    device, cluster = read_device("v100"), read_cluster("A")
    step = prepared(build("t5_base"), device)
    shardings = {sharding.name: sharding for sharding in stage_shardings(*step, device, cluster, across_nodes=True)}
    assert {"2-way", "4-way", "8-way"} <= set(shardings)
    for sharding in shardings.values():
        whole = price_of(step, device, cluster, sharding)
        assert sharding.C.sum() >= whole.compute_s  # as if quarters of products were as efficient
        assert sharding.reduced_fwd.sum() + sharding.reduced_bwd.sum() == pytest.approx(whole.activation_bytes[0])
        assert sharding.gradients.sum() == pytest.approx(whole.gradient_bytes[0])
    roles = {"q": 1, "k": 1, "v": 1, "o": 0, "wi": 1, "wo": 0}
    for name in ("2-way", "4-way"):
        for variable in step.sharding.classes.variables:
            *_, parent, leaf = variable.name.split("/")
            if variable.kind == "parameter" and parent in roles and leaf == "kernel":
                assert shardings[name].dims[variable.name] == roles[parent]
    # §3 of the paper: an all-reduce after attention and one after the feed-forward layer, a decoder's one more.
    activation = 4.0 * 16 * 512 * 768
    reduced = reduced_by_block(step.profile, shardings["4-way"].reduced_fwd)
    expected = {f"encoder/block_{i}": 2 for i in range(12)} | {f"decoder/block_{i}": 3 for i in range(12)}
    assert {block: nbytes / activation for block, nbytes in reduced.items() if "block" in block} == expected


def reduced_by_block(profile: Profile, nbytes: np.ndarray) -> Counter[str]:
    """Bytes by the first two names of a layer's path; layers without any are left out."""
    total: Counter[str] = Counter()
    for layer, amount in zip(profile.layers, nbytes.tolist(), strict=True):
        total["/".join(layer.split("/")[:2])] += amount
    return +total
