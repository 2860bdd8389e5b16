"""A plan as its file tells it: what those who run and export plans take. Nothing of it is costed.

The model is not known, only its plan. A plan of stages tells each of them; a sharding plan is one stage with the
decision for every argument of the step beside it; a strategy says how many of the model's blocks each stage holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import Estimate
from automap_models.core.framework import UNKNOWN, ModelFacts
from automap_models.core.passes import Schedule, build_schedule
from automap_models.core.sharding import ShardingPlan
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput

PlanForm = Literal["stages", "strategy", "sharding"]


@dataclass(frozen=True)
class Stage:
    """Instructions that run on neighbouring devices: d replicas of t devices each.

    Attributes:
        first, last: its instructions.
        last_name: name of the last one, which is the cut after it.
        layers: names of the layers that the first and the last one are of; empty where the plan does not say.
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
    last_name: str
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
    layers: tuple[str, str] = ("", "")

    @property
    def device_count(self) -> int:
        """d·t."""
        return self.devices[1] - self.devices[0] + 1


@dataclass(frozen=True)
class Plan:
    """A plan as its file tells it.

    Attributes:
        where: the file.
        model: the model's name in it.
        stages: in the order of the model; none of a strategy.
        micro_batches: M.
        microbatch_size: samples N of a micro-batch; None where the plan does not say.
        schedule: under which it was planned; None where it was planned by length.
        step_s: predicted seconds of a step under that schedule, or the length L; 0 where nothing is predicted.
        model_fingerprint: `Profile.model_fingerprint` of the profiled model; None where the plan does not say.
        shardings: of the operators, by name: which dimension of each variable is partitioned.
        cluster: it was made for; None of a strategy.
        cluster_name: of a strategy's cluster; empty where the plan does not say.
        sharding: a sharding plan's decision; else None.
        strategy: with the blocks of every virtual stage; None of other plans.
        runtime: name of the program that a strategy was priced for; None of programs in general.
        facts: what frameworks ask of a strategy's model; nothing in files that were written without.
    """

    where: str
    model: str
    stages: tuple[Stage, ...]
    micro_batches: int
    microbatch_size: int | None = None
    schedule: str | None = None
    step_s: float = 0.0
    model_fingerprint: str | None = None
    shardings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    cluster: Cluster | None = None
    sharding: ShardingPlan | None = None
    strategy: Strategy | None = None
    facts: ModelFacts = UNKNOWN
    runtime: str | None = None
    cluster_name: str = ""

    @classmethod
    def of_strategy(cls, priced: Estimate, where: str = "the strategy") -> Plan:
        """The strategy that a price is of."""
        strategy = replace(priced.strategy, layers=priced.stage_layers)
        plan = cls(where, priced.model, (), strategy.micro_batches, strategy=strategy, facts=priced.facts)
        return replace(plan, runtime=priced.runtime or None, cluster_name=priced.cluster)

    @property
    def kind(self) -> PlanForm:
        """What it is told as."""
        if self.strategy is not None:
            return "strategy"
        return "stages" if self.sharding is None else "sharding"

    @property
    def instructions(self) -> int:
        """Number of instructions n of the model."""
        return self.stages[-1].last + 1

    @property
    def cut_names(self) -> tuple[str, ...]:
        """[S-1] what the cut after each stage but the last is called."""
        return tuple(stage.last_name for stage in self.stages[:-1])

    def sharded_dims(self, stage: Stage) -> Mapping[str, int]:
        """The dimension of each variable that the devices of a stage's replicas partition; others are replicated.

        Raises:
            BadInput: the plan does not describe the stage's sharding.
        """
        if stage.sharding is None:
            return {}
        if stage.sharding not in self.shardings:
            what = f"a stage is sharded by {stage.sharding!r}, which the plan does not describe"
            raise BadInput(what, where=self.where, do="plan again for this profile and cluster")
        return self.shardings[stage.sharding]

    def build_schedule(self) -> Schedule:
        """The order of passes; 1F1B where the plan was made for none."""
        if self.strategy is not None:
            return self.strategy.build_schedule()
        return build_schedule(self.schedule, len(self.stages), self.micro_batches)
