"""The price of a strategy: its stages' costs (cost.stage_costs), played in the order of its schedule.

    rank 0   F F F F . . . . . I I I I | gradients | update
    rank 1   . F F F F . . I I I I     | gradients |
             └──────── simulate.rounds ──────────┘

The step ends when the last rank has run its passes and its gradients are summed, and all have updated their weights.
With ZB-H2 ranks do not wait for one another there (WITHOUT_WAITING).

On a mixed cluster a virtual stage takes as long as on the slowest of its devices, with the links that these have to the
others of their groups (cost.process_groups).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain, groupby, pairwise
from operator import attrgetter
from types import MappingProxyType

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate, StepParts
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_costs import LayerCosting
from automap_models.cost.layer_times import model_flop
from automap_models.cost.process_groups import sites_of
from automap_models.cost.profile_layers import ProfileCosting, ProfileWork
from automap_models.cost.runtime import DEFAULT_RUNTIME, DISPATCHER_DEVICES, Runtime
from automap_models.cost.stage_costs import StageCosting, StageCosts, StageTimes
from automap_models.cost.strategy import host_of
from automap_models.errors import BadInput
from automap_models.simulate.rounds import PassTimes, rank_ends

WITHOUT_WAITING = frozenset({"zb-h2"})
"""Schedules whose ranks begin their next step when they have updated their own weights, and check afterwards that no
gradient was infinite (arXiv 2401.10241, section 4). A rank then repeats what it does from its first pass to its last
one, and the longest of these times is the step's. ZB-H2 runs in the paper's framework only; torch has ZB-H1 and ZB-V,
too, and lets ranks wait."""


MOST_KEPT = 20_000
"""Prices and costs that are at hand: enough for any search."""
_UNIFORM = attrgetter(*({costing.name for costing in fields(Strategy)} - {"layers", "recompute", "recompute_blocks"}))
"""What a strategy has in common with all that differ from it only in cuts and recomputation."""


Memory = tuple[FloatArray, FloatArray]
"""[S] bytes on a device of each rank, and [S] what that may hold; nothing where hosts do not hold what they have to."""
ShortPrice = tuple[float, FloatArray, FloatArray]
"""What searches compare: seconds of the step, and its Memory."""


OfRanks = Sequence[Sequence[StageCosting]]
"""[pp] costs on each kind of device that a rank has; those of ranks alike are the same."""


class StrategyPricing:
    """Prices of many strategies of one model on one cluster; what they have in common is computed once.

    Args:
        work: of the model, see core.model_work.
        cluster: on what.
        device: of the cluster, see core.device.
        runtime: how the framework runs strategies.
        kinds: devices by the names that the groups of a mixed cluster have for them.
        like: costs of the model's layers on devices of other clusters, run the same, which need not be timed again.

    Attributes:
        devices: of each group of nodes.
        layers: costs of layers on each of these, those of equal devices the same.

    Raises:
        BadInput: a device is not among the kinds.
    """

    def __init__(
        self,
        work: ModelWork,
        cluster: Cluster,
        device: Device,
        runtime: Runtime = DEFAULT_RUNTIME,
        kinds: Mapping[str, Device] = MappingProxyType({}),
        like: Iterable[LayerCosting] = (),
    ) -> None:
        self.work, self.cluster, self.runtime = work, cluster, runtime
        self.devices = _devices(cluster, device, kinds)
        others = [] if isinstance(work, ProfileWork) else list(like)
        self.layers: list[LayerCosting] = []
        for kind in self.devices:
            same = (layers for layers in self.layers if layers.device == kind)
            elsewhere = (layers.on(cluster) for layers in others if layers.device == kind)
            self.layers.append(next(chain(same, elsewhere), None) or _layers(work, cluster, kind, runtime))
        self._stages: dict[object, OfRanks] = {}
        self._prices: dict[Strategy, ShortPrice] = {}
        counted = [(layer, work.order.count(i)) for i, layer in enumerate(work.layers)]
        counted += [(part.layer, part.copies) for part in work.tower]
        forwards = 1 + work.training.has_reference
        self.flop = sum(count * model_flop(layer.kernels, forwards) for layer, count in counted)

    def costs(self, strategy: Strategy) -> StageCosts:
        """The costs of a strategy's stages, of each rank on its slowest devices."""
        return _slowest(self.stages(strategy), strategy)

    def memory(self, strategy: Strategy) -> Memory:
        """What devices hold, and may hold."""
        return _memory(strategy, self.costs(strategy), self.cluster)

    def price(self, strategy: Strategy) -> ShortPrice:
        """What searches compare, of each strategy worked out once."""
        if strategy not in self._prices:
            costs = self.costs(strategy)
            if len(self._prices) > MOST_KEPT:
                self._prices.clear()
            self._prices[strategy] = step_seconds(strategy, costs), *_memory(strategy, costs, self.cluster)
        return self._prices[strategy]

    def stages(self, strategy: Strategy, like: OfRanks = ()) -> OfRanks:
        """What prices a strategy and all that differ from it only in cuts and recomputation.

        Args:
            like: the same of one that differs from it in schedule and virtual stages, too, if that is at hand.
        """
        uniform = _UNIFORM(strategy)
        if uniform not in self._stages:
            if len(self._stages) > MOST_KEPT:
                self._stages.clear()
            if like:
                other = {costing: costing.run_by(strategy) for costing in dict.fromkeys(chain(*like))}
                self._stages[uniform] = [[other[costing] for costing in of_rank] for of_rank in like]
            else:
                self._stages[uniform] = self._costings(strategy)
        return self._stages[uniform]

    def _costings(self, strategy: Strategy) -> OfRanks:
        """Of each rank one for each kind of device and links."""
        costings: dict[object, StageCosting] = {}
        of_ranks: list[list[StageCosting]] = []
        for sites, ranks in groupby(sites_of(strategy, self.cluster)):
            of_sites = []
            for site in sites:
                layers = self.layers[site.group]
                key = layers, layers.groups(strategy, site)
                if key not in costings:
                    costings[key] = StageCosting(layers, strategy, site)
                of_sites.append(costings[key])
            of_ranks += [list(dict.fromkeys(of_sites))] * len(list(ranks))
        return of_ranks

    def estimate(self, strategy: Strategy) -> Estimate:
        """The price of a strategy.

        Raises:
            BadInput: it divides the model or the cluster otherwise than these can be divided, or a device has no peak
                for its precision.
        """
        strategy.require_cluster(self.cluster)
        strategy.require_model(self.work.shape)
        costs = self.costs(strategy)
        rank, parts, reduced_s = _parts(strategy, costs)
        step_s = parts.total
        tokens = strategy.global_batch * self.work.shape.sequence
        groups = groups_of_ranks(strategy, self.cluster).ravel()
        counts = np.bincount(groups, minlength=len(self.devices)).tolist()
        peak = sum(
            count * kind.matrix_peak(strategy.product_dtype) for count, kind in zip(counts, self.devices, strict=True)
        )
        passes_s = step_s - parts.data_parallel - parts.optimizer
        (forward, inputs, weights), beside = _passes(costs)
        return Estimate(
            strategy=strategy,
            stage_layers=strategy.stage_layers(self.work.shape),
            model=self.work.shape.name,
            cluster=self.cluster.name,
            device=", ".join(dict.fromkeys(kind.name for kind in self.devices)),
            step_s=step_s,
            tokens_per_s_per_device=tokens / step_s / strategy.devices,
            mfu=strategy.global_batch * self.flop / (step_s * peak),
            parts=parts,
            parts_rank=rank,
            bubble_rate=(parts.bubble + parts.transfers) / passes_s,
            memory=costs.memory,
            memory_bytes=tuple(rank_memory(strategy, self.cluster).tolist()),
            facts=self.work.facts,
            passes_s=tuple(tuple(costing.tolist()) for costing in (forward, inputs + weights, weights)),
            transfers_s=tuple(beside.tolist()),
            reduced_s=tuple((reduced_s + costs.tied_s).tolist()),
            host=costs.host,
            runtime=self.runtime.name,
            reserve=self.runtime.reserve,
            imbalance=self.runtime.imbalance if strategy.ep > 1 else 1.0,
            unfitted=tuple(dict.fromkeys(kind.name for kind in self.devices if kind.step is None)),
        )


