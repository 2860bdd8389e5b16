"""A sharding plan chosen by its price, as people read it: what each axis partitions, and what a step costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from automap_models.core.sharding_classes import REPLICATED
from automap_models.cost.sharding import ShardingPrice, objective_value
from automap_models.formats.sharding_json import ShardingReport, sharding_document

from ..commands.pricing import Priced
from ..verify import TOLERANCE, Verified
from .sharding import shardy_sentence, variable_table
from .tables import columns, console, fact_table, plain
from .units import counted, percent, seconds, size


def price_document(found: Priced) -> dict[str, Any]:
    """The plan's JSON document, with what XLA made of it where that was asked for."""
    document = sharding_document(found.report)
    return {**document, "verified": _verified_document(found, found.verified)} if found.verified else document


def print_priced(found: Priced) -> None:
    """Print a plan for people."""
    screen, report = console(), found.report
    problem, mesh = report.problem, report.plan.mesh
    axes = " × ".join(f"{axis.name} {axis.size}" for axis in mesh)
    screen.print(
        f"[bold]{plain(problem.model)}[/bold] on a mesh of {axes} of the {problem.cluster.devices} devices of "
        f"{plain(problem.cluster.name)}, rules {plain(problem.rules)}"
    )
    screen.print(f"plan of least {problem.objective} by [bold]{plain(report.plan.planner)}[/bold]\n")
    for a, axis in enumerate(mesh):
        if len(mesh) > 1:
            screen.print(f"along [bold]{axis.name}[/bold]")
        screen.print(variable_table(report.plan, a))
        screen.print()
    screen.print(_prices(report))
    screen.print()
    screen.print(fact_table(_facts(found), report.notes))


def _prices(report: ShardingReport) -> Any:
    """The plan beside doing everything everywhere and data parallelism: time in its parts, memory."""
    table = columns()
    table.add_column("on each device", no_wrap=True)
    for heading in ("step", "compute", "all-reduce", "activations", "gradients", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    prices = {
        "this plan": report.result.cost,
        "data parallelism": report.data_parallel,
        "replicated": report.replicated,
    }
    for name, price in prices.items():
        table.add_row(name, *(_cells(price) if price else ["–"] * 6), style=None if name == "this plan" else "dim")
    return table


def _cells(price: ShardingPrice) -> list[str]:
    times = (price.time_s, price.compute_s, sum(price.all_reduce_s))
    sizes = (sum(price.activation_bytes), sum(price.gradient_bytes), price.memory_bytes)
    return [*map(seconds, times), *map(size, sizes)]


def _facts(found: Priced) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything below the tables."""
    report = found.report
    for a, axis in enumerate(report.plan.mesh):
        decided, partitioned = report.plan.candidates(a), report.plan.partitioned(a)
        whole = sum(variable.nbytes for variable in decided)
        split = sum(variable.nbytes for variable, dim in decided.items() if dim != REPLICATED)
        noun = counted(len(decided), "input" if axis.kind == "data" else "trainable parameter")
        yield axis.name, f"{partitioned} of {noun} partitioned, {percent(split / (whole or 1.0))} of their bytes"
    yield "optimum", _optimum(report)
    yield "Shardy", shardy_sentence(found.inserted)
    if found.verified:
        yield from _verified_facts(found, found.verified)
    searched = seconds(report.result.taken_s)
    yield "time", f"{seconds(report.planning_s)} from the model to the plan, {searched} of it searching"


def _optimum(report: ShardingReport) -> str:
    proven = report.result.bound
    if proven is None:
        return "nothing is proven"
    time = report.problem.objective == "time"
    reached = objective_value(report.problem, report.result.cost)
    if proven.proof == "exact":
        return f"proven: no plan on this mesh without resharding {'is faster' if time else 'takes less memory'}"
    bound = seconds(proven.value) if time else size(proven.value)
    return f"proven: no plan is below {bound}, the gap is {percent(reached / proven.value - 1.0)}"


def _verified_facts(found: Priced, verified: Verified) -> Iterator[tuple[str, str]]:
    """What XLA says of the results and of the collectives."""
    if verified.loss is None or verified.arrays is None:
        yield "verified", f"compiled only: {verified.why_not_run}"
    else:
        told = "equal" if verified.equal else "NOT EQUAL"
        yield (
            "verified",
            f"{told} to one device: loss to {verified.loss:.1e}, updated arrays to {verified.arrays:.1e} "
            f"(relative; {TOLERANCE:.0e} is allowed)",
        )
    estimates = found.estimates or {}
    for name, kinds in verified.communication.items():
        parts = ", ".join(f"{counted(one.number, kind)} ({size(one.nbytes)})" for kind, one in kinds.items())
        yield "XLA", f"{name}: {parts or 'no communication'}; estimated {size(estimates[name])}"


def _verified_document(found: Priced, verified: Verified) -> dict[str, Any]:
    estimates = found.estimates or {}
    return {
        "equal": verified.equal if verified.loss is not None else None,
        "loss": verified.loss,
        "arrays": verified.arrays,
        "why_not_run": verified.why_not_run,
        "collectives": {
            name: {
                "estimated_bytes": float(estimates[name]),
                "bytes": float(verified.nbytes(name)),
                "by_kind": {kind: {"number": one.number, "bytes": one.nbytes} for kind, one in kinds.items()},
            }
            for name, kinds in verified.communication.items()
        },
    }
