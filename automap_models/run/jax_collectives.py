"""What XLA exchanges between the devices of a stage, beside what the plan says.

A result that is summed over a partitioned dimension is all-reduced; nothing else is exchanged where a plan needs no
resharding (hlo/step_classes.py). Gradients that replicas add up for themselves are exchanged once a step, all others in
every micro-batch. Bytes are compared, not numbers: XLA puts several all-reduces into one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from automap_models.core.sharding import Collectives
from automap_models.hlo.step_cut import ProgramKey
from automap_models.run.jax_programs import StepPrograms
from automap_models.run.layout import DATA


@dataclass(frozen=True)
class ProgramCollectives:
    """The collectives of a program, bytes of their results on one device.

    Attributes:
        planned: sums over partitioned dimensions in what it computes.
        all_reduced: what XLA all-reduces.
        others: XLA's word for every other collective → its bytes.
    """

    planned: float
    all_reduced: float
    others: Mapping[str, float]


def program_collectives(programs: StepPrograms) -> dict[ProgramKey, ProgramCollectives]:
    """Those of every program of a stage of several devices."""
    planned = _planned(programs)
    return {
        key: _beside(planned.get(key, 0.0), compiled.communication)
        for key, compiled in programs.compiled.items()
        if programs.shardings.of_classes(key.stage)
    }


def reduction_collectives(programs: StepPrograms) -> dict[int, ProgramCollectives]:
    """Those of each stage that sums gradients over its replicas once a step: by the plan, each gradient once."""
    shardings, collectives = programs.shardings, {}
    for stage, reduction in programs.reductions.items():
        planned = 0.0  # of one device of a replica
        for v in reduction.values:
            shape = shardings.shape(v, stage, shardings.sum_dtype(v))
            assert shape.sharding is not None  # given to it above
            planned += math.prod(shape.sharding.shard_shape(shape.shape)) * shape.dtype.itemsize
        collectives[stage] = _beside(planned, reduction.communication)
    return collectives


def _beside(planned: float, communication: Mapping[str, Collectives]) -> ProgramCollectives:
    """Planned bytes beside those of a compiled program's collectives."""
    nbytes = {kind: collectives.nbytes for kind, collectives in communication.items()}
    return ProgramCollectives(planned, nbytes.pop("all-reduce", 0.0), nbytes)


def _planned(programs: StepPrograms) -> dict[ProgramKey, float]:
    """Program → bytes of the results that are summed over a partitioned class."""
    shardings, planned = programs.shardings, dict[ProgramKey, float]()
    if shardings.classes is None:
        return planned
    for key, program in programs.cut.programs.items():
        axes, sizes = shardings.of_classes(key.stage), dict(shardings.meshes[key.stage].shape)
        local = programs.compiled[key].local
        inside = set(program.operations)
        for total in shardings.classes.separate_sums if axes else ():
            if local is not None and total.operation in local.roots and total.over in axes[DATA]:
                continue  # once a step
            if total.operation in inside and any(total.over in chosen for chosen in axes.values()):
                parts = [sizes[axis] for axis, chosen in axes.items() if chosen.intersection(total.classes)]
                share = total.nbytes
                for size in parts:
                    share /= size
                planned[key] = planned.get(key, 0.0) + share
    return planned
