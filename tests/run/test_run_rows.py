"""A run leaves its step as a row of measured steps, which automap calibrate reads beside those that people write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.plan import Plan, Stage
from automap_models.core.run_record import RunRecord, StepRecord
from automap_models.errors import BadInput
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.infer.app import main
from automap_models.requests import RunRequest
from automap_models.requests.plan_files import with_row
from automap_models.run.base import run_schedule
from automap_models.workloads.source import Source, SourceKind

GPT = {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 3, "n_positions": 64, "vocab_size": 512}
T5 = {"model_type": "t5", "d_model": 64, "d_kv": 32, "d_ff": 256, "num_heads": 2, "vocab_size": 512}
BOX = Cluster(1, 4, 1e11, 1e10, 8e10, name="box", device="h100")


def stage(first: int, last: int, layers: tuple[str, str], devices: tuple[int, int], tensor: int = 1) -> Stage:
    replicas = (devices[1] - devices[0] + 1) // tensor
    return Stage(first, last, "", devices, replicas, tensor, None, 1.0, 2.0, 0.0, 0.0, layers=layers)


FIRST, SECOND = ("wte", "h.0"), ("h.1", "ln_f")
PLAN = Plan("plan.json", "small", (stage(0, 1, FIRST, (0, 1)), stage(2, 3, SECOND, (2, 3))), 4, 6, "1f1b", cluster=BOX)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT))
    return Source(str(path), SourceKind.CONFIG, sequence=64, dtype="bfloat16")


def ran(plan: Plan, source: Source, **options: Any) -> RunRecord:
    """A run of steps of 3, 2 and 4 seconds, of which the first one does not count."""
    steps = tuple(StepRecord(1.0, length_s, ()) for length_s in (3.0, 2.0, 4.0))
    record = RunRecord(plan, run_schedule(plan, None, None), "torch", "torch", "NVIDIA H100 80GB HBM3", "", 4, steps, 1)
    return with_row(replace(record, memory_bytes=5e9), RunRequest(Path("plan.json"), source, **options))


def test_a_row_says_what_ran(source: Source, tmp_path: Path) -> None:
    """Two stages of two replicas: 6 samples of a micro-batch are 3 for each, and 4 micro-batches make 24."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"kind": "observed", "rows": [ran(PLAN, source, zero=2).row]}))
    (step,) = read_measured_steps(path)
    strategy = step.strategy  # type: ignore[union-attr]
    assert (strategy.pp, strategy.dp, strategy.micro_batch, strategy.global_batch) == (2, 2, 3, 24)
    assert (strategy.zero, strategy.schedule, strategy.precision, strategy.layers) == (2, "1f1b", "bf16", (1, 2))
    assert (step.step_s, step.memory_bytes, step.only_tensors) == (3.0, 5e9, True)  # type: ignore[union-attr]
    assert (step.device, step.cluster) == ("h100", BOX)  # type: ignore[union-attr]
    shape = step.model.shape  # type: ignore[union-attr]
    assert (shape.layers, shape.hidden, shape.ffn, shape.heads, shape.vocabulary) == (3, 64, 256, 2, 512)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"microbatch_size": 5}, "micro-batches that are no equal parts"),
        ({"stages": (stage(0, 1, FIRST, (0, 0)), stage(2, 3, SECOND, (1, 3)))}, "stages of unequal numbers of devices"),
        ({"stages": (stage(0, 1, FIRST, (0, 1)), stage(2, 3, SECOND, (2, 3), 2))}, "stages that share operators"),
        ({"stages": (stage(0, 1, FIRST, (0, 1)), stage(2, 3, ("h.0", "ln_f"), (2, 3)))}, "ends inside a block"),
    ],
)
def test_a_plan_that_no_strategy_says_has_no_row(changes: dict[str, Any], sentence: str, source: Source) -> None:
    record = ran(replace(PLAN, **changes), source)
    assert record.row is None
    assert sentence in (record.no_row or "")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({**GPT, "tie_word_embeddings": False, "vocab_size": 4096}, "no GPT-2, BERT, Llama or mixture"),
        ({**T5, "num_layers": 3}, "neither a decoder nor a BERT"),
    ],
)
def test_a_model_that_rows_have_no_words_for_has_none(config: dict[str, Any], sentence: str, source: Source) -> None:
    Path(source.what).write_text(json.dumps(config))
    record = ran(PLAN, source)
    assert record.row is None
    assert sentence in (record.no_row or "")


def test_calibrate_says_why_a_run_has_no_row(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"kind": "observed", "rows": [], "run": {"no_row": "has stages that share operators"}}))
    with pytest.raises(BadInput, match=r"run.json: is a run that no row can say: has stages that share operators"):
        read_measured_steps(path)


def test_a_run_on_cpus_is_fitted_beside_a_row_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """profile → plan → run → calibrate, with what the commands write and nothing else."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(GPT))
    sizes = {"nodes": 1, "devices_per_node": 2, "intra": 1e9, "memory": 8e9, "device": "cpu"}
    Path("two.yaml").write_text(json.dumps({"name": "two", **sizes}))
    of_step = ["--batch", "2", "--sequence", "64", "--dtype", "float32"]
    assert main(["profile", "config.json", *of_step, "-o", "p.npz"]) == 0
    planned = ["--stages", "2", "--micro-batches", "2", "--cut-at", "blocks", "--certify-budget", "0"]
    assert main(["infer", "p.npz", "--topo", "two.yaml", *planned, "--out", "plan.json"]) == 0
    assert main(["run", "plan.json", "config.json", *of_step, "-o", "run.json"]) == 0
    document = json.loads(Path("run.json").read_text())
    (row,) = document["rows"]
    assert document["run"]["no_row"] is None
    assert row["measured"]["iteration_s"] == document["run"]["step_s"]["measured"]
    assert (row["pp"], row["dp"], row["global_batch"], row["precision"], row["flash"]) == (2, 1, 4, "fp32", False)
    by_hand = [{**row, "id": name, "source": "by hand", "global_batch": n} for name, n in (("a", 8), ("b", 16))]
    Path("rows.json").write_text(json.dumps({"rows": by_hand}))
    capsys.readouterr()
    assert main(["calibrate", "run.json", "rows.json", "--runtime", "general", "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert [(errors["source"], errors["steps"]) for errors in fitted["fitted"]] == [("automap run", 1), ("by hand", 2)]
    assert fitted["runtime"] == "general"
