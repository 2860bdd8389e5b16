"""Prices of training steps that others measured and published, against what they measured.

    OMP_NUM_THREADS=1 python benchmarks/measured_steps.py ROWS.json … [--json OUT.json]

ROWS.json is described in docs/reference/files.md. OUT.json gets an object for each row, in the order of the rows:
{"id", "predicted_s", "predicted_memory_bytes", "fits", "skipped"}, of which `skipped` says why a row has no price.

Plans of one model, cluster and batch that were measured on one day, where the row says the day, are ranked: machines
change between days. Kendall's τ is of predicted and measured seconds; `chosen over best` is how much longer than the
shortest plan the one took that is predicted to be the shortest.

accuracy.py writes what all files come to, with sources that are left out of the fit.

A model is traced once and kept in the cache of automap ($AUTOMAP_CACHE, else ~/.cache/automap).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from common import print_rows, refuse, tracked
from scipy.stats import kendalltau

from automap_models.core.cluster import MemoryVerdict
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate
from automap_models.cost.measured_step import MeasuredStep, SkippedStep
from automap_models.errors import BadInput
from automap_models.formats.atomic import require_writable, write_text
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.simulate.observations import errors_of, measured_estimate
from automap_models.workloads.measured import step_work

LEAST_PLANS = 4
"""Rows of a group whose plans are ranked."""


def measured_bytes(step: MeasuredStep, estimate: Estimate) -> float:
    """Bytes of the fullest device by the estimate, of what the step's memory was measured of."""
    of_runtime = estimate.memory[0].runtime if step.only_tensors else 0.0  # all ranks have as much
    return estimate.peak_memory - of_runtime


class Price(NamedTuple):
    """A measured step and what it is estimated to cost; the reason where it has no price."""

    step: MeasuredStep | SkippedStep
    estimate: Estimate | None
    reason: str | None

    @property
    def memory_bytes(self) -> float | None:
        """Of what the row's memory was measured of."""
        if self.estimate is None or isinstance(self.step, SkippedStep):
            return None
        return measured_bytes(self.step, self.estimate)

    @property
    def document(self) -> dict[str, object]:
        """The row's object in OUT.json."""
        estimate = self.estimate
        return {
            "id": self.step.name,
            "predicted_s": None if estimate is None else estimate.step_s,
            "predicted_memory_bytes": self.memory_bytes,
            "fits": None if estimate is None else estimate.fits,
            "skipped": self.reason,
        }


def priced(step: MeasuredStep | SkippedStep, devices: dict[str, Device]) -> Price:
    """A step with its price."""
    if isinstance(step, SkippedStep):
        return Price(step, None, step.reason)
    try:
        return Price(step, measured_estimate(step, step_work(step), devices[step.device]), None)
    except BadInput as error:
        return Price(step, None, str(error))


def files_in(paths: Iterable[Path]) -> list[Path]:
    """The files among the paths, and those of measured steps in the folders."""
    return [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]


def price_files(paths: Iterable[Path]) -> list[Price]:
    """Every step in files of measured steps, or in the folders that hold them, with its price.

    Raises:
        BadInput: see `read_measured_steps`.
    """
    devices = {name: read_device(name) for name in known_devices()}
    steps = [step for file in files_in(paths) for step in read_measured_steps(file)]
    return [priced(step, devices) for step in tracked(steps, "pricing")]


class Ranking(NamedTuple):
    """How plans of one model on one cluster are ranked.

    Attributes:
        name: of the model, the cluster and the batch.
        plans: how many.
        spread: the slowest measured over the fastest.
        tau: Kendall's, of predicted and measured seconds.
        loss: of the plan that is predicted to be the fastest over the fastest, a share of 1.
    """

    name: str
    plans: int
    spread: float
    tau: float
    loss: float


def ranking(name: str, predicted: Sequence[float], measured: Sequence[float]) -> Ranking:
    """The ranking of a group's plans, of seconds."""
    best, chosen = min(measured), measured[int(np.argmin(predicted))]
    tau = float(kendalltau(predicted, measured).statistic)
    return Ranking(name, len(measured), max(measured) / best, tau, chosen / best - 1)


def groups_of(prices: Iterable[Price]) -> Iterator[tuple[str, list[Price]]]:
    """Every group of LEAST_PLANS or more rows, of two or more plans: its name, and the rows.

    Rows that differ in their dispatcher alone are the ladder of a program, not plans to choose from.
    """
    groups: dict[tuple[object, ...], list[Price]] = defaultdict(list)
    for price in prices:
        step = price.step
        if isinstance(step, MeasuredStep) and price.estimate is not None and step.step_s is not None:
            strategy = step.strategy
            batch = strategy.global_batch, strategy.precision, step.training, step.day
            groups[step.source, step.system, step.model.shape, step.cluster, *batch].append(price)
    for (source, _, shape, cluster, samples, *_), rows in groups.items():
        strategies = {replace(price.step.strategy, dispatcher=None) for price in rows}  # type: ignore[union-attr]
        if len(rows) >= LEAST_PLANS and len(strategies) > 1:
            yield f"{source}: {shape.name}, {cluster.devices} devices, {samples} samples", rows  # type: ignore[attr-defined]


