"""The page and what it asks for, as a Starlette application.

    GET  /api/models, /api/clusters       what there is to choose from
    POST /api/price, choices, timeline    a Question as JSON → its answer
    POST /api/copy/TARGET                 … → texts of files
    POST /api/search                      … → events `progress`, then `best` or `error`
    GET  /openapi.json                    all of these, described by the types below and the question's

What is refused is answered with status 422 and `{"what", "where", "do", "sentence", "field"}`. Prices wait
neither for a search nor for what the page asks for beside them; what a page that moved on has asked is not answered.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from automap_models.core.cluster import MemoryVerdict
from automap_models.errors import AutomapError, BadInput
from automap_models.formats.schema import decode_json
from automap_models.formats.strategy_plan import StrategyDocument
from automap_models.planners.base import Progress
from automap_models.serve import answers
from automap_models.serve.limits import limited, require_place, require_small
from automap_models.serve.questions import Question
from automap_models.version import __version__

PAGE = Path(__file__).parent / "page"
LOCAL = ["127.0.0.1", "localhost", "[::1]", "::1"]
"""Names of this machine by which a browser may ask: a page of another name that leads here is refused."""


def application(*, remote: bool) -> Starlette:
    """The application; `remote` is whether other machines may ask."""
    routes: list[BaseRoute] = [
        *(Route(path, _answering(answer), methods=["POST"]) for path, (_, _, answer) in ANSWERS.items() if answer),
        Route("/api/models", lambda request: _json(answers.models())),
        Route("/api/clusters", lambda request: _json(answers.clusters())),
        Route("/api/copy/{target}", _copy, methods=["POST"]),
        Route("/api/search", _search, methods=["POST"]),
        Route("/openapi.json", lambda request: _json(openapi())),
        Mount("/", StaticFiles(directory=PAGE, html=True)),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["*"] if remote else LOCAL)
    app = Starlette(routes=routes, middleware=[hosts], exception_handlers={AutomapError: _refused})
    app.state.searches = ThreadPoolExecutor(1)
    app.state.prices, app.state.others = asyncio.Semaphore(2), asyncio.Semaphore(1)
    app.state.waiting = 0
    return app


def _json(document: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, AutomapError)
    return _json(answers.refusal(error), 422)


async def _question(request: Request) -> Question:
    """The question in a body.

    Raises:
        BadInput: it is too large, or none.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise BadInput("is not declared as application/json", where="the question", do="say so in Content-Type")
    body = bytearray()
    async for part in request.stream():
        body += part
        require_small(len(body), "the question")
    return decode_json(body, Question, where="the question", do="send the fields that the page has")


def _answering(answer: Callable[[Question], dict[str, Any]]) -> Callable[[Request], Any]:
    """What answers a question by a function that computes."""

    async def answering(request: Request) -> Response:
        question = await _question(request)
        async with request.app.state.prices if answer is answers.price else request.app.state.others:
            if await request.is_disconnected():
                return Response()
            return await run_in_threadpool(lambda: _json(answer(question)))

    return answering


async def _copy(request: Request) -> Response:
    target = request.path_params["target"]
    return await _answering(lambda question: answers.copy(question, target))(request)  # type: ignore[no-any-return]


async def _search(request: Request) -> Response:
    question, state = await _question(request), request.app.state
    require_place(state.waiting)
    events = _events(question, state)
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _events(question: Question, state: Any) -> AsyncIterator[bytes]:
    """What a search says while it runs, and what it comes to; it stops when nobody listens any more."""
    loop, news, stopped = asyncio.get_running_loop(), asyncio.Queue[tuple[str, Any]](), threading.Event()

    def tell(kind: str, content: object) -> None:
        loop.call_soon_threadsafe(news.put_nowait, (kind, content))

    def watch(progress: Progress) -> None:
        tell("progress", {"what": progress.what, "done": progress.done, "total": progress.total})

    def run() -> None:
        try:
            tell("best", limited(partial(answers.best, question), watch, stopped))
        except AutomapError as error:
            tell("error", answers.refusal(error))
        except Exception:
            tell("error", answers.refusal(BadInput("ended by a defect of ours", where="search")))
            raise

    state.waiting += 1
    future = state.searches.submit(run)
    try:
        kind = "progress"
        while kind == "progress":
            kind, content = await news.get()
            yield f"event: {kind}\ndata: {msgspec.json.encode(content).decode()}\n\n".encode()
    finally:
        state.waiting -= 1
        stopped.set()
        future.cancel()


class PagePrice(StrategyDocument, kw_only=True):
    """`automap plan --price`, and what the page shows beside it; seconds, and bytes of a device of each rank."""

    device: str
    imbalance: float
    modules: list[dict[str, int | str]]
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


ANSWERS: Mapping[str, tuple[str, Any, Callable[[Question], dict[str, Any]] | None]] = {
    "/api/models": ("The transformers that have a name.", list[ModelChoice], None),
    "/api/clusters": ("What else there is to choose from.", Clusters, None),
    "/api/price": ("What a step takes, and the memory of every rank.", PagePrice, answers.price),
    "/api/choices": ("Field → its values.", dict[str, list[Choice]], answers.choices),
    "/api/timeline": ("The schedule as it is played.", Timeline, answers.timeline),
    "/api/copy/{target}": ("The strategy as a command, Python, or for a framework.", Copied, None),
    "/api/search": (
        "The best strategy: events progress, then best, as automap plan has it as JSON, or error.",
        str,
        None,
    ),
}
"""Address → what it answers, the type of that, and the function of a question that makes it, where one does."""


def openapi() -> dict[str, Any]:
    """The document, of OpenAPI 3.1."""
    types = [Question, Refusal, *(answer for _, answer, _ in ANSWERS.values())]
    template = "#/components/schemas/{name}"
    (question, refusal, *answers), schemas = msgspec.json.schema_components(types, ref_template=template)
    paths = {}
    for (path, (summary, *_)), answer in zip(ANSWERS.items(), answers, strict=True):
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
