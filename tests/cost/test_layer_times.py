"""Times of layers from hand-made kernels, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from gpt_work import NONE, TENSOR, TOKEN, KernelList, gpt_work

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device, StepConstants, alignment_shares
from automap_models.core.model_work import Kernels, LayerWork, Mark, WorkKind, WorkPass
from automap_models.core.strategy import RECOMPUTE, Strategy
from automap_models.core.tuning import LayerTraining
from automap_models.cost.layer_times import Shares, StepClock, model_flop
from automap_models.cost.process_groups import process_groups
from automap_models.cost.recompute import run_again
from automap_models.cost.runtime import Runtime
from automap_models.workloads.layer import Layer

CONSTANTS = StepConstants(
    product_efficiency=0.5,
    half_size=64.0,
    attention_efficiency=0.25,
    bandwidth_efficiency=0.5,
    launch_s=1e-6,
    intra_efficiency=1.0,
    inter_efficiency=1.0,
    overlap=0.0,
)
DEVICE = Device("d", {"float32": 1e13, "bfloat16": 1e14, "float8": 2e14}, 1e13, 1e12, step=CONSTANTS)
UNFUSED = Runtime(flash=False)


def _layer(kernels: KernelList) -> LayerWork:
    return LayerWork("layer", kernels.done(), NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE)


class LayerTimes(NamedTuple):
    """The columns of StepClock.layer by name; pairs are of the forward and the backward pass."""

    forward: float
    input: float
    weight: float
    again: float
    tensor: tuple[float, float]
    context: tuple[float, float]
    hidden_context: tuple[float, float]
    experts: tuple[float, float]


def _times(layer: LayerWork, runtime: Runtime = UNFUSED, block: bool = True, **fields: object) -> LayerTimes:
    fields = {"micro_batch": 1, "global_batch": 16, **fields}
    strategy = Strategy(**fields)  # type: ignore[arg-type]
    cluster = Cluster(1, strategy.devices, 1e11, 1e11, 8e10)
    groups = process_groups(strategy, cluster, CONSTANTS)
    again = run_again(layer, ("selective",), runtime)
    ((times,),) = StepClock(DEVICE, [groups], Shares([strategy]), runtime).layer(layer, block, again).tolist()
    return LayerTimes(*times[:4], *zip(times[4::2], times[5::2], strict=True))


def _product(rows: float, columns: float, depth: float, marks: tuple[int, int, int, int]) -> LayerWork:
    kernels = KernelList()
    kernels.product(WorkPass.FORWARD, (1, rows, columns, depth), marks)
    return _layer(kernels)


def test_a_product_takes_its_flop_over_what_its_tiles_and_depth_let_it_reach() -> None:
    """A depth of 448 reaches 7/8 of half the peak; tiles of 256 × 128 are the largest, and filled."""
    expected = 2 * 1024 * 1024 * 448 / (1e14 * 0.5 * 0.875)
    assert _times(_product(1024, 1024, 448, (0, 0, 0, 0))).forward == pytest.approx(expected + 1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tp": 4, "sequence_parallel": True},
        {"tp": 2, "cp": 2},
        {"tp": 2, "precision": "fp8"},
        {"precision": "fp32"},
    ],
)
@pytest.mark.parametrize("runtime", [Runtime(), UNFUSED])
def test_micro_batches_of_several_sizes_at_once_take_what_each_takes_alone(
    fields: dict[str, object], runtime: Runtime
) -> None:
    layer = gpt_work(1, 1024, 16, sequence=1024).layers[1]
    sizes = (1, 2, 3, 16)
    strategies = [Strategy(micro_batch=size, global_batch=48, **fields) for size in sizes]  # type: ignore[arg-type]
    groups = process_groups(strategies[0], Cluster(1, strategies[0].devices, 1e11, 1e11, 8e10), CONSTANTS)
    again = run_again(layer, RECOMPUTE, runtime)
    clock = StepClock(DEVICE, [groups] * 4, Shares(strategies), runtime)
    at_once = clock.layer(layer, True, again)
    for times, strategy in zip(at_once, strategies, strict=True):
        (alone,) = StepClock(DEVICE, [groups], Shares([strategy]), runtime).layer(layer, True, again)
        np.testing.assert_allclose(times, alone, rtol=1e-12)
    assert at_once[0, 0, 0] < at_once[1, 0, 0] < at_once[3, 0, 0]


def test_a_product_runs_at_the_clock_that_the_power_limit_sustains() -> None:
    layer, strategy = _product(1024, 1024, 448, (0, 0, 0, 0)), Strategy(micro_batch=1, global_batch=16)
    groups = process_groups(strategy, Cluster(1, 1, 1e11, 1e11, 8e10), CONSTANTS)
    device = replace(DEVICE, sustained=0.8)
    again = run_again(layer, ("none",), UNFUSED)
    ((limited,),) = StepClock(device, [groups], Shares([strategy]), UNFUSED).layer(layer, True, again)
    assert limited[0] - 1e-6 == pytest.approx((_times(layer).forward - 1e-6) / 0.8)


def test_a_thin_product_takes_its_bytes() -> None:
    """Sixteen rows and 8192 × 8192 weights: 2 · 8192² bytes at half of 1 TB/s, and little else."""
    times = _times(_product(16, 8192, 8192, (0, 0, 0, 0)), block=False)
    moved = 2 * (16 * 8192 + 8192**2 + 16 * 8192)
    assert times.forward == pytest.approx(moved / 5e11 + 1e-6)


def test_micro_batch_context_and_tensor_parallelism_change_the_sizes() -> None:
    """64 tokens · 4 samples / 2 ranks of cp, 1024 columns / 4 ranks of tp."""
    one = _times(_product(64, 1024, 512, (0, TOKEN, TENSOR, 0)), micro_batch=4, tp=4, cp=2)
    assert one.forward == _times(_product(128, 256, 512, (0, 0, 0, 0))).forward


def test_sequence_parallelism_divides_what_is_not_partitioned_otherwise() -> None:
    kernels = KernelList()
    kernels.memory(WorkPass.FORWARD, 1e9, TOKEN)
    kernels.memory(WorkPass.INPUT, 1e9, TOKEN | TENSOR)
    plain, shared = (_times(_layer(kernels), tp=4, sequence_parallel=on) for on in (False, True))
    assert (plain.forward, plain.input) == pytest.approx((2e-3 + 1e-6, 0.5e-3 + 1e-6))
    assert (shared.forward, shared.input) == pytest.approx((0.5e-3 + 1e-6, 0.5e-3 + 1e-6))


def test_fp8_products_of_blocks_run_at_their_own_peak_after_a_cast() -> None:
    """Casts of 512·1024 + 1024·2048 elements, 5 bytes each, at half of 1 TB/s."""
    layer = _product(512, 2048, 1024, (0, 0, 0, 0))
    bf16 = _times(layer).forward - 1e-6
    casts = 5 * (512 * 1024 + 1024 * 2048) / 5e11
    assert _times(layer, precision="fp8").forward == pytest.approx(bf16 / 2 + casts + 1e-6)
    assert _times(layer, precision="fp8", block=False).forward == pytest.approx(bf16 + 1e-6)


def test_each_operand_is_cast_once_and_before_it_is_gathered() -> None:
    """Of a linear layer of 512 tokens whose 2,048 columns four devices divide: 512·1024 activations, a quarter of them
    with sequence parallelism, and 1024·512 weights forward; 512·512 gradients backward; none for weights."""
    kernels = KernelList()
    kernels.linear(512, 2048, 1024, "columns")
    a_byte_s = 5 / 5e11

    def cast_s(**fields: object) -> tuple[float, ...]:
        """Longer than half of what the layer takes in 16 bits."""
        wide, narrow = (_times(_layer(kernels), tp=4, precision=name, **fields) for name in ("bf16", "fp8"))
        return tuple(b - 1e-6 - (a - 1e-6) / 2 for a, b in zip(wide[:3], narrow[:3], strict=True))

    forward, backward, weights = 512 * 1024 + 1024 * 512, 512 * 512, 0
    assert cast_s() == pytest.approx((forward * a_byte_s, backward * a_byte_s, weights), abs=1e-12)
    shared = 512 * 1024 / 4 + 1024 * 512
    assert cast_s(sequence_parallel=True) == pytest.approx((shared * a_byte_s, backward * a_byte_s, 0), abs=1e-12)


def test_a_causal_flash_kernel_computes_half_the_scores_and_two_and_a_half_times_that_back() -> None:
    """a · s² · d · 2 FLOP for each of two products: 16 · 1024² · 64 · 4 / 2 at a quarter of the peak."""
    (_, block, _) = gpt_work(1, 1024, 16, sequence=1024).layers
    flop = 16 * 1024**2 * 64 * 4
    core = block.kernels.core

    def core_s(layer: LayerWork) -> tuple[float, float]:
        """Forward and backward time of the core: a block's without that of a block without."""
        flash = _times(layer, Runtime())
        rest = _times(replace(layer, kernels=_without_core(layer)), Runtime())
        return flash.forward - rest.forward, flash.input - rest.input

    assert core.any()
    assert core_s(block) == pytest.approx((flop / 2 / 2.5e13 + 1e-6, 2.5 * flop / 2 / 2.5e13 + 1e-6))
    assert core_s(replace(block, causal=False))[0] == pytest.approx(flop / 2.5e13 + 1e-6)


