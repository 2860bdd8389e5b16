"""Simulations small enough to be drawn by hand: one column is one second, a dot is waiting."""

from __future__ import annotations

import re

import numpy as np
import pytest

from automap_models.core.passes import build_schedule
from automap_models.cost.overlap import TiedSum
from automap_models.simulate import engine
from automap_models.simulate.engine import Timeline, simulate

TAGS = {"forward": "F", "backward": "B", "send-forward": "F", "send-backward": "B", "all-reduce": "R", "tied-sum": "T"}


def test_1f1b_on_two_stages_is_the_grid_drawn_by_hand() -> None:
    timeline = _simulate([1, 1], [2, 2], [0], [0, 0], 3, "1f1b")
    assert _draw(timeline, "stages") == ["F0 F1 .. .. B0 B0 F2 B1 B1 .. B2 B2", ".. F0 B0 B0 F1 B1 B1 F2 B2 B2"]
    assert timeline.length_s == 12


def test_gpipe_on_two_stages_is_the_grid_drawn_by_hand() -> None:
    timeline = _simulate([1, 1], [2, 2], [0], [0, 0], 3, "gpipe")
    assert _draw(timeline, "stages") == ["F0 F1 F2 .. .. .. B0 B0 B1 B1 B2 B2", ".. F0 F1 F2 B0 B0 B1 B1 B2 B2"]
    assert timeline.length_s == 12


def test_messages_of_both_directions_go_at_once_and_those_of_one_in_order() -> None:
    """The first gradient is ready at second 6, while the second activation is still on its way."""
    timeline = _simulate([1, 1], [1, 1], [3], [0, 0], 2, "1f1b")
    assert _draw(timeline, "stages") == ["F0 F1 .. .. .. .. .. .. .. B0 .. .. B1", ".. .. .. .. F0 B0 .. F1 B1"]
    assert _draw(timeline, "links") == [".. F0 F0 F0 F1 F1 F1", ".. .. .. .. .. .. B0 B0 B0 B1 B1 B1"]
    assert timeline.length_s == 13
    drawn = [line.strip()[10:] for line in (engine.__doc__ or "").splitlines() if re.match(r" +(stage|link)", line)]
    assert drawn == [*_draw(timeline, "stages")[:1], *_draw(timeline, "links"), *_draw(timeline, "stages")[1:]]


def test_a_deeper_warm_up_hides_transfers_that_1f1b_waits_for() -> None:
    """A gradient is back after 4 s: a second micro-batch in flight fills one of them, a third two."""
    shallow = _simulate([1, 1], [1, 1], [1], [0, 0], 4, "1f1b")
    deep = _simulate([1, 1], [1, 1], [1], [0, 0], 4, "1f1b-deep")
    assert _draw(shallow, "stages") == [
        "F0 F1 .. .. .. B0 F2 B1 F3 .. .. B2 .. B3",
        ".. .. F0 B0 F1 B1 .. .. F2 B2 F3 B3",
    ]
    assert _draw(deep, "stages") == ["F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3", ".. .. F0 B0 F1 B1 F2 B2 F3 B3"]
    assert (shallow.length_s, deep.length_s) == (14, 12)


def test_an_all_reduce_starts_after_the_last_backward_of_its_stage() -> None:
    timeline = _simulate([1, 1], [1, 1], [0], [1, 4], 2, "1f1b")
    assert _draw(timeline, "all") == ["F0 F1 .. B0 .. B1 R1", ".. F0 B0 F1 B1 R1 R1 R1 R1"]
    assert timeline.length_s == 9


def test_tied_sums_wait_for_all_their_stages_and_for_one_another() -> None:
    """Stage 0 has reduced its gradients at second 8, stage 1 at 9 and stage 2 at 5."""
    times = (np.ones(3), np.ones(3), np.zeros(2), np.array([0.0, 2.0, 0.0]))
    tied = [TiedSum((0, 2), 3.0), TiedSum((1, 2), 1.0)]
    timeline = simulate(*times, build_schedule("1f1b", 3, 2), tied=tied)
    assert [line.rstrip() for line in _draw(timeline, "all")] == [
        "F0 F1 .. .. .. B0 .. B1 T1 T1 T1",
        ".. F0 F1 .. B0 .. B1 R1 R1 .. .. T1",
        ".. .. F0 B0 F1 B1 .. .. T1 T1 T1 T1",
    ]
    assert timeline.length_s == 12


def test_a_free_link_still_appears_in_the_timeline() -> None:
    timeline = _simulate([1, 1, 1], [1, 1, 1], [0, 0], [0, 0, 0], 2, "gpipe")
    sends = [i for i in timeline.intervals if i.kind.startswith("send")]
    assert len(sends) == 2 * 2 * 2
    assert all(i.start_s == i.end_s for i in sends)


def test_one_stage_runs_back_to_back() -> None:
    timeline = _simulate([2], [3], [], [5], 4, "1f1b")
    assert _draw(timeline, "all") == ["F0 F0 B0 B0 B0 F1 F1 B1 B1 B1 F2 F2 B2 B2 B2 F3 F3 B3 B3 B3 R3 R3 R3 R3 R3"]
    assert timeline.length_s == 25


@pytest.mark.parametrize("name", ["1f1b", "1f1b-deep", "gpipe"])
def test_equal_times_give_the_same_timeline_every_time(name: str) -> None:
    arguments = ([1, 1, 1], [1, 1, 1], [1, 1], [0, 1, 2], 6, name)
    assert _simulate(*arguments) == _simulate(*arguments)


def test_gradients_that_are_reduced_beside_the_last_pass_and_the_update_after_them() -> None:
    """Of 4 s of stage 1's all-reduce 3 come after B1, and an update of 1 s after these; stage 0 waits for neither."""
    times = (np.array([1.0, 1.0]), np.array([1.0, 2.0]), np.array([1.0]), np.array([0.0, 4.0]))
    ending = np.array([0.0, 3.0]), np.array([0.0, 1.0])
    timeline = simulate(*times, build_schedule("1f1b", 2, 2), *ending)
    assert [(i.kind, i.start_s, i.end_s) for i in timeline.intervals if i.kind in ("all-reduce", "update")] == [
        ("all-reduce", 7.0, 11.0),
        ("all-reduce", 10.0, 10.0),
        ("update", 11.0, 12.0),
    ]
    assert [i.end_s for i in timeline.intervals if i.kind == "backward"] == [5.0, 7.0, 8.0, 10.0]
    assert timeline.length_s == 12


def _simulate(
    forward: list[int], backward: list[int], transfer: list[int], reduce: list[int], m: int, name: str
) -> Timeline:
    times = (np.array(values, dtype=np.float64) for values in (forward, backward, transfer, reduce))
    return simulate(*times, build_schedule(name, len(forward), m))


def _draw(timeline: Timeline, what: str) -> list[str]:
    """One row a stage or link, one cell a second."""
    rows: dict[int, dict[int, str]] = {}
    for interval in timeline.intervals:
        if interval.kind.startswith("send") != (what == "links") or (
            what == "stages" and interval.kind == "all-reduce"
        ):
            continue
        row = rows.setdefault(interval.resource, {})
        for second in range(int(interval.start_s), int(interval.end_s)):
            assert second not in row, f"{interval} overlaps {row[second]}"
            row[second] = f"{TAGS[interval.kind]}{interval.micro_batch}"
    return [" ".join(row.get(second, "..") for second in range(max(row) + 1)) for _, row in sorted(rows.items())]
