"""What is said about a profile: groups of layers, cuts, notes; all worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.profile import Profile, SharedParameter
from automap_models.infer.reports.profile import (
    cheapest_cuts,
    heaviest_instructions,
    layer_groups,
    notes,
    origin,
    smallest_cut,
    warnings,
)


def _profile(
    C: Sequence[float],
    A: Sequence[float] | None = None,
    W: Sequence[float] | None = None,
    layers: Sequence[str] = (),
    **meta: object,
) -> Profile:
    zeros = [0.0] * len(C)
    return Profile.create(C, A or zeros, W or zeros, stash=[1.0] * len(C), layers=layers, meta=meta)


def test_the_heaviest_instructions_come_first_and_idle_ones_never() -> None:
    assert heaviest_instructions(_profile([1.0, 0.0, 3.0, 1.0])) == [2, 0, 3]
    assert heaviest_instructions(_profile([1.0, 0.0, 3.0, 1.0]), count=1) == [2]


def test_layers_whose_names_differ_in_numbers_are_one_group() -> None:
    layers = ["embed", "block_0/mlp", "block_0/attention", "block_1/mlp", "block_1/attention", "head"]
    groups = layer_groups(_profile([1.0, 2.0, 1.0, 2.0, 1.0, 1.0], W=[9.0, 5.0, 3.0, 5.0, 3.0, 0.0], layers=layers))
    assert [(g.pattern, g.count, g.time_s, g.parameter_bytes, g.stash_bytes) for g in groups] == [
        ("block_*/mlp", 2, 4.0, 10.0, 2.0),
        ("block_*/attention", 2, 2.0, 6.0, 2.0),
        ("embed", 1, 1.0, 9.0, 1.0),
        ("head", 1, 1.0, 0.0, 1.0),
    ]


def test_layers_of_other_sizes_or_times_are_not_alike() -> None:
    layers = ["conv1_1", "conv1_2", "conv2_1", "conv2_2", "conv3_1"]
    groups = layer_groups(_profile([4.0, 4.2, 1.0, 1.05, 4.1], W=[1.0, 1.0, 1.0, 1.0, 7.0], layers=layers))
    assert [(g.pattern, g.count) for g in groups] == [("conv1_*", 2), ("conv3_1", 1), ("conv2_*", 2)]


def test_torch_s_paths_are_split_at_dots_and_descriptions_not_at_all() -> None:
    dotted = ["layers.0.mlp.up", "layers.1.mlp.up", "layers.0.attention", "layers.1.attention"]
    patterns = {g.pattern for g in layer_groups(_profile([1.0] * 4, layers=dotted, framework="torch"))}
    assert patterns == {"layers/*/mlp", "layers/*/attention"}
    described = ["Conv2d(3, 64, eps=1.0)", "Conv2d(64, 64, eps=1.0)"]
    assert {g.pattern for g in layer_groups(_profile([1.0, 2.0], layers=described))} == set(described)


def test_a_profile_without_layers_has_no_groups() -> None:
    assert layer_groups(_profile([1.0, 2.0])) == []


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["", "a0", "a1", "a0/b1", "a1/b2", "c"])), min_size=2))
def test_groups_hold_all_the_time_once(pairs: list[tuple[int, str]]) -> None:
    profile = _profile([float(time) for time, _ in pairs], layers=[layer for _, layer in pairs])
    assert sum(group.time_s for group in layer_groups(profile)) == pytest.approx(profile.C.sum())


def test_one_cut_is_named_about_every_tenth_of_the_time() -> None:
    profile = _profile([1.0] * 30, A=[5.0, 1.0, 3.0] * 10)
    assert cheapest_cuts(profile) == [3 * k - 2 for k in range(1, 10)]  # of the cuts 3k - 2, 3k - 1 and 3k


def test_where_one_instruction_takes_long_there_is_no_cut_to_name() -> None:
    assert cheapest_cuts(_profile([2.0, 6.0, 2.0])) == [0, 1]


def test_the_smallest_cut_leaves_work_worth_a_stage_on_both_sides() -> None:
    assert smallest_cut(_profile([1.0, 9.0, 10.0, 9.0, 1.0], A=[0.0, 5.0, 4.0, 0.0, 0.0])) == 2
    assert smallest_cut(_profile([0.01, 9.0, 0.02], A=[3.0, 5.0, 0.0])) == 0
    assert smallest_cut(_profile([0.0, 9.0], A=[3.0, 0.0])) is None


def test_unknown_costs_are_warned_of() -> None:
    meta = {
        "unknown_custom_calls": {"my_kernel": 2},
        "loops_of_unknown_length": ["while.3"],
        "not_measured": {"custom_call": 1},
    }
    sentences = list(warnings(_profile([1.0, 1.0], **meta)))
    assert [
        next(word for word in ("my_kernel (2×)", "while.3", "custom_call (1×)") if word in line) for line in sentences
    ] == ["my_kernel (2×)", "while.3", "custom_call (1×)"]


def test_what_was_reported_becomes_sentences() -> None:
    meta = {
        "unattributed_share": 0.25,
        "backward_without_forward": {"nodes": 1, "time_s": 0.5},
        "unused_parameters": [f"p{i}" for i in range(7)],
        "long_lived_values": [
            {"name": "bias.1", "first": "encoder", "last": "decoder", "bytes": 2e6},
            {"name": "add.2", "first": "loss", "last": "loss", "bytes": 4.0},
        ],
    }
    shared = [SharedParameter("params/embedding", 4e6, (0, 1))]
    profile = Profile.create(
        [1.0, 1.0], [0.0, 0.0], [5e6, 0.0], layers=["in", "out"], meta=meta, shared_parameters=shared
    )
    assert list(notes(profile)) == [
        "25.0 % of the time belongs to no instruction of the forward pass and is spread over all",
        "1 backward node without a forward partner (500 ms) counts with the nearest one",
        "params/embedding (4.00 MB) is shared by in and out: "
        "a cut in between needs a copy on both sides, with its state, kept in step",
        "unused parameters count with the first instruction: p0, p1, p2, p3, p4 and 2 more",
        "a value of 2.00 MB crosses every cut between encoder and decoder",
    ]


@pytest.mark.parametrize("meta", [{"long_lived_values": 3, "unused_parameters": {}}, {}])
def test_a_stranger_s_meta_is_passed_over(meta: dict[str, object]) -> None:
    profile = _profile([1.0, 1.0], **meta)
    assert [*warnings(profile), *notes(profile)] == []


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        ({"times": "roofline, not measured", "device": "v100"}, "times by the roofline of v100"),
        ({"source": "roofline over ATen operators", "device": "V100"}, "times by the roofline of V100"),
        ({"times": "measured per module", "device": "cpu"}, "times measured on cpu"),
        ({"device": "V100"}, "times of V100"),
        ({"source": "graph.txt"}, "from graph.txt"),
    ],
)
def test_the_origin_never_passes_a_guess_off_as_a_measurement(meta: dict[str, object], sentence: str) -> None:
    assert origin(_profile([1.0, 1.0], **meta)) == f"2 instructions, {sentence}"


def test_every_array_is_drawn_on_its_own_axes() -> None:
    pytest.importorskip("matplotlib")
    from automap_models.plots.profile import draw_profile

    random = np.random.default_rng(0)
    profile = Profile.create(*random.random((3, 300)), layers=["block_1/a"] * 200 + [""] * 50 + ["head"] * 50)
    figure = draw_profile(profile)
    labels = [axes.get_ylabel() for axes in figure.get_axes()]
    assert [label.split(",")[0] for label in labels if "," in label] == [
        "computation C",
        "activations A",
        "parameters W",
    ]
    normalised = figure.get_axes()[-1]
    assert max(float(np.max(line.get_ydata())) for line in normalised.lines) == pytest.approx(1.0)
    assert [text.get_text() for text in normalised.texts] == ["block_*", "head"]
