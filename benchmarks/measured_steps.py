"""Prices of training steps that others measured and published, against what they measured.

    OMP_NUM_THREADS=1 python benchmarks/measured_steps.py ROWS.json [--json OUT.json] [--plot PICTURE] [--left-out]
                                                                         [--own-constants]

ROWS.json is described in docs/reference/files.md. OUT.json gets an object for each row, in the order of the rows:
{"id", "predicted_s", "predicted_memory_bytes", "fits", "skipped"}, of which `skipped` says why a row has no price.

With --left-out the constants of V100, A100 and H100 are fitted together to all sources but one (calibration.fit_kinds),
and this one is priced, for each source in turn: the table says what all these rows come to together, those of dense
models.

With --own-constants every source gets constants that are fitted to nothing but itself, almost freely: what errors and
rankings are left are those that no choice of constants mends.

The constants are those of the shipped devices, or of the files in `--devices`, a folder of files KIND.yaml. A model is
traced once and kept in the cache of automap ($AUTOMAP_CACHE, else ~/.cache/automap).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from common import refuse
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import kendalltau

from automap_models.core.device import Device, StepConstants
from automap_models.core.estimate import Estimate
from automap_models.core.strategy import Strategy
from automap_models.cost.measured import MeasuredStep, SkippedStep
from automap_models.errors import BadInput
from automap_models.formats.atomic import Cache, cache_folder, require_writable, write_text
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.simulate.calibration import (
    MeasuredKind,
    SourceErrors,
    errors_by_source,
    errors_of,
    fit_constants,
    fit_kinds,
    left_out_of_kinds_s,
    step_observation,
)
from automap_models.simulate.measured import measured_bytes, measured_estimate
from automap_models.simulate.rounds import compile_loops
from automap_models.workloads.measured import MeasuredWorks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

LEAST_PLANS = 4
"""Of a group whose plans are ranked."""
FAR = math.log(1.03)
"""Of logarithms of two steps that noise does not order."""
LEAST_SPREAD = 1.3
"""Of the slowest over the fastest plan of a group that counts for the mean."""


class Price(NamedTuple):
    """A measured step and what it is estimated to cost; the reason where it has no price.

    Attributes:
        taken_s: processor time of pricing it once its model is profiled; the first step of a shape of a pipeline pays
            for laying out the schedule.
    """

    step: MeasuredStep | SkippedStep
    estimate: Estimate | None
    reason: str | None
    taken_s: float = 0.0

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


def priced(
    steps: Iterable[MeasuredStep | SkippedStep], works: MeasuredWorks, devices: dict[str, Device]
) -> list[Price]:
    """Every step with its price."""
    return [_priced(step, works, devices) for step in steps]


def _priced(step: MeasuredStep | SkippedStep, works: MeasuredWorks, devices: dict[str, Device]) -> Price:
    if isinstance(step, SkippedStep):
        return Price(step, None, step.reason)
    try:
        work, begin_s = works.of(step), time.process_time()
        estimate = measured_estimate(step, work, devices[step.device])
        return Price(step, estimate, None, time.process_time() - begin_s)
    except BadInput as error:
        return Price(step, None, str(error))


@dataclass(frozen=True)
class Ranking:
    """How plans of one model on one cluster are ranked.

    Attributes:
        name: of the model, the cluster and the batch.
        plans: how many.
        spread: the slowest measured over the fastest.
        tau: Kendall's, of predicted and measured seconds.
        far: the same over pairs whose measured seconds are FAR apart, see `far_tau`; NaN where there are none.
        ceiling: mean of what a perfect prediction would reach, see `tau_ceiling`; NaN where nothing was repeated.
        loss: of the plan that is predicted to be the fastest over the fastest, a share of 1.
    """

    name: str
    plans: int
    spread: float
    tau: float
    far: float
    ceiling: float
    loss: float


Plan = tuple[float, float, Strategy]
"""Predicted and measured seconds of a strategy."""


def ranking(name: str, plans: Sequence[Plan], noise: float = math.nan) -> Ranking:
    """The ranking of a group's plans; `noise` is that of measurements, see `noise_of`."""
    predicted, measured, _ = zip(*plans, strict=True)
    best = min(measured)
    tau = float(kendalltau(predicted, measured).statistic)
    chosen = measured[int(np.argmin(predicted))]
    ceiling = tau_ceiling(plans, noise)
    return Ranking(name, len(measured), max(measured) / best, tau, far_tau(plans), ceiling, chosen / best - 1)


