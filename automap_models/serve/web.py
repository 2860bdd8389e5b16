"""The page and what it asks for, as a Starlette application.

    GET  /api/models, /api/clusters       what there is to choose from
    POST /api/price, choices, timeline    a Question as JSON → its answer
    POST /api/copy/TARGET                 … → texts of files
    POST /api/search                      … → events `progress`, then `best` or `error`
    GET  /openapi.json                    all of these, described

What is refused is answered with status 422 and `{"what", "where", "do", "sentence", "field"}`. Prices wait
neither for a search nor for what the page asks for beside them; what a page that moved on has asked is not answered.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from automap_models.errors import AutomapError, BadInput
from automap_models.formats.schema import decode_json
from automap_models.planners.base import Progress
from automap_models.serve import answers
from automap_models.serve.copies import COPIES, copy
from automap_models.serve.limits import limited, require_place, require_small
from automap_models.serve.openapi import openapi
from automap_models.serve.questions import Question

PAGE = Path(__file__).parent / "page"
LOCAL = ["127.0.0.1", "localhost", "[::1]", "::1"]
"""Names of this machine by which a browser may ask: a page of another name that leads here is refused."""


def application(*, remote: bool) -> Starlette:
    """The application; `remote` is whether other machines may ask."""
    routes: list[BaseRoute] = [
        *(Route(f"/api/{name}", _answering(answer), methods=["POST"]) for name, answer in ANSWERS.items()),
        Route("/api/models", lambda request: _json(answers.models())),
        Route("/api/clusters", lambda request: _json({**answers.clusters(), "copies": list(COPIES)})),
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


ANSWERS: dict[str, Callable[[Question], dict[str, Any]]] = {
    "price": answers.price,
    "choices": answers.choices,
    "timeline": answers.timeline,
}


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
    return await _answering(lambda question: copy(question, target))(request)  # type: ignore[no-any-return]


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
