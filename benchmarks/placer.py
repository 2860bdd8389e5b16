"""The learned placer and its opponents on traced training steps: `python benchmarks/placer.py [MODEL …]`.

Every opponent places the same graph (core.placement, one node an instruction) for the same devices and is simulated by
the same simulator. Seconds are processor time. What is measured goes into --results, a line of JSON a run, and is not
measured again: a benchmark that was cut off goes on, and opponents can be added one after the other. Graphs are kept in
--graphs, since tracing takes minutes. Prints a Markdown table of all lines in the file.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from opponents import hdp

from automap_models.core.placement import PlacementProblem
from automap_models.cost.makespan_bound import makespan_bound_s
from automap_models.cost.step_tables import StepTables
from automap_models.envs.placement.generator import random_problem
from automap_models.planners.base import Deadline
from automap_models.planners.placement.step_groups import StepUnits, grouped
from automap_models.planners.placement.step_search import score_of
from automap_models.planners.registry import make_planner
from automap_models.train.placer_graphs import kept_graph, traced_graph

TRAINED = ("rnnlm_2", "rnnlm_4", "inception_v3", "wavenet_2x18", "bert-base", "gpt2", "moe")
HELD_OUT = ("gnmt_2", "transformer_xl_2", "transformer_xl_4", "amoebanet_d")
PAPER = (
    *("rnnlm_2", "rnnlm_4", "gnmt_2", "transformer_xl_2", "transformer_xl_4", "inception_v3", "amoebanet_d"),
    "wavenet_2x18",
)
"""Families of GDP's own evaluation."""
ALONE = ("expert", "m-etf")
"""Planners without a seed."""
SEEDED = ("metis",)
SOONER = 15
"""How much less time than HDP took for its best `learned-sooner` has."""
AFTER = {
    "local-search": ("learned", 1.0),
    "local-search-100": ("learned", 100.0),
    "learned-sooner": ("hdp", 1 / SOONER),
}
"""Whose time these have, and how much of it."""
OPPONENTS = (
    *ALONE,
    *SEEDED,
    "random",
    "learned",
    "fine-tuned",
    "local-search",
    "hdp",
    "learned-sooner",
    "local-search-100",
)
TUNED_S, EVALUATIONS, GROUPS = 60.0, 1000, 64
"""--finetune; random placements; groups of METIS that these put on devices."""


class Run(NamedTuple):
    """One run of one opponent: its step, the processor time that it took, and when HDP had its best."""

    model: str
    opponent: str
    seed: int
    value_s: float
    took_s: float
    reached_s: float | None = None


class Results:
    """The runs in a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.runs = [Run(**json.loads(line)) for line in lines]

    def find(self, model: str, opponent: str, seed: int = 0) -> Run | None:
        """The run, if it was measured."""
        key = (model, opponent, seed)
        return next((run for run in self.runs if run[:3] == key), None)

    def add(self, run: Run) -> None:
        """Keep a run."""
        self.runs.append(run)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run._asdict()) + "\n")
        print(f"{run.model} {run.opponent} {run.seed}: {run.value_s * 1e3:.4g} ms, took {run.took_s:.3g} s", flush=True)

    def mean(self, model: str, opponent: str) -> float:
        """Mean step over the seeds, seconds; NaN where nothing was measured."""
        values = [run.value_s for run in self.runs if run[:2] == (model, opponent)]
        return float(np.mean(values)) if values else math.nan

    def mean_took_s(self, model: str, opponent: str) -> float:
        """Mean processor time over the seeds; NaN where nothing was measured."""
        return float(np.mean([run.took_s for run in self.runs if run[:2] == (model, opponent)] or [math.nan]))


def timed(planner: str, problem: PlacementProblem, budget_s: float = math.inf, **config: Any) -> tuple[float, float]:
    """The step of a planner's placement, seconds, infinite where it has none; and its processor time."""
    problem = replace(problem)  # tables are made once for a problem: everyone makes them
    begun_s = time.process_time()
    deadline = Deadline(budget_s, time.process_time)
    result = make_planner(planner, kind="placement", **config).solve(problem, deadline=deadline)
    return math.inf if result.plan is None else float(result.cost.value_s), time.process_time() - begun_s


def shortest_drawn_s(problem: PlacementProblem, seed: int) -> float:
    """The shortest step of random placements of groups; infinite where none fits the memory."""
    units, random = StepUnits.of(problem), np.random.default_rng(seed)
    groups = grouped(units, GROUPS, seed)
    drawn = [units.repaired(random.integers(0, problem.devices, groups.max() + 1)[groups]) for _ in range(EVALUATIONS)]
    best = min(score_of(units, device) for device in drawn)
    return math.inf if best.excess_bytes > 0 else best.value_s


