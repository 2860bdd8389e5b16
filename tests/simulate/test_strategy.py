"""Prices of strategies against published steps' ratios, formulas and laws."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpt_work import gpt_work
from hypothesis import given
from hypothesis import strategies as st
from strategy_problems import estimated

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.device import Device
from automap_models.core.passes import build_schedule
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_times import Shares, StepClock
from automap_models.cost.process_groups import process_groups
from automap_models.cost.recompute import run_again
from automap_models.cost.runtime import Runtime
from automap_models.cost.stage_costs import stage_costs
from automap_models.errors import BadInput
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.engine import simulate
from automap_models.simulate.strategy import StrategyPricing

DEVICE = Device("device", {"float32": 20e12, "bfloat16": 300e12}, 20e12, 2e12, step=USUAL)
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
    estimate = estimated(work, strategy, quick, DEVICE)
    parts = estimate.parts
    assert parts.bubble / parts.compute == pytest.approx(3 / (vp * micro_batches), rel=0.03)


def test_the_parts_add_up_to_the_step() -> None:
    strategy = Strategy(micro_batch=1, global_batch=16, tp=2, pp=4, dp=2, recompute="full", sequence_parallel=True)
    estimate = estimated(WORK, strategy, _cluster(16), DEVICE)
    assert estimate.parts.total == estimate.step_s
    assert all(part >= 0 for part in estimate.parts)
    assert min(estimate.parts.tensor_parallel, estimate.parts.bubble, estimate.parts.transfers) > 0
    assert estimate.tokens_per_s_per_device == pytest.approx(16 * 512 / estimate.step_s / 16)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "1f1b-deep"])
def test_the_parts_are_those_of_the_rank_that_others_wait_for(schedule: str) -> None:
    """Where rank 0 has one layer of 16 it ends last and waits most: its bubble of 80 % was said to be the step's."""
    strategy = Strategy(micro_batch=1, global_batch=64, pp=4, layers=(1, 2, 4, 1), schedule=schedule)
    estimate = estimated(WORK, strategy, _cluster(4), DEVICE)
    assert estimate.parts_rank == 2
    even = estimated(WORK, replace(strategy, layers=(2, 2, 2, 2)), _cluster(4), DEVICE)
    assert estimate.parts.compute > 1.5 * even.parts.compute  # of four layers, not of two and the head
    assert estimate.bubble_rate < 0.1
    assert estimate.parts.total == estimate.step_s


@pytest.mark.parametrize("global_batch", [16, 28, 52])
def test_a_rank_that_does_not_wait_has_no_bubble_at_all(global_batch: int) -> None:
    """The first rank has the longest stage; what is left of sums of floats, 1e-13 % of a step, is no idle time."""
    strategy = Strategy(micro_batch=1, global_batch=global_batch, pp=4, schedule="zb-h2", layers=(3, 2, 2, 1))
    estimate = estimated(WORK, strategy, Cluster(1, 4, 300e9, 100e9, 80e9), DEVICE)
    assert estimate.parts.bubble == 0.0


def test_ranks_of_zb_h2_do_not_wait_for_one_another_before_their_update() -> None:
    """The step is the longest rank from its first pass to its last, by the engine; messages have no bytes."""
    strategy = Strategy(micro_batch=1, global_batch=12, pp=4, schedule="zb-h2")
    cluster = replace(_cluster(4), intra=1e18, inter=1e18)
    parts = estimated(WORK, strategy, cluster, DEVICE).parts
    costs, schedule = stage_costs(WORK, strategy, cluster, DEVICE), build_schedule("zb-h2", 4, 12)
    forward, inputs, weights = costs.times.passes
    timeline = simulate(forward, inputs + weights, costs.transfer_s, np.zeros(4), schedule, weight_s=weights)
    passes_s = parts.total - parts.data_parallel - parts.optimizer
    assert passes_s == pytest.approx(timeline.longest_rank[0], rel=1e-3)
    assert passes_s < 0.99 * timeline.length_s


def test_a_device_without_constants_has_the_usual_ones_and_the_price_says_so() -> None:
    bare, strategy = replace(DEVICE, step=None), Strategy(micro_batch=1, global_batch=1)
    price, usual = (estimated(WORK, strategy, _cluster(1), device) for device in (bare, DEVICE))
    assert price == replace(usual, unfitted=("device",))
    assert usual.unfitted == ()


def test_a_device_without_a_peak_for_the_precision_is_refused() -> None:
    with pytest.raises(BadInput, match="device device: has no rate for matrix products in float8"):
        estimated(WORK, Strategy(micro_batch=1, global_batch=1, precision="fp8"), _cluster(1), DEVICE)


