"""What people read is whole at every width: nothing is cut off but the middle of names, no word is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from automap_models.core.profile import Profile
from automap_models.core.units import seconds, size
from automap_models.formats.npz import write_npz
from automap_models.infer import app

WIDTHS = (80, 100, 140)
LAYERS = tuple(f"encoder/block_{i // 2}/feed_forward_layer_norm_{i % 2}" for i in range(48))
CLUSTER = "{nodes: 2, devices_per_node: 8, intra: 130e9, inter: 3.125e9, memory: 5e9, name: pair}"
SWEEP = "{clusters: [{base: A, inter: [1.25e9, 3.125e9], memory: [1e6, 3e9]}], stages: [2, 17], micro_batches: [8]}"
Printed = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile whose instructions have long names and whose parameters do not fit one device, and what to plan for."""
    folder = tmp_path_factory.mktemp("widths")
    instruction_s = np.linspace(0.9e-3, 1.1e-3, len(LAYERS)) * 100
    profile = Profile.create(
        C=instruction_s,
        A=np.full(len(LAYERS), 4e6),
        W=np.full(len(LAYERS), 64e6),
        stash=np.full(len(LAYERS), 40e6),
        layers=LAYERS,
        names=tuple(f"dot_general.{1000 + i}" for i in range(len(LAYERS))),
        meta={"model": "long_names", "microbatch_size": 16},
    )
    write_npz(folder / "profile.npz", profile)
    (folder / "pair.yaml").write_text(CLUSTER, encoding="utf-8")
    (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    return folder


@pytest.fixture
def printed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """What a command prints in so many columns, of which no line has more."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AUTOMAP_CACHE", str(folder / "cache"))

    def run(width: int, *arguments: str) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        assert app.main(arguments) == 0
        out = capsys.readouterr().out
        assert all(len(line) <= width and line == line.rstrip() for line in out.splitlines())
        return out

    return run


def shortens(word: str, name: str) -> bool:
    """Whether the parts between the marks of omission follow one another in the name."""
    at = 0
    for part in word.split("…"):
        begin = name.find(part, at)
        if begin < 0:
            return False
        at = begin + len(part)
    return True


def require_whole(out: str) -> None:
    """No cell is cut off: marks of omission stand in names of layers only."""
    names = (*LAYERS, "encoder/block_*/feed_forward_layer_norm_*")
    for word in out.split():
        assert "…" not in word or any(shortens(word, name) for name in names), word


@pytest.mark.parametrize("width", WIDTHS)
def test_the_ranking_of_plans_is_whole_with_every_word_of_the_reasons(printed: Printed, width: int) -> None:
    """At 80 columns the reasons stood in a column of six characters, and the headings of the stages were cut off."""
    command = ("plan", "profile.npz", "--topo", "pair.yaml", "--budget", "1", "--max-stages", "3")
    document = json.loads(printed(10_000, *command, "--json"))
    out = printed(width, *command)
    require_whole(out)
    reasons = [plan["why"] for plan in (*document["candidates"], *document["absent"])]
    assert sum(map(bool, reasons)) >= 2
    assert set(" ".join(reasons).split()) <= set(out.split())
    for stage in document["best"]["stages"]:
        for key in ("forward_s", "backward_s", "all_reduce_s"):
            assert seconds(stage[key]) in out
    assert len(document["best"]["stages"]) > 1


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plan_is_whole(printed: Printed, width: int, folder: Path) -> None:
    if not (folder / "plan.json").exists():
        printed(10_000, "infer", "profile.npz", "--topo", "A", "--planner", "uniform", "--out", "plan.json")
    out = printed(width, "infer", "profile.npz", "--plan", "plan.json")
    require_whole(out)
    for stage in json.loads((folder / "plan.json").read_text())["stages"]:
        for value in (*map(seconds, (stage["forward_s"], stage["backward_s"])), size(stage["memory_bytes"])):
            assert value in out


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "command",
    [
        ("infer", "profile.npz", "--sweep", "sweep.yaml", "--planner", "uniform"),
        ("profile", "profile.npz", "--show"),
        ("profile", "--list"),
        ("plan", "--list-clusters"),
    ],
)
def test_other_tables_are_whole(printed: Printed, width: int, command: tuple[str, ...]) -> None:
    require_whole(printed(width, *command))


def test_a_wider_table_shows_no_less(printed: Printed) -> None:
    """Every word of a narrow report but shortened names is in the wider ones."""
    outs = [printed(width, "profile", "profile.npz", "--show").split() for width in WIDTHS]
    for narrow, wide in pairwise(outs):
        assert {word for word in narrow if "…" not in word and "─" not in word} <= set(wide)
