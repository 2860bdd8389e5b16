"""The API of the page as an OpenAPI document, whose schemas are those of the types below and of the question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from automap_models.core.cluster import MemoryVerdict
from automap_models.formats.strategy_plan import StrategyDocument
from automap_models.serve.questions import Question
from automap_models.version import __version__


class PagePrice(StrategyDocument, kw_only=True):
    """`automap plan --price`, and what the page shows beside it; seconds, and bytes of a device of each rank."""

    device: str
    imbalance: float
    step_s: float
    tokens_per_s_per_device: float
    mfu: float
    bubble_rate: float
    parts: dict[str, float]
    parts_rank: int
    memory: list[dict[str, float]]
    peak_memory_bytes: float
    memory_upper_bytes: float
    host_bytes: float
    fits: bool
    verdict: MemoryVerdict
    words: str
    devices: int
    tokens_per_s: float


class Choice(TypedDict):
    """A value of a field, and why the others leave no room for it; null where they do."""

    value: str | int | bool
    reason: str | None


class Timeline(TypedDict):
    """The schedule as it is played: rank, micro-batch, virtual stage, start and end of each pass by kind."""

    schedule: str
    length_s: float
    ranks: int
    blocks: dict[str, list[tuple[int, int, int, float, float]]]


class Copied(TypedDict):
    """Texts of files by ending, that of the first under an empty one, and notes."""

    files: dict[str, str]
    notes: list[str]


class ModelChoice(TypedDict):
    """A transformer that has a name."""

    name: str
    parameters: int
    active: str
    layers: int


class ClusterChoice(TypedDict):
    """A shipped cluster."""

    name: str
    devices: int
    kinds: list[str]


class Clusters(TypedDict):
    """What there is to choose from: clusters, devices of any number, runtimes, and what is copied."""

    clusters: list[ClusterChoice]
    devices: list[str]
    runtimes: list[str]
    targets: dict[str, str]
    copies: list[str]


class Refusal(TypedDict):
    """What is wrong, where, and what to do; the field of the question that it is about, null where about none."""

    what: str
    where: str | None
    do: str | None
    sentence: str
    field: str | None


ANSWERS: Mapping[str, tuple[str, Any]] = {
    "/api/models": ("The transformers that have a name.", list[ModelChoice]),
    "/api/clusters": ("What else there is to choose from.", Clusters),
    "/api/price": ("What a step takes, and the memory of every rank.", PagePrice),
    "/api/choices": ("Field → its values.", dict[str, list[Choice]]),
    "/api/timeline": ("The schedule as it is played.", Timeline),
    "/api/copy/{target}": ("The strategy as a command, Python, or for a framework.", Copied),
    "/api/search": ("The best strategy: events progress, then best, as automap plan has it as JSON, or error.", str),
}
"""Address → what it answers, and the type of that."""


def openapi() -> dict[str, Any]:
    """The document, of OpenAPI 3.1."""
    types = [Question, Refusal, *(answer for _, answer in ANSWERS.values())]
    template = "#/components/schemas/{name}"
    (question, refusal, *answers), schemas = msgspec.json.schema_components(types, ref_template=template)
    paths = {}
    for (path, (summary, _)), answer in zip(ANSWERS.items(), answers, strict=True):
        kind = "text/event-stream" if path == "/api/search" else "application/json"
        responses = {"200": {"description": summary, "content": {kind: {"schema": answer}}}}
        if path in ("/api/models", "/api/clusters"):
            paths[path] = {"get": {"summary": summary, "responses": responses}}
            continue
        wrong = "The question is refused, in a sentence."
        responses["422"] = {"description": wrong, "content": {"application/json": {"schema": refusal}}}
        body = {"required": True, "content": {"application/json": {"schema": question}}}
        asking: dict[str, Any] = {"summary": summary, "requestBody": body, "responses": responses}
        if "{target}" in path:
            asking["parameters"] = [{"name": "target", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths[path] = {"post": asking}
    info = {"title": "automap serve", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}
