"""The best plan of each pure kind against the best hybrid, on the paper's clusters and on ones with faster links.

    OMP_NUM_THREADS=1 python benchmarks/explorer.py [--schedule 1f1b] [--budget 40] [--cluster C …] [MODEL …]

A global batch of 256 samples; training state as in fp32 with Adam. Steps are simulated under the schedule, `--schedule
length` compares plans by the length L. `–` is a kind none of whose plans fits. `gain` is the shortest pure plan's step
over the hybrid's; 1.00 says that none is shorter than the best pure plan. `bound` is what is proven about all plans: no
plan of any kind on the grid is below it. The budget is of processor time.
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.table import Table

from automap_models import workloads
from automap_models.core.mesh import PlanKind
from automap_models.core.schedules import DEFAULT_SCHEDULE, SCHEDULES
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.explore import Exploration, ExploreConfig, ExplorePlanner
from automap_models.planners.portfolio.model import profiled_model
from automap_models.planners.portfolio.space import PlanningSpace

CLUSTERS = {"A": "v100", "B": "v100", "C": "v100", "p4d-4": "a100", "dgx-h100-4": "h100"}
"""Cluster → its devices."""
MODELS = ("t5_11b", "t5_3b", "bert48", "vgg19", "gpt2_xl", "gpt3_7b", "gpt3_13b")
GLOBAL_BATCH = 256
PURE: tuple[PlanKind, ...] = ("data", "operator", "pipeline")


def best_of(exploration: Exploration, *kinds: PlanKind) -> Candidate | None:
    return next((candidate for candidate in exploration.candidates if candidate.kind in kinds and candidate.fits), None)


def shape(candidate: Candidate) -> str:
    """`4 × (2 × 4)`, or each stage's d × t where they differ; M micro-batches."""
    degrees = [f"{d}×{t}" for d, t in candidate.degrees]
    stages = degrees[0] if len(set(degrees)) == 1 else " ".join(degrees)
    return f"{len(degrees)} stage(s) of {stages}, M = {candidate.plan.micro_batches}"


def reason(exploration: Exploration) -> str:
    """The best plan, and why the best pure plan of another sort loses."""
    best = exploration.best
    rival = best_of(exploration, *PURE) if best.kind == "hybrid" else None
    return f"{shape(best)}" + (f"; {rival.name}: {exploration.reason(rival)}" if rival else "")


def row(model: str, cluster: str, exploration: Exploration, seconds: float) -> tuple[str, ...]:
    pure = [best_of(exploration, kind) for kind in PURE]
    hybrid, best_pure = best_of(exploration, "hybrid"), best_of(exploration, *PURE)
    gain = best_pure.step_s / hybrid.step_s if hybrid and best_pure else None
    steps = [f"{candidate.step_s:.3g}" if candidate else "–" for candidate in (*pure, hybrid)]
    shown_gain = "1.00" if hybrid is None else "only it fits" if gain is None else f"{max(gain, 1.0):.2f}"
    bound = f"{exploration.proven.value:.3g}{'' if exploration.proven.proof == 'relaxation' else ' (exact)'}"
    return model, cluster, *steps, shown_gain, bound, reason(exploration), f"{seconds:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--cluster", action="append", choices=tuple(CLUSTERS))
    parser.add_argument("--budget", type=float, default=ExploreConfig().budget_s)
    parser.add_argument("--schedule", choices=(*SCHEDULES, "length"), default=DEFAULT_SCHEDULE)
    arguments = parser.parse_args()
    schedule = None if arguments.schedule == "length" else arguments.schedule
    table = Table(box=None)
    for heading in ("model", "cluster", *PURE, "hybrid", "gain", "bound", "best plan", "s"):
        table.add_column(heading)
    console, rules = Console(width=240), read_rule_set("shardy")
    for name in arguments.models or MODELS:
        module = trace(workloads.build(name))
        graph = instruction_graph(module)
        for topo in arguments.cluster or CLUSTERS:
            cluster = read_cluster(topo)
            model = profiled_model(module, graph, read_device(CLUSTERS[topo]), cluster, rules, lambda what: None)
            begun = time.perf_counter()
            try:
                result = ExplorePlanner(ExploreConfig(arguments.budget)).solve(
                    PlanningSpace(model, cluster, GLOBAL_BATCH, schedule=schedule)
                )
                result.required_plan()
                exploration = result.facts["exploration"]
            except (BadInput, Infeasible) as nothing:
                table.add_row(name, topo, *["–"] * 6, str(nothing), "")
            else:
                table.add_row(*row(name, topo, exploration, time.perf_counter() - begun))
            console.print(" ".join(str(list(column.cells)[-1]) for column in table.columns), style="dim")
    console.print(table)


if __name__ == "__main__":
    main()
