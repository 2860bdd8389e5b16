"""Small models for the tests of torch_export, on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from ideal_devices import ideal_device

from automap_models.core.device import Device
from automap_models.core.profile import Profile

torch = pytest.importorskip("torch")

SLOW_UNIT = ideal_device("unit", {"float32": 1.0}, vector=1e30, bandwidth=1e30)
"""One FLOP/s of products and no limit on what else is computed or moved: a time is a count of FLOP of products."""
SLOW_MEMORY = ideal_device("byte", {"float32": 1e30}, vector=1e30, bandwidth=1.0)
"""One byte/s: a time is a count of bytes."""

BATCH, TOKENS, HIDDEN, HEADS, VOCABULARY = 2, 16, 32, 4, 100

Built = tuple[Any, dict[str, Any]]


def bert(**changes: Any) -> Built:
    """A Hugging Face BERT for masked tokens and next sentences, with two layers."""
    from transformers import BertConfig, BertForPreTraining

    sizes: dict[str, Any] = {
        "num_hidden_layers": 2,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "intermediate_size": 64,
        "vocab_size": VOCABULARY,
    }
    with torch.device("meta"):
        model = BertForPreTraining(BertConfig(**{**sizes, **changes}))
        ids = torch.ones(BATCH, TOKENS, dtype=torch.int64)
        sentences = torch.ones(BATCH, dtype=torch.int64)
    return model, {"input_ids": ids, "attention_mask": ids, "labels": ids, "next_sentence_label": sentences}


def gpt2(**changes: Any) -> Built:
    """A Hugging Face GPT-2 with two layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": HIDDEN, "n_head": HEADS, "vocab_size": VOCABULARY}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(**{**sizes, **ends, **changes}))
        ids = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    return model, {"input_ids": ids, "labels": ids}


def t5(**changes: Any) -> Built:
    """A Hugging Face T5 with two layers in the encoder and two in the decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {
        "num_layers": 2,
        "d_model": HIDDEN,
        "d_kv": HIDDEN // HEADS,
        "num_heads": HEADS,
        "d_ff": 64,
        "vocab_size": VOCABULARY,
    }
    starts = {"decoder_start_token_id": 0, "use_cache": False}
    with torch.device("meta"):
        model = T5ForConditionalGeneration(T5Config(**{**sizes, **starts, **changes}))
        ids = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    return model, {"input_ids": ids, "labels": ids}


@pytest.fixture(scope="session")
def unit_device() -> Device:
    """One FLOP/s of products, whatever else is computed or moved."""
    return SLOW_UNIT


@pytest.fixture(scope="session")
def byte_device() -> Device:
    """One byte/s, whatever is computed."""
    return SLOW_MEMORY


@pytest.fixture(scope="session")
def builders() -> dict[str, Callable[..., Built]]:
    """Name → function that builds a tiny Hugging Face model with its keyword inputs; it takes changes of the config."""
    pytest.importorskip("transformers")
    return {"bert": bert, "gpt2": gpt2, "t5": t5}


@pytest.fixture(scope="session")
def profiled(builders: dict[str, Callable[..., Built]], unit_device: Device) -> Callable[[str], tuple[Any, Profile]]:
    """A function: the tiny model of a name and its profile, built once."""
    from automap_models.torch_export.profile import profile_module

    @cache
    def of(key: str) -> tuple[Any, Profile]:
        model, kwargs = builders[key]()
        return model, profile_module(model, kwargs=kwargs, device=unit_device)

    return of


@pytest.fixture(scope="session")
def with_values() -> Callable[[Any, dict[str, Any]], Built]:
    """A function that gives a model on the meta device and its inputs values, on the CPU; dropout is off."""

    def fill(model: Any, kwargs: dict[str, Any]) -> Built:
        torch.manual_seed(0)
        model = model.to_empty(device="cpu").eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0, 0.02)
        for buffer in model.buffers():
            buffer.zero_()
        return model, {name: torch.ones_like(tensor, device="cpu") for name, tensor in kwargs.items()}

    return fill
