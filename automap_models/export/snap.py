"""A plan or a strategy moved to what a target can express.

A plan gets the nearest cuts, equal devices and one degree of sharding, and is costed again.

blocks          │    │    │    │    │    │        boundaries of the target
cuts of a plan     ↑          ↑                   moved to the nearest, each to one of its own
                  │           │
time moved       0.3    +    0.1    blocks is as little as can be

A strategy keeps its devices, its global batch and the order of the model's blocks. Each of these is changed only where
the target objects to it, in this order, and later ones see what earlier ones have become:

    experts    with sequence parallelism where the target asks for it
    cp, ep     1 where the target has no such parallelism; the devices of cp become ranks of dp
    tp, cp     the largest divisors that divide what the target wants divided; the devices become ranks of dp
    pp         the next smaller power of two where the target asks for one, or 1; the devices become ranks of dp
    schedule   with virtual stages interleaved, else 1F1B, or what else the target runs; virtual stages may be joined
    zero       the nearest stage, the higher one of two that are equally near: it needs less memory
    recompute  the next kind that recomputes more, alike in all stages where the target asks for it
    precision  bf16, or what else the target has
    layers     a stage without a block gets one from the nearest stage that has several
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from automap_models.core.framework import UNKNOWN, Degrees, Limits, ModelFacts
from automap_models.core.profile import FloatArray
from automap_models.core.result import PlanReport, Result
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.strategy import RECOMPUTE, Recompute, Strategy, modules_of
from automap_models.core.units import percent, seconds, size
from automap_models.errors import BadInput, Infeasible
from automap_models.export.model_blocks import boundaries, place_in_words, require_blocks
from automap_models.export.target import Source
from automap_models.formats.staged_plan import staged_document
from automap_models.simulate.plan_step import step_cost

PLANNER = "snapped"
Price = Callable[[Strategy], float]
"""Seconds of a step."""
_NEAREST_SCHEDULE = {"1f1b-deep": "1f1b", "gpipe": "1f1b", "1f1b": "gpipe"}


@dataclass(frozen=True)
class Snapped:
    """A plan that a target can express, and what it was.

    Attributes:
        source: the plan that was moved, costed.
        changes: sentences, one for everything that was changed; empty where nothing had to be.
        before_s, after_s: steps of both, seconds; None of strategies that nobody has priced.
    """

    source: Source
    changes: tuple[str, ...]
    before_s: float | None
    after_s: float | None

    @property
    def loss(self) -> str:
        """What the step loses, for people."""
        if self.before_s is None or self.after_s is None:
            return "a step that nobody has priced: give the model and its cluster, too"
        change = self.after_s / self.before_s - 1.0
        word = "longer" if change >= 0 else "shorter"
        return f"a step of {seconds(self.after_s)} instead of {seconds(self.before_s)}, {percent(abs(change))} {word}"


def snapped(source: Source, target: str, limits: Limits) -> Snapped:
    """The plan of a source with the least change that makes it one that the target can express.

    Cuts move by as little time of the model as can be; devices are shared out equally; every stage divides its
    operators by the smallest number that a stage has.

    Raises:
        BadInput: the model was not given, or no plan of so many stages on so many devices is one of the target's.
        Infeasible: the plan does not fit the memory after that.
    """
    result = source.require_result(target)
    problem, plan = result.problem, result.required_plan()
    changes: list[str] = []
    problem = _with_schedule(problem, target, limits, changes)
    cuts = _snapped_cuts(source, problem, plan, target, limits, changes)
    device_cuts = _snapped_devices(source, problem, plan, target, limits, changes)
    shardings = _snapped_shardings(problem, plan, limits, changes)
    moved = StagedPlan(cuts, device_cuts, plan.micro_batches, PLANNER, problem.grid.to_points(cuts), shardings)
    if not changes:
        return Snapped(source, (), result.cost.step_s, result.cost.step_s)
    valid, objection = moved.check_valid(problem)
    if not valid:
        what = f"cannot be snapped to {target}: {objection}"
        raise BadInput(what, where=source.plan.where, do=again(target))
    cost = step_cost(problem, moved)
    if not cost.feasible:
        stage = cost.fullest
        what = f"stage {stage} of the plan snapped to {target} needs {size(float(cost.memory_bytes[stage]))} a device"
        do = again(target)
        raise Infeasible(f"{what}, which has {size(float(cost.limit_bytes[stage]))}", where=source.name, do=do)
    after = Result(problem, moved, cost, "feasible")
    written = staged_document(PlanReport(**vars(after), single_device_s=cost.step_s)).plan(source.plan.where)
    return Snapped(replace(source, plan=written, result=after), tuple(changes), result.cost.step_s, cost.step_s)


def snapped_source(source: Source, target: str, limits: Limits, price: Price | None) -> Snapped:
    """A plan of stages or a strategy with the least change that makes it one that the target can express.

    Args:
        price: seconds of a step of a strategy; None where its model or cluster is not known.

    Raises:
        BadInput, Infeasible: see `snapped` and `snapped_strategy`; or a strategy cannot be priced.
    """
    plan, before = source.plan, source.plan.strategy
    if before is None:
        return snapped(source, target, limits)
    after, changes = snapped_strategy(before, limits, plan.facts)
    steps_s = (None, None) if price is None else (price(before), price(after))
    return Snapped(replace(source, plan=replace(plan, strategy=after)), changes, *steps_s)


def again(target: str) -> str:
    """What to do about a plan of which there is none near that the target can express."""
    return f"plan again within its limits, with `target='{target}'`"


def nearest(time_s: FloatArray, cuts: Sequence[int], allowed: Sequence[int]) -> tuple[int, ...] | None:
    """Where cuts go so that each is on an allowed place of its own and as little time as possible changes sides.

    least[k, j] is the least time that k cuts move where the last is on one of the first j places.

    Args:
        time_s: [n] of each instruction.
        cuts: [k] the last instruction before each, ascending.
        allowed: places, ascending.

    Returns:
        None where there are fewer places than cuts.
    """
    if len(allowed) < len(cuts):
        return None
    ends = np.cumsum(time_s)
    moved = np.abs(ends[list(cuts)][:, None] - ends[list(allowed)][None, :]) if cuts else np.zeros((0, len(allowed)))
    least = np.full((len(cuts) + 1, len(allowed) + 1), np.inf)
    least[0] = 0.0
    for k in range(len(cuts)):
        for j in range(len(allowed)):
            least[k + 1, j + 1] = min(least[k + 1, j], least[k, j] + moved[k, j])
    places, j = [], len(allowed)
    for k in range(len(cuts), 0, -1):
        while least[k, j] == least[k, j - 1]:
            j -= 1
        j -= 1
        places.append(int(allowed[j]))
    return tuple(reversed(places))


def _with_schedule(problem: StagedProblem, target: str, limits: Limits, changes: list[str]) -> StagedProblem:
    schedule = problem.schedule or DEFAULT_SCHEDULE
    if limits.schedule_objection(schedule, problem.stages, problem.micro_batches) is None:
        return problem
    other = _NEAREST_SCHEDULE[schedule]
    changes.append(f"schedule {other} instead of {schedule}, which {target} does not run")
    return replace(problem, schedule=other)


def _snapped_cuts(
    source: Source, problem: StagedProblem, plan: StagedPlan, target: str, limits: Limits, changes: list[str]
) -> tuple[int, ...]:
    if limits.cuts == "anywhere":
        return plan.cuts
    profile = problem.profile
    blocks = require_blocks(profile, target, limits, source.plan.where)
    allowed = boundaries(profile, blocks, limits)
    cuts = nearest(profile.C, plan.cuts, allowed)
    if cuts is None:
        what = f"{plan.stages} stages, and {target} can cut the model in {len(allowed)} place(s)"
        raise BadInput(what, where=source.plan.where, do="plan fewer stages")
    for stage, (before, after) in enumerate(zip(plan.cuts, cuts, strict=True)):
        if before != after:
            place = place_in_words(profile, blocks, after)
            changes.append(f"stage {stage} ends {place} (instruction {after} instead of {before})")
    return cuts


def _snapped_devices(
    source: Source, problem: StagedProblem, plan: StagedPlan, target: str, limits: Limits, changes: list[str]
) -> tuple[int, ...]:
    devices, stages = problem.cluster.devices, plan.stages
    if not limits.equal_replicas:
        return plan.device_cuts
    count, rest = divmod(devices, stages)
    if rest:
        what = f"{devices} devices do not make {stages} stages of equally many, as {target} has them"
        raise BadInput(what, where=source.plan.where, do=again(target))
    equal = tuple(range(count, devices, count))
    if equal != plan.device_cuts:
        changes.append(f"{count} devices for every stage")
    return equal


def _snapped_shardings(problem: StagedProblem, plan: StagedPlan, limits: Limits, changes: list[str]) -> tuple[int, ...]:
    degrees = [problem.all_shardings[index].degree for index in plan.shardings]
    least = 1 if limits.sharding == "none" else min(degrees)
    if limits.sharding == "by stage" or set(degrees) == {least}:
        return plan.shardings
    index = next(i for i, sharding in enumerate(problem.all_shardings) if sharding.degree == least)
    changes.append(f"every stage divides its operators by {least}")
    return tuple(number if degree == least else index for number, degree in zip(plan.shardings, degrees, strict=True))


_SCHEDULES = ("1f1b", "gpipe")
"""In place of one that the target does not run, where stages are not virtual."""
_PRECISIONS = ("bf16", "fp16", "fp32")


def snapped_strategy(
    strategy: Strategy, limits: Limits, facts: ModelFacts = UNKNOWN
) -> tuple[Strategy, tuple[str, ...]]:
    """The strategy with the least change that makes it one that the target can express, and what was changed.

    Args:
        strategy: with the layers of every virtual stage.
        limits: of the target.
        facts: of the model.

    Raises:
        BadInput: no such change makes it one.
    """
    moved = strategy
    for step in (_experts, _degrees, _divisors, _pipeline, _schedule, _zero, _recompute, _names, _layers):
        moved = step(moved, limits, facts)
    objection = limits.objection(moved, facts)
    if objection is not None:
        raise BadInput(objection.what, where="the snapped strategy", do=objection.do)
    return moved, tuple(_changes(strategy, moved))


def _changes(before: Strategy, after: Strategy) -> Iterator[str]:
    """A sentence for every field that differs."""
    names = (
        "micro_batch",
        "tp",
        "cp",
        "ep",
        "etp",
        "tower_tp",
        "pp",
        "dp",
        "dp_replicate",
        "vp",
        "sequence_parallel",
        "schedule",
        "zero",
        "precision",
        "dispatcher",
        "offload",
        "recompute",
        "recompute_blocks",
    )
    for name in names:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            usual = "all" if name == "recompute_blocks" else "as usual"
            yield f"{name} {_words(new, usual)} instead of {_words(old, usual)}"
    if before.layers != after.layers and after.layers is not None:
        yield f"layers {_words(after.layers)} instead of {_words(before.layers)}"


def _words(value: Any, usual: str = "") -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else usual if value is None else str(value)


def _degrees(s: Strategy, limits: Limits, _: ModelFacts) -> Strategy:
    if s.tower_tp is not None and not limits.images_apart(s):
        s = replace(s, tower_tp=None)
    if s.ep > 1 and "ep" in limits.undivided:
        s = replace(s, ep=1)
    if s.cp > 1 and "cp" in limits.undivided:
        s = _with_ranks(s, dp=s.dp * s.cp, cp=1)
    return s


def _with_ranks(s: Strategy, dp: int, **changes: Any) -> Strategy:
    """Other ranks of data parallelism, with the largest micro-batch up to its own that the global batch allows.

    Raises:
        BadInput: the global batch does not divide among them.
    """
    share, rest = divmod(s.global_batch, dp)
    if rest:
        what = f"{s.global_batch} samples do not divide among {dp} ranks of data parallelism"
        raise BadInput(what, where="the snapped strategy", do="search for a strategy of this framework")
    micro_batch = max(size for size in range(1, s.micro_batch + 1) if share % size == 0)
    return replace(s, dp=dp, micro_batch=micro_batch, **changes)


def _divisors(s: Strategy, limits: Limits, facts: ModelFacts) -> Strategy:
    for name in ("tp", "cp"):
        degree = getattr(s, name)
        fits = [
            n
            for n in range(1, degree + 1)
            if degree % n == 0
            and limits.degrees_objection(Degrees(**{name: n}, sequence_parallel=s.sequence_parallel), facts) is None
        ]
        if fits and fits[-1] < degree:
            others = {"etp": 1 if s.etp == 1 else None, "tower_tp": None if name == "tp" else s.tower_tp}
            s = _with_ranks(s, s.dp * degree // fits[-1], **{name: fits[-1]}, **others)
    return s


def _experts(s: Strategy, limits: Limits, facts: ModelFacts) -> Strategy:
    shared = replace(s, sequence_parallel=True)
    objects = limits.degrees_objection(s, facts) is not None
    return shared if objects and limits.degrees_objection(shared, facts) is None else s


def _pipeline(s: Strategy, limits: Limits, facts: ModelFacts) -> Strategy:
    if limits.degrees_objection(Degrees(pp=s.pp), ModelFacts(tied=facts.tied)) is None:
        return s
    powers = [2**k for k in range(s.pp.bit_length()) if 2**k <= s.pp and (s.pp * s.dp) % 2**k == 0]
    pp = max(n for n in powers if limits.tied_objection(n, facts.tied) is None)
    layers = _spread(sum(s.layers or ()), pp * s.vp)
    fewer = {"pp": pp, "layers": layers, "recompute": _strongest(s), "recompute_blocks": None}
    schedule = "1f1b" if s.schedule not in _SCHEDULES else s.schedule
    if s.vp > 1:
        fewer |= {"vp": 1, "layers": _spread(sum(s.layers or ()), pp)}
    return _with_ranks(s, s.dp * s.pp // pp, schedule=schedule, **fewer)


def _spread(blocks: int, stages: int) -> tuple[int, ...]:
    """As equal as can be, the first stages one larger."""
    count, larger = divmod(blocks, stages)
    return tuple(count + (stage < larger) for stage in range(stages))


def _schedule(s: Strategy, limits: Limits, _: ModelFacts) -> Strategy:
    if limits.schedule_objection(s.schedule, s.pp, s.micro_batches, s.vp) is None:
        return s
    if s.vp > 1 and s.schedule != "interleaved":
        looped = _runnable(s, schedule="interleaved")
        if looped is not None and limits.schedule_objection("interleaved", s.pp, s.micro_batches, s.vp) is None:
            return looped
    joined = _joined(s)
    for name in (s.schedule, *_SCHEDULES):
        if limits.schedule_objection(name, s.pp, s.micro_batches, 1) is None:
            moved = _runnable(s, schedule=name, vp=1, **joined)
            if moved is not None:
                return moved
    return s


def _runnable(s: Strategy, **changes: Any) -> Strategy | None:
    try:
        return replace(s, **changes)
    except BadInput:
        return None


def _joined(s: Strategy) -> dict[str, Any]:
    """Layers and recomputation of one stage a rank, each of vp neighbouring virtual stages."""
    if s.vp == 1:
        return {}
    layers = s.layers or ()
    of_ranks = tuple(sum(layers[rank * s.vp : (rank + 1) * s.vp]) for rank in range(s.pp))
    return {"layers": of_ranks, "recompute": _strongest(s), "recompute_blocks": None}


def _strongest(s: Strategy) -> Recompute:
    """The kind that recomputes most of those that stages have."""
    blocks = s.recompute_blocks or (1,) * s.stages
    used = [kind for kind, count in zip(s.recompute_kinds, blocks, strict=True) if count]
    return max(used or ["none"], key=lambda kind: RECOMPUTE.index("full" if modules_of(kind) else kind))


def _zero(s: Strategy, limits: Limits, _: ModelFacts) -> Strategy:
    zero = min(limits.zeros_of(s), key=lambda stage: (abs(stage - s.zero), -stage))
    return replace(s, zero=zero)


def _recompute(s: Strategy, limits: Limits, _: ModelFacts) -> Strategy:
    if s.recompute == "offload" and not (limits.recompute_objection("offload") or limits.hosts_objection(s)):
        return s
    partial = s.recompute_blocks is not None and s.recompute_blocks != s.layers
    if limits.recompute_alike and (len({*s.recompute_kinds}) > 1 or partial):
        s = replace(s, recompute=_strongest(s), recompute_blocks=None)
    allowed = [kind for kind in limits.recompute if kind != "offload"]
    if all(kind != "offload" and limits.recompute_objection(kind) is None for kind in s.recompute_kinds):
        return s

    def more(kind: Recompute) -> Recompute:
        least = RECOMPUTE.index("full" if modules_of(kind) else kind)
        return next(heavier for heavier in RECOMPUTE[least:] if heavier in allowed)

    moved = tuple(more(kind) for kind in s.recompute) if isinstance(s.recompute, tuple) else more(s.recompute)
    return replace(s, recompute=moved)


def _names(s: Strategy, limits: Limits, _: ModelFacts) -> Strategy:
    if s.precision not in limits.precisions:
        s = replace(s, precision=next(precision for precision in _PRECISIONS if precision in limits.precisions))
    if s.dispatcher is not None and s.dispatcher not in limits.dispatchers:
        s = replace(s, dispatcher=limits.dispatchers[0])
    if limits.offload_objection(s.offload, s.pp) or (not s.zero and s.dp * s.cp > 1):
        s = replace(s, offload="none")
    return s


def _layers(s: Strategy, limits: Limits, _: ModelFacts) -> Strategy:
    if s.layers is None or limits.layers_objection(s.layers) is None:
        return s
    layers = list(s.layers)
    while 0 in layers and max(layers) > 1:
        empty = layers.index(0)
        giver = min((i for i, count in enumerate(layers) if count > 1), key=lambda i: (abs(i - empty), i))
        layers[giver] -= 1
        layers[empty] += 1
    if s.recompute_blocks is not None:
        capped = tuple(min(blocks, count) for blocks, count in zip(s.recompute_blocks, layers, strict=True))
        s = replace(s, recompute_blocks=capped)
    return replace(s, layers=tuple(layers))
