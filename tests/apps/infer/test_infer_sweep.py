"""`automap infer --sweep`: rows that agree with single runs, their files, their picture, and mistakes."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from automap_models.core.constraints import Constraints
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster, step_device
from automap_models.infer.app import infer as main
from automap_models.planners.portfolio.sweep import Row, best_rows
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.batch import Outcome
from automap_models.plots.sweep import CLUSTER, MICRO_BATCHES, STAGES, draw_sweep, layout

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = "{clusters: [A, B], stages: [1, 2, 3], micro_batches: [8, 16]}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a profile and a sweep."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "vgg19_v100.npz", "vgg.npz")
    Path("sweep.yaml").write_text(SMALL, encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a sweep of sweep.yaml and give what it prints."""

    def run(*arguments: str) -> str:
        assert main(["vgg.npz", "--sweep", "sweep.yaml", *arguments]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.mark.parametrize("objective", ["step", "length"])
def test_no_row_is_longer_than_the_shorter_of_the_policy_s_plan_and_uniform_cuts(
    objective: str, run: Callable[..., str]
) -> None:
    """By its length; by its step where these hold work in every stage, but for what simple plans may be longer."""
    rows = json.loads(run("--json", "--objective", objective))["rows"]
    assert len(rows) == 12
    profile = read_profile("vgg.npz")
    for row in rows:
        problem = StagedProblem(profile, read_cluster(row["cluster"]["name"]), row["stages"], row["micro_batches"])
        if objective == "step":
            device = step_device(profile, problem.cluster)
            problem = replace(problem, schedule="1f1b", constraints=Constraints(min_stage=0.25), device=device)
        planners = ("data-parallel",) if row["stages"] == 1 else ("policy", "uniform")
        results = [make_planner(name).solve(problem) for name in planners]
        best_s = min((result.cost.step_s for result in results if result.plan), default=np.inf)
        own_s = row["length_s"] if objective == "length" else row["step_s"]
        assert own_s <= best_s * (1.0 + (1e-9 if objective == "length" else 0.0205))
        ideal_s = float(profile.C.sum()) * row["micro_batches"] / problem.cluster.devices
        assert row["efficiency"] == pytest.approx(ideal_s / own_s)


def test_one_row_a_cluster_is_the_best_by_speed(run: Callable[..., str]) -> None:
    rows = json.loads(run("--json"))["rows"]
    for name in "AB":
        own = [row for row in rows if row["cluster"]["name"] == name]
        (best,) = (row for row in own if row["best_of_cluster"])
        assert best["step_s"] / best["micro_batches"] == min(row["step_s"] / row["micro_batches"] for row in own)


def test_with_a_budget_every_row_is_proven(run: Callable[..., str], folder: Path) -> None:
    Path("sweep.yaml").write_text("{clusters: [A], stages: [2]}", encoding="utf-8")
    words = ("--json", "--certify-budget", "inf", "--refine-budget", "0", "--objective", "length")
    (row,) = json.loads(run(*words))["rows"]
    problem = StagedProblem(read_profile("vgg.npz"), read_cluster("A"), 2)
    best = make_planner("exact").plan(problem)
    assert row["optimality"]["proof"] == "exact"
    assert row["length_s"] == pytest.approx(plan_cost(problem, best).length_s, rel=1e-9)


def test_files_hold_the_same_rows(run: Callable[..., str], folder: Path) -> None:
    document = json.loads(run("--json", "--out", "rows.json"))
    assert json.loads((folder / "rows.json").read_text(encoding="utf-8")) == document
    printed = run("--out", "rows.csv")
    assert "rows: rows.csv" in printed
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
        flat = list(csv.DictReader(file))
    assert [float(row["length_s"]) for row in flat] == [row["length_s"] for row in document["rows"]]
    assert [row["cuts"] for row in flat] == [" ".join(map(str, row["cuts"])) for row in document["rows"]]
    assert (flat[0]["cluster"], flat[0]["nodes"], flat[0]["inter"]) == ("A", "2", "3125000000.0")


def test_the_table_has_a_row_for_each_combination_and_marks_the_best(run: Callable[..., str]) -> None:
    out = run()
    assert "12 combinations on 2 clusters" in out
    assert sum("←" in line and "8" in line for line in out.splitlines()) >= 2
    assert max(map(len, out.splitlines())) <= 100


def test_combinations_that_cannot_be_are_rows_of_their_own(run: Callable[..., str], folder: Path) -> None:
    text = "{clusters: [{base: A, memory: [1e6, 32e9]}], stages: [2, 17], micro_batches: [3, 8], global_batch: 256}"
    Path("sweep.yaml").write_text(text, encoding="utf-8")
    rows = json.loads(run("--json"))["rows"]
    assert len(rows) == 8
    by = {(row["cluster"]["memory"], row["stages"], row["micro_batches"]): row for row in rows}
    assert by[32e9, 2, 8]["length_s"] > 0
    assert "GB" in by[1e6, 2, 8]["error"]
    assert "17 stages" in by[32e9, 17, 8]["error"]
    assert "do not make 3 equal" in by[32e9, 2, 3]["error"]
    out = run()
    assert "no plan fits the memory" in out
    assert sum(map(int, re.findall(r"no plan +(\d) of 8 combinations: ", out))) == 7


def test_auto_tries_every_number_of_stages_and_every_divisor(run: Callable[..., str], folder: Path) -> None:
    node = "{name: node, nodes: 1, devices_per_node: 4, intra: 130 GB/s, inter: 3 GB/s, memory: 32 GB}"
    Path("node.yaml").write_text(node, encoding="utf-8")
    text = "{clusters: [node.yaml], stages: auto, micro_batches: auto, global_batch: 4}"
    Path("sweep.yaml").write_text(text, encoding="utf-8")
    assert "are those of the clock" in run("--granularity", "32", "--out", "rows.json")
    rows = json.loads(Path("rows.json").read_text(encoding="utf-8"))["rows"]
    for row in rows:
        assert row["micro_batches"] * row["microbatch_size"] == 4
    assert {(row["stages"], row["micro_batches"]) for row in rows} == {(s, m) for s in (1, 2, 3, 4) for m in (1, 2, 4)}


def test_a_picture_is_drawn_the_same_every_time(run: Callable[..., str], folder: Path) -> None:
    pytest.importorskip("matplotlib")
    run("--plot", "one.svg")
    run("--plot", "two.svg")
    assert (folder / "one.svg").read_bytes() == (folder / "two.svg").read_bytes()
    run("--plot", "sweep.png")
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")


def rows_of(clusters: list[str], stages: list[int], counts: list[int]) -> list[Row]:
    """Rows without plans."""
    return [Row(read_cluster(c), S, M, None, Outcome(None)) for c in clusters for S in stages for M in counts]


def test_what_varies_most_lies_along_the_axis() -> None:
    assert layout(rows_of(["A", "p3-4"], [2, 4], [4, 8, 16])) == (MICRO_BATCHES, STAGES, CLUSTER)
    assert layout(rows_of(["A", "p3-4"], [1, 2, 4], [8])) == (STAGES, MICRO_BATCHES, CLUSTER)
    along, lines, panels = layout(rows_of(["A", "B", "C"], [2], [4, 8]))
    assert (along.name, lines, panels) == ("nodes", MICRO_BATCHES, STAGES)


def test_a_sweep_without_any_plan_is_drawn_and_has_no_best() -> None:
    pytest.importorskip("matplotlib")
    rows = rows_of(["A", "p3-4"], [2, 4], [4, 8, 16])
    assert best_rows(rows) == {}
    texts = [text.get_text() for axis in draw_sweep("none", rows, same_batch=True).axes for text in axis.texts]
    assert texts == ["no plan", "no plan"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topo", "C"), "--topo"),
        (("--stages", "2"), "--stages"),
        (("--micro-batches", "4"), "--micro-batches"),
        (("--global-batch", "64"), "--global-batch"),
        (("--trace", "trace.json"), "--trace"),
        (("--plan", "plan.json"), "--plan"),
        (("--min-gain", "0.1"), "--min-gain"),
        (("--out", "rows.txt"), ".csv or .json"),
        (("--out", "sweep.yaml"), "input"),
        (("--plot", "sweep.bmp"), ".png"),
        (("--planner", "best"), "unknown planner"),
    ],
)
def test_a_wrong_argument_is_refused(
    arguments: tuple[str, ...], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert main(["vgg.npz", "--sweep", "sweep.yaml", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clusters: [D]", "neither a known cluster"),
        ("{clusters: [A], global_batch: 100}", "no multiple of the 32"),
        ("{clusters: [A], stages: {from: 1, to: 200}, micro_batches: {from: 1, to: 200}}", "at most 10,000"),
    ],
)
def test_a_wrong_sweep_is_refused(text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sweep.yaml").write_text(text, encoding="utf-8")
    assert main(["vgg.npz", "--sweep", "sweep.yaml"]) == 2
    assert message in capsys.readouterr().err
