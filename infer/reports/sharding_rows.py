"""Variables that are named alike and partitioned alike as one row, as in Auto-MAP's Tables 3 and 4."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from automap_models.core.sharding import ShardingPlan
from automap_models.core.sharding_classes import Variable

_NUMBER = re.compile(r"(?<=_)\d+")


class Row(NamedTuple):
    """Variables of one row.

    Attributes:
        name: their common name: numbers after `_` that differ are `*`, and siblings stand in braces (`{k,q,v}`).
        variables: all of them.
        dim: the partitioned dimension, -1 for none.
    """

    name: str
    variables: tuple[Variable, ...]
    dim: int


def rows(plan: ShardingPlan, axis: int = 0) -> list[Row]:
    """The plan's candidates along an axis, without the first name of their paths if all share it."""
    candidates = plan.candidates(axis)
    start = _shared_start([variable.name for variable in candidates])
    alike: dict[tuple[str, int], list[Variable]] = {}
    for variable, dim in candidates.items():
        alike.setdefault((_NUMBER.sub("*", variable.name[start:]), dim), []).append(variable)
    numbered = [
        Row(pattern if len(members) > 1 else members[0].name[start:], tuple(members), dim)
        for (pattern, dim), members in alike.items()
    ]
    return list(_siblings_together(numbered))


def _siblings_together(numbered: Sequence[Row]) -> Iterator[Row]:
    """Rows of equal shapes whose paths differ in the last name but one, and in nothing else, as one."""
    families: dict[tuple[str, str, int, frozenset[tuple[int, ...]], bool], list[tuple[str, Row]]] = {}
    for row in numbered:
        above, leaf = row.name.rpartition("/")[::2]
        parents, parent = above.rpartition("/")[::2]
        shapes = frozenset(variable.shape for variable in row.variables)
        families.setdefault((parents, leaf, row.dim, shapes, not parent), []).append((parent, row))
    for (parents, leaf, dim, _, _), family in families.items():
        if len(family) == 1:
            yield family[0][1]
        else:
            siblings = f"{{{','.join(parent for parent, _ in family)}}}"
            name = f"{parents}/{siblings}/{leaf}" if parents else f"{siblings}/{leaf}"
            yield Row(name, tuple(variable for _, row in family for variable in row.variables), dim)


def _shared_start(names: Sequence[str]) -> int:
    """Length of the first name of all paths with its slash; 0 where they do not share it."""
    firsts = {name.partition("/")[:2] for name in names}
    return len("".join(firsts.pop())) if len(firsts) == 1 else 0
