"""What a framework can express of plans of stages and of strategies: read by its exporter, and by searches for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from automap_models.core.strategy import RECOMPUTE, ZERO_STAGES, Precision, Recompute, Strategy

Cuts = Literal["anywhere", "blocks", "inner blocks"]
"""Where a target may cut a model: anywhere that the plan does; beside whole blocks, so that a first or last stage may
hold the embedding or the head alone; or so that every stage holds a block."""
Sharding = Literal["none", "equal", "by stage"]
"""How the operators of stages may be divided: not at all, everywhere by the same number of devices, or each its own."""
IN_WORDS = {"cp": "context parallelism", "ep": "expert parallelism"}


class Objection(NamedTuple):
    """What a framework objects to, and what to do instead."""

    what: str
    do: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a framework can express.

    Attributes:
        name: of the framework, for people.
        schedules: ours → what the framework calls it.
        cuts: where the model may be cut.
        equal_replicas: whether every stage has equally many devices.
        sharding: how stages may divide operators.
        one_series: whether all blocks have to be of one series, as those of a decoder are.
        power_of_two: whether the number of stages has to be one.
        zeros: stages of ZeRO.
        pipeline_zeros: those of them that go together with a pipeline; None for all.
        recompute: what may be recomputed.
        recompute_alike: whether all blocks of a model recompute the same.
        precisions: of weights and activations.
        whole: degrees that have to be 1.
        whole_rounds: whether interleaved virtual stages take a multiple of pp micro-batches.
        stacked: whether virtual stages may all be on one rank.
    """

    name: str
    schedules: Mapping[str, str]
    cuts: Cuts = "blocks"
    equal_replicas: bool = True
    sharding: Sharding = "equal"
    one_series: bool = False
    power_of_two: bool = False
    zeros: tuple[int, ...] = ZERO_STAGES
    pipeline_zeros: tuple[int, ...] | None = None
    recompute: tuple[Recompute, ...] = RECOMPUTE
    recompute_alike: bool = True
    precisions: tuple[Precision, ...] = get_args(Precision)
    whole: tuple[str, ...] = ()
    whole_rounds: bool = False
    stacked: bool = True

    def zeros_of(self, pp: int) -> tuple[int, ...]:
        """Stages of ZeRO on so many ranks of a pipeline."""
        return self.zeros if pp == 1 or self.pipeline_zeros is None else self.pipeline_zeros

    def division_objection(self, pp: int = 1, cp: int = 1, ep: int = 1) -> Objection | None:
        """To the degrees that devices are divided by."""
        if self.power_of_two and pp & (pp - 1):
            return Objection(f"{self.name} has 1, 2, 4, 8, … stages, not {pp}", "plan with one of these numbers")
        for name, degree in (("cp", cp), ("ep", ep)):
            if name in self.whole and degree > 1:
                return Objection(f"{self.name} has no {IN_WORDS[name]}", f"take {name} 1")
        return None

    def way_objection(self, schedule: str, pp: int = 2, micro_batches: int = 2, vp: int = 2) -> Objection | None:
        """To a schedule with its virtual stages."""
        if schedule not in self.schedules:
            what, do = f"{self.name} does not run schedule {schedule}", f"plan for one of {', '.join(self.schedules)}"
            return Objection(what, do)
        if schedule == "interleaved" and vp == 1:
            return Objection(f"{self.name} interleaves 2 virtual stages or more", "take them, or schedule 1f1b")
        if not self.stacked and pp == 1 and vp > 1:
            what = f"{self.name} has no virtual stages on one rank"
            return Objection(what, "take 1 virtual stage, or more ranks")
        if self.whole_rounds and vp > 1 and micro_batches % pp:
            what = f"{self.name} interleaves micro-batches in rounds of one a rank, and {micro_batches} on {pp} ranks"
            return Objection(f"{what} are none", "take a multiple")
        return None

    def zero_objection(self, zero: int, pp: int = 1) -> Objection | None:
        """To a stage of ZeRO."""
        allowed = self.zeros_of(pp)
        if zero in allowed:
            return None
        beside = " beside a pipeline" if zero in self.zeros else ""
        return Objection(f"{self.name} has no ZeRO-{zero}{beside}", f"take zero {' or '.join(map(str, allowed))}")

    def recompute_objection(self, kind: str) -> Objection | None:
        """To what blocks recompute."""
        if kind in self.recompute:
            return None
        return Objection(f"{self.name} has no {kind} recomputation", f"take recompute {' or '.join(self.recompute)}")

    def precision_objection(self, precision: str) -> Objection | None:
        """To the precision."""
        if precision in self.precisions:
            return None
        return Objection(f"{self.name} has no precision {precision}", f"take {' or '.join(self.precisions)}")

    def layers_objection(self, layers: tuple[int, ...]) -> Objection | None:
        """To the blocks of virtual stages."""
        if self.cuts != "inner blocks" or 0 not in layers:
            return None
        empty = layers.index(0)
        return Objection(f"{self.name} gives every stage a block, and stage {empty} has none", "move a block to it")

    def objection(self, strategy: Strategy) -> Objection | None:
        """To a strategy, but for whether its blocks are of one series; None where the framework has words for it."""
        s = strategy
        kinds = s.recompute if isinstance(s.recompute, tuple) else (s.recompute,)
        blocks = (s.recompute_blocks or s.layers or ()) if isinstance(s.recompute, tuple) else (1,)
        used = {kind for kind, count in zip(kinds, blocks or (1,) * len(kinds), strict=True) if count}
        objections = [
            self.division_objection(s.pp, s.cp, s.ep),
            self.way_objection(s.schedule, s.pp, s.micro_batches, s.vp),
            self.zero_objection(s.zero, s.pp),
            self.precision_objection(s.precision),
            *(self.recompute_objection(kind) for kind in sorted(used)),
            self.layers_objection(s.layers) if s.layers is not None else None,
        ]
        return next((objection for objection in objections if objection is not None), None)

    def field_objection(self, name: str, value: Any) -> Objection | None:
        """To one field of a strategy, whatever the others are."""
        objections: dict[str, Callable[[], Objection | None]] = {
            "cp": lambda: self.division_objection(cp=value),
            "ep": lambda: self.division_objection(ep=value),
            "pp": lambda: self.division_objection(pp=value),
            "schedule": lambda: self.way_objection(value),
            "zero": lambda: self.zero_objection(value),
            "precision": lambda: self.precision_objection(value),
            "layers": lambda: self.layers_objection(value),
            "recompute": lambda: self._kinds_objection(value),
            "recompute_blocks": lambda: self._kinds_objection(RECOMPUTE) if value else None,
        }
        return objections.get(name, lambda: None)()

    def _kinds_objection(self, kinds: Recompute | tuple[Recompute, ...]) -> Objection | None:
        several = kinds if isinstance(kinds, tuple) else (kinds,)
        if self.recompute_alike and len(set(several)) > 1:
            return Objection(f"{self.name} recomputes alike in all stages", "give one `recompute`")
        return next(filter(None, map(self.recompute_objection, several)), None)
