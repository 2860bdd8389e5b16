"""The search of strategies over its whole space: every field open somewhere, on all kinds of models and clusters."""

from __future__ import annotations

from collections import Counter

import pytest
from draw_counts import parts
from strategy_problems import EARLY, TO_THE_END, assert_least
from whole_space import VALUES, estimates, whole_space_problem

from automap_models.planners.strategies.planner import StrategiesPlanner

FAST, ALL, PARTS = 16, 1000, 20


def _agrees(seed: int) -> Counter[str]:
    """What a problem was of; fails where the search's plan or bound is not that of all strategies."""
    problem = whole_space_problem(seed)
    priced = sorted(((estimate.step_s, i, of) for i, (of, estimate) in enumerate(estimates(problem))))
    if not priced:
        result, early = (StrategiesPlanner(config).solve(problem) for config in (TO_THE_END, EARLY))
        assert result.status == "infeasible" and early.status in ("infeasible", "stopped"), f"problem {seed}"
        return Counter(["nothing fits"])
    best, (least_s, *_) = priced[0][2], priced[0]
    assert_least(problem, least_s, f"problem {seed}: {best}")
    kinds = {kind for kind, _ in best.stage_recompute(problem.work.shape)}
    traits = {
        "mixed cluster": len(problem.cluster.groups) > 1,
        "experts": problem.work.shape.experts is not None,
        "experts divided": best.ep > 1,
        "context divided": best.cp > 1,
        "operators divided": best.tp > 1,
        "sequence parallel": best.sequence_parallel,
        "two series": len(problem.work.layers) > 3,
        "virtual stages": best.vp > 1,
        "several kinds of recomputation": len(kinds) > 1,
        "reserve": bool(problem.rank_reserve_bytes),
        f"ZeRO-{best.zero}": True,
        f"schedule {best.schedule}": best.pp > 1,
    }
    opened = [f"{name} open" for name in VALUES if name not in problem.fixed]
    return Counter([*(name for name, holds in traits.items() if holds), *opened])


def test_plans_and_bounds_are_those_of_all_strategies() -> None:
    seen = sum((_agrees(seed) for seed in range(FAST)), Counter[str]())
    assert all(seen[f"{name} open"] for name in VALUES)


@pytest.mark.parametrize("part", parts(1, of=PARTS))
def test_plans_and_bounds_are_those_of_all_strategies_of_a_thousand_problems(part: int) -> None:
    """Fifty problems a part: in each of them every field is open somewhere, and what is best differs."""
    seen = sum((_agrees(seed) for seed in range(FAST + part, FAST + ALL, PARTS)), Counter[str]())
    assert all(seen[f"{name} open"] for name in VALUES)
    assert all(seen[of] for of in ("mixed cluster", "experts", "two series", "virtual stages", "context divided"))
