"""automap fit: the verdict is that of the price of a strategy, and what it says would fit does."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import automap_models as am
from automap_models.errors import BadInput, Infeasible
from automap_models.export.targets import training_limits
from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.infer.app import export, plan
from automap_models.infer.app import fit as main
from automap_models.planners.strategies.planner import is_trained
from automap_models.planners.strategies.remedies import USEFUL
from automap_models.requests import cluster_of

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 512,
    "n_layer": 8,
    "n_head": 8,
    "n_positions": 1024,
    "vocab_size": 4096,
    "torch_dtype": "bfloat16",
}
PARAMETERS = 8 * (12 * 512**2 + 13 * 512) + (4096 + 1024) * 512 + 2 * 512
"""Of GPT-2, counted by hand: four matrices of attention and two of the perceptron a block, with biases and norms."""
GIVEN = ("--gpus", "4xh100", "--global-batch", "16")


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path / "config.json")


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_what_fits_has_a_strategy_and_its_memory_by_kind(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ("--tp", "1", "--pp", "1", "--cp", "1", "--zero", "0", "--runtime", "megatron")  # it keeps gradients
    code, answer = answered(capsys, model, *GIVEN, *fixed)
    assert (code, answer["verdict"], answer["remedies"], answer["emptiest"]) == (0, "fits", [], None)
    assert answer["memory"]["weights"]["bytes"] == 2 * PARAMETERS
    assert answer["memory"]["gradients"]["bytes"] == 4 * PARAMETERS
    assert answer["memory"]["optimizer"]["bytes"] == 12 * PARAMETERS
    assert sum(kind["bytes"] for kind in answer["memory"].values()) == pytest.approx(
        answer["best"]["peak_memory_bytes"]
    )
    upper = sum(kind["upper_bytes"] for kind in answer["memory"].values())
    assert upper == pytest.approx(answer["best"]["memory_upper_bytes"])


def test_the_verdict_is_that_of_all_strategies_priced_one_by_one(model: str) -> None:
    """With degrees and micro-batch given the verdict is `fits` where a price is, for any memory."""
    fields = [
        {"zero": zero, "recompute": recompute}
        for zero, recompute in product((0, 1, 2, 3), ("none", "selective", "full"))
    ]
    given: dict[str, Any] = {"gpus": "4xh100", "dp": 4, "micro_batch": 4, "global_batch": 16}
    least = min(am.price(model, **given, **some).peak_memory for some in fields)
    for memory, verdict in ((least * 1.1, "fits"), (least * 1.02, "at risk"), (least * 0.98, "does not fit")):
        answer = am.fit(model, **given, recompute_blocks=None, memory=memory)
        assert answer.verdict == verdict, memory / least
        assert (answer.plan is None) == (verdict == "does not fit")


@pytest.mark.parametrize("gpus", ["4xa100", "4xh100", "4xv100"])
def test_where_no_runtime_is_named_it_is_that_of_programs_in_general(model: str, gpus: str) -> None:
    """On A100 attention took longer without a name than with `general`, whose file no command read."""
    given: dict[str, Any] = {"gpus": gpus, "global_batch": 16, "micro_batch": 4, "sequence": 1024}
    assert am.price(model, **given).step_s == am.price(model, **given, runtime="general").step_s


def test_a_runtime_says_what_estimates_of_it_fall_short_by(model: str) -> None:
    """Of 105 runs of nanotron and BLOOM out of memory 12 were said to fit, by the 8 % of programs in general."""
    given: dict[str, Any] = {"gpus": "4xh100", "global_batch": 16, "tp": 1, "pp": 1, "cp": 1, "micro_batch": 4}
    for runtime, reserve in (("general", 0.08), ("nanotron", 0.14), ("megatron-deepspeed", 0.12)):
        some = {**given, "runtime": runtime, "zero": 1, "recompute": "none"}
        nbytes = am.price(model, **some).peak_memory
        for share, verdict in ((1.01, "fits"), (0.99, "at risk")):
            assert am.price(model, **some, memory=share * nbytes / (1 - reserve)).verdict == verdict
        answer = am.fit(model, **some, memory=2 * nbytes)
        assert answer.problem.reserve_bytes == reserve * 2 * nbytes


def test_what_would_fit_does(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With micro-batches of 8 nothing fits what one of 4 needs: less is named first, and more devices are of no use."""
    given: dict[str, Any] = {"gpus": "4xh100", "recompute": "none", "tp": 1, "pp": 1, "cp": 1}
    room = am.price(model, **given, global_batch=32, micro_batch=4, zero=3).peak_memory / 0.9
    answer = am.fit(model, **given, global_batch=32, micro_batch=8, memory=room)
    assert answer.verdict == "does not fit"
    assert answer.emptiest is not None
    assert answer.emptiest.verdict == "does not fit"
    for change, cost in answer.remedies:
        assert cost.peak_memory <= 0.92 * room, change
    changes = [remedy.change for remedy in answer.remedies]
    assert {"leave `micro_batch` open", "leave `recompute` open"} <= {*changes}
    assert changes.index("take samples of 512 tokens") > changes.index("leave all fields open")
    options = ("--micro-batch", "8", "--recompute", "none", "--tp", "1", "--pp", "1", "--cp", "1")
    shared = ("--gpus", "4xh100", "--global-batch", "32", "--memory", str(room))
    code, document = answered(capsys, model, *shared, *options)
    assert (code, document["best"]) == (3, None)
    named = [change["change"] for change in document["remedies"]]
    assert "leave --micro-batch open" in named
    assert main([model, *shared, *options[2:]]) == 0