def measured(opponent: str, problem: PlacementProblem, seed: int, budget_s: float, hdp_s: float) -> dict[str, float]:
    """The rest of a `Run`; `budget_s` is for those in AFTER."""
    if opponent in ALONE:
        value_s, took_s = timed(opponent, problem)
    elif opponent == "hdp":
        trained = hdp.train(problem, hdp_s, seed)
        return {"value_s": trained.value_s, "took_s": trained.took_s, "reached_s": trained.reached_s}
    elif opponent.startswith("local-search"):
        value_s, took_s = timed("local-search", problem, budget_s, seed=seed)
    elif opponent == "learned-sooner":
        value_s, took_s = timed("learned", problem, budget_s, seed=seed)
    elif opponent == "fine-tuned":
        value_s, took_s = timed("learned", problem, seed=seed, finetune_s=TUNED_S)
    elif opponent == "random":
        begun_s = time.process_time()
        value_s, took_s = shortest_drawn_s(problem, seed), time.process_time() - begun_s
    else:
        value_s, took_s = timed(opponent, problem, seed=seed)
    return {"value_s": value_s, "took_s": took_s}


def measure(
    model: str, problem: PlacementProblem, opponents: Sequence[str], seeds: int, results: Results, hdp_s: float
) -> None:
    """Measure what the results do not have yet."""
    if results.find(model, "bound") is None:
        begun_s = time.process_time()
        bound_s = makespan_bound_s(StepTables.of(problem))
        results.add(Run(model, "bound", 0, bound_s, time.process_time() - begun_s))
        results.add(Run(model, "operations", 0, len(problem.graph) / 1e3, 0.0))
    end_s = results.mean_took_s(model, "bound")  # planners compute it when their search is over
    for opponent in opponents:
        for seed in range(1 if opponent in ALONE or opponent == "local-search-100" else seeds):
            if results.find(model, opponent, seed) is not None:
                continue
            whose, share = AFTER.get(opponent, ("bound", 1.0))
            whose_run = results.find(model, whose, seed if opponent in AFTER else 0)
            if whose_run is not None:
                budget_s = share * (whose_run.reached_s or whose_run.took_s) - end_s
                results.add(Run(model, opponent, seed, **measured(opponent, problem, seed, budget_s, hdp_s)))


def table(results: Results) -> Iterator[str]:
    """The lines of the Markdown table: steps in ms, means over the seeds, and geometric means over the expert's."""
    models = list(dict.fromkeys(run.model for run in results.runs))
    opponents = [name for name in OPPONENTS if any(run.opponent == name for run in results.runs)]
    yield f"| step, ms | operations | {' | '.join(opponents)} | bound | learned over bound | took, s |"
    yield "|---|" + "---|" * (len(opponents) + 4)
    steps = {model: {name: results.mean(model, name) for name in (*opponents, "bound")} for model in models}
    for model in models:
        held_out = " (kept out)" if model in HELD_OUT or model.startswith("gnmt") else ""
        cells = [
            "" if math.isnan(steps[model][name]) else f"{steps[model][name] * 1e3:.4g}"
            for name in (*opponents, "bound")
        ]
        gap = steps[model]["learned"] / steps[model]["bound"]
        took = results.mean_took_s(model, "learned")
        count = int(results.mean(model, "operations") * 1e3 + 0.5)
        yield f"| {model}{held_out} | {count:,} | {' | '.join(cells)} | {gap:.2f} | {took:.3g} |"
    groups: list[tuple[str, Callable[[str], bool]]] = [
        ("all", lambda _: True),
        ("the paper's families", lambda model: model in PAPER or model.startswith("gnmt")),
        ("kept out of pre-training", lambda model: model in HELD_OUT or model.startswith("gnmt")),
    ]
    for against in ("expert", "local-search", "local-search-100", "hdp"):
        for opponent in ("learned", "fine-tuned", "learned-sooner"):
            for label, belongs in groups:
                ratios = [
                    steps[model][opponent] / steps[model][against]
                    for model in models
                    if belongs(model) and opponent in steps[model] and against in steps[model]
                ]
                ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
                if ratios:
                    mean = math.exp(float(np.mean(np.log(ratios))))
                    worst = f"{len(ratios)} graphs, worst {max(ratios):.3f}"
                    yield f"{opponent} over {against}, {label}: {mean:.3f} ({worst})"


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*TRAINED, *HELD_OUT])
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--sequence", type=int, help="tokens of a sample, for models that have them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--opponents", nargs="*", choices=OPPONENTS, default=OPPONENTS)
    parser.add_argument("--results", type=Path, default=Path("placer.jsonl"), help="what was measured, one run a line")
    parser.add_argument("--graphs", type=Path, help="folder that keeps the traced graphs")
    parser.add_argument("--hdp", type=float, default=120.0, help="processor time of a training of HDP, s")
    arguments = parser.parse_args()
    results = Results(arguments.results)
    small = random_problem(np.random.default_rng(0))
    for name in (*ALONE, "learned"):
        timed(name, small)  # what is compiled at first use is nobody's time
    for model in arguments.models:
        sequence = arguments.sequence
        graph = kept_graph(model, arguments.graphs, sequence) if arguments.graphs else traced_graph(model, sequence)
        problem = PlacementProblem.of(graph, objective="step", accelerators=arguments.devices)
        row = model if sequence is None else f"{model} with {sequence} tokens on {arguments.devices}"
        measure(row, problem, arguments.opponents, arguments.seeds, results, arguments.hdp)
    print(*table(results), sep="\n")
    print(f"\nlargest memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
