"""Every schedule as it runs: published bubble rates, the papers' bubbles in closed form, longest paths."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.passes import Schedule, build_schedule
from automap_models.core.schedules import SCHEDULES
from automap_models.cost.overlap import TiedSum
from automap_models.errors import BadInput
from automap_models.simulate.engine import PASS_KINDS, Interval, Timeline, simulate

PUBLISHED = [
    (8, 24, 3, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1055, 0.1585, 0.1083)),
    (8, 32, 3, (18.513, 18.086, 9.331, 0.626), (0.1985, 0.0818, 0.1242, 0.0837)),
    (8, 64, 3, (18.546, 18.097, 9.321, 0.762), (0.1240, 0.0443, 0.0674, 0.0444)),
    (8, 24, 4, (29.718, 29.444, 19.927, 0.527), (0.2347, 0.0808, 0.1323, 0.0698)),
    (8, 32, 4, (29.802, 29.428, 19.530, 0.577), (0.1898, 0.0628, 0.1045, 0.0559)),
    (8, 64, 4, (29.935, 29.621, 19.388, 0.535), (0.1091, 0.0320, 0.0554, 0.0294)),
    (16, 48, 3, (11.347, 11.248, 8.132, 0.377), (0.2552, 0.1104, 0.1397, 0.0672)),
    (16, 64, 3, (11.307, 11.254, 8.101, 0.379), (0.2082, 0.0852, 0.1088, 0.0516)),
    (16, 128, 3, (11.325, 11.308, 8.109, 0.378), (0.1251, 0.0445, 0.0576, 0.0266)),
]
"""S, M, vp (every layer is a chunk), profiled milliseconds of F, I, W and a transfer, and the bubble rates of 1F1B,
interleaved 1F1B, ZB-H1 and ZB-H2 at these times, of GPT with 1.5, 6.2 and 14.6 billion parameters: Table 5 and the
profiled times in the appendix of 2401.10241."""


def _run(built: Schedule, forward: float, inputs: float, weights: float, transfer: float = 0.0) -> Timeline:
    """All virtual stages alike; these are times of all those of a rank."""
    share = np.full(built.stages, 1.0 / built.virtual)
    times = (share * forward, share * (inputs + weights), np.full(built.stages - 1, transfer), 0.0 * share)
    return simulate(*times, built, weight_s=share * weights)


@pytest.mark.parametrize(("ranks", "micro_batches", "virtual", "times", "rates"), PUBLISHED)
def test_bubble_rates_are_the_published_ones(
    ranks: int, micro_batches: int, virtual: int, times: tuple[float, ...], rates: tuple[float, ...]
) -> None:
    """All but the interleaved ones to the last digit.

    The authors' program lets a rank wait for a message to the next virtual stage once a round, we for every one.
    """
    for name, rate, tolerance in zip(
        ("1f1b", "interleaved", "zb-h1", "zb-h2"), rates, (1e-4, 0.005, 1e-4, 1e-4), strict=True
    ):
        built = build_schedule(name, ranks, micro_batches, virtual if name == "interleaved" else 1)
        assert _run(built, *times).bubble_rate == pytest.approx(rate, abs=tolerance)


BUBBLES = {
    "1f1b": lambda ranks, vp, f, i, w: (ranks - 1) * (f + i + w),
    "gpipe": lambda ranks, vp, f, i, w: (ranks - 1) * (f + i + w),
    "interleaved": lambda ranks, vp, f, i, w: (ranks - 1) * (f + i + w) / vp,
    "zb-h1": lambda ranks, vp, f, i, w: (ranks - 1) * (f + i - w),
    "zb-h2": lambda ranks, vp, f, i, w: (ranks - 1) * (f + i - 2 * w),
}
"""What the rank that takes longest waits, without transfers: 2401.10241, Table 2; 2104.04473, section 2.2."""


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (4.0, 4.0, 3.0), (16.0, 18.0, 14.0)])
@pytest.mark.parametrize("name", BUBBLES)
def test_without_transfers_the_bubble_is_the_papers(name: str, times: tuple[float, float, float]) -> None:
    for ranks in (1, 2, 4, 7):
        for micro_batches in (2 * ranks, 3 * ranks, 8 * ranks):
            virtual = 4 if name == "interleaved" else 1
            timeline = _run(build_schedule(name, ranks, micro_batches, virtual), *times)
            work = micro_batches * sum(times)
            bubble = BUBBLES[name](ranks, virtual, *times)
            assert timeline.bubble_rate == pytest.approx(bubble / (work + bubble))


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (4.0, 4.0, 3.0), (16.0, 18.0, 14.0)])
def test_dualpipev_waits_no_longer_than_its_authors_say(times: tuple[float, float, float]) -> None:
    """Theirs is the time with pairs of a forward and a backward pass that send only when both are done."""
    forward, inputs, weights = times
    backward = inputs + weights
    for ranks in (1, 2, 4, 7):
        for micro_batches in (2 * ranks, 8 * ranks):
            work = micro_batches * (forward + backward)
            bubble = (ranks - 1) * ((forward + backward) + backward - 3 * weights) / 2
            rate = _run(build_schedule("dualpipev", ranks, micro_batches), *times).bubble_rate
            assert rate <= bubble / (work + bubble) + 1e-12


@pytest.mark.parametrize("name", ["zb-h2", "zb-v"])
def test_where_all_passes_take_equally_long_no_rank_ever_waits(name: str) -> None:
    for ranks in (1, 2, 4, 8):
        for micro_batches in (2 * ranks, 5 * ranks):
            assert _run(build_schedule(name, ranks, micro_batches), 1.0, 1.0, 1.0).bubble_rate == pytest.approx(0.0)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Schedule, list[np.ndarray]]:
    """A schedule and sixteenths of a second: F, B, W of each virtual stage, transfers between them, all-reduces."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    ranks, rounds = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    virtual = draw(st.integers(1, 3)) if name in ("interleaved", "zb-h1") else None
    built = build_schedule(name, ranks, (1 + (name == "dualpipev")) * ranks * rounds, virtual)

    def times(size: int) -> np.ndarray:
        values = draw(st.lists(st.integers(0, 64), min_size=size, max_size=size))
        return np.array(values, dtype=np.float64) / 16

    forward, weights, inputs, transfer, reduce = (times(built.stages - (i == 3)) for i in range(5))
    same = np.array([a == b for a, b in pairwise(built.rank_of)], dtype=bool)
    return built, [forward, inputs + weights, np.where(same, 0.0, transfer), reduce, weights]


