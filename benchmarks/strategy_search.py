"""How long the search of strategies takes, and how near to the best strategy it is proven to come.

    OMP_NUM_THREADS=1 python benchmarks/strategy_search.py [--budget 20] [--only NAME]

Each model is searched over the whole space on the devices given, from its traced work on: processor time of this
process, the step and the strategy that were found, and the gap of the certificate. Beside that stands the best of a
plain sweep: strategies of equal stages that a person would try, priced one by one without any bound. The search is
behind where the ratio is above 1.
"""

from __future__ import annotations

import argparse
import time
from itertools import product

from rich.console import Console
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.strategy import Recompute, Strategy
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.planners import effort
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.source import read_model_work

H100 = Cluster(8, 8, 450e9, 400e9, 80e9, name="8 × 8 H100")
"""DGX H100 as in conf/topo/dgx-h100-4.yaml, with more nodes."""
CASES: dict[str, tuple[str, Cluster | str, int, int | None]] = {
    "llama3-70b": ("h100", H100, 128, None),
    "llama3-405b": ("h100", Cluster(128, 8, 450e9, 400e9, 80e9, name="128 × 8 H100"), 1024, None),
    "mixtral-8x7b": ("h100", H100, 256, None),
    "t5_3b": ("v100", "C", 256, 512),
    "llama3-8b": ("h100", "dgx-h100-4", 256, 8192),
    "llama3-8b, long": ("h100", "dgx-h100-4", 32, 131072),
    "gpt2_xl": ("v100", "C", 256, 1024),
    "bert48": ("v100", "B", 64, 512),
    "llama2-7b": ("a100-40", "p4d-p3dn", 256, 2048),
}
"""Model, and what is else said of it → device, cluster or its name, samples of a step, tokens of a sample."""
DEGREES = (1, 2, 4, 8)
"""Of tp, cp and ep in the plain sweep; pp is any divisor of the devices."""
RECOMPUTED: tuple[Recompute, ...] = ("none", "selective", "full")
WAYS = (("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2), ("dualpipev", 2))


def plain_sweep(problem: StrategyProblem) -> tuple[Estimate | None, int]:
    """The best strategy of equal stages with usual degrees, and how many were priced."""
    pricing = StrategyPricing(problem.work, problem.cluster, problem.device, kinds=problem.kinds)
    devices, shape, best, count = problem.cluster.devices, problem.work.shape, None, 0
    for tp, cp, pp in product(DEGREES, DEGREES, [n for n in range(1, devices + 1) if devices % n == 0]):
        dp, odd = divmod(devices, tp * cp * pp)
        if odd or not dp or problem.global_batch % dp or pp > shape.layers or shape.sequence % cp:
            continue
        for micro_batch, zero, recompute, (schedule, vp), ep in product(
            (1, 2, 4), (0, 1, 3), RECOMPUTED, WAYS, DEGREES if shape.experts else (1,)
        ):
            if pp == 1 and schedule != "1f1b":
                continue
            try:
                strategy = Strategy(
                    micro_batch=micro_batch,
                    global_batch=problem.global_batch,
                    tp=tp,
                    cp=cp,
                    pp=pp,
                    dp=dp,
                    vp=vp,
                    ep=ep,
                    schedule=schedule,
                    recompute=recompute,
                    zero=zero,
                    sequence_parallel=tp > 1,
                    precision=problem.precision,
                )
                estimate = pricing.estimate(strategy)
            except BadInput:
                continue
            count += 1
            if problem.fits(estimate) and (best is None or estimate.step_s < best.step_s):
                best = estimate
    return best, count


def problem_of(name: str) -> StrategyProblem:
    """The problem of one of CASES, its model traced."""
    device, cluster, samples, sequence = CASES[name]
    return StrategyProblem.of(
        lambda dtype: read_model_work(name.partition(",")[0], sequence=sequence, dtype=dtype),
        read_cluster(cluster) if isinstance(cluster, str) else cluster,
        read_device(device),
        global_batch=samples,
        fixed={},
        reserve_bytes=0.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", type=float, default=20.0, help="counted seconds of each search")
    parser.add_argument("--only", choices=CASES, action="append", help="search for this model only; may be repeated")
    parser.add_argument("--no-sweep", action="store_true", help="leave the plain sweep out, which takes longest")
    options = parser.parse_args()
    console = Console(width=260)
    columns = (
        "model",
        "cluster",
        "samples",
        "step, s",
        "MFU",
        "gap",
        "search, s",
        "counted, s",
        "families",
        "strategy",
    )
    table = Table(*columns, "best of the plain sweep, s", "ratio", "its strategy")
    for name, (*_, samples, _) in CASES.items():
        if options.only and name not in options.only:
            continue
        problem = problem_of(name)
        begun_s, before_s = time.process_time(), effort.counted_s()
        result = StrategiesPlanner(StrategiesConfig(budget_s=options.budget)).solve(problem)
        taken_s, counted_s = time.process_time() - begun_s, effort.counted_s() - before_s
        best, bound = result.cost, result.bound
        row = [name, problem.cluster.name, str(samples)]
        if best is None:
            row += [result.status, "", "", f"{taken_s:.1f}", f"{counted_s:.1f}"]
        else:
            gap = "" if bound is None else f"{100 * (1 - bound.value / best.step_s):.1f} %"
            row += [f"{best.step_s:.3f}", f"{100 * best.mfu:.1f} %", gap, f"{taken_s:.1f}", f"{counted_s:.1f}"]
            row += [f"{result.facts['families']:,}", strategy_in_words(best)]
            plain, count = None, 0
            if not options.no_sweep:
                plain, count = plain_sweep(problem)
            if plain is not None:
                row += [f"{plain.step_s:.3f} of {count:,}", f"{best.step_s / plain.step_s:.3f}"]
                row.append(strategy_in_words(plain))
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
