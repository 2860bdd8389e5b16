"""Which cluster a model is trained on: beside the answers for each cluster alone, and money counted by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from automap_models.infer.app import fit, plan

CONFIG = {"model_type": "gpt2", "n_embd": 512, "n_layer": 8, "n_head": 8, "n_positions": 1024, "vocab_size": 4096}
PRICES = {"h100": 6.0, "a100": 1.0}
GIVEN = ("--global-batch", "16", "--budget", "1", "--tokens", "1T", "--gpu-hour", "h100=6,a100=1")
NAMES = ("4xh100", "4xa100", "8xa100")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG | {"torch_dtype": "bfloat16"}))
    return str(path)


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = plan([*arguments, *GIVEN, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_cluster_is_chosen_as_one_would_who_has_planned_for_each(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The price of an hour of all devices times the hours of 1T tokens, by what a step of each cluster takes."""
    step_s, cost, days = {}, {}, {}
    for name in NAMES:
        _, alone = answered(capsys, model, "--gpus", name)
        count, kind = int(name.partition("x")[0]), name.partition("x")[2]
        hours = 1e12 / (16 * 1024) * alone["step_s"] / 3600
        step_s[name], cost[name], days[name] = alone["step_s"], hours * count * PRICES[kind], hours / 24
    among = ("--gpus", ",".join(NAMES))
    for minimize, amounts in (("step", step_s), ("cost", cost)):
        code, answer = answered(capsys, model, *among, "--minimize", minimize)
        least = min(amounts, key=amounts.__getitem__)
        assert (code, answer["cluster"]) == (0, least)
        assert amounts[least] == pytest.approx(
            answer["step_s"] if minimize == "step" else answer["training_run"]["cost"]
        )
        if minimize == "step":
            assert answer["choice"]["gap"] == pytest.approx(
                1 - min(of["bound_s"] for of in answer["sizes"]) / step_s[least]
            )
    assert len({min(step_s, key=step_s.__getitem__), min(cost, key=cost.__getitem__)}) == 2
    late = str(0.5 * sum(sorted(days.values())[:2]))
    code, answer = answered(capsys, model, *among, "--minimize", "devices", "--deadline", f"{late} days")
    assert (code, answer["cluster"]) == (0, min(days, key=days.__getitem__))
    enough = 0.5 * sum(sorted(cost.values())[:2])
    code, answer = answered(capsys, model, *among, "--max-cost", str(enough))
    assert (code, answer["cluster"]) == (0, min(cost, key=cost.__getitem__))


