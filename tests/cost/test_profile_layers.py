"""Strategies of a profile: the seconds and bytes of its layers by hand, and the same price as a plan's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from strategy_problems import estimated

from automap_models.core.cluster import Cluster
from automap_models.core.device import USUAL, Device
from automap_models.core.microbatch import rescaled
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.strategy import Recompute, Strategy
from automap_models.cost.profile_layers import ProfileCosting, ProfileWork, layer_begins
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.simulate.plan_step import step_cost

DEVICE = Device("device", {"float32": 20e12}, 20e12, 1e15, step=replace(USUAL, launch_s=1e-9))
CLUSTER = Cluster(2, 4, 100e9, 10e9, 32e9)
LAYERS = ("embed", *(f"blocks.{b}.{part}" for b in range(4) for part in ("attention", "mlp")), "head")
N = len(LAYERS)
SECONDS = 0.01 * np.array([1.0, *(2.0, 4.0) * 4, 3.0])
WEIGHTS = 4e6 * np.array([50.0, *(4.0, 8.0) * 4, 0.0])
SAVED = 1e6 * np.array([10.0, *(30.0, 70.0) * 4, 40.0])
SENT = 1e6 * np.array([5.0, *(20.0, 6.0) * 4, 0.0])


def a_profile(**fields: object) -> Profile:
    """An embedding, four blocks of two instructions and a head, of 8 samples."""
    meta = {"model": "small", "microbatch_size": 8, "parameter_dtype": "float32"}
    arrays = {"C": SECONDS, "C_fwd": SECONDS / 4, "A": SENT, "W": WEIGHTS, "stash": SAVED, "layers": LAYERS}
    return Profile.create(**{**arrays, "meta": meta, **fields})  # type: ignore[arg-type]


def a_strategy(**fields: object) -> Strategy:
    """Data parallelism on all devices, of 8 samples each."""
    return Strategy(**{"micro_batch": 8, "global_batch": 256, "dp": 8, "precision": "fp32", **fields})  # type: ignore[arg-type]


def test_places_are_what_comes_before_the_blocks_each_block_and_what_comes_after_them() -> None:
    work = ProfileWork.from_profile(a_profile())
    assert work.begins == (0, 1, 3, 5, 7, 9)
    assert (work.shape.layers, work.order) == (4, (0, 1, 2, 2, 2, 3))  # the first block is entered by fewer bytes
    assert [work.layers[i].name for i in work.order] == ["layers", *["blocks.*"] * 4, "layers"]


def test_layers_that_repeat_nothing_are_places_each() -> None:
    profile = a_profile(layers=tuple("abcdefghij"))
    assert layer_begins(profile) == tuple(range(N))


def test_layers_without_parameters_belong_to_the_one_before_them() -> None:
    """Pooling and normalisation in blocks' places would be ranks of a pipeline that hold nothing."""
    weights = WEIGHTS.copy()
    weights[[2, 3, 6]] = 0.0
    profile = a_profile(layers=tuple("abcdefghij"), W=weights)
    assert layer_begins(profile) == (0, 1, 4, 5, 7, 8, 9)
    copies = a_profile(layers=tuple("abcdefghij"), W=weights, shared_parameters=(SharedParameter("tied", 4e6, (0, 3)),))
    assert layer_begins(copies) == (0, 1, 3, 4, 5, 7, 8, 9)


def test_times_of_a_step_are_those_of_the_profile() -> None:
    estimate = estimated(ProfileWork.from_profile(a_profile()), a_strategy(), CLUSTER, DEVICE)
    assert estimate.parts.compute == pytest.approx(4 * SECONDS.sum())  # four micro-batches
    again = estimated(ProfileWork.from_profile(a_profile()), a_strategy(recompute="full"), CLUSTER, DEVICE)
    assert again.parts.recompute == pytest.approx(4 * SECONDS[1:-1].sum() / 4)  # the blocks' forward passes
    assert again.parts.compute == pytest.approx(estimate.parts.compute)


@pytest.mark.parametrize(("zero", "shares"), [(0, (1, 1, 1)), (1, (1, 1, 8)), (2, (1, 8, 8)), (3, (8, 8, 8))])
def test_zero_divides_the_training_state(zero: int, shares: tuple[int, int, int]) -> None:
    (held,) = estimated(ProfileWork.from_profile(a_profile()), a_strategy(zero=zero), CLUSTER, DEVICE).memory
    parts = held.weights, held.gradients, held.optimizer
    assert parts == pytest.approx(
        tuple(times * WEIGHTS.sum() / of for times, of in zip((1, 1, 2), shares, strict=True))
    )
    # FSDP holds the embedding and two blocks gathered at once.
    assert held.gathered == pytest.approx(WEIGHTS[0] + 2 * (WEIGHTS[1] + WEIGHTS[2]) if zero == 3 else 0.0)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_recomputation_saves_what_enters_a_block_and_needs_one_block_at_a_time(recompute: Recompute) -> None:
    (held,) = estimated(ProfileWork.from_profile(a_profile()), a_strategy(recompute=recompute), CLUSTER, DEVICE).memory
    ends, entering, block = SAVED[0] + SAVED[-1], SENT[0] + 3 * SENT[2], SAVED[1] + SAVED[2]
    assert held.activations == pytest.approx(SAVED.sum() if recompute == "none" else ends + entering)
    assert held.temporary == pytest.approx(0.0 if recompute == "none" else block, abs=1e3)


