"""What may follow a cut: what is promised can be had, and it is the optimum where one plan an entry is enough."""

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

from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.envs.pipeline import env as pipeline
from automap_models.envs.pipeline import features as pipeline_features
from automap_models.envs.pipeline.completions import rest_after_points
from automap_models.envs.pipeline.cost_to_go import IMPOSSIBLE, UNITS, Rest, first_devices, last_stage
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.planners.staged.exact import ExactPlanner

LAW = settings(max_examples=8, deadline=None, derandomize=True)
MANY = settings(max_examples=15, deadline=None, derandomize=True)
TINY_DEVICES = 6
FLOAT32 = 1e-5
"""Times are around one ideal length; prefix sums lose 1e-7 of the largest."""

SIZES: list[dict[str, Any]] = [
    {},
    {"granularity": 48, "instructions": (40, 80)},
    {"granularity": 48, "instructions": (40, 80), "memory": (0.3, 1.5)},
]
LARGE = [(11, 3), (5, 7), (8, 8), (13, 5), (12, 8), (97, 1), (6, 17), (16, 8)]
"""Nodes and devices in each; 33, 35, 65, 97 and 102 are no multiples of their units of 2, 2, 3, 4 and 4 devices."""

DrawProblems = Callable[..., list[StagedProblem]]


def tiny(random_problems: DrawProblems, seed: int, **changes: Any) -> list[StagedProblem]:
    """A few problems of up to seven instructions, all of which can be cut after, on up to six devices."""
    drawn = random_problems(seed, 12, **{"granularity": 8, "instructions": (4, 7), **changes})
    return [problem for problem in drawn if problem.cluster.devices <= TINY_DEVICES][:2]


def large(
    random_problems: DrawProblems, seed: int, stages: tuple[int, int], memory: tuple[float, float] = (0.3, 20.0)
) -> list[StagedProblem]:
    """Two problems on clusters of 33 to 128 devices."""
    return random_problems(seed, 2, stages=stages, instructions=(16, 40), memory=memory, clusters=LARGE)


def tensors(records: list[StagedProblem]) -> Problems:
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
        estimates = pipeline_features.device_features(problems, partial, first)[2]
        return torch.nn.functional.pad(estimates, (problems.points, 0))
    estimates = pipeline_features.instruction_features(problems, partial)[2]
    return torch.nn.functional.pad(estimates, (0, len(first)))


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
@given(st.integers(0, 2**32), st.sampled_from(SIZES), st.sampled_from([0.0, 0.5]))
def test_following_the_estimates_never_ends_longer_than_any_of_them_says(
    random_problems: DrawProblems, seed: int, size: dict[str, Any], whole_samples: float
) -> None:
    """For every legal action of random states; on 48 points some lie between those of the tables."""
    problems = tensors(random_problems(seed, 6, **size, whole_samples=whole_samples))
    check_promises(problems, random_states(problems, seed))


@LAW
@given(st.integers(0, 2**32), st.sampled_from([(2, 5), (6, 16)]))
def test_following_the_estimates_keeps_their_promises_on_clusters_of_33_to_128_devices(
    random_problems: DrawProblems, seed: int, stages: tuple[int, int]
) -> None:
    """Units of two to four devices, some clusters without a whole number of them, and device cuts between two units."""
    problems = tensors(large(random_problems, seed, stages))
    check_promises(problems, random_states(problems, seed))


def test_most_plans_on_large_clusters_are_promised_something(random_problems: DrawProblems) -> None:
    """Guards the test above, of cuts and of device cuts between two units alike; what is not promised is no plan."""
    problems = tensors([record for seed in range(4) for record in large(random_problems, seed, (3, 16), (1.5, 20.0))])
    start = start_of(problems)
    promised = estimates(problems, start)
    assert (promised > 0)[legal_actions(problems, start)].float().mean() > 0.5
    begun = act(problems, start, torch.ones(len(start.step), dtype=torch.int64), estimates)
    between = legal_actions(problems, begun)[:, problems.points :]
    size = torch.ceil(problems.devices / UNITS).unsqueeze(1)
    between &= pipeline.device_cuts(problems, most_devices(problems)) % size != 0
    assert between.sum() > 100
    assert (estimates(problems, begun)[:, problems.points :] > 0)[between].float().mean() > 0.5


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


def best_reward(record: StagedProblem) -> float:
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


