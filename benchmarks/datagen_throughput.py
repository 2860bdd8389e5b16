"""How many groups a second datagen makes on one core, drawn, coarsened, normalised and written.

    OMP_NUM_THREADS=1 python benchmarks/datagen_throughput.py [--groups 40000]

Both clocks are given: wall time, and the processor time of this process, which other work on the machine does not
touch. The claim is ≥ 20,000 groups/s for `mixed`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import hydra
from rich.console import Console
from rich.table import Table

from automap_models.datagen.command import job_from
from automap_models.datagen.shards import produce
from automap_models.resources import conf_dir

DISTRIBUTIONS = ("uniform", "normal", "binomial", "exponential", "lognormal", "transformer", "cnn", "mixed")


def measure(distribution: str, groups: int) -> tuple[float, float]:
    """Wall and processor seconds for a fresh data set."""
    with tempfile.TemporaryDirectory() as folder, hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        overrides = [f"dist={distribution}", f"groups={groups}", f"out={Path(folder) / 'data'}"]
        job = job_from(hydra.compose("datagen", overrides=overrides))
        wall, processor = time.perf_counter(), time.process_time()
        for _ in produce(job):
            pass
        return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=40_000, help="groups to make of each distribution")
    groups = parser.parse_args().groups
    table = Table("distribution", "groups/s (wall)", "groups/s (processor)", title=f"{groups:,} groups each")
    for distribution in DISTRIBUTIONS:
        wall, processor = measure(distribution, groups)
        table.add_row(distribution, f"{groups / wall:,.0f}", f"{groups / processor:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
