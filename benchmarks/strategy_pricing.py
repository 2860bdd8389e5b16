"""How long the price of a strategy takes once its model is read.

    OMP_NUM_THREADS=1 python benchmarks/strategy_pricing.py [--repeats 20]

The model is GPT-3 6.7B with the number of layers that the strategy divides, on as many nodes of eight devices as it
needs. The first price of a strategy lays out its schedule, which later ones of the same ranks, micro-batches and
virtual stages share, whatever else they are. Processor time of this process, after the loops over schedules were
compiled or read; the claim is ≤ 10 ms.

Then all strategies of a grid are priced in turn, of several models on 128 devices: their mean has the first prices in
it.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device, StepConstants
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.simulate.rounds import compile_loops
from automap_models.simulate.strategy import StrategyPricing, strategy_estimate
from automap_models.workloads.measured import with_layers
from automap_models.workloads.source import read_model_work

CONSTANTS = StepConstants(0.7, 60.0, 0.3, 0.65, 6e-6, 0.55, 0.4, 0.3)
"""Of a device without its own; what a price takes does not depend on them."""
STRATEGIES = (
    (32, {"dp": 8, "global_batch": 64, "zero": 3}),
    (32, {"tp": 8, "global_batch": 64, "sequence_parallel": True}),
    (96, {"tp": 8, "pp": 8, "vp": 3, "global_batch": 64, "schedule": "interleaved"}),
    (128, {"tp": 8, "pp": 16, "dp": 12, "global_batch": 1536, "recompute": "full"}),
    (105, {"tp": 8, "pp": 35, "vp": 3, "global_batch": 280, "schedule": "interleaved"}),
    (128, {"tp": 8, "pp": 64, "global_batch": 512}),
    (128, {"tp": 8, "pp": 16, "global_batch": 256, "schedule": "zb-h1"}),
    (128, {"tp": 8, "pp": 16, "vp": 2, "global_batch": 128, "schedule": "zb-v"}),
    (126, {"tp": 8, "pp": 9, "dp": 8, "vp": 7, "global_batch": 1152, "schedule": "interleaved"}),
    (48, {"tp": 8, "pp": 24, "vp": 2, "global_batch": 192, "schedule": "zb-v"}),
    (128, {"tp": 8, "pp": 16, "vp": 8, "global_batch": 512, "schedule": "interleaved"}),
    (128, {"tp": 8, "pp": 64, "vp": 2, "global_batch": 512, "schedule": "dualpipev"}),
    (128, {"tp": 8, "pp": 64, "vp": 2, "global_batch": 512, "schedule": "zb-v"}),
)
"""Layers, and fields of the strategy."""


GRID = {
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4, 8, 16),
    "vp": (1, 2),
    "micro_batch": (1, 2, 4),
    "schedule": ("1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipev"),
    "recompute": ("none", "full"),
    "zero": (0, 1, 3),
}
"""Values of the fields of the grid's strategies; those that a model or a schedule refuses are left out."""
GRID_DEVICES, GRID_BATCH = 128, 512
MODELS = (("llama3-8b", 8192), ("llama3-70b", 8192), ("gpt3-175b", 2048), ("mixtral-8x7b", 8192))
"""Models of the grid, with their tokens a sample."""


def grid_seconds(model: str, sequence: int, device: Device) -> list[float]:
    """Processor time of the price of each strategy of the grid."""
    cluster = Cluster(GRID_DEVICES // 8, 8, 300e9, 200e9, 80e9)
    pricing = StrategyPricing(read_model_work(model, sequence=sequence, dtype="bfloat16"), cluster, device)
    taken_s = []
    for values in product(*GRID.values()):
        fields: dict[str, Any] = dict(zip(GRID, values, strict=True))
        try:
            dp = GRID_DEVICES // (fields["tp"] * fields["pp"])
            strategy = Strategy(dp=dp, global_batch=GRID_BATCH, **fields)
            begun = time.process_time()
            pricing.estimate(strategy)
        except BadInput:
            continue
        taken_s.append(time.process_time() - begun)
    return taken_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20, help="prices of each strategy, of which the median counts")
    repeats = parser.parse_args().repeats
    device = read_device("a100")
    device = device if device.step else replace(device, step=CONSTANTS)
    model = read_model_work("gpt3_7b", sequence=2048, dtype="bfloat16")
    compile_loops()
    table = Table("strategy", "passes", "first, ms", "later, ms", title="Price of a strategy")
    for layers, fields in STRATEGIES:
        strategy = Strategy(micro_batch=1, **fields)
        work = with_layers(model, replace(model.shape, layers=layers))
        cluster = Cluster(strategy.devices // 8, 8, 300e9, 200e9, 80e9)
        taken_s = []
        for _ in range(1 + repeats):
            begun = time.process_time()
            strategy_estimate(work, strategy, cluster, device)
            taken_s.append(time.process_time() - begun)
        passes = 2 * strategy.stages * strategy.micro_batches
        words = " ".join(f"{name}={value}" for name, value in fields.items())
        table.add_row(words, f"{passes:,}", f"{1e3 * taken_s[0]:.1f}", f"{1e3 * median(taken_s[1:]):.1f}")
    screen = Console(width=140)
    screen.print(table)
    table = Table("model", "strategies", "mean, ms", "median, ms", "p99, ms", "longest, ms", title="All of a grid")
    for name, sequence in MODELS:
        taken = 1e3 * np.array(grid_seconds(name, sequence, device))
        cells = (taken.mean(), *np.percentile(taken, [50, 99]), taken.max())
        table.add_row(name, f"{taken.size:,}", *(f"{cell:.1f}" for cell in cells))
    screen.print(table)


if __name__ == "__main__":
    main()
