"""What a framework can express of plans of stages and of strategies: read by its exporter, and by searches for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from automap_models.core.strategy import (
    ON_DEVICES,
    RECOMPUTE,
    ZERO_STAGES,
    Dispatcher,
    Offload,
    Precision,
    Recompute,
    Strategy,
    TransformerShape,
    expert_tensor,
    in_words,
    modules_of,
)
from automap_models.core.tuning import FULL, Training

Cuts = Literal["anywhere", "blocks", "inner blocks"]
"""Where a target may cut a model: anywhere that the plan does; beside whole blocks, so that a first or last stage may
hold the embedding or the head alone; or so that every stage holds a block."""
Sharding = Literal["none", "equal", "by stage"]
"""How the operators of stages may be divided: not at all, everywhere by the same number of devices, or each its own."""
IN_WORDS = {
    "tp": "tensor parallelism",
    "pp": "pipelines",
    "cp": "context parallelism",
    "ep": "expert parallelism",
}


class Objection(NamedTuple):
    """What a framework objects to, and what to do instead."""

    what: str
    do: str


class ModelFacts(NamedTuple):
    """What frameworks ask of a model beside its blocks.

    Attributes:
        shape: None where nobody says.
        tied: whether its word embedding is its output matrix, too.
        own_code: whether it is a module or a function of its owner's, which no framework has the code of.
        recurrent: whether some of its layers are recurrences (Mamba, gated delta networks) in place of attention.
        training: what of it is trained.
        encodes: whether some of its blocks are an encoder's, which attends to all tokens.
    """

    shape: TransformerShape | None = None
    tied: bool = False
    own_code: bool = False
    recurrent: bool = False
    training: Training = FULL
    encodes: bool = False


UNKNOWN = ModelFacts()
ALONE_ON_HOSTS = Objection("an optimizer on hosts is what ZeRO gives each rank", "take zero 1 or more, or offload none")


class Degrees(NamedTuple):
    """Into what a strategy divides devices and samples, see `Strategy`; all that is not given is whole."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    dp: int = 1
    micro_batch: int = 1
    sequence_parallel: bool = True
    etp: int | None = None
    tower_tp: int | None = None

    @property
    def expert_tensor(self) -> int:
        """Devices that share every expert."""
        return expert_tensor(self.tp, self.dp, self.ep, self.etp)


Divided = Strategy | Degrees
UNDIVIDED = Degrees()


@dataclass(frozen=True)
class StageLimits:
    """What a framework asks of numbers of stages and micro-batches, in plain data.

    Attributes:
        schedules: that plans for it are compared under.
        filled: schedules that take a micro-batch for each stage or more.
        ties: whether stages may share a weight.
        whole_samples: whether the replicas of a stage have equally many samples of a micro-batch.
        power_of_two: whether the number of stages has to be one.
        one_series: its name where all blocks have to be of one series.
        pipelines: whether it has any.
    """

    schedules: tuple[str, ...]
    filled: tuple[str, ...] = ()
    ties: bool = True
    whole_samples: bool = False
    power_of_two: bool = False
    one_series: str = ""
    pipelines: bool = True

    def allows(self, stages: int, micro_batches: int, schedule: str | None, tied: bool) -> bool:
        """Whether it trains so many stages of a model, in which several layers may share a weight."""
        if stages > 1 and (
            not self.pipelines or (schedule in self.filled and micro_batches < stages) or (tied and not self.ties)
        ):
            return False
        return not self.power_of_two or stages & (stages - 1) == 0

    def divides(self, samples: int | None, replicas: int) -> bool:
        """Whether it shares out the samples of a micro-batch among replicas; None where nobody says how many."""
        return not self.whole_samples or samples is None or samples % replicas == 0


def any_sequence(_: Divided) -> int:
    """Sequences of any length: `Limits.sequence` where the framework asks for nothing."""
    return 1


def no_images_apart(_: Divided) -> bool:
    """Towers of images without a division of their own: `Limits.images_apart` where a framework has none."""
    return False