def test_where_no_cluster_is_cheap_enough_the_cheapest_is_told(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = answered(capsys, model, "--gpus", ",".join(NAMES), "--max-cost", "1")
    costs = {size["cluster"]: size["best"]["training_run"]["cost"] for size in answer["sizes"]}
    assert (code, answer["cluster"]) == (3, min(costs, key=costs.__getitem__))
    assert plan([model, "--gpus", ",".join(NAMES), *GIVEN, "--max-cost", "1"]) == 3
    assert "1 is too little for all of these" in " ".join(capsys.readouterr().out.split())


def test_a_sweep_of_sizes_has_one_answer_where_something_is_minimized(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, answer = answered(capsys, model, "--gpus", "2xa100", "--devices", "2..8", "--minimize", "devices")
    assert (answer["cluster"], [size["cluster"] for size in answer["sizes"]]) == (
        "2xa100",
        ["2xa100", "4xa100", "8xa100"],
    )


def test_as_many_nodes_are_rented_as_cost_least_or_no_more_than_there_is(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a sweep of sizes that someone else asks for: 4 nodes of one A100 each cost more than fewer of them."""
    name = "4x1xa100"
    _, swept = answered(capsys, model, "--gpus", name, "--devices", "1..4")
    costs = {size["cluster"]: size["best"]["training_run"]["cost"] for size in swept["sizes"]}
    cheapest = min(costs, key=costs.__getitem__)
    assert costs[cheapest] < costs[name]
    for minimize in ((), ("--minimize", "cost")):
        enough = 0.5 * (costs[cheapest] + costs[name])
        code, answer = answered(capsys, model, "--gpus", name, "--max-cost", str(enough), *minimize)
        assert (code, answer["choice"]["part_of"]) == (0, name)
        assert answer["training_run"]["cost"] <= (enough if not minimize else 1.001 * costs[cheapest])
    code, answer = answered(capsys, model, "--gpus", name, "--minimize", "devices")
    assert (code, answer["cluster"]) == (0, "1x1xa100")
    assert plan([model, "--gpus", name, *GIVEN, "--minimize", "devices"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "3 of 4 a100: with all of 4x1xa100 in one job a step takes" in out and "% shorter" in out


def test_of_two_kinds_in_one_job_those_that_help_too_little_stand_idle(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the answer of each kind alone: 4 T4 add nothing to 4 H100."""
    code, answer = answered(capsys, model, "--gpus", "4xh100+4xa100")
    steps = {size["cluster"]: size["best"]["step_s"] for size in answer.get("sizes", [])}
    steps.setdefault("4xh100+4xa100", answer["step_s"])
    alone_s = {name: answered(capsys, model, "--gpus", name)[1]["step_s"] for name in ("4xh100", "4xa100")}
    assert code == 0
    assert answer["step_s"] == pytest.approx(min(alone_s["4xh100"], steps["4xh100+4xa100"]), rel=0.021)
    assert answer["step_s"] <= 1.021 * min(alone_s.values())
    assert plan([model, "--gpus", "4xh100+4xt4", "--global-batch", "16", "--budget", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on 4xh100:" in out
    assert "4 of 4 t4: with all of 4xh100+4xt4 in one job a step takes" in out


@pytest.mark.parametrize("nodes", [10, 13])
def test_nodes_stand_idle_where_samples_and_blocks_divide_better_without(
    model: str, capsys: pytest.CaptureFixture[str], nodes: int
) -> None:
    """16 samples on 10 nodes of a device are of 2 replicas of 5 ranks for 8 blocks; 13 divide nothing."""
    name, arguments = f"{nodes}x1xa100", ("--for", "megatron")
    code, answer = answered(capsys, model, "--gpus", name, *arguments)
    (idle,), count = answer["choice"]["idle"], nodes - answer["choice"]["idle"][0]["devices"]
    assert (code, answer["cluster"], answer["choice"]["part_of"]) == (0, f"{count}x1xa100", name)
    assert (idle["device"], idle["zone"], idle["among"]) == ("a100", "", nodes)
    assert f"--nnodes {count} --nproc-per-node 1 " in answer["command"]
    alone = answered(capsys, model, "--gpus", answer["cluster"], *arguments)[1]
    assert answer["step_s"] == pytest.approx(alone["step_s"], rel=0.01)
    assert answer["bound_s"] <= answer["step_s"]
    full_s = [size["best"]["step_s"] for size in answer["sizes"] if size["cluster"] == name] if nodes == 10 else []
    assert all(answer["step_s"] <= 0.99 * step_s for step_s in full_s)
    assert plan([model, "--gpus", name, *GIVEN, *arguments]) == 0
    reason = f"with all of {name} in one job a step takes" if full_s else f"no strategy divides all of {name}"
    assert f"{nodes - count} of {nodes} a100: {reason}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("batch", "even"), [(32, 30), (34, 36), (36, None), (9, None)])
def test_samples_that_all_devices_share_evenly_are_advised_where_they_train_more(
    model: str, batch: int, even: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the plan for so many samples itself: 6 devices share 30 and 36; 12 are a third more than 9."""
    given = ("--gpus", "6xh100", "--sequence", "1024", "--json")
    assert plan([model, *given, "--global-batch", str(batch)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert ("even_batch" in answer) == (even is not None)
    if even is not None:
        assert plan([model, *given, "--global-batch", str(even)]) == 0
        itself, advised = json.loads(capsys.readouterr().out), answer["even_batch"]
        assert advised["strategy"]["global_batch"] == even
        assert advised["step_s"] == pytest.approx(itself["step_s"], rel=0.05)
        assert 6 * advised["tokens_per_s_per_device"] > answer["tokens_per_s_per_device"] * answer["strategy"]["dp"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--gpus", "4xh100,4xl40s", "--minimize", "cost"), "--gpu-hour: l40s of 4xl40s has no price; give it, as in"),
        (("--gpus", "4xh100", "--gpu-hour", "a100"), "'a100' is no price such as 2.5 or h100=2.5,a100=1.2"),
        (("--gpus", "4xh100", "--gpu-hour", "h100=-1"), "--gpu-hour: is -1; give a positive number"),
        (
            ("--gpus", "4xh100+4xa100", "--devices", "4..8"),
            "leave --devices out: all parts of a mixed cluster are tried",
        ),
        (("--gpus", "13x1xa100", "--tp", "3"), "--tp: 3 does not divide the 8 heads"),
    ],
)
def test_what_cannot_be_chosen_by_is_refused(
    model: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    code = 0
    try:
        code = plan([model, *GIVEN, *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("arguments", [(), ("--price", "--dp", "4")])
def test_a_verdict_and_a_price_are_of_one_cluster(
    model: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert (plan if arguments else fit)([model, "--gpus", "4xh100,4xa100", *arguments]) == 2
    assert "4xh100 and 4xa100 are several clusters; give one" in " ".join(capsys.readouterr().err.split())
