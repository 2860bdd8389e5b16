"""Auto-MAP's step by its definition: decide one dimension, and dimension by dimension what follows."""

from __future__ import annotations

from automap_models.core.sharding import ShardingProblem
from automap_models.envs.sharding.propagation import PARTITIONED, REPLICATED, UNDECIDED


def decided_by(problem: ShardingProblem, decided: list[int], dim: int, decision: int) -> list[int] | None:
    """The decision vector after one decision, None for a conflict: dimension by dimension, until nothing changes."""
    classes = problem.classes
    conflicts = {frozenset(pair) for pair in classes.conflicts.tolist()}
    vector = list(decided)
    todo = [(dim, decision)]
    while todo:
        i, value = todo.pop()
        own = int(classes.dim_classes[i])
        if vector[i] == value:
            continue
        if vector[i] != UNDECIDED or (value == PARTITIONED and classes.divisors[own] % problem.mesh[0].size):
            return None
        vector[i] = value
        for j, other in enumerate(classes.dim_classes.tolist()):
            if other == own:
                todo.append((j, value))
            elif value == PARTITIONED and frozenset({own, other}) in conflicts:
                todo.append((j, REPLICATED))
    return vector