@pytest.mark.slow
def test_following_the_estimates_is_near_the_optimum_on_large_clusters_too(random_problems: DrawProblems) -> None:
    """Found by the exact planner; of what a unit cannot express device cuts choose the best."""
    sizes = {"granularity": 8, "instructions": (8, 20), "stages": (2, 4), "memory": (2.0, 20.0)}
    records = random_problems(5, 12, **sizes, clusters=[(5, 7), (8, 5), (6, 8)])
    problems = tensors(records)
    earned = pipeline.terminal_reward(problems, follow(problems, start_of(problems)))
    gaps = []
    for record, reward in zip(records, earned.tolist(), strict=True):
        bound = ExactPlanner().solve(record).bound
        assert bound is not None
        assert bound.proof == "exact"
        gaps.append(record.profile.C.sum() * record.micro_batches / record.cluster.devices / reward / bound.value)
    assert min(gaps) > 1 - 1e-4
    assert float(np.mean(gaps)) < 1.02


# --- what they are made of ---------------------------------------------------------------------------------------


def every_cost(record: StagedProblem, left: int, point: int, first: int) -> Iterator[StagedCost]:
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
            shape = ((*cuts, *record.grid.to_instructions(coarse)), (*device_cuts, *devices))
            plan = StagedPlan(*shape, record.micro_batches, "test")
            yield plan_cost(replace(record, profile=profile, stages=plan.stages), plan)


def rest_of(problems: Problems, left: int, sender: int = 0) -> tuple[Rest, Tensor]:
    """[B, P, UNITS] what follows every point, and the transfer times to it."""
    tables = problems.cost_to_go
    assert tables is not None
    points = torch.arange(problems.points).expand(len(problems.stages), -1)
    column = problems.stages.view(-1, 1, 1)
    return rest_after_points(
        problems.scaled(), tables, torch.full_like(column, left), points, torch.full_like(column, sender)
    )


class Place(NamedTuple):
    """A point of a problem and the device behind it, with T and L of all plans of the rest that fit, [plans, 2]."""

    problem: int
    point: int
    first: int
    real: NDArray[np.float64]


def places(records: list[StagedProblem], left: int) -> Iterator[Place]:
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


def without_communication(record: StagedProblem) -> StagedProblem:
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
    alone = last_stage(scaled, scaled.at(points), first_devices(scaled))
    rest, factor = rest_of(problems, left=1)
    for i, record in enumerate(records):
        M, devices = record.micro_batches, record.cluster.devices
        ideal = record.profile.C.sum() * M / devices
        for point in record.grid.cut_points.tolist():
            for first in range(1, devices):
                cut = record.grid.to_instructions((point,))
                cost = plan_cost(replace(record, stages=2), StagedPlan(cut, (first,), M, "test"))
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


# --- the same rests by other ways --------------------------------------------------------------------------------


@LAW
@given(st.integers(0, 2**32), st.sampled_from([(), LARGE]))
def test_a_unit_s_first_device_is_worth_the_same_as_a_device_cut_and_behind_its_cut(
    random_problems: DrawProblems, seed: int, clusters: list[tuple[int, int]]
) -> None:
    """Bit for bit, for every point: up to 32 devices, of which each is a unit, and beyond."""
    problems = tensors(random_problems(seed, 3, stages=(2, 6), clusters=clusters))
    states = random_states(problems, seed)
    scaled = problems.scaled()
    done = pipeline_features.progress(scaled, states)
    behind_cuts, first = pipeline_features.look_at_cuts(problems, scaled, done)
    devices = torch.arange(1.0, most_devices(problems)).view(1, 1, -1)
    column = (first.long() - 1).clamp(0, devices.shape[2] - 1)
    real = (first > 0) & (first < scaled.devices)
    for point in range(problems.points):
        points = torch.full((len(states.step), 1), point)
        seen = pipeline_features.look_at_devices(problems, scaled, done, points, devices)
        for ours, theirs in zip(seen.at(column), behind_cuts, strict=True):
            here = theirs.expand(behind_cuts.reward.shape)[:, point : point + 1]
            assert torch.equal(ours[real], here[real])


@LAW
@given(st.integers(0, 2**32), st.sampled_from([(), LARGE]))
def test_the_level_that_a_state_looks_up_is_all_it_needs(
    random_problems: DrawProblems, seed: int, clusters: list[tuple[int, int]]
) -> None:
    problems = tensors(random_problems(seed, 6, stages=(2, 6), clusters=clusters))
    assert problems.cost_to_go is not None
    states = random_states(problems, seed)
    only = problems._replace(cost_to_go=problems.cost_to_go.only(problems.stages.long() - 1 - states.step // 2))
    first = pipeline.device_cuts(problems, most_devices(problems))
    for ours, theirs in zip(
        (
            *pipeline_features.instruction_features(only, states),
            *pipeline_features.device_features(only, states, first),
        ),
        (
            *pipeline_features.instruction_features(problems, states),
            *pipeline_features.device_features(problems, states, first),
        ),
        strict=True,
    ):
        assert torch.equal(ours, theirs)
