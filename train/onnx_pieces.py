"""The planner's episode in pieces that torch exports one by one; train.onnx_graph puts them together.

Each piece names its inputs; an input of the same name in two pieces, or an output of one and an input of another, is
the same tensor. `row_` marks tensors with a row for every plan of a beam instead of every problem.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from automap_models.envs.pipeline.cost_to_go import (
    BLOCKS,
    CostToGo,
    Rest,
    Stages,
    choose_points,
    earlier_stage,
    every_stage,
    first_devices,
    last_stage,
)
from automap_models.envs.pipeline.env import (
    GIVEN,
    Partial,
    PipelineEnv,
    Problems,
    apply,
    complete_cost,
    device_cuts,
    episode_steps,
    ideal_length,
    legal_cuts,
    legal_device_cuts,
)
from automap_models.rl import targets
from automap_models.rl.networks.pipeline import FlatQNetwork, LookAheadQNetwork, SplitQNetwork

from .rainbow import RainbowModule

PROBLEM = GIVEN
TABLES = CostToGo._fields
REST = tuple(f"rest_{name}" for name in Rest._fields)
LEVEL = tuple(f"level_{name}" for name in TABLES[1:])
PLAN = ("row_cuts", "row_device_cuts", "row_step")
START = ("no_cuts", "no_device_cuts", "no_step")
ROW_PROBLEM = tuple(f"row_{name}" for name in PROBLEM)
ROW_TABLES = tuple(f"row_{name}" for name in TABLES)
STAGES = tuple(f"stage_{name}_{block}" for block in range(BLOCKS) for name in Stages._fields)


class Piece(nn.Module):
    """A part of the planner: tensors in the order of `inputs` → tensors in the order of `outputs`."""

    inputs: tuple[str, ...]
    outputs: ClassVar[tuple[str, ...]]

    def __init__(self, module: RainbowModule) -> None:
        super().__init__()
        if not isinstance(module.online, LookAheadQNetwork):  # reads no tables
            self.inputs = tuple(name for name in self.inputs if name not in (*TABLES, *ROW_TABLES))
        self.network: SplitQNetwork | FlatQNetwork = module.online
        self.agent, self.size = module.agent, module.size

    def problems(self, tensors: tuple[Tensor, ...]) -> Problems:
        """The problems, with their tables where these follow."""
        given = len(PROBLEM)
        tables = CostToGo(*tensors[given:]) if len(tensors) > given else None
        return Problems._make((*tensors[:given], tables, None))

    def cut_values(self, problems: Problems, partial: Partial) -> Tensor:
        """[B, P] masked action values of states that cut instructions."""
        if isinstance(self.network, SplitQNetwork):
            described = self.network.describe_cuts(problems, partial)
            return targets.masked(self.agent.expected(self.network.cut(described)), described.legal)
        q = self.agent.q(self.network, problems, partial)
        return targets.masked(q[:, : self.size.points], legal_cuts(problems, partial))

    def device_values(self, problems: Problems, partial: Partial, first: Tensor) -> Tensor:
        """[B, a] masked action values of states that cut devices: of the devices 1, 2, …, [a]."""
        if isinstance(self.network, SplitQNetwork):
            described = self.network.describe_device_cuts(problems, partial, first)
            return targets.masked(self.agent.expected(self.network.device_cut(described)), described.legal)
        q = self.agent.q(self.network, problems, partial)
        legal = legal_device_cuts(problems, partial, device_cuts(problems, self.size.max_devices))
        return targets.masked(q[:, self.size.points :], legal)


class Begin(Piece):
    """The points of the cost-to-go tables, the stages between them, and what one stage after each of them costs."""

    inputs, outputs = PROBLEM, ("points", *(f"last_{name}" for name in Rest._fields), *STAGES)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        problems = self.problems(tensors)
        scaled = problems.scaled()
        points = choose_points(scaled.arrays, problems.cut_mask)
        at = scaled.at(points)
        blocks = every_stage(scaled, at)
        return points, *last_stage(scaled, at, first_devices(scaled)), *(t for block in blocks for t in block)


class Level(Piece):
    """The tables for one stage more."""

    inputs = (*PROBLEM, *STAGES, "points", *REST, "left")
    outputs = (*(f"next_{name}" for name in REST), *LEVEL)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        problems = self.problems(tensors[: len(PROBLEM)])
        stages, width = tensors[len(PROBLEM) : len(PROBLEM + STAGES)], len(Stages._fields)
        blocks = [Stages(*stages[start : start + width]) for start in range(0, len(stages), width)]
        points, *rest, left = tensors[len(PROBLEM + STAGES) :]
        scaled = problems.scaled()
        legal = problems.cut_mask.gather(1, points)
        renewed, plan = earlier_stage(scaled, scaled.at(points), legal, blocks, Rest(*rest), left)
        return *renewed, *plan


class FirstCut(Piece):
    """The values of every first cut, given plans in which nothing is decided."""

    inputs, outputs = (*PROBLEM, *TABLES, *START), ("first_values",)

    def forward(self, *tensors: Tensor) -> Tensor:
        """See the class."""
        return self.cut_values(self.problems(tensors[: -len(START)]), Partial(*tensors[-len(START) :]))


class DeviceCut(Piece):
    """The greedy device cut after the last cut; episodes that are over stay as they are."""

    inputs = (*ROW_PROBLEM, *ROW_TABLES, "first_devices", *PLAN)
    outputs = (*(f"final_{name}" for name in PLAN), "last_device_values")

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        *given, first = tensors[: -len(PLAN)]
        problems, partial = self.problems(tuple(given)), Partial(*tensors[-len(PLAN) :])
        values = self.device_values(problems, partial, first)
        return *self.go_on(problems, partial, values.argmax(1) + problems.points), values

    def go_on(self, problems: Problems, partial: Partial, action: Tensor) -> Partial:
        """The plans after a decision, where one is left to be made."""
        running = partial.step < episode_steps(problems)
        following = apply(partial, action, problems.points)
        return Partial(
            torch.where(running.unsqueeze(1), following.cuts, partial.cuts),
            torch.where(running.unsqueeze(1), following.device_cuts, partial.device_cuts),
            torch.where(running, following.step, partial.step),
        )


class Stage(DeviceCut):
    """The greedy device cut after the last cut, then the next cut."""

    outputs = (*(f"next_{name}" for name in PLAN), "device_values", "cut_values")

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        *plan, device_values = super().forward(*tensors)
        problems, partial = self.problems(tensors[: -len(PLAN) - 1]), Partial(*plan)
        values = self.cut_values(problems, partial)
        return *self.go_on(problems, partial, values.argmax(1)), device_values, values


class End(Piece):
    """The reward of complete plans; of one out of memory, minus the fraction of device memory it takes."""

    inputs, outputs = (*ROW_PROBLEM, "final_row_cuts", "final_row_device_cuts"), ("row_reward",)

    def forward(self, *tensors: Tensor) -> Tensor:
        """See the class."""
        problems, (cuts, device_cuts) = self.problems(tensors[: len(PROBLEM)]), tensors[len(PROBLEM) :]
        cost = complete_cost(problems, Partial(cuts, device_cuts, episode_steps(problems)))
        return torch.where(cost.feasible, ideal_length(problems) / cost.length, -cost.memory.amax(1))


def example_tensors(module: RainbowModule, problems: Problems) -> dict[str, Tensor]:
    """A tensor for every input of every piece, with batch axes that do not equal one another by chance."""
    problems = problems._replace(cost_to_go=None).take(torch.arange(7) % len(problems.stages))
    some = problems.with_cost_to_go(max(4, module.size.max_stages))
    tables = some.cost_to_go
    if tables is None:
        raise ValueError("no tables")
    rows = some.take(torch.arange(11) % 7)
    row_tables = rows.cost_to_go or tables
    env = PipelineEnv(module.size.max_stages, module.size.max_devices)
    partial = env.reset(rows)
    cuts = partial.cuts.clone()
    cuts[:, 0] = rows.cut_mask.float().argmax(1)
    return {
        **dict(zip(PROBLEM, some.tensors, strict=True)),
        **dict(zip(TABLES, tables, strict=True)),
        # Each a tensor of its own: torch.export takes equal objects for one input.
        **dict(zip(REST, (tables.span[:, 0], tables.reduce[:, 0], tables.stop[:, 0]), strict=True)),
        **dict(zip(ROW_PROBLEM, rows.tensors, strict=True)),
        **dict(zip(ROW_TABLES, row_tables, strict=True)),
        **dict(zip(START, env.reset(some), strict=True)),
        **dict(zip(PLAN, (cuts, partial.device_cuts, partial.step + 1), strict=True)),
        **dict(zip(STAGES, _stages(some, tables), strict=True)),
        "first_devices": device_cuts(rows, module.size.max_devices),
        "final_row_cuts": cuts,
        "final_row_device_cuts": partial.device_cuts,
        "left": torch.tensor(2.0),
    }


def _stages(problems: Problems, tables: CostToGo) -> list[Tensor]:
    scaled = problems.scaled()
    return [tensor for block in every_stage(scaled, scaled.at(tables.points)) for tensor in block]
