"""The step of a plan by the formulas of Sailor's simulator, and the plan for which it is shortest.

A pipeline of S stages whose replicas take u_s for a micro-batch, and x_s to send and to receive, M micro-batches:

    step = (M-1) · max(u_s + x_s) + Σ(u_s + x_s) + the longest update + the longest all-reduce of gradients

Nothing overlaps; an all-reduce of n bytes goes in buckets of 500 MB, each 2(d-1) times a piece of 1/d of it. A device
holds 24 bytes a parameter, S - s micro-batches of activations, and 2 GB, with tensor parallelism 3.

The search has pipelines of one or two segments, of which each has one kind of device, or one in which all stages have
so many replicas of each kind. All stages have as many replicas. Over the same stages it is exact, with two segments
but for messages, which all take as long as the slowest (their judge prices what comes out).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from automap_models.core.instruction_graph import FloatArray

BUCKET_BYTES = 5e8
STATE_BYTES = 24.0
"""Of a parameter in fp32: weight, gradient, Adam's moments, and copies that DeepSpeed and messages hold."""
FLOAT = 4
MICRO_BATCHES = 1, 2, 4, 8


class Replicas(NamedTuple):
    """Equal replicas of a stage: the kind of device and its place, devices that share one, and how many there are."""

    kind: str
    tp: int
    copies: int


Team = tuple[Replicas, ...]
"""The devices of a stage."""


class Segment(NamedTuple):
    """Neighbouring stages on as many devices each, at most so many."""

    team: Team
    most: int


class Label(NamedTuple):
    """The last stages of a pipeline: where it would stand in the order of steps, and where they begin.

    Attributes:
        longest_s, total_s: of u + x, the longest and all.
        sync_s: the longest all-reduce.
        begins: the first layer of each stage, and the team's number.
    """

    longest_s: float
    total_s: float
    sync_s: float
    begins: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ClockedPlan:
    """A pipeline: samples of a micro-batch, and the layers and the devices of each stage."""

    micro_batch: int
    stages: tuple[tuple[range, Team], ...]
    step_s: float

    def dictionary(self) -> dict[str, Any]:
        """The plan as Sailor's simulator reads it, where kinds are A100-40_us-central1-a and the like."""
        teams: list[list[tuple[list[tuple[str, int, str]], int]]] = []
        used: dict[str, int] = {}
        for _, team in self.stages:
            teams.append([])
            for name, tp, copies in team:
                kind, zone = name.split("_")
                teams[-1] += [([(kind, tp, zone)], tp)] * copies
                used[kind] = used.get(kind, 0) + tp * copies
        layers = [list(stage) for stage, _ in self.stages]
        counts = {"num_stages": len(layers), "layers_per_stage": layers, "dp": [len(team) for team in teams]}
        pipeline = {**counts, "tmp_per_stage": teams}
        return {"pipeline_list": [pipeline], "mbs": self.micro_batch, "used_gpus": used}

    def described(self) -> dict[str, Any]:
        """The plan as Sailor's simulator writes it."""
        (pipeline,) = self.dictionary()["pipeline_list"]
        return {"mbs": self.micro_batch, "pipelines": [{**pipeline, "tmp_stages": pipeline["tmp_per_stage"]}]}


End = tuple[str, int]
"""A kind of device and its tensor parallelism."""


