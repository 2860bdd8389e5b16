"""Random and damaged questions to the API and to the tools of agents: answered or refused in a sentence, soon."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from draw_counts import counts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from automap_models.infer.tools import TOOLS, outcome
from automap_models.planners.base import SILENT
from automap_models.serve import web
from automap_models.serve.answers import LANES
from automap_models.serve.questions import Question

LONGEST_S = 20.0
"""Of this process's time for an answer: what a busy machine takes besides is no fault of the answer."""
PATHS = (
    "price",
    "choices",
    "timeline",
    "copy/command",
    "copy/python",
    "copy/megatron",
    "copy/torchtitan",
    "copy/deepspeed",
)
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256}
QUESTIONS: list[dict[str, Any]] = [
    {"model": "gpt2", "cluster": "8xh100", "global_batch": 16, "tp": 2, "pp": 2},
    {"model": "llama3-8b", "cluster": "32xh100", "tp": 4, "zero": 1, "recompute": "selective", "runtime": "megatron"},
    {"model": "qwen3-30b-a3b", "cluster": "16xh100", "ep": 8, "dispatcher": "deepep", "micro_batch": 2},
    {"model": "mine", "config": json.dumps(CONFIG), "cluster": "p4d-4", "layers": [1, 3], "pp": 2, "sequence": 128},
    {"model": "t5_base", "cluster": "B", "schedule": "gpipe", "precision": "fp16", "pp": 4, "global_batch": 64},
]
"""What is damaged."""
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("price", {"what": "gpt2", "gpus": "8xh100", "tp": 2, "pp": 2, "global_batch": 16}),
    ("price", {"what": "llama3-8b", "topo": "p4d-4", "recompute": "full", "freeze": ["block_?"], "tokens": "1T"}),
    ("doctor", {"what": "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --bf16", "device": "h100"}),
    ("export", {"plan": {"schema": 1, "kind": "strategy", "model": "x", "strategy": {}}, "to": "megatron"}),
]
WORDS = (
    "",
    "full",
    "none",
    "zb-v",
    "interleaved",
    "megatron",
    "../A",
    "A",
    "1xt4",
    "999999999xh100",
    "nvfp4",
    "a\0",
    "é",
)
NUMBERS = (-1, 0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 64, 100, 4096, 2**31 - 1, 2**31, 2**53, 10**20, 0.5, 1e308)
values = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.sampled_from([value for lane in LANES.values() for value in lane]),
    st.sampled_from([True, False, None]),
    st.lists(st.sampled_from(NUMBERS + WORDS), max_size=5),
    st.text(max_size=12),
)
documents = st.recursive(
    values, lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=8), inside, max_size=3)
)
damages = st.dictionaries(st.sampled_from(Question.__struct_fields__), values, max_size=3)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(web.application(remote=False), base_url="http://127.0.0.1") as client:
        yield client


def many(cases: int) -> settings:
    return settings(max_examples=cases, suppress_health_check=list(HealthCheck))


def require_answer(client: TestClient, path: str, content: bytes) -> None:
    """A defect of ours raises here, since the client has the application's errors."""
    begun_s = time.process_time()
    answer = client.post(f"/api/{path}", content=content, headers={"Content-Type": "application/json"})
    assert time.process_time() - begun_s < LONGEST_S
    assert answer.status_code in (200, 422)
    if answer.status_code == 422:
        sentence = answer.json()["sentence"]
        assert sentence
        assert "\n" not in sentence


@pytest.mark.parametrize("cases", counts(40, 500, 150_000))
def test_a_damaged_question_is_answered_or_refused(client: TestClient, cases: int) -> None:
    @many(cases)
    @given(st.sampled_from(PATHS), st.sampled_from(QUESTIONS), damages)
    def ask(path: str, question: dict[str, Any], damage: dict[str, Any]) -> None:
        require_answer(client, path, json.dumps({**question, **damage}).encode())

    ask()


@pytest.mark.parametrize("cases", counts(40, 500, 50_000))
def test_a_random_body_is_refused(client: TestClient, cases: int) -> None:
    @many(cases)
    @given(
        st.sampled_from(PATHS), st.binary(max_size=64) | documents.map(lambda document: json.dumps(document).encode())
    )
    def ask(path: str, content: bytes) -> None:
        require_answer(client, path, content)

    ask()


@pytest.mark.parametrize("cases", counts(40, 500, 20_000))
def test_a_damaged_call_of_an_agent_is_answered_or_refused(cases: int) -> None:
    keys = st.sampled_from(sorted({key for tool in TOOLS.values() for key in tool.arguments} | {"no_such"}))

    @many(cases)
    @given(st.sampled_from(CALLS), st.dictionaries(keys, documents, max_size=3))
    def ask(call: tuple[str, dict[str, Any]], damage: dict[str, Any]) -> None:
        name, arguments = call
        begun_s = time.process_time()
        document, failed = outcome(name, {**arguments, **damage}, SILENT, threading.Event())
        assert time.process_time() - begun_s < LONGEST_S
        if failed:
            assert document["exit_code"] in (2, 3)
            assert "\n" not in document["error"]

    ask()
