"""Where a pipeline may be cut when it is planned by online training: candidate pivots (Auto-MAP §3.4).

A pivot is an instruction cut with a device cut. Device cuts lie within a radius of the centre solution, whose cuts are
node boundaries. Instruction cuts are single instructions, not points of a grid: of neighbouring ones between which
there is nothing to compute, keep, train or use again, the one that the fewest bytes cross stands for all, for it is
never worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.errors import BadInput, Infeasible

IntArray = NDArray[np.int64]
DEFAULT_RADIUS = 3


def centre_solution(cluster: Cluster, stages: int) -> tuple[int, ...]:
    """[S-1] the device cuts that the search is centred on.

    Up to one stage a node: the node boundaries nearest to even shares of the nodes. More: even shares of the devices.
    """
    if stages <= cluster.nodes:
        nodes = [(2 * s * cluster.nodes + stages) // (2 * stages) for s in range(1, stages)]
        return tuple(node * cluster.devices_per_node for node in nodes)
    return tuple(cluster.devices * s // stages for s in range(1, stages))


def candidate_device_cuts(cluster: Cluster, stages: int, radius: int) -> tuple[IntArray, ...]:
    """For each of the S-1 device cuts the devices within the radius of its centre that can be part of a plan.

    Raises:
        BadInput: a negative radius.
    """
    if radius < 0:
        raise BadInput(f"a radius of {radius}", where="`radius`", do="give 0 or more")
    centres = np.array(centre_solution(cluster, stages), dtype=np.int64)
    place = np.arange(1, stages)
    low = np.maximum(centres - radius, place)
    high = np.minimum(centres + radius, cluster.devices - stages + place)
    low = np.maximum.accumulate(low - place) + place
    high = np.minimum.accumulate((high - place)[::-1])[::-1] + place
    return tuple(np.arange(a, b + 1) for a, b in zip(low, high, strict=True))


def distinct_cuts(profile: Profile) -> IntArray:
    """Instructions to cut after, ascending: of equivalent ones that with the least A, the first of several."""
    something = (profile.C > 0) | (profile.C_fwd > 0) | (profile.W > 0) | (profile.stash > 0)
    for parameter in profile.shared_parameters:
        something[list(parameter.instructions)] = True
    begins = something[:-1].copy()
    begins[0] = True
    group = np.cumsum(begins)
    order = np.lexsort((profile.A[:-1], group))  # stable: the first of equals stays the first
    first = np.flatnonzero(np.diff(group[order], prepend=0))
    return order[first]


@dataclass(frozen=True, eq=False)
class Candidates:
    """What a search may choose from.

    Attributes:
        problem: with S ≥ 2.
        radius: of the device cuts around the centre solution.
        device_cuts: for each of the S-1 cuts, ascending.
        cuts: instructions, ascending; the same for each of them.
    """

    problem: StagedProblem
    radius: int
    device_cuts: tuple[IntArray, ...]
    cuts: IntArray

    @property
    def pivots(self) -> int:
        """Instruction cuts times candidate device cuts, equivalent instruction cuts included."""
        return (len(self.problem.profile) - 1) * sum(devices.size for devices in self.device_cuts)

    def contain(self, cuts: tuple[int, ...], device_cuts: tuple[int, ...]) -> bool:
        """Whether a plan with these cuts is one of those to choose from."""
        devices = zip(device_cuts, self.device_cuts, strict=True)
        return bool(np.isin(cuts, self.cuts).all()) and all(cut in own for cut, own in devices)

    def every_stage_trains(self, cuts: tuple[int, ...]) -> bool:
        """Whether stages cut so hold a trainable variable each."""
        first = [0, *(cut + 1 for cut in cuts)]
        return bool((np.add.reduceat(self.problem.profile.W, first) > 0).all())


def candidates(problem: StagedProblem, radius: int = DEFAULT_RADIUS) -> Candidates:
    """The candidate pivots of a problem.

    Raises:
        BadInput: one stage, which is not cut, or a negative radius.
        Infeasible: fewer instructions with trainable variables than stages.
    """
    if problem.stages < 2:
        raise BadInput("there is nothing to cut with 1 stage", where="`stages`", do="give 2 or more")
    training = int((problem.profile.W > 0).sum())
    if training < problem.stages:
        raise Infeasible(
            f"{problem.stages} stages, but only {training} instruction(s) use a trainable variable first",
            where="`stages`",
            do=f"give at most {training}" if training > 1 else "train with data parallelism",
        )
    devices = candidate_device_cuts(problem.cluster, problem.stages, radius)
    return Candidates(problem, radius, devices, distinct_cuts(problem.profile))
