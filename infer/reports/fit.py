"""Whether a model fits, as people and programs read it: the memory by kind as an interval, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.units import percent, seconds, size
from automap_models.errors import Infeasible
from automap_models.formats.strategy_plan import estimate_document
from automap_models.planners.strategies.remedies import USEFUL, Remedy
from automap_models.requests import FitRequest
from automap_models.requests.fit import FitResult
from automap_models.workloads.source import notes_of

from ..commands.parsing import in_options
from ..runner import Report
from .pipeline import heading
from .run_cost import exit_code, run_document, run_facts
from .strategies import facts, throughput, title_of
from .text import Column, Table, fact_table, print_parts


def report(request: FitRequest, answer: FitResult) -> Report:
    """The verdict, the memory of the fullest device, and the best strategy or what would fit."""
    code = Infeasible.exit_code if answer.plan is None else exit_code(request, [(request.cluster, answer.cost)])
    return Report(
        lambda: _print(request, answer),
        lambda: fit_document(request, answer),
        warnings=notes_of(request.source, traced=False),
        exit_code=code,
    )


def _print(request: FitRequest, answer: FitResult) -> None:
    estimate: Estimate | None = answer.cost or answer.emptiest
    title = (
        heading(answer.problem.work.shape.name, request.cluster) if estimate is None else title_of(request, estimate)
    )
    print_parts(
        [title, in_options(_verdict(answer))],
        [memory_table(estimate)] if estimate is not None else [],
        [remedies_table(answer.remedies, answer.plan is not None)] if answer.remedies else [],
        [fact_table([*_facts(request, answer)])],
    )


def _verdict(answer: FitResult) -> str:
    """The first line of the answer: the verdict, and of what."""
    if answer.plan is not None:
        return f"{answer.verdict}: {strategy_in_words(answer.cost)}"
    proof = "" if answer.status == "infeasible" else " was found that"
    what = f"no strategy of {answer.problem.global_batch} samples{proof} fits {size(answer.problem.cluster.memory)}"
    emptiest = f"; one of the emptiest is {strategy_in_words(answer.emptiest)}" if answer.emptiest else ""
    return f"{answer.verdict}: {what}{emptiest}"


def _facts(request: FitRequest, answer: FitResult) -> Iterator[tuple[str, str]]:
    if answer.plan is not None:
        yield from (*facts(answer.cost), *run_facts(request, request.cluster, answer.cost))
        yield "search", f"took {seconds(answer.taken_s)} and proves nothing; automap plan says how near the best it is"
    else:
        yield "search", f"took {seconds(answer.taken_s)}"
    if answer.remedies:
        to = "" if answer.plan is None else f", to go beyond {percent(USEFUL)} of the peak"
        yield "least change", in_options(answer.remedies[0].change) + to
    elif answer.plan is None:
        yield "least change", "none was found with which something fits"


def memory_table(estimate: Estimate) -> Table:
    """One row a kind of memory of the fullest device, and what it is at most."""
    total, _, rank = estimate.fullest
    rows = {**_parts(estimate), "total": total}
    where = f"rank {rank}" if len(estimate.memory) > 1 else "each device"
    layout = (
        Column(f"memory of {where}", list(rows), text=True),
        Column("about", list(map(size, rows.values()))),
        Column("at most", [size(estimate.upper_bytes(nbytes)) for nbytes in rows.values()]),
    )
    return Table(layout)


def _parts(estimate: Estimate) -> dict[str, float]:
    """Bytes of the fullest device by kind, those that are not nothing."""
    return {name: nbytes for name, nbytes in estimate.memory[estimate.fullest[2]]._asdict().items() if nbytes}


def remedies_table(remedies: Sequence[Remedy], fits: bool) -> Table:
    """One row a change that was tried and fits, that which asks for least first; `fits`: something does without."""
    costs = [remedy.cost for remedy in remedies]
    layout = (
        Column(
            "what else fits" if fits else "what would fit",
            [in_options(remedy.change) for remedy in remedies],
            text=True,
        ),
        Column("step", [seconds(cost.step_s) for cost in costs]),
        Column("tokens/s\na device", [throughput(cost) for cost in costs]),
        Column("fullest\ndevice", [size(cost.peak_memory) for cost in costs]),
    )
    return Table((*layout, Column("strategy", list(map(strategy_in_words, costs)), text=True)), layout)


def fit_document(request: FitRequest, answer: FitResult) -> dict[str, Any]:
    """The same as plain JSON types."""
    estimate: Estimate | None = answer.cost or answer.emptiest
    memory: dict[str, dict[str, float]] = {}
    if estimate is not None:
        parts = _parts(estimate).items()
        memory = {name: {"bytes": nbytes, "upper_bytes": estimate.upper_bytes(nbytes)} for name, nbytes in parts}
    return {
        "schema": 1,
        "kind": "fit",
        "verdict": answer.verdict,
        "status": answer.status,
        "memory": memory,
        "memory_bytes": answer.problem.cluster.memory if estimate is None else estimate.fullest[1],
        "best": None
        if answer.plan is None
        else estimate_document(answer.cost) | run_document(request, request.cluster, answer.cost),
        "emptiest": None if answer.emptiest is None else estimate_document(answer.emptiest),
        "remedies": [
            {"change": in_options(one.change), "best": estimate_document(one.cost)} for one in answer.remedies
        ],
        "search_s": answer.taken_s,
    }
