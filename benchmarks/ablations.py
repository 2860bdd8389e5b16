"""What each part of the agent is worth: the same number of episodes with one thing changed at a time.

    python benchmarks/ablations.py [--episodes 51200] [--seeds 1] [--threads 1] [--only NAME ...]

Trains every variant on the same data set with train/run.py and reads the mean, p99 and maximum of L / L* on the same
held-out problems from the runs' own logs, after the last epoch. `untrained` is what greedy decisions on the
cost-to-go tables alone give (the weights at the start add less than a thousandth): what is below it was learned.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]

VARIANTS: dict[str, tuple[str, ...]] = {
    "untrained": ("agent.learner.learning_rate=1e-12", "agent.learner.final_learning_rate=1e-12"),
    "ours": (),
    "uniform replay": ("agent.learner.alpha=0",),
    "no dueling heads": ("agent.size.dueling=false",),
    "rewards instead of logarithms": ("agent.agent.log_values=false", "agent.size.residual=linear"),
    "one action a state (no branching)": ("agent.learner.branches=1", "data.batch=1024"),
    "no branching, no double DQN": ("agent.learner.branches=1", "data.batch=1024", "agent.agent.double=false"),
    "estimate as a feature only": ("agent.size.residual=none", "data.min_stages=2"),
    "the paper's agent, flat arrays": ("agent=paper", "data.min_stages=2", "data.batch=1024"),
}
"""Name → Hydra overrides; without branching a batch has as many problems as otherwise episodes."""


def run(program: str, *overrides: str) -> None:
    """Run one of the repository's programs."""
    subprocess.run([sys.executable, ROOT / program / "run.py", *overrides], check=True, stdout=subprocess.DEVNULL)


def result(folder: Path) -> tuple[float, float, float, float]:
    """Mean, p99 and maximum of L / L* and the share of plans out of memory, after the last epoch."""
    with next(folder.glob("csv/*/metrics.csv")).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("val/gap_mean")]
    last = rows[-1]
    names = ("gap_mean", "gap_p99", "gap_max", "out_of_memory")
    mean, p99, largest, missed = (float(last[f"val/{name}"]) for name in names)
    return mean, p99, largest, missed


def main() -> None:
    """Train the variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=51200)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each variant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    arguments = parser.parse_args()
    table = Table("variant", "L / L*, mean", "spread", "p99", "max", "out of memory", "minutes")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        run("datagen", "dist=mixed", "groups=120000", "seed=1", f"out={data}")
        progress = Console(stderr=True)
        for name in track(arguments.only, "training", console=progress):
            found, start = [], time.perf_counter()
            for seed in range(1, arguments.seeds + 1):
                out = Path(folder) / "runs" / str(list(VARIANTS).index(name)) / str(seed)
                settings = (f"data.path={data}", f"out={out}", f"seed={seed}", f"episodes={arguments.episodes}")
                more = ("export=false", f"trainer.threads={arguments.threads}")
                variant = VARIANTS[name]
                agent_first = sorted(variant, key=lambda override: override != "agent=paper")
                run("train", *agent_first, *settings, *more)
                found.append(result(out))
            mean, p99, largest, missed = np.mean(found, 0)
            spread = np.ptp([each[0] for each in found])
            cells = (f"{mean:.4f}", f"{spread:.4f}", f"{p99:.3f}", f"{largest:.3f}", f"{100 * missed:.1f} %")
            progress.print(f"{name}: {cells[0]}")
            table.add_row(name, *cells, f"{(time.perf_counter() - start) / 60 / arguments.seeds:.1f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