def both_halves(divided: Divided) -> int:
    """Context parallelism gives every device a part from the beginning of a sample and one from its end."""
    return 2 * divided.cp if divided.cp > 1 else 1


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a framework can express.

    Attributes:
        name: of the framework, for people.
        runtime: the shipped one that runs it, where that has another name.
        own_code: whether it trains modules of one's own, and not its own models alone.
        recurrent: whether it has layers that are recurrences.
        encoders: whether it has encoders, beside towers.
        tower: degrees that have to be 1 of models with a tower of images; None: it has no such models.
        images_apart: whether a tower may have such a division of its own (`Strategy.tower_tp`).
        mtp: whether it has layers that predict further tokens.
        any_training: whether the optimiser, and what is frozen, are the code of its users.
        schedules: ours → what the framework calls it.
        cuts: where the model may be cut.
        equal_replicas: whether every stage has equally many devices.
        sharding: how stages may divide operators.
        one_series: whether all blocks have to be of one series, as those of a decoder are.
        power_of_two: whether the number of stages has to be one.
        zeros: stages of ZeRO.
        replicates: whether ZeRO may divide within groups of ranks, between which gradients are summed.
        pipeline_zeros: those of them that go together with a pipeline; None for all.
        recompute: what may be recomputed, beside modules.
        modules: which of MODULES it recomputes by name.
        recompute_alike: whether all blocks of a model recompute the same; but hosts save for some of them, and not for
            all, without a pipeline.
        precisions: of weights and activations.
        dispatchers: how tokens may go to experts that ep divides, the preferred ones first.
        offloads: what may lie in the memory of hosts.
        pipeline_offloads: whether it may beside a pipeline, too.
        undivided: degrees that have to be 1.
        whole_rounds: whether interleaved virtual stages take a multiple of pp micro-batches.
        stacked: whether virtual stages may all be on one rank.
        filled: schedules that take a micro-batch for each stage or more.
        ties: whether stages of a pipeline may share a weight.
        whole_heads: whether tp has to divide the heads of keys and values.
        sequence: of what the tokens of a sample have to be a multiple.
        expert_tensor: whether the devices of tp may share each expert where ep is more than 1, too.
        sharded_experts: whether ep has to divide the devices of ZeRO-2 and 3, of cp and of tp.
        sharded_context: whether cp goes together with ZeRO-2 and 3 alone.
        rare: whether few people use it.
        sequence_beside_experts: whether models with experts have to take sequence parallelism with tp.
    """

    name: str
    runtime: str = ""
    own_code: bool = True
    recurrent: bool = True
    encoders: bool = True
    tower: tuple[str, ...] | None = ()
    images_apart: Callable[[Divided], bool] = no_images_apart
    mtp: bool = True
    any_training: bool = False
    schedules: Mapping[str, str]
    cuts: Cuts = "blocks"
    equal_replicas: bool = True
    sharding: Sharding = "equal"
    one_series: bool = False
    power_of_two: bool = False
    zeros: tuple[int, ...] = ZERO_STAGES
    replicates: bool = False
    pipeline_zeros: tuple[int, ...] | None = None
    recompute: tuple[Recompute, ...] = ON_DEVICES
    modules: tuple[str, ...] = ()
    recompute_alike: bool = True
    precisions: tuple[Precision, ...] = get_args(Precision)
    dispatchers: tuple[Dispatcher, ...] = ("alltoall",)
    offloads: tuple[Offload, ...] = ("none",)
    pipeline_offloads: bool = True
    undivided: tuple[str, ...] = ()
    whole_rounds: bool = False
    stacked: bool = True
    filled: tuple[str, ...] = ()
    ties: bool = True
    whole_heads: bool = False
    sequence: Callable[[Divided], int] = any_sequence
    expert_tensor: bool = True
    sharded_experts: bool = False
    sequence_beside_experts: bool = False
    sharded_context: bool = False
    rare: bool = False

    def zeros_of(self, divided: Divided) -> tuple[int, ...]:
        """Stages of ZeRO of a strategy that divides devices like this."""
        zeros = self.zeros if divided.pp == 1 or self.pipeline_zeros is None else self.pipeline_zeros
        beside_experts = self.sharded_experts and divided.cp * divided.tp % self.expert_degree(divided)
        if beside_experts or (self.sharded_context and divided.cp > 1):
            return tuple(zero for zero in zeros if zero >= 2)
        return zeros

    def expert_degree(self, divided: Divided) -> int:
        """What it calls expert parallelism: with the devices of tp where these share no expert."""
        return divided.ep * divided.expert_tensor if divided.ep > 1 and not self.expert_tensor else divided.ep

    def degrees_objection(self, divided: Divided, facts: ModelFacts = UNKNOWN) -> Objection | None:
        """To the degrees that devices and samples are divided by."""
        pp = divided.pp
        if self.power_of_two and pp & (pp - 1):
            return Objection(f"{self.name} has 1, 2, 4, 8, … stages, not {pp}", "plan with one of these numbers")
        for name in self.undivided:
            if getattr(divided, name) > 1:
                return Objection(f"{self.name} has no {IN_WORDS[name]}", f"take {name} 1")
        return (
            self.code_objection(own_code=facts.own_code)
            or self._layers_objection(facts)
            or (None if facts.shape is None else self._parts_objection(divided, facts.shape))
            or self.training_objection(facts)
            or self.tied_objection(pp, facts.tied)
            or self._experts_objection(divided, facts.shape)
            or (None if facts.shape is None else self._shape_objection(divided, facts.shape))
        )

    def code_objection(self, *, own_code: bool) -> Objection | None:
        """To a module of its owner's code."""
        if self.own_code or not own_code:
            return None
        what = f"{self.name} trains models that it has the code of, and this is a module of your own"
        return Objection(what, "take deepspeed or torch-split-spec, or run a plan of stages with automap run")

    def _layers_objection(self, facts: ModelFacts) -> Objection | None:
        """To recurrences and to encoders."""
        missing = "recurrent layers" if facts.recurrent and not self.recurrent else ""
        if facts.encodes and not self.encoders:
            missing = "encoders"
        what = f"{self.name} has no {missing}, and this model has some"
        return Objection(what, "take megatron or deepspeed") if missing else None

    def _parts_objection(self, divided: Divided, shape: TransformerShape) -> Objection | None:
        """To a tower of images, and to layers that predict further tokens."""
        if shape.mtp_layers and not self.mtp:
            do = "take megatron or deepspeed, or give `mtp` 0"
            return Objection(f"{self.name} has no layers of multi-token prediction, and {shape.name} has some", do)
        if not shape.tower_heads:
            return None
        if shape.outputs and not self.any_training:
            what = f"{self.name} has no models that compare texts with images, as {shape.name} does"
            return Objection(what, "take deepspeed, or give `images` 0")
        if self.tower is None:
            do = "take megatron or deepspeed, or give `images` 0"
            return Objection(f"{self.name} has no models with a tower of images, as {shape.name} is one", do)
        return self._tower_objection(divided, self.tower)

    def _tower_objection(self, divided: Divided, undivided: tuple[str, ...] = ()) -> Objection | None:
        divided_by = next((name for name in undivided if getattr(divided, name) > 1), None)
        if divided_by is not None:
            what = f"{self.name} trains models with a tower of images without {divided_by}"
            return Objection(what, f"take {divided_by} 1")
        if divided.tower_tp is None or self.images_apart(divided):
            return None
        degrees = f"tp {divided.tp}, cp {divided.cp} and pp {divided.pp}"
        what = f"{self.name} divides a tower of images as the text, not by {divided.tower_tp} beside {degrees}"
        return Objection(what, "leave `tower_tp` out")

    def training_objection(self, facts: ModelFacts) -> Objection | None:
        """To adapters, frozen layers, other optimisers and losses; which documents share a sample is the data's."""
        if self.any_training or facts.training.is_full or replace(facts.training, packed=0).is_full:
            return None
        what = f"a configuration of {self.name} says nothing of {facts.training}"
        return Objection(what, "take deepspeed, where these are your own code, or train all by adamw")

    def tied_objection(self, stages: int, tied: bool, weight: str = "the word embedding") -> Objection | None:
        """To a weight that several stages of a pipeline share."""
        if self.ties or stages == 1 or not tied:
            return None
        what = f"{self.name} does not train a pipeline whose stages share a weight, and {weight} is one"
        return Objection(what, "take pp 1, or a model without tied weights")

    def _experts_objection(self, divided: Divided, shape: TransformerShape | None) -> Objection | None:
        experts = None if shape is None else shape.experts
        degree = self.expert_degree(divided)
        if experts is not None and experts % degree:
            what = f"{self.name} gives every device whole experts, and tp {divided.tp} × ep {divided.ep}"
            return Objection(f"{what} does not divide the {experts} of a layer", "take a smaller tp or ep")
        has_experts = experts is not None or divided.ep > 1
        if self.sequence_beside_experts and has_experts and divided.tp > 1 and not divided.sequence_parallel:
            what = f"{self.name} does not train experts with tp {divided.tp} without sequence parallelism"
            return Objection(what, "take sequence parallelism, or tp 1")
        return None

    def _shape_objection(self, divided: Divided, shape: TransformerShape) -> Objection | None:
        """To degrees that do not divide what the framework wants divided."""
        if self.whole_heads and shape.kv_heads % divided.tp:
            what = f"{self.name} divides heads of keys and values by tp, and {shape.name} has {shape.kv_heads} of them"
            return Objection(f"{what} for tp {divided.tp}", f"take a tp that divides {shape.kv_heads}")
        multiple = self.sequence(divided)
        if shape.sequence % multiple:
            degrees = f"cp {divided.cp} and tp {divided.tp}" if divided.tp > 1 else f"cp {divided.cp}"
            what = f"{self.name} takes samples of a multiple of {multiple} tokens with {degrees}, not {shape.sequence}"
            return Objection(what, "take another sequence, or smaller degrees")
        return None

    def schedule_objection(self, schedule: str, pp: int = 2, micro_batches: int = 2, vp: int = 2) -> Objection | None:
        """To a schedule with its virtual stages."""
        if schedule not in self.schedules:
            what, do = f"{self.name} does not run schedule {schedule}", f"plan for one of {', '.join(self.schedules)}"
            return Objection(what, do)
        if schedule == "interleaved" and vp == 1:
            return Objection(f"{self.name} interleaves 2 virtual stages or more", "take them, or schedule 1f1b")
        if schedule in self.filled and micro_batches < pp:
            what = f"{self.name} runs {schedule} with a micro-batch for each stage, and {micro_batches} on {pp} stages"
            return Objection(f"{what} are too few", "take more micro-batches, or fewer stages")
        if not self.stacked and pp == 1 and vp > 1:
            what = f"{self.name} has no virtual stages on one rank"
            return Objection(what, "take 1 virtual stage, or more ranks")
        if self.whole_rounds and vp > 1 and micro_batches % pp:
            what = f"{self.name} interleaves micro-batches in rounds of one a rank, and {micro_batches} on {pp} ranks"
            return Objection(f"{what} are none", "take a multiple")
        return None

    def zero_objection(self, zero: int, divided: Divided = UNDIVIDED) -> Objection | None:
        """To a stage of ZeRO."""
        allowed = self.zeros_of(divided)
        if zero in allowed:
            return None
        is_of_pipeline = zero in self.zeros_of(UNDIVIDED) and zero not in self.zeros_of(Degrees(pp=divided.pp))
        degree = f"ep {divided.ep}" if divided.ep > 1 else f"cp {divided.cp}"
        beside = " beside a pipeline" if is_of_pipeline else f" beside {degree}" if zero in self.zeros else ""
        return Objection(f"{self.name} has no ZeRO-{zero}{beside}", f"take zero {' or '.join(map(str, allowed))}")

    def replicate_objection(self, groups: int) -> Objection | None:
        """To groups of ranks within which ZeRO divides."""
        what = f"{self.name} divides what ZeRO does among all ranks, not within {groups} groups of them"
        return Objection(what, "take dp_replicate 1") if groups > 1 and not self.replicates else None

    def recompute_objection(self, kind: str) -> Objection | None:
        """To what blocks recompute."""
        if kind in self.recompute or (modules_of(kind) and set(modules_of(kind)) <= set(self.modules)):
            return None
        return Objection(f"{self.name} has no {in_words(kind)}", f"take recompute {' or '.join(self.recompute)}")

    def precision_objection(self, precision: str) -> Objection | None:
        """To the precision."""
        objection = Objection(f"{self.name} has no precision {precision}", f"take {' or '.join(self.precisions)}")
        return None if precision in self.precisions else objection

    def dispatcher_objection(self, dispatcher: str | None) -> Objection | None:
        """To how tokens go to experts."""
        if dispatcher is None or dispatcher in self.dispatchers:
            return None
        what = f"{self.name} has no {dispatcher} for the tokens of experts"
        return Objection(what, f"take dispatcher {' or '.join(self.dispatchers)}")

    def offload_objection(self, offload: str, pp: int = 1) -> Objection | None:
        """To what lies in the memory of hosts."""
        if offload in self.offloads and (offload == "none" or pp == 1 or self.pipeline_offloads):
            return None
        beside = " beside a pipeline" if offload in self.offloads else ""
        return Objection(f"{self.name} has no optimizer on hosts{beside}", "take offload none")

    def layers_objection(self, layers: tuple[int, ...]) -> Objection | None:
        """To the blocks of virtual stages."""
        if self.cuts != "inner blocks" or 0 not in layers:
            return None
        empty = layers.index(0)
        return Objection(f"{self.name} gives every stage a block, and stage {empty} has none", "move a block to it")

    def objections(self, strategy: Strategy, facts: ModelFacts = UNKNOWN) -> list[Objection]:
        """To a strategy, but for whether its blocks are of one series; the first of each kind."""
        s = strategy
        blocks = s.recompute_blocks or s.layers or (1,) * s.stages
        used = {kind for kind, count in zip(s.recompute_kinds, blocks, strict=True) if count}
        objections = [
            self.degrees_objection(s, facts),
            self.schedule_objection(s.schedule, s.pp, s.micro_batches, s.vp),
            self.zero_objection(s.zero, s),
            self.replicate_objection(s.dp_replicate),
            self.precision_objection(s.precision),
            self.dispatcher_objection(s.dispatcher) if s.ep > 1 else None,
            self.offload_objection(s.offload, s.pp),
            ALONE_ON_HOSTS if s.offload != "none" and not s.zero and s.dp * s.cp > 1 else None,
            *(self.recompute_objection(kind) for kind in sorted(used)),
            self.hosts_objection(s) if "offload" in used else None,
            self.layers_objection(s.layers) if s.layers is not None else None,
        ]
        return [objection for objection in objections if objection is not None]

    def objection(self, strategy: Strategy, facts: ModelFacts = UNKNOWN) -> Objection | None:
        """The first of `objections`; None where the framework trains the strategy."""
        return next(iter(self.objections(strategy, facts)), None)

    def field_objection(self, name: str, value: Any, facts: ModelFacts = UNKNOWN) -> Objection | None:
        """To one field of a strategy, whatever the others are."""
        if name in ("tp", "cp", "ep", "pp"):
            both = [Degrees(**{name: value, "sequence_parallel": shared}) for shared in (True, False)]
            objected = [self.degrees_objection(parts, facts) for parts in both]
            return objected[0] if all(objected) else None
        objections: dict[str, Callable[[], Objection | None]] = {
            "tower_tp": lambda: self._tower_objection(Degrees(tp=value, tower_tp=value)),
            "schedule": lambda: self.schedule_objection(value),
            "zero": lambda: self.zero_objection(value),
            "dp_replicate": lambda: self.replicate_objection(value),
            "precision": lambda: self.precision_objection(value),
            "dispatcher": lambda: self.dispatcher_objection(value),
            "offload": lambda: self.offload_objection(value),
            "layers": lambda: self.layers_objection(value),
            "recompute": lambda: self._kinds_objection(value),
            "recompute_blocks": lambda: self._kinds_objection(RECOMPUTE) if value else None,
        }
        return objections.get(name, lambda: None)()

    def hosts_objection(self, strategy: Strategy) -> Objection | None:
        """To blocks that hosts save for, where others recompute alike (Megatron's `cpu_offloading_num_layers`)."""
        if not self.recompute_alike:
            return None
        if strategy.pp > 1:
            return Objection(f"{self.name} has no activations on hosts beside a pipeline", "take pp 1")
        if strategy.recompute_blocks in (None, strategy.layers):
            return Objection(f"{self.name} has activations on hosts of all blocks but one at most", "take fewer")
        return None

    def _kinds_objection(self, kinds: Recompute | tuple[Recompute, ...]) -> Objection | None:
        several = kinds if isinstance(kinds, tuple) else (kinds,)
        if self.recompute_alike and len(set(several)) > 1:
            return Objection(f"{self.name} recomputes alike in all stages", "give one `recompute`")
        if self.recompute_alike and "offload" in several and "offload" in self.recompute:
            what = f"{self.name} has activations on hosts of all blocks but one at most"
            return Objection(what, "leave `recompute` open")
        return next(filter(None, map(self.recompute_objection, several)), None)
