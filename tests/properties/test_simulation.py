"""Laws of every simulated pipeline, whatever its times."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.passes import Action, build_schedule
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import WARM_UPS
from automap_models.cost.overlap import exposed_s
from automap_models.cost.staged import span_and_length
from automap_models.simulate.engine import Interval, Timeline, simulate
from automap_models.simulate.rounds import PlanTimes, plan_steps

ROUNDING = 1e-9


@dataclass(frozen=True)
class Pipeline:
    """Times of a pipeline, [S], [S], [S-1], [S], and its micro-batches."""

    forward: FloatArray
    backward: FloatArray
    transfer: FloatArray
    all_reduce: FloatArray
    micro_batches: int

    @property
    def stages(self) -> int:
        return self.forward.size

    def simulate(self, name: str) -> Timeline:
        schedule = build_schedule(name, self.stages, self.micro_batches)
        return simulate(self.forward, self.backward, self.transfer, self.all_reduce, schedule)


def _times(size: int) -> st.SearchStrategy[FloatArray]:
    """Sixteenths, so that sums are exact, messages get ready together, and some take no time at all."""
    sixteenths = st.lists(st.integers(0, 64), min_size=size, max_size=size)
    return sixteenths.map(lambda values: np.array(values, dtype=np.float64) / 16)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    stages, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    sizes = (stages, stages, stages - 1, stages)
    return Pipeline(*(draw(_times(size)) for size in sizes), micro_batches)


names = st.sampled_from(sorted(WARM_UPS))


@given(pipelines(), names)
def test_a_round_trip_and_the_other_rounds_of_a_stage_or_link_bound_every_schedule(pipe: Pipeline, name: str) -> None:
    """DAPPLE's span T but for links, which carry both directions at once: M messages and the last one back, not 2M."""
    both, there_and_back = pipe.forward + pipe.backward, 2 * pipe.transfer
    before = np.concatenate(([0.0], np.cumsum(both[:-1] + there_and_back)))
    of_stages = before + pipe.micro_batches * both
    of_links = before[:-1] + both[:-1] + (pipe.micro_batches + 1) * pipe.transfer
    least = max(of_stages.max(), of_links.max(initial=0.0))
    assert pipe.simulate(name).length_s >= least + pipe.all_reduce[0]


@given(pipelines(), names)
def test_a_stage_needs_its_first_input_all_its_passes_and_its_all_reduce(pipe: Pipeline, name: str) -> None:
    arrives = np.concatenate(([0.0], np.cumsum(pipe.forward[:-1] + pipe.transfer)))
    alone = arrives + pipe.micro_batches * (pipe.forward + pipe.backward) + pipe.all_reduce
    assert pipe.simulate(name).length_s >= alone.max()


@given(pipelines(), names)
def test_something_is_always_at_work(pipe: Pipeline, name: str) -> None:
    """So a pipeline takes no longer than all its passes and messages one after the other."""
    one_by_one = pipe.micro_batches * (pipe.forward.sum() + pipe.backward.sum() + 2 * pipe.transfer.sum())
    assert pipe.simulate(name).length_s <= one_by_one + pipe.all_reduce.max()


@given(pipelines(), names)
def test_nothing_overlaps_on_a_stage_or_a_link(pipe: Pipeline, name: str) -> None:
    busy: dict[tuple[bool, int], list[Interval]] = defaultdict(list)
    for interval in pipe.simulate(name).intervals:
        busy[interval.is_send, interval.resource].append(interval)
    for intervals in busy.values():
        intervals.sort(key=lambda i: (i.start_s, i.end_s))
        assert all(a.end_s <= b.start_s for a, b in pairwise(intervals))


@given(pipelines(), names)
def test_every_pass_waits_for_what_it_needs_and_takes_its_time(pipe: Pipeline, name: str) -> None:
    of = {(i.kind, i.resource, i.micro_batch): i for i in pipe.simulate(name).intervals}
    last = pipe.stages - 1
    for m in range(pipe.micro_batches):
        for s in range(pipe.stages):
            chain = [of["forward", s, m], of["backward", s, m]]
            if s < last:
                there, back = of["send-forward", 2 * s, m], of["send-backward", 2 * s + 1, m]
                chain = [chain[0], there, of["forward", s + 1, m], of["backward", s + 1, m], back, chain[1]]
                assert there.end_s - there.start_s == back.end_s - back.start_s == pipe.transfer[s]
            assert all(a.end_s <= b.start_s for a, b in pairwise(chain))
            assert chain[0].end_s - chain[0].start_s == pipe.forward[s]
            assert chain[-1].end_s - chain[-1].start_s == pipe.backward[s]
    expected = 2 * pipe.micro_batches * (pipe.stages + last) + pipe.stages
    assert len(of) == len(pipe.simulate(name).intervals) == expected


@given(pipelines(), names)
def test_stages_keep_to_their_schedule(pipe: Pipeline, name: str) -> None:
    started: dict[int, list[tuple[float, float, Action]]] = defaultdict(list)
    for i in pipe.simulate(name).intervals:
        if i.kind in ("forward", "backward"):
            started[i.resource].append(
                (i.start_s, i.end_s, Action("B" if i.kind == "backward" else "F", i.resource, i.micro_batch))
            )
    for stage, order in enumerate(build_schedule(name, pipe.stages, pipe.micro_batches).orders):
        start_of = {action: (start, end) for start, end, action in started[stage]}
        assert all(start_of[a][1] <= start_of[b][0] for a, b in pairwise(order))


