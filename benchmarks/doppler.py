"""Placers on the graphs of DOPPLER (ICLR 2026): `python benchmarks/doppler.py CLONE --python PYTHON`.

CLONE is a checkout of github.com/xinyuyao/Doppler and PYTHON an interpreter that has what it imports; nothing of it is
part of the repository. Its simulator has rules of its own, which core.step_devices can say: a device runs what is ready
first, and any number of transfers go at once. Every placement is searched for by our clock with these rules and judged
by DOPPLER's simulator; where two operations become ready at one time the two may choose differently.

    critical path    DOPPLER's heuristic as it ships it: the shortest, and the mean, of its 50 random choices among ties
    fine-tuned       the shipped policy with a minute of processor time
    bound            no placement is shorter in any order: work and paths (cost.makespan)

Times are in 10^10 of the files' units, as DOPPLER prints them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import print_rows, processor_time, refuse, require_commit

from automap_models.core.placement import FloatArray, PlacementGraph, PlacementProblem
from automap_models.core.step_devices import StepDevices
from automap_models.cost.makespan import makespan_bound_s, step_values
from automap_models.cost.step_tables import StepTables
from automap_models.planners.registry import make_planner

COMMIT = "04c66de0aa015bd92ce4a9bb670b19c4fda557d9"
UNIT, DRAWN = 1e10, 20
"""DOPPLER's division; random placements that the clocks are compared on."""
GRAPHS = {
    "chain_mm_112nodes": 4,
    "ffnn_192nodes": 4,
    "transformer_block_215nodes": 4,
    "full_transformer_layer_261nodes": 4,
    "8gpu_transformer_block": 8,
    "8gpu_full_transformer": 8,
}
"""Graph → devices."""
JUDGE = """
import contextlib, io, json, sys
from env.cost import Simulator
from utils import generate_cost_features
path, placements = json.load(sys.stdin)
with contextlib.redirect_stdout(io.StringIO()):
    simulator = Simulator(*generate_cost_features(path))
print(json.dumps([float(simulator.get_cost(placement)) for placement in placements]))
"""
"""What DOPPLER's simulator says of placements."""


@dataclass(frozen=True)
class Clone:
    """DOPPLER's program: where it lies, and what runs it."""

    folder: Path
    python: str

    def run(self, *arguments: str, given: object = None) -> str:
        """What a run of it prints; a run that fails is refused with its last line."""
        command = [self.python, "-W", "ignore", *arguments]
        process = subprocess.run(
            command, cwd=self.folder, input=json.dumps(given), capture_output=True, text=True, check=False
        )
        if process.returncode:
            refuse(f"DOPPLER does not run: {(process.stderr.strip().splitlines() or ['no message'])[-1]}")
        return process.stdout

    def graph(self, name: str) -> Path:
        """The file of a graph."""
        return self.folder / "compute_graph" / f"{name}.txt"

    def values(self, name: str, placements: Sequence[Sequence[int]]) -> FloatArray:
        """Times of placements by DOPPLER's simulator."""
        return np.array(json.loads(self.run("-c", JUDGE, given=[str(self.graph(name)), placements])))

    def critical_path(self, name: str, devices: int) -> FloatArray:
        """Times of DOPPLER's heuristic, judged by its simulator in place of its servers."""
        config = json.loads((self.folder / "config_files/run_critical_path/run_critical_path.json").read_text())
        with tempfile.TemporaryDirectory() as logs:
            rules = {"run_sim_rl": True, "run_real_sys_rl": False, "num_device": devices, "log_path": logs}
            path = Path(logs) / "config.json"
            path.write_text(json.dumps({**config, **rules, "compute_graph_path": str(self.graph(name))}))
            self.run("main.py", "--config_path", str(path))
            (log,) = Path(logs).glob("*/output.txt")
            return np.array(re.findall(r"Running time: ([\d.]+)", log.read_text()), dtype=np.float64)


