"""The search on the clock of Sailor's simulator, beside all plans of small problems priced by its formula."""

from __future__ import annotations

import json
import math
import runpy
import sys
from collections.abc import Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.strategy import Strategy
from automap_models.formats.hardware_yaml import read_device
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.source import read_model_work

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LINK = [0.0, 0.1, 1.0]
LAYERS, SAMPLES = 5, 16


def drawn(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Times and sizes of five layers on one kind of device, of which one holds four layers at most."""
    draw = np.random.default_rng(seed)
    times = {str(tp): {str(i): [*draw.uniform(0.01, 0.1, 2) / tp, 0.002] for i in range(LAYERS)} for tp in (1, 2)}
    sizes = {
        str(tp): {
            str(i): {
                "params_floats": float(draw.uniform(1e8, 1.6e8)) / tp,
                "act_output_floats": float(draw.uniform(1e6, 4e6)),
                "act_mem_floats": float(draw.uniform(1e7, 1e8)) / tp,
            }
            for i in range(LAYERS)
        }
        for tp in (1, 2)
    }
    return {"A": {"1": times}}, sizes


def message_s(size: float, tp: int = 1) -> float:
    """Of a message: its bytes over a bandwidth in GB/s that grows with the logarithm of its MB, and with senders."""
    return size / 1e9 / (tp * (0.1 * math.log2(size / 1e6) + 1.0))


def gradients_s(size: float, replicas: int) -> float:
    """In buckets of 500 MB, each in 2(d-1) pieces."""
    total = 0.0
    while replicas > 1 and size > 0:
        bucket = min(size, 5e8)
        total += 2 * (replicas - 1) * message_s(bucket / replicas)
        size -= bucket
    return total


def priced(times: Mapping[str, Any], sizes: Mapping[str, Any], ends: list[int], tp: int, dp: int) -> float:
    """A pipeline's step; infinite where it does not fit 16 GiB."""
    stages = [range(a, b) for a, b in pairwise(ends)]
    micro_batches, busy, sync = math.ceil(SAMPLES / dp), [], []
    for number, stage in enumerate(stages):
        of = [sizes[str(tp)][str(i)] for i in stage]
        behind = len(stages) - number
        used = sum(24 * layer["params_floats"] + behind * 4 * layer["act_mem_floats"] for layer in of)
        if used + (2e9 if tp == 1 else 3e9) > 16 * 2**30:
            return math.inf
        forward_s = message_s(4 * sizes["1"][str(stage[-1])]["act_output_floats"], tp)
        backward_s = message_s(4 * sizes["1"][str(stage[0])]["act_output_floats"], tp)
        if len(stages) == 1:
            sent = 0.0
        elif number == 0:
            sent = forward_s * (1 if len(stages) <= 3 else 2)
        else:
            sent = 2 * backward_s if behind == 1 else forward_s + backward_s
        busy.append(sum(times[str(tp)][str(i)][0] + times[str(tp)][str(i)][1] for i in stage) + sent)
        sync.append(gradients_s(sum(4 * sizes["1"][str(i)]["params_floats"] for i in stage) / tp, dp))
    return (micro_batches - 1) * max(busy) + sum(busy) + max(sync) + 0.002


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_of_a_small_problem_is_shorter_than_that_of_the_search(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import sailor_clock

    profiles, sizes = drawn(seed)
    links = {(("A", a), ("A", b)): [min(a, b) * of for of in LINK] for a in (1, 2) for b in (1, 2)}
    clock = sailor_clock.Clock(profiles, sizes, links, {"A": 16}, SAMPLES)
    (plan,) = sailor_clock.shortest(clock, {"A": 8})
    least_s = min(
        priced(profiles["A"]["1"], sizes, [0, *cuts, LAYERS], tp, dp)
        for tp in (1, 2)
        for count in range(LAYERS)
        for cuts in combinations(range(1, LAYERS), count)
        for dp in range(1, 8 // tp // (count + 1) + 1)
    )
    assert plan.step_s == pytest.approx(least_s, rel=1e-9)


def test_a_clone_of_another_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["arena.py", str(tmp_path), "--python", "python", "--answers", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / "arena.py"), run_name="__main__")
    assert ended.value.code == 2 and "cf2c8e3cc53ce178fe58a4003f46b4b6b848fc33" in capsys.readouterr().err


def test_replicas_of_a_region_fill_its_zones_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import arena
    from sailor_clock import ClockedPlan, Replicas

    devices = {"A100-40_us-central1-a": 8, "A100-40_us-central1-b": 8, "A100-40_us-west1-b": 4}
    near, far = "A100-40_us-central1", "A100-40_us-west1"
    teams = (Replicas(near, 4, 3), Replicas(near, 4, 1), Replicas(far, 4, 1))
    plan = ClockedPlan(1, tuple((range(i, i + 1), (team,)) for i, team in enumerate(teams)), 1.0)
    spread = arena.spread(plan, devices).dictionary()
    zones = [[vms[0][2] for vms, _ in stage] for stage in spread["pipeline_list"][0]["tmp_per_stage"]]
    assert zones == [["us-central1-a"] * 2 + ["us-central1-b"], ["us-central1-b"], ["us-west1-b"]]
    assert spread["used_gpus"] == {"A100-40": 20}


def test_a_plan_of_parts_of_layers_is_told_by_its_degrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aceso's, which ended the benchmark: its operators have degrees of their own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    words = runpy.run_path(str(BENCHMARKS / "arena.py"))["words"]
    degrees = {"dp_degrees": [[4, 4], [4, 2]], "tp_degrees": [[1, 1], [1, 2]]}
    assert words({"mbs": 4, "pipeline": {"num_stages": 2, **degrees}}) == "mbs 4: 2 stages, 2 × tp 2, 4 × tp 1"


def test_a_device_at_the_speed_of_a_profile_takes_its_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import arena

    config = {"model_type": "gpt2", "n_embd": 2048, "n_layer": 4, "n_head": 16, "n_positions": 1024, "vocab_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    work = read_model_work(f"{tmp_path}/config.json", sequence=1024, dtype="float32")
    profile = {str(layer): [0.01, 0.02, 0.002] for layer in range(6)}
    speed = arena.speed(read_device("a100-40"), work, 2, 4, profile)
    cluster = Cluster.of_groups([NodeGroup(1, 4, 1e15, 1e15, 1e15, speed=speed)])
    pricing = StrategyPricing(work, cluster, read_device("a100-40"))
    strategies: list[dict[str, Any]] = [arena.PRICED | {"micro_batch": 2, "tp": 4, "global_batch": n} for n in (6, 18)]
    few, many = (pricing.price(Strategy(**fields))[0] for fields in strategies)
    assert (many - few) / 6 == pytest.approx(6 * (0.01 + 0.02), rel=0.02)
