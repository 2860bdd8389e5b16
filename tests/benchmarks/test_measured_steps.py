"""The benchmark on measured steps: its measures against hand-made cases, and the whole script on rows of our own."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from observations import measured_step

from automap_models.core.strategy import Strategy
from automap_models.cost.measured_step import SkippedStep

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "measured_steps.py"


def test_errors_are_relative_to_what_was_measured(benchmark: ModuleType) -> None:
    """Ratios 0.5, 1.1 and 1.2: errors 0.5, 0.1, 0.2; the 90th percentile lies 0.8 of the way from 0.2 to 0.5."""
    errors = benchmark.errors_of("all", [0.5, 1.1, 1.2])
    assert errors == ("all", 3, pytest.approx(0.2), pytest.approx(0.44), pytest.approx(1.1))
    assert math.isnan(benchmark.errors_of("none", []).median)


def test_a_ranking_counts_pairs_and_what_the_chosen_plan_costs(benchmark: ModuleType) -> None:
    """Of six pairs one is the wrong way round: (5 - 1) / 6. The second plan is chosen, 25 % behind the first."""
    ranking = benchmark.ranking("", [2.0, 1.0, 3.0, 4.0], [4.0, 5.0, 6.0, 8.0])
    assert (ranking.plans, ranking.spread) == (4, 2.0)
    assert ranking.tau == pytest.approx(4 / 6)
    assert ranking.loss == pytest.approx(0.25)


def price(benchmark: ModuleType, predicted_s: float, measured_s: float, **values: Any) -> Any:
    step = measured_step("row", values.pop("source", "us"), 4, 1024, micro_batch=1)[0]
    step = step.__class__(**{**step.__dict__, "step_s": measured_s, **values})
    estimate = SimpleNamespace(step_s=predicted_s, peak_memory=2e9, fits=True, verdict="fits")
    return benchmark.Price(step, estimate, None)


def plans(benchmark: ModuleType, *seconds: float, **values: Any) -> list[Any]:
    """Plans that are predicted to take what they take, each with micro-batches of its own."""
    strategies = [Strategy(micro_batch=k, global_batch=12) for k in range(1, 1 + len(seconds))]
    return [price(benchmark, s, s, strategy=plan, **values) for s, plan in zip(seconds, strategies, strict=True)]


def test_groups_have_one_source_and_four_plans(benchmark: ModuleType) -> None:
    prices = plans(benchmark, 1.0, 2.0, 3.0)
    assert benchmark.rankings(prices) == []
    assert benchmark.rankings([*prices, *plans(benchmark, 5.0, source="they")]) == []
    (group,) = benchmark.rankings([*plans(benchmark, 1.0, 2.0, 3.0, 4.0), *plans(benchmark, 5.0, source="they")])
    assert (group.plans, group.tau, group.loss) == (4, pytest.approx(1.0), 0.0)


def test_rows_of_one_plan_are_not_ranked(benchmark: ModuleType) -> None:
    """What an ablation of kernels varies is no plan: all have one price, and no order."""
    assert benchmark.rankings([price(benchmark, 1.0, s) for s in (1.0, 2.0, 3.0, 4.0)]) == []


def test_plans_of_different_days_are_not_compared(benchmark: ModuleType) -> None:
    prices = plans(benchmark, 1.0, 2.0, 3.0, 4.0, day="02-24")
    (group,) = benchmark.rankings([*prices, *plans(benchmark, 0.5, day="02-25")])
    assert (group.plans, group.tau) == (4, pytest.approx(1.0))


def test_a_verdict_counts_where_it_is_known(benchmark: ModuleType) -> None:
    prices = [price(benchmark, 1.0, 1.0, fits=fits) for fits in (True, True, False, None)]
    assert list(benchmark.verdicts(prices)) == [(True, "fits"), (True, "fits"), (False, "fits")]
    assert benchmark.figures(prices)[benchmark.FIGURES.index("fits")] == "2/3"


def test_a_row_without_a_price_says_why(benchmark: ModuleType) -> None:
    skipped = benchmark.Price(SkippedStep("row", "us", "no device"), None, "no device")
    assert skipped.document == {
        "id": "row",
        "predicted_s": None,
        "predicted_memory_bytes": None,
        "fits": None,
        "skipped": "no device",
    }
    assert price(benchmark, 1.5, 1.0).document == {
        "id": "row",
        "predicted_s": 1.5,
        "predicted_memory_bytes": 2e9,
        "fits": True,
        "skipped": None,
    }


def test_the_script_prices_rows_and_says_which_it_cannot(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of a small GPT: four plans on eight devices, and one on a device that nobody knows."""
    pytest.importorskip("flax")
    sizes = {"layers": 4, "hidden": 128, "ffn": 512, "heads": 4, "kv_heads": 4, "seq": 64, "vocab": 512}
    row = {
        "source": "us",
        "system": "Megatron-LM 2021",
        "model": {"name": "small", "arch": "gpt", **sizes},
        "gpus": 8,
        "gpu_type": "A100-80GB SXM",
        "global_batch": 32,
        "precision": "bf16",
    }
    plans = [(1, 1), (2, 1), (1, 2), (2, 2)]
    rows = [
        {**row, "id": f"{tp}-{pp}", "tp": tp, "pp": pp, "micro_batch": 1, "measured": {"iteration_s": 0.02 * tp * pp}}
        for tp, pp in plans
    ]
    rows.append({**rows[0], "id": "odd", "gpu_type": "Abacus"})
    turned = {"name": "turned", "arch": "llama", **sizes, "hidden": 180}
    rows.append({**rows[0], "id": "head of 45", "model": turned})
    (tmp_path / "rows.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setenv("AUTOMAP_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["measured_steps.py", str(tmp_path / "rows.json"), "--json", str(out)])
    benchmark.main()
    documents = json.loads(out.read_text())
    assert [document["id"] for document in documents] == ["1-1", "2-1", "1-2", "2-2", "odd", "head of 45"]
    assert all(document["predicted_s"] > 0 and document["fits"] for document in documents[:4])
    assert documents[4]["skipped"] == "`gpu_type`: no device is shipped for 'Abacus'"
    assert documents[5]["skipped"] == "model turned: a head of 45 numbers has no pairs for rotary positions"
    printed = capsys.readouterr().out
    assert "no price for 1 of 6 rows (odd)" in printed
    assert "us: small, 8 devices, 32 samples" in printed


def test_the_script_says_in_one_sentence_what_is_wrong_with_a_file(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.json").write_text('{"rows": [{}]}')
    monkeypatch.setattr(sys, "argv", ["measured_steps.py", str(tmp_path / "rows.json")])
    with pytest.raises(SystemExit) as caught:
        benchmark.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
