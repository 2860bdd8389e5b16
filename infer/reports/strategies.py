"""A strategy as people and programs read it: its price, the proof, and what each choice of the best one buys."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models.core.cluster import RESERVE, Cluster
from automap_models.core.estimate import DeviceMemory, Estimate, strategy_in_words
from automap_models.core.model_work import ModelWork
from automap_models.core.result import Result
from automap_models.core.schedules import DEFAULT_SCHEDULE, SCHEDULES
from automap_models.core.strategy import PARTS as DIVIDED
from automap_models.core.strategy import Strategy, TransformerShape, require_parts
from automap_models.core.units import counted, percent, seconds, size, span
from automap_models.cost.layer_times import Runtime
from automap_models.errors import BadInput
from automap_models.export.targets import strategy_limits, target_by_name
from automap_models.formats.hardware_yaml import device_of, read_kinds
from automap_models.formats.strategy_json import WrittenStrategy, estimate_document
from automap_models.planners import effort
from automap_models.planners.portfolio.work import work_once
from automap_models.planners.strategies.compare import Alternative, Compared, compared, of_sizes
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import (
    StrategiesConfig,
    StrategyProblem,
    usual_batch,
    usual_precision,
)
from automap_models.planners.strategies.remedies import what_would_fit
from automap_models.plots.strategies import draw_strategies
from automap_models.simulate.strategy import StrategyPricing, require_device
from automap_models.workloads.source import notes_of, transformer

from ..commands.strategies import STRATEGIES_FOR
from ..requests import PlanRequest
from ..runner import Report
from .pipeline import heading
from .text import Column, Steps, Table, fact_table, plain, print_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

StrategyResult = Result[StrategyProblem, Strategy]


@dataclass(frozen=True)
class Searched:
    """What the command came to.

    Attributes:
        title: the model, the cluster and the samples of a step.
        compared: the result of the search, and what it was compared with.
        sizes: results on clusters of other sizes, with a sweep.
    """

    title: str
    compared: Compared
    sizes: Sequence[StrategyResult] = ()

    @property
    def result(self) -> StrategyResult:
        """Of the search."""
        return self.compared.result

    @property
    def best(self) -> Estimate:
        """The price of the best strategy."""
        cost: Estimate = self.result.cost
        return cost


def report(request: PlanRequest) -> Report:
    """The price of a strategy; or the best one, and what its choices buy."""
    if request.strategy is not None and request.strategy.price:
        estimate, notes = _priced(request), notes_of(request.source)
        show = partial(print_estimate, estimate, _title(request, estimate))
        return Report(show, partial(estimate_document, estimate), warnings=notes)
    searched = _searched(request)
    return Report(
        partial(print_searched, searched),
        partial(searched_document, searched),
        draw=partial(draw_searched, searched),
        warnings=notes_of(request.source),
    )


def _searched(request: PlanRequest) -> Searched:
    wanted, cluster, usual = request.strategy, request.cluster, StrategiesConfig()
    assert wanted is not None
    if request.options.thorough:
        usual = replace(usual, gap=0.0, budget_s=math.inf)
    budget_s = request.options.budget_s or usual.budget_s
    with Steps() as steps:

        def work(dtype: str) -> ModelWork:
            source = replace(request.source, dtype=dtype)
            transformer(source).shape()
            return work_once(source, request.cache, steps.begin)

        problem = StrategyProblem.of(
            work,
            cluster,
            device_of(cluster, request.device),
            global_batch=request.options.global_batch,
            fixed=wanted.fields,
            within=None if wanted.target is None else strategy_limits(wanted.target),
            reserve_bytes=wanted.reserves.get(None),
            rank_reserve_bytes={rank: nbytes for rank, nbytes in wanted.reserves.items() if rank is not None},
            runtime=Runtime(flash=wanted.flash),
        )
        clusters = [] if wanted.sizes is None else _clusters(cluster, *wanted.sizes)
        # Searches of the best strategy, on the cluster, on others, without a target's limits, share 0.8 of the budget.
        # What its choices buy has the rest, or, where that took less, as large a share of what it took; but 1.5 counted
        # seconds, as far as the budget has them.
        searching, searches = 0.8, 1 + len(clusters) + (wanted.target is not None)
        config = replace(usual, budget_s=searching * budget_s / searches)
        begun_s = effort.counted_s()
        result = StrategiesPlanner(config).solve(problem, watch=steps.watch)
        searched_s = effort.counted_s() - begun_s
        if result.plan is None:
            assert result.reason is not None
            raise what_would_fit(problem, result.reason, steps.watch)
        comparing_s = max(1.5, (1 - searching) / searching * searched_s)
        best = compared(result, config, steps.watch, min(comparing_s, (1 - searching) * budget_s))
        title = _title(request, best.result.cost)
        return Searched(title, best, of_sizes(best.result, clusters, config, steps.watch))


def _title(request: PlanRequest, estimate: Estimate) -> str:
    """`gpt2 on 8xa100: 1 node of 8 devices …; by the clock of a100, 512 samples of 1,024 tokens a step`."""
    samples, sequence = estimate.strategy.global_batch, transformer(request.source).shape().sequence
    where = f"{heading(estimate.model, request.cluster)}; by the clock of {plain(estimate.device)}"
    usual = "" if request.options.global_batch else " (--global-batch)"
    return f"{where}, {counted(samples, 'sample')} of {sequence:,} tokens a step{usual}"


def _clusters(cluster: Cluster, least: int, most: int) -> list[Cluster]:
    """Clusters of the same nodes, with twice as many devices each as the one before."""
    cluster.require_uniform("a sweep of sizes", "leave --devices out")
    clusters, devices = [], least
    while devices <= most:
        nodes, odd = divmod(devices, cluster.devices_per_node)
        if odd:
            what = f"{devices} devices are no whole nodes of {cluster.devices_per_node}"
            raise BadInput(what, where="--devices", do=f"begin with a multiple of {cluster.devices_per_node}")
        clusters.append(replace(cluster, nodes=nodes))
        devices *= 2
    if not clusters:
        raise BadInput(f"{least} to {most} are none", where="--devices", do="give the smaller number first")
    return clusters


def gap(result: StrategyResult) -> float | None:
    """By which share of the step any other strategy can be shorter at most; None where nothing is proven."""
    if result.bound is None or result.plan is None:
        return None
    return max(0.0, 1.0 - result.bound.value / float(result.cost.step_s))


def print_searched(searched: Searched) -> None:
    """Print the best strategy for people."""
    result, compared = searched.result, searched.compared
    print_estimate(
        searched.best,
        searched.title,
        "best strategy",
        [kinds_table(searched)] if len(compared.kinds) > 1 else [],
        [choices_table(searched)] if compared.choices else [],
        [less_memory_table(compared.memory)] if len(compared.memory) > 1 else [],
        [sizes_table(searched.sizes)] if searched.sizes else [],
        further=[*_order(result), *_limits(searched), *_uneven(searched), *_proof(result)],
        below=list(_next(searched)),
    )


def command_line(searched: Searched) -> tuple[str | None, tuple[str, ...]]:
    """What starts the strategy under the framework that it is for, and notes; None where that reads a file instead."""
    within, best, cluster = searched.result.problem.within, searched.best, searched.result.problem.cluster
    if within is None:
        return None, ()
    strategy = replace(best.strategy, layers=best.stage_layers)
    written = target_by_name(within.name).write(WrittenStrategy(best.model, strategy, best.facts), Path("plan"))
    alike = cluster.nodes * cluster.devices_per_node == cluster.devices
    where = f"--nnodes {cluster.nodes} --nproc-per-node {cluster.devices_per_node}" if alike else "…"
    return (f"torchrun {where} {written.program}", written.notes) if written.program else (None, ())


def _next(searched: Searched) -> Iterator[RenderableType]:
    """The command that starts the strategy, and what to type next."""
    from rich.text import Text

    within, (command, notes) = searched.result.problem.within, command_line(searched)
    if command is not None:
        arguments = command.replace(" ", "\xa0").replace("\xa0--", " --")  # an option and its value stand on one line
        lines = textwrap.wrap(arguments, 94, break_long_words=False, break_on_hyphens=False)
        yield Text(" \\\n    ".join(lines).replace("\xa0", " ") + "\n", no_wrap=True, overflow="ignore")
    if within is None:
        further = f"--for {', '.join(STRATEGIES_FOR)}: the best strategy that it runs"
    else:
        further = f"--out strategy.json; automap-export strategy.json --to {within.name} --check"
    yield fact_table([("next", further)], notes)


def _proof(result: StrategyResult) -> Iterator[tuple[str, str]]:
    share, counts = gap(result), result.facts
    families = f"{counts['families']:,} families of {counts['divisions']:,} divisions"
    if result.status == "optimal":
        yield "proof", f"no strategy of the grid is shorter ({families} were looked at)"
    elif share is not None:
        yield "proof", f"no strategy of the grid is more than {percent(share)} shorter ({families} were looked at)"
    yield "search", f"took {seconds(result.taken_s)}"


def _uneven(searched: Searched) -> Iterator[tuple[str, str]]:
    """What equally many layers in all stages cost, which are simpler to run."""
    uneven = searched.compared.uneven
    if uneven is not None and uneven.step_s < searched.best.step_s:
        share = percent(1 - uneven.step_s / searched.best.step_s)
        yield "unequal layers", f"would be {share} shorter ({strategy_in_words(uneven)}); give them by --layers"


def _order(result: StrategyResult) -> Iterator[tuple[str, str]]:
    """Which kind of nodes has the first ranks of the pipeline."""
    groups = result.problem.cluster.groups
    if len(groups) > 1:
        kinds = [f"{group.nodes * group.devices_per_node} {group.device or 'devices'}" for group in groups]
        yield "order of nodes", f"ranks of the pipeline have, from the first on, {', '.join(kinds)}"


def _limits(searched: Searched) -> Iterator[tuple[str, str]]:
    """What it costs that a framework is to run the strategy."""
    within, free, best = searched.result.problem.within, searched.compared.unlimited, searched.best
    if within is None or free is None:
        return
    if free.step_s >= best.step_s:
        yield f"for {within.name}", "costs nothing: no shorter strategy was found without its limits"
        return
    gain = f"without its limits a step takes {seconds(free.step_s)} or less ({strategy_in_words(free)})"
    yield f"for {within.name}", f"costs {percent(best.step_s / free.step_s - 1)} at least: {gain}"


def _columns(rows: Sequence[Alternative], best_s: float, strategy: str = "strategy") -> dict[str, Column]:
    """What tables say of strategies, by heading; that of the strategy itself may be another one."""
    estimates = [row.estimate for row in rows]
    texts = {
        "step": [_step(row) for row in rows],
        "longer by": [percent(of.step_s / best_s - 1) if of else "" for of in estimates],
        "fullest device": [size(of.peak_memory) if of else "" for of in estimates],
    }
    columns = {heading: Column(heading, cells) for heading, cells in texts.items()}
    named = [strategy_in_words(of) if of else "" for of in estimates]
    return {**columns, "strategy": Column(strategy, named, left=True)}


def _step(alternative: Alternative) -> str:
    if alternative.estimate is not None:
        return seconds(alternative.estimate.step_s)
    return "nothing fits" if alternative.ruled_out else "none found"


def kinds_table(searched: Searched) -> Table:
    """One row a kind of parallelism with its best strategy, and why it is not the best one; or that stands below."""
    best, kinds = searched.best, searched.compared.kinds
    reasons = {of.name: why_not(of, best) for of in kinds}
    columns = _columns(kinds, best.step_s)
    narrow = (Column("parallelism", list(reasons), left=True), columns["step"], columns["fullest device"])
    wide = (*narrow, Column("why not", list(reasons.values()), left=True))
    return Table((*wide, columns["strategy"]), wide, narrow, reasons=reasons.items())


def why_not(alternative: Alternative, best: Estimate) -> str:
    """The two parts of the step by which another strategy loses most; nothing for the best one."""
    other = alternative.estimate
    if other is None:
        memory = f"fits {size(min(best.memory_bytes))}"
        return f"none of these {memory}" if alternative.ruled_out else f"none was found that {memory}"
    if other.step_s <= best.step_s:
        return ""
    longer = {name: getattr(other.parts, name) - getattr(best.parts, name) for name in PARTS}
    most = sorted((name for name in longer if longer[name] > 0), key=lambda name: -longer[name])[:2]
    return ", ".join(f"{seconds(longer[name])} more of {PARTS[name]}" for name in most)


def less_memory_table(estimates: Sequence[Estimate]) -> Table:
    """One row a strategy of which none is both shorter and emptier."""
    rows = [Alternative("", of) for of in estimates]
    columns = _columns(rows, estimates[0].step_s, "strategy with less memory")
    layout = (columns["fullest device"], columns["step"], columns["longer by"])
    return Table((*layout, columns["strategy"]), layout)


def choices_table(searched: Searched) -> Table:
    """One row a choice that the best strategy makes: the best one without it."""
    rows = [Alternative("best", searched.best), *searched.compared.choices]
    columns = _columns(rows, searched.best.step_s)
    strategy = columns.pop("strategy")
    layout = (Column("what each choice buys", [of.name for of in rows], left=True), *columns.values())
    return Table((*layout, strategy), layout)


def sizes_table(results: Sequence[StrategyResult]) -> Table:
    """One row a size of the cluster."""
    columns = _columns([Alternative("", of.cost, ruled_out=True) for of in results], 1.0)
    layout = (
        Column("devices", [str(of.problem.cluster.devices) for of in results]),
        columns["step"],
        Column("tokens/s a device", [f"{of.cost.tokens_per_s_per_device:,.0f}" if of.cost else "" for of in results]),
        columns["fullest device"],
    )
    return Table((*layout, columns["strategy"]), layout)


def draw_searched(searched: Searched) -> Figure:
    """The parts of the best strategy's step and its memory beside those of the others."""
    compared = searched.compared
    named = [(of.name, of.estimate) for of in (*compared.choices, *compared.kinds)]
    sizes = [(of.problem.cluster.devices, of.cost) for of in searched.sizes]
    return draw_strategies(searched.best, named, compared.memory, sizes)