def rank_memory(strategy: Strategy, cluster: Cluster) -> FloatArray:
    """[pp] bytes of the smallest device of each rank."""
    if not cluster.groups:
        return np.full(strategy.pp, cluster.memory, np.float64)
    return np.asarray(cluster.device_memory.reshape(strategy.pp, -1).min(axis=1))


def _memory(strategy: Strategy, costs: StageCosts, cluster: Cluster) -> Memory:
    nbytes = np.array([memory.total for memory in costs.memory])
    return nbytes, rank_memory(strategy, cluster) * (costs.host[0] <= costs.host[1])


def step_seconds(strategy: Strategy, costs: StageCosts) -> float:
    """Seconds of the step, and nothing else about it; see `StrategyPricing.costs`."""
    ends = _ends(strategy, costs)
    return float(_summed(strategy, costs, ends).max()) + costs.tied_s + costs.optimizer_s


def _devices(cluster: Cluster, device: Device, kinds: Mapping[str, Device]) -> list[Device]:
    """Of each group of nodes; of one that names no kind, the device, as much faster as the group says."""
    devices = []
    for group in cluster.node_groups:
        if group.device and group.device not in kinds and group.speed is None:
            what, do = f"its kind {group.device} is not among the devices", f"give {group.device}"
            raise BadInput(what, where=f"cluster {cluster.name}", do=do)
        kind = kinds.get(group.device)
        devices.append(kind if kind is not None else _scaled(device, 1.0 if group.speed is None else group.speed))
    return devices