class Clock:
    """Numbers of Sailor's simulator for one model.

    Args:
        profiles: [kind][micro-batch][tp][layer] → seconds forward, backward, and of the update.
        sizes: [tp][layer] → floats of parameters and activations.
        links: (sender, receiver), each a kind and its tensor parallelism → coefficients of the bandwidth in GB/s over
            log2 of a message in MB; gradients go as with one device.
        memory: of a device of each kind, GiB.
        samples: of a step.
    """

    def __init__(
        self,
        profiles: Mapping[str, Any],
        sizes: Mapping[str, Any],
        links: Mapping[tuple[End, End], Sequence[float]],
        memory: Mapping[str, float],
        samples: int,
    ) -> None:
        self.profiles, self.sizes, self.links, self.memory, self.samples = profiles, sizes, links, memory, samples
        self.layers = len(sizes["1"])

    def size(self, tp: int, name: str) -> FloatArray:
        """[L] floats of layers on one of the devices that share them."""
        return np.array([self.sizes[str(tp)][str(layer)][name] for layer in range(self.layers)])

    def profiled(self, kind: str, micro_batch: int) -> list[int]:
        """Degrees of tensor parallelism in a node of 4 devices with times and sizes of the micro-batch."""
        times = self.profiles.get(kind, {}).get(str(micro_batch), {})
        return [tp for tp in (1, 2, 4) if str(tp) in times and str(tp) in self.sizes]

    @cache  # noqa: B019  # lives as long as the script
    def times(self, kind: str, micro_batch: int, tp: int) -> FloatArray:
        """[L, 3] seconds of layers: forward, backward, update."""
        return np.array(list(self.profiles[kind][str(micro_batch)][str(tp)].values()))

    def send_s(self, floats: FloatArray, ends: frozenset[End]) -> FloatArray:
        """[…] seconds of messages between the slowest of these ends."""
        sent = np.asarray(floats) * FLOAT
        rates = [np.polyval(self.links[a, b], np.log2(sent / 1e6)) for a, b in product(ends, repeat=2)]
        return np.asarray(sent / 1e9 / np.min(rates, axis=0))

    def sync_s(self, stage_bytes: FloatArray, replicas: int, ends: frozenset[End]) -> FloatArray:
        """[…] seconds of the all-reduce of gradients."""
        if replicas < 2:
            return np.zeros_like(stage_bytes)
        buckets, rest = np.divmod(stage_bytes, BUCKET_BYTES)
        pieces = np.maximum(rest, 1.0) / FLOAT / replicas
        full_s = self.send_s(np.array(BUCKET_BYTES / FLOAT / replicas), ends)
        rest_s = np.where(rest > 0, self.send_s(pieces, ends), 0.0)
        return np.asarray(2.0 * (replicas - 1) * (buckets * full_s + rest_s))


def between(values: FloatArray) -> FloatArray:
    """[L+1, L+1] sums of the layers i … j-1, 0 where j ≤ i."""
    ends = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(np.maximum(ends[None, :] - ends[:, None], 0.0))


class Stages:
    """What stages of one team may cost: [L+1, L+1] by their first layer and the first layer behind them."""

    def __init__(self, clock: Clock, team: Team, micro_batch: int, ends: frozenset[End]) -> None:
        members = [(clock.times(kind, micro_batch, tp), kind, tp) for kind, tp, _ in team]
        self.compute_s = np.max([between(times[:, 0] + times[:, 1]) for times, *_ in members], axis=0)
        self.update_s = max(float(times[:, 2].max()) for times, *_ in members)
        self.replicas = sum(replicas.copies for replicas in team)
        fewest = min(replicas.tp for replicas in team)
        weights = between(clock.size(1, "params_floats")) * FLOAT / fewest
        self.sync_s = clock.sync_s(weights, self.replicas, frozenset((kind, 1) for kind, *_ in team))
        self.send_s = clock.send_s(clock.size(1, "act_output_floats") * micro_batch, ends)
        self.state, self.activations, self.limits = zip(
            *(self._memory(clock, *m, micro_batch) for m in members), strict=True
        )

    @staticmethod
    def _memory(
        clock: Clock, _: FloatArray, kind: str, tp: int, micro_batch: int
    ) -> tuple[FloatArray, FloatArray, float]:
        state = between(clock.size(tp, "params_floats")) * STATE_BYTES
        activations = between(clock.size(tp, "act_mem_floats")) * FLOAT * micro_batch
        return state, activations, clock.memory[kind] * 2.0**30 - (2e9 if tp == 1 else 3e9)

    def fits(self, begin: int, end: int, in_flight: int) -> bool:
        """Whether a stage with so many micro-batches in flight has room on all its devices."""
        devices = zip(self.state, self.activations, self.limits, strict=True)
        return all(state[begin, end] + in_flight * saved[begin, end] <= limit for state, saved, limit in devices)

    def busy_s(self, begin: int, end: int, first: bool, last: bool, few: bool) -> float:
        """u + x of a stage; `few` stages count the first one's messages once."""
        if first and last:
            sent_s = 0.0
        elif last:
            sent_s = 2.0 * self.send_s[begin]
        elif first:
            sent_s = (1.0 if few else 2.0) * self.send_s[end - 1]
        else:
            sent_s = self.send_s[end - 1] + self.send_s[begin]
        return float(self.compute_s[begin, end] + sent_s)