def _simulate(built: Schedule, times: list[np.ndarray]) -> Timeline:
    forward, backward, transfer, reduce, weights = times
    return simulate(forward, backward, transfer, reduce, built, weight_s=weights)


def _passes(built: Schedule, timeline: Timeline) -> dict[tuple[str, int, int], Interval]:
    """(action kind, virtual stage, micro-batch) → when it ran."""
    kinds = {kind: letter for letter, kind in PASS_KINDS.items()}
    stage_of = {(rank, stage // built.ranks): stage for stage, rank in enumerate(built.rank_of)}
    return {
        (kinds[i.kind], stage_of[i.resource, i.chunk], i.micro_batch): i for i in timeline.intervals if i.kind in kinds
    }


@given(runs())
def test_without_transfers_the_passes_end_as_the_longest_path_says(run: tuple[Schedule, list[np.ndarray]]) -> None:
    """By relaxation: every pass ends after its inputs and after the pass before it on its rank."""
    built, (forward, backward, transfer, reduce, weights) = run
    duration = {"F": forward, "B": backward, "I": backward - weights, "W": weights}
    ends = {action: 0.0 for order in built.orders for action in order}
    back = {(a.stage, a.micro_batch): a for a in ends if a.kind in ("B", "I")}
    changed = True
    while changed:
        changed = False
        for order in built.orders:
            for before, action in zip((None, *order), order, strict=False):
                kind, stage, m = action
                inputs = [before] if before is not None else []
                if kind == "F" and stage:
                    inputs.append(action._replace(stage=stage - 1))
                elif kind in ("B", "I"):
                    inputs.append(action._replace(kind="F"))
                    if stage < built.stages - 1:
                        inputs.append(back[stage + 1, m])
                end = max((ends[one] for one in inputs), default=0.0) + float(duration[kind][stage])
                changed |= end != ends[action]
                ends[action] = end
    ran = _passes(built, _simulate(built, [forward, backward, 0.0 * transfer, reduce, weights]))
    assert {action: ran[action].end_s for action in ends} == ends


@given(runs())
def test_passes_keep_their_order_wait_for_their_messages_and_take_their_time(
    run: tuple[Schedule, list[np.ndarray]],
) -> None:
    built, times = run
    forward, backward, transfer, _, weights = times
    duration = {"F": forward, "B": backward, "I": backward - weights, "W": weights}
    ran = _passes(built, _simulate(built, times))
    assert len(ran) == sum(map(len, built.orders))
    back_of = {(stage, m): i for (kind, stage, m), i in ran.items() if kind in ("B", "I")}
    for order in built.orders:
        assert all(ran[a].end_s <= ran[b].start_s for a, b in pairwise(order))
    for (kind, stage, m), i in ran.items():
        assert i.end_s - i.start_s == duration[kind][stage]
        if kind == "F" and stage:
            assert ran["F", stage - 1, m].end_s + transfer[stage - 1] <= i.start_s
        if kind in ("B", "I"):
            assert ran["F", stage, m].end_s <= i.start_s
            if stage < built.stages - 1:
                assert back_of[stage + 1, m].end_s + transfer[stage] <= i.start_s


@given(runs())
def test_nothing_overlaps_on_a_rank_or_a_link(run: tuple[Schedule, list[np.ndarray]]) -> None:
    built, times = run
    timeline = _simulate(built, times)
    busy: dict[tuple[str, int], list[Interval]] = defaultdict(list)
    for i in timeline.intervals:
        row = "pass" if i.kind in PASS_KINDS.values() else "link" if i.is_send else i.kind
        busy[row, i.resource].append(i)
    for intervals in busy.values():
        intervals.sort(key=lambda i: (i.start_s, i.end_s))
        assert all(a.end_s <= b.start_s for a, b in pairwise(intervals))
    boundaries = sum(a != b for a, b in pairwise(built.rank_of))
    assert sum(map(len, busy.values())) == (
        sum(map(len, built.orders)) + 2 * boundaries * built.micro_batches + built.stages
    )


def test_in_a_v_the_turning_point_sends_nothing_and_the_second_leg_goes_back_over_its_link() -> None:
    """Two ranks, one micro-batch, 1 s a pass, 2 s a transfer; rank 1 runs 1F0 2F0 2I0 2W0 1I0 1W0."""
    timeline = simulate(
        np.ones(4), 2 * np.ones(4), 2 * np.ones(3), np.zeros(4), build_schedule("zb-v", 2, 1), weight_s=np.ones(4)
    )
    rows = [(i.kind, i.resource, i.chunk, i.start_s) for i in timeline.intervals if i.end_s > i.start_s]
    assert rows == [
        ("forward", 0, 0, 0.0),
        ("send-forward", 0, 0, 1.0),
        ("forward", 1, 0, 3.0),
        ("forward", 1, 1, 4.0),
        ("send-forward", 1, 1, 5.0),
        ("forward", 0, 1, 7.0),
        ("input-gradient", 0, 1, 8.0),
        ("send-backward", 0, 1, 9.0),
        ("weight-gradient", 0, 1, 9.0),
        ("input-gradient", 1, 1, 11.0),
        ("weight-gradient", 1, 1, 12.0),
        ("input-gradient", 1, 0, 13.0),
        ("send-backward", 1, 0, 14.0),
        ("weight-gradient", 1, 0, 14.0),
        ("input-gradient", 0, 0, 16.0),
        ("weight-gradient", 0, 0, 17.0),
    ]


def test_a_loop_goes_back_from_the_last_rank_to_the_first_over_a_link_of_its_own() -> None:
    """Links 0, 2 and 4 go from a rank to the next one, the last to rank 0."""
    timeline = simulate(np.ones(6), np.ones(6), np.ones(5), np.zeros(6), build_schedule("interleaved", 3, 3, 2))
    links = {(i.resource, i.chunk) for i in timeline.intervals if i.kind == "send-forward"}
    assert links == {(0, 0), (2, 0), (4, 0), (0, 1), (2, 1)}
    back = {(i.resource, i.chunk) for i in timeline.intervals if i.kind == "send-backward"}
    assert back == {(1, 0), (3, 0), (5, 1), (1, 1), (3, 1)}


def test_gradients_of_a_split_backward_pass_are_reduced_after_the_weight_gradients() -> None:
    """One rank and micro-batch: F, I, W of 1, 2, 3 s; of 4 s of all-reduce 3 come after it."""
    built = build_schedule("zb-h1", 1, 1)
    one = np.ones(1)
    timeline = simulate(one, 5 * one, one[:0], 4 * one, built, 3 * one, weight_s=3 * one)
    assert [(i.kind, i.start_s, i.end_s) for i in timeline.intervals] == [
        ("forward", 0.0, 1.0),
        ("input-gradient", 1.0, 3.0),
        ("weight-gradient", 3.0, 6.0),
        ("all-reduce", 5.0, 9.0),
    ]


def test_copies_of_parameters_on_both_ends_of_a_v_are_summed_on_one_rank() -> None:
    built = build_schedule("zb-v", 2, 2)
    four = np.ones(4)
    timeline = simulate(four, 2 * four, 0 * four[1:], 0 * four, built, tied=[TiedSum((0, 3), 1.0)], weight_s=four)
    sums = [(i.resource, i.chunk, i.end_s - i.start_s) for i in timeline.intervals if i.kind == "tied-sum"]
    assert sums == [(0, 0, 1.0), (0, 1, 1.0)]


def test_a_split_backward_pass_needs_its_times_and_a_schedule_times_of_its_stages() -> None:
    one, two = np.ones(1), np.ones(2)
    with pytest.raises(BadInput, match="schedule zb-h1 splits the backward pass"):
        simulate(two, two, one, two, build_schedule("zb-h1", 2, 2))
    with pytest.raises(BadInput, match="times of 2 stages for a schedule of 4"):
        simulate(two, two, one, two, build_schedule("interleaved", 2, 2, 2))
