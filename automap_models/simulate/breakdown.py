"""What a step consists of, and what fills the fullest device's memory.

Under a schedule the bottleneck is the stage, or the direction of a link between two, that is at work for longest:

    bottleneck   |······|== M·u ==|··|==========|······|               u = f + b of a stage, x of a link
    gradients                                          |======|        what of them ends after the last pass of all
    tied sums                                                 |===|
    update                                                        |==|
                 └─────────── M·u and bubble ──────────┘

- M·u is compute, all-reduces of activations and gathered slices of a stage, and transfers of a link;
- the bubble is the idle time of the bottleneck until the last pass of all stages has ended.

The length L has the same parts along the path that sets it. With p the pivot, the pseudo-stage whose steady phase sets
the span (cost-model.md; u is 2·x of a link there), L = Σ_{j<p} u_j + M·u_p + (L - T): the bubble, the pivot's work, and
the gradient all-reduces that nothing hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, stage_state_bytes
from automap_models.simulate.plan_step import timeline


@dataclass(frozen=True)
class Breakdown:
    """The parts of a step and of the fullest device's memory; each adds up to the whole.

    Attributes:
        compute_s: instructions.
        activations_s: all-reduces of activations and their gradients, inside stages that partition operators.
        transfers_s: between stages, and gathering what arrives in slices.
        bubble_s: idle time of the bottleneck, while it waits for micro-batches and for the last pass of others.
        gradients_s: all-reduces of parameter gradients that no pass hides.
        tied_s: sums of gradients over the stages that hold the same parameters.
        update_s: of the parameters, after all of that.
        state_bytes: parameters, trained or not, gradients and the optimiser's state.
        stash_bytes: activations kept for the backward pass.
        fullest: the stage that takes the largest share of its devices' memory.
        bottleneck: the pseudo-stage whose work and idle time these are; stages are even, links odd.
        last_reduced: the stage whose gradients are reduced last.
    """

    compute_s: float
    activations_s: float
    transfers_s: float
    bubble_s: float
    gradients_s: float
    tied_s: float
    update_s: float
    state_bytes: float
    stash_bytes: float
    fullest: int
    bottleneck: int
    last_reduced: int

    @property
    def step_s(self) -> float:
        """The sum of the times."""
        working_s = self.compute_s + self.activations_s + self.transfers_s
        return working_s + self.bubble_s + self.gradients_s + self.tied_s + self.update_s

    @property
    def memory_bytes(self) -> float:
        """The sum of the bytes."""
        return self.state_bytes + self.stash_bytes


def breakdown(problem: StagedProblem, plan: StagedPlan, cost: StagedCost) -> Breakdown:
    """The parts of a plan's step, which is the simulated one under the problem's schedule, or else the length L.

    Args:
        cost: of this plan, see simulate.plan_step.step_cost.
    """
    schedule, in_steady = problem.schedule, float(problem.micro_batches)
    ends = _ends_of_length(cost) if schedule is None else _ends_of_step(cost, problem.micro_batches, schedule)
    bottleneck, a_stage = ends.bottleneck // 2, ends.bottleneck % 2 == 0
    steady = cost.compute_s[bottleneck] + cost.reduce_s[bottleneck] + cost.gather_s[bottleneck] if a_stage else 0.0
    messages = 2.0 if schedule is None else 1.0
    moved = cost.gather_s[bottleneck] if a_stage else messages * cost.transfer_s[bottleneck]
    fullest = cost.fullest
    state_bytes = stage_state_bytes(problem, plan)[fullest]
    return Breakdown(
        compute_s=in_steady * float(cost.compute_s[bottleneck]) if a_stage else 0.0,
        activations_s=in_steady * float(cost.reduce_s[bottleneck]) if a_stage else 0.0,
        transfers_s=in_steady * float(moved),
        bubble_s=float(ends.passes_s - in_steady * (steady if a_stage else moved)),
        gradients_s=float(ends.reduced_s - ends.passes_s),
        tied_s=float(ends.summed_s - ends.reduced_s),
        update_s=float(ends.step_s - ends.summed_s),
        state_bytes=state_bytes,
        stash_bytes=float(cost.memory_bytes[fullest] - state_bytes),
        fullest=fullest,
        bottleneck=ends.bottleneck,
        last_reduced=ends.last_reduced,
    )


class _Ends(NamedTuple):
    """When the passes, the gradient all-reduces too, all sums of gradients, and the whole step have ended.

    Attributes:
        passes_s, reduced_s, summed_s, step_s: seconds from the start, ascending.
        bottleneck: index of a pseudo-stage; stages are even, links odd.
        last_reduced: the stage whose gradients are reduced last.
    """

    passes_s: float
    reduced_s: float
    summed_s: float
    step_s: float
    bottleneck: int
    last_reduced: int


def _ends_of_length(cost: StagedCost) -> _Ends:
    """Of the maximum in L = max_s (T - hidden_s + AR_s)."""
    hidden = np.concatenate([[0.0], np.cumsum(cost.backward_s[:-1] + cost.transfer_s)])
    last_reduced = int(np.argmax(cost.exposed_s - hidden))
    return _Ends(cost.span_s, *(cost.length_s,) * 3, cost.pivot, last_reduced)


def _ends_of_step(cost: StagedCost, micro_batches: int, schedule: str) -> _Ends:
    simulated = timeline(cost, micro_batches, schedule)
    passes_s = max(i.end_s for i in simulated.intervals if i.kind == "backward")
    reduced = [(i.end_s, -i.resource) for i in simulated.intervals if i.kind == "all-reduce"]
    reduced_s, last_reduced = max(reduced, default=(0.0, 0))
    reduced_s = max(passes_s, reduced_s)
    summed_s = max((i.end_s for i in simulated.intervals if i.kind == "tied-sum"), default=reduced_s)
    busy = np.zeros(2 * cost.forward_s.size - 1)
    busy[0::2], busy[1::2] = cost.forward_s + cost.backward_s, cost.transfer_s
    ends = (passes_s, reduced_s, max(reduced_s, summed_s), simulated.length_s)
    return _Ends(*ends, int(busy.argmax()), -last_reduced)
