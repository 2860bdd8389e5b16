"""The cost-to-go tables: what they promise can be had, and it is the optimum where one label an entry is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from automap_models.core.coarsen import Grid
from automap_models.core.problem import PipelineProblem
from automap_models.core.profile import Profile
from automap_models.cost.pipeline import PipelineCost, pipeline_cost
from automap_models.envs import cost_to_go, pipeline, pipeline_features
from automap_models.envs.cost_to_go import END_POINTS, IMPOSSIBLE, POINTS, UNITS, Rest, choose_points, first_devices
from automap_models.envs.encoding import encode
from automap_models.envs.pipeline import Partial, Problems

LAW = settings(max_examples=25, deadline=None, derandomize=True)
MANY = settings(max_examples=60, deadline=None, derandomize=True)
TINY_DEVICES = 6
FLOAT32 = 1e-5
"""Times are around one ideal length; prefix sums lose 1e-7 of the largest."""

SIZES: list[dict[str, Any]] = [
    {},
    {"granularity": 48, "instructions": (40, 80)},
    {"granularity": 48, "instructions": (40, 80), "memory": (0.3, 1.5)},
]
DrawProblems = Callable[..., list[PipelineProblem]]


def tiny(random_problems: DrawProblems, seed: int, **changes: Any) -> list[PipelineProblem]:
    """A few problems of up to seven instructions, all of which can be cut after, on up to six devices."""
    drawn = random_problems(seed, 12, **{"granularity": 8, "instructions": (4, 7), **changes})
    return [problem for problem in drawn if problem.cluster.devices <= TINY_DEVICES][:2]


def tensors(records: list[PipelineProblem]) -> Problems:
    """The problems with their tables."""
    problems = Problems.from_encoded(encode(records))
    return problems.with_cost_to_go(most_stages(problems))


def most_stages(problems: Problems) -> int:
    return int(problems.stages.max())


def most_devices(problems: Problems) -> int:
    return int(problems.devices.max())


def start_of(problems: Problems) -> Partial:
    return pipeline.reset(len(problems.stages), most_stages(problems))


def legal_actions(problems: Problems, partial: Partial) -> Tensor:
    return pipeline.legal_actions(problems, partial, most_devices(problems))


# --- what the tables promise can be had --------------------------------------------------------------------------


def estimates(problems: Problems, partial: Partial) -> Tensor:
    """[B, P + D_max - 1] the look-ahead's rewards of the actions, of states that all cut the same."""
    first = pipeline.device_cuts(problems, most_devices(problems))
    if int(partial.step[0]) % 2:
        found = pipeline_features.device_features(problems, partial, first)[2]
        return torch.nn.functional.pad(found, (problems.points, 0))
    found = pipeline_features.instruction_features(problems, partial)[2]
    return torch.nn.functional.pad(found, (0, len(first)))


def act(problems: Problems, partial: Partial, until: Tensor, score: Callable[..., Tensor]) -> Partial:
    """Go on, with the legal action of the best score each time, until `until` decisions are made."""
    for t in range(int(partial.step.min()), int(until.max())):
        rows = ((partial.step == t) & (until > t)).nonzero().squeeze(1)
        if len(rows):
            here, so_far = problems.take(rows), partial.take(rows)
            action = torch.where(legal_actions(here, so_far), score(here, so_far), -torch.inf).argmax(1)
            after = pipeline.apply(so_far, action, problems.points)
            partial = Partial(*(old.index_put((rows,), new) for old, new in zip(partial, after, strict=True)))
    return partial


def follow(problems: Problems, partial: Partial) -> Partial:
    """Greedily by the estimates to the end."""
    return act(problems, partial, pipeline.episode_steps(problems), estimates)


def random_states(problems: Problems, seed: int) -> Partial:
    """Plans after a random number of random decisions, short of the end."""
    generator = torch.Generator().manual_seed(seed)
    until = (torch.rand(len(problems.stages), generator=generator) * pipeline.episode_steps(problems)).long()

    def chance(here: Problems, _: Partial) -> Tensor:
        return torch.rand(len(here.stages), here.points + most_devices(here) - 1, generator=generator)

    return act(problems, start_of(problems), until, chance)


