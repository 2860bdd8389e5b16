"""The teacher's tables: the same numbers as the tensor operators', and better plans where they are finer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from automap_models.core.staged import StagedProblem
from automap_models.cost import staged_torch
from automap_models.envs.pipeline import table_kernel
from automap_models.envs.pipeline.cost_to_go import (
    IMPOSSIBLE,
    STAGE_UNITS,
    UNITS,
    CostToGo,
    Fineness,
    Scaled,
    cost_to_go,
)
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import PipelineEnv, Problems
from automap_models.envs.pipeline.fine_tables import fine_cost_to_go
from automap_models.rl.agent import AgentConfig
from automap_models.rl.networks.pipeline import LookAheadQNetwork, NetworkSize
from automap_models.rl.offline import PipelineAgent, rollout

LAW = settings(max_examples=12, deadline=None, derandomize=True)
MAX_STAGES = 5

DrawProblems = Callable[..., list[StagedProblem]]


def stage_memory(scaled: Scaled, tables: CostToGo) -> Tensor:
    """[B, L, K, U] the fraction of a device's memory that the first stage of every entry takes."""
    begin = scaled.at(tables.points)[:, :, None, :, None]
    end = scaled.at(tables.points.gather(1, tables.end.flatten(1).long())).unflatten(2, tables.end.shape[1:])
    units = torch.arange(tables.units) * torch.ceil(scaled.devices / tables.units)
    devices = (tables.stop - units.unsqueeze(1)).clamp(min=1)
    samples = None if scaled.samples is None else scaled.samples.unsqueeze(3)
    parts = staged_torch.equal_parts(devices, samples)
    left = torch.arange(2, 2 + tables.end.shape[1]).view(1, -1, 1, 1)
    in_flight = torch.minimum(scaled.micro.unsqueeze(3), left)
    weights, stash = ((end - begin)[:, channel] for channel in (2, 4))
    return scaled.state.unsqueeze(3) * weights + in_flight * stash / parts


@LAW
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([Fineness(), Fineness(10, 32, (1, 2, 3, 5, 8)), Fineness(16, 9, tuple(range(1, 9)))]),
)
def test_tables_are_those_of_the_tensor_operators(
    random_problems: DrawProblems, seed: int, whole_samples: float, fineness: Fineness
) -> None:
    """Bit for bit, but where no stage that begins there fits: then the operators name any, the kernel none."""
    drawn = random_problems(seed, 4, stages=(2, MAX_STAGES), memory=(0.8, 20.0), whole_samples=whole_samples)
    problems = Problems.from_encoded(encode(drawn))
    scaled = problems.scaled()
    expected = cost_to_go(scaled, problems.cut_mask, MAX_STAGES, fineness)
    tables = fine_cost_to_go(scaled, problems.cut_mask, MAX_STAGES, fineness)
    assert torch.equal(tables.points, expected.points)
    left = torch.arange(2, 1 + MAX_STAGES - 1).view(1, -1, 1, 1)
    needed = (left < problems.stages.view(-1, 1, 1, 1)).expand_as(expected.span)
    some = tables.stop > 0
    assert bool((some & needed).any())
    for ours, theirs in zip(tables[1:], expected[1:], strict=True):
        assert torch.equal(ours[some & needed], theirs[some & needed])
    behind_it = expected.end > torch.arange(expected.end.shape[2]).view(1, 1, -1, 1)
    fits = (stage_memory(scaled, expected) <= 1 - 1e-5) & (expected.span < IMPOSSIBLE) & behind_it
    assert not bool((fits & ~some & needed).any())


@LAW
@given(st.integers(0, 2**32))
def test_factors_are_those_of_the_cost_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 20, 50)
    boundary = first + rng.integers(1, 20, 50)
    stop = boundary + rng.integers(1, 20, 50)
    per_node, ratio, samples = rng.integers(1, 9, 50), rng.uniform(0.005, 1, 50), rng.integers(0, 5, 50)
    columns = [np.float32(column) for column in (first, boundary, stop, per_node, ratio, samples)]
    f, b, s, n, r, whole = map(torch.from_numpy, columns)
    reduced = staged_torch.all_reduce_factor(f, b, n, r)
    sent = staged_torch.transfer_factor(f, b, s, n, r, whole)
    parts = staged_torch.equal_parts(b, whole)
    for i, (start, end, last, node, slow, count) in enumerate(zip(*columns, strict=True)):
        assert table_kernel.all_reduce(start, end, node, slow) == reduced[i]
        assert table_kernel.transfer(start, end, last, node, slow, count) == sent[i]
        assert table_kernel.parts_of(end, count) == parts[i]


class Promises(LookAheadQNetwork):
    """The look-ahead alone, on tables of a fineness."""

    def __init__(self, size: NetworkSize, fineness: Fineness) -> None:
        super().__init__(size)
        self.fineness = fineness
        for half in (self.cut, self.device_cut):
            torch.nn.init.zeros_(half.advantage.weight)
            torch.nn.init.zeros_(half.value[2].weight)  # type: ignore[arg-type]

    def prepare(self, problems: Problems) -> Problems:
        tables = fine_cost_to_go(problems.scaled(), problems.cut_mask, self.size.max_stages, self.fineness)
        return problems._replace(cost_to_go=tables)


@pytest.mark.slow
def test_finer_tables_lead_to_shorter_plans(random_problems: DrawProblems) -> None:
    """Greedily, on 48 problems of four and five stages; coarse ones have six points and four units."""
    drawn = random_problems(5, 48, 16, stages=(4, 5), memory=(2.0, 20.0))
    problems = Problems.from_encoded(encode(drawn))
    best = rollout_reward(problems, Fineness(16, 18, tuple(range(1, 18))))
    coarse = rollout_reward(problems, Fineness(6, 4, (1, 2, 3)))
    shipped = rollout_reward(problems, Fineness(16, UNITS, STAGE_UNITS))
    assert best.mean() >= shipped.mean() - 1e-6
    assert best.mean() > coarse.mean() + 0.01


def rollout_reward(problems: Problems, fineness: Fineness) -> Tensor:
    """[B] rewards of greedy plans; -1 where one does not fit."""
    size = NetworkSize(points=16, max_stages=5, max_devices=18, hidden=4)
    network = Promises(size, fineness)
    agent = PipelineAgent(PipelineEnv(5, 18), network, network, AgentConfig())
    return rollout(agent, problems, 0.0, torch.Generator()).reward


@settings(deadline=None)
@given(st.lists(st.floats(0, float(np.float32(1e30)), width=32) | st.sampled_from([0.0, 1.5, np.inf]), max_size=40))
def test_the_least_by_bits_is_the_first_least_by_number(lengths: list[float]) -> None:
    score = np.abs(np.array(lengths, dtype=np.float32))  # -0.0 is no length
    finite = score.size and np.isfinite(score.min())
    assert table_kernel.first_least(score) == (int(score.argmin()) if finite else -1)