@st.composite
def strategies_of_16_devices(draw: st.DrawFn) -> Strategy:
    """What fits WORK, of 8 layers, and 16 devices."""
    tp = draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([1, 2, 4]))
    cp = draw(st.sampled_from([1, 2]))
    dp = 16 // (tp * pp * cp) if 16 % (tp * pp * cp) == 0 else 1
    tp = 16 // (pp * cp * dp)
    schedule, vp = draw(
        st.sampled_from([("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2)])
    )
    return Strategy(
        micro_batch=draw(st.sampled_from([1, 2])),
        global_batch=dp * 2 * 2 * pp,
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        vp=vp,
        schedule=schedule,
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        zero=draw(st.sampled_from([0, 1, 2, 3])),
        sequence_parallel=draw(st.booleans()),
    )


def _seconds(strategy: Strategy, device: Device = DEVICE, **cluster: float) -> float:
    return estimated(WORK, strategy, replace(_cluster(16), **cluster), device).step_s  # type: ignore[arg-type]


@given(strategies_of_16_devices(), st.sampled_from(["matrix", "bandwidth", "step"]))
def test_a_faster_device_is_never_slower(strategy: Strategy, what: str) -> None:
    faster = {
        "matrix": {"matrix": {name: 2 * rate for name, rate in DEVICE.matrix.items()}},
        "bandwidth": {"bandwidth": 2 * DEVICE.bandwidth},
        "step": {"step": replace(USUAL, launch_s=0.0)},
    }
    device = replace(DEVICE, **faster[what])  # type: ignore[arg-type]
    assert _seconds(strategy, device) <= _seconds(strategy) * (1 + 1e-9)


@given(strategies_of_16_devices(), st.sampled_from(["intra", "inter"]))
def test_more_bandwidth_is_never_slower(strategy: Strategy, link: str) -> None:
    assert _seconds(strategy, **{link: 2 * getattr(_cluster(16), link)}) <= _seconds(strategy) * (1 + 1e-9)


@given(strategies_of_16_devices())
def test_parts_are_none_below_zero_and_add_up(strategy: Strategy) -> None:
    estimate = estimated(WORK, strategy, _cluster(16), DEVICE)
    assert min(estimate.parts) >= -1e-12
    assert sum(estimate.parts) == pytest.approx(estimate.step_s)
    assert 0 < estimate.mfu < USUAL.product_efficiency
    assert (estimate.parts.recompute > 0) == (strategy.recompute != "none")


@given(strategies_of_16_devices())
def test_no_step_is_shorter_than_its_closed_form(strategy: Strategy) -> None:
    """Every micro-batch passes the longest rank, and the first one all stages once forward and backward, of which
    gradients of weights need not be waited for: (M - 1) · max over ranks, and Σ of F and I over stages."""
    costs = stage_costs(WORK, strategy, _cluster(16), DEVICE)
    forward, inputs, weights = costs.times.passes
    of_ranks = np.zeros(strategy.pp)
    np.add.at(of_ranks, list(costs.rank_of), forward + inputs + weights)
    bound = max(strategy.micro_batches * of_ranks.max(), float((forward + inputs).sum()))
    if strategy.schedule in ("1f1b", "gpipe"):
        bound = (strategy.micro_batches - 1) * of_ranks.max() + float((forward + inputs + weights).sum())
    assert bound <= _seconds(strategy) * (1 + 1e-9)


def test_one_device_takes_the_plain_sum_of_its_kernels() -> None:
    """Without a pipeline, sums, recomputation and other ranks, four micro-batches and an update."""
    strategy = Strategy(micro_batch=1, global_batch=4)
    estimate = estimated(WORK, strategy, _cluster(1), DEVICE)
    groups = process_groups(strategy, _cluster(1), USUAL)
    clock = StepClock(DEVICE, [groups], Shares([strategy]), Runtime())
    layers = [(WORK.layers[layer], 0 < place < 9) for place, layer in enumerate(WORK.order)]
    kernels = sum(clock.layer(*of, run_again(of[0], ("none",), Runtime()))[0, 0, :3].sum() for of in layers)
    assert estimate.parts.compute == pytest.approx(4 * kernels)
    assert estimate.step_s == pytest.approx(4 * kernels + estimate.parts.optimizer)
    assert [part for part in estimate.parts if part] == [estimate.parts.compute, estimate.parts.optimizer]


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_what_micro_batches_are_expected_changes_no_price(precision: str) -> None:
    """Where weights are cast once a step, too, which depends on how many micro-batches there are."""
    cluster, runtime = _cluster(8), Runtime(casts_weights_once=True)
    device = replace(DEVICE, matrix={**DEVICE.matrix, "float8": 1e15})
    pricing = StrategyPricing(WORK, cluster, device, runtime)
    fields: dict[str, Any] = {"global_batch": 32, "precision": precision, "zero": 3, "recompute": "selective"}
    strategies = [Strategy(tp=2, dp=2, pp=2, micro_batch=micro_batch, **fields) for micro_batch in (4, 1, 8, 2)]
    for layers in pricing.layers:
        layers.expect([strategy for strategy in strategies if strategy.micro_batch < 8])
    for strategy in strategies:
        alone = estimated(WORK, strategy, cluster, device, runtime)
        assert pricing.estimate(strategy).step_s == pytest.approx(alone.step_s, rel=1e-12)


def test_model_flop_utilisation_counts_no_recomputation() -> None:
    """The same FLOP over a longer step."""
    plain, again = (
        estimated(WORK, Strategy(micro_batch=1, global_batch=4, recompute=how), _cluster(1), DEVICE)
        for how in ("none", "full")
    )
    flop = 4 * (8 * (72 * 512 * 1024**2 + 12 * 512**2 * 1024) + 6 * 512 * 1024 * 8192)
    assert plain.mfu == pytest.approx(flop / plain.step_s / 300e12)
    assert again.mfu * again.step_s == pytest.approx(plain.mfu * plain.step_s)


@given(
    st.sampled_from(
        [("1f1b", 1, 1), ("1f1b", 1, 2), ("gpipe", 1, 4), ("interleaved", 2, 2), ("zb-v", 2, 2), ("zb-h2", 1, 2)]
    ),
    st.sampled_from([2, 4]),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.floats(1e8, 1e12),
    st.booleans(),
)
def test_zero_3_is_never_faster_than_zero_1(
    way: tuple[str, int, int], dp: int, rounds: int, overlap: float, inter: float, prefetches: bool
) -> None:
    """It moves weights twice and gradients once for every micro-batch, ZeRO-1 each of them once a step.

    With one micro-batch it was faster, as what is prefetched hides better than what is gathered after the update.
    """
    schedule, vp, pp = way
    device = replace(DEVICE, step=replace(USUAL, overlap=overlap))
    cluster = Cluster(dp * pp, 1, 300e9, inter, 80e9)
    runtime = Runtime(prefetches=prefetches)
    steps = []
    for zero in (1, 3):
        strategy = Strategy(
            micro_batch=1, global_batch=pp * dp * rounds, pp=pp, dp=dp, vp=vp, schedule=schedule, zero=zero
        )
        steps.append(estimated(WORK, strategy, cluster, device, runtime).step_s)
    assert steps[0] <= steps[1] * (1 + 1e-12)


def test_a_device_that_is_too_small_does_not_fit() -> None:
    strategy = Strategy(micro_batch=1, global_batch=1)
    estimate = estimated(WORK, strategy, _cluster(1), DEVICE)
    fuller = replace(_cluster(1), memory=estimate.peak_memory * 0.99)
    assert estimate.fits
    assert not estimated(WORK, strategy, fuller, DEVICE).fits


@pytest.mark.parametrize(
    ("fields", "devices", "message"),
    [
        ({"tp": 3, "global_batch": 1}, 3, "`tp`: 3 does not divide the 16 heads"),
        ({"dp": 4, "global_batch": 4}, 8, "are 4 devices, cluster cluster has 8"),
        ({"pp": 3, "global_batch": 3}, 3, "`pp`: 8 layers of GPT do not make 3 × 1 equal stages"),
        ({"pp": 4, "vp": 4, "schedule": "interleaved", "global_batch": 4}, 4, "do not make 4 × 4 equal stages"),
    ],
)
def test_a_strategy_that_does_not_divide_the_model_or_the_cluster_is_refused(
    fields: dict[str, Any], devices: int, message: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        estimated(WORK, Strategy(micro_batch=1, **fields), replace(_cluster(1), devices_per_node=devices), DEVICE)


TABLE_5 = {
    "22B": (48, 6144, 64, 1, 1, 4, 4, 1.42, 1.10),
    "175B": (96, 12288, 96, 8, 3, 1, 64, 18.13, 13.75),
    "530B": (105, 20480, 128, 35, 3, 1, 280, 49.05, 37.83),
    "1T": (128, 25600, 160, 64, 1, 1, 512, 94.42, 71.49),
}
"""Korthikanti et al., tables 3 and 5: layers, hidden size, heads, pp, vp, micro-batch and global batch; seconds of a
step with full recomputation, and with sequence parallelism and selective recomputation. tp is 8, on A100."""


@pytest.mark.parametrize("name", TABLE_5)
def test_what_recomputation_costs_is_what_was_measured(name: str) -> None:
    """The ratio of the two steps, 1.29 to 1.32, on A100s; a ratio depends little on constants."""
    layers, hidden, heads, pp, vp, micro_batch, global_batch, full_s, present_s = TABLE_5[name]
    work = gpt_work(layers, hidden, heads, name=name)
    a100 = replace(DEVICE, matrix={"float32": 19.5e12, "float16": 312e12})

    def step_s(recompute: str, sequence_parallel: bool) -> float:
        strategy = Strategy(
            micro_batch=micro_batch,
            global_batch=global_batch,
            tp=8,
            pp=pp,
            vp=vp,
            schedule="interleaved" if vp > 1 else "1f1b",
            recompute=recompute,  # type: ignore[arg-type]
            sequence_parallel=sequence_parallel,
            precision="fp16",
        )
        cluster = Cluster(pp, 8, 300e9, 200e9, 80e9)
        return estimated(work, strategy, cluster, a100, runtime=Runtime(flash=False)).step_s

    assert step_s("full", False) / step_s("selective", True) == pytest.approx(full_s / present_s, rel=0.08)


HALF_AS_FAST = replace(
    DEVICE,
    name="half",
    matrix={name: rate / 2 for name, rate in DEVICE.matrix.items()},
    bandwidth=DEVICE.bandwidth / 2,
    step=replace(USUAL, launch_s=2 * USUAL.launch_s),
)


def _mixed(first: str, last: str, memory: float = 80e9) -> Cluster:
    """Two nodes of four devices of two kinds, whose links are those of one cluster."""
    kinds = ((first, 80e9), (last, memory))
    return Cluster.of_groups([NodeGroup(1, 4, 300e9, 100e9, of, device=kind) for kind, of in kinds], "mixed")


@given(st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1)]))
def test_a_mixed_cluster_lies_between_those_of_its_kinds(degrees: tuple[int, int]) -> None:
    pp, tp = degrees
    strategy = Strategy(micro_batch=1, global_batch=16, pp=pp, tp=tp, dp=8 // (pp * tp))
    kinds = {"fast": DEVICE, "half": HALF_AS_FAST}

    def step_s(first: str, last: str) -> float:
        return estimated(WORK, strategy, _mixed(first, last), DEVICE, kinds=kinds).step_s

    uniform = estimated(WORK, strategy, Cluster(2, 4, 300e9, 100e9, 80e9), DEVICE).step_s
    assert step_s("fast", "fast") == uniform
    assert uniform < step_s("fast", "half") <= step_s("half", "half") * (1 + 1e-12)
    if pp == 1:  # every rank of data parallelism waits for the slowest
        assert step_s("fast", "half") == pytest.approx(step_s("half", "half"))


def test_every_rank_of_a_mixed_cluster_has_its_own_memory() -> None:
    strategy = Strategy(micro_batch=1, global_batch=16, pp=2, dp=4)
    kinds = {"fast": DEVICE, "half": HALF_AS_FAST}
    estimate = estimated(WORK, strategy, _mixed("fast", "half", 1e9), DEVICE, kinds=kinds)
    assert estimate.memory_bytes == (80e9, 1e9)
    assert not estimate.fits
    assert estimate.fullest[2] == 1


def test_a_kind_that_nobody_knows_is_refused() -> None:
    strategy = Strategy(micro_batch=1, global_batch=16, dp=8)
    with pytest.raises(BadInput, match="cluster mixed: its kind half is not among the devices"):
        estimated(WORK, strategy, _mixed("fast", "half"), DEVICE, kinds={"fast": DEVICE})


def test_a_group_may_say_how_fast_its_devices_are() -> None:
    """Half as fast is the device that takes twice the time for everything."""
    strategy = Strategy(micro_batch=1, global_batch=16, pp=2, dp=4)
    groups = [NodeGroup(1, 4, 300e9, 100e9, 80e9), NodeGroup(1, 4, 300e9, 100e9, 80e9, speed=0.5)]
    estimate = estimated(WORK, strategy, Cluster.of_groups(groups), DEVICE)
    kinds = {"fast": DEVICE, "half": HALF_AS_FAST}
    named = estimated(WORK, strategy, _mixed("fast", "half"), DEVICE, kinds=kinds)
    assert estimate.step_s == pytest.approx(named.step_s)
