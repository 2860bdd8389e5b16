"""The compiled player gives the step of every pipeline that the reference engine draws, under every schedule."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.passes import build_schedule
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import SCHEDULES, WARM_UPS
from automap_models.cost.overlap import TiedSum
from automap_models.simulate import play
from automap_models.simulate.engine import Timeline, simulate
from automap_models.simulate.rounds import PlanTimes, graph_of, graphs_of, plan_steps, tied_arrays


def _real(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.exponential(size=shape) * rng.choice([0.01, 1.0, 10.0], size=shape)


def _small_integers(rng: np.random.Generator, *shape: int) -> FloatArray:
    """So that messages get ready together, and some passes take no time at all."""
    return rng.integers(0, 4, size=shape).astype(np.float64)


DRAWS = (_real, _small_integers)


class Drawn:
    """A random pipeline of V virtual stages, with all-reduces, updates and tied sums."""

    def __init__(self, rng: np.random.Generator, stages: int) -> None:
        draw = DRAWS[int(rng.integers(2))]
        self.forward, self.inputs, self.weights = draw(rng, 3, stages)
        self.transfer = draw(rng, stages - 1)
        self.reduce, self.update = draw(rng, 2, stages)
        self.late = self.reduce - rng.choice([0.0, 0.3, 1.0], size=stages) * np.minimum(self.reduce, self.backward)
        holders = [np.flatnonzero(rng.random(stages) < 0.5) for _ in range(int(rng.integers(3)))]
        self.tied = [TiedSum(tuple(of.tolist()), float(draw(rng, 1)[0])) for of in holders if of.size > 1]

    @property
    def backward(self) -> FloatArray:
        return self.inputs + self.weights

    def step_s(self, name: str, micro_batches: int) -> float:
        """By the player, one stage a rank."""
        of_plan = (self.forward, self.backward, self.transfer, self.late, self.update)
        times = PlanTimes(*(of[None] for of in of_plan))
        return float(plan_steps(name, micro_batches, times, *tied_arrays(self.tied, self.forward.size))[0])

    def drawn(self, name: str, ranks: int, micro_batches: int, virtual: int) -> Timeline:
        """By the reference engine."""
        schedule = build_schedule(name, ranks, micro_batches, virtual)
        times = (self.forward, self.backward, self.transfer, self.reduce)
        return simulate(*times, schedule, self.late, self.update, self.tied, self.weights)


@pytest.mark.parametrize("name", WARM_UPS)
@pytest.mark.parametrize("seed", range(25))
def test_plans_take_what_the_engine_draws(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    stages, micro_batches = int(rng.integers(1, 9)), int(rng.integers(1, 25))
    plan = Drawn(rng, stages)
    assert plan.step_s(name, micro_batches) == pytest.approx(
        plan.drawn(name, stages, micro_batches, 1).length_s, rel=1e-12
    )


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", range(20))
def test_every_schedule_takes_what_the_engine_draws(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    ranks, virtual = int(rng.integers(1, 5)), SCHEDULES[name].virtual or int(rng.integers(1, 4))
    micro_batches = 2 * ranks * int(rng.integers(1, 4))
    plan = Drawn(rng, ranks * virtual)
    graph = graph_of(name, ranks, micro_batches, micro_batches, virtual, 1, messages=True)
    durations, ends = np.zeros(1 + play.KINDS * ranks * virtual), np.empty(graph.nodes.shape[1] + 1)
    kinds = durations[1:].reshape(-1, play.KINDS)
    kinds[:, :4] = np.stack([plan.forward, plan.backward, plan.inputs, plan.weights], axis=1)
    kinds[:-1, play.MESSAGE] = plan.transfer
    play.play(graph.nodes, durations, ends)
    plan.tied, plan.reduce, plan.late, plan.update = [], *np.zeros((3, ranks * virtual))
    assert ends.max() == pytest.approx(plan.drawn(name, ranks, micro_batches, virtual).length_s, rel=1e-12)


@pytest.mark.parametrize("name", ["1f1b", "1f1b-deep"])
@pytest.mark.parametrize("seed", range(25))
def test_rounds_that_repeat_are_added_at_once_and_change_nothing(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    stages, micro_batches = int(rng.integers(1, 7)), int(rng.integers(30, 200))
    plan = Drawn(rng, stages)
    assert plan.step_s(name, micro_batches) == pytest.approx(
        plan.drawn(name, stages, micro_batches, 1).length_s, rel=1e-9
    )


def test_a_hundred_thousand_micro_batches_take_as_long_as_the_slowest_stage_with_each() -> None:
    """Without transfers: the fill and the drain of the others, and M times the slowest stage."""
    forward, backward = np.array([1.0, 2.0, 1.0]), np.array([2.0, 3.0, 1.0])
    times = PlanTimes(*(of[None] for of in (forward, backward, np.zeros(2), np.zeros(3), np.zeros(3))))
    (step_s,) = plan_steps("1f1b", 100_000, times, *tied_arrays((), 3))
    assert step_s == pytest.approx(100_000 * 5.0 + 3.0, rel=1e-12)


def test_a_long_schedule_is_played_by_a_few_of_its_rounds() -> None:
    few, all_of_them = graphs_of("1f1b", 4, 1000)
    assert few.nodes.shape[1] * 20 < all_of_them.nodes.shape[1]
    assert (few.more, all_of_them.more) == ((1000 - 40) // 12, 0)