def rankings(prices: Iterable[Price]) -> list[Ranking]:
    """Of every group; those that are spread most first."""
    result = [ranking(name, *pairs_of(rows, "step_s")) for name, rows in groups_of(prices)]
    return sorted(result, key=lambda group: -group.spread)


def verdicts(prices: Iterable[Price]) -> Iterator[tuple[bool, MemoryVerdict]]:
    """Of each run whether it fitted, if that is known, and what is said of it."""
    for step, estimate, _ in prices:
        if isinstance(step, MeasuredStep) and estimate is not None and step.fits is not None:
            yield step.fits, estimate.verdict


FIGURES = ("timed", "median", "p90", "bias", "memory: rows", "median", "bias", "fits", "groups", "τ", "regret")
BY_GROUP = ("group", "plans", "slowest / fastest", "Kendall τ", "chosen over best")


def figures(prices: Sequence[Price]) -> tuple[str, ...]:
    """FIGURES of some rows: errors of seconds and memory, verdicts that are right, and the means of rankings."""
    pairs = [(fits, verdict != "does not fit") for fits, verdict in verdicts(prices)]
    right, count = sum(measured == predicted for measured, predicted in pairs), len(pairs)
    groups = rankings(prices)
    tau, regret = np.mean([(group.tau, group.loss) for group in groups], axis=0) if groups else (np.nan, np.nan)
    ranks = str(len(groups)), f"{tau:.2f}" if groups else "", percent(regret)
    rows, median, _, bias = shares_of(prices, "memory")
    return (*shares_of(prices, "step_s"), rows, median, bias, f"{right}/{count}", *ranks)


def shares_of(prices: Iterable[Price], what: str) -> tuple[str, ...]:
    """How many rows have `step_s` or `memory`, the median and p90 of its errors, and its bias."""
    predicted, measured = pairs_of(prices, what)
    errors = errors_of(what, np.array(predicted) / np.array(measured))
    return (str(errors.steps), *map(percent, (errors.median, errors.p90, errors.ratio - 1)))


def percent(share: float) -> str:
    """As a table has it; empty where it is not known."""
    return "" if np.isnan(share) else f"{100 * share:.1f} %"


def sources(prices: list[Price]) -> Iterator[tuple[str, ...]]:
    """Figures by source."""
    for source in [*sorted({price.step.source for price in prices}), "all"]:
        some = [price for price in prices if source in (price.step.source, "all")]
        yield (source, str(len(some)), *figures(some))


def ranked(groups: Iterable[Ranking]) -> Iterator[tuple[str, ...]]:
    """Every group."""
    for group in groups:
        yield (group.name, str(group.plans), f"{group.spread:.2f}", f"{group.tau:.2f}", percent(group.loss))


def pairs_of(prices: Iterable[Price], what: str) -> tuple[list[float], list[float]]:
    """What is predicted and what was measured: `step_s` or `memory`."""
    predicted, measured = [], []
    for step, estimate, _ in prices:
        if isinstance(step, MeasuredStep) and estimate is not None:
            value = step.step_s if what == "step_s" else step.memory_bytes
            if value is not None:
                predicted.append(estimate.step_s if what == "step_s" else measured_bytes(step, estimate))
                measured.append(value)
    return predicted, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, nargs="+", help="files of measured steps, or folders of them")
    parser.add_argument("--json", type=Path, help="write the price of every row")
    arguments = parser.parse_args()
    try:
        if arguments.json is not None:
            require_writable(arguments.json)
        report(price_files(arguments.rows), arguments.json)
    except BadInput as error:
        refuse(str(error))


def report(prices: list[Price], json_path: Path | None) -> None:
    """Write what is asked for, and print the tables."""
    if json_path is not None:
        write_text(json_path, json.dumps([price.document for price in prices], indent=1) + "\n")
    print_rows(("source", "rows", *FIGURES), sources(prices))
    print_rows(BY_GROUP, ranked(rankings(prices)))
    counts = Counter(verdicts(prices))
    for fits, what in ((True, "ran"), (False, "were out of memory")):
        words = ", ".join(f"{counts[fits, verdict]} {verdict}" for verdict in get_args(MemoryVerdict))
        print(f"of the runs that {what}: {words}")
    reasons: dict[str, list[str]] = defaultdict(list)
    for price in prices:
        if price.reason is not None:
            reasons[price.reason].append(price.step.name)
    for reason, names in reasons.items():
        print(f"no price for {len(names)} of {len(prices)} rows ({', '.join(names)}): {reason}")


if __name__ == "__main__":
    main()
