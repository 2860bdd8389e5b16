"""Questions to the API of `automap serve`, and calls of the tools of `automap mcp`."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from . import samples
from .cases import Target
from .mutations import VALUES, change_json, change_text

PATHS = ("price", "choices", "timeline", *(f"copy/{target}" for target in ("command", "python", "slurm", "no-such")))
WORDS = ("", "full", "none", "zb-v", "gpt2", "megatron", "../A", "A", "1xt4", "999999999xh100", "nvfp4", "a\0", "é")
Lanes = Mapping[str, tuple[object, ...]]
NUMBERS = (-1, 0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 64, 100, 4096, 2**31 - 1, 2**31, 2**53, 10**20, 0.5, 1e308)


def questions() -> dict[str, Target]:
    """The API as a server asks it, and the tools as an agent does."""
    from automap_models.export.targets import TARGETS
    from automap_models.infer.tools import TOOLS
    from automap_models.serve.answers import LANES
    from automap_models.serve.questions import Question
    from automap_models.serve.web import application

    paths = (*PATHS, *(f"copy/{target}" for target in TARGETS))
    app, loop = application(remote=False), asyncio.new_event_loop()

    def ask(case: bytes) -> object:
        path, _, body = case.partition(b"\n")
        return _answered(*loop.run_until_complete(_post(app, f"/api/{path.decode()}", body)))

    def change_question(random_: random.Random, case: bytes) -> bytes:
        body = _changed(random_, case.partition(b"\n")[2], Question.__struct_fields__, LANES)
        return random_.choice(paths).encode() + b"\n" + body

    def change_call(random_: random.Random, case: bytes) -> bytes:
        name, _, body = case.partition(b"\n")
        names = [*TOOLS[name.decode()].arguments, "no_such"]
        return name + b"\n" + _changed(random_, body, names, LANES)

    questions = [f"{path}\n{json.dumps(question)}".encode() for question in samples.QUESTIONS for path in PATHS[:3]]
    called = [f"{name}\n{json.dumps(arguments)}".encode() for name, arguments in samples.CALLS]
    return {"serve": Target(questions, ask, change_question), "mcp": Target(called, _called, change_call)}


def _changed(random_: random.Random, body: bytes, names: Sequence[str], lanes: Lanes) -> bytes:
    """A document with other fields; one in six is another document or none."""
    if random_.random() < 1 / 6:
        return random_.choice((change_json, change_text))(random_, body)
    changed = random_.sample(names, random_.randrange(4))
    return json.dumps({**json.loads(body), **{name: _value(random_, name, lanes) for name in changed}}).encode()


def _value(random_: random.Random, name: str, lanes: Lanes) -> Any:
    """Mostly one that the field may have."""
    kind = random_.randrange(12)
    if kind < 8:
        return random_.choice(lanes.get(name, NUMBERS if kind == 0 else (1, 2, 4, 8)))
    if kind == 8:
        return [random_.choice(NUMBERS + WORDS) for _ in range(random_.randrange(6))]
    if kind == 9:
        return "".join(chr(random_.choice((32, 48, 120, 233, 0x1F600))) for _ in range(random_.randrange(12)))
    return random_.choice(WORDS if kind == 10 else VALUES)


def _answered(status: int, answer: bytes) -> object:
    """The body of an answer.

    Raises:
        AutomapError: the question is refused in a sentence.
        AssertionError: it is answered otherwise.
    """
    from automap_models.errors import AutomapError

    if status == 422:
        sentence = json.loads(answer)["sentence"]
        assert "\n" not in sentence
        raise AutomapError(sentence)
    assert status == 200, f"status {status}"
    return answer


async def _post(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of what an application answers; what it raises is raised."""
    sent = list[Mapping[str, Any]]()
    received = iter(({"type": "http.request", "body": body},))

    async def receive() -> Mapping[str, Any]:
        for message in received:
            return message
        return await asyncio.Future()  # it is never disconnected

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
    }
    scope |= {"query_string": b"", "headers": headers, "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}
    await app({**scope, "http_version": "1.1", "asgi": {"version": "3.0"}}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def _called(case: bytes) -> object:
    """What a tool answers.

    Raises:
        AutomapError: it refuses in a sentence.
        AssertionError: it ends otherwise.
    """
    from automap_models.errors import AutomapError, BadInput
    from automap_models.infer.tools import outcome
    from automap_models.planners.base import SILENT

    name, _, body = case.partition(b"\n")
    try:
        arguments = json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("the protocol carries JSON alone") from None
    if not isinstance(arguments, dict):
        raise BadInput("the protocol carries objects alone")
    document, failed = outcome(name.decode(), arguments, SILENT, threading.Event())
    if failed:
        assert document["exit_code"] in (2, 3), document
        assert "\n" not in document["error"]
        raise AutomapError(document["error"])
    return document
