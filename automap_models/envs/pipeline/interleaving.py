"""Problems whose plans run interleaved: which can, and what their cuts send (envs.pipeline.virtual_stages); numpy only.

Where a stage of a plan ends decides where the pieces of its rank end, one in each of vp parts of the model:

    plan      |        rank 0        ┊       rank 1        |          ┊ ends at a share q of the computation
    pieces    |   0    ┊     1   |    0    ┊     1         |          ┊ at (lap + q) / vp of it, lap = 0 … vp - 1
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from automap_models.core.schedules import require_runnable
from automap_models.envs.pipeline.encoding import CHANNELS, EncodedProblems, cut_masks
from automap_models.errors import BadInput

INTERLEAVED, VIRTUAL = "interleaved", 2
"""The schedule, and vp, the virtual stages of a rank."""
COMPUTE, SENT = CHANNELS.index("C"), CHANNELS.index("A")


def runs(objective: str, stages: int, micro_batches: int) -> bool:
    """Whether plans of so many stages can be paid by it: interleaved, micro-batches have to make equal rounds."""
    if objective != INTERLEAVED:
        return True
    try:
        require_runnable(objective, stages, micro_batches, VIRTUAL)
    except BadInput:
        return False
    return True


def as_sent(encoded: EncodedProblems) -> EncodedProblems:
    """The same problems with what the pieces of a rank send together, if its stage ends at a point, as its activations.

    Tables and networks that see them like that see what cuts send. Where two pieces would end at one place, a plan
    moves the later one on, which depends on its other stages and is left out here.
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
    return replace(encoded, arrays=arrays)
