"""Steps that were measured on a cluster of V100 and T4, priced, ranked, and against what the search finds there.

    OMP_NUM_THREADS=1 python benchmarks/mixed_cluster.py [--budget 20]

TRIALS are those of AMP (Li et al., arXiv 2210.07297, section 4.2; src/results/het_cluster_results.txt of its
repository): GPT-2 of 345 million parameters, 32 samples a step, on 3 p3.8xlarge (4 V100 each) and 1 g4dn.12xlarge
(4 T4), with DeepSpeed's 1F1B. AMP ranks them by its own model, which the table repeats. The search chooses the order of
nodes, too: T4 first or last.

    loss     how far the measured step of the trial of the least price is behind the shortest measured one
    tau      Kendall's, of prices and measured steps
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import strategy_in_words
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.cost.layer_times import Runtime
from automap_models.export.targets import strategy_limits
from automap_models.formats.hardware_yaml import read_cluster, read_device, read_kinds
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.planner import StrategiesPlanner, node_orders
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.measured import architecture_of, with_layers
from automap_models.workloads.training import architecture_work

SHAPE = TransformerShape(
    name="GPT-2 345M", layers=24, hidden=1024, heads=16, kv_heads=16, ffn=4096, sequence=1024, vocabulary=52256
)
"""Heads are not stated; 16 are those of GPT-2 of this size."""
RUNTIME = Runtime(flash=False, gradient_bytes=2, gathers_a_layer=12, prefetches=False)
"""DeepSpeed's of 2021, as for AMP's trials on T4 alone (formats.measured_rows)."""
GLOBAL_BATCH, DEVICES, BEFORE, TRACED = 32, 16, 2, 4
"""BEFORE: the embedding and a transposition come before the layers in DeepSpeed's list of modules."""
TRIALS = """
1 1 4 1.0859 1.47 0,7,14,20,30
1 1 8 1.1402 1.28 0,5,9,12,15,18,21,24,30
1 1 16 1.1465 1.52 0,3,5,7,9,11,13,15,16,17,19,20,21,22,23,25,30
2 1 4 1.3291 1.53 0,7,14,20,30
2 1 8 1.4332 1.54 0,5,9,12,14,17,20,23,30
2 1 16 1.4591 1.58 0,3,5,7,9,11,13,14,16,18,19,20,21,23,24,25,30
4 1 4 1.8221 1.71 0,6,13,20,30
1 1 2 1.9761 2.23 0,14,30
1 2 4 2.0038 2.8 0,8,14,20,30
4 1 8 2.0041 1.71 0,3,7,11,14,17,20,23,30
1 2 8 2.1061 3.81 0,5,8,11,14,17,20,23,30
2 1 2 2.1342 2.26 0,14,30
1 2 2 2.3042 2.89 0,14,30
2 2 4 2.3112 2.37 0,8,14,20,30
4 1 2 2.4505 2.34 0,14,30
2 2 8 2.4635 3.36 0,5,8,11,14,17,20,23,30
2 2 2 2.5070 2.5 0,14,30
1 2 1 2.5985 3.13 0,30
2 2 1 2.5985 3.06 0,30
4 2 1 2.5985 3.03 0,30
1 1 1 2.7789 2.9 0,30
8 1 4 2.7881 2.07 0,8,14,20,30
4 2 2 2.9126 2.41 0,14,30
4 2 4 2.9260 1.65 0,8,14,20,30
4 2 8 3.1784 1.79 0,5,8,11,14,17,20,23,30
1 4 1 3.2456 3.8 0,30
2 4 1 3.2456 3.56 0,30
4 4 1 3.2456 3.29 0,30
8 4 1 3.2456 3.27 0,30
2 4 2 3.3470 3.29 0,14,30
2 4 4 3.4567 3.92 0,8,14,20,30
4 4 2 3.7053 2.66 0,14,30
8 2 2 3.7238 2.45 0,14,30
4 4 4 3.9994 2.05 0,8,14,20,30
8 2 4 4.1555 1.91 0,8,14,20,30
8 4 2 4.4220 2.71 0,14,30
8 2 8 4.6082 2.12 0,5,8,11,14,17,20,23,30
8 4 4 5.0850 2.13 0,8,14,20,30
16 4 2 5.8554 2.66 0,14,30
16 2 4 6.6146 2.33 0,8,14,20,30
16 4 4 7.2561 2.49 0,8,14,20,30
16 2 8 7.4678 2.69 0,5,8,11,14,17,20,23,30
32 4 4 11.5983 3.13 0,8,14,20,30
"""
"""Of every trial that ended: micro-batch, tp, pp, seconds by AMP's model, measured seconds, cuts of the modules."""


