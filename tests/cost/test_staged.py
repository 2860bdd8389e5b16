"""Hybrid plans: the pipeline model where nothing is partitioned, and two dense layers as worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device, StepConstants
from automap_models.core.profile import FloatArray, Profile, SharedParameter
from automap_models.core.profiled_model import ShardedProfile, unsharded
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.overlap import TiedSum
from automap_models.cost.staged import plan_cost, stage_weights_bytes
from automap_models.errors import BadInput
from automap_models.simulate.plan_step import step_cost

CLUSTER = Cluster(2, 4, intra=100e9, inter=10e9, memory=1e9, name="pair")


Numbers = tuple[int, ...]


def draw(seed: int, n: int = 9) -> Profile:
    random = np.random.default_rng(seed)
    C = random.random(n)
    A, W, forward, stash = random.random((4, n)) * [[1e9], [1e8], [1.0], [1e8]]
    return Profile.create(C, A, W, C * forward, stash)


def plan(cuts: Numbers, device_cuts: Numbers, chosen: Numbers, micro_batches: int) -> StagedPlan:
    return StagedPlan(cuts, device_cuts, micro_batches, "test", shardings=chosen)


@pytest.mark.parametrize("seed", range(25))
def test_whole_samples_never_cost_less_than_equal_parts(seed: int) -> None:
    """Under GPipe, whose step grows with its times, the step neither."""
    rng = np.random.default_rng(seed)
    profile, stages = draw(seed, 12), int(rng.integers(1, 6))
    counted = replace(profile, meta={"microbatch_size": int(rng.integers(1, 12))})
    cuts = tuple(sorted(rng.choice(11, size=stages - 1, replace=False).tolist()))
    device_cuts = tuple(sorted((1 + rng.choice(7, size=stages - 1, replace=False)).tolist()))
    split = plan(cuts, device_cuts, (0,) * stages, 5)
    even, whole_samples = (
        step_cost(StagedProblem(p, CLUSTER, stages, 5, schedule="gpipe"), split) for p in (profile, counted)
    )
    for name in ("forward_s", "backward_s", "transfer_s", "memory_bytes"):
        assert (getattr(whole_samples, name) >= getattr(even, name) * (1 - 1e-12)).all()
    np.testing.assert_array_equal(whole_samples.all_reduce_s, even.all_reduce_s)
    assert whole_samples.step_s >= even.step_s * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_tied_weights_cost_what_the_reference_says(seed: int, reference_model: ModuleType) -> None:
    rng = np.random.default_rng(seed)
    profile, stages = draw(seed, 12), int(rng.integers(1, 6))
    tied = tie(profile, rng)
    cuts = tuple(sorted(rng.choice(11, size=stages - 1, replace=False).tolist()))
    device_cuts = tuple(sorted((1 + rng.choice(7, size=stages - 1, replace=False)).tolist()))
    case = {
        "profile": {name: getattr(profile, name).tolist() for name in ("C", "C_fwd", "A", "W", "stash")},
        "cluster": {"nodes": 2, "devices_per_node": 4, "intra": 100e9, "inter": 10e9, "memory": 1e9},
        "shared": [(parameter.nbytes, parameter.instructions) for parameter in tied.shared_parameters],
        "cuts": cuts,
        "device_cuts": device_cuts,
        "micro_batches": 5,
    }
    expected, tied_plan = reference_model.tied(case), plan(cuts, device_cuts, (0,) * stages, 5)
    length = StagedProblem(tied, CLUSTER, stages, 5)
    for problem in (length, replace(length, schedule="1f1b")):
        cost = plan_cost(problem, tied_plan)
        np.testing.assert_allclose(cost.memory_bytes, expected["memory_bytes"], rtol=1e-12)
        np.testing.assert_allclose(cost.all_reduce_s, expected["all_reduce_s"], rtol=1e-12)
        np.testing.assert_allclose(
            np.array(stage_weights_bytes(problem, tied_plan)) * 4 + _saved_bytes(problem, tied_plan),
            expected["memory_bytes"],
            rtol=1e-12,
        )
        sums = {} if problem.schedule is None else expected["tied_s"]
        in_all: dict[tuple[int, ...], float] = {}
        for tied_sum in cost.tied:
            in_all[tied_sum.stages] = in_all.get(tied_sum.stages, 0.0) + tied_sum.sum_s
        assert in_all == pytest.approx(sums, rel=1e-12)


def tie(profile: Profile, rng: np.random.Generator) -> Profile:
    """The profile, of which up to four parameters are used by several instructions."""
    parameters = []
    for k in range(int(rng.integers(1, 5))):
        users = sorted(rng.choice(len(profile), size=int(rng.integers(2, 5)), replace=False).tolist())
        parameters.append(SharedParameter(f"p{k}", float(profile.W[users[0]]) * float(rng.random()), tuple(users)))
    return replace(profile, shared_parameters=tuple(parameters))


def _saved_bytes(problem: StagedProblem, plan: StagedPlan) -> FloatArray:
    spans, replicas = plan.stage_instructions(len(problem.profile)), [d for d, _ in plan.degrees(problem)]
    stash = [problem.profile.stash[first : last + 1].sum() for first, last in spans]
    return np.array([problem.in_flight(s) * stash[s] / replicas[s] for s in range(plan.stages)])


def test_a_tied_embedding_worked_out_by_hand() -> None:
    """The first and the last instruction use 400 MB; each of them in a stage of its own, a node in between.

    With four replicas in a node the last stage all-reduces its copy, which was nothing before. The sum over both takes
    2·½·400e6 bytes of each replica over the four's link of 10 GB/s, and nothing else is going on then.
    """
    profile = Profile.create(C=[1.0, 1.0], A=[0.0, 0.0], W=[4e8, 0.0])
    embedding = SharedParameter("embedding", 4e8, (0, 1))
    tied = replace(profile, shared_parameters=(embedding,))
    halves = plan((0,), (4,), (0, 0), 4)
    loose, cost = (step_cost(StagedProblem(p, CLUSTER, 2, 4, schedule="gpipe"), halves) for p in (profile, tied))
    np.testing.assert_allclose(loose.memory_bytes, [1.6e9, 0.0])
    np.testing.assert_allclose(cost.memory_bytes, [1.6e9, 1.6e9])
    np.testing.assert_allclose(cost.all_reduce_s, [4e8 * 1.5 / 100e9] * 2)
    assert cost.tied == (TiedSum((0, 1), pytest.approx(0.16), "embedding"),)
    assert cost.step_s == pytest.approx(loose.step_s + 0.16)
    assert cost.length_s == loose.length_s, "the last stage ends sooner, with its all-reduce, too"


def test_a_stage_that_shares_its_operators_holds_its_share_of_a_copy() -> None:
    problem = two_layers()
    embedding = SharedParameter("embedding", 2e8, (0, 1))
    halves = replace(problem.shardings[0], shared_bytes=np.array([1e8]))
    tied = replace(
        problem, profile=replace(problem.profile, shared_parameters=(embedding,)), shardings=(halves,), schedule="1f1b"
    )
    for chosen, share in (((1, 1), 1e8), ((1, 0), 2e8)):
        loose, cost = (plan_cost(p, plan((0,), (4,), chosen, 3)) for p in (problem, tied))
        np.testing.assert_allclose(cost.memory_bytes - loose.memory_bytes, [0.0, 4 * share])
        rate = 2 * 0.5 / 100e9 if chosen[1] else 2 * 0.75 / 100e9
        np.testing.assert_allclose(cost.all_reduce_s - loose.all_reduce_s, [0.0, share * rate])
        assert [tied_sum.sum_s for tied_sum in cost.tied] == [pytest.approx(4 * share / 10e9)]
    inside = plan_cost(replace(tied, cluster=replace(CLUSTER, nodes=1)), plan((0,), (2,), (1, 1), 3))
    assert inside.tied[0].sum_s == pytest.approx(1e8 / 100e9)


def two_layers() -> StagedProblem:
    """Two dense layers of 10 s; over two devices half of each, with one all-reduce forward and one backward."""
    profile = Profile.create(C=[10.0, 10.0], C_fwd=[4.0, 4.0], A=[2e9, 0.0], W=[8e8, 4e8], stash=[1e8, 3e8])
    halves = replace(
        unsharded(profile),
        name="halves",
        degree=2,
        C=profile.C / 2,
        C_fwd=profile.C_fwd / 2,
        boundary_bytes=profile.A,
        W=profile.W / 2,
        stash=np.array([5e7, 3e8]),
        reduced_fwd=np.array([0.0, 6e9]),
        reduced_bwd=np.array([4e9, 0.0]),
        starts_fwd=np.array([0.0, 1.0]),
        starts_bwd=np.array([1.0, 0.0]),
        gradients=np.array([1e9, 0.0]),
    )
    return StagedProblem(profile, CLUSTER, stages=2, micro_batches=3, shardings=(halves,), launch_s=0.5)


def test_two_stages_worked_out_by_hand() -> None:
    """The first stage on a node as 2 replicas of 2 devices, the second as data parallelism on the other node.

    ρ = 2·½/100e9 = 1e-11 s a byte on two devices; λ = 2·⌈log2 2⌉·0.5 = 1 s for each all-reduce that starts.
    First stage: f = 2/2 = 1; b = (3 + 1e-11·4e9 + (2e9 - 1e9)/100e9)/2 + 1 = (3 + 0.04 + 0.01)/2 + 1 = 2.525.
    AR over two replicas in the node, no link shared: 4e8·(2·½/100e9) = 0.004, and 1e9·1e-11 = 0.01 for gradients.
    """
    problem = two_layers()
    cost = plan_cost(problem, plan((0,), (4,), (1, 0), 3))
    np.testing.assert_allclose(cost.forward_s, [1.0, 1.0])
    np.testing.assert_allclose(cost.backward_s, [2.525, 1.5])
    np.testing.assert_allclose(cost.compute_s, [2.5, 2.5])
    np.testing.assert_allclose(cost.reduce_s, [1.02, 0.0])
    np.testing.assert_allclose(cost.gather_s, [0.005, 0.0])
    np.testing.assert_allclose(cost.all_reduce_s, [0.014, 4e8 * 2 * 0.75 / 100e9])
    np.testing.assert_allclose(cost.memory_bytes, [4 * 4e8 + 2 * 5e7 / 2, 4 * 4e8 + 3e8 / 4])
    np.testing.assert_allclose(cost.transfer_s, [2e9 / 10e9])
    # T is the second stage's, 3.525 + 2·0.2 + 3·2.5, more than the first's 3·3.525; the first's all-reduce ends last.
    assert (cost.span_s, cost.pivot) == (pytest.approx(11.425), 2)
    assert cost.length_s == pytest.approx(11.425 + 0.014)
    assert not cost.feasible


def test_replicas_across_nodes_share_the_links() -> None:
    """One stage of 4 replicas of 2 devices: two groups leave each node at a time."""
    problem = two_layers()
    one = replace(problem, stages=1)
    cost = plan_cost(one, plan((), (), (1,), 3))
    ring = 2 * 0.5 / 100e9 + 2 * (2 * 0.5 / 10e9)
    assert cost.all_reduce_s[0] == pytest.approx(6e8 * ring + 1e9 * 1e-11)
    assert cost.gather_s[0] == 0.0


def test_groups_must_lie_inside_nodes() -> None:
    problem = two_layers()
    assert plan((0,), (4,), (1, 1), 3).check_valid(problem)[0]
    assert plan((0,), (2,), (1, 1), 3).check_valid(problem)[0]
    for device_cuts, chosen in (((3,), (1, 0)), ((3,), (0, 1)), ((4,), (1, 2)), ((4,), (1,))):
        assert not plan((0,), device_cuts, chosen, 3).check_valid(problem)[0]
    assert plan((0,), (4,), (1, 0), 3).degrees(problem) == ((2, 2), (4, 1))


def test_a_sharding_of_another_profile_is_refused() -> None:
    problem, other = two_layers(), draw(1)
    with pytest.raises(BadInput, match="other instructions"):
        StagedProblem(other, CLUSTER, 2, shardings=problem.shardings)
    with pytest.raises(BadInput, match="degree 1"):
        replace(problem, shardings=(unsharded(problem.profile),))


def test_another_number_of_micro_batches_scales_all_but_parameters() -> None:
    problem = two_layers()
    sized = replace(problem.profile, meta={"microbatch_size": 4})
    problem = replace(problem, profile=sized)
    split = problem.with_split(stages=1, micro_batches=2, global_batch=16)
    (halves,) = split.shardings
    assert isinstance(halves, ShardedProfile)
    np.testing.assert_array_equal(halves.C, [10.0, 10.0])
    np.testing.assert_array_equal(halves.reduced_fwd, [0.0, 12e9])
    np.testing.assert_array_equal(halves.W, problem.shardings[0].W)
    np.testing.assert_array_equal(halves.starts_bwd, [1.0, 0.0])
    assert (split.stages, split.micro_batches) == (1, 2)


def test_replicas_get_whole_samples_under_a_schedule() -> None:
    """23 replicas of 32 samples: some have 2, not 1.39, and so the stage takes two thirty-seconds of its work."""
    profile = Profile.create(
        C=[32.0, 32.0], C_fwd=[8.0, 8.0], A=[3.2e9, 0.0], W=[0.0, 0.0], stash=[64.0, 64.0], meta={"microbatch_size": 32}
    )
    cluster = Cluster(3, 8, 1e9, 1e9, 1e12)
    problem = StagedProblem(profile, cluster, stages=2, micro_batches=1, schedule="1f1b")
    cut = StagedPlan((0,), (1,), 1, "given")
    cost, continuous = plan_cost(problem, cut), plan_cost(replace(problem, schedule=None), cut)
    assert (cost.forward_s.tolist(), cost.backward_s.tolist()) == ([8.0, 0.5], [24.0, 1.5])
    assert cost.memory_bytes.tolist() == [64.0, 4.0]
    assert continuous.forward_s[1] == 8.0 / 23
    # The sender keeps 7/23 in its node and sends the rest: with 46 samples' room for 32 that is the whole micro-batch.
    assert continuous.transfer_s[0] == pytest.approx(3.2 * 16 / 23)
    assert cost.transfer_s[0] == pytest.approx(3.2)


def test_transfers_of_whole_samples_count_replicas_and_not_devices() -> None:
    """Of 13 samples 6 replicas of two devices each hold up to 3, which is room for 18; 12 devices would have it for 24.

    The receiver has 4 devices beside the sender's and 8 in the other node, so that ⅔ of what it has room for crosses.
    """
    problem = two_layers()
    profile = replace(problem.profile, meta={"microbatch_size": 13})
    cluster = Cluster(2, 8, 100e9, 10e9, 1e12)
    sampled = replace(problem, profile=profile, cluster=cluster, schedule="1f1b")
    cost = plan_cost(sampled, plan((0,), (4,), (1, 1), 3))
    assert cost.transfer_s[0] == pytest.approx(2e9 * 18 / 13 * 2 / 3 / 10e9)


def test_what_the_last_backward_pass_hides_of_an_all_reduce_costs_nothing() -> None:
    """3 s of all-reduce beside 3 s of backward pass: nothing is left; of 4.5 s 1.5."""
    profile = Profile.create(C=[4.0, 4.0], C_fwd=[1.0, 1.0], A=[0.0, 0.0], W=[1e8, 2e8])
    problem = StagedProblem(profile, Cluster(2, 1, 1e9, 1e8, 1e12), stages=1, micro_batches=3, schedule="1f1b")
    cost = plan_cost(problem, StagedPlan((), (), 3, "given"))
    assert (cost.all_reduce_s.tolist(), cost.backward_s.tolist(), cost.exposed_s.tolist()) == ([3.0], [3.0], [0.0])
    slower = replace(problem, cluster=Cluster(2, 1, 1e9, 1e8 / 1.5, 1e12))
    assert plan_cost(slower, StagedPlan((), (), 3, "given")).exposed_s.tolist() == pytest.approx([1.5])


DEVICE = Device(
    "half",
    {"float32": 1e12},
    1e12,
    bandwidth=2e9,
    step=StepConstants(0.5, 64.0, 0.5, 0.5, 0.0, intra_efficiency=0.5, inter_efficiency=0.25, overlap=0.4),
)


def test_a_step_has_what_training_steps_reach_of_links_and_memory() -> None:
    """A quarter of the link takes 4 times as long, of which 40 % of the backward pass are hidden.

    An update reads gradients, parameters and two moments and writes the last three: 7 times the bytes, at 1 GB/s.
    """
    profile = Profile.create(C=[4.0, 4.0], C_fwd=[1.0, 1.0], A=[0.0, 0.0], W=[1e8, 2e8])
    problem = StagedProblem(profile, Cluster(2, 1, 1e9, 1e8, 1e12), 1, 3, schedule="1f1b", device=DEVICE)
    cost = step_cost(problem, StagedPlan((), (), 3, "given"))
    assert cost.all_reduce_s.tolist() == [12.0]
    assert cost.exposed_s.tolist() == pytest.approx([12.0 - 0.4 * 3.0])
    assert cost.update_s.tolist() == pytest.approx([7 * 0.3])
    assert cost.step_s == pytest.approx(3 * 4.0 + 10.8 + 2.1)
    assert plan_cost(replace(problem, schedule=None), StagedPlan((), (), 3, "given")).all_reduce_s.tolist() == [3.0]


def test_gradients_of_products_in_16_bits_are_reduced_in_16_bits() -> None:
    """XLA adds up what the products of the replicas make, and casts the sum to the parameters' float32."""
    meta = {"dtype": "bfloat16", "parameter_dtype": "float32"}
    profile = Profile.create(C=[4.0, 4.0], A=[0.0, 0.0], W=[1e8, 0.0], meta=meta)
    problem = StagedProblem(profile, Cluster(2, 1, 1e9, 1e8, 1e12), 1, 3, schedule="1f1b")
    one = StagedPlan((), (), 3, "given")
    assert plan_cost(problem, one).all_reduce_s.tolist() == [0.5]
    assert plan_cost(replace(problem, schedule=None), one).all_reduce_s.tolist() == [1.0]


def test_replicas_with_few_samples_take_what_the_clock_says_of_so_many() -> None:
    """One of eight samples takes a quarter of the time and an eighth of the memory."""
    meta = {"microbatch_size": 8, "clock_s": [[1.0, 0.5, 1.5], [8.0, 2.0, 6.0]]}
    profile = Profile.create(C=[4.0, 4.0], C_fwd=[1.0, 1.0], A=[0.0, 0.0], W=[0.0, 0.0], stash=[8.0, 8.0], meta=meta)
    problem = StagedProblem(profile, Cluster(1, 8, 1e9, 1e9, 1e12), 1, 3, schedule="1f1b")
    cost = plan_cost(problem, StagedPlan((), (), 3, "given"))
    assert (cost.forward_s.tolist(), cost.backward_s.tolist()) == ([0.5], [1.5])
    assert cost.memory_bytes.tolist() == [2.0]