def far_tau(plans: Sequence[Plan]) -> float:
    """Of pairs whose measured seconds are FAR apart: share ordered rightly minus share ordered wrongly."""
    predicted, measured = (np.log(np.array([plan[i] for plan in plans], np.float64)) for i in (0, 1))
    one, other = np.triu_indices(len(plans), 1)
    apart = measured[one] - measured[other]
    signs = np.sign(apart) * np.sign(predicted[one] - predicted[other])
    far = np.abs(apart) > FAR
    return float(signs[far].mean()) if far.any() else math.nan


def rankings(prices: Iterable[Price], *, daily: bool = False) -> list[Ranking]:
    """Of every group of LEAST_PLANS or more plans of one source, system, model, cluster, batch and precision.

    Args:
        prices: of steps.
        daily: whether plans of a group were also measured on one day, where days are known. Machines change between
            days: the source of BLOOM's trials says itself that those of some days must not be compared.
    """
    groups: dict[tuple[object, ...], list[Plan]] = defaultdict(list)
    for step, estimate, *_ in prices:
        if isinstance(step, MeasuredStep) and estimate is not None and step.step_s is not None:
            strategy = step.strategy
            day = step.day if daily else ""
            key = (step.source, step.system, step.shape, step.cluster, strategy.global_batch, strategy.precision, day)
            groups[key].append((estimate.step_s, step.step_s, strategy))
    noises = {source: noise_of(plans for key, plans in groups.items() if key[0] == source) for source, *_ in groups}
    result = []
    for (source, _, shape, cluster, batch, *_), plans in groups.items():
        if len(plans) >= LEAST_PLANS:
            name = f"{source}: {shape.name}, {cluster.devices} devices, {batch} samples"  # type: ignore[attr-defined]
            result.append(ranking(name, plans, noises[source]))
    return result


def noise_of(groups: Iterable[Sequence[Plan]]) -> float:
    """Standard deviation of the logarithm of steps that one strategy took several times; NaN where none did."""
    squares, freedom = 0.0, 0
    for plans in groups:
        for logs in _repeats(plans).values():
            squares += float(((logs - logs.mean()) ** 2).sum())
            freedom += logs.size - 1
    return math.sqrt(squares / freedom) if freedom else math.nan


def _repeats(plans: Sequence[Plan]) -> dict[Strategy, FloatArray]:
    """Strategy → logarithms of its measured steps."""
    steps: dict[Strategy, list[float]] = defaultdict(list)
    for _, measured, strategy in plans:
        steps[strategy].append(math.log(measured))
    return {strategy: np.array(logs) for strategy, logs in steps.items()}


def tau_ceiling(plans: Sequence[Plan], noise: float, draws: int = 500) -> float:
    """Mean τ of the true steps with measurements of them that have this noise.

    What is taken for true is the mean of a strategy's measurements. So the truth is as far apart as measurements are,
    which is farther than it is: the ceiling is rather too high.
    """
    if math.isnan(noise):
        return math.nan
    repeats, generator = _repeats(plans), np.random.default_rng(0)
    true = np.array([repeats[strategy].mean() for _, _, strategy in plans])
    measured = true + generator.normal(0.0, noise, (draws, true.size))
    return float(np.mean([kendalltau(true, one).statistic for one in measured]))


def verdicts(prices: Iterable[Price]) -> tuple[int, int]:
    """How many verdicts, that a run fits or does not, are right, and how many there are."""
    known = [
        (step.fits, estimate.fits)
        for step, estimate, *_ in prices
        if isinstance(step, MeasuredStep) and estimate is not None and step.fits is not None
    ]
    return sum(measured == predicted for measured, predicted in known), len(known)


def tables(prices: list[Price]) -> list[Table]:
    """Errors by source, and rankings by group."""
    by_source = Table(
        "source", "rows", "priced", "median", "p90", "ratio", "memory: rows", "median", "p90", "ratio", "fits"
    )
    sources = sorted({price.step.source for price in prices})
    for source in [*sources, "all"]:
        own = [price for price in prices if source in (price.step.source, "all")]
        right, known = verdicts(own)
        counts = [len(own), sum(price.estimate is not None for price in own)]
        by_source.add_row(source, *map(str, counts), *_cells(own, "step_s"), *_cells(own, "memory"), f"{right}/{known}")
    ranked = Table(
        "group", "plans", "slowest / fastest", "Kendall τ", "> 3 % apart", "a perfect one's", "chosen over best"
    )
    groups = rankings(prices)
    for group in sorted(groups, key=lambda group: -group.spread):
        ceiling = "" if math.isnan(group.ceiling) else f"{group.ceiling:.2f}"
        cells = (
            str(group.plans),
            f"{group.spread:.2f}",
            f"{group.tau:.2f}",
            f"{group.far:.2f}",
            ceiling,
            f"{100 * group.loss:.1f} %",
        )
        ranked.add_row(group.name, *cells)
    add_means(ranked, groups, "")
    if any(isinstance(price.step, MeasuredStep) and price.step.day for price in prices):
        add_means(ranked, rankings(prices, daily=True), " on one day")
    return [by_source, ranked]


