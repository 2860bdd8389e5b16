"""The simplest of nearly equal plans wins, and a harder one only by what it gains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.portfolio.candidate import REQUIREMENTS, Candidate, Simplicity, simplest, simplicity
from automap_models.simulate.plan_step import step_cost

DEVICES, ENDS = 8, (3, 7, 11)
PROBLEM = StagedProblem(
    Profile.create(np.ones(16), np.ones(16), np.ones(16)), Cluster(1, DEVICES, 1e9, 1e9, 1e18), 1, 8, schedule="1f1b"
)


@pytest.mark.parametrize(
    ("cuts", "devices", "kind"),
    [
        ((), (), Simplicity.DATA),
        ((7,), (4,), Simplicity.BLOCKS),
        ((3, 7, 11), (2, 4, 6), Simplicity.BLOCKS),
        ((8,), (4,), Simplicity.EQUAL),
        ((3, 8, 11), (2, 4, 6), Simplicity.EQUAL),
        ((7,), (5,), Simplicity.UNEQUAL),
        ((8,), (5,), Simplicity.UNEQUAL),
        ((3, 7), (2, 4), Simplicity.UNEQUAL),
    ],
)
def test_the_kind_of_a_plan_is_what_it_takes_to_run_it(
    cuts: tuple[int, ...], devices: tuple[int, ...], kind: Simplicity
) -> None:
    assert simplicity(StagedPlan(cuts, devices, 8, "drawn"), DEVICES, ENDS) is kind


def test_every_kind_says_what_it_is_and_what_runs_it() -> None:
    assert list(REQUIREMENTS) == [*Simplicity] and len({*REQUIREMENTS.values()}) == len(Simplicity)


def candidate(step_s: float, stages: int = 1, *, fits: bool = True) -> Candidate:
    """A plan of so many stages with a step that is written down."""
    problem, inside = replace(PROBLEM, stages=stages), tuple(range(stages - 1))
    plan = StagedPlan(inside, tuple(i + 1 for i in inside), 8, "drawn")
    cost = step_cost(problem, plan)
    limit = cost.limit_bytes if fits else np.zeros_like(cost.limit_bytes)
    return Candidate(problem, plan, replace(cost, simulated_s=step_s, limit_bytes=limit))


PARTS = {
    Simplicity.DATA: st.just(1),
    Simplicity.BLOCKS: st.integers(2, 4),
    Simplicity.EQUAL: st.integers(2, 4),
    Simplicity.UNEQUAL: st.integers(2, 4),
}
RATED = st.sampled_from(Simplicity).flatmap(
    lambda kind: st.tuples(st.just(kind), PARTS[kind], st.floats(1.0, 1.2), st.booleans())
)


@given(st.lists(RATED, min_size=1, max_size=12), st.sampled_from([0.0, 0.02, 0.1]), st.randoms(use_true_random=False))
def test_nothing_is_much_shorter_than_what_is_chosen_and_that_is_much_shorter_than_the_simplest(
    drawn: list[tuple[Simplicity, int, float, bool]],
    min_gain: float,
    random,  # type: ignore[no-untyped-def]
) -> None:
    """Much is more than min_gain, whatever the kinds; the order in which plans come does not matter."""
    rated = [(kind, candidate(step_s, stages, fits=fits)) for kind, stages, step_s, fits in drawn]
    rated.append((Simplicity.DATA, candidate(1.2)))
    chosen = simplest(rated, min_gain)
    kind, fitting = next(kind for kind, c in rated if c is chosen), [(kind, c) for kind, c in rated if c.fits]
    alike = [c.step_s for of, c in fitting if (of, c.plan.stages) == (kind, chosen.plan.stages)]
    plainest_s = min(c.step_s for of, c in fitting if of is Simplicity.DATA)
    assert chosen.fits
    assert chosen.step_s == min(alike)
    assert all(c.step_s >= chosen.step_s * (1.0 - max(min_gain, 1e-9)) for _, c in fitting)
    assert kind is Simplicity.DATA or chosen.step_s < plainest_s * (1.0 - min_gain)
    assert simplest(random.sample(rated, len(rated)), min_gain).step_s == chosen.step_s


def test_a_plan_that_gains_less_than_asked_leaves_the_simpler_one() -> None:
    """By hand: 2 % of 1 s is 0.98 s; of equal kinds fewer stages are simpler."""
    data, blocks = (Simplicity.DATA, candidate(1.0)), (Simplicity.BLOCKS, candidate(0.985, 2))
    deeper, unequal = (Simplicity.BLOCKS, candidate(0.97, 4)), (Simplicity.UNEQUAL, candidate(0.92, 2))
    assert simplest([data, blocks], 0.02) is data[1]
    assert simplest([data, blocks], 0.01) is blocks[1]
    assert simplest([data, blocks, deeper], 0.02) is deeper[1]
    assert simplest([data, blocks, deeper, unequal], 0.02) is unequal[1]
    assert simplest([data, blocks, deeper, unequal], 0.06) is unequal[1]
    assert simplest([data, blocks, deeper, unequal], 0.1) is data[1]
    assert simplest([data, (Simplicity.UNEQUAL, candidate(0.947, 2))], 0.02).step_s == 0.947  # once 8 % were asked


@pytest.mark.parametrize(("step_s", "schedule"), [(1.0, "1f1b"), (0.99, "1f1b"), (0.97, "gpipe")])
def test_another_schedule_than_1f1b_has_to_gain_what_a_harder_plan_has_to(step_s: float, schedule: str) -> None:
    """GPipe holds every micro-batch's activations at once."""
    ours, other = candidate(1.0, 2), candidate(step_s, 2)
    other = replace(other, problem=replace(other.problem, schedule="gpipe"))
    for plans in ([ours, other], [other, ours]):
        chosen = simplest([(Simplicity.BLOCKS, plan) for plan in plans], 0.02)
        assert chosen.problem.schedule == schedule
    assert simplest([(Simplicity.BLOCKS, plan) for plan in (ours, other)], 0.0).step_s == min(1.0, step_s)


def at_risk(plan: Candidate) -> Candidate:
    """The same plan where its fullest device has 1 % more than it holds."""
    return replace(plan, cost=replace(plan.cost, limit_bytes=plan.cost.memory_bytes / 0.99))


def test_a_plan_with_room_comes_before_one_that_fills_the_memory() -> None:
    """T5-3B on p4d-4: two stages filled 39.5 of 40 GB, four take 31.8 GB and 0.4 % less time.

    On A four stages of 23.3 s filled 31.8 of 32 GB: eight, which are no simpler, take 24.1 GB and as long.
    """
    full, spacious = at_risk(candidate(1.0, 2)), candidate(1.01, 4)
    for kind in (Simplicity.BLOCKS, Simplicity.EQUAL):
        kinds = [(Simplicity.BLOCKS, full), (kind, spacious)]
        assert simplest(kinds, 0.02) is spacious
        assert simplest(kinds, 0.001) is full
    assert simplest([(Simplicity.BLOCKS, candidate(1.0, 2)), kinds[1]], 0.02).plan.stages == 2


def test_a_plan_at_risk_is_taken_where_room_costs_more_than_five_times_the_least_gain() -> None:
    """T5-11B on A with nothing recomputed: 130 s with 31.3 of 32 GB, 177 s with room."""
    for step_s, taken in ((0.91, False), (0.89, True)):
        full, spacious = at_risk(candidate(step_s, 2)), candidate(1.0, 2)
        plans = [(Simplicity.BLOCKS, spacious), (Simplicity.BLOCKS, full)]
        assert (simplest(plans, 0.02) is full) == taken
        assert simplest(plans, 0.0) is full
