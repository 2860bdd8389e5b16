"""A search of shardings: the plan with the most partitioned variables, or the cheapest, checked by Shardy.

People read a table by block as Auto-MAP's Tables 3 and 4, in which variables that are named alike and partitioned alike
are one row, and what is known of the plan.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from automap_models.core.result import Bound
from automap_models.core.sharding import CANDIDATES, Collectives, ShardingPlan, variable_rows
from automap_models.core.sharding_classes import REPLICATED
from automap_models.core.units import counted, percent, seconds, size
from automap_models.cost.sharding import ShardingPrice, objective_value
from automap_models.envs.sharding.propagation import Propagation
from automap_models.formats.atomic import write_json
from automap_models.formats.sharding_plan import ShardingReport, sharding_document
from automap_models.plots.exploration import draw_search
from automap_models.requests import SearchRequest
from automap_models.requests.sharding import Sharded
from automap_models.run.verify_sharding import TOLERANCE, Verified

from ..runner import Report
from .text import Column, Table, fact_table, plain, print_parts


def report(request: SearchRequest, answer: Sharded) -> Report:
    """Tables by block, the plan's JSON document, a picture of the episodes.

    A plan that does not compute what one device does is a defect, and the exit code says so.
    """
    groups = request.show_groups
    return Report(
        partial(print_sharded, answer, groups=groups),
        partial(sharded_document, answer, groups=groups),
        {"plan": lambda path: write_json(path, sharding_document(answer.report))},
        partial(draw_search, answer.report),
        exit_code=0 if answer.verified is None or answer.verified.equal else 1,
    )


def sharded_document(outcome: Sharded, *, groups: bool) -> dict[str, Any]:
    """The plan's JSON document; with `groups` the linkage group of every decision, and what XLA made of it if asked."""
    document = sharding_document(outcome.report)
    if groups:
        document["linkage_groups"] = _group_documents(outcome)
    return {**document, "verified": _verified_document(outcome.verified)} if outcome.verified else document


def print_sharded(outcome: Sharded, *, groups: bool) -> None:
    """Print a plan for people; with `groups`, the linkage groups, too."""
    report = outcome.report
    problem, mesh = report.problem, report.plan.mesh
    counting = problem.objective == "count"
    axes = " × ".join(f"{axis.name} {axis.size}" for axis in mesh)
    devices = f"{mesh[0].size}" if counting else f"a mesh of {axes}"
    kind = f"{mesh[0].kind} plan" if counting else f"plan of least {problem.objective}"
    conflicts = "[dim]every other dimension conflicts when it is partitioned[/dim]"
    print_parts(
        [
            f"[bold]{plain(problem.model)}[/bold] on {devices} of the {problem.cluster.devices} devices of "
            f"{plain(problem.cluster.name)}, rules {plain(problem.rules)}",
            f"{kind} by [bold]{plain(report.plan.planner)}[/bold]",
        ],
        *(_along(report.plan, a) for a in range(len(mesh))),
        [group_table(outcome), conflicts] if groups else [],
        [] if counting else [_prices(report)],
        [fact_table(_count_facts(outcome) if counting else _price_facts(outcome), report.notes)],
    )


def _along(plan: ShardingPlan, axis: int) -> Iterator[str | Table]:
    if len(plan.mesh) > 1:
        yield f"along [bold]{plan.mesh[axis].name}[/bold]"
    yield variable_table(plan, axis)


def variable_table(plan: ShardingPlan, axis: int) -> Table:
    """One row for the variables of a kind; the partitioned dimension's size is divided by the axis's devices."""
    rows = list(variable_rows(plan, axis))
    shapes = [{variable.shape for variable in row.variables} for row in rows]
    divided = [
        _divided(next(iter(some)), row.dim, plan.mesh[axis].size) if len(some) == 1 else "several"
        for row, some in zip(rows, shapes, strict=True)
    ]

    def named(room: int) -> list[str]:
        return ["\n".join(row.name[begin : begin + room] for begin in range(0, len(row.name), room)) for row in rows]

    layout = (
        Column(CANDIDATES[plan.mesh[axis].kind], named, 20, text=True),
        Column("number", [str(len(row.variables)) for row in rows]),
        Column("shape", divided, text=True),
        Column("dim", [str(row.dim) for row in rows]),
    )
    return Table(layout, styles=["dim" if row.dim == REPLICATED else "" for row in rows])


