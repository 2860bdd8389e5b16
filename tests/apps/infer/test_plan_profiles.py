"""automap plan of a profile: strategies of it against plans of stages, and the one that is shorter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automap_models.core.profile import Profile
from automap_models.core.strategy import Strategy
from automap_models.cost.profile_layers import ProfileWork
from automap_models.formats.hardware_yaml import device_of, read_cluster
from automap_models.formats.npz import write_npz
from automap_models.infer.app import export
from automap_models.infer.app import plan as main
from automap_models.simulate.strategy import StrategyPricing

BLOCKS, GB = 8, 1e9
CLUSTER = """
nodes: 2
devices_per_node: 4
intra: 100 GB/s
inter: 100 GB/s
memory: {memory}
device: v100
"""


def a_profile(weights: float = 0.0, saved: float = 0.0) -> Profile:
    """Eight equal blocks of 4 samples, 10 ms each, with so many bytes of parameters and of saved activations."""
    layers = ("embed", *(f"blocks.{i}" for i in range(BLOCKS)), "head")
    of_blocks = np.array([0.0, *[1.0] * BLOCKS, 0.0])
    meta = {"model": "blocks", "microbatch_size": 4, "parameter_dtype": "float32", "device": "v100"}
    seconds, small = 0.01 * of_blocks + 1e-4, np.full(BLOCKS + 2, 1e6)
    return Profile.create(
        C=seconds, A=small, W=weights * of_blocks + 1e6, stash=saved * of_blocks + 1e6, layers=layers, meta=meta
    )


@pytest.fixture
def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command on a profile and a cluster with so much memory a device; its exit code and what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(profile: Profile, *options: str, memory: str = "32 GB") -> tuple[int, str, str]:
        write_npz(Path("blocks.npz"), profile)
        Path("cluster.yaml").write_text(CLUSTER.format(memory=memory))
        code = main(["blocks.npz", "--topo", "cluster.yaml", "--no-cache", *options])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_where_data_parallelism_does_not_fit_zero_3_does(planned: Any) -> None:
    """16 GB of parameters need 64 GB of training state: an eighth of it is 8 GB, and gathered are two blocks, 4 GB.

    With ZeRO-2 it is 16 + 6 GB.
    """
    code, out, _ = planned(a_profile(weights=2 * GB), "--forbid", "pipeline", "--json", memory="20 GB")
    document = json.loads(out)
    assert (code, document["kind"], document["strategy"]["zero"]) == (0, "strategy", 3)
    assert document["strategy"]["dp"] == 8
    state = sum(document["memory"][0]["memory"][0][name] for name in ("weights", "gradients", "optimizer"))
    assert state == pytest.approx(4 * (8 * 2 * GB + 10e6) / 8, rel=1e-3)


def test_where_activations_do_not_fit_blocks_are_computed_again(planned: Any) -> None:
    """A sample saves 8 × 6 GB, or one block's 6 at a time."""
    code, out, _ = planned(a_profile(saved=24 * GB), "--forbid", "pipeline", "--json")
    document = json.loads(out)
    assert (code, document["kind"]) == (0, "strategy")
    assert document["strategy"]["recompute"] == "full"


def test_a_plan_of_stages_stays_where_no_strategy_is_much_shorter_and_the_best_strategy_is_named(planned: Any) -> None:
    code, out, _ = planned(a_profile(weights=1e6, saved=1e6))
    assert code == 0
    assert "best: data parallelism" in out
    assert "strategies  dp 8, " in out
    document = json.loads(planned(a_profile(weights=1e6, saved=1e6), "--json")[1])
    assert document["kind"] == "explored"
    assert document["strategy"]["step_s"] > 0.98 * document["best"]["step_s"]


def test_the_answer_names_the_best_plan_of_stages_beside_it(planned: Any) -> None:
    """ZeRO-1 updates a share of 7 GB of parameters on each device, where every replica updates them all."""
    code, out, _ = planned(a_profile(weights=0.9 * GB, saved=1e6), "--forbid", "pipeline")
    assert code == 0
    assert "best strategy: dp 8" in out and "ZeRO-" in out
    assert "without these ZeRO and recomputation: data parallelism, " in " ".join(out.split())


@pytest.mark.parametrize(
    ("weights", "saved", "options", "advice"),
    [
        (2 * GB, 0.0, ("--zero", "1"), "higher stages of ZeRO or more pp take less"),
        (2 * GB, 0.0, ("--zero", "3"), "more pp take less"),
        (0.0, 24 * GB, ("--micro-batch", "4"), "more recomputation or smaller micro-batches take less"),
        (0.0, 24 * GB, ("--recompute", "full"), "more devices take less"),
    ],
)
def test_what_takes_less_memory_is_what_a_profile_can_have(
    weights: float, saved: float, options: tuple[str, ...], advice: str, planned: Any
) -> None:
    """It said to take more tp, which no profile has."""
    _, out, _ = planned(a_profile(weights, saved), *options, "--global-batch", "64", "--price", memory="4 GB")
    assert f"on each device; {advice}" in " ".join(out.split())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--state-factor", "2"), "not searched: they have Adam's state, not --state-factor 2"),
        (("--keep-together", "blocks.*"), "not searched: they know no --keep-together blocks.*"),
        (("--objective", "length"), "not searched: they have no length L"),
        (("--pin", "embed=0", "--max-stages", "2"), "not searched: they know no --pin embed=0"),
    ],
)
def test_why_no_strategies_were_searched_is_said(planned: Any, options: tuple[str, ...], reason: str) -> None:
    code, out, _ = planned(a_profile(weights=1e6, saved=1e6), *options)
    assert code == 0
    assert f"strategies {reason}" in " ".join(out.split())


