"""Layers of which a part is trained: parameters, products, saved values and collectives against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from strategy_problems import DEVICE, estimated

from automap_models.core.cluster import Cluster
from automap_models.core.model_work import LayerWork, ModelWork, WorkKind, WorkPass
from automap_models.core.strategy import Strategy
from automap_models.core.tuning import QUANTIZED_BYTES, Training
from automap_models.cost.layer_times import model_flop
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.transformer import model_work

H, HEADS, KV, F, V, S, L, R = 128, 4, 2, 256, 512, 64, 3, 8
LLAMA = DecoderConfig(
    width=H,
    heads=HEADS,
    layers=L,
    vocabulary=V,
    positions=None,
    feed_forward=F,
    kv_heads=KV,
    attention_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    gated=True,
    root_mean_square=True,
    tied=False,
)
NARROW = H * KV // HEADS
MATRICES = {"q": (H, H), "k": (H, NARROW), "v": (H, NARROW), "o": (H, H)}
MATRICES |= {"gate": (H, F), "up": (H, F), "down": (F, H)}
OF_BLOCK = sum(rows * columns for rows, columns in MATRICES.values())


def tuned(training: Training, config: DecoderConfig = LLAMA) -> ModelWork:
    return model_work(config, "m", S, "bfloat16", training)


def blocks(work: ModelWork) -> list[LayerWork]:
    return [work.layers[i] for i in work.order[1:-1]]


def adapters(names: tuple[str, ...]) -> int:
    """Parameters beside these matrices of a block: A has the rows and B the columns."""
    return sum(R * sum(MATRICES[name]) for name in names)


@pytest.mark.parametrize("names", [("q", "v"), tuple(MATRICES)])
def test_adapters_have_two_thin_matrices(names: tuple[str, ...]) -> None:
    targets = ("*",) if len(names) == len(MATRICES) else names
    work = tuned(Training(rank=R, targets=targets))
    assert [layer.parameters.values.sum() for layer in blocks(work)] == [adapters(names)] * L
    assert [layer.frozen.values.sum() for layer in blocks(work)] == [2.0 * (OF_BLOCK + 2 * H)] * L  # two norms
    first, last = work.layers[work.order[0]], work.layers[work.order[-1]]
    assert (first.parameters.values.sum(), last.parameters.values.sum()) == (0, 0)
    assert (first.frozen.values.sum(), last.frozen.values.sum()) == (2.0 * V * H, 2.0 * (V * H + H))


def test_a_step_has_four_products_a_frozen_matrix_and_six_an_adapter() -> None:
    """FLOP a token and parameter: 2 forward, 2 for gradients of inputs, 2 for those of weights."""
    work, core = tuned(Training(rank=R)), 2 * HEADS * S * (H // HEADS) * S * 2  # scores, and their product with values
    per_block = S * (4 * OF_BLOCK + 6 * adapters(tuple(MATRICES))) + 3 * core
    flop = [model_flop(layer.kernels) for layer in blocks(work)]
    assert flop == pytest.approx([per_block] * L)
    head = model_flop(work.layers[work.order[-1]].kernels)
    assert head == pytest.approx(S * 4 * V * H)


def test_a_frozen_matrix_saves_no_input_and_an_adapter_saves_two() -> None:
    """What full training saves beyond it is what matrices read, but for attention's result, which attention keeps."""
    saved = {name: float(blocks(tuned(training))[0].saved.values.sum()) / S for name, training in STATES.items()}
    read = 2 * (H + H + F)  # by q, k and v; by gate and up; by down
    assert saved["full"] - saved["frozen"] == read
    assert saved["q, v"] - saved["frozen"] == 2 * (H + 2 * R)
    assert saved["all"] - saved["frozen"] == read + 2 * 7 * R


STATES = {
    "full": Training(),
    "frozen": Training(freeze=("block_*",)),
    "q, v": Training(rank=R, targets=("q", "v")),
    "all": Training(rank=R),
}


