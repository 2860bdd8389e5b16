"""Instructions of a traced transformer belong to its layers, and each matrix has a gradient of its own pass."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from automap_models.core.instruction_graph import Phase
from automap_models.hlo.adapter import trace
from automap_models.hlo.block_labels import NO_BLOCK
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.model_layers import BEFORE, ModelLayers
from automap_models.workloads.bert import BertConfig
from automap_models.workloads.decoder import DecoderConfig
from automap_models.workloads.t5 import T5Config
from automap_models.workloads.training import TransformerArchitecture, training_step

LENGTH = 12
GPT = DecoderConfig(width=32, heads=4, layers=2, vocabulary=80, positions=LENGTH)
BERT = BertConfig(width=32, heads=4, layers=2, vocabulary=80, positions=LENGTH)
T5 = T5Config(width=32, heads=4, head_width=6, feed_forward=56, layers=2, vocabulary=80)


def _layers(architecture: TransformerArchitecture) -> ModelLayers:
    module = trace(training_step("m", architecture, (2, LENGTH), "float32"))
    return ModelLayers(module, instruction_graph(module), architecture.stacks)


@pytest.fixture(scope="module")
def gpt() -> ModelLayers:
    """Two blocks between an embedding and its transpose."""
    return _layers(GPT)


def _of_paths(layers: ModelLayers, *words: str) -> Counter[int]:
    """Layers of the instructions outside the update whose module has one of these names."""
    graph = layers.graph
    chosen = (i for i in range(len(graph)) if graph.phases[i] != Phase.UPDATE and layers.module.operations[i].path)
    return Counter(layers.of_instructions[i] for i in chosen if set(graph.layers[i].split("/")) & set(words))


def test_blocks_are_numbered_from_1_and_the_update_is_of_no_layer(gpt: ModelLayers) -> None:
    assert gpt.after == 3
    for i, op in enumerate(gpt.module.operations):
        if gpt.graph.phases[i] == Phase.UPDATE:
            assert gpt.of_instructions[i] == gpt.after + 1
        elif "/block_" in op.path:
            assert gpt.of_instructions[i] == 1 + int(op.path.split("/block_")[1][0])


def test_embeddings_come_before_the_blocks_and_the_final_norm_and_the_loss_after_them(gpt: ModelLayers) -> None:
    assert set(_of_paths(gpt, "embedding", "position_embedding")) == {BEFORE}
    assert set(_of_paths(gpt, "embedding.attend", "final_layer_norm", "loss")) <= {gpt.after, NO_BLOCK}


def test_the_first_reader_of_a_tied_embedding_comes_first(gpt: ModelLayers) -> None:
    names = {argument.name: v for v, argument in enumerate(gpt.graph.arguments)}
    tied = next(v for name, v in names.items() if name.endswith("params/embedding") or "/embedding/embedding" in name)
    assert {gpt.of_parameters[v] for name, v in names.items() if name == "params/embedding"} <= {(BEFORE, gpt.after)}
    assert BEFORE in gpt.of_parameters[tied]


def test_each_matrix_has_one_product_that_makes_its_gradient_and_no_other(gpt: ModelLayers) -> None:
    """Six matrices a block, and the tied embedding's as a matrix of logits."""
    products = [
        i
        for i, opcode in enumerate(gpt.graph.opcodes)
        if opcode == "dot_general" and gpt.graph.phases[i] == Phase.BACKWARD
    ]
    of_weights = Counter(gpt.of_instructions[i] for i in products if gpt.gradients_only[i])
    assert of_weights == {1: 6, 2: 6, gpt.after: 1}
    results = {gpt.graph.shapes[gpt.graph.result_offsets[i]] for i in products if gpt.gradients_only[i]}
    assert all(len(shape) == 2 for shape in results)


def test_cores_are_two_products_forward_and_four_backward_in_each_block(gpt: ModelLayers) -> None:
    cores = Counter(
        (gpt.of_instructions[i], Phase(gpt.graph.phases[i]))
        for i in np.flatnonzero(gpt.graph.in_core).tolist()
        if gpt.graph.opcodes[i] == "dot_general"
    )
    assert cores == {(k, phase): n for k in (1, 2) for phase, n in ((Phase.FORWARD, 2), (Phase.BACKWARD, 4))}


@pytest.mark.slow
def test_what_the_norm_of_an_embedding_computes_for_its_gradient_comes_before_the_blocks() -> None:
    bert = _layers(BERT)
    assert set(_of_paths(bert, "embedding_layer_norm")) <= {BEFORE, NO_BLOCK}
    assert set(_of_paths(bert, "masked_lm", "masked_lm_layer_norm", "loss")) <= {bert.after, NO_BLOCK}
    assert {producer for producer, _ in bert.crossing.values()} == {0, 1, 2}


@pytest.mark.slow
def test_the_end_of_an_encoder_belongs_to_the_first_block_of_the_decoder() -> None:
    t5 = _layers(T5)
    assert t5.first_blocks == (1, 3, 5)
    module = t5.module
    ends = {
        t5.of_instructions[i]
        for i, op in enumerate(module.operations)
        if t5.graph.layers[i] == "encoder/final_layer_norm" and t5.graph.phases[i] != Phase.UPDATE and op.path
    }
    assert ends <= {3, NO_BLOCK}
    handed_on = {(producer, tuple(reading)) for producer, reading in t5.crossing.values()}
    assert handed_on == {(0, (1,)), (1, (2,)), (2, (3,)), (3, (4,)), (4, (5,))}
