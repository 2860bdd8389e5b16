"""The page in files: it answers as the library does, and is written whole or not at all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import automap_models as am
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import SILENT
from automap_models.serve import MODELS, ServeRequest, answers, static
from automap_models.serve.questions import Question
from automap_models.serve.static import changed, key_of, write_static


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two strategies, and no search."""

    def best(*_: object) -> dict[str, Any]:
        raise Infeasible("nothing is searched")

    monkeypatch.setattr(answers, "best", best)
    monkeypatch.setattr(static, "GRID", {"zero": (0, 1)})


def request(folder: Path, model: str = "gpt2", cluster: str = "1xh100") -> ServeRequest:
    return ServeRequest(static=folder, models=(model,), clusters=(cluster,))


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


@pytest.mark.usefixtures("small")
def test_the_files_answer_as_the_library_does(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    sizes = write_static(request(folder), SILENT)
    pair = folder / "answers/gpt2/1xh100"
    index, answer = read(pair / "index.json"), read(pair / "1.json")
    price = am.price("gpt2", gpus="1xh100", zero=1)
    assert answer["price"]["step_s"] == price.step_s
    assert answer["copy"]["megatron"]["files"][""] == am.export(price, "megatron").written.text
    assert answer["choices"]["zero"] == [{"value": 0, "reason": None}, {"value": 1, "reason": None}]
    assert answer["choices"]["micro_batch"] == [{"value": 1, "reason": None}]
    assert index == {"strategies": {"": 0, "zero=1": 1}, "best": {**index["best"], "sentence": "nothing is searched"}}
    assert read(folder / "api/clusters")["static"]["strategies"] == sizes["strategies"] == 2
    assert [model["name"] for model in read(folder / "api/models")] == ["gpt2"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sizes["bytes"] == sum(len(path.read_bytes()) for path in files)
    assert {path.name for path in tmp_path.iterdir()} == {"page"}
    linked = re.findall(r'(?:href|src)="([a-z][^":]*\.(?:css|js))"', (folder / "index.html").read_text("utf-8"))
    assert len(linked) == 4 and all((folder / name).is_file() for name in linked)


@pytest.mark.usefixtures("small")
def test_what_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(answers, "copy", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_static(request(tmp_path / "page"), SILENT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "others", "sentence"),
    [
        (".", {}, "is there already; remove it, or name a new one"),
        ("none/page", {}, "there is no folder"),
        ("page", {"model": "gpt-2-none"}, "unknown model 'gpt-2-none'"),
        ("page", {"cluster": "../A"}, "unknown cluster '../A'"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(
    tmp_path: Path, folder: str, others: dict[str, str], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        write_static(request(tmp_path / folder, **others), SILENT)
    assert list(tmp_path.iterdir()) == []


def test_models_without_a_folder_mean_nothing() -> None:
    with pytest.raises(BadInput, match="is of a page that is written"):
        ServeRequest(clusters=("A",))
    assert ServeRequest(static=Path("page")).models == MODELS


def test_a_strategy_is_called_by_what_is_not_usual() -> None:
    question = Question(
        model="gpt2", cluster="A", tp=1, pp=2, layers=(1, 3), recompute=("none", "full"), sequence_parallel=True
    )
    assert key_of(question) == "layers=1,3&pp=2&recompute=none,full&sequence_parallel=true"
    assert key_of(changed(question, "tp", 2)) == "layers=1,3&pp=2&recompute=none,full&sequence_parallel=true&tp=2"
    assert key_of(changed(question, "pp", 4)) == "pp=4&sequence_parallel=true"
