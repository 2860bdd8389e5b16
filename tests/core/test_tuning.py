"""What is trained: bytes a parameter by hand, and what contradicts itself."""

from __future__ import annotations

import pytest

from automap_models.core.tuning import ALL, FULL, LayerTraining, Training
from automap_models.errors import BadInput


@pytest.mark.parametrize(
    ("optimizer", "states", "precision", "parts"),
    [
        ("adamw", "fp32", "bf16", (2, 4, 4 + 4 + 4)),
        ("adamw", "fp32", "fp32", (4, 4, 4 + 4)),
        ("adamw", "bf16", "bf16", (2, 2, 2 + 2)),
        ("adamw-8bit", "fp32", "bf16", (2, 4, 4 + 2 * (1 + 4 / 256))),
        ("adamw-8bit", "bf16", "bf16", (2, 2, 2 * (1 + 4 / 256))),
        ("lion", "fp32", "bf16", (2, 4, 4 + 4)),
        ("lion", "bf16", "fp16", (2, 2, 2)),
        ("sgd", "fp32", "fp32", (4, 4, 4)),
        ("muon", "bf16", "bf16", (2, 2, 2)),
        ("adafactor", "fp32", "bf16", (2, 4, 4)),
    ],
)
def test_bytes_a_parameter_are_those_of_a_hand_count(
    optimizer: str, states: str, precision: str, parts: tuple[float, ...]
) -> None:
    """A weight, its gradient, a copy in fp32 and the moments."""
    training = Training(optimizer=optimizer, states=states)  # type: ignore[arg-type]
    assert training.parameter_bytes(precision) == pytest.approx(parts)


def test_gradients_that_are_added_up_in_fp32_have_four_bytes_more() -> None:
    assert FULL.parameter_bytes("bf16", 2) == (2, 2, 16)
    assert Training(states="bf16").parameter_bytes("bf16", 2) == (2, 2, 4)


def test_gradients_go_from_the_head_to_the_first_layer_that_trains() -> None:
    first, *blocks, last = Training(freeze=("embedding", "block_[01]", "block_2/norm")).layers(4, tied=False)
    assert first == blocks[0] == blocks[1] == LayerTraining(("*",), backward=False)
    assert blocks[2] == LayerTraining(("norm",))
    assert blocks[3] == last == ALL
    assert not blocks[2].trains("norm")
    assert blocks[2].trains("q")


def test_adapters_stand_beside_the_matrices_of_blocks_alone() -> None:
    training = Training.of_options("8:q,v", quantize=True)
    first, block, last = training.layers(1, tied=True)
    assert (first.backward, block.backward, last.backward) == (False, True, True)
    assert [name for name in ("q", "k", "v", "o") if block.adapts(name)] == ["q", "v"]
    assert not any((first.adapts("q"), last.adapts("logits"), block.trains("q"), last.quantized))
    assert str(training) == "adapters of rank 8 beside q, v, frozen matrices in 4 bits, adamw with states in fp32"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"optimizer": "adam"}, "'adam' is none"),
        ({"lora": "0"}, "is no rank"),
        ({"lora": "8:query"}, "no matrix is called 'query'"),
        ({"lora": 8, "freeze": ["embedding"]}, "all but the adapters is frozen"),
        ({"quantize": True}, "trains nothing without adapters"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, object], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        Training.of_options(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("freeze", "tied", "what"),
    [
        (("blocks_0",), False, "no layer is called 'blocks_0'"),
        (("block_0/query",), False, "no matrix is called 'query'"),
        (("*",), False, "nothing is left to train"),
        (("embedding",), True, "frozen as one of the two"),
    ],
)
def test_what_a_model_has_not_is_refused(freeze: tuple[str, ...], tied: bool, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        Training(freeze=freeze).layers(2, tied)


def test_a_pair_is_no_sample_of_several_documents() -> None:
    for options, what in (
        ({"loss": "ppo"}, "'ppo' is none"),
        ({"packed": -1}, "is -1"),
        ({"packed": 64, "loss": "dpo"}, "a sample of dpo is a pair of sequences"),
    ):
        with pytest.raises(BadInput, match=what):
            Training.of_options(**options)


def test_what_is_trained_is_said_in_words() -> None:
    assert (
        str(Training(loss="dpo")) == "pairs of sequences by DPO, a frozen copy as reference, adamw with states in fp32"
    )
    assert str(Training(loss="dpo", rank=8)).startswith("pairs of sequences by DPO, adapters off for the reference, ")
    assert str(Training(packed=700)) == "documents of 700 tokens, adamw with states in fp32"
