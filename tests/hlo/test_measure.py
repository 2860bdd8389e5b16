"""Measuring on this machine: what is run, and how times are put together; none of the tests compares clock readings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.cost.kernel_traffic import MATRIX_OPCODES
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.hlo import measure
from automap_models.hlo.adapter import MlirModule, OneOp, compiled, trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.measure import Clock, measure_times, part
from automap_models.hlo.step import TrainingStep

RATE = 0.1


def loss_of(params: dict[str, Any], x: Any, y: Any) -> Any:
    with jax.named_scope("first"):
        hidden = jnp.tanh(x @ params["a"])
    with jax.named_scope("second"):
        return jnp.mean((hidden @ params["b"] - y) ** 2)


def train_step(params: dict[str, Any], x: Any, y: Any) -> Any:
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    with jax.named_scope("optimizer"):
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), loss


def shape(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


@pytest.fixture(scope="module")
def module() -> MlirModule:
    arguments = ({"a": shape(8, 16), "b": shape(16, 4)}, shape(32, 8), shape(32, 4))
    return trace(TrainingStep("two layers", train_step, arguments, 0, (1, 2), 32))


@pytest.fixture(scope="module")
def graph(module: MlirModule) -> InstructionGraph:
    return instruction_graph(module)


def forward_of(graph: InstructionGraph) -> np.ndarray:
    return np.asarray(graph.phases) == Phase.FORWARD


def fake_clock(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[OneOp], float | None]) -> list[OneOp]:
    """Let every run take what a function says; the list fills with what was run."""
    run: list[OneOp] = []

    def read(self: Clock, one: OneOp, needed_bytes: float) -> float | None:
        assert needed_bytes > 0
        run.append(one)
        return seconds(one)

    monkeypatch.setattr(Clock, "seconds", read)
    return run


def test_everything_runs_and_the_sums_are_those_of_the_whole_runs(module: MlirModule, graph: InstructionGraph) -> None:
    seen: list[tuple[int, int, str]] = []
    times_s, meta = measure_times(module, repeats=3, warmup=1, progress=lambda *progress: seen.append(progress))
    assert meta["not_measured"] == {}
    assert times_s.shape == (len(graph),)
    assert np.all(np.isfinite(times_s)) and np.all(times_s >= 0)
    measured = meta["measured"]
    assert isinstance(measured, dict) and "whole_step_s" in measured
    for phase, name in measure._UP_TO.items():
        time_s = measured.get(name, times_s[graph.phases <= phase].sum())
        assert_allclose(times_s[graph.phases <= phase].sum(), time_s)
    assert [done for done, _, _ in seen] == list(range(seen[0][1]))
    assert meta["times"] == "measured per instruction"
    assert meta["scaled_to_step"] is True


def parts_take(*seconds: float | None) -> Callable[[OneOp], float | None]:
    """A clock for the step's three parts, in order; every operation takes 3 s, tanh, all of it the call, 1 s."""
    parts = iter(seconds)
    return lambda one: next(parts) if one.opcode == "step" else 1.0 if one.opcode == "tanh" else 3.0


def test_every_phase_is_scaled_by_itself(
    module: MlirModule, graph: InstructionGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_clock(monkeypatch, parts_take(10.0, 35.0, 40.0))
    times_s, meta = measure_times(module, graph=graph)
    counted = np.array([opcode not in {"constant", "reshape", "tanh"} for opcode in graph.opcodes])
    for phase, expected_s in zip(Phase, (10.0, 25.0, 5.0), strict=True):
        members = graph.phases == phase
        assert_allclose(times_s[members], expected_s * counted[members] / counted[members].sum())
    alone_s = 2.0 * counted[graph.phases == Phase.FORWARD].sum()
    assert meta["alone_over_measured"]["forward_s"] == alone_s / 10.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("seconds", "believed", "sums"),
    [
        ((50.0, 30.0, 40.0), {"gradients_s": 30.0, "whole_step_s": 40.0}, {Phase.BACKWARD: 30.0, Phase.UPDATE: 40.0}),
        ((10.0, None, 40.0), {"forward_s": 10.0, "whole_step_s": 40.0}, {Phase.FORWARD: 10.0, Phase.UPDATE: 40.0}),
        ((10.0, 50.0, 40.0), {"forward_s": 10.0, "whole_step_s": 40.0}, {Phase.FORWARD: 10.0, Phase.UPDATE: 40.0}),
        ((10.0, None, None), {"forward_s": 10.0}, {Phase.FORWARD: 10.0}),
    ],
)
def test_a_part_that_did_not_run_or_took_longer_than_a_later_one_does_not_count(
    module: MlirModule,
    graph: InstructionGraph,
    monkeypatch: pytest.MonkeyPatch,
    seconds: tuple[float | None, ...],
    believed: dict[str, float],
    sums: dict[Phase, float],
) -> None:
    fake_clock(monkeypatch, parts_take(*seconds))
    times_s, meta = measure_times(module, graph=graph)
    assert meta["measured"] == believed
    assert meta["scaled_to_step"] is ("whole_step_s" in believed)
    for phase, sum_s in sums.items():
        assert_allclose(times_s[graph.phases <= phase].sum(), sum_s)


