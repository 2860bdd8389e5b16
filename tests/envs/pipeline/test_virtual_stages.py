"""Plans that run interleaved: where virtual stages begin, what they send, their steps, each by other means."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.schedules import build_schedule, most_held
from automap_models.core.staged import StagedProblem
from automap_models.cost.collectives import all_reduce_s_per_byte, transfer_s_per_byte
from automap_models.cost.overlap import Bucket
from automap_models.envs.pipeline.encoding import EncodedProblems, cut_masks, encode
from automap_models.envs.pipeline.env import OUT_OF_MEMORY_REWARD, Partial, PipelineEnv, Problems
from automap_models.envs.pipeline.interleaving import as_run, runs
from automap_models.envs.pipeline.virtual_stages import lay_out, message_factor
from automap_models.simulate.engine import simulate

LAW = settings(max_examples=12, deadline=None, derandomize=True)
POINTS, MAX_STAGES, MAX_DEVICES = 16, 5, 18
ENV = PipelineEnv(MAX_STAGES, MAX_DEVICES, objective="interleaved")

DrawProblems = Callable[..., list[StagedProblem]]
RandomPlans = Callable[[Problems, PipelineEnv, int], tuple[Partial, torch.Tensor]]
Devices = tuple[int, int]


def parts(devices: int, samples: int) -> float:
    """Into how many equal parts replicas split a micro-batch."""
    return samples / math.ceil(samples / devices) if samples else devices


def factor_by_slices(sender: Devices, receiver: Devices, per_node: int, ratio: float, samples: int = 0) -> float:
    """Time of a message of one byte, from where each of its equal slices lies on both ends."""
    sends, takes = (stop - first for first, stop in (sender, receiver))
    count = math.lcm(sends, takes)
    nodes = (max(sender[1], receiver[1]) - 1) // per_node + 1
    out, into, inside = np.zeros(nodes), np.zeros(nodes), np.zeros(nodes)
    for i in range(count):
        here, there = (first + i * size // count for (first, _), size in ((sender, sends), (receiver, takes)))
        if here // per_node == there // per_node:
            inside[here // per_node] += 1 / count
        else:
            out[here // per_node] += 1 / count
            into[there // per_node] += 1 / count
    padding = max(sends / parts(sends, samples), takes / parts(takes, samples))
    crosses, stays = max(out.max(), into.max()), inside.max()
    if samples:
        crosses, stays = min(1.0, padding * crosses), min(1.0, padding * stays)
    return max(crosses, stays * ratio)


@LAW
@given(st.integers(1, 5), st.integers(0, 7), st.integers(1, 7), st.integers(0, 7), st.integers(1, 7))
def test_a_message_takes_what_its_slices_take(per_node: int, gap: int, sends: int, between: int, takes: int) -> None:
    """From either to the other; whole samples are given by the law of the whole step."""
    sender = (gap, gap + sends)
    receiver = (sender[1] + between, sender[1] + between + takes)
    for one, other in ((sender, receiver), (receiver, sender)):
        own = message_factor(*one, *other, per_node, 0.1, 0.0)
        assert own == pytest.approx(factor_by_slices(one, other, per_node, 0.1), abs=1e-12)


def test_messages_to_the_next_devices_are_those_of_the_cost_model() -> None:
    cluster = Cluster(nodes=3, devices_per_node=3, intra=10.0, inter=1.0, memory=1.0)
    for first, boundary, stop in combinations(range(10), 3):
        own = message_factor(first, boundary, boundary, stop, 3, 0.1, 0.0)
        assert own == pytest.approx(transfer_s_per_byte(cluster, first, boundary, stop), abs=1e-12)


def test_virtual_stages_have_the_shares_of_the_plan() -> None:
    """Ten equal instructions, the first stage with six of them: three, two, three and two; where the third place is
    none, the next one."""
    compute, ends = np.arange(11.0), np.zeros(5, dtype=np.int64)
    legal = np.arange(10) < 9
    assert lay_out(compute, legal, np.array([-1, 5, 9]), 2, ends)
    assert ends.tolist() == [-1, 2, 4, 7, 9]
    legal[[2, 3]] = False
    assert lay_out(compute, legal, np.array([-1, 5, 9]), 2, ends)
    assert ends.tolist() == [-1, 1, 4, 7, 9]
    legal[:] = np.arange(10) < 2
    assert not lay_out(compute, legal, np.array([-1, 0, 9]), 2, ends)


def test_points_without_computation_are_passed_over() -> None:
    """Of places before which there is as much computation it is the last one: nothing is computed between them."""
    compute, ends = np.array([0.0, 1, 1, 1, 2, 3, 3, 4, 5, 6]), np.zeros(5, dtype=np.int64)
    assert lay_out(compute, np.arange(9) < 8, np.array([-1, 5, 8]), 2, ends)
    assert ends.tolist() == [-1, 3, 5, 7, 8]  # before 1.5, 3 and 4.5 of 6, the middle of two counts for the later one


@LAW
@given(st.integers(0, 2**32))
def test_cuts_send_what_the_pieces_of_their_rank_send(random_problems: DrawProblems, seed: int) -> None:
    """Of the plans of two stages: unless two pieces end at one place, it is what `lay_out` cuts."""
    encoded = encode(random_problems(seed, 6, 64, stages=(2, 2), instructions=(30, 90)))
    sent, equal = as_run(encoded), []
    assert (np.delete(sent.arrays, [1, 4], axis=1) == np.delete(encoded.arrays, [1, 4], axis=1)).all()
    for i, mask in enumerate(cut_masks(encoded.instructions, 64)):
        compute, ends = np.append(0.0, encoded.arrays[i, 0].astype(np.float64)), np.zeros(5, dtype=np.int64)
        for cut in np.flatnonzero(mask).tolist():
            assert lay_out(compute, mask, np.array([-1, cut, 63]), 2, ends)
            equal.append(sent.arrays[i, 1, cut] == pytest.approx(float(encoded.arrays[i, 1, ends[[1, 3]]].sum())))
    assert np.mean(equal) > 0.8


def test_stash_counts_for_what_the_first_rank_holds(random_problems: DrawProblems) -> None:
    """Against the moments of both schedules, with pieces of half a stage."""
    encoded = encode(random_problems(6, 60, POINTS, stages=(2, 5)))
    seen, compared = as_run(encoded), 0
    for i, (stages, micro) in enumerate(zip(encoded.stages.tolist(), encoded.micro_batches.tolist(), strict=True)):
        if runs(ENV.objective, stages, micro) and encoded.arrays[i, 4, -1] > 0 and micro % stages == 0:
            pieces = most_held(build_schedule("interleaved", stages, micro, 2))[0]
            more = pieces / 2 / most_held(build_schedule("1f1b", stages, micro))[0]
            assert seen.arrays[i, 4, -1] / encoded.arrays[i, 4, -1] == pytest.approx(more, rel=1e-5)
            compared += 1
    assert compared > 5


def test_agents_see_what_is_sent_and_are_paid_by_what_is(
    random_problems: DrawProblems, random_plans: RandomPlans
) -> None:
    encoded = encode(random_problems(4, 40, POINTS, stages=(2, 4)))
    plain, seen = Problems.from_encoded(encoded), Problems.for_objective(encoded, ENV.objective)
    assert not torch.equal(plain.arrays, seen.arrays)
    complete, rewards = random_plans(plain, ENV, 5)
    torch.testing.assert_close(ENV.terminal_reward(seen, complete), rewards)
    rows = torch.tensor([3, 1])
    torch.testing.assert_close(ENV.terminal_reward(seen.take(rows), complete.take(rows)), rewards[rows])
    assert torch.equal(Problems.for_objective(encoded, "1f1b").arrays, plain.arrays)


@LAW
@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(2, 3))
def test_boundaries_lie_as_near_as_they_can_without_meeting(seed: int, stages: int, virtual: int) -> None:
    """Each at the nearest place where these are all different, and else in order, on places that there are."""
    rng = np.random.default_rng(seed)
    compute = np.concatenate([[0.0], np.cumsum(rng.uniform(0.0, 1.0, 16) ** 3)])
    legal = rng.random(16) < 0.8
    legal[15] = False
    places = np.flatnonzero(legal)
    inner = stages * virtual - 1
    ends, cuts = np.zeros(inner + 2, dtype=np.int64), np.sort(rng.choice(15, stages - 1, replace=False))
    laid = lay_out(compute, legal, np.array([-1, *cuts, 15]), virtual, ends)
    assert laid == (places.size >= inner)
    assume(laid)
    assert (np.diff(ends) > 0).all()
    assert set(ends[1:-1].tolist()) <= set(places.tolist())
    shares = [*(compute[cuts + 1]), compute[-1]]
    targets = [(lap * compute[-1] + share) / virtual for lap in range(virtual) for share in shares][:-1]
    nearest = [int(places[np.abs(compute[places + 1] - target).argmin()]) for target in targets]
    if len(set(nearest)) == len(nearest):
        assert ends[1:-1].tolist() == nearest


def step_by_the_engine(encoded: EncodedProblems, i: int, cuts: list[int], firsts: list[int]) -> float:
    """The simulated step of a plan of problem i, in units of its MAX; inf where it does not fit."""
    C, A, W, F, stash = encoded.arrays[i].astype(np.float64)
    stages, micro, per_node = len(cuts) + 1, int(encoded.micro_batches[i]), int(encoded.devices_per_node[i])
    samples, ratio = 0 if encoded.samples is None else int(encoded.samples[i]), float(encoded.inter_over_intra[i])
    cluster = Cluster(int(encoded.nodes[i]), per_node, intra=1 / ratio, inter=1.0, memory=1.0)
    ranges = list(pairwise([0, *firsts, cluster.devices]))
    schedule = build_schedule("interleaved", stages, micro, 2)
    mask = cut_masks(encoded.instructions[i : i + 1], POINTS)[0]
    ends = np.zeros(2 * stages + 1, dtype=np.int64)
    if not lay_out(np.append(0.0, C), mask, np.array([-1, *cuts, POINTS - 1]), 2, ends):
        return math.inf

    def of(prefix: np.ndarray) -> np.ndarray:
        return np.diff(np.append(0.0, prefix)[ends + 1])

    own = [ranges[rank] for rank in schedule.rank_of]
    shared = np.array([parts(stop - first, samples) for first, stop in own])
    forward, backward, state = of(F) / shared, (of(C) - of(F)) / shared, of(W) * float(encoded.state_over_memory[i])
    held = most_held(schedule, (of(stash) / shared).tolist())
    kept = np.bincount(np.array(schedule.rank_of), weights=state)
    if (kept + np.array(held)).max() > 1.0:
        return math.inf
    messages = [
        A[end] * factor_by_slices(here, there, per_node, ratio, samples)
        for end, (here, there) in zip(ends[1:-1], pairwise(own), strict=True)
    ]
    buckets, shares = [], [False]
    for v, (first, stop) in enumerate(own):
        points = range(ends[v] + 1, ends[v + 1] + 1)
        with_weights = [p for p in points if W[p] > (W[p - 1] if p else 0.0)]
        reduce_s = of(W)[v] * all_reduce_s_per_byte(cluster, first, stop)
        if with_weights and reduce_s > 0:
            before = slice(ends[v] + 1, with_weights[0])
            first_backward = (np.diff(np.append(0.0, C - F))[before]).sum() / shared[v]
            buckets.append((Bucket(-first_backward, reduce_s),))
        else:
            buckets.append(())
        if v:
            nodes = {device // per_node for device in range(first, stop)}
            others = {device // per_node for device in range(*own[v - 1])}
            shares.append(len(nodes) > 1 or nodes == others == nodes | others)
    nothing = np.zeros(2 * stages)
    return simulate(forward, backward, np.array(messages), nothing, schedule, buckets, shares).length_s


@LAW
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.5]))
def test_a_plan_earns_the_ideal_over_its_interleaved_step(
    random_problems: DrawProblems, random_plans: RandomPlans, seed: int, whole_samples: float
) -> None:
    encoded = encode(random_problems(seed, 10, POINTS, stages=(2, 5), whole_samples=whole_samples))
    problems = Problems.from_encoded(encoded)
    complete, rewards = random_plans(problems, ENV, seed)
    for i in range(len(encoded)):
        boundaries, micro = int(encoded.stages[i]) - 1, int(encoded.micro_batches[i])
        if not runs(ENV.objective, boundaries + 1, micro):
            assert float(rewards[i]) == OUT_OF_MEMORY_REWARD
            continue
        cuts, firsts = complete.cuts[i, :boundaries].tolist(), complete.device_cuts[i, :boundaries].tolist()
        step = step_by_the_engine(encoded, i, cuts, firsts)
        ideal = float(encoded.arrays[i, 0, -1]) * micro / float(problems.devices[i])
        assert float(rewards[i]) == pytest.approx(ideal / step if step < math.inf else OUT_OF_MEMORY_REWARD, rel=2e-5)


def test_what_fits_what_does_not_and_what_does_not_run_occur(
    random_problems: DrawProblems, random_plans: RandomPlans
) -> None:
    """Guards the law above."""
    encoded = encode(random_problems(3, 200, POINTS, stages=(2, 5)))
    _, rewards = random_plans(Problems.from_encoded(encoded), ENV, 3)
    can = torch.tensor(
        [
            runs(ENV.objective, *sizes)
            for sizes in zip(encoded.stages.tolist(), encoded.micro_batches.tolist(), strict=True)
        ]
    )
    assert 0.2 < float(can.float().mean()) < 0.95
    assert 0.05 < float((rewards[can] == OUT_OF_MEMORY_REWARD).float().mean()) < 0.95


def test_interleaving_shortens_what_waits() -> None:
    """Two ranks of one device, 16 equal instructions, M = 4, nothing sent: the bubble is half of 1F1B's.

    1F1B waits for (S - 1) (f + b) = 24 of 120 s, interleaved for half of that (2104.04473, section 2.2).
    """
    cluster = Cluster(nodes=2, devices_per_node=1, intra=1.0, inter=1.0, memory=100.0)
    profile = Profile.create(C=[3.0] * 16, A=[0.0] * 16, W=[0.0] * 16, C_fwd=[1.0] * 16)
    problems = Problems.from_encoded(encode([StagedProblem(profile, cluster, 2, 4, granularity=16)]))
    complete = Partial(torch.tensor([[7]]), torch.tensor([[1]]), torch.tensor([2]))
    rewards = {
        name: float(PipelineEnv(2, 2, objective=name).terminal_reward(problems, complete))
        for name in ("1f1b", "interleaved")
    }
    assert rewards["1f1b"] == pytest.approx(96 / 120)
    assert rewards["interleaved"] == pytest.approx(96 / 108)
