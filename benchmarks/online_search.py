"""Auto-MAP's Table 7 by online training (arXiv 2007.04069, §4.4), beside the paper and the exact search.

    OMP_NUM_THREADS=1 python benchmarks/online_search.py [--seeds 3] [--agent default] [--models …]

S = nodes, M = 16, T5 with Adafactor (σ = 2); T5-11B with sequences of 128 tokens, since with 512 its activations fit
nowhere. "above" is how far each seed's plan is above the exact optimum on the grid, "greedy" the same of the trained
agent's own plan (median of the seeds), "unlearned" of the plans of the same episodes with a learning rate of next to
nothing. Times are of processor time, the slowest seed's.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from itertools import product

import msgspec
from common import EXAMPLES, print_rows, processor_time, timed
from paper_tables import OUT_OF_MEMORY, STATE_FACTOR, TABLE_7, near, profile_of

from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner
from automap_models.planners.staged.search import ExactPlanner

Outcome = Result[StagedProblem, StagedPlan]
MODELS = ("bert48", "t5_base", "t5_3b", "t5_11b", "vgg19")
PROVE_S = 60.0
UNLEARNED = 1e-30
HEADS = ("model", "on", "near", "device cuts", "paper", "L", "above", "greedy", "unlearned", "episodes", "CPU", "exact")


def problem_of(model: str, cluster: str) -> StagedProblem:
    long = model == "t5_11b"
    profile = profile_of(model, 128) if long else read_profile(EXAMPLES / f"{model}_v100.npz")
    where = read_cluster(cluster)
    return StagedProblem(profile, where, where.nodes, state_factor=STATE_FACTOR.get(model, 4.0))


def trained(problem: StagedProblem, agent: str, seed: int, *, learns: bool = True) -> tuple[Outcome, float]:
    """What a seed comes to, and the processor time that it took."""
    planner = OnlinePlanner(OnlineConfig(agent, seed=seed))
    if not learns:
        learner = msgspec.structs.replace(planner.agent.learner, learning_rate=UNLEARNED)
        planner.agent = msgspec.structs.replace(planner.agent, learner=learner)
    return timed(lambda: planner.solve(problem))


def length_s(result: Outcome) -> float:
    """Of its plan; infinite where none that fits was come upon."""
    return math.inf if result.plan is None else result.cost.length_s


def published(model: str, cluster: str) -> str:
    if (model, cluster) not in TABLE_7:
        return "–"
    row = TABLE_7[model, cluster]
    return OUT_OF_MEMORY if row is None else f"{row.device_cuts}; {', '.join(row.near)}"


def row(model: str, cluster: str, arguments: argparse.Namespace) -> Iterator[str]:
    problem = problem_of(model, cluster)
    yield from (model, cluster)
    exact, exact_s = timed(lambda: ExactPlanner().solve(problem, deadline=processor_time(PROVE_S)))
    if exact.plan is None:
        yield from (OUT_OF_MEMORY, "", published(model, cluster), *("",) * 7)
        return
    best_s = exact.cost.length_s

    def above(taken_s: float) -> str:
        if math.isinf(taken_s):
            return "none"
        return f"{round(100 * (taken_s / best_s - 1), 2) + 0.0:.2f}"  # no -0.00

    runs = [trained(problem, arguments.agent, seed) for seed in range(arguments.seeds)]
    results = [result for result, _ in runs]
    shortest = min(results, key=length_s)
    plan = shortest.required_plan()
    yield ", ".join(near(problem.profile, cut) for cut in plan.cuts)
    yield f"{plan.device_cuts}"
    yield published(model, cluster)
    yield f"{shortest.cost.length_s:.4g} s"
    yield ", ".join(above(length_s(result)) for result in results) + " %"
    yield above(statistics.median(result.search_log[-1].greedy_s for result in results)) + " %"
    others = [trained(problem, arguments.agent, seed, learns=False)[0] for seed in range(arguments.seeds)]
    yield ", ".join(above(length_s(result)) for result in others) + " %"
    yield f"{results[0].facts['episodes']:,}"
    yield f"{max(cpu for _, cpu in runs):.1f} s"
    yield f"{exact_s:.2f} s" + ("" if exact.status == "optimal" else " (stopped)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--agent", default="default")
    parser.add_argument("--models", nargs="+", default=MODELS)
    arguments = parser.parse_args()
    cases = product(arguments.models, "ABC")
    print_rows(HEADS, (list(row(model, cluster, arguments)) for model, cluster in cases))


if __name__ == "__main__":
    main()
