"""Plans of Aceso and of Megatron-LM beside ours, all on Aceso's clock, and our clock beside what Aceso measured.

    OMP_NUM_THREADS=1 python benchmarks/aceso_plans.py FOLDER [--size 1_3B …] [--search 200] [--divisions]

FOLDER is a clone of github.com/microsoft/SuperScaler, branch Aceso (Liu et al., EuroSys 2024): times and memory of the
operators of five GPTs, measured on V100, and programs that search over them. Nothing of it was used to make automap.

1. Our clock: a micro-batch's passes on one device, predicted over measured, with the shipped V100 and with constants
   fitted to the other sizes; and the paper's step on one V100, in seconds and bytes.
2. Plans for 1,024 samples on 4 to 32 V100 with 28,000 MiB each, priced by Aceso's cost model over its measured times:
   the best of Megatron-LM's layouts, what Aceso's search finds, and what ours finds: 1F1B, half precision, whole layers
   and equally many devices a stage, no ZeRO, for that is what Aceso's runtime has. Ours is searched by our clock with
   constants fitted to the operators, again with less memory where Aceso's model says that the plan does not fit.
3. With --divisions: the best strategy of every tp, pp and micro-batch by our clock, ranked by both clocks.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import refuse
from opponents.aceso import (
    GLOBAL_BATCH,
    MEMORY_LIMIT_MIB,
    MICRO_BATCHES,
    SINGLE_DEVICE_BYTES,
    SIZES,
    Aceso,
    Price,
    Size,
    as_plan,
)
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import kendalltau

from automap_models.core.device import Device
from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.measured import MeasuredStep
from automap_models.errors import BadInput
from automap_models.formats.atomic import Cache, cache_folder
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.calibration import fit_constants, step_observation
from automap_models.simulate.measured import measured_estimate, measured_runtime
from automap_models.workloads.measured import MeasuredWorks

REPEATED = 64
"""Micro-batches of a step that repeats measured passes: the update, which was not measured, is a small part of it."""
RUNTIME = {"precision": "fp16", "schedule": "1f1b", "zero": 0, "vp": 1, "cp": 1, "ep": 1, "sequence_parallel": False}
"""What Aceso's runtime has."""
TRIES = 6
"""How often a plan that does not fit by Aceso's memory is searched again with less."""


def row(size: Size, **fields: Any) -> dict[str, Any]:
    """A step of a size as a row of measured steps, which says how Megatron-LM of 2021 runs it."""
    shape = size.shape
    sizes = {
        **{"layers": shape.layers, "hidden": shape.hidden, "ffn": shape.ffn, "heads": shape.heads},
        **{"kv_heads": shape.kv_heads, "seq": shape.sequence, "vocab": shape.vocabulary},
    }
    return {
        "id": f"{size.name}-{fields['micro_batch']}",
        "source": f"aceso-{size.name}",
        "system": "Megatron-LM 2021",
        "model": {"name": shape.name, "arch": "gpt", "params": None, **sizes},
        **{"gpus": 1, "gpu_type": "V100-SXM2-32GB", "gpus_per_node": min(8, fields.get("gpus", 1))},
        **{"tp": 1, "pp": 1, "dp": 1, "vp": 1, "cp": 1, "ep": 1, "zero": 0},
        **{"schedule": "1F1B", "recompute": "none", "precision": "fp16", "flags": [], "note": None},
        **fields,
    }


