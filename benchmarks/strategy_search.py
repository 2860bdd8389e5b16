"""How long the search of strategies takes, and how near to the best strategy it is proven to come.

    OMP_NUM_THREADS=1 python benchmarks/strategy_search.py [--budget 20] [--only NAME]

Each model is searched over the whole space on the devices given, from its traced work on: processor time of this
process, the step and the strategy that were found, and the gap of the certificate.
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import strategy_in_words
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.planners.strategies.planner import StrategiesConfig, StrategiesPlanner
from automap_models.planners.strategies.problem import StrategyProblem, usual_precision
from automap_models.workloads.source import read_model_work

H100 = Cluster(8, 8, 450e9, 400e9, 80e9, name="8 × 8 H100")
"""DGX H100 as in conf/topo/dgx-h100-4.yaml, with more nodes."""
CASES = {
    "llama3-70b": ("h100", H100, 128, None),
    "llama3-405b": ("h100", Cluster(128, 8, 450e9, 400e9, 80e9, name="128 × 8 H100"), 1024, None),
    "mixtral-8x7b": ("h100", H100, 256, None),
    "t5_3b": ("v100", None, 256, 512),
}
"""Model → device, cluster (None for C), samples of a step, tokens of a sample."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of computing of each search")
    parser.add_argument("--only", choices=CASES, help="search for one model only")
    options = parser.parse_args()
    console = Console(width=200)
    table = Table("model", "cluster", "samples", "step, s", "MFU", "gap", "search, s", "families", "strategy")
    for name, (device_name, cluster, samples, sequence) in CASES.items():
        if options.only not in (None, name):
            continue
        device = read_device(device_name)
        dtype = {"bf16": "bfloat16", "fp16": "float16"}[usual_precision([device])]
        work = read_model_work(name, sequence=sequence, dtype=dtype)
        placed = cluster or read_cluster("C")
        problem = StrategyProblem(work=work, cluster=placed, device=device, global_batch=samples)
        begun_s = time.process_time()
        result = StrategiesPlanner(StrategiesConfig(budget_s=options.budget)).solve(problem)
        taken_s = time.process_time() - begun_s
        best, bound = result.cost, result.bound
        row = [name, placed.name, str(samples)]
        if best is None:
            row += [result.status, "", "", f"{taken_s:.1f}"]
        else:
            gap = "" if bound is None else f"{100 * (1 - bound.value / best.step_s):.1f} %"
            row += [f"{best.step_s:.3f}", f"{100 * best.mfu:.1f} %", gap, f"{taken_s:.1f}"]
            row += [f"{result.facts['families']:,}", strategy_in_words(best)]
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