class Search:
    """Over pipelines of given segments, from the last stage to the first; keeps what may be shorter than the best.

    Args:
        clock: numbers.
        micro_batch: samples.
        segments: from the first stages to the last ones.
    """

    def __init__(self, clock: Clock, micro_batch: int, segments: Sequence[Segment]) -> None:
        self.clock, self.micro_batch, self.segments = clock, micro_batch, segments
        ends = frozenset(replicas[:2] for segment in segments for replicas in segment.team)
        self.stages = [Stages(clock, segment.team, micro_batch, ends) for segment in segments]
        self.micro_batches = math.ceil(clock.samples / (micro_batch * self.stages[0].replicas))
        self.update_s = max(stages.update_s for stages in self.stages)

    @property
    def bound_s(self) -> float:
        """No pipeline of the segments has a shorter step: work shared out evenly, and the widest layer's gradients."""
        all_s = [float(stages.compute_s[0, -1]) for stages in self.stages]
        longest_s = 1.0 / sum(s.most / work_s for s, work_s in zip(self.segments, all_s, strict=True))
        sync_s = min(max(np.diagonal(stages.sync_s, 1)) for stages in self.stages)
        return float((self.micro_batches - 1) * longest_s + min(all_s) + sync_s + self.update_s)

    def step_s(self, label: Label) -> float:
        """Of a pipeline."""
        return (self.micro_batches - 1) * label.longest_s + label.total_s + label.sync_s + self.update_s

    def least_s(self, label: Label, begin: int, team: int, used: int) -> float:
        """No pipeline with these last stages has a shorter step, where the last `used` are of the team's segment."""
        works = [float(stages.compute_s[0, begin]) for stages in self.stages[: team + 1]]
        free = [segment.most for segment in self.segments[:team]] + [self.segments[team].most - used]
        speed = sum(most / work_s for most, work_s in zip(free, works, strict=True)) if begin else math.inf
        longest_s = max(label.longest_s, 1.0 / speed) if speed else math.inf
        return self.step_s(label._replace(longest_s=longest_s, total_s=label.total_s + min(works)))

    def best(self, limit_s: float) -> ClockedPlan | None:
        """The shortest plan with a step below the limit, if one fits."""
        layers, best = self.clock.layers, None
        fronts: dict[tuple[int, int, int], list[Label]] = {
            (len(self.segments) - 1, 0, layers): [Label(0.0, 0.0, 0.0, ())]
        }
        for team, stages in reversed(list(enumerate(self.stages))):
            for count in range(self.segments[team].most):
                for (_, used, end), labels in [item for item in fronts.items() if item[0][:2] == (team, count)]:
                    for label, begin in product(labels, range(end)):
                        behind = len(label.begins)
                        if not stages.fits(begin, end, behind + 1):
                            continue
                        longer = self._longer(label, team, begin, end)
                        if self.least_s(longer, begin, team, count + 1) >= limit_s:
                            continue
                        if begin == 0:
                            limit_s, best = self.step_s(longer), longer
                        else:
                            keep(fronts.setdefault((team, used + 1, begin), []), longer)
            for (segment, _, end), labels in list(fronts.items()):
                if segment == team and team:
                    for label in labels:
                        keep(fronts.setdefault((team - 1, 0, end), []), label)
        return None if best is None else self._plan(best)

    def _longer(self, label: Label, team: int, begin: int, end: int) -> Label:
        """With a stage before those of a label."""
        behind, stages = len(label.begins), self.stages[team]
        busy_s = stages.busy_s(begin, end, begin == 0, behind == 0, behind <= 2)
        sync_s = max(label.sync_s, float(stages.sync_s[begin, end]))
        begins = ((begin, team), *label.begins)
        return Label(max(label.longest_s, busy_s), label.total_s + busy_s, sync_s, begins)

    def _plan(self, label: Label) -> ClockedPlan:
        ends = [*(begin for begin, _ in label.begins[1:]), self.clock.layers]
        teams = self.segments
        stages = ((range(begin, end), teams[t].team) for (begin, t), end in zip(label.begins, ends, strict=True))
        return ClockedPlan(self.micro_batch, tuple(stages), self.step_s(label))


