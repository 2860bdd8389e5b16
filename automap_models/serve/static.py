"""`automap serve --static`: the page as files, beside the answers that it would ask for, to be hosted anywhere.

    DIR/index.html, app.js, …                the page, as `automap serve` has it
        api/models, api/clusters             what there is to choose from; `static` says how much was computed
        answers/MODEL/CLUSTER/index.json     the best strategy; a strategy's fields → the number of its file, or why not
                              0.json …       price, choices, timeline and copies of one strategy

Strategies are those of GRID, the best one, and those that differ from the best in one field.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from automap_models.core.strategy import ZERO_STAGES
from automap_models.errors import AutomapError, BadInput
from automap_models.formats.atomic import require_writable
from automap_models.planners.base import Progress, Watch
from automap_models.serve import ServeRequest, answers
from automap_models.serve.questions import Question, request_of

PAGE = Path(__file__).parent / "page"
MOST_DEGREE = 8
"""Of tp, pp and ep in the grid."""
MOST_PASSES = 2_048
"""Of a schedule that is stored."""
GRID: Mapping[str, tuple[object, ...]] = {"recompute": ("none", "full"), "zero": ZERO_STAGES}
"""Field → its values beside each other's, and beside degrees of tp, pp and ep."""
USUAL: Mapping[str, object] = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "micro_batch", "dp_replicate"), 1),
    **{"recompute": "none", "zero": 0, "sequence_parallel": False, "offload": "none"},
}
"""Field → the value that the page does not say, as LANES of app.js has it; other fields are chosen where not given."""
CLEARS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("pp", "vp", "schedule", "recompute"), ("layers", "recompute_blocks")),
    **{"tp": ("etp", "tower_tp"), "cp": ("tower_tp",), "ep": ("etp", "dispatcher"), "zero": ("dp_replicate",)},
}
"""Field → what means nothing beside another value of it, as CLEARS of app.js has it."""
SEARCHED = (*USUAL, "vp", "schedule", "layers", "recompute_blocks", "etp", "tower_tp", "dispatcher")
"""Fields of the best strategy that the page takes."""


def write_static(request: ServeRequest, watch: Watch) -> dict[str, int]:
    """Write the folder, whole or not at all; how many strategies it answers for, and bytes of all files.

    Args:
        request: `static` is the folder, `models` and `clusters` what is computed, each on each.
        watch: is told how far it is.

    Raises:
        BadInput: the folder is there or cannot be written, or there is no such model or cluster.
    """
    assert request.static is not None
    target = request.static
    if os.path.lexists(target):
        raise BadInput("is there already", where=f"folder {target}", do="remove it, or name a new one")
    real = require_writable(target)
    pairs = list(product(request.models, request.clusters))
    for model, cluster in pairs:
        request_of(Question(model=model, cluster=cluster), price=True)
    try:
        with TemporaryDirectory(dir=real.parent, prefix=f".{real.name}-") as temporary:
            folder = Path(temporary, "page")
            strategies = sum(_write_pair(folder, *pair, watch) for pair in pairs)
            _write_page(folder, request, strategies)
            nbytes = _bytes_below(folder)
            folder.rename(real)
    except OSError as error:
        raise BadInput(f"cannot be written ({error.strerror})", where=f"folder {target}", do="make room") from None
    return {"strategies": strategies, "bytes": nbytes}


def _write_page(folder: Path, request: ServeRequest, strategies: int) -> None:
    """The page, and what there is to choose from on it."""
    shutil.copytree(PAGE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("api.html"))
    every = answers.clusters()
    named = {cluster["name"]: cluster for cluster in every["clusters"]}
    sized = {"kinds": [], "devices": 0}
    static = {"strategies": strategies, "bytes": _bytes_below(folder), "models": request.models}
    shipped = {
        **every,
        "clusters": [{**named.get(name, sized), "name": name} for name in request.clusters],
        "devices": [],
        "static": static,
    }
    _write(folder / "api/clusters", shipped)
    _write(folder / "api/models", [model for model in answers.models() if model["name"] in request.models])


