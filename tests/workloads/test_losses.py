"""Samples of several documents, and pairs of sequences: FLOP, bytes and times against counts by hand and published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from strategy_problems import DEVICE, estimated

from automap_models.core.cluster import Cluster
from automap_models.core.model_work import LayerWork, ModelWork, WorkKind, WorkPass
from automap_models.core.strategy import Strategy
from automap_models.core.sublayer_sizes import Indexer, Window
from automap_models.core.tuning import Training
from automap_models.cost.layer_times import model_flop
from automap_models.cost.runtime import DEFAULT_RUNTIME
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.workloads.registry import sized
from automap_models.workloads.sizes import T5_BASE, DecoderConfig
from automap_models.workloads.transformer import model_work

S, LAYERS, H, HEADS = 256, 2, 64, 4
GPT = DecoderConfig(width=H, heads=HEADS, layers=LAYERS, vocabulary=512, positions=None, tied=False)


def work_of(config: DecoderConfig = GPT, sequence: int = S, **training: object) -> ModelWork:
    return model_work(config, "m", sequence, "bfloat16", Training(**training))  # type: ignore[arg-type]


def places(work: ModelWork) -> Iterator[LayerWork]:
    return (work.layers[i] for i in work.order)


def flop(work: ModelWork, forwards: int = 1) -> float:
    return sum(model_flop(layer.kernels, forwards) for layer in places(work))


def core_flop(work: ModelWork) -> float:
    """Of the attention cores of a forward pass."""
    parts = [layer.kernels for layer in places(work)]
    chosen = [k.core & (k.kinds == WorkKind.PRODUCT) & (k.passes == WorkPass.FORWARD) for k in parts]
    return sum(float(2 * k.sizes[mask].prod(axis=1).sum()) for k, mask in zip(parts, chosen, strict=True))


def bytes_of(work: ModelWork, part: str) -> float:
    return sum(float(getattr(layer, part).values.sum()) for layer in places(work))


# --- several documents


@pytest.mark.parametrize("document", [16, 64, 256])
@pytest.mark.parametrize("window", [None, 24, 100])
def test_attention_reads_what_a_mask_of_its_document_has(document: int, window: int | None) -> None:
    """Of the diagonal of a mask a causal core computes half, of which the last keys of a full window have none."""
    blocks = ("w-" if window else "*-",) * LAYERS
    config = replace(GPT, blocks=blocks, window=Window(tokens=window) if window else None)
    q, k = np.indices((S, S))
    mask = (q // document == k // document) & (k <= q) & (q - k < (window or S))
    full = np.arange(S) % document >= (window or S)
    ones = float(mask.sum() - 0.5 * (~full).sum())
    assert core_flop(work_of(config, packed=document)) / 2 == pytest.approx(LAYERS * 2 * 2 * H * ones)


@pytest.mark.parametrize("sublayer", ["*", "s"])
def test_all_that_is_no_attention_stays_as_it_is(sublayer: str) -> None:
    """An index scores the tokens of its document, too."""
    indexer = Indexer(tokens=48, heads=2, width=16)
    config = replace(GPT, indexer=indexer, blocks=(sublayer + "-",) * LAYERS)
    packed, alone = work_of(config, packed=64), work_of(config)
    for part in ("parameters", "saved", "boundary", "context"):
        assert bytes_of(packed, part) == bytes_of(alone, part)
    others = [
        float(k.sizes[~k.core & (k.kinds == WorkKind.PRODUCT)].prod(axis=1).sum())
        for k in (layer.kernels for layer in (*places(packed), *places(alone)))
    ]
    assert others[: len(others) // 2] == others[len(others) // 2 :]
    assert flop(packed) == pytest.approx(4 * flop(work_of(config, sequence=64)))  # of as many short samples


def test_documents_fit_their_sample_and_a_decoder_reads_them() -> None:
    with pytest.raises(BadInput, match="documents of 512 tokens do not fit"):
        work_of(packed=512)
    with pytest.raises(BadInput, match="is of a decoder or BERT, and m is none"):
        model_work(T5_BASE, "m", 64, "bfloat16", Training(packed=32))


# --- pairs


@pytest.mark.parametrize("loss", ["dpo", "pairs"])
def test_a_pair_is_two_samples_and_a_reference_a_third_of_what_trains_more(loss: str) -> None:
    """6 N D FLOP of a step of training and 2 N D of a forward pass, attention likewise (2001.08361, section 2.1)."""
    work, single = work_of(loss=loss), work_of()
    forwards = 1 + work.training.has_reference
    assert flop(work, forwards) == pytest.approx(2 * flop(single) * (4 / 3 if loss == "dpo" else 1))
    assert work.shape.sequence == 2 * S
    for part in ("saved", "boundary"):
        assert bytes_of(work, part) == 2 * bytes_of(single, part)
    assert bytes_of(work, "parameters") == bytes_of(single, "parameters")


@pytest.mark.parametrize("freeze", [(), ("embedding", "block_0")])
@pytest.mark.parametrize("tied", [False, True])
def test_a_reference_is_a_frozen_copy_of_all_weights(freeze: tuple[str, ...], tied: bool) -> None:
    config = replace(GPT, tied=tied)
    if tied and freeze:
        freeze = ("block_0",)
    count, frozen = bytes_of(work_of(config), "parameters"), bytes_of(work_of(config, freeze=freeze), "frozen")
    assert bytes_of(work_of(config, loss="dpo", freeze=freeze), "frozen") == 2 * count + frozen
    assert bytes_of(work_of(config, loss="pairs", freeze=freeze), "frozen") == frozen


def test_adapters_are_switched_off_for_the_reference() -> None:
    """The weights are there once, and run forward twice."""
    with_reference, without = (work_of(loss=loss, rank=8) for loss in ("dpo", "pairs"))
    assert bytes_of(with_reference, "frozen") == bytes_of(without, "frozen") == bytes_of(work_of(rank=8), "frozen")
    cluster, strategy = Cluster(1, 1, 1e9, 1e9, 80e9), Strategy(micro_batch=1, global_batch=8, recompute="full")
    once, twice = (estimated(work, strategy, cluster, DEVICE) for work in (without, with_reference))
    assert twice.parts.compute - once.parts.compute == pytest.approx(once.parts.recompute, rel=0.1)  # and of the ends
    assert twice.parts.recompute == once.parts.recompute
    assert twice.memory[0].total == once.memory[0].total


def test_ranks_at_both_ends_have_the_copy_of_a_tied_embedding() -> None:
    config, cluster = replace(GPT, tied=True), Cluster(2, 1, 1e9, 1e9, 80e9)
    strategy = Strategy(micro_batch=1, global_batch=4, pp=2)
    trained, both = (estimated(work_of(config, loss=loss), strategy, cluster, DEVICE) for loss in ("pairs", "dpo"))
    assert [rank.weights for rank in both.memory] == [2 * rank.weights for rank in trained.memory]


def test_weights_of_the_reference_are_gathered_once_and_never_beside_those_that_train() -> None:
    """ZeRO-3 gathers what trains twice, and scatters gradients as large: 4 in place of 3."""
    cluster, runtime = Cluster(2, 1, 1e6, 1e6, 80e9), replace(DEFAULT_RUNTIME, prefetches=False)
    strategy = Strategy(micro_batch=1, global_batch=2, dp=2, zero=3)
    one, two = (
        estimated(
            work_of(loss=loss), strategy, cluster, replace(DEVICE, step=replace(DEVICE.constants, overlap=0.0)), runtime
        )
        for loss in ("pairs", "dpo")
    )
    assert two.parts.data_parallel == pytest.approx(4 / 3 * one.parts.data_parallel, rel=1e-3)
    assert two.memory[0].gathered == one.memory[0].gathered
    assert two.memory[0].weights == 2 * one.memory[0].weights


def test_a_reward_has_one_number_in_place_of_a_vocabulary() -> None:
    """LlamaForSequenceClassification with one label has 7,504,928,768 parameters of Llama 3's 8,030,261,248."""
    counts = {
        loss: bytes_of(sized("llama3-8b").work(Training(loss=loss)), "parameters") for loss in ("pairs", "reward")
    }
    assert counts == {"pairs": 8_030_261_248, "reward": 7_504_928_768}


def test_a_loss_without_reference_saves_what_its_authors_measured() -> None:
    """SimPO takes about 20 % less time and 10 % less memory than DPO, of Llama 3 8B on 8 H100 (2405.14734).

    With samples of 2,048 tokens, sharded weights and recomputation, as the recipes of both have them.
    """
    cluster, device = read_cluster("8xh100"), read_device("h100")
    strategy = Strategy(micro_batch=2, global_batch=128, dp=8, zero=3, recompute="full")
    works = [sized("llama3-8b", sequence=2048).work(Training(loss=loss)) for loss in ("dpo", "pairs")]
    dpo, simpo = (estimated(work, strategy, cluster, device) for work in works)
    assert 1 - simpo.step_s / dpo.step_s == pytest.approx(0.20, abs=0.03)
    assert 1 - simpo.memory[0].total / dpo.memory[0].total == pytest.approx(0.10, abs=0.06)


@pytest.mark.parametrize("loss", ["dpo", "pairs", "reward"])
def test_pairs_are_of_a_decoder(loss: str) -> None:
    with pytest.raises(BadInput, match="is of a decoder, and m is none"):
        model_work(T5_BASE, "m", 64, "bfloat16", Training(loss=loss))  # type: ignore[arg-type]
