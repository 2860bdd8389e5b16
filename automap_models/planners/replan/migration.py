"""What it costs to go from one plan to another while a job runs: bytes that change device, and how long they take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.observed import PlacedPlan
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedProblem

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Migration:
    """What a migration takes.

    Attributes:
        received_bytes: parameters and optimiser state that devices receive, over all of them.
        between_nodes_bytes: the part of them that crosses between nodes; what several devices of a node need crosses
            once.
        migration_s: how long that takes, nodes at a time in parallel: the busiest node's link, then the busiest
            device's.
    """

    received_bytes: float
    between_nodes_bytes: float
    migration_s: float


def migration(problem: StagedProblem, before: PlacedPlan, after: PlacedPlan) -> Migration:
    """What it takes to go from one plan to the other.

    A device needs parameters and optimiser state, (σ - 1)·W without the gradients (at least W), of the instructions of
    its new stage that its old one did not have. It receives them inside its node where a device there has them, and
    otherwise over the nodes' links from the node that sends least by then.

        instructions   0 ······ cut ······ cut' ······ n-1        pieces: between the cuts of either plan
        before         [stage 0][stage 1                  ]
        after          [stage 0           ][stage 1       ]       devices of stage 0 receive the piece cut … cut'
    """
    profile, cluster = problem.profile, problem.cluster
    state = max(problem.state_factor - 1.0, 1.0) * profile.W
    pieces = np.unique([0, *(c + 1 for plan in (before.plan, after.plan) for c in plan.cuts), len(profile)])
    weight = np.add.reduceat(state, pieces[:-1])
    held, needed = (_holds(placed, pieces) for placed in (before, after))
    lacking = needed & ~held
    received = lacking @ weight
    into, out_of = _between_nodes(cluster, held, lacking, weight)
    link_s = max(float(into.max()), float(out_of.max())) / cluster.inter
    return Migration(float(received.sum()), float(into.sum()), link_s + float(received.max()) / cluster.intra)


def _holds(placed: PlacedPlan, pieces: NDArray[np.int64]) -> BoolArray:
    """[D, pieces] whether each device holds each piece of the model."""
    ends = [cut + 1 for cut in placed.plan.cuts]
    stage_of_piece = np.searchsorted(ends, pieces[:-1], side="right")
    holds: BoolArray = placed.stage_of_device()[:, None] == stage_of_piece[None, :]
    return holds & placed.working()[:, None]


def _between_nodes(
    cluster: Cluster, held: BoolArray, lacking: BoolArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """[N] bytes that enter each node, and [N] that leave it."""
    by_node = (cluster.nodes, cluster.devices_per_node, weight.size)
    has: BoolArray = np.logical_or.reduce(held.reshape(by_node), axis=1)
    lacks: BoolArray = np.logical_or.reduce(lacking.reshape(by_node), axis=1)
    into, out_of = np.zeros(cluster.nodes), np.zeros(cluster.nodes)
    for node, piece in np.argwhere(lacks & ~has).tolist():
        sources = np.flatnonzero(has[:, piece])
        into[node] += weight[piece]
        out_of[sources[out_of[sources].argmin()]] += weight[piece]
    return into, out_of
