"""How many episodes a second a training plays and learns from, validation and checkpoints included.

    python benchmarks/training_speed.py [--epochs 4] [OVERRIDE ...]

Draws a small data set, trains on it with the shipped configuration (and any Hydra overrides given) and reads the rates
of the later epochs from the run's own log, by the clock and by processor time, of which other work on the machine takes
nothing. The claim: ≥ 500 episodes/s on two cores.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from statistics import median

from common import run_program
from rich.console import Console
from rich.table import Table

CLOCKS = {"the clock": "train/episodes_per_s", "processor time": "train/episodes_per_processor_s"}


def rates(folder: Path, column: str) -> list[float]:
    """Episodes a second of every epoch."""
    with next(folder.glob("csv/*/metrics.csv")).open(newline="") as file:
        rows = [row[column] for row in csv.DictReader(file)]
    return [float(rate) for rate in rows if rate]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "data", Path(folder) / "run"
        run_program("datagen", "dist=mixed", "groups=20000", f"out={data}")
        episodes = arguments.epochs * 128 * 25 * 8
        settings = (
            f"data.path={data}",
            f"out={out}",
            f"episodes={episodes}",
            "data.validation_groups=50",
            "export=false",
        )
        run_program("train", *settings, *arguments.overrides)
        by_clock = {clock: rates(out, column) for clock, column in CLOCKS.items()}
    table = Table("by", "epochs", "episodes/s, median of all but the first", "slowest", "fastest")
    for clock, by_epoch in by_clock.items():
        later = by_epoch[1:] or by_epoch
        table.add_row(clock, str(len(by_epoch)), *(f"{rate:.0f}" for rate in (median(later), min(later), max(later))))
    Console().print(table)


if __name__ == "__main__":
    main()
