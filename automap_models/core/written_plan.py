"""A plan of stages as its file tells it: nothing of it is costed, as its model is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from automap_models.core.cluster import Cluster


@dataclass(frozen=True)
class WrittenStage:
    """A stage as plan.json tells it.

    Attributes:
        first, last: its instructions.
        end: name of its last instruction, which is the cut after it.
        devices: first and last device.
        replicas: d.
        tensor: t devices that share the operators of a replica; the stage has d·t devices.
        sharding: name of how these divide operators; None where each replica is one device.
        forward_s, backward_s: predicted seconds of one micro-batch on the fullest replica.
        transfer_s: predicted seconds of a message to the next stage; 0 of the last one.
        all_reduce_s: predicted seconds of its gradients' all-reduce.
        exposed_s: what of it comes after the last backward pass; None where the plan does not say, which is all of it.
        update_s: predicted seconds of the update of its parameters; 0 where the plan does not say.
        tied: names of the parameters of which other stages hold a copy, and the predicted seconds of their sum.
    """

    first: int
    last: int
    end: str
    devices: tuple[int, int]
    replicas: int
    tensor: int
    sharding: str | None
    forward_s: float
    backward_s: float
    transfer_s: float
    all_reduce_s: float
    exposed_s: float | None = None
    update_s: float = 0.0
    tied: tuple[tuple[str, float], ...] = ()

    @property
    def device_count(self) -> int:
        """d·t."""
        return self.devices[1] - self.devices[0] + 1


@dataclass(frozen=True)
class WrittenArgument:
    """An argument of a step as a sharding plan tells it.

    Attributes:
        shape: [sizes].
        data_dim: the dimension that is partitioned along data; -1 for none.
    """

    shape: tuple[int, ...]
    data_dim: int


@dataclass(frozen=True)
class WrittenPlan:
    """A plan of stages as its file tells it: what a run or an export needs without the model that it was made for.

    Attributes:
        where: the file.
        model: the model's name in it.
        stages: in the order of the model.
        micro_batches: M.
        microbatch_size: samples N of a micro-batch; None where the plan does not say.
        schedule: under which it was planned; None where it was planned by length.
        step_s: predicted seconds of a step under that schedule, or the length L.
        model_fingerprint: `Profile.model_fingerprint` of the profiled model; None in older files.
        shardings: of the operators, by name: degree, and which dimension of each variable is partitioned.
        cluster: it was made for.
        arguments: of a sharding plan, which knows the model by them; else none.
    """

    where: str
    model: str
    stages: tuple[WrittenStage, ...]
    micro_batches: int
    microbatch_size: int | None
    schedule: str | None
    step_s: float
    model_fingerprint: str | None
    shardings: Mapping[str, tuple[int, Mapping[str, int]]]
    cluster: Cluster
    arguments: Mapping[str, WrittenArgument] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """D."""
        return self.stages[-1].devices[1] + 1

    @property
    def instructions(self) -> int:
        """Number of instructions n of the model."""
        return self.stages[-1].last + 1

    @property
    def cut_names(self) -> tuple[str, ...]:
        """[S-1] what the cut after each stage but the last is called."""
        return tuple(stage.end for stage in self.stages[:-1])