class Trial(NamedTuple):
    """A measured step, and what AMP's model said of it."""

    strategy: Strategy
    amp_s: float
    step_s: float


def trials() -> Iterator[Trial]:
    """All of them; micro-batches of more samples than a rank of data parallelism has are as large as that."""
    for line in TRIALS.split("\n")[1:-1]:
        micro_batch, tp, pp, amp_s, step_s, cuts = line.split()
        dp = DEVICES // (int(tp) * int(pp))
        places = [min(max(int(cut) - BEFORE, 0), SHAPE.layers) for cut in cuts.split(",")]
        strategy = Strategy(
            micro_batch=min(int(micro_batch), GLOBAL_BATCH // dp),
            global_batch=GLOBAL_BATCH,
            tp=int(tp),
            pp=int(pp),
            dp=dp,
            precision="fp16",
            layers=tuple(stop - begin for begin, stop in pairwise(places)),
        )
        yield Trial(strategy, float(amp_s), float(step_s))


def model() -> ModelWork:
    """The work of the trials' model, traced with few layers."""
    architecture = architecture_of(
        "gpt", replace(SHAPE, layers=TRACED), tied=True, dropout=True, experts_per_token=None
    )
    return with_layers(architecture_work(SHAPE.name, architecture, SHAPE.sequence, "bfloat16"), SHAPE)


def loss(prices: Sequence[float], steps: Sequence[float]) -> float:
    """How far the trial of the least price is behind the best one, a share."""
    return steps[int(np.argmin(prices))] / min(steps) - 1


def tau(prices: Sequence[float], steps: Sequence[float]) -> float:
    """Kendall's."""
    return float(kendalltau(prices, steps).statistic)


def order_in_words(cluster: Cluster) -> str:
    """`v100, t4`: groups of nodes in the order of ranks."""
    return ", ".join(group.device for group in cluster.groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of computing of each search")
    options = parser.parse_args()
    cluster, work, console = read_cluster("p3-g4dn"), model(), Console(width=200)
    device, kinds = read_device("v100"), read_kinds(cluster)
    measured = [*trials()]
    steps, of_amp = [trial.step_s for trial in measured], [trial.amp_s for trial in measured]
    ranked = Table("order of nodes", "tau", "loss", "median of price / measured")
    ranked.add_row(
        "AMP's model", f"{tau(of_amp, steps):.2f}", f"{100 * loss(of_amp, steps):.1f} %", f"{_ratio(of_amp, steps):.2f}"
    )
    for order in node_orders(cluster):
        pricing = StrategyPricing(work, order, device, RUNTIME, kinds)
        prices = [pricing.estimate(trial.strategy).step_s for trial in measured]
        cells = f"{tau(prices, steps):.2f}", f"{100 * loss(prices, steps):.1f} %", f"{_ratio(prices, steps):.2f}"
        ranked.add_row(order_in_words(order), *cells)
    console.print(ranked)
    pricing = StrategyPricing(work, cluster, device, RUNTIME, kinds)
    best = min(measured, key=lambda trial: trial.step_s)
    plans = Table("plan", "price", "order of nodes", "strategy")
    for name, of in (("AMP's choice", min(measured, key=lambda trial: trial.amp_s)), ("shortest measured", best)):
        price = pricing.estimate(of.strategy)
        plans.add_row(
            f"{name}, {of.step_s} s", f"{price.step_s:.3f} s", order_in_words(cluster), strategy_in_words(price)
        )
    searches = {
        "found, for DeepSpeed": ({"zero": 0, "recompute": "none"}, strategy_limits("deepspeed")),
        "found, all": ({}, None),
    }
    for name, (fixed, within) in searches.items():
        problem = StrategyProblem(
            work=work,
            cluster=cluster,
            device=device,
            global_batch=GLOBAL_BATCH,
            fixed={"precision": "fp16", **fixed},
            within=within,
            runtime=RUNTIME,
            kinds=kinds,
        )
        result = StrategiesPlanner(StrategiesConfig(budget_s=options.budget)).solve(problem)
        proven = "" if result.bound is None else f", gap {100 * (1 - result.bound.value / result.cost.step_s):.1f} %"
        searched_order = order_in_words(result.problem.cluster)
        plans.add_row(name + proven, f"{result.cost.step_s:.3f} s", searched_order, strategy_in_words(result.cost))
    console.print(plans)


def _ratio(prices: Sequence[float], steps: Sequence[float]) -> float:
    return float(np.median(np.array(prices) / np.array(steps)))


if __name__ == "__main__":
    main()