@given(pipelines(), names)
def test_the_length_is_the_last_end(pipe: Pipeline, name: str) -> None:
    timeline = pipe.simulate(name)
    assert timeline.length_s == max(i.end_s for i in timeline.intervals)
    starts = [i.start_s for i in timeline.intervals]
    assert starts == sorted(starts)


@given(pipelines(), names, st.sampled_from([0.25, 0.5, 2.0, 1024.0]))
def test_length_scales_with_time(pipe: Pipeline, name: str, factor: float) -> None:
    slower = Pipeline(
        factor * pipe.forward,
        factor * pipe.backward,
        factor * pipe.transfer,
        factor * pipe.all_reduce,
        pipe.micro_batches,
    )
    assert slower.simulate(name).length_s == factor * pipe.simulate(name).length_s


@given(st.integers(1, 8), st.integers(1, 20), st.floats(1e-6, 10), st.floats(1e-6, 10), names)
def test_equal_stages_without_communication_reach_the_span(
    stages: int, m: int, forward: float, backward: float, name: str
) -> None:
    f, b, silent = np.full(stages, forward), np.full(stages, backward), np.zeros(stages)
    span, length, _ = span_and_length(f, b, silent[1:], silent, m)
    assert span == length == pytest.approx((m + stages - 1) * (forward + backward), rel=ROUNDING)
    assert simulate(f, b, silent[1:], silent, build_schedule(name, stages, m)).length_s == pytest.approx(
        span, rel=ROUNDING
    )


def _overlapped(pipe: Pipeline, name: str, overlap: float) -> float:
    """The step where a share of the last backward passes hides all-reduces."""
    late_s = exposed_s(pipe.all_reduce, pipe.backward, overlap)
    times = (pipe.forward, pipe.backward, pipe.transfer, pipe.all_reduce)
    return simulate(*times, build_schedule(name, pipe.stages, pipe.micro_batches), late_s).length_s


@given(pipelines(), names, st.floats(0.0, 1.0))
def test_no_stage_and_no_link_is_busy_for_longer_than_the_step(pipe: Pipeline, name: str, overlap: float) -> None:
    stages, links = pipe.micro_batches * (pipe.forward + pipe.backward), pipe.micro_batches * pipe.transfer
    step_s = _overlapped(pipe, name, overlap)
    assert step_s >= max(stages.max(), pipe.all_reduce.max(), links.max(initial=0.0)) * (1 - ROUNDING)


@given(pipelines(), names, st.floats(0.0, 1.0))
def test_overlap_takes_no_longer(pipe: Pipeline, name: str, overlap: float) -> None:
    assert _overlapped(pipe, name, overlap) <= pipe.simulate(name).length_s * (1 + ROUNDING)


@given(pipelines(), names, st.floats(0.0, 1.0))
def test_data_parallelism_takes_its_passes_and_what_they_do_not_hide(pipe: Pipeline, name: str, overlap: float) -> None:
    alone = Pipeline(pipe.forward[:1], pipe.backward[:1], pipe.transfer[:0], pipe.all_reduce[:1], pipe.micro_batches)
    expected = alone.micro_batches * (alone.forward[0] + alone.backward[0])
    expected += float(exposed_s(alone.all_reduce, alone.backward, overlap)[0])
    assert _overlapped(alone, name, overlap) == pytest.approx(expected, rel=ROUNDING)


def _many(seed: int, plans: int, stages: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    forward, backward = rng.exponential(size=(2, plans, stages))
    transfer = rng.exponential(size=(plans, stages - 1)) * rng.choice([0.01, 0.3, 1.0, 3.0], size=(plans, stages - 1))
    return forward, backward, transfer


def _steps(pipes: tuple[FloatArray, FloatArray, FloatArray], micro_batches: int, name: str) -> FloatArray:
    """[P] of pipelines that reduce nothing."""
    nothing = np.zeros(pipes[0].shape)
    times = PlanTimes(*pipes, nothing, nothing)
    return plan_steps(name, micro_batches, times, nothing[:, :0], np.zeros((len(nothing), 0, 1), dtype=bool))


@pytest.mark.parametrize("name", sorted(WARM_UPS))
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_another_micro_batch_never_makes_a_step_shorter(name: str, stages: int) -> None:
    pipes = _many(stages, 1000, stages)
    steps = np.array([_steps(pipes, micro_batches, name) for micro_batches in range(1, 9)])
    assert (np.diff(steps, axis=0) >= 0).all()


@pytest.mark.parametrize("name", sorted(WARM_UPS))
def test_longer_times_never_make_a_step_shorter(name: str) -> None:
    """It is the longest path of a graph that does not depend on times."""
    pipes = _many(0, 5000, 4)
    forward, backward, transfer = (
        times * np.random.default_rng(1).choice([1.0, 1.3], size=times.shape) for times in pipes
    )
    assert (_steps((forward, backward, transfer), 4, name) >= _steps(pipes, 4, name)).all()
