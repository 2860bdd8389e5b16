"""What Sailor's simulator and planners are asked, and what automap is."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.formats.hardware_yaml import read_device
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.source import read_model_work

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_a_clone_of_another_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["arena.py", str(tmp_path), "--python", "python", "--answers", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / "arena.py"), run_name="__main__")
    assert ended.value.code == 2 and "cf2c8e3cc53ce178fe58a4003f46b4b6b848fc33" in capsys.readouterr().err


def test_a_plan_of_parts_of_layers_is_told_by_its_degrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aceso's, which ended the benchmark: its operators have degrees of their own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    words = runpy.run_path(str(BENCHMARKS / "sailor.py"))["words"]
    degrees = {"dp_degrees": [[4, 4], [4, 2]], "tp_degrees": [[1, 1], [1, 2]]}
    assert words({"mbs": 4, "pipeline": {"num_stages": 2, **degrees}}) == "mbs 4: 2 stages, 2 × tp 2, 4 × tp 1"


def test_a_device_at_the_speed_of_a_profile_takes_its_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import arena

    config = {"model_type": "gpt2", "n_embd": 2048, "n_layer": 4, "n_head": 16, "n_positions": 1024, "vocab_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    work = read_model_work(f"{tmp_path}/config.json", sequence=1024, dtype="float32")
    profile = {str(layer): [0.01, 0.02, 0.002] for layer in range(6)}
    speed = arena.speed(read_device("a100-40"), work, 2, profile)
    cluster = Cluster.of_groups([NodeGroup(1, 1, 1e15, 1e15, 1e15, speed=speed)])
    pricing = StrategyPricing(work, cluster, read_device("a100-40"))
    strategies: list[dict[str, Any]] = [arena.PRICED | {"micro_batch": 2, "global_batch": n} for n in (6, 18)]
    few, many = (pricing.price(Strategy(**fields))[0] for fields in strategies)
    assert (many - few) / 6 == pytest.approx(6 * (0.01 + 0.02), rel=0.02)


def test_batches_are_rounded_to_what_most_degrees_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 replicas with micro-batches of 4 take 1,040 samples; as do 10, 5, 4 and 2, and 1 takes 1,024 or more."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import arena

    assert arena.batches(1024, 4, 20) == [1024, 1040]
    assert arena.batches(1024, 4, 1) == [1024]


def test_devices_that_stand_for_several_are_told_as_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages of one device each that stands for four: the judge reads two replicas of four devices."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import arena

    cluster = Cluster.of_groups([NodeGroup(4, 1, 1e9, 1e9, 1e9, "a100-40", zone="us-central1-a")])
    shape = TransformerShape(name="model", layers=5, hidden=8, heads=1, kv_heads=1, ffn=8, sequence=8, vocabulary=8)
    strategy = Strategy(dp=2, pp=2, layers=(2, 3), micro_batch=4, global_batch=8)
    plan = arena.pipeline(strategy, shape, cluster, 4).dictionary()
    (pipeline,) = plan["pipeline_list"]
    assert plan["mbs"] == 4 and plan["used_gpus"] == {"A100-40": 16}
    assert pipeline["layers_per_stage"] == [[0, 1, 2], [3, 4, 5, 6]]  # with the embedding, and with the head
    assert pipeline["tmp_per_stage"] == [[([("A100-40", 4, "us-central1-a")], 4)] * 2] * 2
