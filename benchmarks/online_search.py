"""Auto-MAP's Table 7 by online training (arXiv 2007.04069, §4.4), beside the paper and the exact search.

    OMP_NUM_THREADS=1 python benchmarks/online_search.py [--seeds 5] [--agent default] [--time-limit S] [--models …]
    OMP_NUM_THREADS=1 python benchmarks/online_search.py --held-out [--graphs FOLDER]

S = nodes, M = 16, T5 with Adafactor (σ = 2); T5-11B with sequences of 128 tokens, since with 512 its activations fit
nowhere. Times are those of the slowest seed's training: processor and wall; the exact search on the same candidates
apart. "first" is how far the look-ahead's plan before any training is above the shortest plan on the candidates;
"above" the same of each seed's plan, "greedy" of the plan that the trained agent makes at the end without exploring,
the median of the seeds; "pruning" how far the shortest plan on the candidates is above that with any device cuts,
after any instruction.

--held-out: other clusters, numbers of stages and profiles than those that the default agent was chosen on; --graphs is
a folder of measured profiles (graph.txt of msr-fiddle/pipedream and AlibabaPAI/DAPPLE).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from common import EXAMPLES, MEASURED_PROFILES, files_of, print_rows, timed
from paper_tables import OUT_OF_MEMORY, STATE_FACTOR, TABLE_7, near, profile_of

from automap_models.core.profile import Profile
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.envs.online.env import final_length_s
from automap_models.envs.online.pivots import Candidates
from automap_models.envs.online.tables import Pivots
from automap_models.errors import Infeasible
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import NEVER, Deadline
from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner, at_instructions, candidate_optimum
from automap_models.planners.online.search import first_plans
from automap_models.planners.staged.relaxation import lower_bound_s
from automap_models.planners.staged.search import anytime_search

MODELS = ("bert48", "t5_base", "t5_3b", "t5_11b", "vgg19")
HELD_OUT = (
    *(("bert48", "dgx-1", 4), ("bert48", "p3dn-4", 5), ("bert48", "dgx-h100-4", 6)),
    *(("t5_base", "p4d-4", 3), ("t5_base", "dgx-a100-4", 6), ("t5_3b", "p3dn-4", 4), ("t5_3b", "p4d-4", 5)),
    *(("vgg19", "p3-4", 4), ("vgg19", "dgx-1", 3)),
)
GRAPHS = (
    *(("alexnet", "B", 3), ("vgg16", "p4d-4", 4), ("resnet50", "C", 4), ("gnmt", "B", 3)),
    *(("bert-24_b6", "p3-4", 5), ("bert-48_b2", "C", 6)),
)
PROVE_S = 60.0
HEADS = (
    *("model", "on", "S", "pivots", "played on", "near", "device cuts", "L", "first", "above", "greedy", "episodes"),
    *("CPU", "wall", "exact", "pruning", "paper"),
)


@dataclass(frozen=True)
class Run:
    """One seed's training and what it took."""

    result: Result[StagedProblem, StagedPlan]
    cpu_s: float
    wall_s: float


def problem_of(model: str, cluster: str, stages: int | None = None, profile: Profile | None = None) -> StagedProblem:
    if profile is None:
        long = model == "t5_11b"
        profile = profile_of(model, 128) if long else read_profile(EXAMPLES / f"{model}_v100.npz")
    where, state_factor = read_cluster(cluster), STATE_FACTOR.get(model, 4.0)
    return at_instructions(StagedProblem(profile, where, stages or where.nodes, state_factor=state_factor))


def lost_by_pruning(problem: StagedProblem, bound_s: float) -> str:
    """How far the best plan on the candidates is above the best with any device cuts."""
    result = anytime_search(problem, Deadline(PROVE_S), bound_s * (1.0 + 1e-9))
    loss = max(100.0 * (bound_s / result.bound_s - 1.0), 0.0)
    return f"{loss:.1f} %" if result.finished else f"≤ {loss:.1f} %"