def test_phases_after_the_last_run_are_scaled_like_those_before(
    module: MlirModule, graph: InstructionGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_clock(monkeypatch, parts_take(10.0, None, None))
    times_s = measure_times(module, graph=graph)[0]
    counted = np.array([opcode not in {"constant", "reshape", "tanh"} for opcode in graph.opcodes])
    assert_allclose(times_s.sum(), 10.0 * counted.sum() / counted[graph.phases == Phase.FORWARD].sum())


def test_what_did_not_run_has_a_roofline_time_scaled_like_with_like(
    module: MlirModule, graph: InstructionGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the products run, at a tenth of the roofline's speed; everything else takes no time."""
    guess_s = read_device("cpu").seconds(graph.flop, graph.bytes_accessed)
    products = np.array([opcode in MATRIX_OPCODES for opcode in graph.opcodes])
    chosen = np.flatnonzero(products)[::2]

    def seconds(one: OneOp) -> float | None:
        if one.opcode == "step" or (one.opcode in MATRIX_OPCODES and one.instructions[0] not in chosen):
            return None
        return 10.0 * float(guess_s[one.instructions[0]]) if one.opcode in MATRIX_OPCODES else 0.0

    fake_clock(monkeypatch, seconds)
    times_s, meta = measure_times(module, graph=graph)
    assert_allclose(times_s[products], 10.0 * guess_s[products])
    assert sum(meta["not_measured"].values()) == products.sum() - chosen.size
    assert meta["scaled_to_step"] is False


def test_without_memory_nothing_runs_and_the_roofline_is_left(
    module: MlirModule, graph: InstructionGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clock, "free_bytes", lambda self: 0.0)
    times_s, meta = measure_times(module, graph=graph)
    expected = read_device("cpu").seconds(graph.flop, graph.bytes_accessed)
    idle = np.array([opcode in {"constant", "reshape"} for opcode in graph.opcodes])
    assert_allclose(times_s, np.where(idle, 0.0, expected))
    assert meta["measured"] == {}
    assert sum(meta["not_measured"].values()) == np.count_nonzero(~idle)


def test_the_parts_compute_what_jax_computes(module: MlirModule, graph: InstructionGraph) -> None:
    rng = np.random.default_rng(5)
    params = {name: rng.normal(size=size).astype(np.float32) for name, size in (("a", (8, 16)), ("b", (16, 4)))}
    x, y = (rng.normal(size=size).astype(np.float32) for size in ((32, 8), (32, 4)))
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    updated, _ = train_step(params, x, y)
    expected = {
        Phase.FORWARD: [loss],
        Phase.BACKWARD: [loss, gradients["b"], gradients["a"]],
        Phase.UPDATE: [updated["a"], updated["b"], loss],
    }
    operands = [jax.device_put(array) for array in (*params.values(), x, y)]
    for phase, values in expected.items():
        results = compiled(part(module, measure._results_up_to(graph, phase)))(operands)
        for one, value in zip(results, values, strict=True):
            assert_allclose(one, value, rtol=1e-4, atol=1e-6)


def test_a_part_leaves_out_what_it_does_not_need_and_the_module_as_it_is(
    module: MlirModule, graph: InstructionGraph
) -> None:
    before = module.mlir.operation.get_asm()
    tanh = next(i for i, opcode in enumerate(graph.opcodes) if opcode == "tanh")
    small = part(module, [int(graph.result_offsets[tanh])])
    assert [kind.shape for kind in small.operands] == [(8, 16), (32, 8)]
    assert [kind.shape for kind in small.results] == [(32, 16)]
    assert module.mlir.operation.get_asm() == before


def test_the_peak_is_the_most_that_is_alive_at_once(graph: InstructionGraph) -> None:
    last = {int(v): len(graph) for v in graph.outputs}
    for i, v in zip(graph.consumers.tolist(), graph.operands.tolist(), strict=True):
        last[v] = max(last.get(v, 0), i)
    arguments = graph.value_bytes[: len(graph.arguments)].sum()
    alive = [
        sum(
            graph.value_bytes[v]
            for v, producer in enumerate(graph.producers)
            if 0 <= producer <= i <= last.get(v, producer)
        )
        for i in range(len(graph))
    ]
    assert_allclose(measure._peak_bytes(graph), arguments + max(alive))


@pytest.mark.parametrize(("option", "message"), [({"repeats": 0}, "repeats is 0"), ({"warmup": -1}, "warmup is -1")])
def test_a_count_that_makes_no_sense_is_named(module: MlirModule, option: dict[str, int], message: str) -> None:
    with pytest.raises(BadInput, match=f"measuring: {message}; give a number"):
        measure_times(module, **option)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint32", "bool", "complex64", "float32"])
def test_operands_of_every_type_can_be_drawn(dtype: str) -> None:
    step = TrainingStep(
        "copy", lambda p, x: (p * 2, jnp.transpose(x)), (shape(2), jax.ShapeDtypeStruct((3, 2), dtype)), 0, (1,), 3
    )
    assert measure_times(trace(step), repeats=1, warmup=0)[1]["not_measured"] == {}
