"""What each part of the agent is worth, and what the reinforcement learning is: one thing changed at a time.

    python benchmarks/ablations.py [--epochs 1] [--seeds 1] [--only NAME ...] [--plot FILE]

Trains every variant on the same data set with train/run.py and reads the mean, p99 and maximum of L / L* on the same
held-out problems from the runs' own logs, after the last epoch. An epoch is the same for all: 25,600 episodes (or, for
imitation, the exact plans of the 3,200 problems on which the default agent plays eight episodes each) and 300
optimiser steps of 256 states; but for the paper's agent, which takes 400 of 64. The seed decides the weights, the
problems visited and their order. `untrained` has a learning rate of nothing.

Runs stay in `--runs`, so that a killed benchmark goes on where it was. Processor time counts a whole run, held-out
problems after every epoch included, and the search for exact plans where these are not yet there, beside the runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import resource
from pathlib import Path

import numpy as np
from common import ROOT, run_program
from rich.console import Console
from rich.progress import track
from rich.table import Table

STEPS = 25
"""Batches an epoch; each has 1,024 episodes, or 128 exact plans."""

Overrides = tuple[str, ...]
UNTRAINED = ("agent.learner.learning_rate=1e-12", "agent.learner.final_learning_rate=1e-12")
ONE_ACTION = ("agent.learner.branches=1", "data.batch=1024")
FEATURE = ("agent.size.residual=none", "data.min_stages=2")
FLAT = ("agent.network=flat", "agent.size.hidden=512", *FEATURE)
REWARDS = ("agent.agent.log_values=false",)
INVERSE = ("env.reward=inverse_length",)

VARIANTS: dict[str, Overrides] = {
    "look-ahead: untrained": UNTRAINED,
    "look-ahead: ours": (),
    "look-ahead: uniform replay": ("agent.learner.alpha=0",),
    "look-ahead: no dueling heads": ("agent.size.dueling=false",),
    "look-ahead: ideal / L, no logarithm": (*REWARDS, "agent.size.residual=linear"),
    "look-ahead: log 1 / L": INVERSE,
    "look-ahead: 1 / L": (*INVERSE, *REWARDS, "agent.size.residual=linear"),
    "look-ahead: one action a state (no branching)": ONE_ACTION,
    "look-ahead: no branching, no double DQN": (*ONE_ACTION, "agent.agent.double=false"),
    "features: untrained": (*FEATURE, *UNTRAINED),
    "features: ours": FEATURE,
    "features: ideal / L, no logarithm": (*FEATURE, *REWARDS),
    "features: log 1 / L": (*FEATURE, *INVERSE),
    "features: 1 / L": (*FEATURE, *INVERSE, *REWARDS),
    "features: one action a state (no branching)": (*FEATURE, *ONE_ACTION),
    "arrays: untrained": (*FLAT, *UNTRAINED),
    "arrays: ours": FLAT,
    "arrays: the paper's agent, ideal / L": ("agent=paper", "data.min_stages=2", "data.batch=1024"),
    "arrays: the paper's agent, 1 / L": ("agent=paper", "data.min_stages=2", "data.batch=1024", *INVERSE),
}
"""Name → Hydra overrides. What the network knows comes first: the look-ahead's estimate added to its values; the
look-ahead as features like others; nothing but the flattened arrays. Without branching a batch has as many problems as
otherwise episodes."""

METRICS = ("gap_mean", "gap_p99", "gap_max", "out_of_memory")


def curve(out: Path) -> np.ndarray:
    """[epochs, 4] the METRICS after each epoch of a run, gone on with or not."""
    rows = []
    for log in sorted(out.glob("csv/*/metrics.csv"), key=lambda path: int(path.parent.name.rpartition("_")[2])):
        with log.open(newline="") as file:
            rows += [row for row in csv.DictReader(file) if row.get("val/gap_mean")]
    by_epoch = {int(row["epoch"]): [float(row[f"val/{name}"]) for name in METRICS] for row in rows}
    return np.array([by_epoch[epoch] for epoch in sorted(by_epoch)])


def train(name: str, seed: int, epochs: int, runs: Path, common: Overrides) -> tuple[Path, float]:
    """Train a variant unless that was done before: its folder and the minutes of processor time that it took."""
    out = runs / f"{re.sub('[^a-z0-9]+', '-', name.lower())}-{epochs}" / str(seed)
    done = out / "done.json"
    if not done.exists():
        per_step = 128 if "experiment=imitation" in VARIANTS[name] else 1024
        settings = (
            f"out={out}",
            f"seed={seed}",
            f"episodes={epochs * STEPS * per_step}",
            f"data.steps_per_epoch={STEPS}",
        )
        resumed = ("ckpt_path=last",) if (out / "checkpoints" / "last.ckpt").exists() else ()
        plans = (f"imitation.plans={runs / 'exact_plans'}",) if "experiment=imitation" in VARIANTS[name] else ()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_program("train", *VARIANTS[name], *common, *settings, *plans, *resumed)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        done.write_text(json.dumps({"cpu_min": used_s / 60}))
    return out, float(json.loads(done.read_text())["cpu_min"])


def write_plot(path: Path, curves: dict[str, list[np.ndarray]]) -> None:
    """How far held-out plans are from the optimum after each epoch, every seed a line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.subplots()
    for number, (name, seeds) in enumerate(curves.items()):
        for seed, history in enumerate(seeds):
            epochs, label = 1 + np.arange(len(history)), None if seed else name
            if name.endswith("untrained"):
                axes.axhline(100 * (history[-1, 0] - 1), color="grey", linestyle="--", label=label)
            else:
                axes.plot(epochs, 100 * (history[:, 0] - 1), f"C{number}.-", label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epochs of 300 optimiser steps on 256 states: 25,600 episodes, or 3,200 exact plans")
    axes.set_ylabel("mean L / L* − 1 on held-out problems, %")
    axes.set_yscale("log")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train the variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1, help="of 25,600 episodes")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each variant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "mixed", help="made where it is not there")
    parser.add_argument("--groups", type=int, default=120_000)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "ablations")
    parser.add_argument("--plot", type=Path, help="draw the variants' curves")
    arguments = parser.parse_args()
    if not (arguments.data / "manifest.json").exists():
        run_program("datagen", "dist=mixed", f"groups={arguments.groups}", "seed=1", f"out={arguments.data}")
    settings = (f"data.path={arguments.data}", f"data.groups={arguments.groups}", "logger=csv", "export=false")
    common: Overrides = (*settings, f"trainer.threads={arguments.threads}")
    table = Table("variant", "L / L*, mean", "spread", "p99", "max", "out of memory", "CPU minutes")
    progress, curves = Console(stderr=True), {}
    for name in track(arguments.only, "training", console=progress):
        seeds = range(1, arguments.seeds + 1)
        epochs = 1 if name.endswith("untrained") else arguments.epochs
        done = [train(name, seed, epochs, arguments.runs, common) for seed in seeds]
        curves[name] = [curve(out) for out, _ in done]
        last = np.array([history[-1] for history in curves[name]])
        mean, p99, largest, missed = last.mean(0)
        cells = (f"{mean:.4f}", f"{np.ptp(last[:, 0]):.4f}", f"{p99:.3f}", f"{largest:.3f}", f"{100 * missed:.1f} %")
        progress.print(f"{name}: {cells[0]}")
        table.add_row(name, *cells, f"{np.mean([used for _, used in done]):.1f}")
    Console(width=140).print(table)
    if arguments.plot:
        write_plot(arguments.plot, curves)


if __name__ == "__main__":
    main()
