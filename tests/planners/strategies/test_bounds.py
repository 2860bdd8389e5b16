"""Bounds of subspaces, against the simulated steps of their strategies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from draw_counts import counts
from scipy.optimize import linprog
from strategy_problems import random_problem, strategies
from whole_space import estimates, whole_space_problem

from automap_models.core.framework import Degrees
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.passes import build_schedule
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.planners.strategies.bounds import closed_bound, degrees_bound, least_in_flight, least_time
from automap_models.planners.strategies.chain_bounds import usual_chains
from automap_models.planners.strategies.grid import Grid
from automap_models.planners.strategies.problem import SharedCosts, StrategyProblem
from automap_models.planners.strategies.relaxation import Relaxation
from automap_models.planners.strategies.subspace_costs import RankCosts, SubspaceCosts
from automap_models.simulate.strategy import StrategyPricing


def test_no_strategy_that_fits_is_shorter_than_the_closed_bounds_of_its_family() -> None:
    compared, bubbles = 0, 0
    for seed in range(2000, 2013):
        problem = random_problem(seed)
        everything, draw = list(strategies(problem)), np.random.default_rng(seed)
        pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
        recompute = problem.recompute
        for index in draw.permutation(len(everything))[:12].tolist():
            strategy = everything[index]
            estimate = pricing.estimate(strategy)
            if not problem.fits(estimate):
                continue
            ranks = RankCosts(pricing, strategy)
            family = SubspaceCosts(ranks, strategy)
            held = least_in_flight(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
            of_chains = Relaxation(family, recompute).solve(0, float("inf")).bound_s
            shared = closed_bound(ranks, recompute, held, family)
            assert max(of_chains, shared) <= estimate.step_s * (1 + 1e-9), f"problem {seed}, {strategy}"
            assert closed_bound(ranks, recompute, held, family, enough_s=0.9 * shared) >= 0.9 * shared * (1 - 1e-9)
            compared += 1
            bubbles += of_chains > shared * (1 + 1e-6)
    assert compared >= 20
    assert bubbles >= 2, "the bubble never made a difference"


def test_ranks_hold_at_least_what_the_emptiest_of_their_virtual_stages_holds_at_some_moment() -> None:
    for name, ranks, micro_batches, vp in product(SCHEDULES, (1, 2, 3, 5, 8), (1, 2, 3, 6, 10, 24), (1, 2, 3)):
        with suppress(BadInput):
            moments = [of for _, of in build_schedule(name, ranks, micro_batches, vp).fullest]
            emptiest = np.array([of[:, 0].min(axis=1).max() for of in moments])
            assert (least_in_flight(name, ranks, micro_batches, vp) <= emptiest).all(), (name, ranks, micro_batches, vp)
    assert least_in_flight("zb-v", 4, 16, 2).tolist() == [1, 2, 3, 4]


def test_the_longest_chain_of_equal_stages_has_the_bubble_of_1f1b() -> None:
    """(M + S - 1) passes of a stage where M would be its own (2104.04473, section 2.2)."""
    assert usual_chains("1f1b", 4, 8, 1).passes.sum(axis=(1, 2)).max() == 3 * (8 + 4 - 1)


def test_zero_2_takes_as_long_as_zero_1_and_holds_no_more() -> None:
    """So the search leaves ZeRO-1 out, and names it where it fits as well."""
    compared = 0
    for seed in range(2000, 2008):
        problem = random_problem(seed)
        pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
        for strategy in list(strategies(problem))[:40:7]:
            one, two = (pricing.estimate(replace(strategy, zero=zero)) for zero in (1, 2))
            assert one.step_s == two.step_s
            assert all(a.total >= b.total for a, b in zip(one.memory, two.memory, strict=True))
            compared += 1
    assert compared >= 8


def _bounds(problem: StrategyProblem, strategy: Strategy, high_s: float) -> dict[str, float]:
    """All bounds of a strategy's set of degrees, ranks and subspace by name."""
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
    recompute = problem.recompute
    reserve = problem.reserve(strategy.pp)
    ranks = RankCosts(pricing, strategy)
    family = SubspaceCosts(ranks, strategy, reserve)
    held = least_in_flight(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    relaxation, grid = Relaxation(family, recompute), Grid(problem)
    division = Degrees(*(getattr(strategy, name) for name in Degrees._fields))
    return {
        "division": degrees_bound(grid.costs(SharedCosts(pricing, {}), division, grid.zeros(division)[0]), recompute),
        "ranks": closed_bound(ranks, recompute, np.minimum(held, 1.0), reserve=reserve),
        "family": closed_bound(ranks, recompute, held, family),
        "few chains": relaxation.solve(0, float("inf")).bound_s,
        "more chains": relaxation.solve(4, float("inf")).bound_s,
        "whole blocks": relaxation.integer(100),
        "whole blocks, as far as is enough": relaxation.integer(100, 1.05 * high_s),
    }


def _bounds_of(seeds: Iterable[int]) -> Counter[str]:
    """How often each bound was compared with strategies that fit, and how often it was within 5 % of one."""
    counted: Counter[str] = Counter()
    for seed in seeds:
        problem, draw = whole_space_problem(seed), np.random.default_rng(seed)
        given = [(of, e) for of, e in estimates(problem) if e.cluster == problem.cluster.name]
        for index in draw.permutation(len(given))[:3].tolist():
            strategy, _ = given[index]
            pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime)
            estimate = pricing.estimate(strategy)
            if not problem.fits(estimate):
                continue
            for name, bound_s in _bounds(problem, strategy, estimate.step_s).items():
                assert bound_s <= estimate.step_s * (1 + 1e-9), f"problem {seed}, {name} of {strategy}"
                counted[name] += 1
                counted[f"{name}, near"] += bound_s >= 0.95 * estimate.step_s
    return counted


