"""Descents against all plans of small problems."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.descent import Descent
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, Problems, taken
from automap_models.envs.pipeline.interleaving import runs
from automap_models.envs.pipeline.objective import OBJECTIVES

POINTS = 12


def least(problems: Problems, objective: str) -> float:
    """What the shortest of all plans takes; inf where none fits."""
    boundaries, devices = int(problems.stages[0]) - 1, int(problems.devices[0])
    places = problems.cut_mask[0].nonzero().squeeze(1).tolist()
    plans = [(c, d) for c in combinations(places, boundaries) for d in combinations(range(1, devices), boundaries)]
    cuts, firsts = (torch.tensor([plan[part] for plan in plans]) for part in (0, 1))
    rows = problems.take(torch.zeros(len(plans), dtype=torch.int64))
    time, fits = taken(rows, Partial(cuts, firsts, torch.full((len(plans),), 2 * boundaries)), objective)
    return float(torch.where(fits, time, torch.inf).min())


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_descents_end_at_the_shortest_plan_of_small_problems(
    random_problems: Callable[..., list[StagedProblem]], objective: str
) -> None:
    records = random_problems(5, 20, POINTS, stages=(2, 3))
    at_optimum = []
    for record in records:
        problems = Problems.from_encoded(encode([record]))
        if not runs(objective, record.stages, record.micro_batches):
            continue
        descent, optimum = Descent(problems, objective), least(problems, objective)
        descent.search([descent.even()], 3_000, np.random.default_rng(1))
        assert descent.best_time >= optimum * (1 - 1e-6)
        at_optimum.append(descent.best_time <= optimum * (1 + 1e-6))
    assert len(at_optimum) >= 4
    assert np.mean(at_optimum) > 0.9


def test_plans_judged_and_seed_decide_alone(random_problems: Callable[..., list[StagedProblem]]) -> None:
    problems = Problems.from_encoded(encode(random_problems(8, 1, 32, stages=(4, 4))))
    ends = []
    for _ in range(2):
        descent = Descent(problems, "1f1b")
        descent.search([descent.even()], 4_000, np.random.default_rng(3))
        assert descent.best is not None
        ends.append((descent.best_time, descent.best.tolist(), descent.judged))
    assert ends[0] == ends[1]
    assert 4_000 <= ends[0][2] < 20_000