def add_means(table: Table, groups: Sequence[Ranking], which: str) -> None:
    """Add the means over groups that are spread widely, and over all."""
    for least in (LEAST_SPREAD, 1.0):
        wide = [group for group in groups if group.spread > least]
        if wide:
            tau, far, loss = (np.nanmean([getattr(group, name) for group in wide]) for name in ("tau", "far", "loss"))
            cells = str(len(wide)), "", f"{tau:.2f}", f"{far:.2f}", "", f"{100 * loss:.1f} %"
            table.add_row(f"mean of spread > {least}{which}", *cells)


def _cells(prices: Iterable[Price], what: str) -> tuple[str, ...]:
    predicted, measured = pairs_of(prices, what)
    errors = errors_of(what, np.array(predicted) / np.array(measured))
    shown = _in_words(errors) if errors.steps else ("", "", "")
    return (*([str(errors.steps)] if what == "memory" else []), *shown)


def pairs_of(prices: Iterable[Price], what: str) -> tuple[list[float], list[float]]:
    """What is predicted and what was measured: `step_s` or `memory`."""
    predicted, measured = [], []
    for step, estimate, *_ in prices:
        if isinstance(step, MeasuredStep) and estimate is not None:
            value = step.step_s if what == "step_s" else step.memory_bytes
            if value is not None:
                predicted.append(estimate.step_s if what == "step_s" else measured_bytes(step, estimate))
                measured.append(value)
    return predicted, measured


KINDS = {"v100": ("v100",), "a100": ("a100", "a100-40"), "h100": ("h100",), "h100-96": ("h100-96",)}
"""Kinds of devices that have more than one source, with those that have the same constants."""


def left_out(steps: Iterable[MeasuredStep | SkippedStep], works: MeasuredWorks, devices: dict[str, Device]) -> Table:
    """Errors of every source under constants that are fitted to the others, and of dense models together."""
    measured = [step for step in steps if isinstance(step, MeasuredStep) and step.step_s is not None]
    table = Table("device", "source", "rows", "median", "p90", "ratio")
    own = {kind: [step for step in measured if step.device in names] for kind, names in KINDS.items()}
    kinds = {
        kind: MeasuredKind(
            [step_observation(step, works.of(step)) for step in own[kind]], [devices[name] for name in names]
        )
        for kind, names in KINDS.items()
    }
    fitted = fit_kinds(kinds, {kind: devices[kind].constants for kind in kinds})
    seconds = left_out_of_kinds_s(kinds, fitted)
    dense: list[float] = []
    for kind, (observations, _) in kinds.items():
        for of_source in errors_by_source(observations, seconds[kind]):
            table.add_row(kind, of_source.source, str(of_source.steps), *_in_words(of_source))
        for predicted_s, step in zip(seconds[kind].tolist(), own[kind], strict=True):
            if not step.shape.experts and step.step_s is not None:
                dense.append(predicted_s / step.step_s)
    together = errors_of("dense models", dense)
    table.add_row("all", together.source, str(together.steps), *_in_words(together))
    return table


OWN_PULL = 0.02
"""Weight of the pull of constants that are fitted to one source: as good as none."""


def with_own_constants(prices: Iterable[Price], works: MeasuredWorks, devices: dict[str, Device]) -> list[Price]:
    """Every step that has seconds and a price, priced anew with constants that are fitted to its own source."""
    by_source: dict[tuple[str, StepConstants], list[MeasuredStep]] = defaultdict(list)
    for step, estimate, *_ in prices:
        if isinstance(step, MeasuredStep) and estimate is not None and step.step_s is not None:
            by_source[step.source, devices[step.device].constants].append(step)
    result = []
    for (_, start), steps in by_source.items():
        kinds = [devices[name] for name in sorted({step.device for step in steps})]
        observations = [step_observation(step, works.of(step)) for step in steps]
        fitted = fit_constants(observations, kinds, start, pull=OWN_PULL).constants
        own = {kind.name: replace(kind, step=fitted) for kind in kinds}
        result += priced(steps, works, own)
    return result