def _write_pair(folder: Path, model: str, cluster: str, watch: Watch) -> int:
    """The answers for a model on a cluster; how many strategies have a price."""
    subject, question = f"{model} on {cluster}", Question(model=model, cluster=cluster)
    best = _answer(_best, question, lambda news: watch(Progress(f"{subject}: {news.what}")))
    questions = {key_of(one): one for one in _questions(question, best.get("question"))}
    prices = {key: _answer(answers.price, one) for key, one in questions.items()}
    refused = {key: price for key, price in prices.items() if "sentence" in price}
    reasons = {key: refused[key]["what"].replace("`", "") if key in refused else None for key in prices}
    index: dict[str, Any] = {
        key: {name: answer[name] for name in ("sentence", "field")} for key, answer in refused.items()
    }
    pair = folder / "answers" / model / cluster
    priced = [key for key in questions if key not in refused]
    for number, key in enumerate(priced):
        watch(Progress(f"{subject}: {len(priced)} strategies", number, len(priced)))
        choices = _choices(questions[key], reasons)
        _write(pair / f"{number}.json", {"price": prices[key], "choices": choices, **_others(questions[key])})
    _write(pair / "index.json", {"best": best, "strategies": {**index, **{key: n for n, key in enumerate(priced)}}})
    return len(priced)


def _best(question: Question, watch: Watch) -> dict[str, Any]:
    """What the page shows of the best strategy, and the question that it takes the place of the fields with."""
    best = answers.best(question, watch)
    strategy = {name: best["strategy"].get(name) for name in SEARCHED}
    if strategy["vp"] == 1:
        strategy["vp"] = None
        strategy["schedule"] = None if strategy["pp"] == 1 else strategy["schedule"]
    return {
        **{name: best[name] for name in ("step_s", "bound_s", "strategy")},
        "question": _fields(msgspec.convert({**_fields(question), **strategy}, Question)),
    }


def _questions(question: Question, best: Mapping[str, Any] | None) -> Iterator[Question]:
    """Strategies that are computed for a model on a cluster."""
    offered = answers.offered(question)
    degrees = {name: [n for n in offered[name] if n <= MOST_DEGREE] for name in ("tp", "pp", "ep")}  # type: ignore[operator]
    grid = {**degrees, **GRID}
    for values in product(*grid.values()):
        yield msgspec.structs.replace(question, **dict(zip(grid, values, strict=True)))
    if best is not None:
        strategy = msgspec.convert(best, Question)
        yield strategy
        for name, values in offered.items():
            yield from (changed(strategy, name, value) for value in (None, *values))


def changed(question: Question, name: str, value: object) -> Question:
    """The question after another value of a field was chosen on the page."""
    cleared = dict.fromkeys(CLEARS.get(name, ()))
    if "recompute_blocks" in cleared and isinstance(question.recompute, tuple):
        cleared["recompute"] = None
    return msgspec.structs.replace(question, **{**cleared, name: value})


def _fields(question: Question) -> dict[str, Any]:
    """The fields that the page says."""
    given = msgspec.structs.asdict(question)
    return {name: value for name, value in given.items() if value is not None and USUAL.get(name) != value}


def key_of(question: Question) -> str:
    """The fields of a strategy in one text, as `keyOf` of app.js has it."""
    fields = {name: value for name, value in _fields(question).items() if name not in ("model", "cluster")}
    return "&".join(sorted(f"{name}={_text(value)}" for name, value in fields.items()))


def _text(value: object) -> str:
    """A value as a script writes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choices(question: Question, reasons: Mapping[str, str | None]) -> dict[str, list[dict[str, Any]]]:
    """Field → its values that were computed, each with the reason why it cannot be taken, or None."""
    return {
        name: [
            {"value": value, "reason": reasons[key]}
            for value in (*(() if name in USUAL else (None,)), *values)
            if (key := key_of(changed(question, name, value))) in reasons
        ]
        for name, values in answers.offered(question).items()
    }


def _others(question: Question) -> dict[str, Any]:
    """What the page asks for beside the price; times of the schedule to a microsecond."""
    timeline = _answer(answers.timeline, question, MOST_PASSES)
    for kind, blocks in timeline.get("blocks", {}).items():
        timeline["blocks"][kind] = [(*block[:3], round(block[3], 6), round(block[4], 6)) for block in blocks]
    targets = (*answers.COPIES, *answers.clusters()["targets"])
    return {"timeline": timeline, "copy": {target: _answer(answers.copy, question, target) for target in targets}}


def _answer(answer: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """An answer, or why there is none."""
    try:
        return answer(*arguments)
    except AutomapError as error:
        return answers.refusal(error)


def _write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(document))


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
