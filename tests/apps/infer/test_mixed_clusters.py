"""Clusters of several kinds of nodes, as users of the commands and of Python see them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import automap_models as am
from automap_models.core.microbatch import rescaled
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.formats.npz import read_npz, write_npz
from automap_models.formats.schema import find_yaml
from automap_models.infer.app import main

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MIXED = """
name: two kinds
groups:
  - {nodes: 1, devices_per_node: 4, device: a100, SPEED intra: 300 GB/s, inter: 100 Gbit/s, memory: 40 GB}
  - {nodes: 2, devices_per_node: 2, device: v100, intra: 130 GB/s, inter: 25 Gbit/s, memory: 16 GB}
"""
FAST = ("--certify-budget", "0")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile, a mixed cluster and its plan."""
    source = tmp_path_factory.mktemp("mixed")
    shutil.copy(EXAMPLES / "vgg19_v100.npz", source / "vgg.npz")
    (source / "mixed.yaml").write_text(MIXED.replace("SPEED", "speed: 3,"), encoding="utf-8")
    files = [str(source / name) for name in ("vgg.npz", "mixed.yaml", "plan.json")]
    assert main(["infer", files[0], "--topo", files[1], "--stages", "2", *FAST, "--out", files[2]]) == 0
    return source


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    return tmp_path


@pytest.fixture
def printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command in the folder, which does what it should, and return what it printed."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command in the folder and require that it refuses, in the line that is returned."""

    def run(*arguments: str) -> str:
        before = sorted(folder.iterdir())
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert sorted(folder.iterdir()) == before
        return err

    return run


