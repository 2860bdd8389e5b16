"""Parts of a cluster that train alone while its other nodes stand idle: which there are, and which are searched.

    place    nodes of one kind in one zone                     near  ████  near  ████  far  ████
    side     all nodes of some places                          near  ████  near  ████
    part     a side, or fewer of the nodes of its places       near  ████  near  ██··

Of places whose nodes and whose links to all others are alike the first ones have as many nodes as the next ones or
more: so each part counts once. Of D devices, each as fast as σ of the first kind at most, no step is shorter than

    T ≥ u / (D · σ) · min over degrees of c · max(1, S · ⌈L/S⌉ · b / u)

    u    device seconds of a step, by one node with the fastest links and the largest micro-batch: nothing else takes
         less a sample
    c    how many times as long a sample takes with this tp, or with so small a micro-batch
    b    device seconds of one of L blocks, where they and all devices are alike: a rank of S has ⌈L/S⌉ or more
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, product
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.device import Device
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.schedules import DEFAULT_MIN_GAIN
from automap_models.core.strategy import Strategy
from automap_models.formats.hardware_yaml import SIZED
from automap_models.planners.strategies.grid import Grid, divisors
from automap_models.planners.strategies.problem import StrategyProblem, charged_s
from automap_models.planners.strategies.subspace_costs import RankCosts
from automap_models.simulate.strategy import StrategyPricing

Counts = tuple[int, ...]
"""Nodes of each place."""
LISTED = 400
"""Parts of a side that are bounded: those that compute fastest, or, where there are more, nodes in proportion."""


@dataclass(frozen=True)
class Idle:
    """Devices of a kind in a zone that stand idle, of how many; the names are empty where nobody says."""

    device: str
    zone: str
    devices: int
    among: int


class Part(NamedTuple):
    """Some nodes of a cluster, or all.

    Attributes:
        cluster: of these nodes.
        idle: all others.
        trimmed: whether some of these are in the places of nodes in use.
        bound_s: no step is shorter; infinite where nothing divides it.
        about_s: what a step takes if nothing but compute, samples and layers count.
    """

    cluster: Cluster
    idle: tuple[Idle, ...] = ()
    trimmed: bool = False
    bound_s: float = 0.0
    about_s: float = 0.0

    def charged_s(self, step_s: float, min_gain: float = DEFAULT_MIN_GAIN) -> float:
        """What a step, or another amount, is compared by: a kind of devices or a zone more is a step of difficulty, and
        half of one are idle nodes beside others of their place."""
        kinds = {(group.device, group.zone) for group in self.cluster.node_groups}
        return charged_s(step_s, len(kinds) - 1 + 0.5 * self.trimmed, min_gain)


class Parts:
    """The parts of a problem's cluster.

    Attributes:
        places: of the cluster; those alike one after the other, the largest first.
        rows: of each place, the first one that is like it.
    """

    def __init__(self, problem: StrategyProblem) -> None:
        self.problem, self.full, counts = problem, problem.cluster, dict[NodeGroup, int]()
        self.devices = dict(zip(map(_node, self.full.node_groups), problem.costs.pricing.devices, strict=True))
        for group in self.full.node_groups:
            counts[_node(group)] = counts.get(_node(group), 0) + group.nodes
        places, rows = list(counts), dict[NodeGroup, NodeGroup]()
        for place in places:
            rows[place] = next((row for row in rows.values() if _alike(self.full, places, row, place)), place)
        ordered = sorted(places, key=lambda place: (places.index(rows[place]), -counts[place], places.index(place)))
        self.places = [replace(place, nodes=counts[place]) for place in ordered]
        self.rows = [rows[place] for place in ordered]
        self._of_devices: dict[tuple[int, bool], tuple[float, float]] = {}
        self._of_tensor: dict[int, FloatArray] = {}

    # ---- which there are

    @property
    def everything(self) -> Counts:
        """All nodes."""
        return tuple(place.nodes for place in self.places)

    def sides(self) -> Iterator[Counts]:
        """All nodes of some places, but not of all."""
        rows, alone = [self.rows.count(row) for row in dict.fromkeys(self.rows)], set[NodeGroup]()
        for used in product(*(range(size, -1, -1) for size in rows)):
            taken = [member < number for number, size in zip(used, rows, strict=True) for member in range(size)]
            only = {replace(self.places[taken.index(True)], zone="")} if sum(taken) == 1 else set[NodeGroup]()
            if 0 < sum(taken) < len(taken) and not only & alone:
                yield tuple(place.nodes * take for place, take in zip(self.places, taken, strict=True))
            alone |= only

    def fewer(self, side: Counts) -> Iterator[Counts]:
        """The other parts with nodes of a side's places, those that compute fastest first."""
        queue, numbers = [(0.0, 0, side, len(side) - 1)], count(1)
        while queue:
            *_, counts, last = heapq.heappop(queue)
            if counts != side:
                yield counts
            for place in range(last + 1):  # each one once: the later places have theirs before
                less = (*counts[:place], counts[place] - 1, *counts[place + 1 :])
                if less[place] > 0 and self._first(less):
                    heapq.heappush(queue, (self.computing_s(less), next(numbers), less, place))

    @staticmethod
    def proportional(side: Counts) -> list[Counts]:
        """Numbers of nodes of a side's places, as they are to one another, from one node of each to all."""
        most = max(side)
        sizes = sorted({ceil(most * step / LISTED) for step in range(1, LISTED + 1)})
        return list(dict.fromkeys(tuple(ceil(nodes * size / most) for nodes in side) for size in sizes))

    def _first(self, counts: Counts) -> bool:
        """Whether it is the one of the parts alike that is counted."""
        return all(counts[i] >= counts[i + 1] for i in range(len(counts) - 1) if self.rows[i] == self.rows[i + 1])

    def part(self, counts: Counts) -> Part:
        """With its cluster and its bound."""
        counts = self._filling(counts)
        rest = [place.nodes - nodes for place, nodes in zip(self.places, counts, strict=True)]
        idle = [
            Idle(
                place.device or self.full.device,
                place.zone,
                nodes * place.devices_per_node,
                place.nodes * place.devices_per_node,
            )
            for place, nodes in zip(self.places, rest, strict=True)
            if nodes
        ]
        trimmed = any(nodes and more for nodes, more in zip(counts, rest, strict=True))
        return Part(self.cluster(counts), tuple(idle), trimmed, *self.times(counts))

    def _filling(self, counts: Counts) -> Counts:
        """The same part in places that its nodes fill, where there are such among those alike."""
        placed = list(counts)
        for row in dict.fromkeys(self.rows):
            members = [i for i, other in enumerate(self.rows) if other == row]
            sizes = Counter(counts[i] for i in members if counts[i])
            if sizes <= Counter(self.places[i].nodes for i in members):
                for i in members:
                    placed[i] = nodes if sizes[nodes := self.places[i].nodes] else 0
                    sizes[nodes] -= bool(placed[i])
        return tuple(placed)

    def cluster(self, counts: Counts) -> Cluster:
        """Of these nodes."""
        full = self.full
        used = [replace(place, nodes=nodes) for place, nodes in zip(self.places, counts, strict=True) if nodes]
        first, zones = used[0], [place.zone for place in used]
        if not full.groups:
            part = replace(full, nodes=first.nodes)
        elif len(used) == 1 and first.device and first.speed is None and not first.zone:
            sizes = {name: getattr(first, name) for name in ("devices_per_node", "intra", "inter", "memory", "device")}
            part = Cluster(first.nodes, **sizes, gpu_hour=full.gpu_hour)
        else:
            links = [link for link in full.zone_links if {*link.zones} <= {*zones}]
            part = Cluster.of_groups(used, "", full.gpu_hour, links)
        return replace(part, name=self._name(used, part.shape))

    def _name(self, used: Sequence[NodeGroup], shape: str) -> str:
        name, zones = self.full.name, dict.fromkeys(place.zone for place in used)
        sized = [SIZED.fullmatch(part) for part in name.split("+")]
        if all(sized):
            nodes = any(match[1] for match in sized if match)
            sizes = [f"{p.nodes}x{p.devices_per_node}" if nodes else f"{p.nodes * p.devices_per_node}" for p in used]
            return "+".join(f"{size}x{place.device}" for size, place in zip(sizes, used, strict=True))
        among = [place for place in self.places if place.zone in zones]
        named = f"{name} in {'+'.join(zones)}" if any(zones) else name
        return named if sum(p.nodes for p in used) == sum(p.nodes for p in among) else f"{named}: {shape}"

    # ---- how short a step on them can be

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Micro-batches that a sample's time is looked at with, the last one the largest."""
        batch, given = self.problem.global_batch, self.problem.fixed.get("micro_batch")
        return (given,) if given else (*(size for size in (1, 2, 4, 8, 16, 32) if size < batch), batch)

    @cached_property
    def layers_s(self) -> list[FloatArray]:
        """[k] of each place: device seconds of a sample in each layer, at least."""
        tp = self.problem.fixed.get("tp", 1)
        return [self._layers_s(self.devices[_node(place)], tp)[-1] for place in self.places]

    def _layers_s(self, device: Device, tp: int) -> FloatArray:
        """[sizes, k] device seconds of a sample in each layer, at least, however else they are divided."""
        problem, fixed, cp = self.problem, self.problem.fixed, self.problem.fixed.get("cp", 1)
        experts = (fixed["ep"],) if "ep" in fixed else divisors(problem.work.shape.experts or 1)
        shared = (fixed["sequence_parallel"],) if "sequence_parallel" in fixed else (False, True)[: 1 + (tp > 1)]
        named: dict[str, Any] = {name: getattr(problem, name) for name in ("precision", "dispatcher")}
        fastest, of_divided = max(max(place.intra, place.inter) for place in self.places), []
        for ep, sequence_parallel in product(experts, shared):
            node = Cluster(1, tp * cp * ep, fastest, fastest, self.full.memory)
            degrees: dict[str, Any] = {
                "etp": fixed.get("etp"),
                "tp": tp,
                "cp": cp,
                "ep": ep,
                "dp": ep,
                "sequence_parallel": sequence_parallel,
            }
            pricing = StrategyPricing(problem.work, node, device, problem.runtime)
            strategies = [Strategy(micro_batch=size, global_batch=size * ep, **degrees, **named) for size in self.sizes]
            pricing.layers[0].expect(strategies)
            for size, strategy in zip(self.sizes, strategies, strict=True):
                seconds = RankCosts(pricing, strategy).seconds[0][:, [*problem.recompute, 0]]
                of_divided.append(seconds.min(axis=1) * (tp * cp / size))
        return np.asarray(np.reshape(of_divided, (-1, len(self.sizes), len(problem.work.layers))).min(axis=0))

    @cached_property
    def device_s(self) -> float:
        """Device seconds of a step of the first place's kind, at least."""
        return self.problem.global_batch * float(self.layers_s[0][list(self.problem.work.order)].sum())

    @cached_property
    def speeds(self) -> list[float]:
        """Of a device of each place, over one of the first: of all layers the most."""
        used = sorted(set(self.problem.work.order))
        return [float((self.layers_s[0] / layer_s)[used].max()) for layer_s in self.layers_s]

    def _slower(self, tp: int) -> FloatArray:
        """[sizes] how many times as long a sample takes as at least, on the first kind."""
        if tp not in self._of_tensor:
            seconds = self._layers_s(self.devices[_node(self.places[0])], tp)[:, list(self.problem.work.order)]
            self._of_tensor[tp] = seconds.sum(axis=1) * (self.problem.global_batch / self.device_s)
        return self._of_tensor[tp]

    def computing_s(self, counts: Counts) -> float:
        """Seconds in which all devices of a part together compute a step, at least."""
        speeds = zip(self.places, counts, self.speeds, strict=True)
        return self.device_s / sum(place.devices_per_node * nodes * speed for place, nodes, speed in speeds)

    def times(self, counts: Counts) -> tuple[float, float]:
        """Seconds of a step of a part: at least, and about."""
        alike = len({speed for nodes, speed in zip(counts, self.speeds, strict=True) if nodes}) == 1
        devices = sum(nodes * place.devices_per_node for nodes, place in zip(counts, self.places, strict=True))
        key = devices, alike and len(set(self.problem.work.order[1:-1])) == 1
        if key not in self._of_devices:
            self._of_devices[key] = self._shares(self.cluster(counts), key[1])
        least, about = self._of_devices[key]
        computing_s = self.computing_s(counts)
        return least * computing_s, about * computing_s

    def _shares(self, cluster: Cluster, alike: bool) -> tuple[float, float]:
        """How many times as long a step takes as if the devices shared the work evenly: at least, and about."""
        problem, order = self.problem, self.problem.work.order
        blocks, batch = len(order) - 2, problem.global_batch
        of_block = float(self.layers_s[0][order[1]] / self.layers_s[0][list(order)].sum()) if alike else 0.0
        least = about = inf
        for degrees in Grid(replace(problem, cluster=cluster)).degree_sets():
            share = max(1.0, degrees.pp * ceil(blocks / degrees.pp) * of_block)
            waiting = (degrees.pp - 1) * degrees.dp * degrees.micro_batch / batch
            larger = bisect_left(self.sizes, degrees.micro_batch)
            slower = float(self._slower(degrees.tp)[larger])
            least, about = min(least, share * slower), min(about, share * slower * (1.0 + waiting))
        return least, about


def _node(group: NodeGroup) -> NodeGroup:
    return replace(group, nodes=1)


def _alike(cluster: Cluster, places: Sequence[NodeGroup], one: NodeGroup, other: NodeGroup) -> bool:
    """Whether the nodes of two places are alike, alone in their zones, and all others reach them over equal links."""
    zones = [place.zone for place in places]
    if replace(one, zone="") != replace(other, zone="") or zones.count(one.zone) + zones.count(other.zone) > 2:
        return False
    links = {frozenset(link.zones): (link.inter, link.latency_s) for link in cluster.zone_links}
    others = {*zones} - {one.zone, other.zone}
    return all(links[frozenset((one.zone, zone))] == links[frozenset((other.zone, zone))] for zone in others)
