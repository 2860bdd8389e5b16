"""The price of a strategy as people read it: the step and its parts, and the memory of every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import DeviceMemory, Estimate, strategy_in_words
from automap_models.core.schedules import DEFAULT_SCHEDULE, SCHEDULES
from automap_models.core.strategy import PARTS as DIVIDED
from automap_models.core.strategy import Strategy, TransformerShape, require_parts
from automap_models.core.units import percent, seconds, size
from automap_models.cost.layer_times import Runtime
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import device_of, read_kinds
from automap_models.formats.strategy_json import estimate_document
from automap_models.planners.portfolio.work import work_once
from automap_models.planners.strategies.problem import RESERVE, usual_precision
from automap_models.simulate.strategy import StrategyPricing, require_device
from automap_models.workloads.source import notes_of, transformer

from ..requests import PlanRequest
from ..runner import Report
from .text import Column, Steps, fact_table, plain, print_parts, table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

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


def report(request: PlanRequest) -> Report:
    """The price of a strategy."""
    estimate, notes = _priced(request), notes_of(request.source)
    return Report(partial(print_estimate, estimate), partial(estimate_document, estimate), warnings=notes)


def _priced(request: PlanRequest) -> Estimate:
    """The price of a strategy; what is wrong with it shows before the model is traced."""
    wanted, cluster = request.strategy, request.cluster
    assert wanted is not None
    kinds, device = read_kinds(cluster), device_of(cluster, request.device)
    devices = [*kinds.values()] or [device]
    fields = {"precision": usual_precision(devices), "global_batch": request.options.global_batch, **wanted.fields}
    strategy = _strategy(fields, cluster, transformer(request.source).shape())
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
    what: str = "strategy",
    *tables: Sequence[Callable[[int], RenderableType]],
    further: Iterable[tuple[str, str]] = (),
) -> None:
    """Print a price for people, and what else is known of the strategy.

    Args:
        what: how the strategy is called.
        tables: below its own, functions of a width.
        further: labels and sentences below its own.
    """
    print_parts(
        [
            f"[bold]{plain(estimate.model)}[/bold] on {plain(estimate.cluster)} ({plain(estimate.device)})",
            f"{what}: {strategy_in_words(estimate)}",
        ],
        [partial(parts_table, estimate)],
        [partial(memory_table, estimate)],
        *tables,
        [fact_table([*facts(estimate), *further])],
    )


def parts_table(estimate: Estimate, width: int) -> Table:
    """One row a part of the step that is not nothing, the step last; in a pipeline of the rank that others wait for."""
    whose = f"part of the step, rank {estimate.parts_rank}" if estimate.strategy.pp > 1 else "part of the step"
    parts = {PARTS[name]: value for name, value in estimate.parts._asdict().items() if value > 0}
    parts["step"] = estimate.step_s
    layout = (
        Column(whose, list(parts), left=True),
        Column("time", list(map(seconds, parts.values()))),
        Column("share", [percent(value / estimate.step_s) for value in parts.values()]),
    )
    return table(width, layout)


def memory_table(estimate: Estimate, width: int) -> Table:
    """One row a rank of the pipeline, bytes of one of its devices; ranks that hold the same share a row."""
    ranks = list(_ranks_alike(estimate.memory))
    held = [memory for _, memory in ranks]
    kinds = [name for name in DeviceMemory._fields if any(getattr(memory, name) for memory in held)]
    columns = [Column(name, [size(getattr(memory, name)) for memory in held]) for name in kinds]
    total = Column("total", [size(memory.total) for memory in held])
    rank = Column("rank", [name for name, _ in ranks], left=True)
    state = Column("state", [size(memory.state) for memory in held])
    others = [column for column in columns if column.heading not in ("weights", "gradients", "optimizer")]
    return table(width, (rank, *columns, total), (rank, state, *others, total))


def _ranks_alike(memory: tuple[DeviceMemory, ...]) -> Iterator[tuple[str, DeviceMemory]]:
    first = 0
    for rank, held in enumerate(memory):
        if rank + 1 == len(memory) or memory[rank + 1] != held:
            yield (str(rank) if rank == first else f"{first}–{rank}"), held
            first = rank + 1


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
