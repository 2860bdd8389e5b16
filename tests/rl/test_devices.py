"""What training computes on a GPU stays on it: shown on torch's `meta` device, which has shapes and no numbers.

An operator refuses tensors of two devices there as it does on a GPU; CI has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from automap_models.envs.pipeline.cost_to_go import (
    CostToGo,
    Fineness,
    choose_points,
    earlier_stage,
    every_stage,
    first_devices,
    last_stage,
)
from automap_models.envs.pipeline.env import Partial, Problems, apply, complete_cost, device_cuts
from automap_models.rl.distillation import LossSettings, part_loss
from automap_models.rl.lessons import Lesson
from automap_models.rl.networks.one_step import OneStepQNetwork
from automap_models.rl.networks.pipeline import LookAheadQNetwork, NetworkSize, SplitQNetwork

THERE = torch.device("meta")
SIZE = NetworkSize(points=16, max_stages=4, max_devices=18, hidden=16, residual="none", attention=1)
FINENESS = Fineness(8, 18, (1, 2, 4, 8))


@pytest.fixture
def moved(problems: Problems, states: Partial) -> tuple[Problems, Partial]:
    there = [tensor.to(THERE) for tensor in (*problems.tensors, *states)]
    given = len(problems.tensors)
    return Problems._make((*there[:given], None, None)), Partial(*there[given:])


def all_there(tensors: Iterable[Tensor]) -> bool:
    return all(tensor.device == THERE for tensor in tensors)


def with_tables(problems: Problems) -> Problems:
    """As envs.pipeline.cost_to_go makes them, but for how many levels are needed, which is a number."""
    scaled = problems.scaled()
    points = choose_points(scaled.arrays, problems.cut_mask, FINENESS.points)
    at, legal = scaled.at(points), problems.cut_mask.gather(1, points)
    stages = every_stage(scaled, at, FINENESS)
    rest, tables = last_stage(scaled, at, first_devices(scaled, FINENESS.units)), []
    for left in (2.0, 3.0):
        rest, plan = earlier_stage(scaled, at, legal, stages, rest, at.new_tensor(left), FINENESS)
        tables.append(plan)
    stacked = (torch.stack(table, 1) for table in zip(*tables, strict=True))
    return problems._replace(cost_to_go=CostToGo(points, *stacked))


def test_tables_and_what_is_seen_of_states_stay_there(moved: tuple[Problems, Partial]) -> None:
    problems, states = moved
    prepared, first = with_tables(problems), device_cuts(problems, SIZE.max_devices)
    assert all_there(prepared.cost_to_go or ())
    pairs: list[tuple[SplitQNetwork, Problems]] = [
        (OneStepQNetwork(SIZE), problems),
        (LookAheadQNetwork(replace(SIZE, residual="log")), prepared),
    ]
    for network, known in pairs:
        assert all_there(network.describe_cuts(known, states))
        assert all_there(network.describe_device_cuts(known, states, first))
    assert all_there(complete_cost(problems, states))
    assert all_there(apply(states, states.step, problems.points))


def test_a_network_and_its_loss_stay_there(moved: tuple[Problems, Partial]) -> None:
    problems, states = moved
    with THERE:
        online = OneStepQNetwork(SIZE)
    described = online.describe_cuts(problems, states)
    kinds = [torch.full((24,), kind) for kind in range(2)]
    lessons = [
        Lesson(states.step, states._replace(step=kind), seen, seen.estimate)
        for kind, seen in zip(
            kinds,
            (described, online.describe_device_cuts(problems, states, device_cuts(problems, SIZE.max_devices))),
            strict=True,
        )
    ]
    loss = part_loss(online, lessons, LossSettings([0.1, 0.5], 0.02, 1.0))
    loss.backward()  # type: ignore[no-untyped-call]
    assert all_there([loss, *(weight.grad for weight in online.parameters() if weight.grad is not None)])