def test_it_says_so_in_words(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([model, *GIVEN]) == 0
    text = capsys.readouterr().out
    assert "\nfits: dp 4" in text
    assert "tokens/s on a device" in text
    assert main([model, *GIVEN, "--memory", "100 MB", "--budget", "0.1"]) == 3
    text = capsys.readouterr().out
    assert "does not fit: no strategy of 16 samples fits 100 MB" in text
    assert "least change" in text


def test_what_fits_at_a_crawl_is_told_beside_what_goes_faster(capsys: pytest.CaptureFixture[str]) -> None:
    """Without hosts it may fit over all devices alone, at 7 % of the peak, which nobody would run."""
    assert main(["mixtral-8x22b", "--gpus", "104xv100", "--offload", "none"]) == 0
    printed = capsys.readouterr().out
    assert "\nat risk: " in printed and "what else fits" in printed and "to go beyond 10.0 % of the peak" in printed
    assert "\nleast change  leave --offload open" in printed
    answer = am.fit("mixtral-8x22b", gpus="104xv100", offload="none")
    assert answer.cost.mfu < USEFUL <= min(remedy.cost.mfu for remedy in answer.remedies)


@pytest.mark.parametrize("samples", ["16", "4096"])
def test_a_plan_at_a_crawl_tells_who_knows_more(model: str, capsys: pytest.CaptureFixture[str], samples: str) -> None:
    """Sixteen samples of 128 tokens are too little work for 16 devices."""
    given = ("--gpus", "16xh100", "--global-batch", samples, "--sequence", "128" if samples == "16" else "1024")
    assert plan([model, *given]) == 0
    assert ("automap fit names those" in capsys.readouterr().out) == (samples == "16")


@pytest.mark.parametrize(("model", "gpus", "degrees"), [("gpt3-175b", "16xh100", 2), ("mixtral-8x7b", "32xv100", 4)])
def test_what_fits_narrowly_is_no_longer_than_what_people_would_try(model: str, gpus: str, degrees: int) -> None:
    """Tensor parallelism in nodes and a pipeline over them, all recomputed, and the optimizer on hosts. Of strategies
    that hold too much a search tried a few only, and came to ones of 1.7 and 6.5 times as many seconds."""
    given: dict[str, Any] = {"tp": 8, "pp": degrees, "micro_batch": 1, "recompute": "full", "offload": "optimizer"}
    usual = am.price(model, gpus=gpus, **given, sequence_parallel=True)
    answer = am.fit(model, gpus=gpus)
    assert usual.verdict == answer.verdict == "fits"
    assert answer.cost.step_s <= usual.step_s


def test_a_framework_trains_what_fits() -> None:
    """A pipeline that divides contexts, and backward passes in two, with unequal layers: none has all of them."""
    answer = am.fit("llama3-8b", gpus="32xv100")
    assert answer.plan is not None
    assert any(is_trained(answer.problem, answer.plan, limits) for limits in training_limits().values())


def test_the_optimizer_lies_on_hosts_where_nothing_fits_without(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve of eighteen bytes a parameter leave the device; the answer says how many there are on the host."""
    given = ("--gpus", "1xh100", "--global-batch", "8", "--sequence", "256", "--memory", "1750 MB")
    assert answered(capsys, model, *given, "--offload", "none")[0] == 3
    code, answer = answered(capsys, model, *given)
    assert (code, answer["best"]["strategy"]["offload"]) == (0, "optimizer")
    assert "optimizer" not in answer["memory"]
    assert answer["best"]["host_bytes"] == 16 * PARAMETERS
    assert main([model, *given]) == 0
    assert "hosts  445 MB of 2.00 TB a device hold the optimizer's state; --offload" in capsys.readouterr().out
    roomy = answered(capsys, model, *given[:-1], "10 GB")[1]
    assert roomy["best"]["strategy"]["offload"] == "none"
    planned = tmp_path / "strategy.json"
    assert plan([model, *given, "--out", str(planned), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"]["offload"] == "optimizer"
    for target, exit_code in (("megatron", 0), ("torchtitan", 2)):
        assert export([str(planned), "--to", target]) == exit_code
    assert "torchtitan has no optimizer on hosts" in capsys.readouterr().err


def test_hosts_are_not_asked_where_nothing_is_known_of_them(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--gpus", "1xrtx4090", "--global-batch", "8", "--sequence", "256", "--memory", "1750 MB")
    assert answered(capsys, model, *given)[0] == 3
    assert main([model, *given, "--offload", "optimizer"]) == 2
    assert "rtx4090 does not say the memory of its hosts" in capsys.readouterr().err
    assert main([model, *GIVEN, "--offload", "optimizer", "--for", "torchtitan"]) == 2
    assert "torchtitan has no optimizer on hosts" in capsys.readouterr().err


def test_fewer_tokens_are_the_most_that_fit(model: str) -> None:
    """By bisection over halves of the model's 1,024: the largest that a search of its own finds to fit."""
    given: dict[str, Any] = {"gpus": "1xh100", "micro_batch": 8, "global_batch": 8, "recompute": "none"}
    peaks = {tokens: am.price(model, sequence=tokens, **given).peak_memory for tokens in (1024, 512, 256)}
    memory = (peaks[1024] + peaks[512]) / 2 / 0.92
    answer = am.fit(model, **given, memory=min(memory, 0.99 * peaks[1024]))
    assert "take samples of 512 tokens" in [remedy.change for remedy in answer.remedies]


def test_a_profile_is_answered_by_the_same_search(capsys: pytest.CaptureFixture[str]) -> None:
    profile = str(Path(__file__).parents[3] / "examples" / "vgg19_v100.npz")
    code, answer = answered(capsys, profile, "--topo", "A")
    assert (code, answer["verdict"]) == (0, "fits")
    code, answer = answered(capsys, profile, "--topo", "A", "--memory", "300 MB", "--budget", "0.1")
    assert code == 3


def test_nothing_else_is_searched_for_a_profile_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows its FLOP: none of the peak went into them, and so larger clusters were tried beside what fits."""
    asked_for: list[bool] = []
    monkeypatch.setattr("automap_models.requests.fit._remedies", lambda *_: asked_for.append(True) or ())
    answer = am.fit(str(Path(__file__).parents[3] / "examples" / "t5_base_v100.npz"), "C")
    assert (answer.verdict, answer.cost.mfu, asked_for) == ("fits", 0.0, [])


def test_what_contradicts_is_refused(model: str) -> None:
    with pytest.raises(BadInput, match="`micro_batch`: is what `batch=2` says, too"):
        am.fit(model, gpus="4xh100", batch=2, micro_batch=2)
    with pytest.raises(BadInput, match="does not divide the 8 heads"):
        am.fit(model, gpus="4xh100", tp=3)
    assert am.fit(model, gpus="4xh100", batch=2, global_batch=16).cost.strategy.micro_batch == 2
    with pytest.raises(Infeasible):
        am.fit(model, gpus="4xh100", memory="100 MB", budget=0.1).required_plan()


def test_adapters_fit_where_all_parameters_do_not(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 31 M parameters full training holds 18 bytes each, and adapters with a frozen rest a ninth of that."""
    given = ("--gpus", "1xh100", "--global-batch", "8", "--sequence", "256", "--memory", "1750 MB")
    code, answer = answered(capsys, model, *given, "--offload", "none")
    assert code == 3
    changes = [change["change"] for change in answer["remedies"]]
    assert "train adapters (--lora 16)" in changes
    assert changes[0] == "leave --offload open"
    assert changes[1].startswith("train by --optimizer adamw-8bit") or "adapters" in changes[1]
    code, answer = answered(capsys, model, *given, "--lora", "16")
    assert (code, answer["best"]["training"]["rank"]) == (0, 16)
    (tmp_path / "strategy.json").write_text(json.dumps(answer["best"]))
    assert plan([model, *given[:2], "--sequence", "256", "--plan", str(tmp_path / "strategy.json"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["step_s"], again["training"]) == (answer["best"]["step_s"], answer["best"]["training"])
    for target, exit_code in (("megatron", 2), ("torchtitan", 2), ("deepspeed", 0)):
        assert export([str(tmp_path / "strategy.json"), "--to", target]) == exit_code
    assert "says nothing of adapters of rank 16" in capsys.readouterr().err
    assert main([model, *given, "--lora", "16", "--for", "torchtitan"]) == 2


def test_a_profile_has_other_optimizers_and_no_adapters() -> None:
    profile = str(Path(__file__).parents[3] / "examples" / "vgg19_v100.npz")
    usual, lion = (am.price(profile, "A", optimizer=name).memory[0] for name in ("adamw", "lion"))
    assert lion.optimizer == usual.optimizer / 2
    with pytest.raises(BadInput, match="needs the layers of a transformer"):
        am.fit(profile, "A", lora=8)


def test_changes_that_a_framework_has_no_words_for_are_passed_over(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """That none of them says adamw-8bit ended the command, in place of what fits otherwise."""
    given = ("--gpus", "1xh100", "--global-batch", "8", "--memory", "1750 MB", "--offload", "none")
    code, answer = answered(capsys, model, *given, "--for", "megatron")
    assert (code, answer["verdict"]) == (3, "does not fit")
    assert not any("adamw-8bit" in remedy["change"] for remedy in answer["remedies"])


def test_a_training_run_takes_days_hours_and_money(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: tokens over those of a second, on four devices."""
    given = ("--gpus", "4xh100", "--global-batch", "16", "--dp", "4")
    code, answer = answered(capsys, model, *given, "--tokens", "30B", "--gpu-hour", "2.5")
    run, rate = answer["best"]["training_run"], answer["best"]["tokens_per_s_per_device"]
    assert (code, run["tokens"]) == (0, 30e9)
    assert run["days"] == pytest.approx(30e9 / (4 * rate) / 86400)
    assert run["device_hours"] == pytest.approx(30e9 / rate / 3600)
    assert run["cost"] == pytest.approx(2.5 * 30e9 / rate / 3600)
    assert plan([model, *given, "--price", "--tokens", "30B"]) == 0
    assert "30B tokens take" in capsys.readouterr().out
    assert main([model, *given, "--gpu-hour", "2.5"]) == 2
    assert "--gpu-hour: is of a training that nobody asks for; give --tokens" in capsys.readouterr().err


def test_a_cluster_s_file_says_what_an_hour_costs_where_the_command_does_not(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = replace(cluster_of("4xh100"), gpu_hour=3.0)
    (tmp_path / "c.yaml").write_text(json.dumps(ClusterDocument.from_cluster(cluster).builtins()), "utf-8")
    given = ("--topo", str(tmp_path / "c.yaml"), "--global-batch", "16", "--dp", "4", "--price", "--tokens", "30B")
    for more, gpu_hour in (((), 3.0), (("--gpu-hour", "2"), 2.0)):
        assert plan([model, *given, *more, "--json"]) == 0
        run = json.loads(capsys.readouterr().out)["training_run"]
        assert run["cost"] == pytest.approx(gpu_hour * run["device_hours"])


def test_the_least_number_of_devices_that_meets_a_deadline_is_told(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand: of two numbers of devices the smaller one takes fewer hours of a device, and here too many days."""
    given = (model, "--gpus", "2xh100", "--global-batch", "16", "--devices", "2..4", "--tokens", "1T")
    assert plan([*given, "--json"]) == 0
    two, four = (one["best"]["tokens_per_s_per_device"] for one in json.loads(capsys.readouterr().out)["sizes"])
    days = 1e12 / (2 * two) / 86400, 1e12 / (4 * four) / 86400
    assert plan([*given, "--deadline", f"{0.5 * sum(days):.3f} days"]) == 0
    meets = f"4 devices meet it in {days[1]:.3g} days, with the fewest hours of a device of all that were tried"
    assert f"deadline missed with 2 devices; {meets}" in " ".join(capsys.readouterr().out.split())
    assert plan([*given, "--deadline", f"{0.5 * sum(days):.3f} days", "--json"]) == 0
    runs = [one["best"]["training_run"] for one in json.loads(capsys.readouterr().out)["sizes"]]
    assert [run["in_time"] for run in runs] == [False, True]
    assert plan([*given, "--deadline", f"{2 * days[0]:.3f} days"]) == 0
    assert f"deadline  2 devices meet it in {days[0]:.3g} days, with" in capsys.readouterr().out
    assert plan([*given, "--deadline", "1 h"]) == 3
    assert "missed with 2 devices, 4 devices, which are all that were tried" in capsys.readouterr().out
    assert plan([*given[:3], "--price", "--tokens", "1T", "--deadline", "1 h"]) == 3
    assert plan([*given[:3], "--price", "--checkpoint", "1 h"]) == 2
