"""The instruction graph's costs: XLA's own total, hand-counted products, every round of a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.cost.kernel_traffic import kernel_traffic
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.step import TrainingStep


def xla_flop(step: TrainingStep) -> float:
    return float(jax.jit(step.function).lower(*step.arguments).cost_analysis()["flops"])


def test_the_sum_of_flop_is_xlas_total(transformer: TrainingStep, transformer_graph: InstructionGraph) -> None:
    assert transformer_graph.flop.sum() == pytest.approx(xla_flop(transformer), rel=1e-3)


def test_products_cost_two_flop_a_multiplication(mlp_graph: InstructionGraph) -> None:
    products = {
        (layer, phase): flop
        for layer, phase, opcode, flop in zip(
            mlp_graph.layers, mlp_graph.phases, mlp_graph.opcodes, mlp_graph.flop, strict=True
        )
        if opcode in {"dot", "dot_general"}
    }
    assert products == {
        ("first", Phase.FORWARD): 2 * 4 * 8 * 16,
        ("second", Phase.FORWARD): 2 * 4 * 16 * 3,
        ("second", Phase.BACKWARD): 2 * 4 * 16 * 3,  # two of them, of equal cost
        ("first", Phase.BACKWARD): 2 * 4 * 8 * 16,  # one: the input needs no gradient
    }


def test_products_read_and_write_their_matrices_once(mlp_graph: InstructionGraph) -> None:
    first = next(i for i, layer in enumerate(mlp_graph.layers) if layer == "first" and mlp_graph.flop[i] == 1024)
    assert mlp_graph.bytes_accessed[first] == 4 * (4 * 8 + 8 * 16 + 4 * 16)


def test_every_instruction_but_shared_ones_has_a_layer(transformer_graph: InstructionGraph) -> None:
    assert set(transformer_graph.layers) >= {"embedding", "embedding.attend", "block_0", "block_1/norm", "loss"}
    forward = [layer for layer, p in zip(transformer_graph.layers, transformer_graph.phases, strict=True) if p == 0]
    assert "" not in forward


def scanned(length: int, inner: int) -> TrainingStep:
    """A loop over matrices of the batch, which are no layers."""

    def step(p: Any, x: Any) -> Any:
        def round_(c: Any, w: Any) -> Any:
            return jax.lax.fori_loop(0, inner, lambda _, c: jnp.sin(c @ w), c), None

        return jax.lax.scan(round_, x, p)[0].sum()

    p = jax.ShapeDtypeStruct((length, 64, 64), jnp.float32)
    return TrainingStep("scan", step, (p, jax.ShapeDtypeStruct((32, 64), jnp.float32)), 1, (0,), 32)


@pytest.mark.parametrize(("length", "inner"), [(1, 1), (5, 1), (5, 3)])
def test_a_loop_is_one_instruction_that_costs_all_its_rounds(length: int, inner: int) -> None:
    graph = instruction_graph(trace(scanned(length, inner)))
    assert graph.opcodes.count("while") == 1
    products = length * inner * 2 * 32 * 64 * 64
    assert products < graph.flop[graph.opcodes.index("while")] < 1.05 * products
    assert "loops_of_unknown_length" not in graph.meta


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_dropout_costs_its_mask_and_not_the_rounds_of_the_generator(generator: str) -> None:
    """A step that is 28 % random bits where their rounds are taken for kernels of their own."""
    rows, columns = 64, 128

    def step_of(rate: float) -> TrainingStep:
        def step(w: Any, batch: Any) -> Any:
            def loss(w: Any) -> Any:
                with jax.named_scope("first"):
                    h = batch["x"] @ w["first"]
                    if rate:
                        kept = jax.random.bernoulli(batch["key"], 1 - rate, h.shape)
                        h = jnp.where(kept, h / (1 - rate), 0)
                with jax.named_scope("second"):
                    return jnp.mean((h @ w["second"]) ** 2)

            return jax.value_and_grad(loss)(w)

        w = {name: jax.ShapeDtypeStruct((columns, columns), jnp.float32) for name in ("first", "second")}
        key = jax.eval_shape(lambda: jax.random.key(0, impl=generator))
        batch = {"x": jax.ShapeDtypeStruct((rows, columns), jnp.float32), "key": key}
        return TrainingStep("dropout", step, (w, batch), 0, (1,), rows)

    with_dropout, without = (instruction_graph(trace(step_of(rate))) for rate in (0.1, 0.0))
    assert "while" not in with_dropout.opcodes
    dropped, plain = kernel_traffic(with_dropout), kernel_traffic(without)
    flop, moved = dropped.flop.sum() - plain.flop.sum(), dropped.moved.sum() - plain.moved.sum()
    elements = rows * columns
    read_and_written = 2 * (2 * 4 * elements)  # in the forward and in the backward pass; without dropout, products join
    mask = 3 * elements  # written, read forward, read backward
    unread = 4 * elements  # zeros that JAX makes and nothing reads
    assert moved <= read_and_written + mask + unread + 200
    assert flop <= 30 * elements  # of which bits become numbers, and these a mask


def test_a_loop_of_unknown_length_counts_once_and_is_named() -> None:
    def step(p: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c @ p, x)

    square = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    graph = instruction_graph(trace(TrainingStep("endless", step, (square, square), 0, (1,), 32)))
    i = graph.opcodes.index("while")
    assert graph.meta["loops_of_unknown_length"] == [graph.names[i]]
    assert 2 * 32**3 < graph.flop[i] < 2.2 * 32**3
