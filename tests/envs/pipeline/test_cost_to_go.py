"""The cost-to-go tables: one for each problem whatever the batch, at points and devices that tell something."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from automap_models.core.coarsen import Grid
from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline import cost_to_go
from automap_models.envs.pipeline import env as pipeline
from automap_models.envs.pipeline import features as pipeline_features
from automap_models.envs.pipeline.cost_to_go import END_POINTS, POINTS, UNITS, choose_points
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Problems

LAW = settings(max_examples=12, deadline=None, derandomize=True)
FLOAT32 = 1e-5

DrawProblems = Callable[..., list[StagedProblem]]


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


@pytest.mark.parametrize("granularity", [2, 5, 9, 48])
def test_the_blocks_that_stages_are_worked_on_in_change_nothing(
    random_problems: DrawProblems, granularity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, and there are always as many of them."""
    sizes = {"granularity": granularity, "stages": (2, min(4, granularity)), "instructions": (granularity, 60)}
    problems = Problems.from_encoded(encode(random_problems(1, 4, **sizes)))
    scaled = problems.scaled()
    assert len(cost_to_go.every_stage(scaled, scaled.arrays)) == cost_to_go.BLOCKS
    blocks = problems.with_cost_to_go(4).cost_to_go
    monkeypatch.setattr(cost_to_go, "BLOCKS", 1)
    whole = problems.with_cost_to_go(4).cost_to_go
    assert blocks is not None
    assert whole is not None
    possible = whole.span < cost_to_go.IMPOSSIBLE  # where nothing fits all stages tie
    assert torch.equal(possible, blocks.span < cost_to_go.IMPOSSIBLE)
    for ours, theirs in zip(blocks[1:], whole[1:], strict=True):
        assert torch.equal(ours[possible], theirs[possible])


def test_more_room_in_the_tables_changes_nothing(random_problems: DrawProblems) -> None:
    """Tables for more stages than the problems have hold the same for as many as they have."""
    problems = Problems.from_encoded(encode(random_problems(3, 4)))
    small, large = (problems.with_cost_to_go(stages).cost_to_go for stages in (4, 6))
    assert small is not None
    assert large is not None
    assert [table.shape[1:] for table in large] == [(16,), *[(4, 16, UNITS)] * 5]
    for ours, theirs in zip(small[1:], large[1:], strict=True):
        assert torch.equal(ours, theirs[:, :2])


def test_tables_for_two_stages_are_there_though_never_needed() -> None:
    assert [cost_to_go.levels(stages) for stages in (2, 3, 4, 6)] == [1, 1, 2, 4]


def test_problems_keep_their_tables(random_problems: DrawProblems) -> None:
    problems = Problems.from_encoded(encode(random_problems(0, 4))).with_cost_to_go(4)
    assert problems.with_cost_to_go(4) is problems
    taken = problems.take(torch.tensor([2, 0]))
    for ours, theirs in zip(taken.cost_to_go or (), problems.cost_to_go or (), strict=True):
        assert torch.equal(ours, theirs[[2, 0]])
    assert taken.to("cpu").cost_to_go is not None
    assert Problems.from_encoded(encode(random_problems(0, 4))).to("cpu").cost_to_go is None


def test_a_look_ahead_without_tables_says_what_to_do(random_problems: DrawProblems) -> None:
    problems = Problems.from_encoded(encode(random_problems(0, 4)))
    with pytest.raises(ValueError, match="with_cost_to_go"):
        pipeline_features.instruction_features(problems, pipeline.reset(4, 4))


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


# --- devices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "per_node", "units"),
    [(1, 2, 2), (4, 8, 32), (11, 3, 17), (8, 8, 32), (13, 5, 22), (6, 17, 26), (16, 8, 32)],
)
def test_units_are_equal_groups_of_as_few_devices_as_32_of_them_allow(
    random_problems: DrawProblems, nodes: int, per_node: int, units: int
) -> None:
    """One device each on up to 32, two on 33 and 64, three on 65, four on 102 and 128; the last may be smaller."""
    problems = Problems.from_encoded(encode(random_problems(0, 1, clusters=[(nodes, per_node)], stages=(2, 2))))
    first = cost_to_go.first_devices(problems.scaled()).flatten()
    size = {2: 1, 32: 1, 33: 2, 64: 2, 65: 3, 102: 4, 128: 4}[nodes * per_node]
    assert first[first < nodes * per_node].tolist() == [size * unit for unit in range(units)]
    assert len(first) == UNITS


# --- units of time -------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
def test_compiled_operators_make_the_same_tables_with_two_graphs(
    random_problems: Callable[..., list[StagedProblem]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for the stages and one for every level; half a minute of compiling."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(cost_to_go, "CHUNK", {"cpu": 4})
    problems = Problems.from_encoded(encode(random_problems(3, 6, 16, stages=(3, 5), memory=(2.0, 20.0))))
    given, fineness = (problems.scaled(), problems.cut_mask, 5), cost_to_go.Fineness(8, 9, (1, 2, 4))
    counters.clear()
    compiled = cost_to_go.cost_to_go(*given, fineness, compiled=True)
    assert counters["stats"]["unique_graphs"] == 2
    for ours, theirs in zip(compiled, cost_to_go.cost_to_go(*given, fineness), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
