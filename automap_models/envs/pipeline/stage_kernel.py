"""What one stage of a plan takes, from a problem's arrays and numbers; compiled by numba.

For what follows plans one after another (scheduled_completions). cost.staged_torch.pipeline_cost_batch computes the
same of many plans at once, in float32.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from automap_models.core.compiled import jit
from automap_models.envs.pipeline.cost_to_go import Scaled
from automap_models.envs.pipeline.encoding import COMPUTE, FORWARDS, STASH, WEIGHTS
from automap_models.envs.pipeline.table_kernel import all_reduce, parts_of

Floats = NDArray[np.float64]
DEVICES, PER_NODE, RATIO, STATE, STAGES, MICRO, SAMPLES = range(7)
"""Columns of a problem's numbers."""


def numbers_of(scaled: Scaled) -> Floats:
    """[B, 7] the numbers of problems."""
    none = torch.zeros_like(scaled.devices)
    columns = (scaled.devices, scaled.per_node, scaled.ratio, scaled.state, scaled.stages, scaled.micro)
    samples = none if scaled.samples is None else scaled.samples
    numbers: Floats = torch.cat([*columns, samples], 1).squeeze(2).cpu().numpy().astype(np.float64)
    return numbers


def from_start(arrays: Tensor) -> Floats:
    """[B, 5, P+1] prefix sums, with A itself, from the start of the model, of [B, 5, P]."""
    padded: Floats = np.pad(arrays.cpu().numpy().astype(np.float64), ((0, 0), (0, 0), (1, 0)))
    return padded


@jit
def stage_times(
    arrays: Floats, given: Floats, begin: int, stop: int, first: int, end: int
) -> tuple[float, float, float, float, float]:
    """A stage of the points begin … stop-1 on the devices first … end-1.

    Args:
        arrays, given: of its problem.

    Returns:
        Seconds of a forward and of a backward pass and of its gradients' all-reduce, in units of the problem's; the
        share of a device's memory that its training state takes, and what a micro-batch that waits for its backward
        pass does.
    """
    per_node, ratio = np.float32(given[PER_NODE]), np.float32(given[RATIO])
    a, e = np.float32(first), np.float32(end)
    parts = parts_of(e - a, np.float32(given[SAMPLES]))
    weights = arrays[WEIGHTS, stop] - arrays[WEIGHTS, begin]
    compute, forward = arrays[COMPUTE, stop] - arrays[COMPUTE, begin], arrays[FORWARDS, stop] - arrays[FORWARDS, begin]
    reduce = weights * all_reduce(a, e, per_node, ratio)
    stash = (arrays[STASH, stop] - arrays[STASH, begin]) / parts
    return forward / parts, (compute - forward) / parts, reduce, given[STATE] * weights, stash
