"""A plan moves to what a target can express by as little as possible, and is costed again."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from drawn_plans import block_end, cut_plan, profile, staged_source
from fuzzing.samples import model
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.framework import Limits
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.export.exporter import export_plan
from automap_models.export.model_blocks import BlockPlan, Inexpressible, block_plan
from automap_models.export.snap import nearest, snapped
from automap_models.export.targets import TARGETS, target_by_name
from automap_models.simulate.plan_step import step_cost

BLOCKS = Limits(name="some", schedules={"1f1b": "1F1B"}, one_series=True)
CLUSTER = Cluster(2, 4, 1e11, 1e10, 1e12, "drawn")


@given(st.lists(st.integers(0, 20), min_size=2, max_size=8), st.data())
def test_cuts_move_as_little_time_as_brute_force_finds(times: list[int], data: st.DataObject) -> None:
    instructions = range(len(times))
    cuts = sorted(data.draw(st.sets(st.sampled_from(instructions), max_size=4)))
    allowed = sorted(data.draw(st.sets(st.sampled_from(instructions))))
    moved = nearest(np.array(times, dtype=np.float64), cuts, allowed)
    ends = np.cumsum(times)
    choices = list(combinations(allowed, len(cuts)))
    if not choices:
        assert moved is None
        return
    assert moved in choices
    distances = [sum(abs(int(ends[a]) - int(ends[b])) for a, b in zip(cuts, choice, strict=True)) for choice in choices]
    assert distances[choices.index(moved)] == min(distances)


def test_cuts_inside_blocks_go_to_their_ends_and_the_plan_is_costed_again(tmp_path: Path) -> None:
    """Block 1 ends with instruction 9; one instruction further lies inside block 2."""
    problem, plan = cut_plan(profile(6), CLUSTER, (block_end(1) + 1,), (4,))
    moved = snapped(staged_source(problem, plan, tmp_path), "megatron", BLOCKS)
    after = moved.source.require_result("megatron")
    assert after.required_plan().cuts == (block_end(1),)
    assert after.cost.step_s == step_cost(problem, after.required_plan()).step_s == moved.after_s
    assert moved.before_s == step_cost(problem, plan).step_s
    assert moved.changes == ("stage 0 ends after layers.1 (instruction 9 instead of 10)",)


def test_stages_that_share_operators_and_others_come_to_share_none(tmp_path: Path) -> None:
    """Two replicas of two devices, then four of one; the record of the plan says what the moved one is."""
    layers, cluster = model(), Cluster(2, 4, intra=100e9, inter=10e9, memory=10e9)
    problem = StagedProblem(layers.profile, cluster, stages=2, shardings=layers.shardings, launch_s=layers.launch_s)
    problem = problem.with_split(2, 6, 24)
    source = staged_source(problem, StagedPlan((0,), (4,), 6, "drawn", shardings=(1, 0)), tmp_path)
    assert [(stage.replicas, stage.tensor, stage.sharding) for stage in source.plan.stages] == [
        (2, 2, "2-way"),
        (4, 1, None),
    ]
    moved = snapped(source, "some", Limits(name="some", schedules={"1f1b": "1F1B"}, cuts="anywhere", sharding="none"))
    assert moved.changes == ("every stage divides its operators by 1",)
    assert [(stage.replicas, stage.tensor, stage.sharding) for stage in moved.source.plan.stages] == [(4, 1, None)] * 2


def test_unequal_devices_become_equal_ones(tmp_path: Path) -> None:
    problem, plan = cut_plan(profile(6), CLUSTER, (block_end(2),), (3,))
    source = staged_source(problem, plan, tmp_path)
    with pytest.raises(Inexpressible, match="equally many devices, and the plan gives them 3 and 5"):
        block_plan(source, "megatron", BLOCKS)
    moved = snapped(source, "megatron", BLOCKS)
    assert moved.source.require_result("megatron").required_plan().device_cuts == (4,)


def test_a_plan_that_is_expressible_stays_as_it_is(tmp_path: Path) -> None:
    problem, plan = cut_plan(profile(6), CLUSTER, (block_end(2),), (4,))
    source = staged_source(problem, plan, tmp_path)
    moved = snapped(source, "megatron", BLOCKS)
    assert moved.source is source
    assert moved.changes == ()
    layout = block_plan(source, "megatron", BLOCKS)
    assert isinstance(layout, BlockPlan)
    assert layout.layers == (3, 3)


def test_another_schedule_takes_the_place_of_one_that_the_target_does_not_run(tmp_path: Path) -> None:
    problem, plan = cut_plan(profile(6), CLUSTER, (block_end(2),), (4,), "1f1b-deep")
    moved = snapped(staged_source(problem, plan, tmp_path), "megatron", BLOCKS)
    assert moved.source.plan.build_schedule().name == "1f1b"
    assert moved.changes == ("schedule 1f1b instead of 1f1b-deep, which megatron does not run",)


def test_stages_that_cannot_have_equally_many_devices_are_not_snapped(tmp_path: Path) -> None:
    problem, plan = cut_plan(profile(6), CLUSTER, (block_end(1), block_end(3)), (2, 5))
    with pytest.raises(BadInput, match="8 devices do not make 3 stages of equally many"):
        snapped(staged_source(problem, plan, tmp_path), "megatron", BLOCKS)


def test_more_stages_than_places_to_cut_are_refused(tmp_path: Path) -> None:
    cuts = tuple(range(3, 10))
    problem, plan = cut_plan(profile(2), CLUSTER, cuts, tuple(range(1, 8)))
    with pytest.raises(BadInput, match="8 stages, and megatron can cut the model in 3 place"):
        snapped(staged_source(problem, plan, tmp_path), "megatron", BLOCKS)


def test_a_refusal_names_the_nearest_plan_and_what_it_loses(tmp_path: Path) -> None:
    problem, plan = cut_plan(profile(6), CLUSTER, (block_end(1) + 1,), (4,))
    source = staged_source(problem, plan, tmp_path)
    with pytest.raises(Inexpressible) as refusal:
        export_plan(source, target_by_name("megatron"), tmp_path / "out")
    sentence = str(refusal.value)
    assert "stage 0 ends inside layers.2 (instruction 10)" in sentence
    assert "`snap` writes the nearest plan: stage 0 ends after layers.1 (instruction 9 instead of 10)" in sentence
    assert "instead of" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_says_what_it_writes(name: str) -> None:
    target = target_by_name(name)
    assert target.name == name
    assert target.ending.startswith(".")


def test_two_series_of_blocks_are_refused_where_the_target_takes_one(tmp_path: Path) -> None:
    """An encoder and a decoder: Megatron's layouts have no letter for an encoder's layer."""
    both = profile(3, series=("encoder", "decoder"))
    problem, plan = cut_plan(both, CLUSTER, (block_end(2),), (4,))
    source = staged_source(problem, plan, tmp_path)
    with pytest.raises(Inexpressible, match=r"blocks of one series, and the model has decoder\.\* and encoder\.\*"):
        export_plan(source, target_by_name("megatron"), tmp_path / "out")
    assert block_plan(source, "galvatron", Limits(name="some", schedules={"1f1b": ""}, cuts="inner blocks")).layers == (
        3,
        3,
    )


def test_a_model_without_blocks_is_refused(tmp_path: Path) -> None:
    plain = profile(4)
    names = [chr(ord("a") + i) for i in range(len(plain))]
    other = type(plain).create(plain.C, plain.A, plain.W, layers=names, meta=plain.meta)
    problem, plan = cut_plan(other, CLUSTER, (5,), (4,))
    with pytest.raises(Inexpressible, match="no blocks repeat"):
        export_plan(staged_source(problem, plan, tmp_path), target_by_name("deepspeed"), tmp_path / "out")
