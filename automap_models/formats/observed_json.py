"""Measured stage times of a running job: times.json, or a trace of Perfetto, Chrome or Kineto (docs/how-to/replan.md).

times.json lists either `stages` (`index`, one sample a micro-batch of the stage's slowest replica) or `devices`
(`device`, one sample a micro-batch of that device's part), each with `forward_s` and `backward_s`, a number or a list
of them. In a trace the complete events (`"ph": "X"`) called or categorised `forward` and `backward` count, on rows
whose thread or process is named after its stage, device or rank (`stage 2`, `device 17`), as formats.chrome_trace
writes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

import numpy as np

from automap_models.core.cluster import MAX_DEVICES
from automap_models.core.observed import Observed, Unit
from automap_models.core.profile import FloatArray
from automap_models.errors import BadInput
from automap_models.formats.json_fields import Fields, finite, read_json

SCHEMA = 1
KIND = "observed"
PASSES = ("forward", "backward")

_TRACK = re.compile(r"\b(device|rank|stage)\W{0,2}(\d{1,9})\b", re.IGNORECASE)
_DO = "see docs/how-to/replan.md for what the file may hold"


def read_observed(path: str | os.PathLike[str]) -> Observed:
    """The measured times in a times.json or a trace; which of them it is, the content says.

    Raises:
        BadInput: the file is neither, or a time in it is no positive number, naming the stage or device.
    """
    document = read_json(path)
    return parse_trace(document) if "traceEvents" in document else parse_times(document)


def parse_times(document: Fields) -> Observed:
    """The times in a parsed times.json; see `read_observed`."""
    if document.any("schema") != SCHEMA:
        document.refuse("schema", f"{SCHEMA}, the one that this version reads")
    if document.any("kind") != KIND:
        document.refuse("kind", KIND)
    if ("stages" in document) == ("devices" in document):
        raise BadInput("lists not exactly one of stages and devices", where=document.where, do=_DO)
    unit: Unit = "device" if "devices" in document else "stage"
    forward: dict[int, FloatArray] = {}
    backward: dict[int, FloatArray] = {}
    for item in document.objects(f"{unit}s"):
        key = "device" if unit == "device" else "index"
        number = item.whole(key)
        if not 0 <= number < MAX_DEVICES:
            item.refuse(key, f"a {unit}'s number")
        if number in forward:
            raise BadInput(f"{unit} {number} is listed twice", where=item.where, do="put all its samples into one list")
        forward[number], backward[number] = _samples(item, "forward_s"), _samples(item, "backward_s")
    return _complete(Observed(unit, forward, backward, document.where))


def parse_trace(document: Fields) -> Observed:
    """The times in a parsed trace; rows of devices go before rows of stages where it has both."""
    events = document.objects("traceEvents")
    rows = _rows(events)
    times: dict[Unit, dict[str, dict[int, list[float]]]] = {
        "device": {name: {} for name in PASSES},
        "stage": {name: {} for name in PASSES},
    }
    for row_unit, number, kind, seconds in _passes(events, rows):
        times[row_unit][kind].setdefault(number, []).append(seconds)
    unit: Unit = "device" if any(times["device"].values()) else "stage"
    forward, backward = ({n: np.array(v) for n, v in times[unit][name].items()} for name in PASSES)
    return _complete(Observed(unit, forward, backward, document.where))


def _samples(item: Fields, key: str) -> FloatArray:
    value = item.any(key)
    numbers = [finite(sample) for sample in (value if isinstance(value, list) else [value])]
    if not numbers or any(number is None or number <= 0 for number in numbers):
        item.refuse(key, "a positive number of seconds or a list of them")
    return np.array(numbers, dtype=np.float64)


def _complete(observed: Observed) -> Observed:
    """Something was measured, and forward and backward alike."""
    if not observed.forward_s and not observed.backward_s:
        raise BadInput("holds no forward or backward times of stages or devices", where=observed.where, do=_DO)
    for number in sorted(set(observed.forward_s) ^ set(observed.backward_s)):
        lacks = "backward" if number in observed.forward_s else "forward"
        raise BadInput(f"{observed.unit} {number} has no {lacks} times", where=observed.where, do=_DO)
    return observed


def _rows(events: list[Fields]) -> dict[tuple[object, object], tuple[Unit, int]]:
    """(process, thread) → whose row it is; (process, None) where the whole process is one's."""
    rows: dict[tuple[object, object], tuple[Unit, int]] = {}
    for event in events:
        what = event.document.get("name")
        if event.document.get("ph") != "M" or what not in ("thread_name", "process_name"):
            continue
        arguments = event.document.get("args")
        name = arguments.get("name") if isinstance(arguments, Mapping) else None
        named = dict[str, str]((unit.lower(), number) for unit, number in _TRACK.findall(str(name)))
        for unit in ("device", "rank", "stage"):
            if unit in named and int(named[unit]) < MAX_DEVICES:
                row = _key(event, thread=what == "thread_name")
                rows[row] = ("stage" if unit == "stage" else "device", int(named[unit]))
                break
    return rows


def _key(event: Fields, *, thread: bool) -> tuple[object, object]:
    """Process and thread as text: tools write numbers and names for either."""
    return str(event.document.get("pid")), str(event.document.get("tid")) if thread else None


def _passes(
    events: list[Fields], rows: Mapping[tuple[object, object], tuple[Unit, int]]
) -> Iterator[tuple[Unit, int, str, float]]:
    """Unit, number, pass and seconds of every forward and backward event on a row that is somebody's."""
    for event in events:
        kind = _pass(event)
        row = rows.get(_key(event, thread=True)) or rows.get(_key(event, thread=False))
        if event.document.get("ph") != "X" or kind is None or row is None:
            continue
        microseconds = event.number("dur")
        if microseconds <= 0:
            event.refuse("dur", "a positive number of microseconds")
        yield *row, kind, microseconds * 1e-6


def _pass(event: Fields) -> str | None:
    """`forward` or `backward` if the event's category is that or its name begins with it."""
    category, name = (str(event.document.get(key, "")).lower() for key in ("cat", "name"))
    return next((kind for kind in PASSES if category == kind or re.match(rf"{kind}\b", name)), None)
