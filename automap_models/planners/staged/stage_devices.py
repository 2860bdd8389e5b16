"""Where the stages of a problem may be, and how fast they are there: arrays over all devices a … q-1, [D+1, D+1]."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.instruction_graph import IntArray
from automap_models.core.profile import FloatArray
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.stage_speeds import equal_speeds, most_between
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import stage_rates
from automap_models.errors import BadInput

MOST_DEVICES = 512
"""Of a cluster whose plans are proven: searches have a number for every two of its devices, and every place to cut."""


def require_few_devices(cluster: Cluster, most: int = MOST_DEVICES) -> None:
    """Nothing, where a cluster has no more than so many devices.

    Raises:
        BadInput: it has.
    """
    if cluster.devices > most:
        raise BadInput(
            f"has {cluster.devices:,} devices, plans are searched and proven for at most {most:,}",
            where=f"cluster {cluster.name}",
            do="describe groups of devices that always work together as one device each",
        )


class PlaceLinks(NamedTuple):
    """What devices that share a replica's operators have in a kind of place.

    Attributes:
        slow: the time of the slowest device over that of the profile's.
        intra: the slowest bandwidth inside a node, bytes/s.
        s_per_byte: of an all-reduce over the devices that share a replica.
        fewer: the rate of the replicas over the parts of a micro-batch: these divide what is sent, and times of
            instructions by less (`StagedProblem.speeds`), so that one rate divides both.
    """

    slow: float
    intra: float
    s_per_byte: float
    fewer: float


class StageDevices(NamedTuple):
    """Where stages in one sharding may be.

    Attributes:
        kind: [D+1, D+1] in which kind of place devices a … q-1 are; -1 where no stage may be.
        links: [E] of each kind.
        speeds: [D+1, D+1, 5] as `stage_arrays.StageArrays` has them.
    """

    kind: IntArray
    links: tuple[PlaceLinks, ...]
    speeds: FloatArray


def sharding_devices(problem: StagedProblem, sharding: ShardedProfile) -> StageDevices:
    """Where stages in a sharding may be, as far as the problem's constraints let them."""
    cluster, degree = problem.links, sharding.degree
    cut = np.arange(cluster.devices + 1)
    if degree == 1:
        allowed, speeds = _wanted(problem, cut[:, None] < cut, 1), problem.stage_speeds
        ring = _replicas_s_per_byte(problem, 1)
        kind, links = np.zeros(allowed.shape, dtype=np.int64), [PlaceLinks(1.0, cluster.intra, 0.0, 1.0)]
        rate = speeds.rate
    else:
        allowed = _wanted(problem, _aligned(cluster, problem.stages, degree), degree)
        speeds = equal_speeds(problem.shares, problem.speeds, cluster.device_memory, degree)
        kind, links = _places(problem, degree, allowed)
        rate = speeds.rate if problem.slowdowns is None else speeds.rate / most_between(problem.slowdowns)
        ring = np.zeros(allowed.shape)
        if problem.stages == 1 and allowed.any():
            ring[0, -1], _ = stage_rates(problem, 0, cluster.devices, degree)
        elif allowed.any():
            ring = _replicas_s_per_byte(problem, degree)
    table = np.stack((rate, ring, speeds.parts, speeds.memory, speeds.replicas / speeds.parts), axis=-1)
    return StageDevices(np.where(allowed, kind, -1), tuple(links), table)