def plan_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "plan.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_a_plan_names_the_groups_and_stages_are_as_fast_as_their_devices(folder: Path) -> None:
    plan = plan_of(folder)
    groups = plan["cluster"]["groups"]
    assert [(group["device"], group["speed"]) for group in groups] == [("a100", 3.0), ("v100", 1.0)]
    samples, speeds = plan["microbatch_size"], [3.0] * 4 + [1.0] * 4
    profile = rescaled(read_npz(folder / "vgg.npz"), samples)
    for stage in plan["stages"]:
        own = slice(stage["first"], stage["last"] + 1)
        first, last = stage["devices"]
        devices = sorted(speeds[first : last + 1], reverse=True)
        fullest = [-(-samples // count) for count in range(1, len(devices) + 1)]  # whole ones
        times_s = [rescaled(profile, count).C[own].sum() for count in fullest]
        least_s = min(time_s / slowest for time_s, slowest in zip(times_s, devices, strict=True))
        assert stage["forward_s"] + stage["backward_s"] == pytest.approx(least_s, rel=1e-3)


def test_the_report_names_every_group(printed: Callable[..., str]) -> None:
    text = " ".join(printed("infer", "vgg.npz", "--topo", "mixed.yaml", "--plan", "plan.json", "--verbose").split())
    assert "two kinds: 1 node of 4 devices (a100) with 40.0 GB, 3 × as fast as the profile's, 300 GB/s inside" in text
    assert "; 2 nodes of 2 devices (v100) with 16.0 GB, 130 GB/s inside a node, 3.12 GB/s between nodes" in text
    assert "of 8 devices, worth 16 of these" in text


def test_a_plan_is_read_back_with_its_own_cluster_or_the_same_and_no_other(
    printed: Callable[..., str], refused: Callable[..., str], folder: Path
) -> None:
    own, same = (
        json.loads(printed("infer", "vgg.npz", "--plan", "plan.json", "--json", *topo))
        for topo in ((), ("--topo", "mixed.yaml"))
    )
    assert own["step_s"] == same["step_s"] == plan_of(folder)["step_s"]
    Path("mixed.yaml").write_text(MIXED.replace("SPEED", "speed: 2,"), encoding="utf-8")
    error = refused("infer", "vgg.npz", "--topo", "mixed.yaml", "--plan", "plan.json")
    assert "$.cluster.groups[0].speed is 3.0, but cluster two kinds has 2.0" in error


def test_without_speeds_kinds_are_as_fast_as_their_rooflines_say(printed: Callable[..., str], folder: Path) -> None:
    Path("mixed.yaml").write_text(MIXED.replace("SPEED", ""), encoding="utf-8")
    kind_s = read_npz(folder / "vgg.npz").roofline_s
    plan = json.loads(printed("infer", "vgg.npz", "--topo", "mixed.yaml", "--stages", "1", "--json"))
    assert [group["speed"] for group in plan["cluster"]["groups"]] == [kind_s["v100"] / kind_s["a100"], 1.0]


@pytest.fixture
def silent(folder: Path) -> Path:
    """The profile without what it says of other kinds of devices."""
    profile = read_npz(folder / "vgg.npz")
    meta = {key: value for key, value in profile.meta.items() if key != "roofline_s"}
    write_npz(folder / "silent.npz", replace(profile, meta=meta))
    return folder / "silent.npz"


def test_where_no_roofline_is_known_kinds_are_as_fast_as_their_matrix_products(
    silent: Path, printed: Callable[..., str]
) -> None:
    """0.759 of 19.5 TFLOP/s in float32 on one, 0.747 of 15.7 on the other."""
    Path("mixed.yaml").write_text(MIXED.replace("SPEED", ""), encoding="utf-8")
    plan = json.loads(printed("infer", silent.name, "--topo", "mixed.yaml", "--stages", "1", "--json"))
    speeds = [group["speed"] for group in plan["cluster"]["groups"]]
    assert speeds == pytest.approx([0.759 * 19.5 / (0.747 * 15.7), 1.0])


@pytest.mark.parametrize("planner", ["policy", "online"])
def test_planners_that_know_equal_nodes_only_say_so(planner: str, refused: Callable[..., str]) -> None:
    pytest.importorskip("torch")
    error = refused("infer", "vgg.npz", "--topo", "mixed.yaml", "--stages", "2", "--planner", planner)
    assert "cluster two kinds: is mixed, and " in error and "knows only clusters of equal nodes; plan with" in error


def test_kinds_of_which_the_profile_says_nothing_are_refused(silent: Path, refused: Callable[..., str]) -> None:
    Path("mixed.yaml").write_text(MIXED.replace("SPEED", "").replace("v100", "t4"), encoding="utf-8")
    error = refused("infer", silent.name, "--topo", "mixed.yaml")
    assert "cluster two kinds: has a100, t4, but the profile's times are of v100; give each group its `speed`" in error


def test_a_sweep_takes_mixed_clusters_by_name(printed: Callable[..., str], refused: Callable[..., str]) -> None:
    Path("sweep.yaml").write_text("{clusters: [mixed.yaml, A], stages: [1, 2]}", encoding="utf-8")
    rows = json.loads(printed("infer", "vgg.npz", "--sweep", "sweep.yaml", "--json"))["rows"]
    assert {row["cluster"]["name"]: "groups" in row["cluster"] for row in rows} == {"two kinds": True, "A": False}
    Path("sweep.yaml").write_text("{clusters: {base: mixed.yaml, inter: [1e9, 2e9]}}", encoding="utf-8")
    error = refused("infer", "vgg.npz", "--sweep", "sweep.yaml")
    assert "cluster two kinds is mixed: its numbers are those of its groups; list the mixed cluster" in error


def test_a_running_job_is_planned_again_by_how_much_slower_devices_are_than_healthy_ones_of_their_kind(
    printed: Callable[..., str], folder: Path
) -> None:
    """Every device takes what its kind takes, but one of the fast ones twice as long."""
    devices = []
    for stage in plan_of(folder)["stages"]:
        first, last = stage["devices"]
        slowest = min(3.0 if device < 4 else 1.0 for device in range(first, last + 1))
        for device in range(first, last + 1):
            factor = slowest / (3.0 if device < 4 else 1.0) * (2.0 if device == 1 else 1.0)
            times = {key: [stage[key] * factor] * 3 for key in ("forward_s", "backward_s")}
            devices.append({"device": device, **times})
    Path("times.json").write_text(json.dumps({"schema": 1, "kind": "observed", "devices": devices}), encoding="utf-8")
    adjusted = json.loads(printed("infer", "vgg.npz", "--plan", "plan.json", "--observed", "times.json", "--json"))[
        "adjustment"
    ]
    assert adjusted["slowdown"] == pytest.approx([1.0, 2.0, *[1.0] * 6], abs=0.02)
    assert sorted(adjusted["device_order"][:4]) == [0, 1, 2, 3]  # nodes keep to positions of their kind
    assert adjusted["length_s"] <= adjusted["running_length_s"]


def test_all_kinds_of_plans_are_explored_on_mixed_nodes(printed: Callable[..., str]) -> None:
    arguments = ("plan", "vgg.npz", "--topo", "mixed.yaml", "--global-batch", "64", "--max-stages", "2")
    explored = json.loads(printed(*arguments, "--budget", "0.5", "--no-cache", "--json"))
    assert {candidate["kind"] for candidate in explored["candidates"]} >= {"pipeline", "data"}
    assert explored["cluster"]["groups"][0]["speed"] == 3.0


def test_python_plans_on_a_mixed_cluster(folder: Path) -> None:
    result = am.infer("vgg.npz", "mixed.yaml", stages=2, certify_budget=0.0)
    assert result.problem.cluster.shape == read_cluster("mixed.yaml").shape == "1 × 4 + 2 × 2"
    assert result.cost.step_s == pytest.approx(plan_of(folder)["step_s"], rel=0.05)


def test_a_cluster_of_zones_has_no_plan_of_stages(refused: Callable[..., str], folder: Path) -> None:
    assert "has several zones, and a plan of stages knows no links between them" in refused(
        "infer", "vgg.npz", "--topo", "gcp-a2-zones"
    )
    text = find_yaml("gcp-a2-zones", "topo", "cluster").read_text("utf-8")
    (folder / "lacking.yaml").write_text(text[: text.index("zone_links")], "utf-8")
    message = "there is no link between zone us-central1-a and zone us-central1-b; give `zone_links` one of"
    assert message in refused("plan", "llama2-7b", "--topo", "lacking.yaml")
