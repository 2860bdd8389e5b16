"""What the learning agent buys for sharding plans: against the proven optimum and greedy decisions.

    OMP_NUM_THREADS=1 python benchmarks/sharding_agent.py [MODEL …] [--seeds N]

For models, from a fresh process each: the variables that each search partitions under a rule set, and from the model's
name to the agent's plan with its proof, imports, tracing and learning included. The claims: the agent's plan is the
proven optimum; VGG-19 ≤ 5 s, T5-base ≤ 15 s, T5-3B, T5-11B and BERT-48 ≤ 30 s. Then drawn problems, on which greedy
decisions are often wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from sharding_tables import one_axis, problem_of, traced

from automap_models.core.mesh import PlanKind
from automap_models.core.sharding import ShardingProblem

ROWS: tuple[tuple[str, PlanKind, int, str, str], ...] = (
    ("vgg19", "operator", 8, "paper", "≤ 5 s"),
    ("vgg19", "operator", 8, "shardy", ""),
    ("vgg19", "data", 8, "paper", "≤ 5 s"),
    ("t5_base", "operator", 4, "paper", "≤ 15 s"),
    ("t5_base", "data", 8, "paper", "≤ 15 s"),
    ("t5_3b", "operator", 32, "paper", "≤ 30 s"),
    ("t5_11b", "operator", 32, "paper", "≤ 30 s"),
    ("bert48", "operator", 16, "paper", "≤ 30 s"),
)
DRAWN = ((20, 0.2), (40, 0.1), (80, 0.05))
"""Classes and density of the conflicts of drawn problems."""
SEARCHES = ("agent", "agent, no groups", "greedy", "greedy, no groups")


class Ended(NamedTuple):
    """What a search came to; `first` is the round's last episode in which it found its best plan."""

    partitioned: int
    episodes: int = 1
    first: int = 1
    seconds: float = 0.0
    learned: int = 0


@dataclass(frozen=True)
class Row:
    """One line: the proven optimum and how long that takes, and every search of every seed."""

    bound: int
    proof_s: float
    plan_s: float
    cpu_s: float
    searches: tuple[dict[str, Ended], ...]


def compared(problem: ShardingProblem, seed: int) -> dict[str, Ended]:
    """Every search on one problem."""
    kinds = {"": True, ", no groups": False}
    agents = {f"agent{kind}": searched(problem, seed, linkage_groups=groups) for kind, groups in kinds.items()}
    return agents | {f"greedy{kind}": greedy(problem, linkage_groups=groups) for kind, groups in kinds.items()}


def searched(problem: ShardingProblem, seed: int, *, linkage_groups: bool) -> Ended:
    """What the agent comes to."""
    from automap_models.planners.agent_yaml import read_search_agent
    from automap_models.planners.sharding.search import AgentSearch

    config = read_search_agent("paper")
    config.of_kind(problem.mesh[0].kind).linkage_groups = linkage_groups
    begun = time.process_time()
    search = AgentSearch(problem, config, seed)
    search.run()
    spent = time.process_time() - begun
    first = next(played.episodes for played in search.rounds if played.best == search.best.partitioned)
    learned = [played.greedy for played in search.rounds if played.greedy is not None] or [0]
    return Ended(int(search.best.partitioned), search.episodes, first, spent, learned[-1])


def greedy(problem: ShardingProblem, *, linkage_groups: bool) -> Ended:
    """What shards every dimension unless that conflicts."""
    from automap_models.envs.sharding.propagation import Propagation

    (along,) = problem.along
    return Ended(int(along.weights[Propagation(along).greedy(linkage_groups=linkage_groups)].sum()))


def proven(problem: ShardingProblem) -> int:
    """The proven optimum."""
    from automap_models.planners.sharding.milp import ShardingMilpPlanner

    bound = ShardingMilpPlanner().solve(problem).bound
    assert bound is not None and bound.proof == "exact"
    return round(bound.value)


def measured(model: str, kind: PlanKind, devices: int, rules: str, seeds: int) -> Row:
    begun = time.perf_counter()
    from automap_models.planners.registry import make_planner

    problem = problem_of(traced(model), model, kind, devices, rules)
    make_planner("agent", kind="sharding").plan(problem)
    plan_s, cpu_s = time.perf_counter() - begun, time.process_time()
    proving = time.process_time()
    bound = proven(problem)
    proof_s = time.process_time() - proving
    return Row(bound, proof_s, plan_s, cpu_s, tuple(compared(problem, seed) for seed in range(seeds)))