def _places(problem: StagedProblem, degree: int, allowed: NDArray[np.bool_]) -> tuple[IntArray, list[PlaceLinks]]:
    """The kind of place of all devices a … q-1 where a stage may be, and of each kind its links."""
    cluster, kind = problem.links, np.zeros(allowed.shape, dtype=np.int64)
    if not allowed.any():
        return kind, [PlaceLinks(1.0, cluster.intra, 0.0, 1.0)]
    least = most_between(cluster.node_intra[cluster.node_of], np.minimum)
    slow = np.ones_like(least) if problem.slowdowns is None else most_between(problem.slowdowns)
    cut = np.arange(cluster.devices + 1)
    fewer = (problem.speeds / problem.shares)[np.maximum((cut - cut[:, None]) // degree, 0)]
    distinct, place = np.unique(np.stack((slow, least, fewer))[:, allowed], axis=1, return_inverse=True)
    kind[allowed] = place.ravel()
    links = []
    for slowest, intra, of_replicas in distinct.T.tolist():
        per_byte = 2.0 * (degree - 1) / degree / intra
        if problem.stages == 1:  # one kind; devices that share a replica may be in several nodes
            _, per_byte = stage_rates(problem, 0, cluster.devices, degree)
        links.append(PlaceLinks(slowest, intra, per_byte, of_replicas))
    return kind, links


def _aligned(cluster: Cluster, stages: int, degree: int) -> NDArray[np.bool_]:
    """[D+1, D+1] whether devices a … q-1 are groups of neighbours inside nodes; of all devices, of a single stage."""
    cut = np.arange(cluster.devices + 1)
    starts = cut % degree == 0
    allowed: NDArray[np.bool_] = starts[:, None] & starts & (cut[:, None] < cut)
    if stages == 1:
        allowed[1:], allowed[:, :-1] = False, False
    elif cluster.devices_per_node % degree:
        allowed[:] = False
    return allowed


def _wanted(problem: StagedProblem, allowed: NDArray[np.bool_], degree: int) -> NDArray[np.bool_]:
    """[D+1, D+1] on which devices a … q-1, of those allowed, a stage in a sharding of that degree may be."""
    cut = np.arange(allowed.shape[0])
    devices = cut - cut[:, None]
    replicas = np.maximum(devices, 0) // degree
    allowed = allowed & problem.may_have[replicas]
    if "data" in problem.constraints.forbidden:
        allowed &= replicas <= 1
    if problem.constraints.equal_replicas:
        share = cut[-1] // problem.stages
        allowed = allowed & (cut[:, None] % share == 0) & (devices == share)
    return allowed


def require_devices(problem: StagedProblem, allowed: NDArray[np.bool_]) -> None:
    """Nothing, where the stages can share out the devices.

    Args:
        allowed: [D+1, D+1] whether a stage may be on devices a … q-1, in any sharding.

    Raises:
        BadInput: they cannot, which is due to techniques that are forbidden, or to replicas without a sample.
    """
    reached: NDArray[np.bool_] = np.arange(len(allowed)) == 0
    for _ in range(problem.stages):
        reached = np.any(allowed[reached], axis=0)
    if not reached[-1]:
        forbidden = [f"`forbidden='{n}'`" for n in ("data", "operator") if n in problem.constraints.forbidden]
        both = forbidden if len(forbidden) > 1 else [*forbidden, f"`stages={problem.stages}`"]
        most = 1 if "data" in problem.constraints.forbidden else int(np.flatnonzero(problem.may_have)[-1])
        raise BadInput(
            f"{problem.stages} stage(s) cannot share out {len(allowed) - 1} devices: a stage has at most "
            f"{most} replica(s), each with a sample, of as many devices as operators are partitioned over",
            where=" and ".join(both),
            do="allow data parallelism, larger micro-batches, or take another number of stages",
        )


def _replicas_s_per_byte(problem: StagedProblem, degree: int) -> FloatArray:
    """[D+1, D+1] seconds per byte of parameters that replicas of so many devices reduce their gradients in.

    It is cost.staged.stage_rates, tabulated. Devices that share a replica are neighbours in a node, so that all groups
    of replicas have equally many devices in each node, and all of them leave it at a time.
    """
    inside, across, link = _nodes_of(problem.links)
    within = np.zeros_like(link)
    for intra, devices in inside:
        most = np.maximum(devices // degree, 1)
        within = np.maximum(within, 2.0 * (most - 1) / most / intra)
    both: FloatArray = within + 2.0 * (across - 1) / across / link * degree
    return problem.gradient_share * both


@lru_cache(maxsize=8)
def _nodes_of(cluster: Cluster) -> tuple[list[tuple[float, IntArray]], IntArray, FloatArray]:
    """The nodes that devices a … q-1 are in, [D+1, D+1].

    Returns:
        For each speed inside nodes, how many of the devices are in one node of it at most; in how many nodes they are;
        the slowest link between these, bytes/s.
    """
    cut = np.arange(cluster.devices + 1)
    shape = cut.size, cut.size
    inside = {float(intra): np.zeros(shape, dtype=np.int64) for intra in np.unique(cluster.node_intra)}
    across, link = np.zeros(shape, dtype=np.int64), np.full(shape, np.inf)
    for node, (first, stop) in enumerate(pairwise(cluster.node_bounds.tolist())):
        here = np.maximum(np.minimum(cut, stop) - np.maximum(cut[:, None], first), 0)
        of_speed = inside[float(cluster.node_intra[node])]
        np.maximum(of_speed, here, out=of_speed)
        across += here > 0
        link = np.where(here > 0, np.minimum(link, cluster.node_inter[node]), link)
    link[np.isinf(link)] = cluster.node_inter.max()
    return list(inside.items()), np.maximum(across, 1), link