@pytest.mark.parametrize(
    ("peak", "attention_efficiency", "runtime", "reached"),
    [
        (1e14, 0.25, Runtime(hopper_attention=True), 0.4e14),
        (1e14, 0.75, Runtime(hopper_attention=True), 1e14),
        (2e15, 0.25, Runtime(), 5e14),
        (2e15, 0.25, Runtime(flash_2=True), 3e14),
        (4e14, 0.25, Runtime(flash_2=True), 2e14),
        (4e14, 0.6, Runtime(flash_2=True), 2.4e14),
    ],
)
def test_what_flash_kernels_reach_is_of_those_that_the_runtime_has(
    peak: float, attention_efficiency: float, runtime: Runtime, reached: float
) -> None:
    """FlashAttention-3 reaches 1.5 to 2.0 times FlashAttention-2 (Shah et al., 2407.08608, section 4.1), up to a peak;
    FlashAttention-2 on B200 no more than on H100 (meta-pytorch/tritonbench, pull request 171), and before these half of
    the peak or more (Dao, 2307.08691, abstract)."""
    (_, block, _) = gpt_work(1, 1024, 16, sequence=1024).layers
    flop = 16 * 1024**2 * 64 * 4 / 2
    step = replace(CONSTANTS, attention_efficiency=attention_efficiency)
    device = replace(DEVICE, matrix={**DEVICE.matrix, "bfloat16": peak}, bandwidth=1e15, step=step)
    strategy = Strategy(micro_batch=1, global_batch=16)
    groups = process_groups(strategy, Cluster(1, 1, 1e11, 1e11, 8e10), CONSTANTS)
    clock = StepClock(device, [groups], Shares([strategy]), runtime)
    both = (block, replace(block, kernels=_without_core(block)))
    times, rest = (clock.layer(layer, True, run_again(layer, ("none",), runtime))[0, 0] for layer in both)
    assert times[0] - rest[0] == pytest.approx(flop / reached + 1e-6)
    assert times[1] - rest[1] == pytest.approx(2.5 * flop / reached + 1e-6)


