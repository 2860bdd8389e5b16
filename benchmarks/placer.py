"""The learned placer and its opponents on traced training steps: `python benchmarks/placer.py [MODEL …]`.

Every opponent places the same graph (core.placement, one node an instruction) for the same devices and is simulated by
the same simulator:

    expert, m-etf    planners without a seed
    metis            parts of METIS, placed by the planner of that name
    learned          the shipped policy without a time limit
    fine-tuned       the same with --finetune 60
    local-search     annealing with the processor time that `learned` took

Steps are in ms, means over the seeds of what draws; `bound` is proven, `took` is the processor time of `learned`.
"""

from __future__ import annotations

import argparse
import math
import resource
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from common import print_rows, processor_time, timed

from automap_models.core.placement import PlacementProblem
from automap_models.cost.makespan import makespan_bound_s
from automap_models.cost.step_tables import StepTables
from automap_models.envs.placement.generator import random_problem
from automap_models.planners.registry import make_planner
from automap_models.train.placer_examples import traced_graph

TRAINED = ("rnnlm_2", "wavenet_2x18", "bert-base", "inception_v3")
HELD_OUT_MODELS = ("transformer_xl_2", "gnmt_2", "amoebanet_d")
OPPONENTS = ("expert", "m-etf", "metis", "learned", "fine-tuned", "local-search")
ALONE = OPPONENTS[:2]
TUNED_S = 60.0
"""--finetune."""


def placed(planner: str, problem: PlacementProblem, budget_s: float = math.inf, **config: Any) -> tuple[float, float]:
    """The step of a planner's placement, seconds, infinite where it has none; and its processor time."""
    problem = replace(problem)  # tables are made once for a problem: everyone makes them
    maker = make_planner(planner, kind="placement", **config)
    result, took_s = timed(lambda: maker.solve(problem, deadline=processor_time(budget_s)))
    return math.inf if result.plan is None else float(result.cost.value_s), took_s


def measured(opponent: str, problem: PlacementProblem, seed: int, budget_s: float) -> tuple[float, float]:
    """The step and the processor time of an opponent; `budget_s` is that of local search."""
    if opponent == "fine-tuned":
        return placed("learned", problem, seed=seed, finetune_s=TUNED_S)
    if opponent == "local-search":
        return placed(opponent, problem, budget_s, seed=seed)
    return placed(opponent, problem, **({} if opponent in ALONE else {"seed": seed}))


def row(model: str, problem: PlacementProblem, seeds: int) -> tuple[str, ...]:
    """The means of all opponents."""
    bound_s, end_s = timed(lambda: makespan_bound_s(StepTables.from_problem(problem)))
    steps_s, learned_s = dict[str, float](), np.zeros(seeds)
    for opponent in OPPONENTS:
        runs = [
            measured(opponent, problem, seed, learned_s[seed] - end_s)  # planners compute the bound at their end
            for seed in range(1 if opponent in ALONE else seeds)
        ]
        steps_s[opponent] = float(np.mean([step_s for step_s, _ in runs]))
        if opponent == "learned":
            learned_s = np.array([took_s for _, took_s in runs])
    cells = [f"{1e3 * value_s:.4g}" for value_s in (*steps_s.values(), bound_s)]
    over = [steps_s["learned"] / value_s for value_s in (steps_s["expert"], steps_s["local-search"], bound_s)]
    return (model, f"{len(problem.graph):,}", *cells, *(f"{ratio:.3f}" for ratio in over), f"{learned_s.mean():.2f} s")


HEADINGS = (
    *("step, ms", "operations", *OPPONENTS, "bound"),
    *("learned over expert", "over local-search", "over bound", "took"),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*TRAINED, *HELD_OUT_MODELS])
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--sequence", type=int, help="tokens of a sample, for models that have them")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    small = random_problem(np.random.default_rng(0))
    for name in (*ALONE, "learned"):
        placed(name, small)  # what is compiled at first use is nobody's time

    def rows() -> Iterator[tuple[str, ...]]:
        for model in arguments.models:
            graph = traced_graph(model, arguments.sequence)
            problem = PlacementProblem.create(graph, objective="step", accelerators=arguments.devices)
            yield row(model + (" (kept out)" if model in HELD_OUT_MODELS else ""), problem, arguments.seeds)

    printed = print_rows(HEADINGS, rows())
    for i, heading in ((-4, HEADINGS[-4]), (-3, "learned " + HEADINGS[-3])):
        ratios = [float(cells[i]) for cells in printed]
        print(f"{heading}: {np.exp(np.mean(np.log(ratios))):.3f} in the geometric mean, {max(ratios):.3f} at most")
    print(f"largest memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