def keep(front: list[Label], label: Label) -> None:
    """Add a label to those of which none is worse than another in every respect and has as many stages."""
    alike = [other for other in front if len(other.begins) == len(label.begins)]
    if any(all(a <= b for a, b in zip(other[:3], label[:3], strict=True)) for other in alike):
        return
    front[:] = [
        other
        for other in front
        if len(other.begins) != len(label.begins) or any(a < b for a, b in zip(other[:3], label[:3], strict=True))
    ]
    front.append(label)


def searches(clock: Clock, devices: Mapping[str, int]) -> Iterator[Search]:
    """All searches on the devices of a cluster."""
    for micro_batch in MICRO_BATCHES:
        units = {kind: clock.profiled(kind, micro_batch) for kind in devices}
        for kind, tps in units.items():
            for tp in tps:
                for dp in degrees(devices[kind] // tp, clock.layers):
                    yield Search(clock, micro_batch, [Segment((Replicas(kind, tp, dp),), devices[kind] // (tp * dp))])
        if len(devices) == 2:
            yield from mixed(clock, micro_batch, devices, units)


def degrees(units: int, layers: int) -> list[int]:
    """Degrees of data parallelism that leave none, or few, of so many units idle, and powers of 2."""
    powers = {1 << power for power in range(units.bit_length())}
    return sorted(powers | {units // stages for stages in range(1, min(units, layers) + 1)})


def mixed(
    clock: Clock, micro_batch: int, devices: Mapping[str, int], units: Mapping[str, Sequence[int]]
) -> Iterator[Search]:
    """Searches with two kinds of devices: beside one another in every stage, or one before the other."""
    (a, b), layers = devices, clock.layers
    for tp_a, tp_b in product(units[a], units[b]):
        free = devices[a] // tp_a, devices[b] // tp_b
        for stages in range(1, min(*free, layers) + 1):
            team = Replicas(a, tp_a, free[0] // stages), Replicas(b, tp_b, free[1] // stages)
            yield Search(clock, micro_batch, [Segment(team, stages)])
        for dp in degrees(min(free), layers):
            one, two = (
                Segment((Replicas(k, tp, dp),), f // dp) for k, tp, f in ((a, tp_a, free[0]), (b, tp_b, free[1]))
            )
            yield from (Search(clock, micro_batch, pair) for pair in ([one, two], [two, one]))


def shortest(clock: Clock, devices: Mapping[str, int]) -> Iterator[ClockedPlan]:
    """The plan of the shortest step on a cluster; none where none fits."""
    best: ClockedPlan | None = None
    bounded = sorted((search.bound_s, number, search) for number, search in enumerate(searches(clock, devices)))
    for bound_s, _, search in bounded:
        if best is not None and bound_s >= best.step_s:
            break
        best = search.best(math.inf if best is None else best.step_s) or best
    if best is not None:
        yield best
