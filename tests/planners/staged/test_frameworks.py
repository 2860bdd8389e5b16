"""Where frameworks cut by default: their published rules, and every other way of balancing tried out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.layers import block_ends
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.planners.portfolio.candidate import Simplicity
from automap_models.planners.portfolio.portfolio import Portfolio
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.frameworks import balanced, equal_blocks, framework_plans
from automap_models.simulate.plan_step import step_cost

BLOCKS, IN_A_BLOCK = 8, 7
CLUSTER = Cluster(2, 4, 130e9, 3.125e9, 32e9)


@pytest.fixture(scope="module")
def profile() -> Profile:
    """An embedding, eight blocks of seven instructions and a head; little is sent where a block ends, much inside."""
    layers = ["embed", *(f"blocks.{b}.part{i}" for b in range(BLOCKS) for i in range(IN_A_BLOCK)), "head"]
    n = len(layers)
    ends = np.array([(i % IN_A_BLOCK) == 0 for i in range(n)])
    return Profile.create(
        C=np.full(n, 1e-2), A=np.where(ends, 1e6, 5e7), W=np.full(n, 5e6), layers=layers, meta={"microbatch_size": 16}
    )


def least_largest(weights: np.ndarray, ends: tuple[int, ...], stages: int) -> float:
    """By trying all."""
    return min(
        max(part.sum() for part in np.split(weights, np.array(cuts, dtype=int) + 1))
        for cuts in combinations(ends, stages - 1)
    )


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=9).filter(any),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_no_other_cuts_at_the_same_places_have_a_smaller_largest_stage(weights: list[int], stages: int, draw) -> None:  # type: ignore[no-untyped-def]
    ends = tuple(sorted(draw.sample(range(len(weights) - 1), draw.randint(1, len(weights) - 1))))
    cuts = balanced(np.array(weights, dtype=float), ends, stages)
    if stages > len(ends) + 1:
        assert cuts is None
        return
    assert cuts is not None
    assert set(cuts) <= set(ends)
    assert list(cuts) == sorted(set(cuts))
    parts = np.split(np.array(weights, dtype=float), np.array(cuts, dtype=int) + 1)
    assert len(parts) == stages
    assert max(part.sum() for part in parts) == least_largest(np.array(weights, dtype=float), ends, stages)


def test_the_embedding_and_the_head_count_as_a_block_each_in_torchtitan() -> None:
    """Six layers in four stages: eight with both ends, two each (generate_llm_fqn_per_model_part)."""
    assert equal_blocks(range(6), 4, ends_count=1) == (0, 2, 4)
    assert equal_blocks(range(6), 3) == (1, 3)
    assert equal_blocks(range(7), 3) == (2, 4)
    assert equal_blocks(range(2), 3) is None


def test_frameworks_cut_between_blocks_and_give_every_stage_equally_many_devices(profile: Profile) -> None:
    ends = block_ends(profile)
    assert ends == tuple(range(IN_A_BLOCK, BLOCKS * IN_A_BLOCK + 1, IN_A_BLOCK))
    plans = dict(framework_plans(StagedProblem(profile, CLUSTER, 4), ends))
    assert sorted(plans) == ["cost balanced", "deepspeed", "megatron", "torchtitan"]
    assert plans["megatron"].cuts == (ends[1], ends[3], ends[5])
    assert all(plan.device_cuts == (2, 4, 6) for plan in plans.values())
    assert not list(framework_plans(StagedProblem(profile, CLUSTER, 3), ends))


def test_plans_between_blocks_are_no_longer_than_those_of_frameworks_although_blocks_end_off_the_grid(
    profile: Profile,
) -> None:
    ends = block_ends(profile)
    for stages in (2, 4):
        problem = StagedProblem(profile, CLUSTER, stages, granularity=10, schedule="1f1b")
        assert not set(ends) <= set(problem.grid.to_instructions(tuple(problem.grid.cut_points.tolist())))
        (ours,) = (
            plan for kind, plan in Portfolio(PlanningSpace.from_problem(problem)).search() if kind is Simplicity.BLOCKS
        )
        assert set(ours.plan.cuts) <= set(ends)
        theirs = [step_cost(problem, other) for _, other in framework_plans(problem, ends)]
        assert ours.step_s <= min(cost.step_s for cost in theirs if cost.feasible)
