"""How long the price of a strategy takes once its model is read.

    OMP_NUM_THREADS=1 python benchmarks/strategy_pricing.py [--repeats 20]

The model is GPT-3 6.7B with the number of layers that the strategy divides, on as many nodes of eight devices as it
needs. The first price of a strategy lays out its schedule, which later ones of the same ranks, micro-batches and
virtual stages share, whatever else they are. Processor time of this process; the claim is ≤ 10 ms.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from statistics import median

from rich.console import Console
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.device import StepConstants
from automap_models.core.strategy import Strategy
from automap_models.formats.hardware_yaml import read_device
from automap_models.simulate.strategy import strategy_estimate
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
)
"""Layers, and fields of the strategy."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20, help="prices of each strategy, of which the median counts")
    repeats = parser.parse_args().repeats
    device = read_device("a100")
    device = device if device.step else replace(device, step=CONSTANTS)
    model = read_model_work("gpt3_7b", sequence=2048, dtype="bfloat16")
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
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
