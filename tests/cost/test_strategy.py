"""What a device holds is what Korthikanti et al. publish (2205.05198), and what ZeRO divides."""

from __future__ import annotations

import pytest

from automap_models.core.estimate import DeviceMemory
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.core.tuning import FULL
from automap_models.cost.runtime import Runtime
from automap_models.cost.strategy import device_memory
from automap_models.errors import BadInput

GIB = 2.0**30
SIZES = {
    "22B": (48, 6144, 64, 1, 1, 4, 4),
    "175B": (96, 12288, 96, 8, 3, 1, 64),
    "530B": (105, 20480, 128, 35, 3, 1, 280),
    "1T": (128, 25600, 160, 64, 1, 1, 512),
}
"""Layers, hidden size, heads, pp, vp, micro-batch and global batch of Table 3; tp is 8, a sample has 2,048 tokens."""
FIGURE_1 = {
    "22B": (45.5625, 59.25, 9.5625),
    "175B": (45.5625, 66.84375, 12.3515625),
    "530B": (31.640625, 114.0234375, 23.076171875),
    "1T": (32.958984375, 131.25, 26.5625),
}
"""GiB of parameters and optimiser state, of activations with tensor parallelism alone, and of activations with sequence
parallelism and selective recomputation, as figure 1 shows them."""


def _model(name: str) -> tuple[TransformerShape, Strategy]:
    layers, hidden, heads, pp, vp, micro_batch, global_batch = SIZES[name]
    shape = TransformerShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=4 * hidden,
        sequence=2048,
        vocabulary=51200,
    )
    schedule = "interleaved" if vp > 1 else "1f1b"
    return shape, Strategy(
        micro_batch=micro_batch, global_batch=global_batch, tp=8, pp=pp, vp=vp, schedule=schedule, precision="fp16"
    )


def _memory(
    strategy: Strategy,
    parameters: list[float],
    saved: list[float],
    kept: list[float] | None = None,
    gathered: float = 0.0,
    gradient_bytes: int = 4,
) -> tuple[DeviceMemory, ...]:
    """Of parameters of virtual stages, which keep all that they save unless told otherwise."""
    of_ranks = [(0.0, 0.0)] * strategy.pp
    for rank, count in zip(strategy.build_schedule().rank_of, parameters, strict=True):
        of_ranks[rank] = (of_ranks[rank][0] + count, 0.0)
    kept, zeros = saved if kept is None else kept, [0.0] * strategy.pp
    frozen, trained = [(0.0, 0.0)] * strategy.pp, FULL.parameter_bytes(strategy.precision, gradient_bytes)
    gathered_bytes = [trained[0] * gathered if strategy.zero == 3 else 0.0] * strategy.pp
    return device_memory(strategy, of_ranks, frozen, saved, kept, gathered_bytes, zeros, trained)


def _layer_bytes(shape: TransformerShape, strategy: Strategy, sequence_parallel: bool, selective: bool) -> float:
    """What a layer saves, equations 2, 4 and 6."""
    s, b, h, a, t = shape.sequence, strategy.micro_batch, shape.hidden, shape.heads, strategy.tp
    attention = 0.0 if selective else 5 * a * s / (h * t)
    return s * b * h * (34 / t + attention if sequence_parallel else 10 + 24 / t + attention)


@pytest.mark.parametrize("name", SIZES)
def test_a_device_of_the_first_rank_holds_what_figure_1_shows(name: str) -> None:
    """Parameters are the 12·h² of a layer; where stages interleave, activations are 1 + (p - 1) / (p·m) as many."""
    shape, strategy = _model(name)
    strategy.require_model(shape)
    layers = strategy.stage_layers(shape)
    state, tensor_parallel, present_work = FIGURE_1[name]
    parameters = [12 * shape.hidden**2 / strategy.tp * count for count in layers]
    for sequence_parallel, expected in ((False, tensor_parallel), (True, present_work)):
        saved = [_layer_bytes(shape, strategy, sequence_parallel, sequence_parallel) * count for count in layers]
        first = _memory(strategy, parameters, saved)[0]
        assert first.state / GIB == pytest.approx(state, rel=1e-12)
        assert first.activations / GIB == pytest.approx(expected, rel=1e-12)
        assert first.total == first.state + first.activations


