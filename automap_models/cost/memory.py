"""Memory of a stage: training state and the activations of the micro-batches in flight (cost-model.md, "Memory")."""

from __future__ import annotations


def stage_memory_bytes(
    weights_bytes: float,
    stash_bytes: float,
    replicas: int,
    in_flight: int,
    state_factor: float,
) -> float:
    """mem = σ·ΣW + in_flight·ΣH / r on each device of the stage; in_flight = min(M, S - s)."""
    return state_factor * weights_bytes + in_flight * stash_bytes / replicas