def _without_core(layer: LayerWork) -> Kernels:
    kernels = layer.kernels
    keep = ~kernels.core
    number = np.cumsum(keep) - 1
    moved = keep[kernels.moved_kernels]
    return replace(
        kernels,
        passes=kernels.passes[keep],
        kinds=kernels.kinds[keep],
        core=kernels.core[keep],
        sizes=kernels.sizes[keep],
        size_marks=kernels.size_marks[keep],
        moved_kernels=number[kernels.moved_kernels[moved]],
        moved_bytes=kernels.moved_bytes[moved],
        moved_marks=kernels.moved_marks[moved],
        moved_scores=kernels.moved_scores[moved],
        moved_again=kernels.moved_again[moved],
    )


def test_sums_of_tensor_parallelism_may_go_beside_products() -> None:
    """Two all-reduces of 2·s·h bytes over four devices at 100 GB/s."""
    (_, block, _) = gpt_work(1, 1024, 16, sequence=1024).layers
    ring = 1.5 * 2 * 1024 * 1024 / 1e11 + 6 * 3.4e-6
    assert _times(block, tp=4).tensor == pytest.approx((2 * ring, 2 * ring))
    assert _times(block, Runtime(tensor_overlap=0.75), tp=4).tensor[0] == pytest.approx(ring / 2)