class Clock:
    """Our prices of steps of these models.

    Args:
        folder: where rows are written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.works = folder, MeasuredWorks(Cache(cache_folder()))

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> list[MeasuredStep]:
        """Rows as they are read."""
        file = self.folder / "rows.json"
        file.write_text(json.dumps({"rows": rows}))
        return [step for step in read_measured_steps(file) if isinstance(step, MeasuredStep)]

    def fitted(self, device: Device, steps: Sequence[MeasuredStep]) -> Device:
        """A device with constants that are fitted to steps, as automap-calibrate fits them."""
        observations = [step_observation(step, self.works.of(step)) for step in steps]
        return replace(device, step=fit_constants(observations, [device]).constants)


def passes(aceso: Aceso, sizes: Sequence[Size]) -> list[dict[str, Any]]:
    """Rows of steps that repeat the passes of one micro-batch on one device, as they were measured."""
    return [
        row(
            size,
            micro_batch=samples,
            global_batch=samples * REPEATED,
            measured={"iteration_s": REPEATED * sum(aceso.pass_times_s(size, samples))},
        )
        for size in sizes
        for samples in MICRO_BATCHES
    ]


def clock_table(clock: Clock, steps: Sequence[MeasuredStep], device: Device) -> tuple[Table, Device]:
    """Predicted over measured passes, and the device with constants fitted to all of them."""
    table = Table("model", *(f"{samples} samples" for samples in MICRO_BATCHES), "constants of the others")
    errors: tuple[list[float], list[float]] = ([], [])
    for size in track(SIZES, "our clock"):
        own = [step for step in steps if step.source == f"aceso-{size.name}"]
        others = clock.fitted(device, [step for step in steps if step not in own])
        shipped, fitted = (
            [measured_estimate(step, clock.works.of(step), of).step_s / (step.step_s or 1.0) for step in own]
            for of in (device, others)
        )
        for ratios, all_ratios in zip((shipped, fitted), errors, strict=True):
            all_ratios += [abs(ratio - 1) for ratio in ratios]
        table.add_row(size.shape.name, *(f"{ratio:.3f}" for ratio in shipped), " ".join(f"{r:.3f}" for r in fitted))
    summary = [f"{100 * np.median(of):.1f} %, {100 * np.quantile(of, 0.9):.1f} %" for of in errors]
    table.add_row("median error, 90 % below", summary[0], "", "", "", summary[1])
    return table, clock.fitted(device, steps)


def single_device(clock: Clock, device: Device) -> str:
    """The paper's step on one device beside our price of it."""
    size = SIZES[0]
    fields = {"micro_batch": 8, "global_batch": GLOBAL_BATCH, "recompute": "full", "measured": {"iteration_s": 1.0}}
    (step,) = clock.steps([row(size, **fields)])
    estimate = measured_estimate(step, clock.works.of(step), device)
    ratios = estimate.step_s / size.measured_s, estimate.peak_memory / SINGLE_DEVICE_BYTES
    return (
        f"{size.shape.name} on one V100, all recomputed: {estimate.step_s:.1f} s, measured {size.measured_s:.1f} s "
        f"({ratios[0]:.2f}); {estimate.peak_memory / 2**20:,.0f} MiB, measured {SINGLE_DEVICE_BYTES / 2**20:,.0f} "
        f"({ratios[1]:.2f})"
    )