def _layers(work: ModelWork, cluster: Cluster, device: Device, runtime: Runtime) -> LayerCosting:
    if isinstance(work, ProfileWork):
        return ProfileCosting(work, cluster, device, runtime)
    return LayerCosting(work, cluster, device, runtime)


def _scaled(device: Device, speed: float) -> Device:
    """A device that takes 1 / speed of the time for everything."""
    if speed == 1.0:
        return device
    matrix = {dtype: speed * rate for dtype, rate in device.matrix.items()}
    step = replace(device.constants, launch_s=device.constants.launch_s / speed)
    return replace(device, matrix=matrix, bandwidth=speed * device.bandwidth, step=step)


def groups_of_ranks(strategy: Strategy, cluster: Cluster) -> IntArray:
    """[pp, devices of a rank] the group of nodes that each device is in."""
    sizes = [group.nodes * group.devices_per_node for group in cluster.node_groups]
    return np.repeat(np.arange(len(sizes)), sizes).reshape(strategy.pp, -1)


def transfers_s(costings: OfRanks, seconds: Mapping[StageCosting, Sequence[float]]) -> FloatArray:
    """[V-1] seconds of messages between virtual stages: of each the longest by any device of its two ends.

    Args:
        costings: [pp] on the kinds of devices of each rank.
        seconds: [V-1] of the messages by each of these.
    """
    ends = enumerate(pairwise(costings[0][0].rank_of))
    return np.array([max(seconds[costing][i] for costing in (*costings[a], *costings[b])) for i, (a, b) in ends])


def _slowest(costings: OfRanks, strategy: Strategy) -> StageCosts:
    """The costs of each rank on the kind of its devices that is slowest."""
    one, *others = dict.fromkeys(chain(*costings))
    first = one.costs(strategy)
    if not others:
        return first
    costs = {one: first} | {costing: costing.costs(strategy, first.memory) for costing in others}
    rank_of = np.array(first.rank_of)
    passes = {costing: np.bincount(rank_of, sum(stage.times.passes), strategy.pp) for costing, stage in costs.items()}
    chosen = [costs[max(kinds, key=lambda kind: passes[kind][rank])] for rank, kinds in enumerate(costings)]
    columns = zip(*(of_rank.times for of_rank in chosen), strict=True)
    stages = np.arange(rank_of.size)
    times = StageTimes(*(np.stack(column)[rank_of, ..., stages].T for column in columns))
    data_s = np.array([of_rank.data_s[rank] for rank, of_rank in enumerate(chosen)])
    transfers = transfers_s(costings, {costing: stage.transfer_s.tolist() for costing, stage in costs.items()})
    slowest = {name: max(getattr(of_kind, name) for of_kind in costs.values()) for name in ("tied_s", "optimizer_s")}
    host = max((of_kind.host for of_kind in costs.values()), key=lambda nbytes: nbytes[0] - nbytes[1])
    return replace(first, times=times, transfer_s=transfers, data_s=data_s, host=host, **slowest)