def read_graph(path: Path) -> PlacementGraph:
    """A graph: count, inputs without a cost, producers, consumers, then compute and transfer of each node."""
    rows = [[int(number) for number in re.findall(r"\d+", line)] for line in path.read_text().splitlines()]
    (total,), inputs, producers, consumers = rows[:4]
    n = total - len(inputs)
    time, moved = np.array(rows[4 : 4 + n], dtype=np.float64).T
    return PlacementGraph(
        ids=tuple(range(n)),
        names=("",) * n,
        accelerator_s=time,
        cpu_s=time,
        memory_bytes=np.zeros(n),
        transfer_s=moved,
        output_bytes=moved,
        supported=np.ones(n, dtype=np.bool_),
        backward=np.zeros(n, dtype=np.bool_),
        classes=np.arange(n),
        edges=np.array(sorted(set(zip(producers, consumers, strict=True))), dtype=np.int64),
        accelerators=0,
        cpus=0,
        accelerator_bytes=0.0,
        meta={"model": path.stem},
    )


def placed(planner: str, problem: PlacementProblem, budget_s: float = float("inf"), **config: Any) -> list[int]:
    """The devices of a planner's placement."""
    result = make_planner(planner, kind="placement", **config).solve(problem, deadline=processor_time(budget_s))
    devices: list[int] = result.required_plan().assignment.tolist()
    return devices


def placements_of(problem: PlacementProblem, seeds: int, tuned_s: float) -> dict[str, list[list[int]]]:
    """Opponent → a placement for each seed."""
    of_opponent = {name: [placed(name, problem)] for name in ("expert", "m-etf")}
    for name in ("metis", "local-search", "learned"):
        of_opponent[name] = [placed(name, problem, seed=seed) for seed in range(seeds)]
    of_opponent["fine-tuned"] = [placed("learned", problem, tuned_s, finetune_s=tuned_s)]
    return of_opponent


OPPONENTS = ("expert", "m-etf", "metis", "local-search", "learned", "fine-tuned")


def rows(clone: Clone, names: Sequence[str], seeds: int, tuned_s: float) -> Iterator[tuple[str, ...]]:
    """Of each graph: by DOPPLER's rules and its simulator, then by ours, with the largest difference of the clocks."""
    for name in names:
        graph, devices = read_graph(clone.graph(name)), GRAPHS[name]
        ours = StepDevices.equal(devices, 0, 0.0, 1.0)
        theirs = PlacementProblem.of_step(graph, replace(ours, order="arrival", turns=False))
        drawn = np.random.default_rng(0).integers(0, devices, (DRAWN, len(graph)))
        values, _ = step_values(StepTables.from_problem(theirs), drawn)
        off = np.abs(values / UNIT / clone.values(name, drawn.tolist()) - 1.0)
        heuristic = clone.critical_path(name, devices)
        for rules, problem in (("DOPPLER", theirs), ("automap", PlacementProblem.of_step(graph, ours))):
            of_opponent, best = placements_of(problem, seeds, tuned_s), dict[str, float]()
            tables = StepTables.from_problem(problem)
            for opponent, placements in of_opponent.items():
                judged = step_values(tables, np.array(placements))[0] / UNIT
                best[opponent] = float((clone.values(name, placements) if rules == "DOPPLER" else judged).mean())
            bound = makespan_bound_s(tables) / UNIT
            beside = f"{heuristic.min():.5g}, {heuristic.mean():.5g}" if rules == "DOPPLER" else "–"
            cells = [f"{best[opponent]:.5g}" for opponent in OPPONENTS]
            gap = f"{100 * (min(best.values()) / bound - 1):.1f} %"
            apart = f"{(off > 1e-6).sum()} of {DRAWN}, {off.max():.2%}"
            yield name, str(len(graph)), str(devices), rules, beside, *cells, f"{bound:.5g}", gap, apart


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--python", default="python3", help="interpreter with DOPPLER's requirements")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tuned", type=float, default=60.0, help="seconds of processor time of fine-tuning")
    arguments = parser.parse_args()
    require_commit(arguments.clone, COMMIT, "DOPPLER's program")
    headings = (
        *("graph", "nodes", "devices", "rules", "critical path", *OPPONENTS),
        *("bound", "best over bound", "clocks differ"),
    )
    clone = Clone(arguments.clone.resolve(), arguments.python)
    print_rows(headings, rows(clone, arguments.graphs, arguments.seeds, arguments.tuned))


if __name__ == "__main__":
    main()
