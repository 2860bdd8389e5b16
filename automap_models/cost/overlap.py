"""Gradients that are reduced while the last backward pass goes on, and what of that the step is longer by.

    backward pass   |··················|
    all-reduce            |==============|──────────|      of what could be hidden a share is (StepConstants.overlap)
                                       └────────────┘ exposed

The share is fitted to measured steps, as all that the clock says of a kind of device; it holds for a stage of a
pipeline as for data parallelism. A parameter that several stages use is held by each of them. Their gradients are
summed once all these stages have reduced theirs (`TiedSum`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from automap_models.core.profile import FloatArray

Seconds = TypeVar("Seconds", float, FloatArray)


class TiedSum(NamedTuple):
    """Gradients of a parameter that several stages hold a copy of, and sum once a step, after their own.

    Attributes:
        stages: that hold the copies, ascending.
        sum_s: how long it takes.
        name: of the parameter.
    """

    stages: tuple[int, ...]
    sum_s: float
    name: str = ""


def exposed_s(communication_s: Seconds, computation_s: Seconds, overlap: float) -> Seconds:
    """What communication takes beyond the computation beside it, of which it hides behind a share, and that of itself.

    max(communication - overlap · computation, (1 - overlap) · communication)
    """
    exposed: Any = communication_s - overlap * np.minimum(communication_s, computation_s)
    return cast(Seconds, exposed)
