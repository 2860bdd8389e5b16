"""Cost-to-go tables of any fineness for a teacher's batches, by compiled loops (envs.pipeline.table_kernel).

A policy's tables are made by tensor operators, because they are part of its file, and are as fine as its time allows. A
teacher has more time, but needs them for every problem it teaches. Equal tables are equal to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from automap_models.envs.pipeline.cost_to_go import (
    POINTS,
    STAGE_UNITS,
    UNITS,
    CostToGo,
    Scaled,
    choose_points,
    levels,
)
from automap_models.envs.pipeline.table_kernel import ANY_LENGTH, problem_tables


@dataclass(frozen=True)
class Fineness:
    """How fine tables are.

    Attributes:
        points: grid points at which the rest of a pipeline may be cut, at most.
        units: equal groups that devices are counted in.
        stage_units: units that a stage of the rest may have, ascending.
    """

    points: int = POINTS
    units: int = UNITS
    stage_units: tuple[int, ...] = STAGE_UNITS


def fine_cost_to_go(scaled: Scaled, cut_mask: Tensor, max_stages: int, fineness: Fineness) -> CostToGo:
    """The tables of a batch of problems, of which bool [B, P] says where a stage may end."""
    points = choose_points(scaled.arrays, cut_mask, fineness.points)
    at = scaled.at(points).numpy()
    legal = cut_mask.gather(1, points).numpy()
    scalars = (scaled.devices, scaled.per_node, scaled.ratio, scaled.state, scaled.stages, scaled.micro)
    none = torch.zeros_like(scaled.devices)
    columns = [c.flatten().numpy() for c in (*scalars, none if scaled.samples is None else scaled.samples)]
    total = scaled.total.squeeze(2).numpy()
    tables = np.zeros((5, len(at), levels(max_stages), fineness.units, points.shape[1]), dtype=np.float32)
    sizes = np.array(fineness.stage_units, dtype=np.int64)
    given = np.stack(columns, 1)
    guess, limit = np.float32(1), np.float32(ANY_LENGTH)
    for i in range(len(at)):
        needed = min(levels(max_stages), levels(int(scaled.stages[i])))
        problem_tables(at[i], total[i], legal[i], given[i], sizes, needed, tables[:, i], guess, limit)
    return CostToGo(points, *torch.from_numpy(tables).transpose(3, 4).contiguous().unbind(0))
