"""How fast plans come: the whole command, one warm plan, and a batch of a thousand.

    python benchmarks/inference_speed.py [--policy FILE] [--profile FILE]

The claims: `automap-infer` as a whole ≤ 1.0 s; warm planning of one problem on cluster C ≤ 10 ms; a batch of 1,000
problems at ≥ 300 plans a second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from automap_models.core.problem import PipelineProblem
from automap_models.core.profile import Profile
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.files import read_profile
from automap_models.planners.base import PlannerOptions
from automap_models.planners.policy import PolicyPlanner

ROOT = Path(__file__).resolve().parents[1]


def seconds(run: Callable[[], object], repeats: int) -> list[float]:
    """Wall time of each of some runs, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def random_profile(rng: np.random.Generator, instructions: int = 3000) -> Profile:
    """A model of uniform random instructions whose communication matters."""
    C = rng.random(instructions) * 1e-4
    return Profile.create(C, A=rng.random(instructions) * 1e7, W=rng.random(instructions) * 1e6)


def command(profile: Path, policy: Path | None) -> None:
    """Run automap-infer once as a process of its own."""
    launcher = Path(sys.executable).with_name("automap-infer")
    more = ["--policy", str(policy)] if policy else []
    subprocess.run([launcher, profile, "--topo", "C", *more], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, default=None, help="policy file (default: the shipped one)")
    parser.add_argument("--profile", type=Path, default=ROOT / "examples" / "bert48_v100.npz")
    parser.add_argument("--batch", type=int, default=1000)
    arguments = parser.parse_args()

    cluster = read_cluster("C")
    profile = read_profile(arguments.profile)
    problem = PipelineProblem(profile, cluster, stages=4)
    rng = np.random.default_rng(1)
    batch = [PipelineProblem(random_profile(rng), cluster, stages=4) for _ in range(arguments.batch)]
    table = Table("what", "median", "worst", "rate")

    times = seconds(lambda: command(arguments.profile, arguments.policy), 10)
    table.add_row("automap-infer, whole command", f"{median(times):.2f} s", f"{max(times):.2f} s", "")
    for beam in (1, PlannerOptions().beam):
        planner = PolicyPlanner(PlannerOptions(beam=beam, policy=arguments.policy))
        times = seconds(lambda planner=planner: planner.plan_batch([problem]), 50)  # type: ignore[misc]
        table.add_row(f"one warm plan, beam {beam}", f"{1e3 * median(times):.1f} ms", f"{1e3 * max(times):.1f} ms", "")
        times = seconds(lambda planner=planner: planner.plan_batch(batch), 2)  # type: ignore[misc]
        rate = f"{len(batch) / median(times):.0f} plans/s"
        table.add_row(f"{len(batch)} plans at once, beam {beam}", f"{median(times):.2f} s", f"{max(times):.2f} s", rate)
    Console().print(table)


if __name__ == "__main__":
    main()