@pytest.mark.parametrize("options", [("--state-factor", "4"), ("--max-stages", "1")])
def test_options_that_ask_for_nothing_or_for_fewer_stages_leave_strategies_in(
    planned: Any, options: tuple[str, ...]
) -> None:
    code, out, _ = planned(a_profile(weights=0.9 * GB, saved=1e6), *options, "--forbid", "pipeline", "--json")
    document = json.loads(out)
    assert (code, document["kind"]) == (0, "strategy")


def test_the_report_ends_with_what_to_type_next_and_says_what_a_strategy_would_need(planned: Any) -> None:
    code, out, err = planned(a_profile(weights=1e6, saved=1e6), "--memory", "30 GB", "--verbose")
    text = " ".join(out.replace(" \\\n", " ").split())
    again = "blocks.npz --topo cluster.yaml --no-cache --memory '30 GB' --verbose"
    assert code == 0
    assert f"next automap plan {again} --out plan.json automap run plan.json MODEL --check" in text
    assert "longer optimum" in text or "to change over to strategies it has to be 2.0 % shorter (--min-gain)" in text
    assert "searching strategies" in err
    assert "outcome" in out and "outcome" not in planned(a_profile(weights=1e6, saved=1e6))[1]


def test_a_model_in_the_type_that_its_devices_have_no_unit_for_is_warned_of(planned: Any) -> None:
    profile = a_profile(weights=1e6, saved=1e6)
    half = replace(profile, meta={**profile.meta, "parameter_dtype": "bfloat16", "dtype": "bfloat16"})
    assert "warning: v100 has 12.6 % of the rate in bfloat16 that it has in float16" in planned(half)[2]
    assert "warning" not in planned(profile)[2]


def test_a_strategy_for_a_framework_is_exported_by_it(planned: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--forbid", "pipeline", "--for", "deepspeed", "--out", "s.json")
    code, _, _ = planned(a_profile(weights=2 * GB), *options, memory="20 GB")
    assert code == 0
    assert export(["s.json", "--to", "deepspeed"]) == 0
    assert "'zero_optimization': {'stage': 3}" in capsys.readouterr().out


def test_a_schedule_that_is_asked_for_is_the_strategy_s(planned: Any) -> None:
    code, out, err = planned(
        a_profile(weights=1 * GB, saved=8 * GB), "--forbid", "data", "--schedule", "gpipe", "--json"
    )
    assert code == 0, err
    document = json.loads(out)
    strategy = document["strategy"] if document["kind"] == "strategy" else document["strategy"]["strategy"]
    assert (strategy["schedule"], strategy["pp"]) == ("gpipe", 8)


def test_stages_that_recompute_apart_are_as_the_schema_says(planned: Any) -> None:
    """The schema knew one kind of recomputation for all stages; every output here is held to it."""
    options = ("--dp", "1", "--pp", "8", "--micro-batch", "1", "--schedule", "1f1b", "--json")
    code, out, err = planned(a_profile(weights=1 * GB, saved=14 * GB), *options)
    assert code == 0, err
    of_memory = [of["strategy"]["recompute"] for of in json.loads(out)["memory"]]
    assert any(isinstance(kinds, list) and set(kinds) == {"full", "none"} for kinds in of_memory)


def test_a_strategy_that_is_given_is_priced_as_the_library_does(planned: Any) -> None:
    profile = a_profile(weights=0.2 * GB, saved=1 * GB)
    options = ("--pp", "2", "--zero", "1", "--recompute", "full", "--micro-batch", "2", "--global-batch", "64")
    code, out, _ = planned(profile, *options, "--price", "--json")
    cluster = read_cluster("cluster.yaml")
    strategy = Strategy(micro_batch=2, global_batch=64, dp=4, pp=2, zero=1, recompute="full", precision="fp32")
    price = StrategyPricing(ProfileWork.from_profile(profile), cluster, device_of(cluster)).estimate(strategy)
    assert code == 0
    assert json.loads(out)["step_s"] == pytest.approx(price.step_s)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--tp", "2"),
            "which has no operations that devices could share; leave it out",
        ),
        (
            ("--zero", "1", "--recompute", "selective"),
            "its profile, which has no attention cores",
        ),
        (
            ("--schedule", "zb-h1", "--pp", "2"),
            "its profile, which has no times of gradients",
        ),
        (
            ("--precision", "bf16"),
            "its profile, which has no times of another type",
        ),
        (("--zero", "3", "--min-stage", "0"), "--min-stage: is not for a strategy, which --zero gives: strategies"),
    ],
)
def test_what_a_profile_does_not_tell_is_refused(planned: Any, options: tuple[str, ...], message: str) -> None:
    code, out, err = planned(a_profile(), *options)
    assert (code, out) == (2, "")
    assert message in err