def test_a_host_that_launches_half_as_fast_lets_no_sums_go_beside_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 3.1 405B on GB200 was 10 % too fast in seven MLPerf results, with the overlap of x86 hosts."""
    (_, block, _) = gpt_work(1, 1024, 16, sequence=1024).layers
    plain, beside = (_times(block, Runtime(tensor_overlap=share), tp=4).tensor for share in (0.0, 0.75))
    monkeypatch.setitem(_times.__globals__, "DEVICE", replace(DEVICE, host=2.0))
    assert _times(block, Runtime(tensor_overlap=0.75), tp=4).tensor == plain != beside


def test_keys_and_values_hide_behind_attention() -> None:
    (_, block, _) = gpt_work(1, 1024, 16, sequence=1024).layers
    slow = _times(block, Runtime(), cp=4).context
    unfused = _times(block, cp=4).context
    assert 0.0 <= unfused[0] <= slow[0]
    assert _times(block, cp=1).context == (0.0, 0.0)


def test_sides_that_are_no_multiple_of_eight_use_no_matrix_units() -> None:
    sizes = np.array([[64.0, 128, 256], [64, 128, 72], [64, 150, 256], [64.5, 128, 64]])
    assert alignment_shares(sizes).tolist() == [1.0, 0.93, 0.07, 1.0]


def test_model_flop_of_a_block_are_six_a_parameter_and_attention() -> None:
    """72·s·h² + 12·s²·h forward and backward (2104.04473, appendix: 24·s·h² + 4·s²·h forward, times three)."""
    (_, block, _) = gpt_work(1, 1024, 16, sequence=512).layers
    assert model_flop(block.kernels) == 72 * 512 * 1024**2 + 12 * 512**2 * 1024


def test_weights_cast_once_a_step_cost_a_share_of_every_micro_batch() -> None:
    """Of 512 tokens by 2,048 columns and 1,024 deep: 5 bytes an element; 16 micro-batches share the cast of weights."""
    kernels = KernelList()
    kernels.linear(512, 2048, 1024, "columns")
    runtime = Runtime(flash=False, casts_weights_once=True)
    every, once = (_times(_layer(kernels), of, precision="fp8").forward for of in (UNFUSED, runtime))
    assert every - once == pytest.approx(15 / 16 * 1024 * 2048 * 5 / 5e11)


def test_frozen_weights_are_never_cast() -> None:
    """Of as many elements as above, to which nothing is added that makes gradients of parameters."""
    trained, frozen = KernelList(), KernelList()
    trained.linear(512, 2048, 1024, "columns")
    frozen.product(WorkPass.FORWARD, (1, 512, 2048, 1024), trained.rows[0][4])  # type: ignore[arg-type]
    runtime = Runtime(flash=False, casts_weights_once=True)
    once, never = (_times(_layer(of), runtime, precision="fp8").forward for of in (trained, frozen))
    assert once - never == pytest.approx(1 / 16 * 1024 * 2048 * 5 / 5e11)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_products_of_one_value_take_as_long_joined_as_one_product(precision: str) -> None:
    """Two of 2,048 columns and one of 4,096, of so few tokens that all are bound by the memory."""
    two, one = Layer(8, "bfloat16"), Layer(8, "bfloat16")
    for layer, columns in ((two, (2048, 2048)), (one, (4096,))):
        x = layer.value(1024)
        for count in columns:
            layer.dense(x, count)
    joined, single = (_times(of.work("layer"), Runtime(joins=True), precision=precision) for of in (two, one))
    apart = _times(two.work("layer"), Runtime(), precision=precision)
    assert joined[:2] == pytest.approx(single[:2])
    assert min(apart.forward - joined.forward, apart.input - joined.input) > 1e-6  # a launch at least


def test_uneven_experts_hold_up_those_that_have_fewer_tokens() -> None:
    """Four experts' products, copies on their way and the way itself take a quarter longer, the router as long."""
    routed, alone = Layer(64, "bfloat16"), Layer(64, "bfloat16")
    for layer in (routed, alone):
        layer.dense(layer.value(256), 4, float32=True)
    tokens = routed.value(256, rows=32, count=4)
    routed.memory(WorkPass.FORWARD, tokens, tokens, routing=True)
    routed.exchanged.append(routed.dense(tokens, 512, experts=Mark.EXPERTS))
    router = _times(alone.work("layer")).forward
    even, uneven = (_times(routed.work("layer"), Runtime(flash=False, imbalance=x), ep=2, dp=2) for x in (1.0, 1.25))
    assert uneven.forward - router == pytest.approx(1.25 * (even.forward - router))
    assert uneven.experts == pytest.approx(tuple(1.25 * s for s in even.experts))


