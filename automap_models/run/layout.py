"""Who holds what when a plan runs: processes of stages, samples of replicas, slices that neighbours exchange.

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

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from automap_models.core.passes import Schedule
from automap_models.core.written_plan import WrittenPlan
from automap_models.errors import BadInput
from automap_models.run.base import processes_of


@dataclass(frozen=True)
class Overlap:
    """Samples that a replica of a stage and one of the next stage both have: `begin` … `end`-1 of the micro-batch."""

    sender: int
    receiver: int
    begin: int
    end: int


@dataclass(frozen=True)
class Layout:
    """Where the stages of a plan run.

    Attributes:
        schedule: the order of passes of each rank.
        processes: [S] processes of each stage, one a replica; stages of one rank have the same.
        samples: N of a micro-batch.
        where: the plan, in messages.

    Raises:
        BadInput: a stage has more replicas than a micro-batch has samples.
    """

    schedule: Schedule
    processes: tuple[tuple[int, ...], ...]
    samples: int
    where: str = "the plan"

    def __post_init__(self) -> None:
        for s, replicas in enumerate(self.processes):
            if len(replicas) > self.samples:
                what = f"the {self.samples} sample(s) of a micro-batch do not give each of {len(replicas)} replicas one"
                do = "plan with larger micro-batches, or for fewer devices"
                raise BadInput(f"stage {s}: {what}", where=self.where, do=do)

    @property
    def stages(self) -> int:
        """S."""
        return len(self.processes)

    @property
    def world(self) -> int:
        """Number of processes."""
        return 1 + max(process for replicas in self.processes for process in replicas)

    @property
    def is_even(self) -> bool:
        """Whether all stages have equally many replicas, and these equally many samples."""
        counts = {len(replicas) for replicas in self.processes}
        return len(counts) == 1 and self.samples % counts.pop() == 0

    def held(self, process: int) -> tuple[int, ...]:
        """The stages that a process works on."""
        return tuple(s for s, replicas in enumerate(self.processes) if process in replicas)

    def replica(self, process: int) -> int:
        """Which replica of its stages a process is."""
        return self.processes[self.held(process)[0]].index(process)

    def part(self, stage: int, replica: int) -> tuple[int, int]:
        """First sample of a replica, and the one after its last."""
        return parts(self.samples, len(self.processes[stage]))[replica]

    def part_sizes(self) -> tuple[int, ...]:
        """Numbers of samples that some replica has, ascending."""
        sizes = {end - begin for replicas in self.processes for begin, end in parts(self.samples, len(replicas))}
        return tuple(sorted(sizes))

    @cached_property
    def overlaps(self) -> tuple[tuple[Overlap, ...], ...]:
        """[S-1] what crosses each boundary."""
        counts = [len(replicas) for replicas in self.processes]
        return tuple(tuple(overlaps(self.samples, *ends)) for ends in pairwise(counts))


def run_layout(plan: WrittenPlan, schedule: Schedule, samples: int) -> Layout:
    """The layout of a plan for micro-batches of that many samples.

    Raises:
        BadInput: a stage shares its operators among devices, or has more replicas than there are samples.
    """
    for s, stage in enumerate(plan.stages):
        if stage.tensor > 1:
            what = f"stage {s} shares its operators among {stage.tensor} devices, which torch's stages do not"
            raise BadInput(what, where=plan.where, do="run it with `backend=jax`, or plan pipelines only")
    return Layout(schedule, processes_of(plan, schedule), samples, plan.where)


def parts(samples: int, replicas: int) -> list[tuple[int, int]]:
    """[d] first sample of each replica and the one after its last."""
    size, larger = divmod(samples, replicas)
    begins = [replica * size + min(replica, larger) for replica in range(replicas + 1)]
    return list(pairwise(begins))


def overlaps(samples: int, senders: int, receivers: int) -> Iterator[Overlap]:
    """What replicas of two neighbouring stages have in common, in the order of the samples."""
    for receiver, (first, stop) in enumerate(parts(samples, receivers)):
        for sender, (begin, end) in enumerate(parts(samples, senders)):
            if max(begin, first) < min(end, stop):
                yield Overlap(sender, receiver, max(begin, first), min(end, stop))