def group_table(outcome: Sharded) -> Table:
    """One row for each class that can be partitioned: what deciding one of its dimensions decides."""
    (along,) = outcome.report.problem.along
    propagation = Propagation(along)
    names, sizes, numbers = [], [], set()
    for dim in propagation.order(linkage_groups=True).tolist():
        number = int(propagation.dim_classes[dim])
        if along.live[number] and number not in numbers:
            group_size = int(propagation.sizes[number])
            names.append(along.classes.describe(int(along.candidate_dims[dim])))
            sizes.append((group_size - 1, group_size, int(propagation.excluded_sizes[number]), group_size))
        numbers.add(number)
    headings = ("and so\nmany more", "partitioning it\npartitions", "\nreplicates", "replicating it\nreplicates")
    counts = [Column(heading, [str(row[i]) for row in sizes]) for i, heading in enumerate(headings)]
    named = Column("linkage group of", lambda room: [textwrap.fill(name, room) for name in names], 16, text=True)
    return Table((named, *counts))


def _count_facts(outcome: Sharded) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything below the tables."""
    report, plan = outcome.report, outcome.report.plan
    decided, counts, (along,) = plan.candidates(), report.facts, report.problem.along
    yield "result", _partitioned(plan, 0)
    followers = sum(dim != REPLICATED for v, dim in plan.by_variable().items() if v not in decided)
    if followers:
        yield "follows", f"{counted(followers, 'other argument')} of the step, the optimiser's state among them"
    yield "memory", _memory(plan)
    dims = int(along.candidate_dims.size)
    live = int(along.live[along.classes.dim_classes[along.candidate_dims]].sum())
    propagated = f"{counts['decided_by_propagation'][0]} were decided by propagation"
    yield "search", f"{live} of {counted(dims, 'dimension')} could be partitioned; {propagated}"
    if episodes := counts.get("episodes"):
        cut_off = ", then interrupted" if counts["interrupted"] else ""
        yield "episodes", f"{episodes:,}{cut_off}; the plan's reward is {counts['reward'][0]:.1f}"
    yield "optimum", _count_optimum(plan, report.bound)
    yield from _checks(outcome)


def _partitioned(plan: ShardingPlan, axis: int) -> str:
    """How many of the variables that an axis may divide it does."""
    decided = plan.candidates(axis)
    total_bytes = sum(variable.nbytes for variable in decided) or 1.0
    split = sum(variable.nbytes for variable, dim in decided.items() if dim != REPLICATED)
    noun = counted(len(decided), "input" if plan.mesh[axis].kind == "data" else "trainable parameter")
    return f"{plan.partitioned(axis)} of {noun} partitioned, {percent(split / total_bytes)} of their bytes"


def _checks(outcome: Sharded) -> Iterator[tuple[str, str]]:
    """What Shardy and XLA made of the plan, and how long it took."""
    if outcome.inserted is not None:
        yield "Shardy", shardy_sentence(outcome.inserted)
    if outcome.verified:
        yield from _verified_facts(outcome.verified)
    searched = seconds(outcome.report.taken_s)
    yield "time", f"{seconds(outcome.report.planning_s)} from the model to the plan, {searched} of it searching"


def _memory(plan: ShardingPlan) -> str:
    """What the step's arguments take on each device."""
    devices = plan.mesh[0].size
    memory = sum(v.nbytes / (1 if dim == REPLICATED else devices) for v, dim in plan.by_variable().items())
    return f"{size(memory)} of arguments on each device, {size(sum(v.nbytes for v in plan.variables))} replicated"


def _count_optimum(plan: ShardingPlan, bound: Bound | None) -> str:
    if bound is None:
        return "nothing is proven"
    if bound.proof == "exact" and plan.partitioned() >= bound.value:
        return "proven: no plan without resharding partitions more"
    gap = percent(1.0 - plan.partitioned() / bound.value)
    return f"proven: no plan partitions more than {int(bound.value)}, the gap is {gap}"


def shardy_sentence(inserted: Mapping[str, Collectives]) -> str:
    """What the compiler's own propagation of the plan inserts."""
    parts = [
        f"{counted(number, kind.replace('_', '-'))} ({size(nbytes)})"
        for kind, (number, nbytes) in sorted(inserted.items())
    ]
    what = ", ".join(parts) or "no communication"
    return f"its own propagation of the plan gives {what}" + ("" if "reshard" in inserted else ", no reshard")