class Ours:
    """Our search for one size, held to what Aceso's runtime has and to the memory that its model counts."""

    def __init__(self, aceso: Aceso, clock: Clock, size: Size, device: Device) -> None:
        fields = {"micro_batch": 1, "global_batch": GLOBAL_BATCH, "measured": {"iteration_s": 1.0}}
        (step,) = clock.steps([row(size, gpus=size.devices, dp=size.devices, **fields)])
        self.aceso, self.size = aceso, size
        self.problem = StrategyProblem(
            work=clock.works.of(step),
            cluster=step.cluster,
            device=device,
            global_batch=GLOBAL_BATCH,
            reserve_bytes=step.cluster.memory - MEMORY_LIMIT_MIB * 2**20,
            fixed=RUNTIME,
            runtime=measured_runtime(step),
        )

    def best(self, budget_s: float, **fixed: int) -> tuple[Estimate, Price] | None:
        """What the strategy costs by our clock and by Aceso's that is found; None where nothing fits by both."""
        problem = replace(self.problem, fixed={**RUNTIME, **fixed})
        for _ in range(TRIES):
            try:
                cost = StrategiesPlanner(StrategiesConfig(budget_s=budget_s)).solve(problem).cost
                if cost is None:
                    return None
                price = self.aceso.price(as_plan(cost.strategy, self.size), self.size)
            except BadInput:  # these fields do not divide the model, or nobody measured collectives of so many devices
                return None
            over_mib = price.memory_mib - MEMORY_LIMIT_MIB
            if over_mib <= 0:
                return cost, price
            problem = replace(problem, reserve_bytes=problem.reserve_bytes + over_mib * 2**20)
        return None

    def divisions(self, budget_s: float) -> Iterator[tuple[float, float]]:
        """Of every tp, pp and micro-batch: the step of the best strategy by our clock, and by Aceso's."""
        devices = self.size.devices
        for pp in (n for n in range(1, min(devices, self.size.layers) + 1) if devices % n == 0):
            for tp in (n for n in (1, 2, 4, 8) if devices % (pp * n) == 0):
                for samples in MICRO_BATCHES:
                    best = self.best(budget_s, pp=pp, tp=tp, dp=devices // (pp * tp), micro_batch=samples)
                    if best is not None:
                        yield best[0].step_s, best[1].step_s


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    sizes = {size.name: size for size in SIZES[1:]}
    parser.add_argument("--size", action="append", choices=[*sizes], help="only this one; may be repeated")
    parser.add_argument("--search", type=int, default=200, help="seconds of Aceso's search, by the clock")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of computing of each of our searches")
    parser.add_argument("--divisions", action="store_true", help="rank divisions by both clocks, too")
    options = parser.parse_args()
    console = Console(width=130)
    with tempfile.TemporaryDirectory() as work:
        try:
            aceso, clock = Aceso(options.folder, Path(work)), Clock(Path(work))
            device = read_device("v100")
            table, fitted = clock_table(clock, clock.steps(passes(aceso, SIZES)), device)
            console.print(table)
            for name, of in (("shipped constants", device), ("fitted constants", fitted)):
                console.print(f"{name}: {single_device(clock, of)}")
            chosen = [sizes[name] for name in options.size or sizes]
            plans(console, aceso, clock, fitted, chosen, options)
        except BadInput as error:
            refuse(str(error))


def plans(
    console: Console, aceso: Aceso, clock: Clock, device: Device, sizes: Sequence[Size], options: argparse.Namespace
) -> None:
    """Search for every size and print who found what."""
    table = Table("model", "V100", "Megatron-LM", "Aceso", "measured", "ours", "by our clock", "processor time", "plan")
    ranks = Table("model", "divisions", "Kendall τ", "chosen by us over the best, on Aceso's clock")
    for size in track(sizes, "searching"):
        ours, begun_s = Ours(aceso, clock, size, device), time.process_time()
        best = ours.best(options.budget)
        took_s = time.process_time() - begun_s
        prices = [aceso.price(plan, size) for plan in (aceso.megatron(size), aceso.searched(size, options.search))]
        cells = [size.shape.name, str(size.devices), *(f"{price.step_s:.1f} s" for price in prices)]
        cells.append(f"{size.measured_s:.1f} s")
        if best is None:
            table.add_row(*cells, "none fits")
            continue
        seconds = [f"{value:.1f} s" for value in (best[1].step_s, best[0].step_s, took_s)]
        table.add_row(*cells, *seconds, strategy_in_words(best[0]))
        if options.divisions:
            both = np.array([*ours.divisions(options.budget)])
            regret = both[both[:, 0].argmin(), 1] / both[:, 1].min() - 1
            ranks.add_row(size.shape.name, str(len(both)), f"{kendalltau(*both.T)[0]:.2f}", f"{100 * regret:.1f} %")
    console.print(table)
    if options.divisions:
        console.print(ranks)


if __name__ == "__main__":
    main()
