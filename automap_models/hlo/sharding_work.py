"""A module's work by classes of dimensions: what its instructions take, which results are summed, what is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from automap_models.core.device import Device
from automap_models.core.instruction_graph import FloatArray, InstructionGraph
from automap_models.core.sharding_classes import MergedSums, ShardingWork
from automap_models.hlo.clock import clock_times
from automap_models.hlo.module import Module
from automap_models.hlo.sharding_classes import ModuleSharding
from automap_models.hlo.step_classes import Classes, Merge, StepClasses, Sum


class StepTimes(NamedTuple):
    """Time of each of n instructions on one device, float64 [n] each, seconds.

    Attributes:
        work_s: what partitioning divides.
        launch_s: launches of kernels, which nothing divides.
    """

    work_s: FloatArray
    launch_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """[n] both."""
        return self.work_s + self.launch_s

    def in_microbatch(self, graph: InstructionGraph) -> StepTimes:
        """The same without the update of this graph, which runs once for a global batch."""
        return StepTimes(*(np.where(graph.in_microbatch, times_s, 0.0) for times_s in self))


def step_times(graph: InstructionGraph, device: Device, times_s: ArrayLike | None = None) -> StepTimes:
    """The times of a graph's instructions, by the clock of a device if they are not given.

    Args:
        times_s: [n] whole times; of those, launches are what they are by the clock.

    Raises:
        BadInput: the device has no rate for a matrix product's element type.
    """
    clock_s = clock_times(graph, device)
    given_s = clock_s if times_s is None else np.asarray(times_s, dtype=np.float64)
    launch_s = np.minimum(np.where(clock_s > 0, device.constants.launch_s, 0.0), given_s)
    return StepTimes(given_s - launch_s, launch_s)


def sharding_work(
    module: Module, sharding: ModuleSharding, graph: InstructionGraph, device: Device, *, reassociated: bool = True
) -> ShardingWork:
    """The work of a training step on a device, by the roofline.

    Args:
        graph: of the module.
        device: of which the cluster is made.
        reassociated: whether what is added is summed once, as XLA does for accelerators (see StepClasses.sums).

    Raises:
        BadInput: the device has no rate for a matrix product's element type.
    """
    return work_of(StepClasses(module, sharding, graph), step_times(graph, device), reassociated=reassociated)


def work_of(step: StepClasses, times: StepTimes, *, reassociated: bool = True) -> ShardingWork:
    """The work of a step whose instructions take these times."""
    k = len(step.sharding.classes)
    held, sums = list(_held(step)), step.sums if reassociated else step.separate_sums
    merges = step.merges if reassociated else ()
    waited = [total for total in sums if not total.late]
    return ShardingWork(
        compute_s=float(times.work_s.sum()),
        launch_s=float(times.launch_s.sum()),
        compute=_pairs(k, zip(step.of_instructions, times.work_s.tolist(), strict=True)),
        held_bytes=sum(nbytes for _, nbytes in held),
        held=_pairs(k, held),
        activation_sums=_summed(k, waited),
        gradient_sums=_summed(k, (total for total in sums if total.late)),
        starts=np.bincount([total.over for total in waited], minlength=k).astype(np.float64),
        merged=_merged(merges),
    )


def _held(step: StepClasses) -> Iterator[tuple[Classes, float]]:
    """Classes and bytes of arguments, constants, gradients and activations for the backward pass."""
    graph, of_constants = step.graph, np.intersect1d(step.liveness.constants, step.liveness.untrained)
    for v, argument in enumerate(graph.arguments):
        copies = 2.0 if argument.kind == "parameter" else 1.0
        yield step.of_values[v], copies * float(graph.value_bytes[v])
    for v in (*of_constants.tolist(), *np.flatnonzero(step.liveness.kept).tolist()):
        yield step.of_values[v], float(graph.value_bytes[v])


def _pairs(k: int, amounts: Iterable[tuple[Classes, float]]) -> FloatArray:
    """[k, k] sums of the amounts with classes i and j."""
    total: Counter[Classes] = Counter()
    for classes, amount in amounts:
        total[classes] += amount  # type: ignore[assignment]
    matrix = np.zeros((k, k))
    for classes, amount in total.items():
        matrix[np.ix_(classes, classes)] += amount
    return matrix


def _summed(k: int, sums: Iterable[Sum]) -> FloatArray:
    """[k, k] bytes summed over class i, and of those of results with class j."""
    matrix = np.zeros((k, k))
    for total in sums:
        matrix[total.over, total.over] += total.nbytes
        matrix[total.over, [c for c in total.classes if c != total.over]] += total.nbytes
    return matrix


def _merged(merges: Iterable[Merge]) -> tuple[MergedSums, ...]:
    """The merges, those of the same classes together."""
    saved: dict[tuple[Classes, Classes, bool], list[float]] = {}
    for merge in merges:
        key = (merge.over, merge.total.classes, merge.total.late)
        saved.setdefault(key, []).append(merge.saved_bytes)
    return tuple(
        MergedSums(over, classes, sum(nbytes), len(nbytes), late) for (over, classes, late), nbytes in saved.items()
    )
