"""The default planner for latency stopped by the clock: another plan on a busy machine than on an idle one."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from automap_models.core.placement import PlacementGraph, PlacementProblem
from automap_models.planners.base import Deadline
from automap_models.planners.placement import program
from automap_models.planners.registry import make_planner


def layered(nodes: int, seed: int) -> PlacementProblem:
    """A random graph whose nodes each read one or two of the three before them; a device holds a third of it."""
    random = np.random.default_rng(seed)
    edges = {(int(max(i - 1 - random.integers(3), 0)), i) for i in range(1, nodes) for _ in range(2)}
    nbytes = random.uniform(1.0, 2.0, nodes)
    graph = PlacementGraph(
        ids=tuple(range(nodes)),
        names=tuple(map(str, range(nodes))),
        accelerator_s=random.uniform(1.0, 2.0, nodes),
        cpu_s=random.uniform(20.0, 40.0, nodes),
        memory_bytes=nbytes,
        transfer_s=random.uniform(0.1, 0.5, nodes),
        output_bytes=np.ones(nodes),
        supported=np.ones(nodes, dtype=bool),
        backward=np.zeros(nodes, dtype=bool),
        classes=np.arange(nodes),
        edges=np.array(sorted(edges)),
        accelerators=4,
        cpus=1,
        accelerator_bytes=float(nbytes.sum() / 3),
        meta={},
    )
    return PlacementProblem.create(graph, objective="latency")


@pytest.mark.parametrize("planner", ["milp", "local-search"])
def test_no_deadline_means_so_much_work_whatever_the_clock_says(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the second run the clock goes a thousand times as fast: as if the machine did something else all the time."""
    config = {"work_s": 0.3} if planner == "milp" else {}
    problem = layered(18, seed=2)
    first = make_planner(planner, kind="placement", **config).solve(problem)
    began, clock = time.monotonic(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: began + 1000.0 * (clock() - began))
    again = make_planner(planner, kind="placement", **config).solve(problem)
    assert first.plan is not None and again.plan is not None
    assert (first.plan.assignment == again.plan.assignment).all()
    assert (first.status, first.bound) == (again.status, again.bound)


def test_cp_sat_gets_no_time_limit_without_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    mathopt = pytest.importorskip("ortools.math_opt.python.mathopt")
    seen = []

    def solve(*arguments: object, params: object, **options: object) -> object:
        seen.append(params)
        return real(*arguments, params=params, **options)

    real = mathopt.solve
    monkeypatch.setattr(mathopt, "solve", solve)
    small = program.Program()
    small.objective = int(small.add(1, upper=3.0)[0])
    program.solve_program(small, Deadline(), work_s=3.0)
    program.solve_program(small, Deadline(5.0))
    assert [one.time_limit is None for one in seen] == [True, False]
    assert [one.cp_sat.max_deterministic_time for one in seen] == [3.0, math.inf]