def test_layers_before_the_first_that_trains_have_no_backward_pass() -> None:
    work = tuned(Training(freeze=("embedding", "block_[01]")))
    frozen, _, trained = blocks(work)
    assert set(frozen.kernels.passes.tolist()) == {WorkPass.FORWARD}
    assert not frozen.saved.values.size and not frozen.backward
    assert trained.parameters.values.sum() == OF_BLOCK + 2 * H
    strategy = Strategy(micro_batch=1, global_batch=8, recompute="full")
    cluster = Cluster(1, 1, 1e9, 1e9, 80e9)
    some, every = (estimated(one, strategy, cluster, DEVICE) for one in (work, tuned(Training())))
    assert every.memory[0].activations - some.memory[0].activations == 2 * (2 * S * H)  # what two blocks read
    assert some.parts.recompute == pytest.approx(every.parts.recompute / 3)
    assert some.step_s < every.step_s


def test_the_device_holds_gradients_and_states_of_what_trains_alone() -> None:
    cluster, strategy = Cluster(1, 4, 1e10, 1e9, 80e9), Strategy(micro_batch=1, global_batch=8, dp=4, zero=3)
    memory = estimated(tuned(Training(rank=R)), strategy, cluster, DEVICE).memory[0]
    count = L * adapters(tuple(MATRICES))
    frozen = 2 * (L * (OF_BLOCK + 2 * H) + 2 * V * H + H)
    assert memory.gradients == pytest.approx(4 * count / 4)
    assert memory.optimizer == pytest.approx(12 * count / 4)
    assert memory.weights == pytest.approx((2 * count + frozen) / 4)


def test_gradients_of_adapters_alone_are_summed() -> None:
    """The sum of a hundredth of the gradients exposes less than a tenth of what all of them expose."""
    cluster, strategy = Cluster(4, 1, 1e8, 1e8, 80e9), Strategy(micro_batch=1, global_batch=4, dp=4)
    few, every = (estimated(tuned(one), strategy, cluster, DEVICE).parts for one in (Training(rank=1), Training()))
    assert few.data_parallel < 0.1 * every.data_parallel


def test_four_bits_are_unpacked_for_every_product() -> None:
    plain, packed = (blocks(tuned(Training(rank=R, quantize=quantize)))[0] for quantize in (False, True))
    assert packed.frozen.values.sum() == pytest.approx(QUANTIZED_BYTES * OF_BLOCK + 2 * 2 * H)
    assert packed.unpacked.values.tolist() == [2.0 * H * F]
    moved = np.bincount(packed.kernels.passes[packed.kernels.moved_kernels], packed.kernels.moved_bytes)
    before = np.bincount(plain.kernels.passes[plain.kernels.moved_kernels], plain.kernels.moved_bytes)
    unpacking = (2 + QUANTIZED_BYTES) * OF_BLOCK
    assert (moved - before)[: WorkPass.WEIGHT] == pytest.approx([unpacking, unpacking])
    assert (plain.kernels.kinds == WorkKind.PRODUCT).sum() == (packed.kernels.kinds == WorkKind.PRODUCT).sum()


def test_a_frozen_word_embedding_of_both_ends_is_held_by_both_and_summed_by_none() -> None:
    config = replace(LLAMA, tied=True)
    work = tuned(Training(rank=R), config)
    assert work.tied == 0.0
    cluster, strategy = Cluster(2, 1, 1e9, 1e9, 80e9), Strategy(micro_batch=1, global_batch=4, pp=2, layers=(2, 1))
    first, last = (memory.weights for memory in estimated(work, strategy, cluster, DEVICE).memory)
    table, block = 2 * V * H, 2 * (OF_BLOCK + 2 * H + adapters(tuple(MATRICES)))
    assert (first, last) == pytest.approx((table + 2 * block, table + block + 2 * H))


def test_tensor_parallelism_sums_the_narrow_side_of_an_adapter() -> None:
    """Beside columns B is divided, and beside rows A is: a sum of R numbers a token in one of the passes."""
    plain, adapted = (blocks(tuned(one))[0] for one in (Training(freeze=("block_*",)), Training(rank=R)))
    forward = sorted(adapted.sums_forward.values.tolist())[: -len(plain.sums_forward.values)]
    assert forward == [2.0 * S * R] * 2  # o and down
    backward = sorted(adapted.sums_backward.values.tolist())[: -len(plain.sums_backward.values)]
    assert backward == [2.0 * S * R] * 5  # q, k, v, gate and up