def require_device(device: Device, strategy: Strategy) -> None:
    """Refuse a device that a strategy cannot be priced on.

    Raises:
        BadInput: it has no peak for the precision, or what sends tokens to experts does not run on it; see `host_of`.
    """
    for dtype in dict.fromkeys((strategy.dtype, strategy.product_dtype)):
        device.matrix_peak(dtype)
    host_of(device, strategy)
    kinds = DISPATCHER_DEVICES.get(strategy.dispatcher or "alltoall")
    if kinds is not None and device.name not in kinds:
        what = f"{strategy.dispatcher} does not run on {device.name}"
        raise BadInput(what, where="`dispatcher`", do=f"take alltoall, or one of {', '.join(sorted(kinds))}")


def _parts(strategy: Strategy, costs: StageCosts) -> tuple[int, StepParts, FloatArray]:
    """The rank that works longest, which the others wait for, and what the step consists of there; and [S] seconds that
    ranks sum their gradients for."""
    times, sends = costs.times, _sends(costs)
    rank_of = np.array(costs.rank_of)
    ends = _ends(strategy, costs)
    summed = _summed(strategy, costs, ends)
    data_s, end_s = summed - ends, float(summed.max())
    work_s = np.bincount(rank_of, sum((*times.passes, *sends)), minlength=strategy.pp)
    rank = int(np.argmax(strategy.micro_batches * work_s + data_s))
    on_rank = np.flatnonzero(rank_of == rank)

    def spent(amounts: FloatArray) -> float:
        return strategy.micro_batches * float(amounts[..., on_rank].sum())

    idle = end_s - float(data_s[rank]) - spent(np.array(times.passes)) - spent(sends)
    waiting = 0.0
    if costs.sends_beside and costs.transfer_s.any():
        unsent = replace(costs, transfer_s=np.zeros_like(costs.transfer_s))
        sooner = _ends(strategy, unsent)
        waiting = min(max(idle, 0.0), end_s - float(_summed(strategy, unsent, sooner).max()))
    bubble = idle - waiting
    parts = StepParts(
        compute=spent(times.forward + times.input + times.weight),
        recompute=spent(times.recompute),
        tensor_parallel=spent(times.tensor),
        context_parallel=spent(times.context),
        expert_parallel=spent(times.experts),
        bubble=bubble if bubble > 1e-9 * end_s else 0.0,  # less is what sums of floats leave
        transfers=spent(sends) + waiting,
        data_parallel=spent(times.gathers) + float(data_s[rank]) + costs.tied_s,
        optimizer=costs.optimizer_s,
    )
    return rank, parts, data_s


def _summed(strategy: Strategy, costs: StageCosts, ends: FloatArray) -> FloatArray:
    """[S] when ranks, whose passes end then, have summed their gradients.

    ZeRO-3 moves half as many bytes again as ZeRO-1, though beside other passes: no rank is done sooner than with that.
    """
    if strategy.zero < 3:
        return ends + costs.data_s
    ungathered = costs.times._replace(gathers=np.zeros_like(costs.times.gathers))
    others = _ends(strategy, replace(costs, times=ungathered))
    return np.maximum(ends, others + costs.data_s)


def _sends(costs: StageCosts) -> FloatArray:
    """[2, V] seconds in which a virtual stage does nothing but send, forward and backward."""
    sends = np.zeros((2, len(costs.rank_of)))
    if not costs.sends_beside:
        sends[0, :-1] = sends[1, 1:] = costs.transfer_s
    return sends


def _passes(costs: StageCosts) -> tuple[tuple[FloatArray, FloatArray, FloatArray], FloatArray]:
    """[V] forward passes, those of inputs and of weights, with messages that ranks wait for; [V-1] other messages."""
    forward, inputs, weights = costs.times.passes
    sends = _sends(costs)
    beside = costs.transfer_s if costs.sends_beside else 0.0 * costs.transfer_s
    return (forward + sends[0], inputs + sends[1], weights), beside


def _ends(strategy: Strategy, costs: StageCosts) -> FloatArray:
    """[S] how long ranks take for their passes: until their end, with schedules of WITHOUT_WAITING from their start."""
    passes, beside = _passes(costs)
    if strategy.stages == 1:
        return np.array([strategy.micro_batches * float(sum(costing[0] for costing in passes))])
    ends = rank_ends(strategy.schedule, strategy.micro_batches, strategy.vp, PassTimes(*passes, beside))
    if strategy.schedule not in WITHOUT_WAITING:
        return ends
    arrivals = np.cumsum((passes[0][:-1] + beside)[: strategy.pp - 1])
    return np.asarray(ends - np.concatenate([[0.0], arrivals]))