def searched_document(searched: Searched) -> dict[str, Any]:
    """The same as plain JSON types: the best strategy as of a price, and what was proven."""
    result = searched.result
    document = estimate_document(searched.best)
    document |= {
        "status": result.status,
        "bound_s": None if result.bound is None else result.bound.value,
        "gap": gap(result),
        "search": dict(result.facts),
        "search_s": result.taken_s,
        "choices": [{"choice": of.name, "best": _document(of.estimate)} for of in searched.compared.choices],
        "kinds": [{"kind": of.name, "best": _document(of.estimate)} for of in searched.compared.kinds],
        "memory": [estimate_document(of) for of in searched.compared.memory],
    }
    if searched.compared.uneven is not None:
        document["unequal_layers"] = estimate_document(searched.compared.uneven)
    if result.problem.cluster.groups:
        document["node_order"] = [group.device for group in result.problem.cluster.groups]
    if result.problem.within is not None:
        document |= {"for": result.problem.within.name, "without_limits": _document(searched.compared.unlimited)}
        document["command"], _ = command_line(searched)
    if searched.sizes:
        document["sizes"] = [
            {
                "devices": of.problem.cluster.devices,
                "bound_s": None if of.bound is None else of.bound.value,
                "best": _document(of.cost),
            }
            for of in searched.sizes
        ]
    return document