OF_DIVISIONS = ("division", "ranks")
BOUNDS = (*OF_DIVISIONS, "family", "few chains", "more chains", "whole blocks")


@pytest.mark.parametrize("draws", counts(8, 40, 1000))
def test_no_bound_is_above_a_simulated_step_of_any_model_on_any_cluster(draws: int) -> None:
    counted = _bounds_of(range(9000, 9000 + draws))
    assert all(counted[name] for name in BOUNDS)
    assert all(counted[f"{name}, near"] for name in BOUNDS if name not in OF_DIVISIONS)


def work_in(
    seconds: float, times: FloatArray, held: FloatArray, work: FloatArray, spent: FloatArray, room: FloatArray
) -> FloatArray:
    """[S] work that ranks do in so many seconds, by linear programming; arguments as of `least_time`."""
    result = np.zeros(len(spent))
    for rank in np.flatnonzero(seconds >= spent):
        rows, limits = np.stack([times[rank], held[rank]]), [seconds - spent[rank], room[rank]]
        result[rank] = -linprog(-work, A_ub=rows, b_ub=limits, method="highs").fun
    return result * (1 + 1e-7)


@pytest.mark.parametrize("draws", counts(40, 120, 4000))
def test_the_least_time_is_the_one_in_which_linear_programs_do_all_work(draws: int) -> None:
    """Of ranks that are alike and ranks that are not, with and without whole blocks, room for all or for little."""
    kinds: Counter[str] = Counter()
    for seed in range(draws):
        draw = np.random.default_rng(seed)
        ranks, columns = int(draw.integers(1, 5)), int(draw.integers(1, 6))
        rows = 1 if draw.uniform() < 0.5 else ranks
        times, held = (np.tile(draw.uniform(0.1, 1.0, (rows, columns)), (ranks // rows, 1)) for _ in range(2))
        work = draw.uniform(0.5, 1.0, columns)
        unit = 0.0 if draw.uniform() < 0.5 else float(work[0])  # of blocks that are all alike
        work = np.full(columns, unit) if unit else work
        spent, room = draw.uniform(0.0, 0.2, ranks), draw.uniform(0.0, 4.0, ranks)
        whole = float(draw.integers(1, 3 * ranks) * unit) if unit else float(draw.uniform(0.5, 2.0) * ranks)

        def done(seconds: float, arrays: tuple[FloatArray, ...], unit: float) -> float:
            most = work_in(seconds, *arrays)
            return float((np.floor(most / unit) * unit * (1 + 1e-7) if unit else most).sum())

        arrays = (times, held, work, spent, room)
        least_s = least_time(times, held, work, spent, room, whole, unit, float("inf"))
        if np.isinf(least_s):
            assert done(1e3, arrays, unit) < whole
            kinds["infeasible"] += 1
            continue
        assert done(least_s + 1e-5, arrays, unit) >= whole
        assert least_s <= spent.max() + 1e-5 or done(least_s - 1e-5, arrays, unit) < whole
        enough_s = 0.9 * least_s
        known_s = least_time(times, held, work, spent, room, whole, unit, enough_s)
        shortest_s = enough_s if known_s <= enough_s else spent.max()  # by what is spent anyway more may be known
        assert known_s == pytest.approx(shortest_s, rel=1e-5)
        kinds["whole pieces" if unit else "any pieces"] += 1
    assert len(kinds) == 3