@pytest.mark.parametrize(("etp", "moved"), [(1, 0), (2, 4 * 32_000 * 256 * 2)])
def test_experts_that_a_device_has_whole_sum_nothing_with_tensor_parallelism(etp: int, moved: int) -> None:
    """Qwen3-235B with tp 4 and etp 1 was priced at 1.3 to 1.8 of measured steps, for sums of every copy of a token.
    Two devices that share an expert all-reduce those copies once a pass: as many bytes as a ring of two sends."""
    layer = Layer(64_000, "bfloat16")
    tokens = layer.value(256, rows=32_000, count=4)
    inner, gate = (layer.dense(tokens, 512, Mark.TENSOR, experts=Mark.EXPERTS) for _ in range(2))
    layer.exchanged.append(layer.dense(layer.gated(gate, inner), 256, experts=Mark.EXPERTS))
    times = _times(layer.work("layer"), tp=2, ep=2, dp=2, etp=etp, sequence_parallel=True)
    assert times.tensor == pytest.approx((moved / 1e11,) * 2, rel=0.02)


@pytest.mark.parametrize(("precision", "launches"), [("bf16", 3 * 3), ("fp8", 2 * 7 + 3)])
def test_a_product_of_experts_is_launched_for_each_of_a_device_where_the_framework_loops(
    precision: str, launches: int
) -> None:
    """Two devices share eight experts: three products are four each, and in 8 bits two of them read what is cast."""
    layer = Layer(64, "bfloat16")
    layer.dense(layer.value(256, rows=32, count=8), 512, experts=Mark.EXPERTS)
    runtimes = (Runtime(experts_apart=apart) for apart in (True, False))
    apart, joined = (_times(layer.work("layer"), of, precision=precision, ep=2, dp=2) for of in runtimes)
    assert sum(apart[:3]) - sum(joined[:3]) == pytest.approx(launches * 1e-6)


def test_gradients_of_weights_move_as_many_bytes_as_the_framework_does() -> None:
    """A cast of 1e6 gradients is traced as 2 bytes read and 4 written, at half of 1 TB/s, beside a sum over tokens."""
    kernels = KernelList()
    kernels.memory(WorkPass.WEIGHT, 1e9, TOKEN)
    layer = _layer(kernels)
    work = layer.kernels
    cast = replace(
        work,
        passes=np.append(work.passes, np.int8(WorkPass.WEIGHT)),
        kinds=np.append(work.kinds, np.int8(WorkKind.MEMORY)),
        core=np.append(work.core, False),
        sizes=np.vstack([work.sizes, np.ones((1, 4))]),
        size_marks=np.vstack([work.size_marks, np.zeros((1, 4), dtype=np.int8)]),
        moved_kernels=np.append(work.moved_kernels, [1, 1]),
        moved_bytes=np.append(work.moved_bytes, [2e6, 4e6]),
        moved_marks=np.append(work.moved_marks, np.array([TENSOR, TENSOR], dtype=np.int8)),
        moved_scores=np.append(work.moved_scores, [False, False]),
        moved_again=np.append(work.moved_again, [False, False]),
    )
    fused, traced, widened = (
        _times(replace(layer, kernels=cast), Runtime(flash=False, gradient_moved_bytes=moved)).weight
        for moved in (0.0, 6.0, 18.0)
    )
    assert fused == pytest.approx(_times(layer).weight)
    assert traced - fused == pytest.approx(6e6 / 5e11 + 1e-6)
    assert widened - fused == pytest.approx(3 * (traced - fused))


def test_an_eager_program_runs_its_small_operations_one_by_one() -> None:
    """A gate of 8 × 16 tokens: its activation is written and read, 2 · 2 bytes a number each way, by a kernel more."""
    layer = Layer(16, "bfloat16")
    layer.gated(layer.value(64), layer.value(64))
    fused, eager = (_times(layer.work("gate"), Runtime(eager=eager), micro_batch=8) for eager in (False, True))
    expected = 2 * 2 * 8 * 16 * 64 / (1e12 * 0.5) + 1e-6
    assert eager.forward - fused.forward == pytest.approx(expected)
    assert eager.input - fused.input == pytest.approx(expected)


def test_weights_in_four_bits_are_widened_at_a_share_of_the_bandwidth() -> None:
    """2 bytes and 0.516 of each, forward and backward, at 0.4 of half of 1e12 bytes/s."""
    times = list[LayerTimes]()
    for quantized in (False, True):
        layer = Layer(16, "bfloat16", LayerTraining(("*",), quantized=quantized))
        layer.dense(layer.value(64), 128, name="up")
        times.append(_times(layer.work("up")))
    plain, packed = times
    expected = (2 + 0.5 + 0.127 / 8) * 64 * 128 / (0.4 * 0.5e12) + 1e-6
    assert packed.forward - plain.forward == pytest.approx(expected)
    assert packed.input - plain.input == pytest.approx(expected)
