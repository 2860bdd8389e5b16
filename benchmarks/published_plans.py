"""Plans that others trained with and published, against what the search finds for the same model, cluster and samples.

    OMP_NUM_THREADS=1 python benchmarks/published_plans.py ROWS.json [--budget 3] [--source NAME …]

ROWS.json is described in docs/reference/files.md. Rows of one source, software, model, cluster, global batch and
precision are a group. Of each group the published plan is the one whose measured step is the shortest, or the first one
where steps were not measured. Both plans are priced by one clock, with what the software does (Runtime). The search
does not know the published plan. The last column says where the strategy that was found saves most. A published plan
that does not fit by our clock is marked: the search may then be slower with what does.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import print_rows, refuse, tracked
from measured_steps import priced

from automap_models.core.estimate import Estimate, StepParts, strategy_in_words
from automap_models.core.model_work import ModelWork
from automap_models.core.result import Result
from automap_models.core.strategy import Strategy
from automap_models.cost.measured_step import MeasuredStep
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.workloads.measured import step_work

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
    """The groups of a file, of these sources; all that somebody published as a plan if there are none.

    Raises:
        BadInput: see `read_measured_steps`; or there is no such step.
    """
    devices = {name: read_device(name) for name in known_devices()}
    rows = defaultdict(list)
    for step in read_measured_steps(path):
        if not isinstance(step, MeasuredStep) or step.source not in (sources or BY):
            continue
        estimate, strategy = priced(step, devices).estimate, step.strategy
        if estimate is not None:
            key = (step.source, step.system, step.model.shape, step.cluster, strategy.global_batch, strategy.precision)
            rows[key].append((step, estimate))
    if not rows:
        what = f"has no step with a price of {', '.join(sources or BY)}"
        raise BadInput(what, where=str(path), do="give another file or --source")
    return [Group(some, step_work(some[0][0])) for some in rows.values()]


def saved(published: Estimate, best: Estimate) -> str:
    """The parts of the step in which the found strategy is shorter by most."""
    shorter = {name: getattr(published.parts, name) - getattr(best.parts, name) for name in StepParts._fields}
    most = sorted(shorter, key=lambda name: -shorter[name])[:2]
    parts = [f"{name.replace('_', ' ')} −{100 * shorter[name] / published.step_s:.0f} %" for name in most]
    return ", ".join(part for name, part in zip(most, parts, strict=True) if shorter[name] > TIE * published.step_s)


HEADINGS = (
    *("by", "model", "devices", "samples", "published plan", "its price"),
    *("found", "its price", "ratio", "saves"),
)


def row(group: Group, budget_s: float) -> tuple[tuple[str, ...], float | None]:
    """The cells of a group, and the found strategy's price over that of a published plan that fits."""
    step, price = group.published
    case = BY.get(step.source, step.source), step.model.shape.name, f"{step.cluster.devices} {step.device}"
    published = strategy_in_words(price), f"{price.step_s:.4g} s" + ("" if price.fits else " (does not fit)")
    best = group.searched(budget_s)
    cells = *case, str(step.strategy.global_batch), *published
    if best.cost is None:
        return (*cells, best.status, "", "", ""), float("inf") if price.fits else None
    ratio = best.cost.step_s / price.step_s
    cheaper = strategy_in_words(best.cost), f"{best.cost.step_s:.4g} s", f"{ratio:.3f}", saved(price, best.cost)
    return (*cells, *cheaper), ratio if price.fits else None


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path, metavar="ROWS.json")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of computing of each search")
    parser.add_argument("--source", action="append", default=[], help="of rows; may be repeated")
    options = parser.parse_args()
    try:
        groups = groups_of(options.rows, options.source)
    except BadInput as error:
        refuse(str(error))
    rows = [row(group, options.budget) for group in tracked(groups, "searching")]
    print_rows(HEADINGS, (cells for cells, _ in rows))
    ratios = np.array([ratio for _, ratio in rows if ratio is not None])
    slower = int((ratios > 1 + TIE).sum())
    print(f"\n{len(groups)} groups, {ratios.size} with a published plan that fits: {slower} found slower;")
    if ratios.size:
        print(f"median ratio {np.median(ratios):.3f}, longest {max(ratios):.3f}, shortest {min(ratios):.3f}")


if __name__ == "__main__":
    main()
