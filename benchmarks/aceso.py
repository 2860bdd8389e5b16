"""Plans of Aceso (EuroSys 2024) and of Megatron's grid against ours, all priced by Aceso's own cost model.

    OMP_NUM_THREADS=1 python benchmarks/aceso.py ACESO PLANS [--device v100] [--budget 4] [--size 1_3B …]

ACESO is the folder of Aceso's artifact in github.com/microsoft/SuperScaler, with the operators' times that its authors
profiled on V100 (profiler/profiled-time-eurosys) and its cost model (search/aceso_cost_model.py). PLANS has what its
programs saved, with `--config-save-path PLANS/aceso-SIZE/` and `PLANS/megatron-SIZE/`:

    aceso_search.py       --model-name gpt --model-size SIZE --global-batch-size 1024 --micro-batch-size 1 2 4 8
                          --num-nodes N --num-gpus-per-node G --memory-limit 28000 --max-num-hops 7
                          --time-budget-total SECONDS --initial-point balance
    gen_megatron_plan.py  with the same model, cluster, samples and memory

Ours are searched within what Megatron-LM of that time runs and Aceso's cost model prices: 1F1B, fp16, neither ZeRO nor
virtual stages. What is open is tp, pp, dp, the micro-batch, cuts, and recomputation of any number of blocks of a stage.
Where Aceso's model says that ours holds more than its limit, that much more is reserved, and it is searched again.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import refuse
from rich.console import Console
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.measured import MeasuredStep
from automap_models.core.strategy import Recompute, Strategy, TransformerShape
from automap_models.formats.atomic import Cache, cache_folder
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.measured import measured_runtime
from automap_models.workloads.measured import MeasuredWorks

SIZES = {"1_3B": (24, 2048, 32, 4), "2_6B": (32, 2560, 32, 8), "6_7B": (32, 4096, 32, 16), "13B": (40, 5120, 40, 32)}
"""Size → layers, width and heads of the model, and devices, as in the paper."""
SAMPLES, TOKENS, VOCABULARY, MOST_MB = 1024, 2048, 51200, 28000
FIXED = {"precision": "fp16", "schedule": "1f1b", "zero": 0, "vp": 1, "cp": 1, "ep": 1, "sequence_parallel": False}
RECOMPUTED: dict[Recompute, list[int]] = {"none": [0] * 13, "selective": [0, 0, 1, 1, 1, 1] + [0] * 7, "full": [1] * 13}
"""Of a layer's 13 operators, those that are computed again; the core of the attention is the third to the sixth."""
ROUNDS = 4
MB = 2**20


@dataclass(frozen=True)
class Price:
    """What Aceso's cost model says: seconds of a step, and MB of the fullest device."""

    step_s: float
    held_mb: float


def configuration(size: str, strategy: Strategy, shape: TransformerShape) -> dict[str, Any]:
    """A strategy in the words of Aceso's configurations."""
    layers, hidden, heads, _ = SIZES[size]
    operators, recomputed = [], []
    for stage, (count, (kind, blocks)) in enumerate(
        zip(strategy.stage_layers(shape), strategy.stage_recompute(shape), strict=True)
    ):
        flags = [0] * (stage == 0)
        for block in range(count):
            flags += RECOMPUTED[kind if block < blocks else "none"]
        flags += [int(kind == "full"), 0] * (stage == strategy.pp - 1)
        operators.append(len(flags))
        recomputed.append(flags)
    ranks = range(strategy.pp)
    return {
        "model_name": "gpt",
        "model_size": size,
        "num_layers": layers,
        "seq_length": TOKENS,
        "max_position_embeddings": TOKENS,
        "num_attention_heads": heads,
        "hidden_size": hidden,
        "global_batch_size": SAMPLES,
        "micro_batch_size": strategy.micro_batch * strategy.dp,
        "num_stages": strategy.pp,
        "num_gpus": [strategy.tp * strategy.dp] * strategy.pp,
        "checkpoint_activations": [True] * strategy.pp,
        "resharding_stages": [False] * strategy.pp,
        "num_ops_in_each_stage": operators,
        "model_parallel_size_of_each_op": [[strategy.tp] * operators[rank] for rank in ranks],
        "data_parallel_size_of_each_op": [[strategy.dp] * operators[rank] for rank in ranks],
        "recompute_ops": recomputed,
        "algo_of_each_op": [[0] * operators[rank] for rank in ranks],
    }


