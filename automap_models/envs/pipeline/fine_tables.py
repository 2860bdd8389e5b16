"""Cost-to-go tables of any fineness for a teacher's batches: by compiled loops on a CPU, by tensor operators elsewhere.

A policy's tables are made by tensor operators, because they are part of its file, and are as fine as its time allows. A
teacher has more time, but needs them for every problem it teaches. On a CPU the loops of envs.pipeline.table_kernel
take a hundredth of the operators' time, and equal tables are equal to the last bit. A GPU works on thousands of numbers
at a time whatever they are for: there the operators serve.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from automap_models.envs.pipeline.cost_to_go import CostToGo, Fineness, Scaled, choose_points, cost_to_go, levels
from automap_models.envs.pipeline.table_kernel import ANY_LENGTH, problem_tables


def fine_cost_to_go(
    scaled: Scaled, cut_mask: Tensor, max_stages: int, fineness: Fineness, *, compiled: bool = False
) -> CostToGo:
    """The tables of a batch of problems, of which bool [B, P] says where a stage may end.

    Args:
        compiled: whether tensor operators are compiled (envs.pipeline.cost_to_go); loops always are.
    """
    if cut_mask.device.type != "cpu":
        return cost_to_go(scaled, cut_mask, max_stages, fineness, compiled=compiled)
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