def drawn(seed: int, classes: int, density: float) -> ShardingProblem:
    """Classes of one to eight parameters, any two in conflict with a given probability."""
    from automap_models.core.cluster import Cluster
    from automap_models.core.sharding_classes import ShardingClasses, Variable

    random = np.random.default_rng(seed)
    class_of = np.repeat(np.arange(classes), random.integers(1, 9, classes))
    pairs = [pair for pair in combinations(range(classes), 2) if random.random() < density]
    variables = tuple(Variable(f"p{i}", (4,), "f32", 16.0, "parameter") for i in range(class_of.size))
    conflicts = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    drawn_classes = ShardingClasses(variables, class_of, np.full(classes, 4), conflicts)
    return ShardingProblem(f"drawn {seed}", drawn_classes, Cluster(1, 8, 1e9, 1e9, 1e9), one_axis("operator", 4))


def measured_drawn(classes: int, density: float, number: int) -> list[tuple[int, dict[str, Ended]]]:
    """Proven optima of drawn problems and what every search came to."""
    problems = [drawn(seed, classes, density) for seed in range(number)]
    return [(proven(problem), compared(problem, seed)) for seed, problem in enumerate(problems)]


def spread(values: Sequence[float], form: str = "{:g}") -> str:
    """`5` or `3–5`."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low}–{high}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = dict.fromkeys([*(case[0] for case in ROWS), "drawn"])
    options.add_argument("models", metavar="MODEL", nargs="*", help="only these; `drawn` is problems")
    options.add_argument("--seeds", type=int, default=3, help="searches of each model (default 3)")
    options.add_argument("--drawn", type=int, default=10, help="drawn problems of each size (default 10)")
    given = options.parse_args()
    if unknown := [name for name in given.models if name not in names]:
        options.error(f"{unknown[0]} is none of {', '.join(names)}")
    from common import print_rows  # not in the rows' processes, whose imports count

    models = [case for case in ROWS if not given.models or case[0] in given.models]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = [(case, pool.apply(measured, (*case[:4], given.seeds))) for case in models]
        if rows:
            print_rows(("model", "kind", "D", "rules", "optimum", *SEARCHES), (quality(*row) for row in rows))
            print_rows(OF_TIMES, (times(*row) for row in rows))
        if not given.models or "drawn" in given.models:
            drawn_rows = (drawn_row(*size, pool.apply(measured_drawn, (*size, given.drawn))) for size in DRAWN)
            print_rows(("classes", "density", *SEARCHES), drawn_rows)


OF_TIMES = (
    *("model", "kind", "D", "rules", "plan", "processor", "claim", "agent", "proof"),
    *("episodes", "best after", "greedy policy at the end"),
)


def quality(case: Sequence[object], row: Row) -> tuple[str, ...]:
    """Variables that each search partitions."""
    reached = (spread([searches[name].partitioned for searches in row.searches]) for name in SEARCHES)
    return (*map(str, case[:4]), str(row.bound), *reached)


def times(case: Sequence[object], row: Row) -> tuple[str, ...]:
    """How long the agent took, and after how many episodes."""
    agent = [searches["agent"] for searches in row.searches]
    return (
        *(*map(str, case[:4]), f"{row.plan_s:.1f} s", f"{row.cpu_s:.1f} s", str(case[4])),
        *(spread([ended.seconds for ended in agent], "{:.1f}") + " s", f"{1e3 * row.proof_s:.0f} ms"),
        *(spread([ended.episodes for ended in agent]), spread([ended.first for ended in agent])),
        spread([ended.learned for ended in agent]),
    )


def drawn_row(classes: int, density: float, problems: Sequence[tuple[int, dict[str, Ended]]]) -> tuple[str, ...]:
    """Mean share of the optimum, and how often it was reached."""
    cells = []
    for name in SEARCHES:
        shares = [searches[name].partitioned / bound for bound, searches in problems]
        cells.append(f"{np.mean(shares):.3f}, {sum(share == 1 for share in shares)} of {len(shares)}")
    return (str(classes), f"{density:g}", *cells)


if __name__ == "__main__":
    main()
