"""Plans that others trained with and published, against what the search finds for the same model, cluster and samples.

    OMP_NUM_THREADS=1 python benchmarks/published_plans.py ROWS.json [--budget 3] [--source NAME …]

ROWS.json is described in docs/reference/files.md. Rows of one source, software, model, cluster, global batch and
precision are a group. Of each group the published plan is the one whose measured step is the shortest, or the first one
where steps were not measured. Both plans are priced by one clock, with what the software does (Runtime). The search
does not know the published plan. Two things are counted:

    chosen    of the rows of a group that were measured, the one of the least price: how far its measured step is behind
              the shortest one
    slower    groups in which the strategy found has a longer price than the published one

The last column says where the strategy that was found saves most. A published plan that does not fit by our clock is
marked: the search may then be slower with what does.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import refuse
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.estimate import Estimate, StepParts, strategy_in_words
from automap_models.core.model_work import ModelWork
from automap_models.core.result import Result
from automap_models.core.strategy import Strategy
from automap_models.cost.measured import MeasuredStep
from automap_models.errors import BadInput
from automap_models.formats.atomic import Cache, cache_folder
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.measured import measured_estimate
from automap_models.workloads.measured import MeasuredWorks

BY = {
    "narayanan2021-table2": "NVIDIA",
    "korthikanti2022-fig1": "NVIDIA",
    "megatron-golden": "NVIDIA",
    "megatron-bridge": "NVIDIA",
    "torchtitan-h100": "Meta",
    "torchtitan-asynctp": "Meta",
    "bigscience-tr8-104b": "BigScience",
    "bigscience-tr11-prequel": "BigScience",
}
"""Source → who published it; rows of others are measured, but nobody says that their plans are good ones."""
TIE = 1e-6


@dataclass(frozen=True)
class Group:
    """Rows of one model, cluster and batch with their prices."""

    rows: Sequence[tuple[MeasuredStep, Estimate]]
    work: ModelWork

    @property
    def published(self) -> tuple[MeasuredStep, Estimate]:
        """The row of the shortest measured step, or the first one."""
        measured = [row for row in self.rows if row[0].step_s is not None]
        return min(measured, key=lambda row: row[0].step_s or 0.0) if measured else self.rows[0]

    @property
    def behind(self) -> float | None:
        """By which share the measured step of the row of the least price is behind the shortest; None for one row."""
        measured = [(row.step_s, estimate.step_s) for row, estimate in self.rows if row.step_s is not None]
        if len({row.strategy for row, _ in self.rows if row.step_s is not None}) < 2:
            return None
        chosen = min(measured, key=lambda of: of[1])[0]
        return chosen / min(step for step, _ in measured) - 1

    def searched(self, budget_s: float) -> Result[StrategyProblem, Strategy]:
        """What the search finds, which knows nothing of the rows' plans."""
        row, _ = self.published
        problem = StrategyProblem(
            work=self.work,
            cluster=row.cluster,
            device=read_device(row.device),
            global_batch=row.strategy.global_batch,
            fixed={"precision": row.strategy.precision},
            runtime=row.runtime,
        )
        return StrategiesPlanner(StrategiesConfig(budget_s=budget_s)).solve(problem)


def groups_of(path: Path, sources: Sequence[str]) -> list[Group]:
    """The groups of a file, of these sources; all that somebody published as a plan if there are none."""
    works = MeasuredWorks(Cache(cache_folder()))
    devices = {name: read_device(name) for name in known_devices()}
    rows = defaultdict(list)
    for step in read_measured_steps(path):
        if not isinstance(step, MeasuredStep) or step.source not in (sources or BY):
            continue
        try:
            estimate = measured_estimate(step, works.of(step), devices[step.device])
        except BadInput:
            continue
        strategy = step.strategy
        key = (step.source, step.system, step.shape, step.cluster, strategy.global_batch, strategy.precision)
        rows[key].append((step, estimate))
    return [Group(own, works.of(own[0][0])) for own in rows.values()]


def saved(published: Estimate, best: Estimate) -> str:
    """The parts of the step in which the found strategy is shorter by most."""
    shorter = {name: getattr(published.parts, name) - getattr(best.parts, name) for name in StepParts._fields}
    most = sorted(shorter, key=lambda name: -shorter[name])[:2]
    parts = [f"{name.replace('_', ' ')} −{100 * shorter[name] / published.step_s:.0f} %" for name in most]
    return ", ".join(part for name, part in zip(most, parts, strict=True) if shorter[name] > TIE * published.step_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path, metavar="ROWS.json")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of computing of each search")
    parser.add_argument("--source", action="append", default=[], help="of rows; may be repeated")
    options = parser.parse_args()
    try:
        groups = groups_of(options.rows, options.source)
    except BadInput as error:
        refuse(str(error))
    table = Table(
        "by", "model", "devices", "samples", "published plan", "its price", "found", "its price", "ratio", "saves"
    )
    slower, ratios, begun_s = [], [], time.process_time()
    for group in track(groups, "searching"):
        row, price = group.published
        cells = [BY.get(row.source, row.source), row.shape.name, f"{row.cluster.devices} {row.device}"]
        cells += [str(row.strategy.global_batch), strategy_in_words(price)]
        cells += [f"{price.step_s:.4g} s" + ("" if price.fits else " (does not fit)")]
        result = group.searched(options.budget)
        if result.cost is None:
            table.add_row(*cells, result.status)
            slower += [cells] if price.fits else []
            continue
        ratio = result.cost.step_s / price.step_s
        if price.fits:
            ratios.append(ratio)
            slower += [cells] if ratio > 1 + TIE else []
        best = [strategy_in_words(result.cost), f"{result.cost.step_s:.4g} s", f"{ratio:.3f}"]
        table.add_row(*cells, *best, saved(price, result.cost))
    console = Console(width=330)
    console.print(table)
    chosen = [group.behind for group in groups if group.behind is not None]
    console.print(f"{len(groups)} groups, {len(ratios)} with a published plan that fits: {len(slower)} found slower;")
    console.print(f"median ratio {np.median(ratios):.3f}, longest {max(ratios):.3f}, shortest {min(ratios):.3f};")
    if chosen:
        behind = f"{100 * np.mean(chosen):.1f} % behind the best (mean), {100 * max(chosen):.1f} % (most)"
        console.print(f"chosen among measured: {len(chosen)} groups, {behind}")
    console.print(f"{time.process_time() - begun_s:.0f} s of processor time")


if __name__ == "__main__":
    main()
