"""The best strategy as people and programs read it: its price, the proof, and what each of its choices buys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.result import Result
from automap_models.core.strategy import Strategy
from automap_models.core.units import percent, seconds, size
from automap_models.formats.strategy_json import estimate_document
from automap_models.planners.strategies.choices import Without
from automap_models.planners.strategies.problem import StrategyProblem

from .estimate import facts, memory_table, parts_table
from .text import Column, console, fact_table, plain, table

if TYPE_CHECKING:
    from rich.table import Table

StrategyResult = Result[StrategyProblem, Strategy]


@dataclass(frozen=True)
class Searched:
    """What the command came to.

    Attributes:
        result: of the search.
        choices: the best strategy without each choice of the best one.
        sizes: results on clusters of other sizes, with a sweep.
    """

    result: StrategyResult
    choices: Sequence[Without] = ()
    sizes: Sequence[StrategyResult] = ()

    @property
    def best(self) -> Estimate:
        """The price of the best strategy."""
        cost: Estimate = self.result.cost
        return cost


def gap(result: StrategyResult) -> float | None:
    """By which share of the step any other strategy can be shorter at most; None where nothing is proven."""
    if result.bound is None or result.plan is None:
        return None
    return max(0.0, 1.0 - result.bound.value / float(result.cost.step_s))


def print_searched(searched: Searched) -> None:
    """Print the best strategy for people."""
    best, screen = searched.best, console()
    screen.print(f"[bold]{plain(best.model)}[/bold] on {plain(best.cluster)} ({plain(best.device)})")
    screen.print(f"best strategy: {strategy_in_words(best)}\n")
    screen.print(parts_table(best, screen.width))
    screen.print()
    screen.print(memory_table(best, screen.width))
    screen.print()
    if searched.choices:
        screen.print(choices_table(searched, screen.width))
        screen.print()
    if searched.sizes:
        screen.print(sizes_table(searched.sizes, screen.width))
        screen.print()
    screen.print(fact_table([*facts(best), *_proof(searched.result)]))


def _proof(result: StrategyResult) -> Iterator[tuple[str, str]]:
    share, counts = gap(result), result.facts
    families = f"{counts['families']:,} families of {counts['divisions']:,} divisions"
    if result.status == "optimal":
        yield "proof", f"no strategy of the grid is shorter ({families} were looked at)"
    elif share is not None:
        yield "proof", f"no strategy of the grid is more than {percent(share)} shorter ({families} were looked at)"
    yield "search", f"took {seconds(result.taken_s)}"


def choices_table(searched: Searched, width: int) -> Table:
    """One row a choice that the best strategy makes: the best one without it."""
    best = searched.best
    rows = [("best", best), *((of.choice, of.estimate) for of in searched.choices)]
    none = "nothing fits"
    layout = (
        Column("what each choice buys", [name for name, _ in rows], left=True),
        Column("step", [seconds(of.step_s) if of else none for _, of in rows]),
        Column("longer by", [percent(max(0.0, of.step_s / best.step_s - 1)) if of else "" for _, of in rows]),
        Column("fullest device", [size(of.peak_memory) if of else "" for _, of in rows]),
    )
    strategy = Column("strategy", [strategy_in_words(of) if of else "" for _, of in rows], left=True)
    return table(width, (*layout, strategy), layout)


def sizes_table(results: Sequence[StrategyResult], width: int) -> Table:
    """One row a size of the cluster."""
    layout = (
        Column("devices", [str(of.problem.cluster.devices) for of in results]),
        Column("step", [seconds(of.cost.step_s) if of.cost else "nothing fits" for of in results]),
        Column("tokens/s a device", [f"{of.cost.tokens_per_s_per_device:,.0f}" if of.cost else "" for of in results]),
        Column("fullest device", [size(of.cost.peak_memory) if of.cost else "" for of in results]),
    )
    strategy = Column("strategy", [strategy_in_words(of.cost) if of.cost else "" for of in results], left=True)
    return table(width, (*layout, strategy), layout)


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
        "choices": [
            {"choice": of.choice, "best": None if of.estimate is None else estimate_document(of.estimate)}
            for of in searched.choices
        ],
    }
    if searched.sizes:
        document["sizes"] = [
            {
                "devices": of.problem.cluster.devices,
                "bound_s": None if of.bound is None else of.bound.value,
                "best": None if of.cost is None else estimate_document(of.cost),
            }
            for of in searched.sizes
        ]
    return document
