"""How long the planner over ideals takes, against the authors' program and against the number of ideals.

    OMP_NUM_THREADS=1 python benchmarks/ideals.py [FOLDER]

First, with the folder of published throughput graphs, their values and times (Tarnawski et al., NeurIPS 2020: the
authors' C++ on one core of a machine of this size, which stores every pair of ideals). Then random graphs, blocks of
parallel chains between joints as in Inception, on six accelerators and a CPU: times are exponential; transfers take
0.05 or 1 times as long as compute on average. CPU seconds of a second call, everything from the problem to the plan
included; compilation, once a machine, is a line of its own.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from automap_models.core.contraction import contract
from automap_models.core.placement import PlacementGraph, PlacementProblem
from automap_models.formats.placement_json import read_placement
from automap_models.planners.placement.ideal_lattice import ideal_lattice
from automap_models.planners.placement.ideals import MAX_IDEALS, IdealsPlanner, LinearPlanner

PUBLISHED = {
    "LayerGraphs_bert24_inference": (17.79, 0.01),
    "LayerGraphs_bert24_training": (41.75, 0.01),
    "LayerGraphs_resnet50_inference": (33.77, 0.12),
    "LayerGraphs_resnet50_training": (78.63, 0.14),
    "OperatorGraphs_bert_l-3_inference": (27.92, 0.67),
    "OperatorGraphs_bert_l-3_training": (65.30, 4.0),
}
"""Graph → optimum in ms, CPU seconds of the authors' program."""

SHAPES = ((11, 4, 3), (4, 5, 4), (12, 4, 5), (12, 5, 4), (3, 6, 4), (12, 6, 3))
"""Blocks, chains in each, nodes in each chain."""

FIRST_PLAN = """
import numpy as np, time
from automap_models.core.placement import PlacementProblem, PlacementGraph
from automap_models.planners.registry import make_planner
from benchmarks.ideals import branchy
problem = PlacementProblem.of(branchy(1, 2, 2, 0.05))
begin_s = time.process_time()
make_planner("ideals", kind="placement").solve(problem)
print(time.process_time() - begin_s)
"""


def branchy(blocks: int, chains: int, length: int, transfers: float, seed: int = 0) -> PlacementGraph:
    """Blocks of parallel chains between joints; transfers take so many times as long as compute on average."""
    rng = np.random.default_rng(seed)
    n = 1 + blocks * (chains * length + 1)
    edges = np.array(sorted(_edges(blocks, chains, length)))
    compute_s, transfer_s = rng.exponential(1e-3, n), transfers * rng.exponential(1e-3, n)
    transfer_s[n - 1] = 0.0
    return PlacementGraph(
        ids=tuple(range(n)),
        names=("",) * n,
        accelerator_s=compute_s,
        cpu_s=20.0 * compute_s,
        memory_bytes=np.zeros(n),
        transfer_s=transfer_s,
        output_bytes=transfer_s,
        supported=np.ones(n, dtype=np.bool_),
        backward=np.zeros(n, dtype=np.bool_),
        classes=np.arange(n),
        edges=edges,
        accelerators=6,
        cpus=1,
        accelerator_bytes=0.0,
    )


def _edges(blocks: int, chains: int, length: int) -> Iterator[tuple[int, int]]:
    for first in range(0, blocks * (chains * length + 1), chains * length + 1):
        last = first + chains * length + 1
        for chain in range(first + 1, last, length):
            path = [first, *range(chain, chain + length), last]
            yield from itertools.pairwise(path)


def add_row(table: Table, name: str, problem: PlacementProblem, *more: str) -> None:
    """Plan twice, the second time with the clock running."""
    contraction = contract(problem)
    count = len(ideal_lattice(len(contraction), contraction.order, MAX_IDEALS))
    cells = []
    for planner in (LinearPlanner(), IdealsPlanner()):
        planner.solve(problem)
        begin_s = time.process_time()
        result = planner.solve(problem)
        cells += [f"{result.cost.value_s * 1e3:.4f}", f"{time.process_time() - begin_s:.4f}"]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table.add_row(name, f"{len(problem.graph)}", f"{count:,}", *cells, *more, f"{peak_mb:.0f}")


def columns(title: str, *more: str) -> Table:
    """An empty table."""
    table = Table(title=title)
    for header in ("graph", "nodes", "ideals", "linear, ms", "CPU s", "ideals, ms", "CPU s", *more, "peak MB"):
        table.add_column(header, justify="left" if header == "graph" else "right")
    return table


def compilation_s() -> tuple[float, float]:
    """CPU seconds of the first plan on a machine, and of the first one in a later process."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(__file__).resolve().parents[1]
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-c", FIRST_PLAN]
        first, later = (
            float(subprocess.run(command, env=environment, cwd=root, capture_output=True, check=True).stdout)
            for _ in range(2)
        )
    return first, later


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="published graphs, throughput-inputs_NAME.json")
    folder = parser.parse_args().folder
    console = Console(width=140)
    first, later = compilation_s()
    console.print(f"first plan, compiling: {first:.1f} CPU s; first plan of a later process: {later:.2f} CPU s")
    if folder is not None:
        table = columns("published graphs", "optimum", "authors' CPU s")
        for name, (optimum_ms, authors_s) in PUBLISHED.items():
            problem = PlacementProblem.of(read_placement(folder / f"throughput-inputs_{name}.json"))
            add_row(table, name, problem, f"{optimum_ms:.2f}", f"{authors_s:.2f}")
        console.print(table)
    table = columns("random graphs")
    for shape in SHAPES:
        for transfers in (0.05, 1.0):
            problem = PlacementProblem.of(branchy(*shape, transfers))
            add_row(table, f"{shape[0]} × {shape[1]} × {shape[2]}, {transfers:g}", problem)
    console.print(table)


if __name__ == "__main__":
    main()
