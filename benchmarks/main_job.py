"""The main job as a new user does it: `automap infer PROFILE --topo CLUSTER`, no other option.

    OMP_NUM_THREADS=1 python benchmarks/main_job.py [--profiles FOLDER] [--certificates]

For each example profile, and each graph.txt in FOLDER, on A, B, C, p4d-4 and dgx-h100-4 the whole command runs as a
process of its own. A row has its processor time, the recommended plan and its step, what data parallelism takes at its
best, the gap of the certificate, the stages without work (a quarter of an even share of the computation or of the
parameters, and a trainable parameter: cost-model.md), and replicas without a sample. With --certificates `--stages S`
runs, too, for every S up to the nodes of A, B and C: how many gaps are at most 2 %.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import CLUSTERS, add_profiles, print_rows, profile_files, run_command

from automap_models.core.constraints import stages_without_work
from automap_models.core.schedules import DEFAULT_MIN_STAGE
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster

NEAR = 0.02
HEADINGS = (
    *("profile", "cluster", "S × M", "step", "data parallel, at its best"),
    *("gap", "idle stages", "idle replicas", "cpu"),
)


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

    @property
    def gap(self) -> float:
        """Of the certificate."""
        return float(self.plan["optimality"]["gap"])


def infer(profile: Path, topo: str, *options: str) -> Run:
    """Run the command."""
    cpu_s, code, printed = run_command("infer", str(profile), "--topo", topo, "--json", *options)
    return Run(cpu_s, code, json.loads(printed) if code == 0 else {})


def idle_parts(run: Run, profile: Path) -> tuple[int, int]:
    """Stages of a plan without work, and replicas without a sample."""
    idle_stages = len(stages_without_work(read_profile(profile), run.plan["cuts"], DEFAULT_MIN_STAGE))
    samples = run.plan["microbatch_size"]
    replicas = [stage["replicas"] for stage in run.plan["stages"]]
    return idle_stages, 0 if samples is None else sum(max(0, count - samples) for count in replicas)


def cells(profile: Path, topo: str, run: Run) -> tuple[str, ...]:
    """The row of a command."""
    if not run.plan:
        return (profile.stem, topo, f"exit {run.code}", "", "", "", "", "", f"{run.cpu_s:.2f} s")
    plan, data_s = run.plan, run.plan["baselines"]["data_parallel_s"]
    return (
        *(profile.stem, topo, f"{len(plan['stages'])} × {plan['micro_batches']}, {plan['schedule']}"),
        *(f"{plan['step_s']:.4g} s", "does not fit" if data_s is None else f"{data_s:.4g} s"),
        *(f"{100 * run.gap:.1f} %", *map(str, idle_parts(run, profile)), f"{run.cpu_s:.2f} s"),
    )


def certificates(profiles: list[Path]) -> Iterator[float]:
    """The gaps of `--stages S` for every S up to the nodes of A, B and C; of those that fit."""
    for profile, topo in product(profiles, "ABC"):
        for stages in range(1, read_cluster(topo).nodes + 1):
            run = infer(profile, topo, "--stages", str(stages))
            if run.plan:
                yield run.gap


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_profiles(parser)
    parser.add_argument("--certificates", action="store_true", help="also run every --stages S up to the nodes")
    arguments = parser.parse_args()
    profiles = profile_files(arguments.profiles)
    infer(profiles[0], "C")  # whatever is not compiled yet
    runs: list[Run] = []

    def rows() -> Iterator[tuple[str, ...]]:
        for profile, topo in product(profiles, CLUSTERS):
            runs.append(infer(profile, topo))
            yield cells(profile, topo, runs[-1])

    printed = print_rows(HEADINGS, rows())
    taken_s, gaps = np.array([run.cpu_s for run in runs]), np.array([run.gap for run in runs if run.plan])
    idle = sum(row[6:8] not in (("0", "0"), ("", "")) for row in printed)
    times = f"mean {taken_s.mean():.2f} s, median {np.median(taken_s):.2f} s, worst {taken_s.max():.2f} s"
    print(f"\nprocessor time: {times}")
    print(f"gaps: {np.sum(gaps <= NEAR)} of {gaps.size} within 2 %, median {100 * np.median(gaps):.1f} %")
    print(f"plans with a stage without work or a replica without a sample: {idle} of {gaps.size}")
    if arguments.certificates:
        proven = np.array([*certificates(profiles)])
        print(f"certificates of --stages S up to the nodes: {np.mean(proven <= NEAR):.0%} of {proven.size} within 2 %")


if __name__ == "__main__":
    main()
