"""What the tables' completions say of actions under a schedule, against the environment's own simulated steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems, apply
from automap_models.envs.pipeline.objective import OBJECTIVES
from automap_models.envs.pipeline.scheduled_completions import scheduled_values

LAW = settings(max_examples=10, deadline=None, derandomize=True)
POINTS, MAX_STAGES, MAX_DEVICES = 12, 3, 16
FLOAT32 = 1e-4

DrawProblems = Callable[..., list[StagedProblem]]


def drawn(random_problems: DrawProblems, seed: int, stages: int, whole_samples: float = 0.0) -> Problems:
    records = random_problems(seed, 6, POINTS, stages=(stages, stages), whole_samples=whole_samples)
    return Problems.from_encoded(encode(records)).with_cost_to_go(MAX_STAGES)


def values(problems: Problems, states: Partial, actions: torch.Tensor, schedule: str) -> torch.Tensor:
    tables = problems.cost_to_go
    assert tables is not None
    return scheduled_values(problems, tables, torch.arange(len(states.step)), states, actions, schedule)


def legal_actions(env: PipelineEnv, problems: Problems, states: Partial) -> tuple[torch.Tensor, torch.Tensor]:
    """The legal actions, -1 for others, numbered from the first of their kind; and by how much that is shifted."""
    legal = env.legal(problems, states)
    shift = 0 if int(states.step[0]) % 2 == 0 else problems.points
    legal = legal[:, :POINTS] if shift == 0 else legal[:, POINTS:]
    number = torch.arange(legal.shape[1]).expand_as(legal)
    return torch.where(legal, number, -1), torch.tensor(shift)


@LAW
@given(st.integers(0, 2**32), st.sampled_from([*OBJECTIVES[1:]]), st.sampled_from([0.0, 0.5]))
def test_the_last_device_cut_is_worth_what_the_environment_pays(
    random_problems: DrawProblems, seed: int, schedule: str, whole_samples: float
) -> None:
    problems = drawn(random_problems, seed, 2, whole_samples)
    env = PipelineEnv(MAX_STAGES, MAX_DEVICES, objective=schedule)
    start = env.reset(problems)
    first = env.legal(problems, start).int().argmax(1)
    states = apply(start, first, POINTS)
    actions, shift = legal_actions(env, problems, states)
    worth = values(problems, states, actions, schedule)
    for device in range(actions.shape[1]):
        rows = (actions[:, device] >= 0).nonzero().squeeze(1)
        complete = apply(states.take(rows), torch.full_like(rows, device) + shift, POINTS)
        paid = env.terminal_reward(problems.take(rows), complete)
        expected = torch.where(paid > 0, paid.clamp(min=1e-9).log(), -torch.inf)
        torch.testing.assert_close(worth[rows, device], expected, rtol=FLOAT32, atol=FLOAT32)
    assert (worth[actions < 0] == -torch.inf).all()


def best_of_all(env: PipelineEnv, problems: Problems, i: int, cut: int) -> float:
    """log(ideal / step) of the best plan of problem i whose first stage ends at `cut`; -∞ where none fits."""
    stages, devices = int(problems.stages[i]), int(problems.devices[i])
    later = [p for p in problems.cut_mask[i].nonzero().squeeze(1).tolist() if p > cut]
    plans = [
        ((cut, *cuts), firsts)
        for cuts in combinations(later, stages - 2)
        for firsts in combinations(range(1, devices), stages - 1)
    ]
    width = MAX_STAGES - 1
    rows = torch.full((2, len(plans), width), -1)
    for n, (cuts, firsts) in enumerate(plans):
        rows[0, n, : stages - 1], rows[1, n, : stages - 1] = torch.tensor(cuts), torch.tensor(firsts)
    complete = Partial(rows[0], rows[1], torch.full((len(plans),), 2 * (stages - 1)))
    same = problems.take(torch.full((len(plans),), i))._replace(cost_to_go=None)
    best = env.terminal_reward(same, complete).max()
    return float(best.log()) if best > 0 else float("-inf")


@pytest.mark.parametrize("schedule", OBJECTIVES[1:])
def test_no_cut_is_called_better_than_its_best_plan_and_most_are_called_nearly_as_good(
    random_problems: DrawProblems, schedule: str
) -> None:
    """Brute force over all plans of two and three stages: what a value says is a plan's own step, so never better."""
    env, behind = PipelineEnv(MAX_STAGES, MAX_DEVICES, objective=schedule), []
    for stages in (2, 3):
        problems = drawn(random_problems, 7, stages)
        start = env.reset(problems)
        actions, _ = legal_actions(env, problems, start)
        worth = values(problems, start, actions, schedule)
        for i, cut in (actions >= 0).nonzero().tolist():
            best, own = best_of_all(env, problems, i, cut), float(worth[i, cut])
            assert own <= best + FLOAT32
            if own > float("-inf"):
                behind.append(best - own)
    lost = torch.tensor(behind)
    assert len(lost) > 25
    assert float(lost.median()) < 0.01
    assert float(lost.mean()) < 0.05
