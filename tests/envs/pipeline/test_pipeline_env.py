"""The pipeline environment against its specification: the legal by enumeration, the earned by the cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.pipeline import features, flat
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Choices, Describe, Problems, States, follow, rewards

LAW = settings(max_examples=25, deadline=None, derandomize=True)
POINTS, MAX_STAGES, MAX_DEVICES = 16, 5, 18
FLAT: Describe = partial(flat.describe, max_devices=MAX_DEVICES)
BOTH = pytest.mark.parametrize("describe", [features.describe, FLAT], ids=["features", "flat"])

DrawProblems = Callable[..., list[StagedProblem]]


def random_walk(problems: Problems, describe: Describe, seed: int) -> Iterator[tuple[States, Choices, States]]:
    """Uniform legal choices to the end of every episode: states before, their choices and states after."""
    rng = np.random.default_rng(seed)
    states = States.empty(len(problems.stages), MAX_STAGES)
    for step in range(int(problems.decisions.max())):
        rows = np.flatnonzero(problems.decisions > step)
        before = states.take(rows)
        choices = describe(problems.take(rows), before)
        column = np.where(choices.legal, rng.random(choices.choice.shape), -1.0).argmax(axis=1)
        after = before.after(choices.choice[np.arange(len(rows)), column])
        for old, new in zip(states, after, strict=True):
            old[rows] = new
        yield before, choices, after


def random_plans(problems: Problems, seed: int) -> States:
    """Whole plans of uniform legal choices."""
    rng = np.random.default_rng(seed)

    def worth(choices: Choices) -> NDArray[np.float32]:
        return rng.random(choices.choice.shape).astype(np.float32)

    begun = States.empty(len(problems.stages), MAX_STAGES)
    return follow(problems, begun, problems.decisions, FLAT, worth)


def by_enumeration(problem: StagedProblem, state: States) -> set[int]:
    """The next points or devices of all complete plans that begin with a state's decisions."""
    cuts = tuple(cut for cut in state.cuts.tolist() if cut >= 0)
    firsts = tuple(first for first in state.firsts.tolist() if first >= 0)
    boundaries, settled, options = problem.stages - 1, cuts, problem.grid.cut_points.tolist()
    if len(cuts) > len(firsts):
        settled, options = firsts, list(range(1, problem.cluster.devices))
    plans = combinations(options, boundaries)
    return {plan[len(settled)] for plan in plans if plan[: len(settled)] == settled}


@BOTH
@LAW
@given(seed=st.integers(0, 2**32), instructions=st.sampled_from([5, 13, 40]))
def test_the_choices_are_those_that_some_complete_plan_makes(
    random_problems: DrawProblems, describe: Describe, seed: int, instructions: int
) -> None:
    """With fewer instructions than points a cut is the last point of an instruction other than the last."""
    records = random_problems(seed, 4, POINTS, stages=(2, 4), instructions=(instructions, instructions))
    problems = Problems.from_encoded(encode(records))
    for before, choices, _ in random_walk(problems, describe, seed):
        numbers = np.flatnonzero(problems.decisions > before.step[0])
        for i, number in enumerate(numbers):
            next_ones = choices.choice[i][choices.legal[i]].tolist()
            assert sorted(next_ones) == next_ones
            assert set(next_ones) == by_enumeration(records[number], before.take(i))


@LAW
@given(st.integers(0, 2**32))
def test_every_episode_ends_in_a_valid_plan_that_earns_what_the_cost_model_says(
    random_problems: DrawProblems, seed: int
) -> None:
    """ideal / L; -1 exactly when a stage is out of memory."""
    records = random_problems(seed, 12, POINTS, stages=(1, MAX_STAGES))
    problems = Problems.from_encoded(encode(records))
    complete = random_plans(problems, seed)
    for i, (problem, earned) in enumerate(zip(records, rewards(problems, complete).tolist(), strict=True)):
        boundaries = problem.stages - 1
        points = tuple(complete.cuts[i, :boundaries].tolist())
        firsts = tuple(complete.firsts[i, :boundaries].tolist())
        assert (complete.cuts[i, boundaries:] == -1).all() and (complete.firsts[i, boundaries:] == -1).all()
        plan = StagedPlan(problem.grid.to_instructions(points), firsts, problem.micro_batches, "random", points)
        assert plan.check_valid(problem)[0]
        cost = plan_cost(problem, plan)
        fullest = cost.memory_bytes.max() / problem.cluster.memory
        if abs(fullest - 1.0) > 1e-5:
            assert (earned > 0.0) == cost.feasible
        if earned > 0.0:
            ideal_s = problem.profile.C.sum() * problem.micro_batches / problem.cluster.devices
            assert earned == pytest.approx(ideal_s / cost.length_s, rel=1e-5)


def test_states_go_on_and_back(random_problems: DrawProblems) -> None:
    problems = Problems.from_encoded(encode(random_problems(3, 8, POINTS, stages=(3, 4))))
    for before, choices, after in random_walk(problems, features.describe, 3):
        assert choices.legal.any(axis=1).all()
        assert (after.step == before.step + 1).all()
        for old, again in zip(before, after.before(before.step), strict=True):
            assert (old == again).all()


def test_plans_are_followed_from_where_they_are_to_where_they_shall_go(random_problems: DrawProblems) -> None:
    """A decision more for half of them; what is given stays as it is."""
    problems = Problems.from_encoded(encode(random_problems(5, 6, POINTS, stages=(3, 4))))
    begun = States.empty(6, MAX_STAGES)
    until = np.array([1, 0, 1, 0, 2, 0])

    def last(choices: Choices) -> NDArray[np.float32]:
        return np.arange(choices.choice.shape[1], dtype=np.float32)[None].repeat(len(choices.choice), axis=0)

    states = follow(problems, begun, until, FLAT, last)
    assert (begun.step == 0).all() and (states.step == until).all()
    spared = problems.stages - 2
    for i in (0, 2):
        assert states.cuts[i, 0] == np.flatnonzero(problems.legal[i])[-1 - spared[i]]
    assert states.firsts[4, 0] == problems.numbers[4, 0] - (problems.stages[4] - 1)
