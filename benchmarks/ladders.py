"""Whether single terms of the clock have the right sign and size: measured steps that differ in one of them.

    OMP_NUM_THREADS=1 python benchmarks/ladders.py ROWS.json … [--term TERM]

Steps of one source, program, device and model are a pair where their plans differ in one term; what follows from it,
such as data parallelism from tensor parallelism, differs, too. Of plans that were measured several times those two
steps are the pair that are nearest in the file: a ladder adds one thing after the other. Pairs count whose measured
ratio is beyond LEAST_RATIO, on one day where rows say it.

Of a term the table says in how many pairs the predicted ratio is on the measured one's side of 1 (`sign`), how far its
logarithm is off, the median of |log predicted / log measured - 1| (`size`), and their median ratio (`step`): below 1
the clock takes the term for smaller than it is. With --term every pair of it is printed.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import print_rows, refuse
from measured_steps import Price, price_files

from automap_models.cost.measured_step import MeasuredStep
from automap_models.errors import BadInput

LEAST_RATIO = 1.03
"""Of the slower step's measured seconds over the faster one's."""
SIGN, SIZE = 0.9, 0.3
"""Targets of a term: its least share of pairs of the right sign, and its largest error in size."""
FOLLOWERS: Mapping[str, frozenset[str]] = {
    "tp": frozenset({"sequence_parallel"}),
    "recompute": frozenset({"sequence_parallel"}),
    "pp": frozenset({"schedule", "vp", "layers"}),
    "schedule": frozenset({"vp", "layers"}),
    "vp": frozenset({"layers"}),
}
"""Term → those that follow from it; data parallelism follows from all degrees."""


class Timed(NamedTuple):
    """A priced step, and its place among the rows."""

    place: int
    step: MeasuredStep
    measured_s: float
    predicted_s: float


class Pair(NamedTuple):
    """Two steps that differ in a term."""

    term: str
    first: Timed
    second: Timed

    @property
    def measured(self) -> float:
        """Logarithm of the second over the first."""
        return math.log(self.second.measured_s / self.first.measured_s)

    @property
    def predicted(self) -> float:
        """Logarithm of the second over the first."""
        return math.log(self.second.predicted_s / self.first.predicted_s)


def terms(step: MeasuredStep) -> dict[str, object]:
    """Name → what the step has of it: of its strategy, and of what its runtime does with experts and kernels."""
    plan, ran = step.strategy, step.runtime
    return {
        **{field.name: getattr(plan, field.name) for field in fields(plan) if field.name != "dp"},
        "recompute": (plan.recompute, ran.selects if plan.recompute == "selective" else None),
        "devices": step.cluster,
        "dispatcher": ran.once_a_node(plan),
        "EP overlap": ran.expert_overlap > 0.0,
        "CUDA graphs": ran.graphed,
        "async tp": ran.tensor_overlap,
    }


def differing_term(first: Mapping[str, object], second: Mapping[str, object]) -> str | None:
    """The term in which two plans differ; None where it is not one."""
    names = {name for name in first if first[name] != second[name]}
    for name, followers in FOLLOWERS.items():
        if name in names:
            names -= followers
    return names.pop() if len(names) == 1 else None


def pairs_of_terms(prices: Sequence[Price]) -> Iterator[Pair]:
    """All pairs whose measured ratio is beyond LEAST_RATIO."""
    groups: dict[object, dict[object, list[Timed]]] = defaultdict(lambda: defaultdict(list))
    for place, (step, estimate, _) in enumerate(prices):
        if isinstance(step, MeasuredStep) and step.step_s is not None and estimate is not None:
            key = step.source, step.system, step.device, step.model
            plan = tuple(terms(step).values())
            groups[key][plan].append(Timed(place, step, step.step_s, estimate.step_s))
    for plans in groups.values():
        for firsts, seconds in combinations(plans.values(), 2):
            term = differing_term(terms(firsts[0].step), terms(seconds[0].step))
            pair = _nearest(term, firsts, seconds) if term else None
            if pair is not None and abs(pair.measured) > math.log(LEAST_RATIO):
                yield pair


def _nearest(term: str, firsts: Iterable[Timed], seconds: Iterable[Timed]) -> Pair | None:
    """The two that are nearest among the rows; None where all were measured on different days."""
    days = ((a, b) for a, b in product(firsts, seconds) if a.step.day == b.step.day or not (a.step.day and b.step.day))
    nearest = min(days, key=lambda both: abs(both[0].place - both[1].place), default=None)
    return None if nearest is None else Pair(term, *nearest)


class TermErrors(NamedTuple):
    """How well a term is priced.

    Attributes:
        term: its name.
        source: whose pairs these are; empty of all.
        sources, pairs: how many.
        sign: share of the pairs whose predicted ratio is on the measured one's side of 1.
        size: median of |log predicted / log measured - 1|.
        step: median of log predicted / log measured.
    """

    term: str
    source: str
    sources: int
    pairs: int
    sign: float
    size: float
    step: float

    @property
    def row(self) -> tuple[str, ...]:
        """As a table has it."""
        met = "met" if self.sign >= SIGN and self.size <= SIZE else "missed"
        return (
            *(self.term, self.source or str(self.sources), str(self.pairs)),
            *(f"{100 * self.sign:.0f} %", f"{100 * self.size:.0f} %", f"{self.step:.2f}", met),
        )


TERM_COLUMNS = ("term", "sources", "pairs", "sign", "size", "step", "target")


def errors_of_terms(pairs: Iterable[Pair], by_source: bool = False) -> list[TermErrors]:
    """The errors of every term, by name, or of every term and source."""
    groups: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.term, pair.first.step.source if by_source else ""].append(pair)
    result = []
    for (term, source), of_term in sorted(groups.items()):
        shares = np.array([pair.predicted / pair.measured for pair in of_term])
        sources = len({pair.first.step.source for pair in of_term})
        errors = float((shares > 0).mean()), float(np.median(np.abs(shares - 1))), float(np.median(shares))
        result.append(TermErrors(term, source, sources, len(of_term), *errors))
    return result


def pair_rows(pairs: Iterable[Pair], term: str) -> Iterator[tuple[str, ...]]:
    """Every pair of a term."""
    for pair in pairs:
        if pair.term == term:
            values = [terms(timed.step)[term] for timed in pair[1:]]
            seconds = [f"{s:.4g}" for timed in pair[1:] for s in (timed.measured_s, timed.predicted_s)]
            names = pair.first.step.name, pair.second.step.name
            ratios = f"{math.exp(pair.measured):.3f}", f"{math.exp(pair.predicted):.3f}"
            yield (*names, *(str(getattr(value, "devices", value)) for value in values), *seconds, *ratios)


PAIR_COLUMNS = (
    *("first", "second", "has", "has", "measured s", "predicted s", "measured s", "predicted s"),
    *("measured ratio", "predicted ratio"),
)


def main() -> None:
    """Print the errors of all terms, or the pairs of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="files of measured steps, or folders of them")
    parser.add_argument("--term", help="print every pair of this term")
    arguments = parser.parse_args()
    try:
        pairs = list(pairs_of_terms(price_files(arguments.rows)))
    except BadInput as error:
        refuse(str(error))
    if arguments.term is None:
        print_rows(TERM_COLUMNS, (errors.row for errors in errors_of_terms(pairs, by_source=True)))
    else:
        print_rows(PAIR_COLUMNS, pair_rows(pairs, arguments.term))


if __name__ == "__main__":
    main()