def _group_documents(outcome: Sharded) -> list[dict[str, Any]]:
    """The sizes of the linkage groups of every dimension; null where partitioning it conflicts in itself."""
    (along,) = outcome.report.problem.along
    propagation, classes = Propagation(along), along.classes
    documents = []
    for dim, entry in enumerate(along.candidate_dims.tolist()):
        variable, number = int(classes.dim_variables[entry]), int(propagation.dim_classes[dim])
        group_size, excluded = int(propagation.sizes[number]), int(propagation.excluded_sizes[number])
        documents.append(
            {
                "variable": classes.variables[variable].name,
                "dim": entry - int(classes.dim_offsets[variable]),
                "partition": [group_size, excluded] if along.live[number] else None,
                "replicate": group_size,
            }
        )
    return documents


def _divided(shape: tuple[int, ...], dim: int, devices: int) -> str:
    """`[768, 3072/4]`."""
    return f"[{', '.join(f'{n}/{devices}' if i == dim else str(n) for i, n in enumerate(shape))}]"


def _prices(report: ShardingReport) -> Table:
    """The plan beside doing everything everywhere and data parallelism: time in its parts, memory."""
    prices = {
        "this plan": report.cost,
        "data parallelism": report.data_parallel,
        "replicated": report.replicated,
    }
    rows = [_cells(price) if price else ["–"] * 6 for price in prices.values()]
    headings = ("step", "compute", "all-reduce", "activations", "gradients", "memory")
    layout = [Column(heading, [row[i] for row in rows]) for i, heading in enumerate(headings)]
    return Table((Column("on each device", list(prices), text=True), *layout), styles=["", "dim", "dim"])


def _cells(price: ShardingPrice) -> list[str]:
    times = (price.time_s, price.compute_s, sum(price.all_reduce_s))
    sizes = (sum(price.activation_bytes), sum(price.gradient_bytes), price.memory_bytes)
    return [*map(seconds, times), *map(size, sizes)]


def _price_facts(outcome: Sharded) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything below the tables."""
    report = outcome.report
    for a, axis in enumerate(report.plan.mesh):
        yield axis.name, _partitioned(report.plan, a)
    yield "optimum", _price_optimum(report)
    yield from _checks(outcome)


def _price_optimum(report: ShardingReport) -> str:
    proven = report.bound
    if proven is None or not proven.value:
        return "nothing is proven"
    time = report.problem.objective == "time"
    reached = objective_value(report.problem, report.cost)
    if proven.proof == "exact":
        return f"proven: no plan on this mesh without resharding {'is faster' if time else 'takes less memory'}"
    bound = seconds(proven.value) if time else size(proven.value)
    return f"proven: no plan is below {bound}, the gap is {percent(reached / proven.value - 1.0)}"


def _verified_facts(verified: Verified) -> Iterator[tuple[str, str]]:
    """What XLA says of the results and of the collectives."""
    if verified.loss is None or verified.arrays is None:
        yield "verified", f"compiled only: {verified.reason_not_run}"
    else:
        result = "equal" if verified.equal else "NOT EQUAL"
        errors = f"loss to {verified.loss:.1e}, updated arrays to {verified.arrays:.1e}"
        yield "verified", f"{result} to one device: {errors} (relative; {TOLERANCE:.0e} is allowed)"
    for name, kinds in verified.communication.items():
        parts = ", ".join(f"{counted(number, kind)} ({size(nbytes)})" for kind, (number, nbytes) in kinds.items())
        yield "XLA", f"{name}: {parts or 'no communication'}; estimated {size(verified.estimates[name])}"


def _verified_document(verified: Verified) -> dict[str, Any]:
    return {
        "equal": verified.equal if verified.loss is not None else None,
        "loss": verified.loss,
        "arrays": verified.arrays,
        "why_not_run": verified.reason_not_run,
        "collectives": {
            name: {
                "estimated_bytes": float(verified.estimates[name]),
                "bytes": float(verified.nbytes(name)),
                "by_kind": {kind: {"number": number, "bytes": nbytes} for kind, (number, nbytes) in kinds.items()},
            }
            for name, kinds in verified.communication.items()
        },
    }
