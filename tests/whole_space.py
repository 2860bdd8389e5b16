"""Small random problems that together leave every field of a strategy open, and all strategies of them.

models     a GPT; one of two kinds of blocks, as encoder and decoder; a mixture of experts
clusters   of one kind of nodes; of two kinds, with other links, speeds and memory, in one zone or two, in both orders
fields     fixed at random until there are few enough strategies to price all of them
memory     from just enough for the emptiest of a few strategies to enough for all, some of it reserved
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from gpt_work import amounts, gpt_work
from strategy_problems import DEVICE, divisors, drawn_runtime, on_grid, strategies

from automap_models.core.cluster import Cluster, NodeGroup, ZoneLink
from automap_models.core.estimate import Estimate
from automap_models.core.model_work import Amounts, Mark, ModelWork
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import Strategy
from automap_models.planners.strategies.planner import node_orders
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.strategy import StrategyPricing

MOST = 240
"""Strategies of a problem, for which all are priced in about a tenth of a second."""
EXPERTS = 4
VOCABULARY = 512
VALUES: dict[str, list[Any]] = {
    "tp": [1, 2],
    "cp": [1, 1, 2],
    "ep": [1, 2],
    "pp": [1, 2, 2, 2, 3, 4],
    "dp": [1, 2],
    "micro_batch": [1, 2],
    "schedule": list(SCHEDULES),
    "zero": [0, 1, 2, 3],
    "sequence_parallel": [False, True],
    "recompute": ["none", "selective", "full"],
    "vp": [1, 2, 2, 3],
}


def _joined(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(np.concatenate([one.values, other.values]), np.concatenate([one.marks, other.marks]))


@cache
def model_work(kind: str, layers: int, hidden: int, sequence: int) -> ModelWork:
    """A GPT, one whose later blocks are of another kind, or one whose blocks have experts.

    Args:
        kind: `gpt`, `series` or `experts`.
    """
    work = gpt_work(layers, hidden, 2, sequence=sequence, vocabulary=VOCABULARY)
    first, block, last = work.layers
    if kind == "series":
        other = replace(gpt_work(1, hidden, 4, sequence=sequence, vocabulary=VOCABULARY).layers[1], name="decoder")
        longer = replace(other, saved=_joined(other.saved, amounts((8.0 * sequence * hidden, int(Mark.TOKENS)))))
        of_first = layers // 2
        order = (0, *[1] * of_first, *[2] * (layers - of_first), 3)
        return replace(work, layers=(first, block, longer, last), order=order)
    if kind == "experts":
        of_experts = amounts((8.0 * EXPERTS * hidden**2, int(Mark.EXPERTS | Mark.TENSOR)))
        exchanged = amounts((4.0 * sequence * hidden, int(Mark.TOKENS)))
        block = replace(block, parameters=_joined(block.parameters, of_experts), exchanged=exchanged, copies=2.0)
        return replace(work, shape=replace(work.shape, experts=EXPERTS), layers=(first, block, last))
    return work


def _cluster(draw: np.random.Generator) -> Cluster:
    """One to four devices of a kind, or two to four of two kinds."""
    links = draw.choice([1e9, 1e10, 1e11], 2).tolist()
    if draw.uniform() < 0.3:
        per_node, nodes = int(draw.choice([1, 2])), int(draw.choice([1, 1, 2]))
        speeds = draw.choice([0.4, 0.7, 1.0], 2, replace=False)
        counts = (nodes, 1) if per_node == 1 else (1, 1)
        other = draw.spawn(1)[0]  # what is drawn after the links is the same whatever these are
        of_kinds = zip(counts, other.choice([1e9, 1e10, 1e11], (2, 2)).tolist(), speeds.tolist(), strict=True)
        groups = [NodeGroup(count, per_node, *of_kind, 1.0e12, speed=speed) for count, of_kind, speed in of_kinds]
        if other.uniform() < 0.5:
            between = ZoneLink(("near", "far"), float(other.choice([1e8, 1e9])), float(other.choice([0.0, 1e-4])))
            groups = [replace(group, zone=zone) for group, zone in zip(groups, between.zones, strict=True)]
            return Cluster.of_groups(groups, "two zones", zone_links=[between])
        return Cluster.of_groups(groups, "two kinds")
    devices = int(draw.choice([1, 2, 2, 3, 4, 4, 4]))
    per_node = int(draw.choice(divisors(devices)))
    return Cluster(devices // per_node, per_node, *links, 1.0e12)


def with_memory(cluster: Cluster, room: float, share: float) -> Cluster:
    """The same with so many bytes a device; those of the second kind of nodes have a share of it."""
    if len(cluster.groups) < 2:
        return replace(cluster, memory=room)
    shares = (1.0, share)
    groups = [replace(group, memory=room * of) for group, of in zip(cluster.groups, shares, strict=True)]
    return Cluster.of_groups(groups, cluster.name, zone_links=cluster.zone_links)


def _drawn(draw: np.random.Generator, groups: int) -> StrategyProblem | None:
    """A problem in which ZeRO divides within so many groups; None where it has no strategies, or too many of them."""
    kind = str(draw.choice(["gpt", "series", "experts"]))
    work = model_work(kind, int(draw.integers(1, 5)), int(draw.choice([64, 256])), int(draw.choice([32, 128])))
    cluster = _cluster(draw)
    names = draw.permutation(list(VALUES))[: int(draw.integers(3, 8))].tolist()
    fixed = {name: VALUES[name][int(draw.integers(len(VALUES[name])))] for name in names}
    fixed["dp_replicate"] = groups
    launch_s, overlap = float(draw.choice([0.0, 6e-6])), float(draw.choice([0.0, 0.3, 1.0]))
    problem = StrategyProblem(
        work=work,
        cluster=cluster,
        device=replace(DEVICE, step=replace(USUAL, launch_s=launch_s, overlap=overlap)),
        global_batch=int(draw.choice([2, 4, 6, 8])),
        fixed=fixed,
        runtime=drawn_runtime(draw),
    )
    everything = list(islice(strategies(problem), MOST + 1))
    if not 2 <= len(everything) <= MOST:
        return None
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    some = [everything[i] for i in draw.choice(len(everything), 3)]
    room = float(np.quantile([pricing.estimate(of).fullest[0] for of in some], draw.uniform())) * (1 + 1e-9)
    reserved: dict[int, float] = {}
    if draw.uniform() < 0.2:
        reserved = {int(draw.choice([0, -1])): float(draw.uniform(0.0, 0.05)) * room}
    cluster = with_memory(cluster, room, float(draw.uniform(0.9, 1.1)))
    return replace(problem, cluster=cluster, rank_reserve_bytes=reserved)


def whole_space_problem(seed: int) -> StrategyProblem:
    """The first draw of a seed that has strategies, and few enough."""
    draw = np.random.default_rng([seed, 14])
    groups = int(np.random.default_rng([seed, 15]).choice([1, 1, 2]))
    while True:
        problem = _drawn(draw, groups)
        if problem is not None:
            return problem


def estimates(problem: StrategyProblem) -> Iterator[tuple[Strategy, Estimate]]:
    """All strategies of the grid that fit with their prices, in all orders of the cluster's nodes."""
    for order in node_orders(problem.cluster):
        of_order = replace(problem, cluster=order)
        pricing = StrategyPricing(problem.work, order, problem.device, problem.runtime)
        for strategy in (of for of in strategies(of_order) if on_grid(problem, of)):
            estimate = pricing.estimate(strategy)
            if of_order.fits(estimate):
                yield strategy, estimate
