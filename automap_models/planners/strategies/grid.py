"""The grid of strategies: all that fixed fields leave open but cuts and recomputation, family by family.

    family     tp · cp · dp · pp = devices, ep | dp, vp, micro-batch | global batch / dp, schedule, ZeRO, SP;
               an ep that is given may divide tp · cp · dp instead
    strategy   a family with the layers of each virtual stage, and what each recomputes of how many of its blocks;
               no virtual stage is empty but for blocks at the ends of the model

Left out is what a strategy on the grid is never slower and never fuller than, unless it is fixed:

    one rank of the pipeline      any schedule and virtual stages but 1F1B without: nothing is there to wait for; in a
                                  model of several kinds of blocks they would only let it recompute other blocks first
    one rank of data parallelism  ZeRO: nothing is there to be divided
    tp 1                          sequence parallelism, for the same reason
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any, NamedTuple

from automap_models.core.framework import Divided
from automap_models.core.schedules import DEFAULT_SCHEDULE, SCHEDULES, require_runnable
from automap_models.core.strategy import ZERO_STAGES, Strategy, expert_tensor
from automap_models.errors import BadInput
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.planners.strategies.simplicity import PARALLEL, SPLIT, SPLITTING, UNEQUAL


class Division(NamedTuple):
    """Into what devices and samples are divided; what a layer takes follows from it."""

    tp: int
    cp: int
    ep: int
    pp: int
    dp: int
    micro_batch: int
    sequence_parallel: bool

    @property
    def expert_tensor(self) -> int:
        """Devices that share every expert."""
        return expert_tensor(self.tp, self.dp, self.ep)


class Way(NamedTuple):
    """How the ranks of a pipeline run their passes."""

    schedule: str
    vp: int


class Family(NamedTuple):
    """Strategies that differ in nothing but cuts and recomputation."""

    division: Division
    zero: int
    way: Way


class Grid:
    """The families of a problem.

    Args:
        problem: whose fixed fields hold.
    """

    def __init__(self, problem: StrategyProblem) -> None:
        self.problem, self.fixed = problem, problem.fixed
        self.precision = problem.precision
        self.shape, self.devices, self.within = problem.work.shape, problem.cluster.devices, problem.within

    def _values(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        return (self.fixed[name],) if name in self.fixed else values

    def divisions(self) -> Iterator[Division]:
        """All of them that the model and the cluster can be divided by."""
        shape, devices, experts = self.shape, self.devices, self.shape.experts or 1
        without = self.problem.without
        of_devices = [
            self._values(name, (1,) if word in without else _divisors(devices)) for name, word in PARALLEL.items()
        ]
        for tp, cp, pp in product(*of_devices):
            dp, odd = divmod(devices, tp * cp * pp)
            samples, split = divmod(self.problem.global_batch, max(dp, 1))
            if odd or split or self.fixed.get("dp", dp) != dp or not self._splits_operators(tp):
                continue
            if shape.sequence % cp or pp > shape.layers + 2:
                continue
            eps = [ep for ep in self._values("ep", _divisors(dp)) if not (tp * cp * dp % ep or experts % ep)]
            micro_batches = [of for of in self._values("micro_batch", _divisors(samples)) if samples % of == 0]
            shares = self._values("sequence_parallel", (True, False) if tp > 1 else (False,))
            for ep, micro_batch, shared in product(eps, micro_batches, shares):
                division = Division(tp, cp, ep, pp, dp, micro_batch, shared)
                if (not shared or shape.sequence % (tp * cp) == 0) and self._has_division(division):
                    yield division

    def _splits_operators(self, tp: int) -> bool:
        shape = self.shape
        keys = shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0
        return shape.heads % tp == 0 and shape.ffn % tp == 0 and keys

    def _has_division(self, division: Division) -> bool:
        if self.problem.most_ranks is not None and division.pp > self.problem.most_ranks:
            return False
        return self.within is None or self.within.division_objection(division, self.problem.work.facts) is None

    def zeros(self, division: Division) -> Sequence[int]:
        """Stages of ZeRO that make a difference."""
        alone = division.dp * division.cp == 1 and "zero" not in self.fixed
        return [zero for zero in self.zeros_of(division) if not (alone and zero)]

    def zeros_of(self, divided: Divided) -> Sequence[int]:
        """Stages of ZeRO of what divides devices like this, whether they make a difference or not."""
        zeros = self._values("zero", ZERO_STAGES)
        if self.within is None:
            return zeros
        allowed = self.within.zeros_of(divided)
        return [zero for zero in zeros if zero in allowed]

    def ways(self, division: Division) -> Sequence[Way]:
        """Schedules with virtual stages that run so many micro-batches."""
        micro_batches = self.problem.global_batch // (division.dp * division.micro_batch)
        virtual = self.fixed.get("vp")
        if "layers" in self.fixed and virtual is None:
            virtual, odd = divmod(len(self.fixed["layers"]), division.pp)
            if odd or not virtual:
                return ()
        schedule = self.fixed.get("schedule")
        names = (schedule,) if schedule else self.problem.work.schedules
        ways = _ways(division.pp, micro_batches, self.shape.layers, names, virtual)
        within = self.within
        if within is not None:
            ways = tuple(
                way
                for way in ways
                if within.way_objection(way.schedule, division.pp, micro_batches, way.vp) is None
                and (within.cuts != "inner blocks" or division.pp * way.vp <= self.shape.layers)
            )
        if not self.zeros(division):
            return ()
        without = self.problem.without
        return [
            way
            for way in ways
            if (UNEQUAL not in without or self.shape.layers % (division.pp * way.vp) == 0)
            and (SPLIT not in without or way.schedule not in SPLITTING or division.pp * way.vp == 1)
        ]

    def strategy(self, family: Family, **fields: Any) -> Strategy:
        """A strategy of a family."""
        d = family.division
        return Strategy(
            micro_batch=d.micro_batch,
            global_batch=self.problem.global_batch,
            tp=d.tp,
            pp=d.pp,
            dp=d.dp,
            vp=family.way.vp,
            cp=d.cp,
            ep=d.ep,
            schedule=family.way.schedule,
            zero=family.zero,
            sequence_parallel=d.sequence_parallel,
            precision=self.precision,
            **fields,
        )


@lru_cache(maxsize=4096)
def _ways(pp: int, micro_batches: int, layers: int, names: tuple[str, ...], virtual: int | None) -> tuple[Way, ...]:
    if pp == 1 and len(names) > 1 and virtual in (None, 1):
        names = (DEFAULT_SCHEDULE,)
    ways = []
    for name in names:
        given = virtual or SCHEDULES[name].virtual  # where it is open, these are tried:
        for vp in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16) if given is None else (given,):
            longer_warm_up = name == "interleaved" and vp == 1 and len(names) > 1  # than 1f1b has, and else the same
            if pp * vp <= layers + 2 and not longer_warm_up:
                with suppress(BadInput):
                    require_runnable(name, pp, micro_batches, vp)
                    ways.append(Way(name, vp))
    return tuple(ways)


@lru_cache(maxsize=4096)
def _divisors(number: int) -> tuple[int, ...]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def neighbours(problem: StrategyProblem, strategy: Strategy) -> Iterator[Family]:
    """Families of a problem that differ from a strategy, which may be of another one, in few things but degrees.

    Degrees are its own as far as the problem has them, and micro-batches half, as and twice as large. Of micro-batch,
    ZeRO, and schedule with virtual stages, one thing more differs than of the family that is nearest to it.
    """
    own = {name: 1 if word in problem.without else getattr(strategy, name) for name, word in PARALLEL.items()}
    own |= {"ep": strategy.ep, "sequence_parallel": strategy.sequence_parallel and own["tp"] > 1, **problem.fixed}
    fixed = {name: own[name] for name in ("tp", "cp", "pp", "ep", "sequence_parallel")}
    grid = Grid(replace(problem, fixed={**problem.fixed, **fixed}))
    divisions = [division for division in grid.divisions() if grid.ways(division)]
    sizes = {division.micro_batch for division in divisions}
    usual = {strategy.micro_batch, 2 * strategy.micro_batch, strategy.micro_batch // 2}
    sizes = sizes & usual or set(sorted(sizes, key=lambda size: abs(size - strategy.micro_batch))[:1])
    way = Way(strategy.schedule, strategy.vp)
    of_distance: dict[int, list[Family]] = {}
    for division in divisions:
        for zero, other in product(grid.zeros(division), grid.ways(division)):
            differing = (division.micro_batch != strategy.micro_batch) + (zero != strategy.zero) + (other != way)
            if division.micro_batch in sizes:
                of_distance.setdefault(differing, []).append(Family(division, zero, other))
    nearest = min(of_distance, default=0)
    yield from (*of_distance.get(nearest, ()), *of_distance.get(nearest + 1, ()))


def usual_divisions(divisions: Sequence[Division], devices_per_node: int, experts: int) -> list[Division]:
    """What a person would try: one or two samples at once, tensor parallelism inside a node, whole sequences."""
    cp = min((d.cp for d in divisions), default=1)
    return [
        d
        for d in divisions
        if d.tp <= devices_per_node
        and d.sequence_parallel == (d.tp > 1)
        and d.micro_batch <= 2
        and d.cp == cp
        and d.ep in (1, gcd(d.dp, experts))
    ]
