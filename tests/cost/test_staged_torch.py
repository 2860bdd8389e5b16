"""The batched torch twin against the cost model it repeats: exactly in float64, to 1e-5 in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.coarsen import coarse_arrays
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.collectives import all_reduce_s_per_byte, transfer_s_per_byte
from automap_models.cost.staged import StagedCost, plan_cost, span_and_length
from automap_models.cost.staged_torch import BatchCost, all_reduce_factor, pipeline_cost_batch, transfer_factor
from automap_models.envs.pipeline.encoding import CHANNELS, encode

CASES = range(40)
FLOAT32 = 1e-5
ROUNDING = 3e-7  # of a stage, the difference of two float32 numbers of at most 1
SIZES = [(1, 1), (1, 2), (1, 7), (2, 1), (5, 1), (2, 3), (3, 2), (3, 4), (2, 7), (4, 4)]

Plan = tuple[Sequence[int], Sequence[int]]
DrawProblems = Callable[..., list[StagedProblem]]


# --- factors, on every contiguous group of devices of clusters of many shapes -----------------------------------


@pytest.mark.parametrize("inter_over_intra", [0.024, 1.0, 1.7])
@pytest.mark.parametrize("size", SIZES)
def test_the_all_reduce_factor_is_that_of_the_collectives(size: tuple[int, int], inter_over_intra: float) -> None:
    cluster = Cluster(*size, intra=1 / inter_over_intra, inter=1.0, memory=1.0)
    groups = list(combinations(range(cluster.devices + 1), 2))
    first, stop = torch.tensor(groups, dtype=torch.float64).T
    ours = all_reduce_factor(first, stop, *_per_cluster(cluster, first))
    expected = [all_reduce_s_per_byte(cluster, *group) for group in groups]
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("inter_over_intra", [0.024, 1.0, 1.7])
@pytest.mark.parametrize("size", [size for size in SIZES if size != (1, 1)])
def test_the_transfer_factor_is_that_of_the_collectives(size: tuple[int, int], inter_over_intra: float) -> None:
    cluster = Cluster(*size, intra=1 / inter_over_intra, inter=1.0, memory=1.0)
    groups = list(combinations(range(cluster.devices + 1), 3))
    first, boundary, stop = torch.tensor(groups, dtype=torch.float64).T
    ours = transfer_factor(first, boundary, stop, *_per_cluster(cluster, first))
    expected = [transfer_s_per_byte(cluster, *group) for group in groups]
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-15)


def _per_cluster(cluster: Cluster, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full_like(like, cluster.devices_per_node), torch.full_like(like, cluster.inter / cluster.intra)


# --- whole plans ------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 2), st.sampled_from([0.0, 0.6]))
def test_random_plans_of_many_clusters_in_one_batch_cost_the_same(
    random_problems: DrawProblems, seed: int, count: int, padding: int, whole_samples: float
) -> None:
    problems = random_problems(seed, count, granularity=24, stages=(1, 5), whole_samples=whole_samples)
    plans = [_random_plan(problem, np.random.default_rng([seed, i])) for i, problem in enumerate(problems)]
    exact = [_cost(problem, plan) for problem, plan in zip(problems, plans, strict=True)]
    most = max(problem.stages for problem in problems) + padding
    _assert_same(_batch_cost(problems, plans, most, torch.float64), problems, exact, rtol=1e-9, rounding=1e-14)
    _assert_same(_batch_cost(problems, plans, most, torch.float32), problems, exact, rtol=FLOAT32, rounding=ROUNDING)


@pytest.mark.parametrize("i", CASES)
@pytest.mark.parametrize("points_per_instruction", [1, 3])
def test_every_expected_value_is_met(
    vectors: dict[str, list[dict[str, Any]]], i: int, points_per_instruction: int
) -> None:
    """Every instruction is a point of the grid, so that every cut of the case is."""
    case, expected = vectors["cost"][i], vectors["cost"][i]["expected"]
    profile, cluster = Profile.create(**case["profile"]), Cluster(**case["cluster"])
    stages, granularity = len(case["cuts"]) + 1, len(profile) * points_per_instruction
    problem = StagedProblem(profile, cluster, stages, case["micro_batches"], granularity=granularity)
    coarse_cuts = problem.grid.to_points(case["cuts"])
    assert coarse_cuts is not None
    cost = _batch_cost([problem], [(coarse_cuts, case["device_cuts"])], stages, torch.float32)
    second = coarse_arrays(profile, cluster, granularity).scale_s
    assert float(cost.span[0]) * second == pytest.approx(expected["span_s"], rel=FLOAT32, abs=0)
    assert float(cost.length[0]) * second == pytest.approx(expected["length_s"], rel=FLOAT32, abs=0)
    assert bool(cost.feasible[0]) == expected["feasible"]
    for name in ("forward", "backward", "transfer", "all_reduce"):
        ours = getattr(cost, name)[0].double().numpy() * second
        np.testing.assert_allclose(ours, expected[f"{name}_s"], rtol=FLOAT32, atol=ROUNDING * second, err_msg=name)
    need = np.array(expected["memory_bytes"]) / cluster.memory
    np.testing.assert_allclose(cost.memory[0], need, rtol=FLOAT32, atol=FLOAT32 * need.max(initial=0))


def test_stages_that_a_plan_does_not_have_cost_nothing(random_problems: DrawProblems) -> None:
    problems = random_problems(5, 20, stages=(1, 3))
    plans = [_random_plan(problem, np.random.default_rng(i)) for i, problem in enumerate(problems)]
    cost = _batch_cost(problems, plans, 6, torch.float32)
    for i, problem in enumerate(problems):
        for name in ("forward", "backward", "all_reduce", "memory"):
            assert not getattr(cost, name)[i, problem.stages :].any()
        assert not cost.transfer[i, problem.stages - 1 :].any()


def _random_plan(problem: StagedProblem, random: np.random.Generator) -> Plan:
    boundaries = problem.stages - 1
    points = random.choice(problem.grid.cut_points, boundaries, replace=False) if boundaries else np.zeros(0, int)
    devices = random.choice(np.arange(1, problem.cluster.devices), boundaries, replace=False) if boundaries else points
    return sorted(points.tolist()), sorted(devices.tolist())


def _cost(problem: StagedProblem, plan: Plan) -> StagedCost:
    """With the length as it is where no all-reduce overlaps anything."""
    cuts = problem.grid.to_instructions(plan[0])
    cost = plan_cost(problem, StagedPlan(cuts, tuple(plan[1]), problem.micro_batches, "test"))
    return replace(cost, length_s=float(span_and_length(*cost.as_tuple(), problem.micro_batches)[1]))


def _batch_cost(problems: Sequence[StagedProblem], plans: Sequence[Plan], most: int, dtype: torch.dtype) -> BatchCost:
    """The twin on encoded problems (float32) or on the same arrays before rounding (float64)."""
    encoded = encode(problems)
    coarse = [coarse_arrays(p.profile, p.cluster, p.granularity) for p in problems]
    arrays: NDArray[Any] = np.array([[getattr(c, channel) for channel in CHANNELS] for c in coarse])
    state = [
        p.state_factor * p.cluster.inter * c.scale_s / p.cluster.memory for p, c in zip(problems, coarse, strict=True)
    ]
    ratio = [p.cluster.inter / p.cluster.intra for p in problems]
    if dtype == torch.float32:
        arrays, state, ratio = encoded.arrays, encoded.state_over_memory, encoded.inter_over_intra
    end = encoded.arrays.shape[2] - 1
    points = [[-1, *cuts, *[end] * (most - len(cuts))] for cuts, _ in plans]
    devices = [
        [0, *cuts, *[p.cluster.devices] * (most - len(cuts))] for p, (_, cuts) in zip(problems, plans, strict=True)
    ]
    scalars = (encoded.devices_per_node, ratio, state, encoded.micro_batches)
    return pipeline_cost_batch(
        torch.as_tensor(arrays),
        torch.tensor(points),
        torch.tensor(devices, dtype=dtype),
        *(torch.as_tensor(np.asarray(scalar)).to(dtype) for scalar in scalars),
        samples=None if encoded.samples is None else torch.as_tensor(encoded.samples).to(dtype),
    )


def _assert_same(
    cost: BatchCost, problems: Sequence[StagedProblem], exact: Sequence[StagedCost], rtol: float, rounding: float
) -> None:
    for i, (problem, expected) in enumerate(zip(problems, exact, strict=True)):
        second = coarse_arrays(problem.profile, problem.cluster, problem.granularity).scale_s
        for name in ("forward", "backward", "transfer", "all_reduce"):
            ours = getattr(cost, name)[i, : getattr(expected, f"{name}_s").size]
            theirs = getattr(expected, f"{name}_s") / second
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=2 * rounding, err_msg=name)
        for name in ("span", "length"):
            theirs = getattr(expected, f"{name}_s") / second
            np.testing.assert_allclose(
                getattr(cost, name)[i], theirs, rtol=rtol, atol=rounding * problem.micro_batches, err_msg=name
            )
        need = expected.memory_bytes / problem.cluster.memory
        np.testing.assert_allclose(cost.memory[i, : problem.stages], need, rtol=rtol, atol=rtol * need.max())
        if abs(need.max() - 1) > 2 * rtol:
            assert bool(cost.feasible[i]) == expected.feasible
