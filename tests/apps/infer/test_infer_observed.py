"""`automap infer --observed` as its users see it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from automap_models.formats.npz import read_npz
from automap_models.infer.app import infer as main

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
REPLAN = ("vgg.npz", "--plan", "plan.json", "--observed", "times.json")


def write_times(plan: dict[str, Any], slow: dict[int, float], path: str = "times.json") -> None:
    """Times as the plan predicts them, but for some slow devices."""
    devices = [
        {
            "device": device,
            "forward_s": [stage["forward_s"] * slow.get(device, 1.0)] * 3,
            "backward_s": stage["backward_s"] * slow.get(device, 1.0),
        }
        for stage in plan["stages"]
        for device in range(stage["devices"][0], stage["devices"][1] + 1)
    ]
    Path(path).write_text(json.dumps({"schema": 1, "kind": "observed", "devices": devices}), encoding="utf-8")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile, its plan on A, and times with a straggler."""
    source = tmp_path_factory.mktemp("prepared")
    shutil.copy(EXAMPLES / "vgg19_v100.npz", source / "vgg.npz")
    planned = [str(source / "vgg.npz"), "--topo", "A", "--stages", "2", "--out", str(source / "plan.json")]
    assert main([*planned, "--certify-budget", "0"]) == 0
    plan = json.loads((source / "plan.json").read_text(encoding="utf-8"))
    write_times(plan, {3: 2.5}, str(source / "times.json"))
    return source


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A working folder with a copy of these files."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    return tmp_path


@pytest.fixture
def refused(folder: Path, refuses: Callable[..., Callable[..., str]]) -> Callable[..., str]:
    """Run the command in the folder and require that it refuses, in the line that is returned."""
    return refuses(main, "automap infer")


def test_a_straggler_is_reported_with_what_to_do_about_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(REPLAN) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for words in ("3: × 2.50", "running", "shorter", "idle  device 3", "moving", "pays"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_new_plan_goes_on_from_the_corrected_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REPLAN, "--out", "next.json", "--corrected", "measured.npz", "--json", "--restart", "20"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((folder / "next.json").read_text(encoding="utf-8"))
    adjustment = document["adjustment"]
    assert (adjustment["idle"], len(adjustment["slowdown"])) == ([3], 16)
    assert adjustment["slowdown"][3] == pytest.approx(2.5, rel=0.01)
    assert adjustment["length_s"] < adjustment["running_length_s"]
    saved = adjustment["running_length_s"] - adjustment["length_s"]
    took = adjustment["moving"]["moving_s"] + adjustment["moving"]["restart_s"]
    assert adjustment["pays_after_steps"] - 1 < took / saved <= adjustment["pays_after_steps"]
    assert read_npz("measured.npz").meta["corrected_under"]
    assert main(["measured.npz", "--plan", "next.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cuts"] == document["cuts"]


def test_what_an_adjustment_knows_is_known_to_the_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody measures device 3, which stands idle: it stays as slow as it was."""
    assert main([*REPLAN, "--out", "next.json", "--corrected", "measured.npz"]) == 0
    document = json.loads((folder / "next.json").read_text(encoding="utf-8"))
    order, position = document["adjustment"]["device_order"], document["adjustment"]["device_order"].index(3)
    times = []
    for stage in document["stages"]:
        first, last = stage["devices"]
        working = [order[p] for p in range(first, last + 1) if p != position]
        share = stage["replicas"] / len(working)
        for device in working:
            own = {key: stage[key] * share for key in ("forward_s", "backward_s")}
            times.append({"device": device, **own})
    Path("later.json").write_text(json.dumps({"schema": 1, "kind": "observed", "devices": times}), encoding="utf-8")
    capsys.readouterr()
    assert main(["measured.npz", "--plan", "next.json", "--observed", "later.json", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["adjustment"]
    assert again["slowdown"][3] == pytest.approx(document["adjustment"]["slowdown"][3])
    assert again["pays_after_steps"] is None
    assert again["device_order"] == order


def test_a_trace_will_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vgg.npz", "--plan", "plan.json", "--trace", "trace.json"]) == 0
    capsys.readouterr()
    assert main(["vgg.npz", "--plan", "plan.json", "--observed", "trace.json"]) == 0
    out = capsys.readouterr().out
    assert "all alike" in out
    assert "2 stages" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("vgg.npz", "--topo", "A", "--observed", "times.json"), "needs the plan that was running"),
        ((*REPLAN, "--stages", "3"), "--stages: planning again has no use for it"),
        ((*REPLAN, "--planner", "exact"), "--planner: planning again has no use for it"),
        ((*REPLAN, "--refine-budget", "0"), "--refine-budget: planning again has no use for it"),
        ((*REPLAN, "--plot", "p.png"), "--plot: planning again has no use for it"),
        ((*REPLAN, "--restart", "-1"), "--restart: -1 seconds"),
        ((*REPLAN, "--restart", "nan"), "--restart: nan seconds"),
        ((*REPLAN, "--attribute", "weather"), "invalid choice"),
        ((*REPLAN, "--corrected", "times.json"), "is an input, too"),
        ((*REPLAN[:3], "--observed", "absent.json"), "absent.json: cannot be read"),
        ((*REPLAN[:3], "--observed", "plan.json"), "kind is 'pipeline'"),
        (("vgg.npz", "--plan", "plan.json", "--restart", "3"), "--restart: is about measured times"),
        (("vgg.npz", "--topo", "A", "--corrected", "x.npz"), "--corrected: is about measured times"),
        (("vgg.npz", "--sweep", "s.yaml", "--observed", "times.json"), "--observed: is about one plan"),
    ],
)
def test_a_mistake_costs_one_line(arguments: tuple[str, ...], words: str, refused: Callable[..., str]) -> None:
    assert words in refused(*arguments)


def test_times_of_another_cluster_are_refused(folder: Path, refused: Callable[..., str]) -> None:
    times = json.loads(Path("times.json").read_text(encoding="utf-8"))
    times["devices"][0]["device"] = 77
    Path("times.json").write_text(json.dumps(times), encoding="utf-8")
    assert "device 77 is measured, but the plan has devices 0 to 15" in refused(*REPLAN)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device_order": [0] * 16}, "adjustment: the device order does not name the devices 0 to 15"),
        ({"idle": [99]}, "idle devices [99] are not all among 0 to 15"),
        ({"idle": list(range(16))}, "leave a stage without a device that works"),
        ({"slowdown": [1.0]}, "16 positive numbers"),
    ],
)
def test_an_adjustment_that_was_tampered_with_is_refused(
    change: dict[str, object], words: str, folder: Path, refused: Callable[..., str]
) -> None:
    plan = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    plan["adjustment"] = {"device_order": list(range(16)), "idle": [], "slowdown": [1.0] * 16, **change}
    Path("plan.json").write_text(json.dumps(plan), encoding="utf-8")
    assert words in refused(*REPLAN)
