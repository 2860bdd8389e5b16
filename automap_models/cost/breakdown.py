"""What a step consists of, along the path that sets its length, and what fills the fullest device's memory.

With p the pivot, the pseudo-stage whose steady phase sets the span (cost-model.md), the length is

    L = Σ_{j<p} u_j + M·u_p + (L - T)

- M·u_p is compute, all-reduces of activations and gathered slices where p is a stage, transfers where it is a boundary;
- Σ_{j<p} u_j is the bubble: while the pipeline fills and drains, the pivot waits;
- L - T are the gradient all-reduces that nothing hides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost


@dataclass(frozen=True)
class Breakdown:
    """The parts of a step's length and of the fullest device's memory; each adds up to the whole.

    Attributes:
        compute_s: instructions.
        activations_s: all-reduces of activations and their gradients, inside stages that partition operators.
        transfers_s: between stages, and gathering what arrives in slices.
        bubble_s: waiting for the first micro-batch to arrive and the last one to leave.
        gradients_s: all-reduces of parameter gradients.
        state_bytes: parameters, gradients and the optimiser's state.
        stash_bytes: activations kept for the backward pass.
        fullest: the stage with the fullest devices.
        last_reduced: the stage whose gradient all-reduce ends the step.
    """

    compute_s: float
    activations_s: float
    transfers_s: float
    bubble_s: float
    gradients_s: float
    state_bytes: float
    stash_bytes: float
    fullest: int
    last_reduced: int

    @property
    def length_s(self) -> float:
        """The sum of the times."""
        return self.compute_s + self.activations_s + self.transfers_s + self.bubble_s + self.gradients_s

    @property
    def memory_bytes(self) -> float:
        """The sum of the bytes."""
        return self.state_bytes + self.stash_bytes


def breakdown(problem: StagedProblem, plan: StagedPlan, cost: StagedCost) -> Breakdown:
    """The parts of a plan's cost.

    Args:
        cost: of this plan, see cost.staged.plan_cost.
    """
    pivot, in_steady = cost.pivot // 2, float(problem.micro_batches)
    a_stage = cost.pivot % 2 == 0
    steady = cost.compute_s[pivot] + cost.reduce_s[pivot] + cost.gather_s[pivot] if a_stage else 0.0
    moved = cost.gather_s[pivot] if a_stage else 2.0 * cost.transfer_s[pivot]
    fullest = int(np.argmax(cost.memory_bytes))
    state_bytes = problem.state_factor * stage_weights_bytes(problem, plan)[fullest]
    return Breakdown(
        compute_s=in_steady * float(cost.compute_s[pivot]) if a_stage else 0.0,
        activations_s=in_steady * float(cost.reduce_s[pivot]) if a_stage else 0.0,
        transfers_s=in_steady * float(moved),
        bubble_s=float(cost.span_s - in_steady * (steady if a_stage else moved)),
        gradients_s=float(cost.length_s - cost.span_s),
        state_bytes=state_bytes,
        stash_bytes=float(cost.memory_bytes[fullest] - state_bytes),
        fullest=fullest,
        last_reduced=_last_reduced(cost),
    )


def stage_weights_bytes(problem: StagedProblem, plan: StagedPlan) -> list[float]:
    """[S] bytes of trainable parameters on each device of a stage, the copies of tied ones included."""
    spans, shared = plan.stage_instructions(len(problem.profile)), problem.profile.shared_parameters
    return [
        float(problem.all_shardings[sharding].weights_held(shared, first, last + 1).sum())
        for sharding, (first, last) in zip(plan.shardings, spans, strict=True)
    ]


def _last_reduced(cost: StagedCost) -> int:
    """The stage of the maximum in L = max_s (T - hidden_s + AR_s)."""
    hidden = np.concatenate([[0.0], np.cumsum(cost.backward_s[:-1] + cost.transfer_s)])
    return int(np.argmax(cost.all_reduce_s - hidden))