def test_another_micro_batch_saves_in_proportion() -> None:
    (held,) = estimated(ProfileWork.from_profile(a_profile()), a_strategy(micro_batch=2), CLUSTER, DEVICE).memory
    assert held.activations == pytest.approx(SAVED.sum() / 4)


@pytest.mark.parametrize(("zero", "share"), [(0, 1), (2, 1), (3, 8)])
def test_what_is_not_trained_is_held_once_and_has_no_gradients(zero: int, share: int) -> None:
    """LoRA's base: 40 GB on one device, an eighth of it where ZeRO-3 divides it."""
    frozen = np.zeros(N)
    frozen[1] = 40e9
    base, lora = (
        estimated(ProfileWork.from_profile(profile), a_strategy(zero=zero), CLUSTER, DEVICE).memory[0]
        for profile in (a_profile(), a_profile(frozen=frozen))
    )
    assert lora.weights - base.weights == pytest.approx(40e9 / share)
    assert (lora.gradients, lora.optimizer) == (base.gradients, base.optimizer)
    # Gathered is the pair of neighbouring blocks with most: the first one, with its base, and the second.
    assert lora.gathered - base.gathered == pytest.approx(40e9 if zero == 3 else 0.0)


SHARED = {
    "nothing": (),
    "both ends": (SharedParameter("embedding", 40e6, (0, N - 1)),),
    "three places": (SharedParameter("embedding", 40e6, (0, 5, N - 1)),),
    "two blocks": (SharedParameter("bias", 8e6, (1, 5)), SharedParameter("norm", 8e6, (3, 4))),
}


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_plan_without_zero_costs_what_the_strategy_costs(stages: int, shared: str) -> None:
    """Seconds but for latencies of collectives, which plans leave out; and bytes but for those of the runtime.

    Strategies sum all copies over the link between the ends of the pipeline, plans over that of each parameter.
    """
    profile, dp = a_profile(shared_parameters=SHARED[shared]), 8 // stages
    strategy = a_strategy(dp=dp, pp=stages, global_batch=32 * dp, schedule="1f1b-deep")
    estimate = estimated(ProfileWork.from_profile(profile), strategy, CLUSTER, DEVICE)
    problem = StagedProblem(rescaled(profile, 8 * dp), CLUSTER, stages, 4, schedule="1f1b-deep", device=DEVICE)
    cuts = {1: (), 2: (4,), 4: (2, 4, 6)}[stages]
    plan = StagedPlan(cuts, tuple(dp * s for s in range(1, stages)), 4, "given")
    cost = step_cost(problem, plan)
    assert estimate.step_s == pytest.approx(cost.step_s, rel=2e-3)
    held = [memory.state + memory.activations for memory in estimate.memory]
    assert held == pytest.approx(cost.memory_bytes.tolist())


def test_a_parameter_of_both_ends_is_tied_and_others_are_shared() -> None:
    works = {name: ProfileWork.from_profile(a_profile(shared_parameters=of)) for name, of in SHARED.items()}
    assert [(work.tied, work.facts.tied) for work in works.values()] == [
        (0, False),
        (10e6, True),
        (0, False),
        (0, False),
    ]
    shared = [tuple(one[:3] for one in work.shared) for work in works.values()]
    assert shared == [(), (), ((10e6, 0.0, (0, 3, 5)),), ((2e6, 0.0, (1, 3)),)]
    frozen = a_profile(frozen=np.full(N, 1e9), shared_frozen=(SharedParameter("base", 1e9, (0, N - 1)),))
    assert ProfileWork.from_profile(frozen).shared[0][:3] == (0.0, 1e9, (0, 5))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": ("a", *["b"] * (N - 1))}, "no layers between which a strategy could divide it"),
        ({"meta": {"model": "small", "parameter_dtype": "float32"}}, "how many samples"),
        ({"meta": {"microbatch_size": 8, "parameter_dtype": "float64"}}, "strategies have no parameters in float64"),
    ],
)
def test_what_strategies_cannot_divide_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ProfileWork.from_profile(a_profile(**fields))


def test_a_mixed_cluster_is_refused() -> None:
    with pytest.raises(BadInput, match="is mixed, and a strategy of a profile"):
        ProfileCosting(ProfileWork.from_profile(a_profile()), read_cluster("p4d-p3dn"), DEVICE)
