"""The compiled beam search: lengths of routes are those of the cost model, and what it finds is as long as it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.staged.beam_kernel import route_length_s, shortest_around
from automap_models.planners.staged.local_search import even_places, powers_of_two
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import plain_stages
from automap_models.planners.staged.stage_arrays import C

DrawProblems = Callable[..., list[StagedProblem]]


def cost_model_s(problem: StagedProblem, boundary: IntArray, route: IntArray) -> float:
    """L of a route; inf where it does not fit."""
    cuts, devices = tuple((boundary[route[0, 1:-1]] - 1).tolist()), tuple(route[1, 1:-1].tolist())
    cost = plan_cost(problem, StagedPlan(cuts, devices, problem.micro_batches, "route"))
    return cost.length_s if cost.feasible else np.inf


def test_lengths_of_routes_are_those_of_the_cost_model(random_problems: DrawProblems) -> None:
    fitting = 0
    for problem in random_problems(31, 30, granularity=64, stages=(2, 5), memory=(1.2, 20.0)):
        stages, boundary = plain_stages(problem)
        route = even_places(stages.sums[C], stages.stages, stages.devices)
        expected = cost_model_s(problem, boundary, route)
        assert route_length_s(stages, route) == pytest.approx(expected, rel=1e-9)
        fitting += int(np.isfinite(expected))
    assert fitting > 5


def test_a_route_that_does_not_fit_is_infinitely_long(random_problems: DrawProblems) -> None:
    problem = random_problems(32, 1, granularity=64, stages=(3, 4))[0]
    tiny = replace(problem, cluster=replace(problem.cluster, memory=1.0))
    stages, _ = plain_stages(tiny)
    assert route_length_s(stages, even_places(stages.sums[C], stages.stages, stages.devices)) == np.inf


def test_what_is_found_is_shorter_and_as_long_as_it_says(random_problems: DrawProblems) -> None:
    """From even stages by powers of two, with the even route's own length as limit, and without any."""
    shorter = 0
    for problem in random_problems(33, 20, granularity=64, stages=(2, 5), memory=(4.0, 20.0)):
        stages, boundary = plain_stages(problem)
        even = even_places(stages.sums[C], stages.stages, stages.devices)
        none = np.zeros((0, *even.shape), dtype=np.int64)
        by_boundary, by_device = powers_of_two((stages.sums.shape[1] - 1) // 4), powers_of_two(stages.devices // 4)
        even_s = route_length_s(stages, even)
        for limit_s in (even_s, np.inf):
            length_s, route = shortest_around(stages, even, limit_s, none, by_boundary, by_device)
            if np.isfinite(length_s):
                assert length_s == pytest.approx(cost_model_s(problem, boundary, route), rel=1e-9)
                assert length_s <= even_s * (1 + 1e-9)
                shorter += 1
    assert shorter > 20
