"""Strategies as plans of Aceso's, and times of operators from its tables."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "opponents" / "aceso.py"


def test_one_device_that_recomputes_all_layers_is_the_plan_that_aceso_ships(benchmark: ModuleType) -> None:
    """search/single_gpu_configs/gpt_350M_mbs8_recomp.json: 315 operators, all but two recomputed."""
    strategy = Strategy(micro_batch=8, global_batch=1024, recompute="full", precision="fp16")
    plan = benchmark.as_plan(strategy, benchmark.SIZES[0])
    assert plan["num_ops_in_each_stage"] == [315]
    assert plan["recompute_ops"] == [[0, *[1] * 313, 0]]
    assert (plan["num_gpus"], plan["micro_batch_size"]) == ([1], 8)


def test_stages_hold_the_operators_of_their_layers(benchmark: ModuleType) -> None:
    """13 a layer; the embedding is of the first stage, the norm and the loss of the last one."""
    strategy = Strategy(
        micro_batch=2,
        global_batch=1024,
        tp=2,
        dp=2,
        pp=4,
        layers=(9, 8, 8, 7),
        recompute=("selective", "full", "none", "none"),
        recompute_blocks=(2, 8, 0, 0),
        precision="fp16",
    )
    size = next(size for size in benchmark.SIZES if size.name == "6_7B")
    plan = benchmark.as_plan(strategy, size)
    assert plan["num_ops_in_each_stage"] == [1 + 9 * 13, 8 * 13, 8 * 13, 7 * 13 + 2]
    assert plan["num_gpus"] == [4] * 4 and plan["micro_batch_size"] == 4
    assert [sum(own) for own in plan["recompute_ops"]] == [2 * 4, 8 * 13, 0, 0]
    core = [0] * 2 + [1] * 4 + [0] * 7
    assert plan["recompute_ops"][0] == [0, *core, *core, *[0] * 13 * 7]


def test_a_model_takes_its_layers_times_and_what_is_around_them(benchmark: ModuleType, tmp_path: Path) -> None:
    aceso_times = tmp_path / "profiler" / "profiled-time-eurosys"
    aceso_times.mkdir(parents=True)
    rows = [f"operator-{number},{forward},{2 * forward}" for number, forward in enumerate([5, *[1] * 13, 7, 11])]
    table = "\n".join(["op_name,forward-compute,backward-compute", *rows])
    (aceso_times / "gpt_1_3B_mbs2_tp1_algo0.csv").write_text(table)
    aceso = benchmark.Aceso(tmp_path, tmp_path)
    size = next(size for size in benchmark.SIZES if size.name == "1_3B")
    microseconds = 5 + 24 * 13 + 7 + 11
    assert aceso.pass_times_s(size, 2) == pytest.approx((microseconds * 1e-6, 2 * microseconds * 1e-6))


def test_another_folder_is_refused(benchmark: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give a clone"):
        benchmark.Aceso(tmp_path, tmp_path)
