"""Memory of stages against Korthikanti et al. (2205.05198), and communication of data parallelism by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpt_work import gpt_work

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device, StepConstants
from automap_models.core.estimate import DeviceMemory
from automap_models.core.model_work import Amounts, Mark
from automap_models.core.strategy import Strategy
from automap_models.cost.collectives import ACROSS_S, LATENCY_S
from automap_models.cost.layer_costs import LayerCosting
from automap_models.cost.layer_times import PREFETCHED
from automap_models.cost.runtime import Runtime
from automap_models.cost.stage_costs import StageCosting, StageCosts, stage_costs

CONSTANTS = StepConstants(
    product_efficiency=0.8,
    half_size=64.0,
    attention_efficiency=0.4,
    bandwidth_efficiency=0.8,
    launch_s=0.0,
    intra_efficiency=1.0,
    inter_efficiency=1.0,
    overlap=0.5,
)
DEVICE = Device("d", {"float32": 2e13, "bfloat16": 3e14, "float16": 3e14, "float8": 6e14}, 2e13, 2e12, step=CONSTANTS)
SIZES = {"22B": (48, 6144, 64, 1, 4), "175B": (96, 12288, 96, 8, 1), "530B": (105, 20480, 128, 35, 1)}
"""Layers, hidden size, heads, pp and micro-batch of Table 3; tp is 8, a sample has 2,048 tokens."""
UNFUSED = Runtime(flash=False)


def _costs(name: str, runtime: Runtime = UNFUSED, **fields: object) -> StageCosts:
    layers, hidden, heads, pp, micro_batch = SIZES[name]
    fields = {"tp": 8, "pp": pp, "micro_batch": micro_batch, "global_batch": 64 * pp, "precision": "fp16", **fields}
    strategy = Strategy(**fields)  # type: ignore[arg-type]
    cluster = Cluster(strategy.devices // 8, 8, 3e11, 2e11, 8e10)
    return stage_costs(gpt_work(layers, hidden, heads, name=name), strategy, cluster, DEVICE, runtime)


def _first(name: str, runtime: Runtime = UNFUSED, **fields: object) -> DeviceMemory:
    return _costs(name, runtime, **fields).memory[0]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    ("sequence_parallel", "recompute"), [(False, "none"), (True, "none"), (False, "selective"), (True, "selective")]
)
def test_activations_are_those_of_the_published_formulas(name: str, sequence_parallel: bool, recompute: str) -> None:
    """Equations 2, 4 and 6 times the layers of the first rank's micro-batches in flight, which are L; and the
    embedding's dropout masks of p micro-batches (section 4.3). With one rank the head's 4·s·b·h and logits are there,
    too."""
    layers, h, heads, pp, b = SIZES[name]
    s, t, v = 2048, 8, 51200
    shared = t if sequence_parallel else 1
    core = 0.0 if recompute == "selective" else 5 * heads * s / (h * t)
    a_layer = s * b * h * (10 / shared + 24 / t + core)
    expected = a_layer * layers + s * b * h * pp / shared
    if pp == 1:
        expected += 4 * s * b * h / shared + 4 * s * b * v / t
    memory = _first(name, sequence_parallel=sequence_parallel, recompute=recompute)
    assert memory.activations == pytest.approx(expected, rel=1e-12)


def test_full_recomputation_keeps_the_inputs_of_layers_and_one_layer_at_a_time() -> None:
    """2·s·b·h a layer (section 5)."""
    layers, h, heads, pp, b = SIZES["175B"]
    s, t = 2048, 8
    memory = _first("175B", recompute="full")
    assert memory.activations == pytest.approx(2 * s * b * h * layers + s * b * h * pp)
    assert memory.temporary == pytest.approx(s * b * h * (10 + 24 / t + 5 * heads * s / (h * t)))


def test_flash_kernels_keep_no_scores() -> None:
    assert _first("175B", Runtime()) == _first("175B", recompute="selective")
    assert _first("175B", Runtime(), recompute="full").temporary < _first("175B", recompute="full").temporary


def test_in_fp8_what_gradients_of_weights_need_is_saved_in_8_bits() -> None:
    """Of 10 + 24/t widths a layer, 4 + 10/t take half the bytes."""
    layers, h, _, pp, b = SIZES["175B"]
    s, t = 2048, 8
    memory = _first("175B", Runtime(), precision="fp8")
    a_layer = s * b * h * (10 + 24 / t - (4 + 10 / t) / 2)
    assert memory.activations == pytest.approx(a_layer * layers + s * b * h * pp)


def test_selective_recomputation_with_flash_keeps_every_second_product_and_the_core() -> None:
    """Of products of 3, 1, 4 and 1 widths the first and the third, over tp; the core's result; a block's input."""
    layers, h, _, pp, b = SIZES["175B"]
    s, t = 2048, 8
    a_layer = 2 * s * b * h * ((3 + 4) / t + 1 / t + 1)
    memory = _first("175B", Runtime(), recompute="selective")
    assert memory.activations == pytest.approx(a_layer * layers + s * b * h * pp)


def test_gradients_of_16_bits_bring_copies_in_the_optimizer() -> None:
    """Megatron-LM's documentation of its distributed optimizer: 4 + 16/d bytes a parameter, and 6 + 12/d."""
    wide, narrow = (_first("175B", Runtime(gradient_bytes=width), dp=2, zero=1) for width in (4, 2))
    assert narrow.state / wide.state == pytest.approx((4 + 16 / 2) / (6 + 12 / 2))


