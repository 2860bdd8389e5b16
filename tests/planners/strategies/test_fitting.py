"""Recomputation of a rank's virtual stages, against all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from draw_counts import counts

from automap_models.core.instruction_graph import FloatArray
from automap_models.planners.strategies.fitting import shortest_choices


class _Rank:
    """What a rank holds and takes with some choices of its virtual stages."""

    def __init__(self, tables: FloatArray, moments: FloatArray, room: float, needed: float) -> None:
        self.tables, self.moments, self.room, self.needed = tables, moments, room, needed

    def seconds(self, of: Sequence[int]) -> float:
        return float(sum(self.tables[v, 0, j] for v, j in enumerate(of)))

    def fits(self, of: Sequence[int]) -> bool:
        _, saved, kept, temporary = np.array([self.tables[v, :, j] for v, j in enumerate(of)]).T
        held = (self.moments[:, 0] @ saved + self.moments[:, 1] @ kept).max()
        return bool(held + max(self.needed, temporary.max()) <= self.room)


@pytest.mark.parametrize("draws", counts(80, 300, 10000))
def test_the_shortest_recomputation_that_fits_is_chosen(draws: int) -> None:
    """Of few choices the shortest of all; of many one that fits, of which no stage alone can have a shorter choice."""
    answers: Counter[str] = Counter()
    for seed in range(draws):
        draw = np.random.default_rng(seed)
        many = seed % 3 == 0
        stages = int(draw.integers(3, 5)) if many else int(draw.integers(1, 4))
        numbers = draw.integers(6, 9, stages) if many else draw.integers(1, 8, stages)
        tables = draw.uniform(0.0, 1.0, (stages, 4, int(numbers.max())))
        tables[:, 3] *= 0.2
        for v in range(stages):
            order = np.argsort(tables[v, 0, : numbers[v]])
            tables[v, 0, : numbers[v]] = tables[v, 0, order]
        moments = draw.integers(0, 4, (3, 2, stages)).astype(np.float64)
        room, needed = float(draw.uniform(1.0, 6.0)), float(draw.uniform(0.0, 0.3))

        rank = _Rank(tables, moments, room, needed)
        chosen = tuple(shortest_choices(numbers, tables, moments, room, needed, few=400).tolist())
        if few := float(np.prod(numbers)) <= 400:
            least = min(
                filter(rank.fits, product(*map(range, numbers.tolist()))), key=rank.seconds, default=(-1,) * stages
            )
            assert chosen == least
        elif chosen[0] >= 0:
            assert rank.fits(chosen)
            for v in range(stages):
                for j in range(numbers[v]):
                    other = (*chosen[:v], j, *chosen[v + 1 :])
                    assert not (rank.seconds(other) < rank.seconds(chosen) - 1e-12 and rank.fits(other))
        answers[f"{'few' if few else 'many'}, {'fits' if chosen[0] >= 0 else 'none fits'}"] += 1
    assert min(answers.values()) >= 5
    assert len(answers) == 4