def check_promises(problems: Problems, states: Partial) -> None:
    """Take every legal action of the states, and go on by the estimates."""
    for parity in (0, 1):
        rows = (states.step % 2 == parity).nonzero().squeeze(1)
        here, partial = problems.take(rows), states.take(rows)
        if not len(rows):
            continue
        promised = estimates(here, partial)
        row, action = legal_actions(here, partial).nonzero(as_tuple=True)
        many = here.take(row)
        end = follow(many, pipeline.apply(partial.take(row), action, problems.points))
        memory = pipeline.complete_cost(many, end).memory
        settled = torch.arange(memory.shape[1]) < (partial.step[row] // 2).unsqueeze(1)
        sure = (promised[row, action] > 0) & torch.where(settled, memory <= 1, True).all(1)
        earned = pipeline.terminal_reward(many, end)
        assert (earned >= promised[row, action] * (1 - 1e-4))[sure].all()


@MANY
@given(st.integers(0, 2**32), st.sampled_from(SIZES))
def test_following_the_estimates_never_ends_longer_than_any_of_them_says(
    random_problems: DrawProblems, seed: int, size: dict[str, Any]
) -> None:
    """For every legal action of random states; on 48 points some lie between those of the tables."""
    problems = tensors(random_problems(seed, 6, **size))
    check_promises(problems, random_states(problems, seed))


@MANY
@given(st.integers(0, 2**32))
def test_no_estimate_is_better_than_the_best_plan_and_the_plan_followed_is_no_worse(
    random_problems: DrawProblems, seed: int
) -> None:
    """The best of all plans, tried one and all by the cost model in float64; -1 where none fits."""
    records = tiny(random_problems, seed, stages=(2, 3))
    problems = tensors(records)
    start = start_of(problems)
    promised = torch.where(legal_actions(problems, start), estimates(problems, start), -1.0).amax(1)
    earned = pipeline.terminal_reward(problems, follow(problems, start))
    for record, least, got in zip(records, promised.tolist(), earned.tolist(), strict=True):
        best = best_reward(record)
        assert least - FLOAT32 <= best
        assert least - 1e-4 <= got <= best + FLOAT32


def best_reward(record: PipelineProblem) -> float:
    ideal = record.profile.C.sum() * record.micro_batches / record.cluster.devices
    lengths = [cost.length_s for cost in every_cost(record, record.stages, -1, 0) if cost.feasible]
    return float(ideal / min(lengths)) if lengths else -1.0


def test_following_the_estimates_is_near_the_optimum(random_problems: DrawProblems) -> None:
    """What makes learned corrections enough. Lengths over the optimum: 1.0002 on average over 400 such problems."""
    records = [record for seed in range(20) for record in tiny(random_problems, seed, memory=(2.0, 20.0))]
    problems = tensors(records)
    earned = pipeline.terminal_reward(problems, follow(problems, start_of(problems)))
    gaps = [best_reward(record) / got for record, got in zip(records, earned.tolist(), strict=True)]
    assert all(0 < gap < np.inf for gap in gaps)
    assert float(np.mean(gaps)) < 1.005


# --- what the tables hold ----------------------------------------------------------------------------------------


def every_cost(record: PipelineProblem, left: int, point: int, first: int) -> Iterator[PipelineCost]:
    """Costs of all plans of `left` stages for what follows a point, on the devices from `first` on.

    What comes before is an empty stage: it takes no time and no memory, and nothing is sent from it, so that the
    plan's T and memory are those of the rest. From point -1 and device 0 on nothing comes before.
    """
    profile = record.profile
    cuts: tuple[int, ...] = ()
    device_cuts: tuple[int, ...] = ()
    if point >= 0:
        cuts, device_cuts = record.grid.to_instructions((point,)), (first,)
        kept = (np.arange(len(profile)) > cuts[0]).astype(float)
        sent = profile.A * (np.arange(len(profile)) != cuts[0])
        profile = Profile.create(profile.C * kept, sent, profile.W * kept, profile.C_fwd * kept, profile.stash * kept)
    points = [cut for cut in record.grid.cut_points.tolist() if cut > point]
    for coarse in combinations(points, left - 1):
        for devices in combinations(range(first + 1, record.cluster.devices), left - 1):
            yield pipeline_cost(
                profile,
                record.cluster,
                (*cuts, *record.grid.to_instructions(coarse)),
                (*device_cuts, *devices),
                record.micro_batches,
                record.state_factor,
            )


def rest_of(problems: Problems, left: int, sender: int = 0) -> tuple[Rest, Tensor]:
    """[B, P, UNITS] what follows every point, and the transfer times to it."""
    tables = problems.cost_to_go
    assert tables is not None
    points = torch.arange(problems.points).expand(len(problems.stages), -1)
    column = problems.stages.view(-1, 1, 1)
    return cost_to_go.rest_after_points(
        problems.scaled(), tables, torch.full_like(column, left), points, torch.full_like(column, sender)
    )


class Place(NamedTuple):
    """A point of a problem and the device behind it, with T and L of all plans of the rest that fit, [plans, 2]."""

    problem: int
    point: int
    first: int
    real: NDArray[np.float64]


def places(records: list[PipelineProblem], left: int) -> Iterator[Place]:
    """All of them but those where the memory of some plan is too close to the limit to call; in ideal lengths."""
    for i, record in enumerate(records):
        ideal = record.profile.C.sum() * record.micro_batches / record.cluster.devices
        for point in record.grid.cut_points.tolist():
            for first in range(1, record.cluster.devices):
                costs = list(every_cost(record, left, point, first))
                if any(abs(cost.memory_bytes / record.cluster.memory - 1).min() < FLOAT32 for cost in costs):
                    continue
                fitting = [(cost.span_s, cost.length_s) for cost in costs if cost.feasible]
                yield Place(i, point, first, np.array(fitting).reshape(-1, 2) / ideal)


def without_communication(record: PipelineProblem) -> PipelineProblem:
    p, nothing = record.profile, np.zeros(len(record.profile))
    return replace(record, profile=Profile.create(p.C, nothing, nothing, p.C_fwd, p.stash))


@MANY
@given(st.integers(0, 2**32))
def test_where_nothing_is_sent_or_reduced_the_spans_are_the_optima(random_problems: DrawProblems, seed: int) -> None:
    """No R trades against T, and no transfer from the stages before, which are guessed, against either."""
    records = [without_communication(record) for record in tiny(random_problems, seed, stages=(4, 4))]
    problems = tensors(records)
    for left in (2, 3):
        span = rest_of(problems, left)[0].span
        for *place, real in places(records, left):
            ours, best = float(span[*place]), real[:, 0].min(initial=IMPOSSIBLE)
            assert ours == pytest.approx(best, rel=FLOAT32, abs=FLOAT32) or min(ours, best) >= IMPOSSIBLE, place


@MANY
@given(st.integers(0, 2**32), st.sampled_from([2, 3]))
def test_a_span_is_impossible_exactly_where_no_plan_fits(random_problems: DrawProblems, seed: int, left: int) -> None:
    """With weights, which take memory. Where something fits T and R are those of a real plan."""
    records = tiny(random_problems, seed, stages=(4, 4), memory=(0.3, 4.0))
    rest, _ = rest_of(tensors(records), left)
    for *place, real in places(records, left):
        span, reduce = (float(table[*place]) for table in (rest.span, rest.reduce))
        assert (span >= IMPOSSIBLE) == (not real.size), place
        if real.size:
            assert np.isclose(real, (span, span + reduce), rtol=FLOAT32, atol=FLOAT32).all(1).any(), place


def test_some_rests_fit_and_some_do_not(random_problems: DrawProblems) -> None:
    """Guards the test above."""
    records = [record for seed in range(10) for record in tiny(random_problems, seed, stages=(4, 4), memory=(0.3, 4.0))]
    fits = [
        any(cost.feasible for cost in every_cost(record, 2, record.grid.cut_points[0].item(), 1)) for record in records
    ]
    assert 0.2 < np.mean(fits) < 0.8


@LAW
@given(st.integers(0, 2**32))
def test_one_stage_left_costs_what_the_cost_model_says(random_problems: DrawProblems, seed: int) -> None:
    """Two-stage plans: T and R of the second stage and the transfer to it, for all cuts; no table is needed."""
    records = random_problems(seed, 3, stages=(2, 2))
    problems = tensors(records)
    scaled = problems.scaled()
    points = torch.arange(problems.points).expand(len(records), -1)
    alone = cost_to_go.last_stage(scaled, scaled.at(points), first_devices(scaled))
    rest, factor = rest_of(problems, left=1)
    for i, record in enumerate(records):
        M, devices = record.micro_batches, record.cluster.devices
        ideal = record.profile.C.sum() * M / devices
        for point in record.grid.cut_points.tolist():
            for first in range(1, devices):
                cut = record.grid.to_instructions((point,))
                cost = pipeline_cost(record.profile, record.cluster, cut, (first,), M, record.state_factor)
                need = cost.memory_bytes[1] / record.cluster.memory
                if abs(need - 1) < FLOAT32:
                    continue
                span = M * (cost.forward_s[1] + cost.backward_s[1]) / ideal if need < 1 else IMPOSSIBLE
                for ours in (alone, rest):
                    assert float(ours.span[i, point, first]) == pytest.approx(span, rel=FLOAT32, abs=FLOAT32)
                    reduce = cost.all_reduce_s[1] / ideal
                    assert float(ours.reduce[i, point, first]) == pytest.approx(reduce, rel=FLOAT32, abs=FLOAT32)
                    assert ours.stop[i, point, first] == devices
                transfer = float(factor[i, point, first] * scaled.arrays[i, 1, point])
                assert transfer == pytest.approx(cost.transfer_s[0] / ideal, rel=FLOAT32, abs=1e-7)


@LAW
@given(st.integers(0, 2**32), st.sampled_from([2, 5, 100]))
def test_tables_of_a_batch_are_those_of_each_problem_alone(
    random_problems: DrawProblems, seed: int, chunk: int
) -> None:
    """Bit for bit, however many are worked on at a time: for as many stages as each problem may have left."""
    problems = Problems.from_encoded(encode(random_problems(seed, 5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cost_to_go.CHUNK, "cpu", chunk)
        together = problems.with_cost_to_go(4).cost_to_go
    for i in range(5):
        alone = problems.take(torch.tensor([i])).with_cost_to_go(4).cost_to_go
        assert together is not None
        assert alone is not None
        assert torch.equal(alone.points[0], together.points[i])
        needed = int(problems.stages[i]) - 2
        for ours, theirs in zip(alone[1:], together[1:], strict=True):
            assert torch.equal(ours[0, :needed], theirs[i, :needed])


def test_more_room_in_the_tables_changes_nothing(random_problems: DrawProblems) -> None:
    """Tables for more stages than the problems have hold the same for as many as they have."""
    problems = Problems.from_encoded(encode(random_problems(3, 4)))
    small, large = (problems.with_cost_to_go(stages).cost_to_go for stages in (4, 6))
    assert small is not None
    assert large is not None
    assert [table.shape[1:] for table in large] == [(16,), *[(4, 16, UNITS)] * 4]
    for ours, theirs in zip(small[1:], large[1:], strict=True):
        assert torch.equal(ours, theirs[:, :2])


def test_tables_for_two_stages_are_there_though_never_needed() -> None:
    assert [cost_to_go.levels(stages) for stages in (2, 3, 4, 6)] == [1, 1, 2, 4]


def test_problems_keep_their_tables(random_problems: DrawProblems) -> None:
    problems = tensors(random_problems(0, 4))
    assert problems.with_cost_to_go(4) is problems
    taken = problems.take(torch.tensor([2, 0]))
    for ours, theirs in zip(taken.cost_to_go or (), problems.cost_to_go or (), strict=True):
        assert torch.equal(ours, theirs[[2, 0]])
    assert taken.to("cpu").cost_to_go is not None
    assert Problems.from_encoded(encode(random_problems(0, 4))).to("cpu").cost_to_go is None


def test_a_look_ahead_without_tables_says_what_to_do(random_problems: DrawProblems) -> None:
    problems = Problems.from_encoded(encode(random_problems(0, 4)))
    with pytest.raises(ValueError, match="with_cost_to_go"):
        pipeline_features.instruction_features(problems, start_of(problems))


# --- points ------------------------------------------------------------------------------------------------------


@st.composite
def channels(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Arrays [B, 5, P] and masks [B, P] of a few grids."""
    count = draw(st.integers(2, 100))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch = 3
    steps = random.random((batch, 5, count)) * (random.random((batch, 5, count)) < random.random())
    steps[:, 0] += 1e-3
    arrays = steps.cumsum(2)
    arrays[:, 1] = steps[:, 1]
    masks = random.random((batch, count)) < draw(st.sampled_from([0.2, 0.7, 1.0]))
    masks[:, 0], masks[:, -1] = True, False
    return torch.from_numpy(arrays / arrays.max()).float(), torch.from_numpy(masks)


@LAW
@given(channels())
def test_the_points_are_legal_cuts_in_order_with_the_first_and_last_ones_among_them(
    drawn: tuple[Tensor, Tensor],
) -> None:
    """All of them where they are few enough; the last grid point, which is no cut, fills up."""
    arrays, masks = drawn
    chosen = choose_points(arrays, masks)
    last = arrays.shape[2] - 1
    assert chosen.shape == (len(arrays), min(POINTS, arrays.shape[2]))
    for row, mask in zip(chosen.tolist(), masks, strict=True):
        legal = mask.nonzero().squeeze(1).tolist()
        cuts = [point for point in row if point != last]
        assert row == [*cuts, *[last] * (len(row) - len(cuts))]
        assert cuts == sorted(set(cuts))
        assert set(cuts) <= set(legal)
        assert len(cuts) == min(len(legal), len(row))
        assert {*legal[:END_POINTS], *legal[-END_POINTS:]} <= set(cuts) or len(row) < 2 * END_POINTS


@LAW
@given(channels())
def test_the_points_of_a_problem_do_not_depend_on_the_batch(drawn: tuple[Tensor, Tensor]) -> None:
    arrays, masks = drawn
    together = choose_points(arrays, masks)
    assert torch.equal(choose_points(arrays, masks), together)
    for i in range(len(arrays)):
        assert torch.equal(choose_points(arrays[i : i + 1], masks[i : i + 1])[0], together[i])


def even_grid(points: int = 128) -> tuple[Tensor, Tensor]:
    """A problem of equal instructions, each a point of the grid."""
    ramp = torch.arange(1, points + 1) / points
    arrays = torch.stack([ramp, torch.ones(points), ramp, ramp, ramp]).unsqueeze(0)
    return arrays, torch.from_numpy(Grid(points, points).cut_mask).unsqueeze(0)


@pytest.mark.parametrize("point", [10, 37, 64, 101])
def test_a_point_with_small_activations_is_chosen(point: int) -> None:
    """The smallest of its segment, wherever it lies; the neighbours with as many as all others need not be."""
    arrays, mask = even_grid()
    arrays[0, 1, point] = 0.5
    assert point in choose_points(arrays, mask)[0].tolist()


@pytest.mark.parametrize("channel", [0, 2])
def test_both_ends_of_a_heavy_instruction_are_chosen(channel: int) -> None:
    """Instruction 70 has half of all computation, or half of all parameters: a stage of its own may be best."""
    arrays, mask = even_grid()
    arrays[0, channel] = (arrays[0, channel] + (torch.arange(128) >= 70)) / 2
    assert {69, 70} <= set(choose_points(arrays, mask)[0].tolist())


def test_the_points_spread_over_an_even_problem() -> None:
    """26 segments of 128 / 26 = 4.9 points, the first point of each; no gap is wider than two segments."""
    arrays, mask = even_grid()
    chosen = choose_points(arrays, mask)[0]
    assert int(chosen.diff().max()) <= 10


# --- units -------------------------------------------------------------------------------------------------------


@LAW
@given(st.integers(0, 2**32))
def test_scaled_times_are_over_the_ideal_length(random_problems: DrawProblems, seed: int) -> None:
    """So the computation of all devices in all rounds is 1 on average, and memory per parameter keeps its meaning."""
    records = random_problems(seed, 4)
    problems = Problems.from_encoded(encode(records))
    scaled = problems.scaled()
    np.testing.assert_allclose(scaled.total[:, 0, 0] * problems.micro_batches / problems.devices, 1, rtol=FLOAT32)
    for i, record in enumerate(records):
        p, cluster = record.profile, record.cluster
        ideal = p.C.sum() * record.micro_batches / cluster.devices
        need = 4 * p.W.sum() / cluster.memory
        assert float(scaled.total[i, 2]) == pytest.approx(p.W.sum() / cluster.inter / ideal, rel=FLOAT32)
        assert float(scaled.total[i, 2] * scaled.state[i]) == pytest.approx(need, rel=FLOAT32)
        assert float(scaled.total[i, 4]) == pytest.approx(p.stash.sum() / cluster.memory, rel=FLOAT32)


def test_channels_at_points_begin_with_nothing_at_the_start_of_the_model(random_problems: DrawProblems) -> None:
    scaled = Problems.from_encoded(encode(random_problems(1, 2))).scaled()
    at = scaled.at(torch.tensor([[-1, 0, 15], [3, -1, 3]]))
    arrays = scaled.arrays
    assert torch.equal(at[0], torch.stack([torch.zeros(5), arrays[0, :, 0], arrays[0, :, 15]], 1))
    assert torch.equal(at[1], torch.stack([arrays[1, :, 3], torch.zeros(5), arrays[1, :, 3]], 1))
    one = scaled.take(torch.tensor([1]))
    assert torch.equal(one.at(torch.tensor([[3]])), at[1:, :, :1])
    assert torch.equal(one.total, arrays[1:, :, -1:])
