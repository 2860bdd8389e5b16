"""The learned placer and its opponents on traced training steps: `python benchmarks/placer.py [MODEL …]`.

Every opponent places the same graph (core.placement, one node an instruction) for the same devices and is simulated by
the same simulator. No traced graph was in pre-training: the policy learned on random graphs only. Seconds are processor
time. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np

from automap_models.core.placement import PlacementGraph, PlacementProblem
from automap_models.cost.kernels import roofline_times
from automap_models.cost.makespan_bound import makespan_bound_s
from automap_models.cost.step_tables import StepTables
from automap_models.formats.hardware_yaml import read_device
from automap_models.planners.base import Deadline
from automap_models.planners.placement.learned import proposals, read_placer
from automap_models.planners.placement.placer_state import PlacerState
from automap_models.planners.registry import make_planner
from automap_models.resources import zoo_dir

MODELS = ("rnnlm_2", "rnnlm_4", "gnmt_2", "inception_v3", "wavenet_2x18", "bert-base", "gpt2", "moe")
PAPER = ("rnnlm_2", "rnnlm_4", "gnmt_2", "inception_v3", "wavenet_2x18")
"""Families of GDP's own evaluation."""
OPPONENTS = ("expert", "metis", "m-etf", "heft", "random")
LINK_BYTES_PER_S = 12e9


def step_of(model: str, devices: int) -> PlacementGraph:
    """The traced step of a built-in model, timed by the roofline of a V100."""
    from automap_models.hlo.adapter import trace
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.step_graph import step_graph
    from automap_models.workloads.registry import sized

    graph = instruction_graph(trace(sized(model).step()))
    times = [roofline_times(graph, read_device(kind)) for kind in ("v100", "cpu")]
    return step_graph(
        graph, times[0], times[1], {}, link_bytes_per_s=LINK_BYTES_PER_S, accelerators=devices, accelerator_bytes=32e9
    )


def timed(planner: str, problem: PlacementProblem, budget_s: float = math.inf, **config: Any) -> tuple[float, float]:
    """The step of a planner's placement, seconds, infinite where it has none; and its processor time."""
    begun_s = time.process_time()
    deadline = Deadline(budget_s, time.process_time)
    result = make_planner(planner, kind="placement", **config).solve(problem, deadline=deadline)
    return math.inf if result.plan is None else float(result.cost.value_s), time.process_time() - begun_s


def policy_alone(problem: PlacementProblem, seed: int) -> float:
    """The best of what the policy proposes, baselines not counted."""
    state = PlacerState.of(problem, seed, Deadline())
    values, excess = state.values(proposals(read_placer(zoo_dir() / "placer.onnx"), state, 32, seed))
    return float(np.where(excess > 0, np.inf, values).min())


def row(problem: PlacementProblem, seeds: int, factor: float) -> dict[str, float]:
    """Step by opponent, seconds, the mean over the seeds where it draws; and what the learned placer took."""
    steps: dict[str, float] = {}
    learned = [timed("learned", problem, seed=seed) for seed in range(seeds)]
    steps["learned"] = float(np.mean([value for value, _ in learned]))
    steps["took"] = float(np.mean([took for _, took in learned]))
    steps["policy"] = float(np.mean([policy_alone(problem, seed) for seed in range(seeds)]))
    for name in OPPONENTS:
        config = {"seed": 0} if name in ("metis", "random") else {}
        if name == "random":
            config["evaluations"] = 33
        steps[name] = timed(name, problem, **config)[0]
    equal = [timed("local-search", problem, steps["took"], seed=seed)[0] for seed in range(seeds)]
    steps["local search"] = float(np.mean(equal))
    steps["local search long"] = timed("local-search", problem, factor * steps["took"], seed=0)[0]
    steps["bound"] = makespan_bound_s(StepTables.of(problem))
    return steps


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--long", type=float, default=10.0, help="times the learned placer's time for the long search")
    arguments = parser.parse_args()
    columns = ("learned", "policy", *OPPONENTS, "local search", "local search long", "bound")
    print("| step, ms | operations | took, s |", " | ".join(columns), "|")
    print("|---|" + "---|" * (2 + len(columns)))
    ratios: dict[str, list[float]] = {name: [] for name in columns}
    for model in arguments.models:
        graph = step_of(model, arguments.devices)
        problem = PlacementProblem.of(graph, objective="step")
        steps = row(problem, arguments.seeds, arguments.long)
        cells = [f"{steps[name] * 1e3:.4g}" for name in columns]
        print(f"| {model} | {len(graph):,} | {steps['took']:.3g} |", " | ".join(cells), "|", flush=True)
        for name in columns:
            if model in PAPER:
                ratios[name].append(steps[name] / steps["expert"])
    means = [f"{np.exp(np.mean(np.log(ratios[name]))):.3f}" if ratios[name] else "" for name in columns]
    print("| over the expert, geometric mean of the paper's families | | |", " | ".join(means), "|")


if __name__ == "__main__":
    main()