def runs_of(problem: StagedProblem, arguments: argparse.Namespace) -> Iterator[Run]:
    for seed in range(arguments.seeds):
        planner = OnlinePlanner(OnlineConfig(arguments.agent, seed=seed))
        cpu, wall = time.process_time(), time.perf_counter()
        result = planner.solve(problem, deadline=Deadline(arguments.time_limit) if arguments.time_limit else NEVER)
        result.required_plan()
        yield Run(result, time.process_time() - cpu, time.perf_counter() - wall)


def fits(problem: StagedProblem) -> bool:
    """Whether the relaxation does not rule out that a plan fits."""
    try:
        lower_bound_s(problem, Deadline(0.0))
    except Infeasible:
        return False
    return True


def first_s(candidates: Candidates) -> float:
    """Length of the look-ahead's first plan, which the default agent begins with."""
    pivots = Pivots.from_candidates(candidates, reward_s=1.0)
    return float(final_length_s(pivots, first_plans(pivots)).min())


def published(model: str, cluster: str) -> str:
    if (model, cluster) not in TABLE_7:
        return "–"
    row = TABLE_7[model, cluster]
    return OUT_OF_MEMORY if row is None else f"{row.device_cuts}; {', '.join(row.near)}"


def row(
    model: str, cluster: str, problem: StagedProblem, published_as: str, arguments: argparse.Namespace
) -> list[str]:
    """The cells of a model on a cluster."""
    try:
        runs = list(runs_of(problem, arguments))
    except Infeasible:
        outcome = "none found that fits" if fits(problem) else OUT_OF_MEMORY
        return [model, cluster, str(problem.stages), outcome, *[""] * (len(HEADS) - 5), published_as]
    lengths = [run.result.cost.length_s for run in runs]
    best = runs[lengths.index(min(lengths))].result
    plan, possible = best.required_plan(), best.facts["candidates"]
    optimum, exact_s = timed(
        lambda: candidate_optimum(possible, min(lengths), lower_bound_s(problem), Deadline(PROVE_S))
    )

    def above(length_s: float) -> str:
        return f"{round(100 * (length_s / optimum.value - 1), 2) + 0.0:.2f}"  # no -0.00

    greedy = [run.result.search_log[-1].greedy_s for run in runs]
    lengths_s = [length_s for length_s in greedy if length_s is not None]
    return [
        model,
        cluster,
        str(problem.stages),
        f"{possible.pivots:,}",
        f"{best.facts['pivots']:,}",
        ", ".join(near(problem.profile, cut) for cut in plan.cuts),
        str(plan.device_cuts),
        f"{min(lengths):.4g} s",
        f"{above(first_s(possible))} %",
        f"{', '.join(map(above, lengths))} %" + ("" if optimum.proof == "exact" else " (of a bound)"),
        f"{above(statistics.median(lengths_s))} %" if lengths_s else "–",
        f"{max(run.result.facts['episodes'] for run in runs):,}",
        f"{max(run.cpu_s for run in runs):.1f} s",
        f"{max(run.wall_s for run in runs):.1f} s",
        f"{exact_s:.2f} s",
        lost_by_pruning(problem, optimum.value),
        published_as,
    ]


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, str, StagedProblem, str]]:
    if not arguments.held_out:
        for model, cluster in product(arguments.models, "ABC"):
            yield model, cluster, problem_of(model, cluster), published(model, cluster)
        return
    for model, cluster, stages in HELD_OUT:
        yield model, cluster, problem_of(model, cluster, stages), ""
    if arguments.graphs:
        needed = [f"{name}.txt" for name, _, _ in GRAPHS]
        paths = files_of(arguments.graphs, "--graphs FOLDER", MEASURED_PROFILES, needed)
        for (name, cluster, stages), path in zip(GRAPHS, paths, strict=True):
            yield name, cluster, problem_of(name, cluster, stages, read_profile(path)), ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--agent", default="default")
    parser.add_argument("--time-limit", type=float, default=None)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--graphs", type=Path, default=None)
    arguments = parser.parse_args()
    print_rows(HEADS, (row(*case, arguments) for case in cases(arguments)))


if __name__ == "__main__":
    main()
