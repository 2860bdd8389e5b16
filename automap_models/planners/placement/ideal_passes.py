"""Contiguous placements for pipelines that run all forward passes before all backward passes.

Every pass then has a slowest device of its own and the time per sample is max_i FW_i + max_i BW_i (Tarnawski et al.,
NeurIPS 2020, App. C.1). A dynamic program over one largest load cannot minimise that sum, but it can minimise one of
the two under a ceiling on the other, and a minimum of the sum is among the placements where neither can be improved
without the other. Those are met from the smallest backward maximum on, until the sum cannot fall any more.
"""

from __future__ import annotations

from automap_models.core.contraction import Contraction
from automap_models.core.placement import PlacementProblem
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.placement.ideal_lattice import Lattice
from automap_models.planners.placement.ideal_loads import unit_loads
from automap_models.planners.placement.ideal_search import SLACK, IdealSearch, Split

LESS = 1.0 - 3 * SLACK
"""A ceiling that leaves out what lies at the value it is multiplied with."""


def optimum_of_passes(
    problem: PlacementProblem,
    contraction: Contraction,
    lattice: Lattice,
    deadline: Deadline,
    incumbent: Split | None = None,
) -> Split | None:
    """The placement with the least max_i FW_i + max_i BW_i, which is its `value_s`, up to SLACK.

    Args:
        problem: with `split_passes`.
        contraction: its units.
        lattice: ideals of the units.
        deadline: when to stop.
        incumbent: a known placement, returned unless there is a better one.

    Raises:
        OutOfTime: the deadline has passed; with a lower bound and, as `incumbent`, the best placement by then.
    """
    forward, backward = (
        IdealSearch(problem, unit_loads(contraction, first_pass), lattice, deadline) for first_pass in (0, 1)
    )
    bound_s = forward.least_s + backward.least_s
    try:
        quickest = forward.optimum()
        if quickest is None:
            return None
        forward_s, ceiling_s = quickest.value_s, float(forward.most_s[0])
        while True:
            most_s = float(backward.most_s[0]) if incumbent is None else incumbent.value_s - forward_s
            found = backward.under(most_s, ceiling_s)
            if found is None:
                return incumbent
            bound_s = forward_s + found.value_s
            other = forward.under(ceiling_s, found.value_s)
            if other is None:
                return incumbent
            value_s = found.value_s + other.value_s
            if incumbent is None or value_s < incumbent.value_s:
                incumbent = Split(value_s, other.devices)
            if other.value_s <= forward_s * (1.0 + SLACK):
                return incumbent
            ceiling_s = min(other.value_s, incumbent.value_s - found.value_s) * LESS
    except OutOfTime:
        raise PassesOutOfTime(bound_s, incumbent) from None


class PassesOutOfTime(OutOfTime):
    """OutOfTime with the best placement found by then."""

    def __init__(self, bound_s: float, incumbent: Split | None) -> None:
        super().__init__(bound_s)
        self.incumbent = incumbent
