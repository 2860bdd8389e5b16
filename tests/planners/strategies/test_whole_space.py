"""The search of strategies over its whole space: every field open somewhere, on all kinds of models and clusters."""

from __future__ import annotations

from collections import Counter

import pytest
from draw_counts import parts
from whole_space import VALUES, estimates, whole_space_problem

from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig

TO_THE_END = StrategiesConfig(gap=0.0, exhaustive=50_000, budget_s=60.0)
EARLY = StrategiesConfig(gap=0.2, exhaustive=0, nodes=0)
"""A search that leaves most to its bounds."""
FAST, ALL, PARTS = 16, 1000, 20


def _agrees(seed: int) -> Counter[str]:
    """What a problem was of; fails where the search's plan or bound is not that of all strategies."""
    problem = whole_space_problem(seed)
    priced = sorted(((estimate.step_s, i, of) for i, (of, estimate) in enumerate(estimates(problem))))
    result = StrategiesPlanner(TO_THE_END).solve(problem)
    early = StrategiesPlanner(EARLY).solve(problem)
    if not priced:
        assert result.status == "infeasible" and early.status in ("infeasible", "stopped"), f"problem {seed}"
        return Counter(["nothing fits"])
    best, (least_s, *_) = priced[0][2], priced[0]
    assert result.plan is not None, f"problem {seed}"
    assert result.problem.fits(result.cost), f"problem {seed}"
    assert result.cost.step_s == pytest.approx(least_s, rel=1e-6), f"problem {seed}: {best}"
    assert result.bound is not None, f"problem {seed}"
    assert least_s * (1 - 1e-5) <= result.bound.value <= least_s * (1 + 1e-9), f"problem {seed}: {best}"
    assert early.bound is None or early.bound.value <= least_s * (1 + 1e-9), f"problem {seed}: {best}"
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
