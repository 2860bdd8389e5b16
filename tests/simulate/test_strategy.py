"""Prices of strategies against published steps' ratios, formulas and laws."""

from __future__ import annotations

import pytest
from gpt_work import gpt_work

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device, StepConstants
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.simulate.strategy import strategy_estimate

CONSTANTS = StepConstants(
    product_efficiency=0.7,
    half_size=60.0,
    attention_efficiency=0.3,
    bandwidth_efficiency=0.65,
    launch_s=6e-6,
    intra_efficiency=0.55,
    inter_efficiency=0.4,
    overlap=0.3,
)
DEVICE = Device("device", {"float32": 20e12, "bfloat16": 300e12}, 20e12, 2e12, 0.6, 0.75, step=CONSTANTS)
WORK = gpt_work(8, 1024, 16, sequence=512, vocabulary=8192)


def _cluster(devices: int) -> Cluster:
    nodes = max(1, devices // 8)
    return Cluster(nodes, devices // nodes, 300e9, 100e9, 80e9)


@pytest.mark.parametrize("vp", [1, 2])
@pytest.mark.parametrize("micro_batches", [8, 32])
def test_the_bubble_is_what_narayanan_et_al_derive(vp: int, micro_batches: int) -> None:
    """(p - 1) / (v · m) of the ideal time (2104.04473, section 2.2), without communication and with equal stages."""
    work = gpt_work(16, 8192, 64, vocabulary=1)
    strategy = Strategy(
        micro_batch=1, global_batch=micro_batches, pp=4, vp=vp, schedule="interleaved" if vp > 1 else "1f1b"
    )
    quick = Cluster(1, 4, 1e18, 1e18, 80e9)
    estimate = strategy_estimate(work, strategy, quick, DEVICE)
    parts = estimate.parts
    assert parts.bubble / parts.compute == pytest.approx(3 / (vp * micro_batches), rel=0.03)


def test_the_parts_add_up_to_the_step() -> None:
    strategy = Strategy(micro_batch=1, global_batch=16, tp=2, pp=4, dp=2, recompute="full", sequence_parallel=True)
    estimate = strategy_estimate(WORK, strategy, _cluster(16), DEVICE)
    assert estimate.parts.total == estimate.step_s
    assert all(part >= 0 for part in estimate.parts)
    assert min(estimate.parts.tensor_parallel, estimate.parts.bubble, estimate.parts.transfers) > 0
    assert estimate.tokens_per_s_per_device == pytest.approx(16 * 512 / estimate.step_s / 16)


def test_a_device_without_constants_is_refused() -> None:
    device = Device("bare", {"float32": 1e12, "bfloat16": 1e12}, 1e12, 1e12, 0.6, 0.75)
    with pytest.raises(BadInput, match="device bare: has no constants of training steps"):
        strategy_estimate(WORK, Strategy(micro_batch=1, global_batch=1), _cluster(1), device)


def test_a_device_without_a_peak_for_the_precision_is_refused() -> None:
    with pytest.raises(BadInput, match="device device: has no rate for matrix products in float8"):
        strategy_estimate(WORK, Strategy(micro_batch=1, global_batch=1, precision="fp8"), _cluster(1), DEVICE)
