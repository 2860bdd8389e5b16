"""Schedules against grids drawn by hand, and what makes any order a schedule."""

from __future__ import annotations

import re

import pytest

from automap_models.core import schedules
from automap_models.core.schedules import SCHEDULES, Op, schedule

GRIDS = {
    "1f1b": """
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 F1 B0 F2 B1 F3 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """,
    "1f1b-deep": """
        F0 F1 F2 F3 B0 B1 B2 B3
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """,
    "gpipe": """
        F0 F1 F2 F3 B0 B1 B2 B3
        F0 F1 F2 F3 B0 B1 B2 B3
        F0 F1 F2 F3 B0 B1 B2 B3
    """,
}
"""3 stages, 4 micro-batches; one row a stage."""

SHAPES = [(s, m) for s in (1, 2, 3, 5, 8) for m in (1, 2, 3, 7, 16)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_the_grid_drawn_by_hand(name: str) -> None:
    assert schedule(name, 3, 4) == _read(GRIDS[name])


def test_the_grids_in_the_docstring_are_true() -> None:
    """Three grids stand side by side, apart by several blanks, under their names."""
    lines = (schedules.__doc__ or "").splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith("F0 "))
    columns = zip(*(re.split(r" {2,}", line.strip()) for line in lines[first - 1 : first + 3]), strict=True)
    drawn = {name: _read("\n".join(rows)) for name, *rows in columns}
    assert drawn == {name: schedule(name, 3, 4) for name in SCHEDULES}


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_stage_runs_each_pass_once_and_backward_after_forward(name: str, stages: int, micro_batches: int) -> None:
    for order in schedule(name, stages, micro_batches):
        assert sorted(order) == sorted(Op(backward, m) for backward in (False, True) for m in range(micro_batches))
        assert all(order.index(Op(False, m)) < order.index(Op(True, m)) for m in range(micro_batches))


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("1f1b", lambda s, stages, m: min(m, stages - s)),
        ("1f1b-deep", lambda s, stages, m: min(m, 2 * (stages - s) - 1)),
        ("gpipe", lambda s, stages, m: m),
    ],
)
def test_a_stage_holds_as_many_micro_batches_as_its_warm_up(
    name: str, limit: object, stages: int, micro_batches: int
) -> None:
    for s, order in enumerate(schedule(name, stages, micro_batches)):
        in_flight = [0]
        for op in order:
            in_flight.append(in_flight[-1] + (-1 if op.backward else 1))
        assert max(in_flight) == limit(s, stages, micro_batches)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["1f1b", "1f1b-deep"])
def test_the_last_stage_of_1f1b_alternates_and_one_stage_alone_does_too(name: str) -> None:
    alternating = tuple(Op(backward, m) for m in range(5) for backward in (False, True))
    assert schedule(name, 4, 5)[-1] == schedule(name, 1, 5)[0] == alternating


def _read(grid: str) -> tuple[tuple[Op, ...], ...]:
    rows = [line.split() for line in grid.strip().splitlines()]
    return tuple(tuple(Op(cell[0] == "B", int(cell[1:])) for cell in row) for row in rows)
