"""Constraints against all plans read one by one, and every way in which they can be refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints, Pin
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput

MODEL = (
    "embedding",
    "block_0/attention",
    "block_0/mlp",
    "block_1/attention",
    "block_1/mlp",
    "block_2/attention",
    "head",
)


def profile_of(layers: Sequence[str], names: Sequence[str] = ()) -> Profile:
    n = len(layers) or len(names)
    return Profile.create(np.ones(n), np.ones(n), np.ones(n), layers=layers, names=names)


def satisfies(begin: Sequence[int], layers: Sequence[str], pins: Sequence[Pin], together: Sequence[str]) -> bool:
    """The definition: stages instruction by instruction; layers are single letters here."""
    stage = [sum(i >= first for first in begin) - 1 for i in range(len(layers))]
    pinned = all(stage[i] == pin.stage for pin in pins for i, layer in enumerate(layers) if layer == pin.layer)
    return pinned and all(
        len({stage[i] for i, layer in enumerate(layers) if layer == pattern}) == 1 for pattern in together
    )


@given(st.data())
def test_windows_hold_exactly_the_plans_that_satisfy_the_constraints(data):
    layers = data.draw(st.lists(st.sampled_from("abcd"), min_size=2, max_size=8))
    stages = data.draw(st.integers(1, min(len(layers), 4)))
    named = st.sampled_from(sorted(set(layers)))
    pins = data.draw(st.lists(st.builds(Pin, named, st.integers(0, 3)), max_size=2))
    together = data.draw(st.lists(named, max_size=2))
    constraints = Constraints(tuple(pins), tuple(together))
    plans = [(0, *begin) for begin in combinations(range(1, len(layers)), stages - 1)]
    expected = {begin for begin in plans if satisfies(begin, layers, pins, together)}
    if not expected:
        with pytest.raises(BadInput, match="`"):
            constraints.windows(profile_of(layers), stages)
        return
    assert constraints.allow(profile_of(layers), 64, stages)
    windows = constraints.windows(profile_of(layers), stages)
    np.testing.assert_array_equal(windows.least, np.min(list(expected), axis=0))
    np.testing.assert_array_equal(windows.most, np.max(list(expected), axis=0))
    inside = {
        begin
        for begin in plans
        if all(windows.least <= begin) and all(begin <= windows.most) and windows.allowed[list(begin)].all()
    }
    assert inside == expected
    grid = np.array(sorted(data.draw(st.sets(st.integers(0, len(layers) - 2)))), dtype=np.int64)
    possible = {0, *(windows.cuts(grid) + 1).tolist()}
    assert any(set(begin) <= possible for begin in expected)


def one_problem(stages: int = 3) -> StagedProblem:
    profile = profile_of(MODEL)
    nothing = np.zeros(len(profile))
    halves = ShardedProfile(
        "halves", 2, profile.C / 2, profile.C_fwd / 2, profile.A, profile.A / 2, profile.W / 2, *[nothing] * 7
    )
    cluster = Cluster(1, 6, 1e9, 1e9, 1e9)
    return StagedProblem(profile, cluster, stages, granularity=len(profile), shardings=(halves,))


@pytest.mark.parametrize(
    ("constraints", "broken"),
    [
        (Constraints(), ""),
        (Constraints((Pin("block_1", 1), Pin("head", 2), Pin("embedding", 0))), ""),
        (Constraints((Pin("block_1/*", 1),), ("block_0/*",), 3), ""),
        (Constraints((Pin("*attention", 1),)), "`pins='*attention=1'`"),
        (Constraints((Pin("block_0", 1),)), "`pins='block_0=1'`"),
        (Constraints(together=("block_*",)), "`together='block_*'`"),
        (Constraints(max_stages=2), "`max_stages=2`"),
        (Constraints(forbidden=frozenset({"pipeline"})), "`forbidden='pipeline'`"),
        (Constraints(forbidden=frozenset({"operator"})), "`forbidden='operator'`"),
        (Constraints(forbidden=frozenset({"data"})), "`forbidden='data'`"),
    ],
)
def test_a_plan_is_read_by_the_definition(constraints, broken):
    """Embedding and block 0 | block 1 | block 2 and head, on 2, 2 and 2 devices: shared, replicated, replicated."""
    plan = StagedPlan((2, 4), (2, 4), 16, "test", shardings=(1, 0, 0))
    assert plan.check_valid(replace(one_problem(), constraints=constraints)) == (not broken, broken)


def test_a_plan_without_replicas_or_without_partitioning_is_allowed_where_those_are_forbidden():
    problem = one_problem()
    shared = StagedPlan((2, 4), (2, 4), 16, "test", shardings=(1, 1, 1))
    without_replicas = replace(problem, constraints=Constraints(forbidden=frozenset({"data"})))
    assert shared.check_valid(without_replicas)[0]
    replicated = StagedPlan((2, 4), (2, 4), 16, "test", shardings=(0, 0, 0))
    without_shardings = replace(problem, constraints=Constraints(forbidden=frozenset({"operator"})))
    assert replicated.check_valid(without_shardings)[0]


def test_a_layer_stands_for_all_that_it_holds_in_both_notations():
    for mark in "/.":
        layers = [layer.replace("/", mark) for layer in MODEL]
        windows = Constraints((Pin("block_1", 1),)).windows(profile_of(layers), 3)
        assert (windows.least.tolist(), windows.most.tolist()) == ([0, 1, 5], [0, 3, 6])


def test_without_layers_it_is_names_that_match():
    windows = Constraints((Pin("mul*", 1),)).windows(profile_of((), ["add.1", "mul.1", "mul.2", "add.2"]), 2)
    assert (windows.least.tolist(), windows.most.tolist()) == ([0, 1], [0, 1])
    with pytest.raises(BadInput, match="names neither layers nor instructions"):
        Constraints((Pin("mul*", 1),)).check(Profile.create(np.ones(3), np.ones(3), np.ones(3)))


@pytest.mark.parametrize(
    ("constraints", "stages", "sentence"),
    [
        (  # the wrong way round
            Constraints((Pin("embedding", 0), Pin("block_1", 0), Pin("block_0", 1))),
            4,
            r"^`pins='block_1=0'` \(instructions 3…4\) and `pins='block_0=1'` \(instructions 1…2\): "
            "stage 1 would have to begin with instruction 5 or a later one, and with instruction 1 or an earlier one",
        ),
        (  # one instruction in two stages
            Constraints((Pin("block_0/*", 0), Pin("*mlp", 1))),
            2,
            r"^`pins='block_0/\*=0'` .* and `pins='\*mlp=1'` .*: stage 1 would have to begin",
        ),
        (  # too few places between
            Constraints((Pin("block_0/attention", 0), Pin("block_1/attention", 3))),
            4,
            "^`pins='block_0/attention=0'` .* and `pins='block_1/attention=3'` ",
        ),
        (
            Constraints((Pin("block_1", 1),), ("*attention", "*mlp", "embedding", "b*", "*e*")),
            2,
            r"^`pins='block_1=1'` .* and `together='\*e\*'` \(instructions 0…6\): ",
        ),
        (
            Constraints((Pin("head", 2),), max_stages=2),
            2,
            "^`pins='head=2'` .* and `max_stages=2`: 3 stages, 0…2, are more",
        ),
        (
            Constraints((Pin("head", 1),), forbidden=frozenset({"pipeline"})),
            1,
            "^`pins='head=1'` .* and `forbidden='pipeline'`: 2 stages",
        ),
        (Constraints((Pin("head", 3),)), 2, "^`pins='head=3'` .* and `stages=2`: 4 stages"),
        (
            Constraints((Pin("head", 0),)),
            2,
            "^`pins='head=0'` .* and `stages=2`: stage 1 would have to begin past the mod",
        ),
        (Constraints(together=("*/attention",)), 4, r"^`together='\*/attention'` .* and `stages=4`: stage "),
        (Constraints(max_stages=2), 3, "^`max_stages=2` and `stages=3`: 3 stages"),
        (Constraints((Pin("embedding", 1),)), 3, r"^`pins='embedding=1'` \(instructions 0…0\): .*; drop it"),
        (  # three that agree in pairs
            Constraints((Pin("block_0/mlp", 0), Pin("block_1/mlp", 1)), ("block_*",)),
            3,
            r"^`pins='block_0/mlp=0'` .* and `pins='block_1/mlp=1'` .* and `together='block_\*'` ",
        ),
        (
            Constraints((Pin("blck_1", 1),)),
            3,
            "^`pins='blck_1=1'`: 'blck_1' matches no layer; the nearest names are block_1",
        ),
        (Constraints(together=("§",)), 3, "^`together='§'`: '§' matches no layer; the nearest names are block_0, "),
    ],
)
def test_constraints_that_contradict_one_another_are_refused_naming_them(constraints, stages, sentence):
    with pytest.raises(BadInput, match=sentence):
        constraints.windows(profile_of(MODEL), stages)


def test_what_fails_in_some_numbers_of_stages_only_is_not_refused_without_one():
    constraints, profile = Constraints((Pin("block_1", 1),)), profile_of(MODEL)
    constraints.check(profile)
    assert [constraints.allow(profile, 8, stages) for stages in range(1, 7)] == [False, True, True, True, False, False]


@pytest.mark.parametrize("text", ["block_1", "block_1=", "=1", "block_1=one", "block_1=-1"])
def test_a_pin_is_a_layer_and_a_stage(text):
    assert Pin.parse("a=b=12") == Pin("a=b", 12)
    with pytest.raises(BadInput, match="LAYER=STAGE"):
        Pin.parse(text)


@given(st.data())
def test_cuts_at_a_layer_are_right_after_its_last_instruction(data):
    letters = data.draw(st.lists(st.sampled_from("abcd"), min_size=3, max_size=8, unique=True))
    layers = [f"block_{letter}" for letter in letters for _ in range(data.draw(st.integers(1, 2)))]
    pattern = data.draw(st.sampled_from(["block_*", *(f"block_{letter}" for letter in letters[:-1])]))
    stages = data.draw(st.integers(1, 4))
    profile, constraints = profile_of(layers), Constraints(cut_at=pattern)
    ends = {i for i, layer in enumerate(layers[:-1]) if layer not in layers[i + 1 :] and pattern in ("block_*", layer)}
    assert constraints.allow(profile, 8, stages) == (stages - 1 <= len(ends))
    for cuts in combinations(range(len(layers) - 1), stages - 1):
        broken = constraints.broken_by(profile, cuts, [(1, 1)] * stages)
        assert broken == (None if set(cuts) <= ends else f"`cut_at='{pattern}'`")
    if stages - 1 > len(ends):
        with pytest.raises(BadInput, match=rf"(`cut_at=.*which allows {len(ends)} cuts.* and )?`stages={stages}`"):
            constraints.windows(profile, stages)


def test_equal_replicas_take_numbers_of_stages_that_divide_the_devices():
    constraints, profile = Constraints(equal_replicas=True), profile_of(MODEL)
    assert [stages for stages in range(1, 7) if constraints.allow(profile, 12, stages)] == [1, 2, 3, 4, 6]
    assert constraints.broken_by(profile, (2,), [(6, 1), (6, 1)]) is None
    assert constraints.broken_by(profile, (2,), [(6, 1), (3, 2)]) is None
    assert constraints.broken_by(profile, (2,), [(5, 1), (7, 1)]) == "`equal_replicas`"
    cluster = Cluster(1, 12, 1e9, 1e9, 1e9)
    with pytest.raises(
        BadInput, match=r"12 devices do not make 5 stages of equally many; take one of 1, 2, 3, 4, 6, 12 stages"
    ):
        StagedProblem(profile, cluster, stages=5, constraints=constraints)


def test_a_pattern_to_cut_at_that_matches_nothing_is_refused_with_the_nearest_names():
    with pytest.raises(BadInput, match=r"`cut_at`: 'blck_\*' matches no layer; the nearest names are .*block_0"):
        Constraints(cut_at="blck_*").check(profile_of(MODEL))
    with pytest.raises(BadInput, match="no blocks repeat"):
        Constraints(cut_at="blocks").check(profile_of(("embedding", "body", "head")))


def test_impossible_values_are_refused():
    with pytest.raises(BadInput, match="counted from 0"):
        Pin("block_1", -1)
    with pytest.raises(BadInput, match="`max_stages`"):
        Constraints(max_stages=0)
    with pytest.raises(BadInput, match=r"unknown technique 'tensor'.*data, operator, pipeline"):
        Constraints(forbidden=frozenset({"tensor"}))  # type: ignore[arg-type]
