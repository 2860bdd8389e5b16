"""How well counted seconds (planners.effort) agree with seconds of a core, for each kind of work and each problem.

    OMP_NUM_THREADS=1 python benchmarks/counted_effort.py [--profiles FOLDER] [--random 6] [--strategies t5_3b …]

The default planner plans every profile on A, B and C and with S = 8 on eight nodes, and random problems of 8 to 16
stages on 64 to 128 devices, with 3 s to prove each. Strategies of the models of `--strategies` are searched for on the
clusters of strategy_search.py, with 16 s each. What passes between one count and the next is the time of the kind
counted first: what is not counted adds to it. The last columns are the rates that least squares gives here, in µs a
call and ns a unit, beside those counted by.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from common import add_profiles, drawn, profile_files
from large_problems import LARGE
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls
from strategy_search import CASES, strategy_problem

from automap_models.core.cluster import Cluster
from automap_models.errors import Infeasible
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners import effort
from automap_models.planners.options import PlanOptions
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.planning import planned
from automap_models.planners.staged.suffix_bound import compile_loops
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.planner import StrategiesPlanner

EIGHT = Cluster(8, 8, 130e9, 3.125e9, 32e9, "8 × 8")
KINDS = {id(work): name for name, work in vars(effort).items() if isinstance(work, effort.Work)}
"""By object: two kinds of work may have the same rates."""


class Recorder:
    """Counts, and remembers of each count its units and the time until the next one."""

    def __init__(self) -> None:
        self.count = effort.count
        self.calls: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.last: tuple[effort.Work, float, int] | None = None
        self.since_s = 0.0

    def __call__(self, work: effort.Work, units: float = 0.0) -> None:
        """In place of `effort.count`."""
        self.end()
        self.count(work, units)
        self.last, self.since_s = (work, units, threading.get_ident()), time.thread_time()

    def end(self) -> None:
        """Book the time since the last count, unless that was of a thread of the policy's."""
        now_s = time.thread_time()
        if self.last is not None and self.last[2] == threading.get_ident():
            work, units, _ = self.last
            self.calls[KINDS[id(work)]].append((units, now_s - self.since_s))
        self.last = None


def searches(profiles: list[Path], count: int, seed: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is planned, by name."""
    for path in profiles:
        profile = read_profile(path)
        for cluster in map(read_cluster, "ABC"):
            name = f"{path.stem} on {cluster.name}"
            yield name, lambda profile=profile, cluster=cluster: planned(profile, cluster, PlanOptions())  # type: ignore[misc]
        eight = PlanOptions(stages=8)
        yield f"{path.stem} on 8 × 8", lambda profile=profile, eight=eight: planned(profile, EIGHT, eight)  # type: ignore[misc]
    for number, problem in enumerate(drawn(count, seed, *LARGE)[0] if count else ()):
        name = f"random {number}, {problem.stages} stages on {problem.cluster.devices}"
        yield name, lambda problem=problem: AutoPlanner(AutoConfig(certify_s=3.0)).solve(problem)  # type: ignore[misc]


def strategy_searches(names: list[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Searches of strategies by name; the first one's loops are compiled, or read from where they are kept."""
    for number, problem in enumerate(map(strategy_problem, names)):
        if not number:
            StrategiesPlanner(StrategiesConfig(budget_s=1.0)).solve(problem)
        name = f"strategies of {problem.work.shape.name} on {problem.cluster.name}"
        yield name, lambda problem=problem: StrategiesPlanner(StrategiesConfig(budget_s=16.0)).solve(problem)  # type: ignore[misc]


def fitted(units: np.ndarray, taken_s: np.ndarray) -> np.ndarray:
    """Seconds a call and a unit by least squares, none below 0; long calls weigh no more than they last."""
    terms = np.stack((np.ones_like(units), units), axis=1)
    weight = 1.0 / np.sqrt(np.maximum(units / max(float(np.median(units)), 1.0), 0.1))
    rates: np.ndarray = nnls(terms * weight[:, None], taken_s * weight)[0]
    return rates


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_profiles(parser)
    parser.add_argument("--random", type=int, default=6, help="random large problems")
    parser.add_argument("--seed", type=int, default=7, help="of their drawing")
    parser.add_argument("--strategies", choices=CASES, nargs="*", default=[], help="models of strategy_search.py")
    arguments = parser.parse_args()
    compile_loops()
    all_searches = [
        *searches(profile_files(arguments.profiles), arguments.random, arguments.seed),
        *strategy_searches(arguments.strategies),
    ]
    recorder, console = Recorder(), Console(width=120)
    effort.count = recorder
    commands = Table("planned", "processor s", "counted s", "counted / processor")
    for name, search in all_searches:
        before_s, begun_s = effort.counted_s(), time.process_time()
        with suppress(Infeasible):
            search()
        taken_s = time.process_time() - begun_s
        recorder.end()
        counted_s = effort.counted_s() - before_s
        commands.add_row(name, f"{taken_s:.2f}", f"{counted_s:.2f}", f"{counted_s / taken_s:.2f}")
    console.print(commands)
    kinds = Table("work", "calls", "core s", "counted s", "counted / core", "counted by, µs + ns", "here, µs + ns")
    for kind, calls in sorted(recorder.calls.items(), key=lambda item: -sum(taken_s for _, taken_s in item[1])):
        work: effort.Work = getattr(effort, kind)
        units, taken_s = np.array(calls).T
        counted_s = work.call_s * units.size + work.unit_s * units.sum()
        both = (f"{1e6 * call_s:.3g} + {1e9 * unit_s:.3g}" for call_s, unit_s in (work[:2], fitted(units, taken_s)))
        ratio = counted_s / taken_s.sum()
        figures = (f"{units.size:,}", f"{taken_s.sum():.2f}", f"{counted_s:.2f}", f"{ratio:.2f}")
        kinds.add_row(kind, *figures, *both)
    console.print(kinds)


if __name__ == "__main__":
    main()
