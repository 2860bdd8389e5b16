"""Auto-MAP's Table 7 by online training (arXiv 2007.04069, §4.4), beside the paper and the exact search.

    OMP_NUM_THREADS=1 python benchmarks/online_search.py [--seeds 3] [--agent default] [--episodes N] [--models …]

S = nodes, M = 16, T5 with Adafactor (σ = 2); T5-11B with sequences of 128 tokens, since with 512 its activations fit
nowhere. Wall time is that of training, the exact search on the same candidates apart. "above" is how far the plan of
each seed is above the shortest plan on the candidates; "pruning" how far that one is above the shortest with any device
cuts, after any instruction.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from pathlib import Path

from paper_tables import OUT_OF_MEMORY, STATE_FACTOR, TABLE_7, near, profile_of
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from automap_models.core.problem import PipelineProblem
from automap_models.cost.pipeline import plan_cost
from automap_models.errors import Infeasible
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.files import read_profile
from automap_models.planners.deadline import Deadline
from automap_models.planners.online.candidate_optimum import candidate_optimum
from automap_models.planners.online.planner import OnlineOptions, Trained, at_instructions, train_online
from automap_models.planners.pipeline.exact import anytime_search

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MODELS = ("bert48", "t5_base", "t5_3b", "t5_11b", "vgg19")
PROVE_S = 60.0


def problem_of(model: str, cluster: str) -> PipelineProblem:
    long = model == "t5_11b"
    profile = profile_of(model, 128) if long else read_profile(EXAMPLES / f"{model}_v100.npz")
    where = read_cluster(cluster)
    return at_instructions(PipelineProblem(profile, where, where.nodes, state_factor=STATE_FACTOR.get(model, 4.0)))


def lost_by_pruning(problem: PipelineProblem, trained: Trained) -> str:
    """How far the best plan on the candidates is above the best with any device cuts."""
    result = anytime_search(problem, Deadline(PROVE_S), trained.optimum.bound_s * (1.0 + 1e-9))
    loss = 100.0 * (trained.optimum.bound_s / result.bound_s - 1.0)
    return f"{loss:.1f} %" if result.finished else f"≤ {loss:.1f} %"


def row(model: str, cluster: str, arguments: argparse.Namespace) -> tuple[str, ...]:
    problem, published = problem_of(model, cluster), TABLE_7.get((model, cluster))
    paper = ("–",) if (model, cluster) not in TABLE_7 else (OUT_OF_MEMORY if published is None else "",)
    said = paper[0] or f"{published.device_cuts}; {', '.join(published.near)}"  # type: ignore[union-attr]
    runs, walls = [], []
    try:
        for seed in range(arguments.seeds):
            options = OnlineOptions(agent=arguments.agent, episodes=arguments.episodes, seed=seed, prove_s=0.0)
            begun = time.perf_counter()
            runs.append(train_online(problem, options))
            walls.append(time.perf_counter() - begun)
    except Infeasible:
        return model, cluster, OUT_OF_MEMORY, *[""] * 8, said
    lengths = [plan_cost(problem, each.plan).length_s for each in runs]
    first, best = runs[0], runs[lengths.index(min(lengths))]
    begun = time.perf_counter()
    optimum = candidate_optimum(first.candidates, min(lengths), Deadline(PROVE_S))
    exact_s = time.perf_counter() - begun
    above = ", ".join(f"{100 * (length / optimum.bound_s - 1):.2f}" for length in lengths)
    proven = Trained(best.plan, best.candidates, optimum, best.pivots, best.rounds, interrupted=False)
    return (
        model,
        cluster,
        f"{first.candidates.pivots:,}",
        f"{first.pivots:,}",
        ", ".join(near(problem.profile, cut) for cut in best.plan.cuts),
        str(best.plan.device_cuts),
        f"{min(lengths):.4g} s",
        f"{above} %",
        f"{max(walls):.1f} s",
        f"{exact_s:.2f} s",
        lost_by_pruning(problem, proven),
        said,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--agent", default="default")
    parser.add_argument("--episodes", type=int, default=None)
    parser.add_argument("--models", nargs="+", default=MODELS)
    arguments = parser.parse_args()
    heads = (
        "model",
        "on",
        "pivots",
        "played on",
        "near",
        "device cuts",
        "L",
        "above",
        "wall",
        "exact",
        "pruning",
        "paper",
    )
    table = Table(*heads, title=f"Table 7 by online training, agent {arguments.agent}", box=MARKDOWN)
    for model, cluster in product(arguments.models, "ABC"):
        cells = row(model, cluster, arguments)
        print(" | ".join(cells), flush=True)
        table.add_row(*cells)
    Console(width=250).print(table)


if __name__ == "__main__":
    main()