def aceso_price(aceso: Path, config: dict[str, Any], devices: int) -> Price | None:
    """What Aceso's cost model says of a configuration; None where it has no times for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        command = [sys.executable, "aceso_cost_model.py", "--initial-point", str(path)]
        command += ["--profiled-time-path", "../profiler/profiled-time-eurosys/"]
        command += ["--num-gpus-per-node", str(min(devices, 8)), "--num-nodes", str(max(1, devices // 8))]
        command += ["--save-to-csv", str(path.with_suffix(".csv"))]
        run = subprocess.run(command, cwd=aceso / "search", capture_output=True, text=True, check=False)
    step = re.search(r"overall time = ([\d.]+)", run.stdout)
    held = re.search(r"max allocated memory = ([\d.]+)", run.stdout)
    return Price(float(step[1]) / 1e3, float(held[1])) if step and held else None


def best_saved(aceso: Path, folder: Path, devices: int) -> Price | None:
    """The shortest of the configurations in a folder that hold no more than the limit."""
    prices = [aceso_price(aceso, json.loads(path.read_text()), devices) for path in sorted(folder.glob("*.json"))]
    fitting = [price for price in prices if price is not None and price.held_mb <= MOST_MB]
    return min(fitting, key=lambda price: price.step_s, default=None)


def problem_of(size: str, device: str) -> StrategyProblem:
    """The search for the model and the cluster of a size."""
    layers, hidden, heads, devices = SIZES[size]
    model = {"name": f"GPT {size}", "arch": "gpt", "layers": layers, "hidden": hidden, "ffn": 4 * hidden}
    model |= {"heads": heads, "kv_heads": heads, "seq": TOKENS, "vocab": VOCABULARY, "params": None}
    row = {"id": size, "source": "aceso", "system": "Megatron-LM 2021", "model": model, "gpus": devices}
    row |= {"gpu_type": "V100-SXM2-32GB", "gpus_per_node": min(devices, 8), "dp": devices, "micro_batch": 1}
    row |= dict.fromkeys(("tp", "pp", "vp", "cp", "ep"), 1) | {"global_batch": SAMPLES, "schedule": "1F1B"}
    row |= {"recompute": "full", "zero": 0, "precision": "fp16", "measured": {"iteration_s": 1.0}, "flags": []}
    row |= {"predicted_by_source": None, "note": None, "derived": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(json.dumps({"rows": [row]}))
        (step,) = read_measured_steps(path)
    assert isinstance(step, MeasuredStep)
    cluster: Cluster = step.cluster
    return StrategyProblem(
        work=MeasuredWorks(Cache(cache_folder())).of(step),
        cluster=cluster,
        device=read_device(device),
        global_batch=SAMPLES,
        fixed=FIXED,
        reserve_bytes=cluster.memory - MOST_MB * MB,
        runtime=measured_runtime(step),
    )


def ours(aceso: Path, size: str, problem: StrategyProblem, budget_s: float) -> tuple[Estimate, Price] | None:
    """Our strategy and what Aceso's cost model says of it; None where none was found that it lets fit."""
    _, _, _, devices = SIZES[size]
    for _ in range(ROUNDS):
        result = StrategiesPlanner(StrategiesConfig(budget_s=budget_s)).solve(problem)
        if result.plan is None:
            return None
        price = aceso_price(aceso, configuration(size, result.plan, problem.work.shape), devices)
        if price is None or price.held_mb <= MOST_MB:
            return None if price is None else (result.cost, price)
        problem = replace(problem, reserve_bytes=problem.reserve_bytes + (price.held_mb - MOST_MB) * MB)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("aceso", type=Path, metavar="ACESO")
    parser.add_argument("plans", type=Path, metavar="PLANS")
    parser.add_argument("--device", default="v100", help="whose constants our clock has: a name or a YAML file")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of computing of each search")
    parser.add_argument("--size", action="append", choices=SIZES, help="of the model; may be repeated")
    options = parser.parse_args()
    if not (options.aceso / "search" / "aceso_cost_model.py").exists():
        refuse(f"{options.aceso} is no folder of Aceso's artifact (github.com/microsoft/SuperScaler)")
    table = Table("model", "devices", "Aceso's, s", "Megatron's grid, s", "ours, s", "over Aceso's", "by our clock, s")
    for name in ("processor time, s", "our strategy"):
        table.add_column(name)
    for size in options.size or SIZES:
        _, _, _, devices = SIZES[size]
        rivals = [best_saved(options.aceso, options.plans / f"{of}-{size}", devices) for of in ("aceso", "megatron")]
        problem, begun_s = problem_of(size, options.device), time.process_time()
        own = ours(options.aceso, size, problem, options.budget)
        taken_s = time.process_time() - begun_s
        cells = [size, str(devices), *("–" if of is None else f"{of.step_s:.1f}" for of in rivals)]
        if own is not None:
            estimate, price = own
            ratio = "–" if rivals[0] is None else f"{price.step_s / rivals[0].step_s:.3f}"
            cells += [f"{price.step_s:.1f}", ratio, f"{estimate.step_s:.1f}", f"{taken_s:.1f}"]
            cells.append(strategy_in_words(estimate))
        table.add_row(*cells)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