@pytest.mark.parametrize(
    ("zero", "expected"),
    [(0, (200.0, 400.0, 1200.0)), (1, (200.0, 400.0, 150.0)), (2, (200.0, 50.0, 150.0)), (3, (25.0, 50.0, 150.0))],
)
def test_zero_divides_the_state_by_the_ranks_of_data_and_context_parallelism(
    zero: int, expected: tuple[float, float, float]
) -> None:
    """A hundred parameters, 4 × 2 ranks; Rajbhandari et al. (1910.02054), figure 1, with gradients of 4 bytes."""
    strategy = Strategy(micro_batch=1, global_batch=4, dp=4, cp=2, zero=zero)
    (memory,) = _memory(strategy, [100.0], [7.0], gathered=10.0)
    assert (memory.weights, memory.gradients, memory.optimizer) == expected
    assert memory.gathered == (20.0 if zero == 3 else 0.0)
    assert memory.activations == 7.0


@pytest.mark.parametrize(("zero", "weights", "gradients"), [(1, 200.0, 400.0), (2, 200.0, 100.0), (3, 50.0, 100.0)])
def test_within_groups_of_ranks_zero_divides_by_the_ranks_of_a_group(
    zero: int, weights: float, gradients: float
) -> None:
    """Of 4 × 2 ranks in two groups each holds a quarter, whatever stands in the other group (HSDP)."""
    strategy = Strategy(micro_batch=1, global_batch=4, dp=4, cp=2, zero=zero, dp_replicate=2)
    (memory,) = _memory(strategy, [100.0], [7.0], gathered=10.0)
    assert (memory.weights, memory.gradients, memory.optimizer) == (weights, gradients, 300.0)


@pytest.mark.parametrize(
    ("precision", "gradient_bytes", "expected"),
    [("fp32", 4, 16.0), ("fp32", 2, 16.0), ("bf16", 4, 18.0), ("fp8", 2, 20.0)],
)
def test_a_parameter_takes_as_many_bytes_as_its_precision_says(
    precision: str, gradient_bytes: int, expected: float
) -> None:
    strategy = Strategy(micro_batch=1, global_batch=1, precision=precision)  # type: ignore[arg-type]
    (memory,) = _memory(strategy, [1.0], [0.0], gradient_bytes=gradient_bytes)
    assert memory.state == expected


def test_in_a_v_the_first_rank_holds_both_ends_of_the_model() -> None:
    """Stages of 1, 2, 3 and 4 parameters on two ranks, in fp32; a micro-batch is in flight on both stages of a rank."""
    strategy = Strategy(micro_batch=1, global_batch=1, pp=2, vp=2, schedule="zb-v", precision="fp32")
    first, last = _memory(strategy, [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0])
    assert (first.state, last.state) == (5 * 16.0, 5 * 16.0)
    assert (first.activations, last.activations) == (50.0, 50.0)


def test_what_is_kept_for_weight_gradients_may_be_less() -> None:
    """ZB-H1, two ranks and micro-batches: rank 1 runs F0 I0 F1 I1 W0 W1."""
    strategy = Strategy(micro_batch=1, global_batch=2, pp=2, schedule="zb-h1")
    assert [memory.activations for memory in _memory(strategy, [0.0, 0.0], [4.0, 4.0])] == [8.0, 8.0]
    kept = _memory(strategy, [0.0, 0.0], [4.0, 4.0], [1.0, 1.0])
    assert [memory.activations for memory in kept] == [8.0, 5.0]


def test_gradients_of_other_bytes_are_refused() -> None:
    with pytest.raises(BadInput, match="`gradient_bytes`: gradients of 3 bytes"):
        Runtime(gradient_bytes=3)
