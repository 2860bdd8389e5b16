"""How long a training takes, whose devices fail: by hand, by simulation, and what was published of a real one."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.training_run import TrainingGoal, goodput
from automap_models.errors import BadInput

DAY = 86400.0


def test_without_failures_it_takes_tokens_over_those_of_a_second() -> None:
    run = TrainingGoal(tokens=1e12, gpu_hour=2.0, deadline=12 * DAY).run(1e6, 256)
    assert run.days == pytest.approx(1e6 / DAY)
    assert run.device_hours == pytest.approx(256 * 1e6 / 3600)
    assert (run.cost, run.goodput, run.checkpoint_every_s) == (2.0 * run.device_hours, 1.0, None)
    assert run.in_time is True
    assert TrainingGoal(tokens=1e12, deadline=11 * DAY).run(1e6, 256).in_time is False


def simulated(failing_s: float, checkpoint_s: float, restart_s: float, interval_s: float, parts: int) -> float:
    """The share of steps that are not repeated, with failures drawn one after the other."""
    rng, taken_s = np.random.default_rng(1), 0.0
    for _ in range(parts):
        while (lasted_s := rng.exponential(failing_s)) < interval_s + checkpoint_s:
            taken_s += lasted_s
            while (lasted_s := rng.exponential(failing_s)) < restart_s:
                taken_s += lasted_s
            taken_s += restart_s
        taken_s += interval_s + checkpoint_s
    return parts * interval_s / taken_s


@pytest.mark.parametrize(
    ("failing_s", "checkpoint_s", "restart_s"), [(11_000, 30, 300), (2000, 60, 600), (900, 30, 60)]
)
def test_failures_take_what_they_take_in_a_simulation(failing_s: float, checkpoint_s: float, restart_s: float) -> None:
    share, interval_s = goodput(failing_s, checkpoint_s, restart_s)
    assert share == pytest.approx(simulated(failing_s, checkpoint_s, restart_s, interval_s, 20_000), rel=0.02)
    for other in (0.5, 2.0):
        assert simulated(failing_s, checkpoint_s, restart_s, other * interval_s, 20_000) < share


def test_llama_3_trained_more_than_nine_tenths_of_its_time() -> None:
    """419 unexpected interruptions of 16,384 H100 in 54 days, "higher than 90 % effective training time"
    (arXiv 2407.21783, section 3.3.4)."""
    goal = TrainingGoal(tokens=15.6e12, mtbf=16_384 * 54 * DAY / 419)
    assert 0.90 <= goal.run(5e6, 16_384).goodput < 0.95


def test_devices_that_fail_all_the_time_train_nothing() -> None:
    with pytest.raises(BadInput, match="`mtbf`: is so short that 1000 devices never come to a checkpoint"):
        TrainingGoal(tokens=1e9, mtbf=1.0).run(1e6, 1000)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpu_hour": 2.5}, "`gpu_hour`: is of a training that nobody asks for; give `tokens`"),
        ({"tokens": 1e9, "restart": 60.0}, "`restart`: is of a training that nobody asks for; give `mtbf`"),
        ({"tokens": -1.0}, "`tokens`: is -1; give a positive number"),
        ({"tokens": 1e9, "deadline": float("inf")}, "`deadline`: is inf; give a positive number"),
    ],
)
def test_what_no_training_is_is_refused(options: dict[str, float], sentence: str) -> None:
    with pytest.raises(BadInput) as refusal:
        TrainingGoal.of_options(options)
    assert str(refusal.value) == sentence
