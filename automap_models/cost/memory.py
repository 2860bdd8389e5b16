"""Memory of a stage: training state and the activations of the micro-batches in flight (cost-model.md, "Memory")."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

BytesT = TypeVar("BytesT", float, NDArray[np.float64])


def stage_memory_bytes(
    weights_bytes: BytesT,
    stash_bytes: BytesT,
    replicas: int | NDArray[np.int64],
    in_flight: int | NDArray[np.int64],
    state_factor: float,
) -> BytesT:
    """mem = σ·ΣW + in_flight·ΣH / r on each device of a stage, or of several; in_flight = min(M, S - s)."""
    held: BytesT = state_factor * weights_bytes + in_flight * stash_bytes / replicas  # type: ignore[assignment]
    return held
