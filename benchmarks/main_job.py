"""The main job as a new user does it: `automap-infer PROFILE --topo CLUSTER`, no other option.

    OMP_NUM_THREADS=1 python benchmarks/main_job.py [--shared FOLDER] [--cold]

For each example profile, and each graph.txt in FOLDER, on A, B, C, p4d-4 and dgx-h100-4 the whole command runs as a
process of its own. A row has its processor time, the recommended plan and its step, what data parallelism takes at its
best, the gap of the certificate, the stages without work (a quarter of an even share of the computation or of the
parameters, and a trainable parameter: cost-model.md), and replicas without a sample. With --cold the first command runs
with an empty cache of compiled functions, too. After the rows stand

    the certificate of `--stages S`, for every S up to the nodes of A, B and C: how many gaps are at most 2 %
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import EXAMPLES
from rich.console import Console
from rich.table import Table

from automap_models.core.constraints import stages_without_work
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster

CLUSTERS = ("A", "B", "C", "p4d-4", "dgx-h100-4")
MIN_STAGE = 0.25
NEAR = 0.02


@dataclass(frozen=True)
class Run:
    """One command.

    Attributes:
        cpu_s: its processor time.
        code: its exit code.
        plan: plan.json; empty where no plan fits.
    """

    cpu_s: float
    code: int
    plan: dict[str, Any]


def infer(profile: Path, topo: str, *options: str, cache: str | None = None) -> Run:
    """Run the command, with numba's own cache of compiled functions or another one."""
    environment = {**os.environ, **({} if cache is None else {"NUMBA_CACHE_DIR": cache})}
    command = [sys.executable, "-c", "import sys; from automap_models.infer.app import infer; sys.exit(infer())"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, str(profile), "--topo", topo, "--json", *options],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(cpu_s, done.returncode, json.loads(done.stdout) if done.returncode == 0 else {})


def idle_parts(run: Run, profile: Path) -> tuple[int, int]:
    """Stages of a plan without work, and replicas without a sample."""
    read = read_profile(profile)
    idle_stages = len(stages_without_work(read, run.plan["cuts"], MIN_STAGE))
    samples = run.plan["microbatch_size"]
    replicas = [stage["replicas"] for stage in run.plan["stages"]]
    return idle_stages, 0 if samples is None else sum(max(0, count - samples) for count in replicas)


def rows(profiles: list[Path]) -> Iterator[tuple[str, str, Run, tuple[int, int]]]:
    """Every profile on every cluster."""
    for profile in profiles:
        for topo in CLUSTERS:
            run = infer(profile, topo)
            yield profile.stem, topo, run, idle_parts(run, profile) if run.plan else (0, 0)


def table_of(results: list[tuple[str, str, Run, tuple[int, int]]]) -> Table:
    """A row a command."""
    table = Table("profile", "cluster", "S × M", "step", "data parallel", "gap", "idle stages", "idle replicas", "cpu")
    for name, topo, run, (stages, replicas) in results:
        plan = run.plan
        if not plan:
            table.add_row(name, topo, f"exit {run.code}", "", "", "", "", "", f"{run.cpu_s:.2f} s")
            continue
        data_s = plan["baselines"]["data_parallel_s"]
        table.add_row(
            name,
            topo,
            f"{len(plan['stages'])} × {plan['micro_batches']}, {plan['schedule']}",
            f"{plan['step_s']:.4g} s",
            "does not fit" if data_s is None else f"{data_s:.4g} s",
            f"{100 * plan['optimality']['gap']:.1f} %",
            str(stages),
            str(replicas),
            f"{run.cpu_s:.2f} s",
        )
    return table


def certificates(profiles: list[Path]) -> list[float]:
    """The gaps of `--stages S` for every S up to the nodes of A, B and C; of those that fit."""
    gaps = []
    for profile in profiles:
        for topo in ("A", "B", "C"):
            for stages in range(1, read_cluster(topo).nodes + 1):
                run = infer(profile, topo, "--stages", str(stages))
                if run.plan:
                    gaps.append(run.plan["optimality"]["gap"])
    return gaps


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, help="folder of graph.txt profiles")
    parser.add_argument("--cold", action="store_true", help="also run the first command with an empty cache")
    parser.add_argument("--certificates", action="store_true", help="also run every --stages S up to the nodes")
    arguments = parser.parse_args()
    console = Console(width=140)
    profiles = [*sorted(EXAMPLES.glob("*.npz")), *sorted(arguments.shared.glob("*.txt") if arguments.shared else [])]
    if arguments.cold:
        with tempfile.TemporaryDirectory() as folder:
            console.print(f"cold cache: {infer(profiles[0], 'C', cache=folder).cpu_s:.1f} s of processor time")
    infer(profiles[0], "C")  # whatever is not compiled yet
    results = list(rows(profiles))
    console.print(table_of(results))
    taken = np.array([run.cpu_s for _, _, run, _ in results])
    idle = sum(stages + replicas > 0 for *_, (stages, replicas) in results)
    console.print(
        f"processor time: mean {taken.mean():.2f} s, median {np.median(taken):.2f} s, worst {taken.max():.2f} s"
    )
    console.print(f"plans with a stage without work or a replica without a sample: {idle} of {len(results)}")
    if arguments.certificates:
        gaps = np.array(certificates(profiles))
        console.print(
            f"certificates of --stages S up to the nodes: {np.mean(gaps <= NEAR):.0%} of {gaps.size} within 2 %"
        )


if __name__ == "__main__":
    main()
