"""`automap infer` plans the step that runs: schedules, gains of stages, equal stages, cuts at blocks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from automap_models.core.layers import boundaries
from automap_models.formats.files import read_profile
from automap_models.infer.app import infer as main

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
QUICK = ("--certify-budget", "20", "--refine-budget", "0")
AMPLE = ("--certify-budget", "20000", "--refine-budget", "0")
"""Time enough, however busy the machine is, for what is claimed of the best of several problems."""
GAIN = 0.005


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("step")
    shutil.copy(EXAMPLES / "vgg19_v100.npz", folder / "vgg.npz")
    cluster = "{nodes: 2, devices_per_node: 3, intra: 130e9, inter: 3.125e9, memory: 32e9, name: six}\n"
    (folder / "six.yaml").write_text(cluster, encoding="utf-8")
    return folder


@pytest.fixture
def planned(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:  # type: ignore[type-arg]
    """Run the command in the folder; the document that it prints."""
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> dict:  # type: ignore[type-arg]
        assert main(["vgg.npz", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    return run


@pytest.fixture
def refused(folder: Path, refuses: Callable[..., Callable[..., str]], monkeypatch: pytest.MonkeyPatch):
    refuse = refuses(main, "automap infer")
    monkeypatch.chdir(folder)
    return refuse


def test_the_default_plan_is_the_shortest_step_of_any_number_of_stages(planned) -> None:
    best = planned("--topo", "six.yaml", *AMPLE)
    assert (best["objective"], best["schedule"]) == ("step", "1f1b")
    assert best["step_s"] == pytest.approx(best["simulated_length_s"]["1f1b"])
    assert best["step_s"] <= best["baselines"]["data_parallel_s"]
    assert {attempt["stages"] for attempt in best["tried"]} == set(range(1, 7))
    for stages in ("1", "2", "3", "4"):
        alone = planned("--topo", "six.yaml", "--stages", stages, *QUICK)
        assert best["step_s"] <= alone["step_s"] * (1 + GAIN)


def test_stages_say_how_many_whole_samples_the_fullest_replica_gets(planned) -> None:
    plan = planned("--topo", "six.yaml", "--stages", "1", "--micro-batches", "16", *QUICK)
    (stage,) = plan["stages"]
    assert (stage["replicas"], stage["samples"]) == (6, 6)  # 32 samples on 6 devices: five are too few
    assert "stage 0: 6 replicas of 32 samples: 6 each" in plan["notes"]


def test_the_length_is_that_of_the_paper_and_has_no_schedule(planned) -> None:
    plan = planned("--topo", "six.yaml", "--objective", "length", *QUICK)
    assert (plan["objective"], plan["schedule"], plan["step_s"]) == ("length", None, None)
    assert {attempt["stages"] for attempt in plan["tried"]} <= {1, 2}
    assert plan["optimality"]["gap"] == pytest.approx(plan["length_s"] / plan["optimality"]["bound_s"] - 1)
    assert "samples" not in plan["stages"][0]


def test_a_global_batch_lets_every_number_of_micro_batches_compete(planned) -> None:
    plan = planned("--topo", "six.yaml", "--global-batch", "64", *AMPLE)
    assert {attempt["micro_batches"] for attempt in plan["tried"]} == {1, 2, 4, 8, 16, 32, 64}
    assert plan["micro_batches"] * plan["microbatch_size"] == 64
    fixed = planned("--topo", "six.yaml", "--global-batch", "64", "--micro-batches", "4", *QUICK)
    assert plan["step_s"] <= fixed["step_s"] * (1 + GAIN)


def test_equal_replicas_are_equal(planned) -> None:
    plan = planned("--topo", "six.yaml", "--stages", "3", "--equal-replicas", *AMPLE)
    assert [stage["devices"] for stage in plan["stages"]] == [[0, 1], [2, 3], [4, 5]]
    free = planned("--topo", "six.yaml", "--stages", "3", "--min-gain", "0", *AMPLE)
    assert free["step_s"] <= plan["step_s"] * (1 + 1e-7)  # moves and proofs leave out what is shorter by less


@pytest.mark.parametrize("pattern", ["conv*", "blocks"])
def test_cuts_are_where_asked(pattern: str, planned, folder: Path) -> None:
    plan = planned("--topo", "six.yaml", "--stages", "2", "--cut-at", pattern, *QUICK)
    ends = boundaries(read_profile(folder / "vgg.npz"), "conv*")
    assert set(plan["cuts"]) <= set(ends)


def test_a_harder_plan_has_to_earn_its_place(planned) -> None:
    """With a gain of 100 % none can: what is simplest stays, which here is data parallelism."""
    best = planned("--topo", "six.yaml", "--min-gain", "0", *AMPLE)
    modest = planned("--topo", "six.yaml", "--min-gain", "1", *AMPLE)
    assert len(modest["stages"]) == 1 <= len(best["stages"])
    assert best["step_s"] <= modest["step_s"] == modest["baselines"]["data_parallel_s"]


def test_stages_without_work_are_there_only_where_they_are_allowed(planned) -> None:
    """Five stages of VGG-19 hold a quarter of an even share each by default."""
    plan = planned("--topo", "six.yaml", "--stages", "5", *QUICK)
    free = planned("--topo", "six.yaml", "--stages", "5", "--min-stage", "0", "--min-gain", "0", *QUICK)
    profile = read_profile("vgg.npz")
    for stage in plan["stages"]:
        own = slice(stage["first"], stage["last"] + 1)
        shares = [of[own].sum() / of.sum() for of in (profile.C, profile.W)]
        assert shares[1] > 0 and 5 * max(shares) >= 0.25 * (1 - 1e-9)
    assert free["step_s"] <= plan["step_s"] * (1 + 1e-7)  # moves and proofs leave out what is shorter by less


def test_a_plan_comes_back_with_its_schedule(planned, folder: Path, refused) -> None:
    plan = planned("--topo", "six.yaml", "--stages", "2", "--schedule", "gpipe", "--out", "plan.json", *QUICK)
    again = planned("--plan", "plan.json")
    for key in ("schedule", "objective", "step_s", "length_s", "stages", "simulated_length_s"):
        assert again[key] == plan[key]
    for key, value, sentence in (
        ("step_s", 2 * plan["step_s"], r"\$\.step_s"),
        ("schedule", "zigzag", "unknown schedule 'zigzag'"),
        ("schedule", None, r"\$\.schedule"),
        ("objective", "speed", r"\$\.objective"),
    ):
        (folder / "wrong.json").write_text(json.dumps({**plan, key: value}), encoding="utf-8")
        assert re.search(sentence, refused("vgg.npz", "--plan", "wrong.json"))


def test_plans_of_before_there_were_schedules_are_read(planned, folder: Path) -> None:
    plan = planned("--topo", "six.yaml", "--stages", "2", "--objective", "length", *QUICK)
    old = {key: value for key, value in plan.items() if key not in ("objective", "schedule", "step_s")}
    old["tried"] = [
        {**{key: value for key, value in row.items() if key != "step_s"}, "length_s": row["step_s"]}
        for row in plan["tried"]
    ]
    (folder / "old.json").write_text(json.dumps(old), encoding="utf-8")
    again = planned("--plan", "old.json")
    assert (again["length_s"], again["objective"], again["cuts"]) == (plan["length_s"], "length", plan["cuts"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--schedule", "zigzag"), "--schedule: invalid choice: 'zigzag'"),
        (("--objective", "speed"), "--objective: invalid choice: 'speed'"),
        (("--min-gain", "-0.1"), "--min-gain: a gain of -0.1; give a share from 0 to 1"),
        (("--min-gain", "1.5"), "--min-gain: a gain of 1.5; give a share from 0 to 1"),
        (("--min-gain", "nan"), "--min-gain: a gain of nan; give a share from 0 to 1"),
        (("--min-gain", "0.1", "--objective", "length"), "--min-gain: is about the step"),
        (("--min-gain", "0.1", "--planner", "exact"), "--min-gain: planner exact takes the stages"),
        (("--cut-at", "konv*"), "--cut-at: 'konv*' matches no layer; the nearest names are conv"),
        (("--cut-at", "conv1_1", "--stages", "3"), "--cut-at conv1_1 (which allows 1 cuts) and --stages 3"),
        (("--equal-replicas", "--stages", "4"), "--equal-replicas: 6 devices do not make 4 stages of equally many"),
        (("--plan", "plan.json", "--cut-at", "conv*"), "--cut-at: the plan read has its own"),
    ],
)
def test_a_wrong_argument_costs_one_line(arguments: tuple[str, ...], sentence: str, refused) -> None:
    assert sentence in refused("vgg.npz", "--topo", "six.yaml", *arguments)
