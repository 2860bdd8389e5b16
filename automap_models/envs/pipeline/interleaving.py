"""Problems whose plans run interleaved: which can, and how their arrays count (envs.pipeline.virtual_stages); numpy.

Where a stage of a plan ends decides where the pieces of its rank end, one in each of vp parts of the model:

    plan      |        rank 0        ┊       rank 1        |          ┊ ends at a share q of the computation
    pieces    |   0    ┊     1   |    0    ┊     1         |          ┊ at (lap + q) / vp of it, lap = 0 … vp - 1
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from automap_models.core.schedules import require_runnable
from automap_models.envs.pipeline.encoding import COMPUTE, SENT, STASH, EncodedProblems, cut_masks
from automap_models.errors import BadInput

INTERLEAVED, VIRTUAL = "interleaved", 2
"""The schedule, and vp, the virtual stages of a rank."""


def runs(objective: str, stages: int, micro_batches: int) -> bool:
    """Whether plans of so many stages can be paid by it: interleaved, micro-batches have to make equal rounds."""
    if objective != INTERLEAVED:
        return True
    try:
        require_runnable(objective, stages, micro_batches, VIRTUAL)
    except BadInput:
        return False
    return True


def as_run(encoded: EncodedProblems) -> EncodedProblems:
    """The same problems with arrays as plans that run interleaved make them count.

    Tables and networks of one stage a rank see what they decide then:

        A      what the pieces of a rank send together, if its stage ends at a point. Where two pieces would end at one
               place, a plan moves the later one on, which depends on its other stages and is left out
        stash  by as much more as the first rank holds more than under 1F1B: 2(S - 1) + (vp - 1) S + 1 pieces, or all
               there are, where it has min(M, S) micro-batches
    """
    arrays = encoded.arrays.copy()
    masks = cut_masks(encoded.instructions, arrays.shape[2])
    for row, of, mask in zip(arrays, encoded.arrays, masks, strict=True):
        places = np.flatnonzero(mask)
        if places.size < 2:
            continue
        compute = of[COMPUTE, places]
        ends = (np.arange(VIRTUAL)[:, None] * of[COMPUTE, -1] + of[COMPUTE]) / VIRTUAL
        after = np.searchsorted(compute, ends, side="right").clip(1, places.size - 1)
        nearest = np.where(compute[after] - ends <= ends - compute[after - 1], after, after - 1)
        nearest = np.searchsorted(compute, compute[nearest], side="right") - 1  # the last of several
        row[SENT] = of[SENT, places[nearest]].sum(axis=0)
    stages, micro = encoded.stages.astype(np.float64), encoded.micro_batches.astype(np.float64)
    pieces = np.minimum(VIRTUAL * micro, 2 * (stages - 1) + (VIRTUAL - 1) * np.minimum(stages, micro) + 1)
    arrays[:, STASH] *= (pieces / VIRTUAL / np.minimum(micro, stages))[:, None]
    return replace(encoded, arrays=arrays)
