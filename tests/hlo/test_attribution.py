"""Where backward instructions belong: what the layers' names say, and what dataflow says where there are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.hlo.adapter import trace
from automap_models.hlo.attribution import homes
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.liveness import Liveness
from automap_models.hlo.step import TrainingStep
from automap_models.workloads.convolutional import ResNetConfig
from automap_models.workloads.sizes import Architecture, DecoderConfig
from automap_models.workloads.training import training_step

LAYERS, BATCH, WIDTH = 5, 3, 7


def perceptron(params: list[jax.Array], x: jax.Array) -> Any:
    """One step of a model without names: plain functions of arrays."""

    def loss(params: list[jax.Array]) -> jax.Array:
        y = x
        for w in params:
            y = jnp.tanh(y @ w)
        return (y**2).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    return value, [w - 0.1 * g for w, g in zip(params, gradients, strict=True)]


def backward_flop(graph: InstructionGraph) -> Any:
    """[m] products of the backward pass at the home of each forward instruction."""
    home, products = homes(Liveness(graph)), np.array([opcode == "dot_general" for opcode in graph.opcodes])
    chosen = products & (graph.phases == Phase.BACKWARD)
    return np.bincount(home[chosen], graph.flop[chosen], minlength=int((graph.phases == Phase.FORWARD).sum()))


def test_each_product_of_an_unnamed_model_has_its_two_gradients() -> None:
    arguments = ([jnp.zeros((WIDTH, WIDTH))] * LAYERS, jnp.zeros((BATCH, WIDTH)))
    step = TrainingStep("m", perceptron, arguments, trainable=0, inputs=(1,), microbatch_size=BATCH)
    graph = instruction_graph(trace(step))
    forward = np.flatnonzero(graph.phases == Phase.FORWARD)
    flop = backward_flop(graph)
    one = 2 * BATCH * WIDTH * WIDTH
    products = [place for place, i in enumerate(forward) if graph.opcodes[i] in ("dot", "dot_general")]
    assert flop[products].tolist() == [one] + [2 * one] * (LAYERS - 1)  # the input has no gradient
    assert flop.sum() == (2 * LAYERS - 1) * one


MODELS: dict[str, tuple[Architecture, tuple[int, ...]]] = {
    "decoder": (DecoderConfig(width=32, heads=4, layers=4, vocabulary=40, positions=8), (2, 8)),
    "convolutions": (ResNetConfig(stages=(1, 2), width=4, classes=5, image=32), (2,)),
}


@pytest.mark.parametrize("name", ["decoder", "convolutions"])
def test_without_names_products_of_the_backward_pass_are_where_the_names_say(name: str) -> None:
    graph = instruction_graph(trace(training_step("m", *MODELS[name], "float32")))
    named = homes(Liveness(graph))
    unnamed = homes(Liveness(replace(graph, layers=("",) * len(graph))))
    layers = [graph.layers[i].split("/")[0] for i in np.flatnonzero(graph.phases == Phase.FORWARD)]
    flop = np.where(graph.phases == Phase.BACKWARD, graph.flop, 0.0)
    same = np.array([layers[a] == layers[b] for a, b in zip(named, unnamed, strict=True)])
    assert flop[same].sum() >= 0.98 * flop.sum()
