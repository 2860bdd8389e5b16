"""The grid of strategies: all that fixed fields leave open but cuts and recomputation, subspace by subspace.

    subspace   tp · cp · dp · pp = devices, ep | tp · cp · dp, vp, micro-batch | global batch / dp, schedule, ZeRO, SP
    strategy   a subspace with the layers of each virtual stage, and what each recomputes of how many of its blocks;
               no virtual stage is empty but for blocks at the ends of the model

Left out is what a strategy on the grid is never slower and never fuller than, unless it is fixed:

    one rank of the pipeline      any schedule and virtual stages but 1F1B without: nothing is there to wait for; they
                                  would let it recompute in two ways, or other blocks of several kinds first
    one rank of data parallelism  ZeRO: nothing is there to be divided
    tp 1                          sequence parallelism, for the same reason
    cp and micro-batch            a factor that they have in common, for whole sequences on so many more ranks of data
                                  parallelism are as many tokens a device: keys and values go less far, and all else
                                  takes the same but for position tables (1e-4 of a step)

    a tower of images beside cp    all images on every device of cp, where these can encode different ones

Groups of ranks within which ZeRO divides are on the grid where they are asked for, and tried beside the best strategy.
Experts that are whole where ep divides dp (etp 1) are on the grid where they are asked for: of six searches of mixtures
of experts none chose them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any, NamedTuple

from automap_models.core.framework import Degrees, Divided
from automap_models.core.schedules import DEFAULT_SCHEDULE, SCHEDULES, require_runnable
from automap_models.core.strategy import ZERO_STAGES, Strategy
from automap_models.errors import BadInput
from automap_models.planners.strategies.problem import (
    PARALLEL,
    SPLIT,
    SPLITTING,
    UNEQUAL,
    SharedCosts,
    StrategyProblem,
)
from automap_models.planners.strategies.subspace_costs import RankCosts
from automap_models.simulate.strategy import MOST_KEPT


class ScheduleChoice(NamedTuple):
    """How the ranks of a pipeline run their passes."""

    schedule: str
    vp: int


class Subspace(NamedTuple):
    """Strategies that differ in nothing but cuts and recomputation."""

    degrees: Degrees
    zero: int
    choice: ScheduleChoice


class Grid:
    """The subspaces of a problem.

    Args:
        problem: whose fixed fields hold.
    """

    def __init__(self, problem: StrategyProblem) -> None:
        self.problem, self.fixed = problem, problem.fixed
        self.precision, self.dispatcher, self.offload = problem.precision, problem.dispatcher, problem.offload
        self.groups: int = problem.fixed.get("dp_replicate", 1)
        self.shape, self.devices, self.within = problem.work.shape, problem.cluster.devices, problem.within
        # Between the ends none is empty; nor is the first one where its blocks read a tower.
        self.most_stages = self.shape.layers + 2 - (self.shape.tower_layers or 0)
        self.divides_samples = bool({"cp", "dp", "micro_batch"} & set(self.fixed))
        self._choices: dict[tuple[int, int], Sequence[ScheduleChoice]] = {}

    def _values(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        return (self.fixed[name],) if name in self.fixed else values

    def degree_sets(self) -> Iterator[Degrees]:
        """All of them that the model and the cluster can be divided by."""
        shape, devices, experts = self.shape, self.devices, self.shape.experts or 1
        without = self.problem.without
        of_devices = [
            self._values(name, (1,) if word in without else divisors(devices)) for name, word in PARALLEL.items()
        ]
        for tp, cp, pp in product(*of_devices):
            dp, odd = divmod(devices, tp * cp * pp)
            samples, split = divmod(self.problem.global_batch, max(dp, 1))
            if odd or split or self.fixed.get("dp", dp) != dp or not self._splits_operators(tp):
                continue
            if shape.sequence % cp or pp > self.most_stages or self.fixed.get("etp") not in (None, 1, tp):
                continue
            etp = self.fixed.get("etp")
            folds = tp * cp * dp // (etp or 1)
            eps = [ep for ep in self._values("ep", divisors(experts)) if not (folds % ep or experts % ep)]
            micro_batches = [size for size in self._values("micro_batch", divisors(samples)) if samples % size == 0]
            shares = self._values("sequence_parallel", (True, False) if tp > 1 else (False,))
            shares = [shared for shared in shares if not shared or shape.sequence % (tp * cp) == 0]
            for ep, micro_batch, shared in product(eps, micro_batches, shares):
                for degrees in self._of_tower(Degrees(tp, cp, ep, pp, dp, micro_batch, shared, etp)):
                    if not self._splits_in_vain(degrees):
                        yield degrees

    def _of_tower(self, degrees: Degrees) -> Iterator[Degrees]:
        """The same with each division of a tower of images that the model and the framework have."""
        tp, cp, heads = degrees.tp, degrees.cp, self.shape.tower_heads or 0
        several = degrees.micro_batch * (self.shape.images or 0) > 1
        tower_tps = [*[tp] * (several and cp > 1), *[1] * (tp > 1 and (several or heads % tp > 0)), None]
        divided = [
            degrees._replace(tower_tp=tower_tp)
            for tower_tp in self._values("tower_tp", tower_tps)
            if heads % (tower_tp or tp) == 0 and tp % (tower_tp or 1) == 0
        ]
        allowed = list(filter(self._has_degrees, divided))
        apart = cp > 1 and any(d.tower_tp == tp for d in allowed)  # then no device of cp has to encode all images
        yield from (d for d in allowed if not apart or d.tower_tp is not None)

    def _splits_in_vain(self, degrees: Degrees) -> bool:
        """Whether sequences are split that could be whole, with smaller micro-batches on more ranks."""
        cp, dp, micro_batch = degrees.cp, degrees.dp, degrees.micro_batch
        if self.divides_samples or (common := gcd(cp, micro_batch)) == 1:
            return False
        for n in divisors(common)[1:]:
            fewer = degrees._replace(cp=cp // n, dp=dp * n, micro_batch=micro_batch // n)
            alike = fewer.expert_tensor == degrees.expert_tensor and self.zeros_of(fewer) == self.zeros_of(degrees)
            if alike and self._has_degrees(fewer):
                return True
        return False

    def _splits_operators(self, tp: int) -> bool:
        shape = self.shape
        keys = shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0
        return not (shape.heads % tp or shape.ffn % tp) and keys

    def _has_degrees(self, degrees: Degrees) -> bool:
        if self.problem.most_ranks is not None and degrees.pp > self.problem.most_ranks:
            return False
        return self.within is None or self.within.degrees_objection(degrees, self.problem.work.facts) is None

    def zeros(self, degrees: Degrees) -> Sequence[int]:
        """Stages of ZeRO that make a difference."""
        zeros = self.zeros_of(degrees)
        if degrees.dp * degrees.cp > 1 or "zero" in self.fixed:
            return zeros
        return [zero for zero in zeros if not zero]

    def zeros_of(self, divided: Divided) -> Sequence[int]:
        """Stages of ZeRO of what divides devices like this, whether they make a difference or not."""
        zeros = self._values("zero", ZERO_STAGES)
        if self.groups > 1:
            zeros = [zero for zero in zeros if zero and self._has_groups(divided)]
        if self.offload != "none" and divided.dp * divided.cp > 1:  # else every host updates all of it
            zeros = [zero for zero in zeros if zero]
        if self.within is None:
            return zeros
        if self.within.offload_objection(self.offload, divided.pp) is not None:
            return ()
        allowed = self.within.zeros_of(divided)
        return [zero for zero in zeros if zero in allowed]

    def _has_groups(self, divided: Divided) -> bool:
        """Whether ranks are in so many groups of several."""
        within, of_experts = self.within, divided.ep * divided.expert_tensor
        ranks = divided.dp, divided.tp * divided.cp * divided.dp // of_experts
        several = divided.dp * divided.cp > self.groups and all(count % self.groups == 0 for count in ranks)
        return several and (within is None or within.replicate_objection(self.groups) is None)

    def schedules(self, degrees: Degrees) -> Sequence[ScheduleChoice]:
        """Schedules with virtual stages that run so many micro-batches."""
        if not self.zeros(degrees):
            return ()
        key = degrees.pp, self.problem.global_batch // (degrees.dp * degrees.micro_batch)
        if key not in self._choices:
            self._choices[key] = self._runnable(*key)
        return self._choices[key]

    def _runnable(self, pp: int, micro_batches: int) -> Sequence[ScheduleChoice]:
        virtual = self.fixed.get("vp")
        if "layers" in self.fixed and virtual is None:
            virtual, odd = divmod(len(self.fixed["layers"]), pp)
            if odd or not virtual:
                return ()
        schedule = self.fixed.get("schedule")
        names = (schedule,) if schedule else self.problem.work.schedules
        choices = _schedules(pp, micro_batches, self.most_stages, names, virtual)
        within = self.within
        if within is not None:
            choices = tuple(
                choice
                for choice in choices
                if within.schedule_objection(choice.schedule, pp, micro_batches, choice.vp) is None
                and (within.cuts != "inner blocks" or pp * choice.vp <= min(self.shape.layers, self.most_stages - 1))
            )
        without = self.problem.without
        return [
            choice
            for choice in choices
            if (UNEQUAL not in without or self._is_even(pp * choice.vp))
            and (SPLIT not in without or choice.schedule not in SPLITTING or pp * choice.vp == 1)
        ]

    def _is_even(self, stages: int) -> bool:
        """Whether virtual stages can be equally large, and the first one has what reads a tower."""
        count, odd = divmod(self.shape.layers, stages)
        return not odd and count >= (self.shape.tower_layers or 0)

    def costs(self, shared: SharedCosts, degrees: Degrees, zero: int) -> RankCosts:
        """Of ranks with a stage of ZeRO, whatever the schedule; what was asked for lately is at hand."""
        key = (degrees, zero, self.groups, self.precision, self.dispatcher, self.offload, self.problem.global_batch)
        if key not in shared.ranks:
            if len(shared.ranks) >= MOST_KEPT:
                shared.ranks.clear()
            shared.ranks[key] = RankCosts(shared.pricing, self.some_strategy(degrees, zero))
        return shared.ranks[key]

    def some_strategy(self, degrees: Degrees, zero: int | None = None) -> Strategy:
        """One with such degrees, and a stage of ZeRO that there is."""
        return self.strategy(
            Subspace(degrees, self.zeros(degrees)[0] if zero is None else zero, self.schedules(degrees)[0])
        )

    def strategy(self, subspace: Subspace, **fields: Any) -> Strategy:
        """A strategy of a family."""
        d = subspace.degrees
        return Strategy(
            micro_batch=d.micro_batch,
            global_batch=self.problem.global_batch,
            tp=d.tp,
            pp=d.pp,
            dp=d.dp,
            dp_replicate=self.groups if subspace.zero else 1,
            vp=subspace.choice.vp,
            cp=d.cp,
            ep=d.ep,
            etp=d.etp,
            tower_tp=d.tower_tp,
            schedule=subspace.choice.schedule,
            zero=subspace.zero,
            sequence_parallel=d.sequence_parallel,
            precision=self.precision,
            dispatcher=self.dispatcher,
            offload=self.offload,
            **fields,
        )


@lru_cache(maxsize=4096)
def _schedules(
    pp: int, micro_batches: int, most_stages: int, names: tuple[str, ...], virtual: int | None
) -> tuple[ScheduleChoice, ...]:
    if pp == 1 and len(names) > 1 and virtual in (None, 1):
        names = (DEFAULT_SCHEDULE,)
    choices = []
    for name in names:
        given = virtual or SCHEDULES[name].virtual  # where it is open, these are tried:
        for vp in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16) if given is None else (given,):
            longer_warm_up = name == "interleaved" and vp == 1 and len(names) > 1  # than 1f1b has, and else the same
            if pp * vp <= most_stages and not longer_warm_up:
                with suppress(BadInput):
                    require_runnable(name, pp, micro_batches, vp)
                    choices.append(ScheduleChoice(name, vp))
    return tuple(choices)


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All of a number, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def neighbours(problem: StrategyProblem, strategy: Strategy) -> Iterator[Subspace]:
    """Subspaces of a problem that differ from a strategy, which may be of another one, in few things but degrees.

    Degrees are its own as far as the problem has them, and micro-batches half, as and twice as large. Of micro-batch,
    ZeRO, and schedule with virtual stages, one thing more differs than of the subspace that is nearest to it.
    """
    values = {name: 1 if word in problem.without else getattr(strategy, name) for name, word in PARALLEL.items()}
    values |= {"ep": strategy.ep, "sequence_parallel": strategy.sequence_parallel and values["tp"] > 1, **problem.fixed}
    fixed = {name: values[name] for name in ("tp", "cp", "pp", "ep", "sequence_parallel")}
    grid = Grid(replace(problem, fixed={**problem.fixed, **fixed}))
    degree_sets = [degrees for degrees in grid.degree_sets() if grid.schedules(degrees)]
    sizes = {degrees.micro_batch for degrees in degree_sets}
    usual = {strategy.micro_batch, 2 * strategy.micro_batch, strategy.micro_batch // 2}
    sizes = sizes & usual or set(sorted(sizes, key=lambda size: abs(size - strategy.micro_batch))[:1])
    choice = ScheduleChoice(strategy.schedule, strategy.vp)
    of_distance: dict[int, list[Subspace]] = {}
    for degrees in degree_sets:
        for zero, other in product(grid.zeros(degrees), grid.schedules(degrees)):
            differing = (degrees.micro_batch != strategy.micro_batch) + (zero != strategy.zero) + (other != choice)
            if degrees.micro_batch in sizes:
                of_distance.setdefault(differing, []).append(Subspace(degrees, zero, other))
    nearest = min(of_distance, default=0)
    yield from (*of_distance.get(nearest, ()), *of_distance.get(nearest + 1, ()))


def oddities(degrees: Degrees, devices_per_node: int, sequence: int) -> int:
    """How many things of a set of degrees are rarely of the best strategy: tensor parallelism across nodes or without
    sequence parallelism, many samples at once, sequences in small pieces."""
    d = degrees
    of_tensor = (d.tp > devices_per_node) + (d.sequence_parallel != (d.tp > 1))
    return of_tensor + (d.micro_batch > 4) + (sequence < 1024 * d.cp)


def usual_degrees(degree_sets: Sequence[Degrees], devices_per_node: int, experts: int) -> list[Degrees]:
    """What a person would try: one or two samples at once, tensor parallelism inside a node, whole sequences."""
    cp = min((d.cp for d in degree_sets), default=1)
    return [
        d
        for d in degree_sets
        if d.tp <= devices_per_node
        and d.sequence_parallel == (d.tp > 1)
        and d.micro_batch <= 2
        and d.cp == cp
        and d.ep in (1, gcd(d.dp, experts))
    ]
