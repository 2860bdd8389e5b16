"""How long the search of strategies takes, and how near to the best strategy it is proven to come.

    OMP_NUM_THREADS=1 python benchmarks/strategy_search.py [--budget 20] [--only NAME] [--alone]

Each model is searched over the whole space on the devices given, from its traced work on: the step and the strategy
that were found, the gap of the certificate, processor time of this process, and counted seconds, which the load of the
machine does not change. With `--alone` kernels of no strategies are timed together.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from common import print_rows, timed

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import strategy_in_words
from automap_models.cost import layer_costs
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.planners import effort
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.workloads.source import read_model_work

H100 = Cluster(8, 8, 450e9, 400e9, 80e9, name="8 × 8 H100")
"""DGX H100 as in conf/topo/dgx-h100-4.yaml, with more nodes."""
Case = tuple[str, str | Device, str | Cluster, int, int | None]
"""A model, a device and a cluster or their names, samples of a step, tokens of a sample."""
CASES: dict[str, Case] = {
    "llama3-70b": ("llama3-70b", "h100", H100, 128, None),
    "llama3-405b": ("llama3-405b", "h100", replace(H100, nodes=128, name="128 × 8 H100"), 1024, None),
    "mixtral-8x7b": ("mixtral-8x7b", "h100", H100, 256, None),
    "qwen3-235b-a22b": ("qwen3-235b-a22b", "h100", replace(H100, nodes=16, name="16 × 8 H100"), 512, 8192),
    "deepseek-v3": ("deepseek-v3", "h100", replace(H100, nodes=32, name="32 × 8 H100"), 512, None),
    "t5_3b": ("t5_3b", "v100", "C", 256, 512),
    "llama3-8b": ("llama3-8b", "h100", "dgx-h100-4", 256, 8192),
    "llama3-8b, long": ("llama3-8b", "h100", "dgx-h100-4", 32, 131072),
    "gpt2_xl": ("gpt2_xl", "v100", "C", 256, 1024),
    "bert48": ("bert48", "v100", "B", 64, 512),
    "llama2-7b": ("llama2-7b", "a100-40", "p4d-p3dn", 256, 2048),
}


def problem_of(case: Case, reserve_bytes: float | None = 0.0, **others: Any) -> StrategyProblem:
    """The problem of a case, its model traced."""
    model, device, cluster, samples, sequence = case
    return StrategyProblem.from_work(
        lambda dtype: read_model_work(model, sequence=sequence, dtype=dtype),
        read_cluster(cluster) if isinstance(cluster, str) else cluster,
        read_device(device) if isinstance(device, str) else device,
        global_batch=samples,
        fixed={},
        reserve_bytes=reserve_bytes,
        **others,
    )


HEADINGS = (
    *("model", "cluster", "samples", "step, s", "MFU", "gap", "families"),
    *("search, s", "counted, s", "strategy"),
)


def row(name: str, budget_s: float) -> tuple[str, ...]:
    """What a search comes to."""
    problem = problem_of(CASES[name])
    before_s = effort.counted_s()
    result, taken_s = timed(lambda: StrategiesPlanner(StrategiesConfig(budget_s=budget_s)).solve(problem))
    best, bound = result.cost, result.bound
    times = f"{taken_s:.1f}", f"{effort.counted_s() - before_s:.1f}"
    case = name, problem.cluster.name, str(problem.global_batch)
    if best is None:
        return (*case, result.status, "", "", "", *times, "")
    gap = "" if bound is None else f"{100 * (1 - bound.value / best.step_s):.1f} %"
    figures = f"{best.step_s:.3f}", f"{100 * best.mfu:.1f} %", gap, f"{result.facts['families']:,}"
    return (*case, *figures, *times, strategy_in_words(best))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", type=float, default=20.0, help="counted seconds of each search")
    parser.add_argument("--only", choices=CASES, action="append", help="search for this model only; may be repeated")
    parser.add_argument("--alone", action="store_true", help="time the kernels of each strategy alone")
    options = parser.parse_args()
    if options.alone:
        vars(layer_costs)["AT_ONCE"] = 0
    print_rows(HEADINGS, (row(name, options.budget) for name in options.only or CASES))


if __name__ == "__main__":
    main()
