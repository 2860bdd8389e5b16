"""The learned placer and its opponents on traced training steps: `python benchmarks/placer.py [MODEL …]`.

Every opponent places the same graph (core.placement, one node an instruction) for the same devices and is simulated by
the same simulator. Seconds are processor time. Families in pre-training and those kept out of it have means of their
own. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np

from automap_models.core.placement import PlacementGraph, PlacementProblem
from automap_models.cost.makespan_bound import makespan_bound_s
from automap_models.cost.step_tables import StepTables
from automap_models.planners.base import Deadline
from automap_models.planners.registry import make_planner
from automap_models.train.placer_examples import traced_graph

TRAINED = ("rnnlm_2", "rnnlm_4", "inception_v3", "wavenet_2x18", "bert-base", "gpt2", "moe")
HELD_OUT = ("gnmt_2", "transformer_xl_2", "transformer_xl_4", "amoebanet_d")
PAPER = (
    *("rnnlm_2", "rnnlm_4", "gnmt_2", "transformer_xl_2", "transformer_xl_4", "inception_v3", "amoebanet_d"),
    "wavenet_2x18",
)
"""Families of GDP's own evaluation."""
OPPONENTS = ("expert", "metis", "m-etf", "heft", "random")


def timed(planner: str, problem: PlacementProblem, budget_s: float = math.inf, **config: Any) -> tuple[float, float]:
    """The step of a planner's placement, seconds, infinite where it has none; and its processor time."""
    begun_s = time.process_time()
    deadline = Deadline(budget_s, time.process_time)
    result = make_planner(planner, kind="placement", **config).solve(problem, deadline=deadline)
    return math.inf if result.plan is None else float(result.cost.value_s), time.process_time() - begun_s


def row(problem: PlacementProblem, seeds: int, factors: list[float], tuned_s: float) -> dict[str, float]:
    """Step by opponent, seconds, the mean over the seeds where it draws; and what the learned placer took."""
    steps: dict[str, float] = {}
    learned = [timed("learned", problem, seed=seed) for seed in range(seeds)]
    steps["learned"] = float(np.mean([value for value, _ in learned]))
    steps["took"] = float(np.mean([took for _, took in learned]))
    if tuned_s:
        steps[f"learned {tuned_s:g} s"] = timed("learned", problem, tuned_s, finetune_s=tuned_s)[0]
    for name in OPPONENTS:
        config = {"seed": 0} if name in ("metis", "random") else {}
        if name == "random":
            config["evaluations"] = 1000
        steps[name] = timed(name, problem, **config)[0]
    for factor in factors:
        runs = range(seeds if factor == 1 else 1)
        values = [timed("local-search", problem, factor * steps["took"], seed=seed)[0] for seed in runs]
        steps[f"local search {factor:g}×"] = float(np.mean(values))
    steps["bound"] = makespan_bound_s(StepTables.of(problem))
    return steps


def print_mean(label: str, rows: list[dict[str, float]], columns: list[str]) -> None:
    """The geometric means over the expert's steps."""
    if rows:
        means = [np.exp(np.mean([math.log(steps[name] / steps["expert"]) for steps in rows])) for name in columns]
        print(f"| {label} | | |", " | ".join(f"{mean:.3f}" for mean in means), "|", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[*TRAINED, *HELD_OUT])
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--times", type=float, nargs="*", default=[1.0, 10.0], help="local search's, over the placer's")
    parser.add_argument("--tuned", type=float, default=0.0, help="seconds of --finetune; 0: not measured")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    columns: list[str] = []
    for model in arguments.models:
        graph: PlacementGraph = traced_graph(model)
        problem = PlacementProblem.of(graph, objective="step", accelerators=arguments.devices)
        steps = row(problem, arguments.seeds, arguments.times, arguments.tuned)
        if not rows:
            columns = [name for name in steps if name != "took"]
            print("| step, ms | operations | took, s |", " | ".join(columns), "|")
            print("|---|" + "---|" * (2 + len(columns)))
        cells = [f"{steps[name] * 1e3:.4g}" for name in columns]
        print(f"| {model} | {len(graph):,} | {steps['took']:.3g} |", " | ".join(cells), "|", flush=True)
        rows[model] = steps
    for label, chosen in (("the paper's families", PAPER), ("in pre-training", TRAINED), ("kept out of it", HELD_OUT)):
        print_mean(f"over the expert, {label}", [rows[model] for model in rows if model in chosen], columns)


if __name__ == "__main__":
    main()
