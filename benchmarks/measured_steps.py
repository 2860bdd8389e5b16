"""Prices of training steps that others measured and published, against what they measured.

    OMP_NUM_THREADS=1 python benchmarks/measured_steps.py ROWS.json [--json OUT.json] [--left-out]

ROWS.json is described in docs/reference/files.md. OUT.json gets an object for each row, in the order of the rows:
{"id", "predicted_s", "predicted_memory_bytes", "fits", "skipped"}, of which `skipped` says why a row has no price.

Plans of one model, cluster and batch that were measured on one day, where the row says the day, are ranked: machines
change between days. Kendall's τ is of predicted and measured seconds; `chosen over best` is how much longer than the
shortest plan the one took that is predicted to be the shortest.

With --left-out the constants of V100, A100 and H100 are fitted together to all sources but one (calibration.fit_kinds),
and this one is priced, for each source in turn: the table says what all these rows come to together, those of dense
models.

A model is traced once and kept in the cache of automap ($AUTOMAP_CACHE, else ~/.cache/automap).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import print_rows, refuse, tracked
from scipy.stats import kendalltau

from automap_models.core.device import Device, StepConstants
from automap_models.core.estimate import Estimate
from automap_models.core.profile import FloatArray
from automap_models.cost.measured_step import MeasuredStep, SkippedStep
from automap_models.errors import BadInput
from automap_models.formats.atomic import require_writable, write_text
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.simulate.calibration import (
    MeasuredKind,
    SourceErrors,
    errors_by_source,
    errors_of,
    fit_kinds,
    measured_estimate,
    predicted_s,
    step_observation,
)
from automap_models.workloads.measured import step_work

LEAST_PLANS = 4
"""Rows of a group whose plans are ranked."""
LEAST_SPREAD = 1.3
"""Of the slowest over the fastest plan of a group that counts for the mean."""


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


def rankings(prices: Iterable[Price]) -> list[Ranking]:
    """Of every group of LEAST_PLANS or more rows, of two or more plans; those that are spread most first."""
    groups: dict[tuple[object, ...], list[Price]] = defaultdict(list)
    for price in prices:
        step = price.step
        if isinstance(step, MeasuredStep) and price.estimate is not None and step.step_s is not None:
            strategy = step.strategy
            batch = strategy.global_batch, strategy.precision, step.day
            groups[step.source, step.system, step.model.shape, step.cluster, *batch].append(price)
    result = []
    for (source, _, shape, cluster, samples, *_), rows in groups.items():
        strategies = {price.step.strategy for price in rows}  # type: ignore[union-attr]
        if len(rows) >= LEAST_PLANS and len(strategies) > 1:
            name = f"{source}: {shape.name}, {cluster.devices} devices, {samples} samples"  # type: ignore[attr-defined]
            result.append(ranking(name, *pairs_of(rows, "step_s")))
    return sorted(result, key=lambda group: -group.spread)


def verdicts(prices: Iterable[Price]) -> tuple[int, int]:
    """How many verdicts, that a run fits or does not, are right, and how many there are."""
    pairs = [
        (step.fits, estimate.fits)
        for step, estimate, _ in prices
        if isinstance(step, MeasuredStep) and estimate is not None and step.fits is not None
    ]
    return sum(measured == predicted for measured, predicted in pairs), len(pairs)


BY_SOURCE = ("source", "rows", "priced", "median", "p90", "ratio", "memory: rows", "median", "p90", "ratio", "fits")
BY_GROUP = ("group", "plans", "slowest / fastest", "Kendall τ", "chosen over best")
OMITTED_COLUMNS = ("device", "source", "rows", "median", "p90", "ratio")


def sources(prices: list[Price]) -> Iterator[tuple[str, ...]]:
    """Errors by source."""
    for source in [*sorted({price.step.source for price in prices}), "all"]:
        some = [price for price in prices if source in (price.step.source, "all")]
        right, count = verdicts(some)
        counts = [len(some), sum(price.estimate is not None for price in some)]
        yield (source, *map(str, counts), *_cells(some, "step_s"), *_cells(some, "memory"), f"{right}/{count}")


def ranked(groups: Sequence[Ranking]) -> Iterator[tuple[str, ...]]:
    """Groups, and their means."""
    for group in groups:
        cells = str(group.plans), f"{group.spread:.2f}", f"{group.tau:.2f}", f"{100 * group.loss:.1f} %"
        yield (group.name, *cells)
    for least in (LEAST_SPREAD, 1.0):
        wide = [group for group in groups if group.spread > least]
        if wide:
            tau, loss = np.mean([(group.tau, group.loss) for group in wide], axis=0)
            yield (f"mean of spread > {least}", str(len(wide)), "", f"{tau:.2f}", f"{100 * loss:.1f} %")


def _cells(prices: Iterable[Price], what: str) -> tuple[str, ...]:
    predicted, measured = pairs_of(prices, what)
    errors = errors_of(what, np.array(predicted) / np.array(measured))
    counts = [str(errors.steps)] if what == "memory" else []
    return (*counts, *(_in_words(errors) if errors.steps else ("", "", "")))


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


KINDS = {"v100": ("v100",), "a100": ("a100", "a100-40"), "h100": ("h100",), "h100-96": ("h100-96",)}
"""Kinds of devices that have more than one source, with those that have the same constants."""


def left_out_of_kinds_s(kinds: Mapping[str, MeasuredKind], start: Mapping[str, StepConstants]) -> dict[str, FloatArray]:
    """Name of a kind → [n] seconds of its steps with the constants that are fitted without their source.

    A source is left out of all kinds at once, of which those are fitted again that it has steps of.

    Args: see `fit_kinds`; `start` are the constants that are fitted to all sources.
    """
    seconds = {name: np.zeros(len(kind.observations)) for name, kind in kinds.items()}
    for source in sorted({source for kind in kinds.values() for source in kind.sources}):
        kind_names = [name for name, kind in kinds.items() if source in kind.sources]
        constants = fit_kinds({name: kind.parted(source)[1] for name, kind in kinds.items()}, start, kind_names)
        for name in kind_names:
            places = [i for i, observation in enumerate(kinds[name].observations) if observation.source == source]
            seconds[name][places] = predicted_s(kinds[name].parted(source)[0], asdict(constants[name]))
    return seconds


def omitted(steps: Iterable[MeasuredStep | SkippedStep], devices: dict[str, Device]) -> Iterator[tuple[str, ...]]:
    """Errors of every source under constants that are fitted to the others, and of dense models together."""
    measured = [step for step in steps if isinstance(step, MeasuredStep) and step.step_s is not None]
    by_kind = {kind: [step for step in measured if step.device in names] for kind, names in KINDS.items()}
    kinds = {
        kind: MeasuredKind(
            [step_observation(step, step_work(step)) for step in some], [devices[n] for n in KINDS[kind]]
        )
        for kind, some in by_kind.items()
    }
    fitted = fit_kinds(kinds, {kind: devices[kind].constants for kind in kinds})
    seconds = left_out_of_kinds_s(kinds, fitted)
    dense: list[float] = []
    for kind, (observations, _) in kinds.items():
        for of_source in errors_by_source(observations, seconds[kind]):
            yield (kind, of_source.source, str(of_source.steps), *_in_words(of_source))
        for seconds_s, step in zip(seconds[kind].tolist(), by_kind[kind], strict=True):
            if not step.model.shape.experts and step.step_s is not None:
                dense.append(seconds_s / step.step_s)
    together = errors_of("dense models", dense)
    yield ("all", together.source, str(together.steps), *_in_words(together))


def _in_words(errors: SourceErrors) -> tuple[str, str, str]:
    return f"{100 * errors.median:.1f} %", f"{100 * errors.p90:.1f} %", f"{errors.ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="measured steps")
    parser.add_argument("--json", type=Path, help="write the price of every row")
    parser.add_argument("--left-out", action="store_true", help="fit without each source, and price it (minutes)")
    arguments = parser.parse_args()
    try:
        if arguments.json is not None:
            require_writable(arguments.json)
        steps = read_measured_steps(arguments.rows)
        devices = {name: read_device(name) for name in known_devices()}
        prices = [priced(step, devices) for step in tracked(steps, "pricing")]
        report(prices, arguments.json)
        if arguments.left_out:
            print_rows(OMITTED_COLUMNS, omitted(steps, devices))
    except BadInput as error:
        refuse(str(error))


def report(prices: list[Price], json_path: Path | None) -> None:
    """Write what is asked for, and print the tables."""
    if json_path is not None:
        write_text(json_path, json.dumps([price.document for price in prices], indent=1) + "\n")
    print_rows(BY_SOURCE, sources(prices))
    print_rows(BY_GROUP, ranked(rankings(prices)))
    reasons: dict[str, list[str]] = defaultdict(list)
    for price in prices:
        if price.reason is not None:
            reasons[price.reason].append(price.step.name)
    for reason, names in reasons.items():
        print(f"no price for {len(names)} of {len(prices)} rows ({', '.join(names)}): {reason}")


if __name__ == "__main__":
    main()
