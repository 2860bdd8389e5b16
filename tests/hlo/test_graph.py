"""The instruction graph's costs: XLA's own total, hand-counted products, every round of a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from automap_models.core.instruction_graph import InstructionGraph, Phase
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


def test_a_loop_of_unknown_length_counts_once_and_is_named() -> None:
    def step(p: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c @ p, x)

    square = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    graph = instruction_graph(trace(TrainingStep("endless", step, (square, square), 0, (1,), 32)))
    i = graph.opcodes.index("while")
    assert graph.meta["loops_of_unknown_length"] == [graph.names[i]]
    assert 2 * 32**3 < graph.flop[i] < 2.2 * 32**3
