"""Who holds what when a plan runs: devices of stages, samples of replicas, slices that neighbours exchange.

A stage with d replicas splits a micro-batch's N samples into d neighbouring parts, the first ones one larger where d
does not divide N. Neighbouring stages exchange the parts that overlap, as DAPPLE does (2007.01045, section 5):

    samples          0  1  2  3  4  5
    1 replica        [───────0───────]
                       │     │     │         three messages, of two samples each
    3 replicas       [─0─][─1─][─2──]
                       │  │  │     │         four messages: samples 0-1, 2, 3, 4-5
    2 replicas       [──0───][──1────]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

from automap_models.core.passes import Schedule, build_schedule
from automap_models.core.plan import Plan
from automap_models.errors import BadInput

DATA, MODEL = "data", "model"
"""Axes of a stage's mesh: replicas that each take samples of a micro-batch, and devices that share operators."""


@dataclass(frozen=True)
class Overlap:
    """Samples that a replica of a stage and one of the next stage both have: `begin` … `end`-1 of the micro-batch."""

    sender: int
    receiver: int
    begin: int
    end: int


@dataclass(frozen=True)
class StageLayout:
    """Where a stage runs.

    Attributes:
        devices: positions of its d·t devices, numbered along `model` first.
        data: replicas d, which share the samples of a micro-batch.
        model: devices t of a replica, which share operators.
        dims: along `model`, the dimension of each variable that is partitioned; others are replicated.
        data_dims: along `data` likewise; None for the samples of every input, which replicas of a stage share.
    """

    devices: tuple[int, ...]
    data: int = 1
    model: int = 1
    dims: Mapping[str, int] = field(default_factory=dict)
    data_dims: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if len(self.devices) != self.data * self.model:
            what = f"{self.data} replicas of {self.model} devices each on {len(self.devices)} devices"
            raise BadInput(what, where="a stage", do="give each stage as many devices as its replicas have")


@dataclass(frozen=True)
class Layout:
    """Where the stages of a plan run; on torch every device has a process.

    Attributes:
        schedule: the order of passes of each rank; its virtual stages are the stages.
        stages: [S] where each runs; stages of one rank have the same devices.
        cuts: [S-1] last forward instruction of each stage but the last, where who runs them cuts by these.
        samples: N of a micro-batch; 0 where who runs them does not split these.
        where: the plan, in messages.

    Raises:
        BadInput: a stage has more replicas than a micro-batch has samples.
    """

    schedule: Schedule
    stages: tuple[StageLayout, ...]
    cuts: tuple[int, ...] = ()
    samples: int = 0
    where: str = "the plan"

    def __post_init__(self) -> None:
        for s, stage in enumerate(self.stages):
            if 0 < self.samples < stage.data:
                what = f"the {self.samples} sample(s) of a micro-batch do not give each of {stage.data} replicas one"
                do = "plan with larger micro-batches, or for fewer devices"
                raise BadInput(f"stage {s}: {what}", where=self.where, do=do)

    @cached_property
    def processes(self) -> tuple[tuple[int, ...], ...]:
        """[S] processes of each stage, one a device."""
        return tuple(stage.devices for stage in self.stages)

    @property
    def devices(self) -> int:
        """How many devices there have to be."""
        return 1 + max(max(processes) for processes in self.processes)

    @cached_property
    def parts(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """[S][d] first sample of each replica of each stage, and the one after its last."""
        return tuple(tuple(parts(self.samples, stage.data)) for stage in self.stages)

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """Numbers of samples that some replica has, ascending."""
        return tuple(sorted({end - begin for replicas in self.parts for begin, end in replicas}))

    @property
    def is_even(self) -> bool:
        """Whether all stages have equally many replicas, and these equally many samples."""
        return len({len(replicas) for replicas in self.parts}) == len(self.part_sizes) == 1

    @cached_property
    def overlaps(self) -> tuple[tuple[Overlap, ...], ...]:
        """[S-1] what crosses each boundary."""
        return tuple(tuple(overlaps(*ends)) for ends in pairwise(self.parts))

    def stages_of(self, process: int) -> tuple[int, ...]:
        """The stages that a process works on."""
        return tuple(s for s, processes in enumerate(self.processes) if process in processes)

    def replica(self, process: int) -> int:
        """Which replica of its stages a process is, where these do not share operators."""
        return self.processes[self.stages_of(process)[0]].index(process)


def layout_of(plan: Plan, schedule: Schedule) -> Layout:
    """The layout of a plan whose stages run in a schedule's order, on the devices of its ranks, one rank after another.

    Raises:
        BadInput: a stage has a sharding that the plan does not describe.
    """
    data_dims = None if plan.sharding is None else plan.sharding.partitioned_dims("data")
    ends = [0, *accumulate(plan.stages[rank].device_count for rank in range(schedule.ranks))]
    devices = [tuple(range(ends[rank], ends[rank + 1])) for rank in schedule.rank_of]
    stages = tuple(
        StageLayout(positions, stage.replicas, stage.tensor, plan.sharded_dims(stage), data_dims)
        for stage, positions in zip(plan.stages, devices, strict=True)
    )
    return Layout(schedule, stages, tuple(stage.last for stage in plan.stages[:-1]), where=plan.where)


def sampled_layout(plan: Plan, schedule: Schedule, samples: int) -> Layout:
    """The layout of a plan whose stages' replicas split the samples of a micro-batch.

    Raises:
        BadInput: a stage shares its operators among devices, or has more replicas than there are samples.
    """
    for s, stage in enumerate(plan.stages):
        if stage.tensor > 1:
            what = f"stage {s} shares its operators among {stage.tensor} devices, which torch's stages do not"
            raise BadInput(what, where=plan.where, do="run it with `backend=jax`, or plan pipelines only")
    return replace(layout_of(plan, schedule), samples=samples)


def on_one_device(micro_batches: int) -> Layout:
    """One stage on one device, which runs micro-batch after micro-batch: what every plan has to agree with."""
    return Layout(build_schedule(None, 1, micro_batches), (StageLayout((0,)),))


def parts(samples: int, replicas: int) -> list[tuple[int, int]]:
    """[d] first sample of each replica and the one after its last."""
    size, larger = divmod(samples, replicas)
    begins = [replica * size + min(replica, larger) for replica in range(replicas + 1)]
    return list(pairwise(begins))


def overlaps(senders: Sequence[tuple[int, int]], receivers: Sequence[tuple[int, int]]) -> Iterator[Overlap]:
    """What replicas of two neighbouring stages with these parts have in common, in the order of the samples."""
    for receiver, (first, stop) in enumerate(receivers):
        for sender, (begin, end) in enumerate(senders):
            if max(begin, first) < min(end, stop):
                yield Overlap(sender, receiver, max(begin, first), min(end, stop))