def test_state_is_eighteen_bytes_a_parameter() -> None:
    """12·h² + 13·h of each layer; the embedding's v·h and positions s·h on the first rank (2104.04473, equation 2)."""
    layers, h, _, pp, _ = SIZES["175B"]
    blocks = layers / pp * ((12 * h * h + 7 * h) / 8 + 6 * h)
    assert _first("175B").state == pytest.approx(18 * (blocks + 51200 * h / 8 + 2048 * h))


def test_tied_weights_on_one_rank_are_held_once() -> None:
    layers, h, _, _, _ = SIZES["22B"]
    blocks = layers * ((12 * h * h + 7 * h) / 8 + 6 * h)
    assert _first("22B").state == pytest.approx(18 * (blocks + 51200 * h / 8 + 2048 * h + 2 * h))


def test_logits_and_their_gradient_are_in_fp32_on_the_last_rank() -> None:
    """Of the 4·s·b·v/t bytes each, the logits are counted as saved, so that what is left is at least the gradient."""
    s, b, v, t = 2048, 1, 51200, 8
    last = _costs("175B").memory[-1]
    assert last.temporary == pytest.approx(4 * s * b * v / t)
    assert last.runtime == 2 * 1.5e9  # of tp and pp


@pytest.mark.parametrize(("tp", "copies"), [(1, 3.5), (8, 4.5)])
def test_a_loss_holds_as_many_copies_of_the_logits_as_the_framework_makes(tp: int, copies: float) -> None:
    """The head saves 4·s·b·h and logits in fp32, 4·s·b·v/t (2205.05198, section 4.3); the other copies come on top."""
    (_, h, _, _, b), s, v = SIZES["22B"], 2048, 51200
    runtime = Runtime(flash=False, loss_copies=3.5, tensor_loss_copies=4.5)
    memory = _costs("22B", runtime, tp=tp, dp=8 // tp).memory[-1]
    assert memory.temporary == pytest.approx((copies - 1) * 4 * s * b * v / tp - 4 * s * b * h)


def test_logits_of_the_micro_batch_before_are_one_copy_more() -> None:
    """4·s·b·v/t bytes on the last rank, where there is a micro-batch before."""
    s, b, v, t = 2048, 4, 51200, 8
    for micro_batches, copies in ((1, 0), (2, 1)):
        before, after = (
            _costs("22B", Runtime(tensor_loss_copies=4.0, holds_logits=holds), global_batch=b * micro_batches)
            .memory[-1]
            .temporary
            for holds in (False, True)
        )
        assert after - before == pytest.approx(copies * 4 * s * b * v / t)


def _data_s(zero: int, overlap: float, runtime: Runtime = UNFUSED, nodes: int = 1, **fields: object) -> float:
    work = gpt_work(4, 1024, 16, sequence=512, vocabulary=1024)
    fields = {"micro_batch": 1, "global_batch": 16, "dp": 4, "zero": zero, **fields}
    strategy = Strategy(**fields)  # type: ignore[arg-type]
    device = replace(DEVICE, step=replace(CONSTANTS, overlap=overlap))
    cluster = Cluster(nodes, strategy.devices // nodes, 3e11, 2e11, 8e10)
    costs = stage_costs(work, strategy, cluster, device, runtime)
    once_s = 0.0 if zero == 3 else float(costs.data_s[0])
    return once_s + strategy.micro_batches * float(costs.times.gathers.sum())


def _parameters() -> float:
    h = 1024
    return 4 * (12 * h * h + 13 * h) + 1024 * h + 512 * h + 2 * h


def test_gradients_are_reduced_once_a_step_in_16_bits() -> None:
    """2 · 3/4 of 2 bytes a parameter over 300 GB/s; scattered and gathered are as many bytes."""
    ring = 1.5 * 2 * _parameters() / 3e11 + 6 * LATENCY_S
    alone = replace(UNFUSED, prefetches=False)
    for zero in (0, 1, 2):
        assert _data_s(zero, 0.0, alone) == pytest.approx(ring)
        assert _data_s(zero, 0.5, alone) == pytest.approx(ring / 2)


def test_a_framework_sums_the_gradients_that_it_adds_up_in_32_bits_and_may_expose_what_zero_moves() -> None:
    """2 · 3/4 of 4 bytes a parameter over 300 GB/s; with ZeRO 3/4 of 4 and of 2, and rings of three steps for the
    scattered gradients and for each of four blocks' weights."""
    runtime, part = replace(UNFUSED, gradient_bytes=6, exposes_gathers=True), 0.75 * _parameters() / 3e11
    assert _data_s(0, 0.0, runtime, precision="bf16") == pytest.approx(8 * part + 6 * LATENCY_S)
    for zero in (1, 2):
        assert _data_s(zero, 0.5, runtime, precision="bf16") == pytest.approx(6 * part + 15 * LATENCY_S)


def test_gradients_that_are_summed_in_buckets_go_round_a_ring_for_each() -> None:
    """Eight buckets of 16-bit gradients; no more than one for each of four blocks' matrices, nor fewer than one."""
    eighth = 2 * _parameters() / 8
    for size, matrices, rings in ((eighth, 6, 8), (eighth, 1, 4), (eighth, 3, 8), (100 * eighth, 6, 1)):
        runtime = replace(UNFUSED, gathers_a_layer=matrices, bucket_bytes=size, prefetches=False)
        for zero, gathers in ((0, 0), (1, 1)):
            latency = (rings * (2 - zero) + gathers) * 3 * LATENCY_S
            assert _data_s(zero, 0.0, runtime) == pytest.approx(1.5 * 2 * _parameters() / 3e11 + latency)


@pytest.mark.parametrize(("fields", "hidden"), [({}, 0.5), ({"pp": 2}, 0.0), ({"tp": 4}, 0.5), ({"tp": 8}, 0.0)])
def test_gradients_wait_for_messages_and_for_sums_across_nodes_where_a_device_has_one_queue(
    fields: dict[str, int], hidden: float
) -> None:
    """nanotron took up to 86 % longer without ZeRO than with it there, and up to 29 % less elsewhere."""
    strategy = Strategy(micro_batch=8, global_batch=16, dp=2, **fields)  # type: ignore[arg-type]
    cluster, work = Cluster(max(1, strategy.devices // 4), 4, 3e11, 2e11, 8e10), gpt_work(4, 1024, 16, sequence=512)
    exposed, alone = (
        stage_costs(work, strategy, cluster, DEVICE, Runtime(exposes_gathers=True, gradient_overlap=share)).data_s
        for share in (0.5, 0.0)
    )
    assert exposed == pytest.approx((1 - hidden) * alone)


def test_passes_with_tensor_parallelism_in_a_pipeline_take_as_long_as_the_host_waits_for_sums() -> None:
    """Two sums a pass of each of 48 blocks in one pipeline rank of two, and one of the embedding, of 8 ranks each."""
    waits = Runtime(sum_host_s=0.1)
    assert _costs("22B", waits, pp=2).times.passes[0][0] == pytest.approx(0.1 * 8 * (2 * 24 + 1))
    assert _costs("22B", waits).times.passes[0][0] == _costs("22B", Runtime()).times.passes[0][0]


def test_sums_of_tensor_parallelism_over_nodes_take_longer_by_their_ranks() -> None:
    """Of 16 ranks on two nodes each of two sums a pass of 48 blocks, and the embedding's, as much as overlap leaves."""
    longer, usual = Runtime(sum_across_s=0.1), Runtime()
    for tp, sums in ((8, 0), (16, 2 * 48 + 1)):
        with_it, without = (_costs("22B", runtime, tp=tp).times.tensor[0].sum() for runtime in (longer, usual))
        assert with_it - without == pytest.approx(0.1 * tp * sums)


def test_zero_3_gathers_twice_and_reduces_once_for_every_micro_batch() -> None:
    """Three times 3/4 of 2 bytes a parameter, and six layers with a ring of three steps each."""
    once = 0.75 * 2 * _parameters() / 3e11 + 6 * 3 * LATENCY_S
    alone = replace(UNFUSED, prefetches=False)
    assert _data_s(3, 0.0, alone) == pytest.approx(4 * 3 * once)
    assert _data_s(3, 0.5, alone) < 4 * 3 * once


def test_groups_reduce_inside_a_node_and_sum_their_parts_across() -> None:
    """Two nodes of four: 3/4 of 2 bytes a parameter are scattered and gathered over 300 GB/s, and a quarter of them is
    summed with the other node's over 200 GB/s, which four devices share."""
    part, fields = 0.75 * 2 * _parameters() / 3e11, {"dp": 8, "dp_replicate": 2}
    sums = 2 * 0.5 * 2 * _parameters() / 4 * 4 / 2e11 + 2 * ACROSS_S
    once = 2 * (part + 3 * LATENCY_S) + sums
    assert _data_s(1, 0.0, replace(UNFUSED, prefetches=False), nodes=2, **fields) == pytest.approx(once)
    layers, micro_batches = 6, 2
    every = 3 * part + layers * 9 * LATENCY_S + sums + (layers - 1) * 2 * ACROSS_S
    got = _data_s(3, 0.0, replace(UNFUSED, prefetches=False), nodes=2, **fields)
    assert got == pytest.approx(micro_batches * every)


def test_weights_that_are_broadcast_rank_by_rank_take_as_long_for_each() -> None:
    """InternEvo's 7B takes 2.7 s longer on 1,024 ranks than within groups of 8 (its doc/en/train_performance.md)."""
    usual, by_rank = (replace(UNFUSED, prefetches=False, shard_s=seconds) for seconds in (0.0, 2e-3))
    for zero, ranks in ((0, 0), (1, 8), (2, 8)):
        more_s = _data_s(zero, 0.5, by_rank, dp=8) - _data_s(zero, 0.5, usual, dp=8)
        assert more_s == pytest.approx(2e-3 * ranks)


def _gathered(pp: int, dp: int, prefetches: bool = True, **fields: object) -> list[float]:
    """Bytes that ranks hold gathered of four blocks of a GPT."""
    work = gpt_work(4, 1024, 16, sequence=512, vocabulary=8192)
    strategy = Strategy(micro_batch=1, global_batch=16, dp=dp, pp=pp, zero=3, **fields)  # type: ignore[arg-type]
    cluster = Cluster(1, strategy.devices, 3e11, 2e11, 8e10)
    costs = stage_costs(work, strategy, cluster, DEVICE, Runtime(prefetches=prefetches))
    return [memory.gathered for memory in costs.memory]


def test_a_rank_gathers_the_ends_of_the_model_only_where_it_has_them() -> None:
    """The embedding's 8192 + 512 rows on the first rank, the last norm on the last one, blocks of 12·h² + 13·h on all.

    Every rank was said to gather both ends of the model.
    """
    h = 1024
    block, embedding, norm = 12 * h * h + 13 * h, (8192 + 512) * h, 2 * h
    assert _gathered(2, 2) == [2 * (2 * block + embedding), 2 * (2 * block + norm)]
    assert _gathered(4, 2) == [2 * (block + embedding), 2 * block, 2 * block, 2 * (block + norm)]
    assert _gathered(2, 2, prefetches=False) == [2 * (block + max(block, embedding)), 2 * (2 * block)]
    assert _gathered(2, 2, layers=(0, 4)) == [2 * embedding, 2 * (2 * block + norm)]


@pytest.mark.parametrize("pp", [1, 2])
def test_one_rank_of_data_parallelism_gathers_nothing(pp: int) -> None:
    """It has all of its weights anyway, and was said to hold a second copy of two layers."""
    assert _gathered(pp, 1) == [0.0] * pp


def test_weights_that_are_prefetched_come_beside_computation() -> None:
    """As much is hidden as where nine tenths of all communication go on beside it."""
    alone = replace(UNFUSED, prefetches=False)
    assert _data_s(3, 0.0) == _data_s(3, PREFETCHED, alone) < _data_s(3, 0.5, alone)
    assert _data_s(3, 1.0) == _data_s(3, 1.0, alone)
    assert _data_s(0, 0.0) == _data_s(0, 0.0, alone)


def test_a_block_that_is_gathered_in_pieces_pays_the_latency_of_each() -> None:
    """Four blocks in twelve pieces, gathered twice and reduced once for each of four micro-batches."""
    whole, pieces = (_data_s(3, 0.0, runtime=Runtime(gathers_a_layer=count, prefetches=False)) for count in (1, 12))
    assert pieces - whole == pytest.approx(4 * 3 * 4 * 11 * 3 * LATENCY_S)


@pytest.mark.parametrize("zero", range(4))
def test_a_device_holds_as_many_parameters_of_whole_experts_as_of_parts_of_more(zero: int) -> None:
    """Eight experts on tp 4 by dp 2 devices: one each, or four of each device's parts of four; nobody else has them."""
    block = Amounts(np.array([8.0 * 1024**2, 64.0]), np.array([Mark.EXPERTS | Mark.TENSOR, 0], np.int8))
    work = gpt_work(4, 1024, 16, sequence=512, vocabulary=1024)
    first, one, last = work.layers
    shape = replace(work.shape, experts=8)
    work = replace(work, shape=shape, layers=(first, replace(one, parameters=block), last))

    def state(ep: int, dp: int) -> tuple[float, ...]:
        strategy = Strategy(micro_batch=1, global_batch=16, tp=4, dp=dp, pp=2, ep=ep, zero=zero)
        cluster = Cluster(1, strategy.devices, 3e11, 2e11, 8e10)
        return stage_costs(work, strategy, cluster, DEVICE).memory[0][:3]

    assert state(8, 2) == pytest.approx(state(2, 2))


def test_zero_divides_the_update() -> None:
    work = gpt_work(4, 1024, 16, sequence=512, vocabulary=1024)

    def update_s(zero: int) -> float:
        strategy = Strategy(micro_batch=1, global_batch=16, dp=4, zero=zero)
        return stage_costs(work, strategy, Cluster(1, 4, 3e11, 2e11, 8e10), DEVICE).optimizer_s

    assert update_s(0) == pytest.approx(30 * _parameters() / 1.6e12)
    assert update_s(1) == pytest.approx(update_s(0) / 4)


def test_a_stage_recomputes_its_first_blocks_and_keeps_the_others() -> None:
    """Between none and all of 24 blocks, what is recomputed and what is saved grow and shrink in proportion."""
    none, some, full = (
        _costs("22B", pp=2, micro_batch=1, global_batch=8, recompute=recompute, recompute_blocks=blocks)
        for recompute, blocks in (("none", None), (("full", "none"), (6, 0)), ("full", None))
    )
    assert some.times.recompute.tolist() == pytest.approx([full.times.recompute[0] / 4, 0.0])
    saved = [costs.memory[0].activations for costs in (none, some, full)]
    assert saved[0] - saved[1] == pytest.approx((saved[0] - saved[2]) / 4)
    assert some.memory[1] == none.memory[1]
    assert some.memory[0].temporary == full.memory[0].temporary


@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize(("schedule", "vp"), [("1f1b", 1), ("interleaved", 2), ("zb-v", 2), ("zb-h1", 2)])
def test_another_schedule_costs_the_same_as_one_that_was_never_anothers(schedule: str, vp: int, zero: int) -> None:
    """The layers of a strategy are taken over by one with another schedule (`run_by`), and nothing else is."""
    cluster = Cluster(8, 8, 3e11, 2e11, 8e10)
    layers = LayerCosting(gpt_work(24, 1024, 16), cluster, DEVICE, UNFUSED)
    first = Strategy(micro_batch=2, global_batch=128, tp=2, pp=4, dp=8, zero=zero, schedule="zb-h2")
    other = replace(first, schedule=schedule, vp=vp)
    taken_over = StageCosting(layers, first).run_by(other).costs(other)
    alone = stage_costs(gpt_work(24, 1024, 16), other, cluster, DEVICE, UNFUSED)
    for name, theirs in vars(alone).items():
        np.testing.assert_equal(getattr(taken_over, name), theirs)


@pytest.mark.parametrize(("zero", "nbytes"), [(0, 0.0), (1, 2e9)])
def test_buffers_to_reduce_and_gather_in_are_there_with_zero_alone(zero: int, nbytes: float) -> None:
    """DeepSpeed without ZeRO was priced with 2 GB that it does not hold, and a run of AMP's was said not to fit."""
    usual, buffered = (
        _costs("22B", Runtime(flash=False, buffer_bytes=amount), dp=1, zero=zero).memory[0].runtime
        for amount in (0.0, 2e9)
    )
    assert buffered - usual == nbytes
