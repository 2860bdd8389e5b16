"""Constants of a kind of device: steps that are priced with known constants give them back, also with noise."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from gpt_work import gpt_work
from observations import measured_step, observation

from automap_models.core.device import StepConstants
from automap_models.cost.measured_step import DescribedModel, MeasuredPasses
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.simulate.calibration import CONSTANTS, USUAL, ends_of_ranges, fit_constants, left_out_s, predicted_s
from automap_models.simulate.observations import (
    MeasuredKind,
    Observation,
    errors_by_source,
    errors_of_all,
    pass_observation,
    passes_estimate,
    step_observation,
)

DEVICE = (read_device("a100"),)
TRUE = StepConstants(
    product_efficiency=0.62,
    half_size=90.0,
    attention_efficiency=0.42,
    bandwidth_efficiency=0.8,
    launch_s=6e-6,
    intra_efficiency=0.4,
    inter_efficiency=0.25,
    overlap=0.3,
)


def measured(noise: float, seed: int) -> list[Observation]:
    """Steps of three sources, of which one is twice as slow as all others where the seed is odd."""
    sizes = [(4, 1024), (4, 4096), (8, 8192), (2, 12288)]
    splits = [{"micro_batch": 1}, {"micro_batch": 4}, {"micro_batch": 2, "dp": 8}, {"micro_batch": 2, "tp": 8}]
    splits += [{"micro_batch": 1, "dp": 32}, {"micro_batch": 1, "tp": 8, "dp": 4}, {"micro_batch": 4, "tp": 2, "dp": 2}]
    observations = [
        observation(f"{i}-{j}", ("one", "two", "three")[(i + j) % 3], *size, **split)
        for i, size in enumerate(sizes)
        for j, split in enumerate(splits)
    ]
    seconds = predicted_s(MeasuredKind(observations, DEVICE), asdict(TRUE))
    seconds = seconds * np.exp(np.random.default_rng(seed).normal(0.0, noise, seconds.size))
    return [replace(o, parts_s=np.array([s])) for o, s in zip(observations, seconds, strict=True)]


def test_steps_priced_with_known_constants_give_them_back() -> None:
    """In spite of noise and an outlier; those that steps say less of are nearer to the truth than the usual ones."""
    first, *others = measured(0.02, 0)
    kind = MeasuredKind([replace(first, parts_s=10 * first.parts_s), *others], DEVICE)
    constants = fit_constants(kind)
    assert constants.product_efficiency == pytest.approx(TRUE.product_efficiency, rel=0.1)
    for name in ("intra_efficiency", "inter_efficiency"):
        truth, usual = getattr(TRUE, name), getattr(USUAL, name)
        assert abs(getattr(constants, name) - truth) < 0.75 * abs(usual - truth), name
    errors = np.abs(predicted_s(kind, asdict(constants)) / [float(o.parts_s[0]) for o in measured(0.0, 0)] - 1)
    assert np.median(errors) < 0.03


def test_a_source_that_is_left_out_is_predicted_by_the_others() -> None:
    observations = measured(0.02, 0)
    validated = errors_by_source(
        observations, left_out_s(MeasuredKind(observations, DEVICE), asdict(USUAL), asdict(USUAL))
    )
    assert [errors.source for errors in validated] == ["one", "three", "two"]
    assert sum(errors.steps for errors in validated) == 28
    assert all(errors.median < 0.05 for errors in validated)


def test_parts_of_the_steps_are_left_out_where_there_is_one_source() -> None:
    """Every tenth step; of two steps each, and of one step nothing."""
    steps = [replace(o, source="one") for o in measured(0.0, 0)[:12]]
    assert MeasuredKind(steps, DEVICE).folds == [[0, 10], [1, 11], *([k] for k in range(2, 10))]
    assert MeasuredKind(steps[:2], DEVICE).folds == [[0], [1]]
    assert MeasuredKind(steps[:1], DEVICE).folds == []
    assert left_out_s(MeasuredKind(steps[:1], DEVICE), {}, {}).size == 0


def test_without_steps_there_is_nothing_to_fit() -> None:
    with pytest.raises(BadInput, match="device a100: no measured step is of this kind"):
        fit_constants(MeasuredKind([], DEVICE))


def test_devices_that_have_constants_in_common_are_fitted_together() -> None:
    """Half of the steps are on an A100 with 40 GB, whose memory is slower."""
    both = (*DEVICE, read_device("a100-40"))
    steps = [replace(o, device=("a100", "a100-40")[i % 2]) for i, o in enumerate(measured(0.0, 0))]
    seconds = predicted_s(MeasuredKind(steps, both), asdict(TRUE))
    assert (seconds[1::2] > predicted_s(MeasuredKind(measured(0.0, 0), DEVICE), asdict(TRUE))[1::2]).all()
    steps = [replace(o, parts_s=np.array([s])) for o, s in zip(steps, seconds, strict=True)]
    kind = MeasuredKind(steps, both)
    assert np.median(np.abs(predicted_s(kind, asdict(fit_constants(kind))) / seconds - 1)) < 0.03


def test_what_was_not_timed_is_no_observation() -> None:
    with pytest.raises(BadInput, match="0-0: has no seconds"):
        step_observation(*measured_step("0-0", "one", 4, 1024, step_s=None, micro_batch=1))


def test_the_usual_constants_lie_in_their_ranges() -> None:
    assert list(asdict(USUAL)) == list(CONSTANTS)
    assert all(ends.low < asdict(USUAL)[name] < ends.high for name, ends in CONSTANTS.items())


def test_errors_are_relative_and_by_source() -> None:
    """Steps of 1 s: predicted 1.1, 0.8 and 1.3 s of one source, 2 s of another."""
    steps = [observation(str(i), source, 4, 1024, micro_batch=1) for i, source in enumerate(["b", "b", "b", "a"])]
    first, second = errors_by_source(steps, np.array([1.1, 0.8, 1.3, 2.0]))
    assert (first.source, first.steps, second.source, second.steps) == ("a", 1, "b", 3)
    assert list(first[2:]) == pytest.approx([1.0, 1.0, 2.0])
    assert list(second[2:]) == pytest.approx([0.2, 0.2 + 0.8 * 0.1, 1.1])


PROFILED = [(512, 8, True), (1024, 1, True), (1024, 16, False), (2048, 4, True), (4096, 1, False), (4096, 4, True)]
"""Widths, samples of a micro-batch, and whether attention is one kernel."""
OTHERS = [(768, 4, False), (1536, 2, True), (3072, 8, True), (6144, 1, False)]


def profiled(noise: float = 0.0, sizes_of: list[tuple[int, int, bool]] = PROFILED) -> list[Observation]:
    """Profiles of GPTs on one A100, priced with TRUE."""
    device, draw = replace(DEVICE[0], step=TRUE), np.random.default_rng(0)
    observations = []
    for i, (hidden, samples, flash) in enumerate(sizes_of):
        work = gpt_work(4, hidden, hidden // 64, 1024, 8192)
        described = DescribedModel(built_in="gpt")
        sizes = {"model": described, "sequence": 1024, "micro_batch": samples, "precision": "bf16", "flash": flash}
        passes = MeasuredPasses(name=str(i), device="one", forward_s=1.0, backward_s=1.0, **sizes)  # type: ignore[arg-type]
        priced = np.array(passes_estimate(passes, work, device)[:2]) * np.exp(draw.normal(0.0, noise, 2))
        forward_s, backward_s = priced.tolist()
        observations.append(pass_observation(replace(passes, forward_s=forward_s, backward_s=backward_s), work))
    return observations


def test_profiles_priced_with_known_constants_give_them_back() -> None:
    """Or others that price models of other sizes nearly alike. Those of links and of overlap stay as the device's."""
    own = replace(USUAL, intra_efficiency=0.9, inter_efficiency=0.8, overlap=0.7)
    constants = fit_constants(MeasuredKind(profiled(), DEVICE), USUAL, own)
    assert constants.product_efficiency == pytest.approx(TRUE.product_efficiency, rel=0.1)
    assert USUAL.bandwidth_efficiency < constants.bandwidth_efficiency < TRUE.bandwidth_efficiency * 1.02
    for name in ("intra_efficiency", "inter_efficiency", "overlap"):
        assert getattr(constants, name) == pytest.approx(getattr(own, name), rel=0.01), name
    for observations in (profiled(), profiled(sizes_of=OTHERS)):
        prices = predicted_s(MeasuredKind(observations, DEVICE), asdict(constants))
        assert np.abs(prices / [o.parts_s.sum() for o in observations] - 1).max() < 0.04


def test_a_profile_that_is_left_out_is_predicted_by_the_others() -> None:
    observations = profiled(0.02)
    predicted = left_out_s(MeasuredKind(observations, DEVICE), asdict(USUAL), asdict(USUAL))
    validated, together = errors_by_source(observations, predicted), errors_of_all(observations, predicted)
    assert len(validated) == 6
    assert all(errors.median < 0.08 for errors in validated)
    assert together.steps == 6
    assert together.median == pytest.approx(np.median([errors.median for errors in validated]))


def test_constants_at_the_end_of_their_range_are_named() -> None:
    assert ends_of_ranges(TRUE) == []
    assert ends_of_ranges(replace(TRUE, product_efficiency=1.0)) == [("product_efficiency", 1.0)]
