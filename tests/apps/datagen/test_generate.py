"""Random groups are planning problems, normalised as the library normalises profiles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from automap_models.datagen.generate import draw_groups
from automap_models.datagen.plots import fullest_stage
from automap_models.datagen.shards import Job
from automap_models.envs.pipeline.encoding import CHANNELS, EncodedProblems, decode, encode

MakeJob = Callable[..., Job]


def draw(job: Job, count: int = 400) -> EncodedProblems:
    return EncodedProblems.from_mapping(draw_groups(job.recipe, np.random.default_rng(7), count))


@pytest.mark.parametrize("sizes", ["[2, 40]", "[100, 300]", "[1000, 5000]"])
def test_a_group_decoded_to_a_profile_and_encoded_again_is_the_same(make_job: MakeJob, sizes: str) -> None:
    groups = draw(make_job(f"problem.instructions={sizes}"), 120)
    points = groups.arrays.shape[2]
    again = encode([decode(groups, i) for i in range(len(groups))])
    np.testing.assert_allclose(again.arrays, groups.arrays, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again.state_over_memory, groups.state_over_memory, rtol=1e-5)
    np.testing.assert_allclose(again.inter_over_intra, groups.inter_over_intra, rtol=1e-5)
    np.testing.assert_array_equal(again.instructions, np.minimum(groups.instructions, points))
    for name in ("nodes", "devices_per_node", "stages", "micro_batches"):
        np.testing.assert_array_equal(getattr(again, name), getattr(groups, name))


def test_prefix_sums_never_fall_and_the_joint_maximum_is_one(make_job: MakeJob) -> None:
    groups = draw(make_job())
    assert groups.arrays.dtype == np.float32
    assert np.isfinite(groups.arrays).all()
    for channel in ("C", "W", "F", "stash"):
        assert (np.diff(groups.arrays[:, CHANNELS.index(channel)], prepend=0) >= 0).all()
    C, A, W, F, _ = groups.arrays.transpose(1, 0, 2)
    np.testing.assert_allclose(np.max([C, A, W], axis=(0, 2)), 1, rtol=1e-6)
    assert (F <= C * (1 + 1e-6)).all()


def test_ratios_sizes_and_clusters_stay_in_the_ranges_of_the_config(make_job: MakeJob) -> None:
    groups = draw(
        make_job(
            "problem.weights_to_compute=[0.1, 0.2]",
            "problem.activation_to_compute=[0.01, 0.03]",
            "problem.instructions=[20, 600]",
            "problem.micro_batches=[4, 9]",
            "problem.cluster.fixed_share=0.25",
            "problem.cluster.inter_over_intra=[0.1, 0.5]",
        )
    )
    C, A, W = (groups.arrays[:, channel] for channel in range(3))
    for ratio, low, high in (
        (W[:, -1] / C[:, -1], 0.1, 0.2),
        (A.mean(axis=1) / C[:, -1], 0.01, 0.03),
        (groups.instructions, 20, 600),
        (groups.micro_batches, 4, 9),
    ):
        assert low * (1 - 1e-5) <= ratio.min() < ratio.max() <= high * (1 + 1e-5)
    assert {4, 9} <= set(groups.micro_batches.tolist())  # both ends are drawn
    fixed = np.isclose(groups.inter_over_intra, 3.125e9 / 130e9)
    assert 0.15 < fixed.mean() < 0.35
    assert ((groups.inter_over_intra[~fixed] >= 0.0999) & (groups.inter_over_intra[~fixed] <= 0.5001)).all()


def test_no_group_has_more_stages_than_devices_or_cut_points_allow(make_job: MakeJob) -> None:
    job = make_job(
        "problem.stages={values: [7], weights: [1]}",
        "problem.stages_match_nodes=0",
        "problem.instructions=[2, 12]",
        "problem.cluster.nodes={values: [1, 3], weights: [1, 1]}",
        "problem.cluster.devices_per_node={values: [2], weights: [1]}",
    )
    groups = draw(job, 100)
    devices = groups.nodes * groups.devices_per_node
    np.testing.assert_array_equal(groups.stages, np.minimum(7, np.minimum(devices, groups.instructions)))
    for i in range(len(groups)):
        assert decode(groups, i).stages == groups.stages[i]  # StagedProblem refuses what cannot be cut


def test_stages_match_the_nodes_when_asked_to_where_there_may_be_as_many(make_job: MakeJob) -> None:
    nodes = "problem.cluster.nodes={values: [2, 4, 5], weights: [1, 1, 1]}"
    groups = draw(make_job("problem.stages_match_nodes=1", nodes))
    few = groups.nodes < 5
    np.testing.assert_array_equal(groups.stages[few], groups.nodes[few])
    assert set(groups.stages[~few].tolist()) == {2, 3, 4}


def test_memory_decides_in_about_the_share_of_groups_that_the_config_says(make_job: MakeJob) -> None:
    loose = fullest_stage(draw(make_job("problem.memory.bound_share=0"), 1000))
    bound = fullest_stage(draw(make_job("problem.memory.bound_share=1"), 1000))
    assert np.mean(loose > 1) < 0.03
    assert np.mean(bound > 0.6) > 0.3
    assert np.mean(bound <= 1) > 0.2  # often an even plan still fits


def test_the_fullest_stage_is_what_the_memory_model_says(make_job: MakeJob) -> None:
    """The same even plan, stage by stage by the formula of the cost model: σ·ΣW + in flight·ΣH / d."""
    groups = draw(make_job(), 60)
    fullest = fullest_stage(groups)
    for i in range(len(groups)):
        C, W, H = (groups.arrays[i, channel].astype(float) for channel in (0, 2, 4))
        S, M = int(groups.stages[i]), int(groups.micro_batches[i])
        ends = [max(int(np.sum(C / C[-1] * S < s + 1)) - 1, 0) for s in range(S - 1)] + [C.size - 1]
        state, devices = float(groups.state_over_memory[i]), int(groups.nodes[i] * groups.devices_per_node[i])
        memory = [
            # D/S replicas, perhaps a fraction
            state * (W[end] - (W[start] if s else 0)) + min(M, S - s) * S * (H[end] - (H[start] if s else 0)) / devices
            for s, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        ]
        assert fullest[i] == pytest.approx(max(memory), rel=1e-5)


def test_groups_of_all_members_of_a_mixture_are_drawn_by_weight(make_job: MakeJob) -> None:
    job = make_job("dist.weights={uniform: 0, normal: 1, binomial: 0, exponential: 0, lognormal: 0, transformer: 3}")
    kinds = draw_groups(job.recipe, np.random.default_rng(1), 2000)["distribution"]
    assert kinds.dtype == np.int16
    names = np.array(job.recipe.mixture.names)[kinds]
    assert set(names) == {"normal", "transformer", "cnn"}
    assert np.mean(names == "normal") == pytest.approx(1 / 6.5, abs=0.04)


def test_transformers_repeat_and_cnns_shrink_their_activations(make_job: MakeJob) -> None:
    """What each is for: equal thirds of compute for the one, a smaller last quarter of A for the other."""
    plain = ("dist.decoder_probability=0", "dist.head_probability=0", "problem.instructions=[200, 256]")
    transformer = draw(make_job("dist=transformer", "dist.blocks=[12, 12]", *plain)).arrays
    thirds = np.diff(transformer[:, 0, [42, 84, 127]] / transformer[:, 0, -1:], prepend=0)
    assert np.abs(thirds - 1 / 3).mean() < 0.05
    cnn = draw(make_job("dist=cnn", folder="cnn")).arrays[:, 1]
    assert np.mean(cnn[:, :32].mean(axis=1) > cnn[:, 96:].mean(axis=1)) > 0.95
