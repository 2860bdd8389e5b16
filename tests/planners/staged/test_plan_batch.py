"""Many plans at once cost what each of them costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.profile import SharedParameter
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.plan_batch import PlanBatch, batch_costs, neighbours, steps_s
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.simulate.step import step_cost

MakeProblem = Callable[..., StagedProblem]


def random_problem(make_problem: MakeProblem, seed: int, schedule: str | None) -> StagedProblem:
    """A problem with whole samples, if it has a schedule, and with tied weights for odd seeds."""
    problem, rng = make_problem(seed, max_n=30, max_devices=9), np.random.default_rng(seed)
    profile, shared = problem.profile, []
    for k in range(3 * (seed % 2)):
        uses = sorted(rng.choice(len(profile), size=2 + k % (len(profile) - 1), replace=False).tolist())
        shared.append(SharedParameter(f"p{k}", float(profile.W[uses[0]]), tuple(uses)))
    meta = {**profile.meta, "microbatch_size": 1 + seed % 7}
    profile = replace(profile, meta=meta, shared_parameters=tuple(shared))
    return replace(problem, profile=profile, schedule=schedule, granularity=max(len(profile), 2))


def random_batch(problem: StagedProblem, seed: int) -> PlanBatch:
    """Forty plans."""
    rng, tables = np.random.default_rng(seed), tables_of(problem)

    def draw(below: int) -> np.ndarray:
        cuts = [rng.permutation(below - 1)[: problem.stages - 1] + 1 for _ in range(40)]
        return np.sort(np.array(cuts, dtype=np.int64), axis=1)

    return PlanBatch.of(tables, draw(tables.end), draw(problem.cluster.devices))


@pytest.mark.parametrize("schedule", (None, *WARM_UPS))
@pytest.mark.parametrize("seed", range(8))
def test_plans_at_once_cost_what_the_cost_model_says(
    seed: int, schedule: str | None, make_problem: MakeProblem
) -> None:
    problem = random_problem(make_problem, seed, schedule)
    tables, batch = tables_of(problem), random_batch(problem, seed)
    costs = batch_costs(tables, batch)
    span_s, length_s = costs.span_and_length(problem.micro_batches)
    for row in range(len(batch)):
        cost = step_cost(problem, batch.plan(tables, row, "random"))
        assert costs.forward_s[row] == pytest.approx(cost.forward_s, rel=1e-9, abs=1e-12)
        assert costs.backward_s[row] == pytest.approx(cost.backward_s, rel=1e-9, abs=1e-12)
        assert costs.transfer_s[row] == pytest.approx(cost.transfer_s, rel=1e-9)
        assert costs.exposed_s[row] == pytest.approx(cost.exposed_s, rel=1e-9, abs=1e-12)
        assert costs.update_s[row] == pytest.approx(cost.update_s, rel=1e-9, abs=1e-15)
        assert costs.feasible[row] == cost.feasible
        if schedule is None:
            assert (span_s[row], length_s[row]) == pytest.approx((cost.span_s, cost.length_s), rel=1e-9)
        else:
            assert steps_s(problem, tables, batch, costs)[row] == pytest.approx(cost.step_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_neighbours_are_valid_and_close_by(seed: int, make_problem: MakeProblem) -> None:
    problem = random_problem(make_problem, seed, "1f1b")
    tables, start = tables_of(problem), random_batch(problem, seed).take(slice(0, 1))
    moved = neighbours(tables, start, np.array([1, 2]))
    for row in range(len(moved)):
        assert moved.plan(tables, row, "moved").check_valid(problem) == (True, "")
    assert (abs(moved.k - start.k) <= 2).all() and (abs(moved.q - start.q) <= 2).all()
    assert ((moved.k != start.k).sum(axis=1) <= 2).all()