def own_constants(prices: Iterable[Price], works: MeasuredWorks, devices: dict[str, Device]) -> list[Table]:
    """The tables of `tables`, and the errors of dense models, of V100, A100 and H100, with each source's constants."""
    anew = with_own_constants(prices, works, devices)
    usual = {name for names in KINDS.values() for name in names}
    dense = [price for price in anew if isinstance(price.step, MeasuredStep) and price.step.device in usual]
    dense = [price for price in dense if isinstance(price.step, MeasuredStep) and not price.step.shape.experts]
    predicted, measured = pairs_of(dense, "step_s")
    together = errors_of("dense models", np.array(predicted) / np.array(measured))
    table = Table("each source's own constants", "rows", "median", "p90", "ratio")
    table.add_row(together.source, str(together.steps), *_in_words(together))
    return [*tables(anew), table]


def _in_words(errors: SourceErrors) -> tuple[str, str, str]:
    return f"{100 * errors.median:.1f} %", f"{100 * errors.p90:.1f} %", f"{errors.ratio:.2f}"


def scatter(prices: list[Price]) -> Figure:
    """Predicted over measured seconds, a colour for each source."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.add_subplot()
    sources = sorted({price.step.source for price in prices if pairs_of([price], "step_s")[0]})
    for i, source in enumerate(sources):
        predicted, measured = pairs_of((price for price in prices if price.step.source == source), "step_s")
        axes.scatter(measured, predicted, s=12, color=f"C{i}", alpha=0.7, label=source, marker="osv^Dx"[i % 6])
    ends = np.array([min(pairs_of(prices, "step_s")[1]) / 1.5, max(pairs_of(prices, "step_s")[1]) * 1.5])
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(ends, ends / 1.2, ends * 1.2, color="black", alpha=0.08, linewidth=0, label="± 20 %")
    axes.set(xscale="log", yscale="log", xlabel="measured step, s", ylabel="predicted step, s", xlim=ends, ylim=ends)
    axes.legend(fontsize="small")
    return figure


def shipped_devices(folder: Path | None) -> dict[str, Device]:
    """The shipped devices by name, and in their place those in a folder."""
    devices = {name: read_device(name) for name in known_devices()}
    for path in sorted(folder.glob("*.yaml")) if folder else ():
        devices[path.stem] = read_device(path)
    return devices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="measured steps")
    parser.add_argument("--json", type=Path, help="write the price of every row")
    parser.add_argument("--plot", type=Path, help="draw predicted over measured seconds")
    parser.add_argument("--left-out", action="store_true", help="fit without each source, and price it (minutes)")
    parser.add_argument("--own-constants", action="store_true", help="fit each source to itself (minutes)")
    parser.add_argument("--devices", type=Path, help="folder of devices KIND.yaml in place of the shipped ones")
    arguments = parser.parse_args()
    try:
        for path in (arguments.json, arguments.plot):
            if path is not None:
                require_writable(path)
        steps = read_measured_steps(arguments.rows)
        devices = shipped_devices(arguments.devices)
        works = MeasuredWorks(Cache(cache_folder()))
        compile_loops()
        prices = priced(track(steps, "pricing", console=Console(stderr=True), transient=True), works, devices)
        report(prices, arguments.json, arguments.plot)
        if arguments.own_constants:
            for table in own_constants(prices, works, devices):
                Console(width=140).print(table)
        if arguments.left_out:
            Console(width=140).print(left_out(steps, works, devices))
    except BadInput as error:
        refuse(str(error))


def report(prices: list[Price], json_path: Path | None, plot: Path | None) -> None:
    """Write and draw what is asked for, and print the tables."""
    if json_path is not None:
        write_text(json_path, json.dumps([price.document for price in prices], indent=1) + "\n")
    if plot is not None:
        from automap_models.plots.figures import save_figure

        save_figure(plot, scatter(prices))
    screen = Console(width=140)
    for table in tables(prices):
        screen.print(table)
    taken_s = [price.taken_s for price in prices if price.estimate is not None]
    if taken_s:
        mean, p90, most = 1e3 * np.array([np.mean(taken_s), np.percentile(taken_s, 90), max(taken_s)])
        screen.print(f"a price of a profiled model: mean {mean:.1f} ms, p90 {p90:.1f} ms, slowest {most:.0f} ms")
    reasons: dict[str, list[str]] = defaultdict(list)
    for price in prices:
        if price.reason is not None:
            reasons[price.reason].append(price.step.name)
    for reason, names in reasons.items():
        screen.print(f"no price for {', '.join(names)}: {reason}", markup=False, highlight=False)


if __name__ == "__main__":
    main()
