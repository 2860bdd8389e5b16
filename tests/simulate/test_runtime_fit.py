"""Numbers of a runtime: steps that are priced with known ones give them back, and say which they do not tell of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from observations import measured_step

from automap_models.core.strategy import Dispatcher, Strategy
from automap_models.cost.runtime import Runtime
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.runtime_yaml import numbers_of, read_runtime
from automap_models.simulate.calibration import fit, fit_resolved, left_out_s, predicted_s
from automap_models.simulate.observations import MeasuredKind, Observation, step_observation
from automap_models.simulate.runtime_numbers import NUMBERS, runtime_with

DEVICE = read_device("a100")
FILE = read_runtime("megatron")
USUAL = numbers_of(FILE, DEVICE.constants)
TRUE = {"compute": 1.25, "tensor_overlap": 0.4, "gradient_overlap": 0.75}
"""Where the file has 1, 0 and 0.45."""


def measured(splits: list[dict[str, int]], noise: float = 0.0) -> MeasuredKind:
    """Steps of GPTs of two widths under Megatron on A100, priced with TRUE."""
    runtime = FILE.runtime("bf16", "a100")
    observations = []
    for i, (hidden, split) in enumerate((hidden, split) for hidden in (4096, 8192) for split in splits):
        step, work = measured_step(str(i), "ours", 4, hidden, **split)
        observations.append(step_observation(replace(step, runtime=runtime), work, USUAL))
    seconds = predicted_s(MeasuredKind(observations, [DEVICE]), TRUE)
    seconds = seconds * np.exp(np.random.default_rng(0).normal(0.0, noise, seconds.size))
    timed = [replace(o, parts_s=np.array([s])) for o, s in zip(observations, seconds, strict=True)]
    return MeasuredKind(timed, [DEVICE])


ALONE = [{"micro_batch": 1}, {"micro_batch": 4}]
TENSOR = [{"micro_batch": 1, "tp": 8}, {"micro_batch": 4, "tp": 4}]
DATA = [{"micro_batch": 1, "dp": 32}, {"micro_batch": 1, "dp": 64}]


def test_steps_priced_with_known_numbers_give_them_back() -> None:
    """With noise of 1 %, within what it moves."""
    best = fit_resolved(measured(ALONE + TENSOR + DATA, 0.01), USUAL, pull=1e-3)
    for name, value in TRUE.items():
        assert best.values[name] == pytest.approx(value, abs=0.1), name


def test_a_pull_holds_numbers_where_they_were() -> None:
    kind, usual = measured(ALONE + TENSOR), {name: USUAL[name] for name in TRUE}
    strong, weak = (fit(kind, usual, usual, pull).values["tensor_overlap"] for pull in (100.0, 1e-3))
    assert USUAL["tensor_overlap"] <= strong < 0.05 < weak


def test_steps_without_tensor_parallelism_tell_nothing_of_its_overlap() -> None:
    """Nor does one device of gradients, or a dense model of experts; numbers that are not told of are not fitted."""
    best = fit_resolved(measured(ALONE), USUAL)
    assert set(best.values) == {"compute"}
    assert best.resolution["tensor_overlap"] == best.resolution["gradient_overlap"] == best.resolution["routing"] == 0.0
    assert set(best.resolution) == set(NUMBERS)


def test_what_is_told_is_the_share_of_the_steps_beside_the_pull() -> None:
    """Five steps whose logarithm is that of `compute` weigh 5, the pull 0.2: 5 / 5.2; of others they tell nothing."""

    def price_s(_: object, numbers: Any) -> Any:
        return np.array([2.0 * numbers["compute"]])

    steps = [Observation(str(i), "ours", "a100", np.array([2.0]), np.ones(1), price_s) for i in range(5)]
    best = fit(MeasuredKind(steps, [DEVICE]), USUAL, USUAL, 0.2)
    assert best.resolution["compute"] == pytest.approx(5 / 5.2, rel=1e-3)
    assert best.resolution["host_s"] == 0.0


def test_seconds_of_the_host_are_met_where_the_file_has_none() -> None:
    """Layers of 512 numbers that wait for a host of 40 µs an operation; Megatron's file says nothing of it."""
    runtime, steps = FILE.runtime("bf16", "a100"), []
    for i, split in enumerate(ALONE + DATA):
        step, work = measured_step(str(i), "ours", 4, 512, **split)
        steps.append(step_observation(replace(step, runtime=runtime), work, USUAL))
    seconds = predicted_s(MeasuredKind(steps, [DEVICE]), {"host_s": 40e-6})
    steps = [replace(o, parts_s=np.array([s])) for o, s in zip(steps, seconds, strict=True)]
    best = fit_resolved(MeasuredKind(steps, [DEVICE]), USUAL, pull=1e-3)
    assert best.values["host_s"] == pytest.approx(40e-6, rel=0.1)


def test_steps_that_are_left_out_are_predicted_by_the_others() -> None:
    kind = measured(TENSOR + DATA, 0.01)
    values = {name: USUAL[name] for name in TRUE}
    seconds = left_out_s(kind, values, values, pull=0.02)
    before, after = (
        np.abs(np.log(s / [float(o.parts_s[0]) for o in kind.observations])) for s in (predicted_s(kind, {}), seconds)
    )
    assert np.median(after) < 0.05 < np.median(before)


def test_what_a_step_does_not_do_stays_off_and_what_it_says_itself_stays() -> None:
    usual = {**USUAL, "tensor_overlap": 0.2, "graphed": 0.3}
    values = {"tensor_overlap": 0.5, "expert_overlap": 0.8, "graphed": 0.6, "compute": 1.1}
    plain = runtime_with(Runtime(tensor_overlap=0.7), values, usual)
    assert (plain.tensor_overlap, plain.expert_overlap, plain.graphed, plain.compute) == (0.7, 0.0, 0.0, 1.1)
    usual["expert_overlap"] = 0.65
    other = runtime_with(Runtime(tensor_overlap=0.2, expert_overlap=0.65, graphed=0.3), values, usual)
    assert (other.tensor_overlap, other.expert_overlap, other.graphed) == (0.5, 0.8, 0.6)


@pytest.mark.parametrize(("dispatcher", "shares"), [("deepep", (0.3, 0.4)), ("alltoall", (0.1, 0.2))])
def test_tokens_reach_the_shares_of_their_dispatcher(dispatcher: Dispatcher, shares: tuple[float, float]) -> None:
    values = {"exchange_inside": 0.1, "exchange_across": 0.2, "dispatch_inside": 0.3, "dispatch_across": 0.4}
    strategy = Strategy(micro_batch=1, global_batch=1)
    of_runtime = runtime_with(Runtime(dispatcher=dispatcher), values, USUAL)
    assert of_runtime.expert_shares(strategy) == shares
    of_strategy = runtime_with(Runtime(), values, USUAL)
    assert of_strategy.expert_shares(replace(strategy, dispatcher=dispatcher)) == shares


def test_a_step_that_has_no_price_with_a_number_is_bad_input() -> None:
    step, work = measured_step("one", "ours", 4, 4096, micro_batch=1)
    broken = replace(step, strategy=Strategy(global_batch=64, micro_batch=1, layers=(3,)))
    with pytest.raises(BadInput, match="3 layers"):
        fit(MeasuredKind([step_observation(broken, work, USUAL)], [DEVICE]), USUAL, USUAL)