def _document(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate_document(estimate)


PARTS = {
    "compute": "compute",
    "recompute": "recomputation",
    "tensor_parallel": "sums of tensor parallelism",
    "context_parallel": "keys and values of context parallelism",
    "expert_parallel": "tokens to experts and back",
    "bubble": "idle time (bubble)",
    "transfers": "transfers between ranks",
    "data_parallel": "gradients and weights of data parallelism",
    "optimizer": "optimizer",
}
"""Field of `StepParts` → how people call it."""


def _priced(request: PlanRequest) -> Estimate:
    """The price of a strategy; what is wrong with it shows before the model is traced."""
    wanted, cluster = request.strategy, request.cluster
    assert wanted is not None
    kinds, device = read_kinds(cluster), device_of(cluster, request.device)
    devices, shape = [*kinds.values()] or [device], transformer(request.source).shape()
    samples = request.options.global_batch or usual_batch(shape, cluster.devices)
    fields = {"precision": usual_precision(devices), "global_batch": samples, **wanted.fields}
    strategy = _strategy(fields, cluster, shape)
    for kind in devices:
        require_device(kind, strategy)
    with Steps() as steps:
        work = work_once(replace(request.source, dtype=strategy.dtype), request.cache, steps.begin)
    return StrategyPricing(work, cluster, device, Runtime(flash=wanted.flash), kinds).estimate(strategy)


def _strategy(fields: Mapping[str, Any], cluster: Cluster, shape: TransformerShape) -> Strategy:
    """The strategy of a model on a cluster, with the fields that are open as `Strategy` has them.

    Data parallelism takes the devices that are left, and the schedule is 1F1B, with virtual stages the interleaved one.
    """
    fields = {"micro_batch": 1, **fields}
    require_parts(shape, **{key: fields[key] for key in DIVIDED if key in fields})
    shared = fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1)
    if "dp" not in fields and cluster.devices % shared:
        what = f"tp × cp × pp are {shared} devices, which do not divide the {cluster.devices} of cluster {cluster.name}"
        raise BadInput(what, where="`dp`", do="let the product of all be the number of devices")
    fields.setdefault("dp", cluster.devices // shared)
    fields.setdefault("schedule", "interleaved" if fields.get("vp", 1) > 1 else DEFAULT_SCHEDULE)
    fields.setdefault("vp", SCHEDULES[fields["schedule"]].virtual or 1)
    try:
        strategy = Strategy(**fields)
    except BadInput as error:
        if error.where != "`micro_batches`":
            raise
        samples = fields["dp"] * fields["micro_batch"]
        do = f"{error.do}, of {samples} sample(s) each (dp × micro-batch)"
        raise BadInput(error.what, where="`global_batch`", do=do) from None
    strategy.require_cluster(cluster)
    strategy.require_model(shape)
    return strategy


def print_estimate(
    estimate: Estimate,
    title: str,
    what: str = "strategy",
    *tables: Sequence[Table],
    further: Iterable[tuple[str, str]] = (),
    below: Sequence[RenderableType] = (),
) -> None:
    """Print a price for people, and what else is known of the strategy.

    Args:
        title: the first lines.
        what: how the strategy is called.
        tables: below its own.
        further: labels and sentences below its own.
        below: all of this.
    """
    print_parts(
        [title, f"{what}: {strategy_in_words(estimate)}"],
        [parts_table(estimate)],
        [memory_table(estimate)],
        *tables,
        [fact_table([*facts(estimate), *further])],
        below,
    )


def parts_table(estimate: Estimate) -> Table:
    """One row a part of the step that is not nothing, the step last; in a pipeline of the rank that others wait for."""
    whose = f"part of the step, rank {estimate.parts_rank}" if estimate.strategy.pp > 1 else "part of the step"
    parts = {PARTS[name]: value for name, value in estimate.parts._asdict().items() if value > 0}
    parts["step"] = estimate.step_s
    layout = (
        Column(whose, list(parts), left=True),
        Column("time", list(map(seconds, parts.values()))),
        Column("share", [percent(value / estimate.step_s) for value in parts.values()]),
    )
    return Table(layout)


def memory_table(estimate: Estimate) -> Table:
    """One row a rank of the pipeline, bytes of one of its devices; ranks that hold the same share a row."""
    alike = [list(ranks) for _, ranks in groupby(range(len(estimate.memory)), key=lambda rank: estimate.memory[rank])]
    held = [estimate.memory[ranks[0]] for ranks in alike]
    kinds = [name for name in DeviceMemory._fields if any(getattr(memory, name) for memory in held)]
    columns = [Column(name, [size(getattr(memory, name)) for memory in held]) for name in kinds]
    total = Column("total", [size(memory.total) for memory in held])
    rank = Column("rank", [span((ranks[0], ranks[-1])) for ranks in alike], left=True)
    state = Column("state", [size(memory.state) for memory in held])
    others = [column for column in columns if column.heading not in ("weights", "gradients", "optimizer")]
    return Table((rank, *columns, total), (rank, state, *others, total))


def facts(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything below the tables."""
    yield "step time", seconds(estimate.step_s)
    yield "throughput", f"{estimate.tokens_per_s_per_device:,.0f} tokens/s on a device"
    yield "MFU", f"{percent(estimate.mfu)} of the peak go into the model's own products"
    if estimate.unfitted:
        names = ", ".join(estimate.unfitted)
        yield "clock", f"unfitted: data sheet of {names}, and the mean constants of devices that have a fit"
    held, own, rank = estimate.fullest
    verdict = "does not fit"
    if estimate.fits:
        verdict = "fits" if held <= (1 - RESERVE) * own else f"at risk, less than {percent(RESERVE)} are free"
    where = f"rank {rank}" if len(estimate.memory) > 1 else "each device"
    yield "memory", f"{verdict}: {size(held)} of {size(own)} on {where}"
