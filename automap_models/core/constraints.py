"""What people ask of a plan beside being short: layers pinned to stages or kept together, fewer or equal stages, cuts
between blocks, no technique.

All that says where the model may be cut becomes, for each stage, a window of instructions with which it may begin, and
places where no stage may begin. The windows are as narrow as they can be, so that constraints contradict one another
exactly when a window is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from automap_models.core.framework import StageLimits
from automap_models.core.layers import block_boundaries, boundaries, matches, no_such_layer, scopes_of_instructions
from automap_models.core.microbatch import profiled_fingerprint
from automap_models.core.profile import Profile
from automap_models.errors import BadInput

IntArray = NDArray[np.int64]
Technique = Literal["data", "operator", "pipeline"]
ROUNDING = 1e-9
"""Relative: sums of the same numbers in another order differ by less."""
BLOCKS = "blocks"
"""In place of a pattern to cut at: the ends of the blocks that repeat (core.layers.block_boundaries)."""


@dataclass(frozen=True)
class Pin:
    """The instructions of a layer run in that stage.

    Attributes:
        layer: name of a layer, or a pattern (fnmatch) of names, as in `Constraints`.
        stage: counted from 0.

    Raises:
        BadInput: a negative stage.
    """

    layer: str
    stage: int

    def __post_init__(self) -> None:
        if self.stage < 0:
            raise BadInput(f"stage {self.stage}", where=str(self), do="stages are counted from 0")

    @classmethod
    def parse(cls, text: str) -> Pin:
        """The pin written as LAYER=STAGE.

        Raises:
            BadInput: it is not.
        """
        layer, _, stage = text.rpartition("=")
        if not layer or not stage.isdecimal():
            what = f"{text!r} is not LAYER=STAGE"
            raise BadInput(what, where="`pins`", do="write for example `pins='encoder/block_3=1'`")
        return cls(layer, int(stage))

    def __str__(self) -> str:
        return f"`pins='{self.layer}={self.stage}'`"


@dataclass(frozen=True, eq=False)
class Windows:
    """With which instructions the stages of a plan may begin.

    Attributes:
        least, most: [S] the first and the last of each stage; both strictly ascending, 0 for the first stage.
        allowed: [n] whether any stage may begin with an instruction.
        edges: further instructions with which a stage should be able to begin: the ends of what is kept together.
    """

    least: IntArray
    most: IntArray
    allowed: NDArray[np.bool_]
    edges: IntArray

    def cuts(self, grid: IntArray) -> IntArray:
        """The instructions after which to cut: those given that are allowed, and those that the windows' ends need.

        Every window's ends are among them: where there is any plan, there is one with such cuts.
        """
        begin = np.union1d(grid + 1, np.concatenate((self.least[1:], self.most[1:], self.edges)))
        inside = begin[(begin > 0) & (begin < self.allowed.size)]
        return np.asarray(inside[self.allowed[inside]] - 1)


@dataclass(frozen=True)
class Constraints:
    """Demands on a plan.

    A pattern matches an instruction by its layer: by the whole path, or by the path of a layer that holds it
    (`encoder` and `*/block_3` match `encoder/block_3/attention`). In a profile without layers it is instructions'
    names that are matched.

    Attributes:
        pins: layers that run in a stage of one's choice.
        together: patterns, each of which matches instructions of one stage only, with all that lies between them.
        max_stages: so many at most.
        forbidden: "operator": no stage partitions operators; "data": no stage has more than one replica;
            "pipeline": there is one stage.
        equal_replicas: every stage has equally many devices, as the device meshes of frameworks do.
        cut_at: the model is cut only where a module ends that matches this pattern, or with BLOCKS where a block ends;
            None is anywhere.
        min_stage: of a plan of several stages each holds a trainable parameter, and at least this share of an even
            share (1/S) of the computation or of the parameters' bytes; 0 allows stages without work.
        target: what the framework asks that plans are made for; None for no framework.

    Raises:
        BadInput: no stage at all, a share outside of 0 to 1, or a technique that does not exist.
    """

    pins: tuple[Pin, ...] = ()
    together: tuple[str, ...] = ()
    max_stages: int | None = None
    forbidden: frozenset[Technique] = frozenset()
    equal_replicas: bool = False
    cut_at: str | None = None
    min_stage: float = 0.0
    target: StageLimits | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_stage <= 1.0:
            do = "give 0 to 1 of an even share, such as 0.25; 0 allows stages without work"
            raise BadInput(f"a share of {self.min_stage:g}", where="`min_stage`", do=do)
        if self.max_stages is not None and self.max_stages < 1:
            raise BadInput(f"{self.max_stages} stages", where="`max_stages`", do="give at least 1")
        unknown = sorted(self.forbidden - set(get_args(Technique)))
        if unknown:
            what = f"unknown technique {unknown[0]!r}"
            raise BadInput(what, where="`forbidden`", do=f"choose from {', '.join(get_args(Technique))}")

    @property
    def in_words(self) -> str:
        """They as arguments, such as "`cut_at='blocks'` and `equal_replicas`"; empty where nothing is asked."""
        named = [*map(str, self.pins), *map(_together, self.together)]
        named += [] if self.max_stages is None else [f"`max_stages={self.max_stages}`"]
        named += [f"`forbidden='{technique}'`" for technique in sorted(self.forbidden)]
        named += [] if self.cut_at is None else [_cut_at(self.cut_at)]
        named += ["`equal_replicas`"] if self.equal_replicas else []
        return " and ".join(named)

    @property
    def only_work(self) -> bool:
        """Whether they ask for nothing, but perhaps that every stage holds work."""
        return replace(self, min_stage=0.0) == UNCONSTRAINED

    @property
    def restrict_cuts(self) -> bool:
        """Whether they say anything about where the model may be cut."""
        return bool(self.pins or self.together or self.cut_at is not None)

    def check_devices(self, devices: int, stages: int) -> None:
        """Nothing, where so many stages can share out the devices as asked.

        Raises:
            BadInput: they cannot have equally many.
        """
        if self.equal_replicas and devices % stages:
            numbers = [str(number) for number in range(1, devices + 1) if devices % number == 0]
            what = f"{devices} devices do not make {stages} stages of equally many"
            do = f"take one of {', '.join(numbers)} stages, or leave it out"
            raise BadInput(what, where="`equal_replicas`", do=do)

    def check(self, profile: Profile) -> None:
        """Nothing, where some number of stages allows plans of the profile that satisfy them.

        Raises:
            BadInput: a pattern matches nothing, or some of them contradict one another: mostly two, which are named.
        """
        demands = self._demands(profile)
        if isinstance(_narrowed(demands, profile), str):
            raise _conflict(demands, profile)

    def allow(self, profile: Profile, devices: int, stages: int) -> bool:
        """Whether there are plans of so many stages that satisfy them, as far as cuts and equal stages go.

        Raises:
            BadInput: as `check`.
        """
        self.check(profile)
        if self.equal_replicas and devices % stages:
            return False
        return isinstance(_narrowed((*self._demands(profile), _exactly(stages)), profile), Windows)

    def windows(self, profile: Profile, stages: int) -> Windows:
        """With which instructions so many stages may begin.

        Raises:
            BadInput: as `check`, or with the number of stages for one of the two that contradict one another.
        """
        self.check(profile)
        demands = (*self._demands(profile), _exactly(stages))
        windows = _narrowed(demands, profile)
        if isinstance(windows, str):
            raise _conflict(demands, profile)
        return windows

    def broken_by(self, profile: Profile, cuts: Sequence[int], degrees: Sequence[tuple[int, int]]) -> str | None:
        """Which of them a plan of that profile breaks; None where it satisfies all.

        Args:
            profile: of the model that is cut.
            cuts: [S-1] last instruction of each stage but the last.
            degrees: [S] replicas and degree of operator partitioning of each stage.
        """
        return next(self._broken(profile, cuts, degrees), None)

    def _broken(self, profile: Profile, cuts: Sequence[int], degrees: Sequence[tuple[int, int]]) -> Iterator[str]:
        first = [0, *(cut + 1 for cut in cuts)]
        stage_of = np.searchsorted(first, np.arange(len(profile)), side="right") - 1
        for pin in self.pins:
            if set(stage_of[_matching(profile, pin.layer, str(pin))]) != {pin.stage}:
                yield str(pin)
        for pattern in self.together:
            if len(set(stage_of[_matching(profile, pattern, _together(pattern))])) > 1:
                yield _together(pattern)
        if self.max_stages is not None and len(degrees) > self.max_stages:
            yield f"`max_stages={self.max_stages}`"
        if self.cut_at is not None and not set(cuts) <= set(_places(profile, self.cut_at)):
            yield _cut_at(self.cut_at)
        if self.equal_replicas and len({d * t for d, t in degrees}) > 1:
            yield "`equal_replicas`"
        idle = stages_without_work(profile, cuts, self.min_stage)
        if idle:
            yield f"`min_stage={self.min_stage:g}` in stage {idle[0]}"
        replicas, shared = zip(*degrees, strict=True)
        used = {"data": max(replicas) > 1, "operator": max(shared) > 1, "pipeline": len(degrees) > 1}
        yield from (f"`forbidden='{technique}'`" for technique in sorted(self.forbidden) if used[technique])

    def _demands(self, profile: Profile) -> tuple[_Demand, ...]:
        """What they say about stages and instructions, one by one."""
        demands = []
        for pin in self.pins:
            pinned = _matching(profile, pin.layer, str(pin))
            demands.append(_Demand(str(pin), int(pinned[0]), int(pinned[-1]), pin.stage, least_stages=pin.stage + 1))
        for pattern in self.together:
            pinned = _matching(profile, pattern, _together(pattern))
            demands.append(_Demand(_together(pattern), int(pinned[0]), int(pinned[-1])))
        if self.cut_at is not None:
            one_series = "" if self.target is None else self.target.one_series
            demands.append(_Demand(_cut_at(self.cut_at), places=_places(profile, self.cut_at, one_series)))
        if self.max_stages is not None:
            demands.append(_Demand(f"`max_stages={self.max_stages}`", most_stages=self.max_stages))
        if "pipeline" in self.forbidden:
            demands.append(_Demand("`forbidden='pipeline'`", most_stages=1))
        return tuple(demands)


@dataclass(frozen=True)
class _Demand:
    """That the instructions first … last run in one stage, in `stage` if that is given; or that the model is cut after
    some of the instructions `places` only; or a number of stages.
    """

    text: str
    first: int = 0
    last: int = 0
    stage: int | None = None
    least_stages: int = 1
    most_stages: int | None = None
    places: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.places is not None:
            return f"{self.text} (which allows {len(self.places)} cuts)"
        return self.text if self.most_stages else f"{self.text} (instructions {self.first}…{self.last})"

    @property
    def edges(self) -> tuple[int, ...]:
        """Instructions with which a stage should be able to begin."""
        if self.places is not None:
            return tuple(place + 1 for place in self.places)
        return () if self.most_stages else (self.first, self.last + 1)


@dataclass(frozen=True)
class _Model:
    """A profile whose micro-batch size does not matter."""

    fingerprint: str
    layers: tuple[str, ...]
    names: tuple[str, ...]
    profile: Profile = field(compare=False)


def _places(profile: Profile, cut_at: str, one_series: str = "") -> tuple[int, ...]:
    """The instructions after which the model may be cut.

    Raises:
        BadInput: no module matches, or nothing repeats (`block_boundaries`).
    """
    model = _Model(profiled_fingerprint(profile), profile.layers, profile.names, profile)
    return _places_of_model(model, cut_at, one_series)


@lru_cache(maxsize=16)
def _places_of_model(model: _Model, cut_at: str, one_series: str) -> tuple[int, ...]:
    return block_boundaries(model.profile, one_series) if cut_at == BLOCKS else boundaries(model.profile, cut_at)


def _cut_at(pattern: str) -> str:
    return f"`cut_at='{pattern}'`"


def _exactly(stages: int) -> _Demand:
    return _Demand(f"`stages={stages}`", least_stages=stages, most_stages=stages)


def _together(pattern: str) -> str:
    return f"`together='{pattern}'`"


def _narrowed(demands: Sequence[_Demand], profile: Profile) -> Windows | str:
    """The windows of the fewest stages that the demands ask for, or why there is none."""
    n, stages = len(profile), max((demand.least_stages for demand in demands), default=1)
    limit = min((demand.most_stages for demand in demands if demand.most_stages), default=stages)
    if stages > limit:
        return f"{stages} stages, 0…{stages - 1}, are more than {limit}"
    allowed = np.ones(n + 1, dtype=bool)
    least, most = np.arange(stages), np.arange(stages) + n - stages
    most[0] = 0
    for demand in demands:
        if demand.places is not None:
            begin = np.array(demand.places, dtype=np.int64) + 1
            allowed[np.setdiff1d(np.arange(1, n), begin)] = False
            continue
        allowed[demand.first + 1 : demand.last + 1] = False
        if demand.stage is not None:
            most[demand.stage] = min(most[demand.stage], demand.first)
            if demand.stage + 1 < stages:
                least[demand.stage + 1] = max(least[demand.stage + 1], demand.last + 1)
    places = np.flatnonzero(allowed)
    for s in range(1, stages):
        least[s] = places[np.searchsorted(places, min(max(least[s], least[s - 1] + 1), n))]
    for s in range(stages - 1, 0, -1):
        after = most[s + 1] - 1 if s + 1 < stages else n - 1
        most[s] = places[np.searchsorted(places, max(min(most[s], after), 0), side="right") - 1]
    empty = np.flatnonzero(least > most)
    if empty.size:
        s, first = int(empty[0]), int(least[empty[0]])
        words = f"begin with instruction {first} or a later one" if first < n else "begin past the model's end"
        return f"stage {s} would have to {words}, and with instruction {most[s]} or an earlier one"
    edges = [edge for demand in demands for edge in demand.edges]
    return Windows(least, most, allowed[:n], np.array(edges, dtype=np.int64))


def _conflict(demands: Sequence[_Demand], profile: Profile) -> BadInput:
    """The error for demands that contradict one another, naming as few as can be: two where two do."""
    for count in (1, 2):
        for some in combinations(demands, count):
            reason = _narrowed(some, profile)
            if isinstance(reason, str):
                return _refusal(some, reason)
    fewest = list(demands)
    for demand in demands:
        fewer = [other for other in fewest if other is not demand]
        if isinstance(_narrowed(fewer, profile), str):
            fewest = fewer
    return _refusal(fewest, str(_narrowed(fewest, profile)))


def _refusal(demands: Sequence[_Demand], reason: str) -> BadInput:
    do = "drop one of them" if len(demands) > 1 else "drop it"
    return BadInput(reason, where=" and ".join(map(str, demands)), do=do)


def _matching(profile: Profile, pattern: str, where: str) -> IntArray:
    """The instructions that a pattern matches, ascending.

    Raises:
        BadInput: there are none, or the profile tells neither layers nor names.
    """
    of_instructions = scopes_of_instructions(profile, where)
    chosen = {scopes for scopes in set(of_instructions) if any(matches(scope, pattern) for scope in scopes)}
    if not chosen:
        raise no_such_layer(pattern, of_instructions, where)
    return np.array([i for i, scopes in enumerate(of_instructions) if scopes in chosen], dtype=np.int64)


UNCONSTRAINED = Constraints()
"""No demands."""


def least_work(profile: Profile, stages: int, min_stage: float) -> tuple[float, float]:
    """Seconds of computation and bytes of parameters of which a stage holds one or the other, at least.

    A fully-connected layer computes little and holds most parameters: either is work (cost-model.md, "Plans an engineer
    would run").

    Args:
        profile: of the model.
        stages: S, of which an even share is 1/S.
        min_stage: see `Constraints`.
    """
    share = min_stage / stages
    return share * float(profile.C.sum()), share * float(profile.W.sum())


def stages_without_work(profile: Profile, cuts: Sequence[int], min_stage: float) -> list[int]:
    """The stages of a plan that hold less than `least_work`, or no trainable parameter where any stage could."""
    if not (min_stage and cuts):
        return []
    begins = [0, *(cut + 1 for cut in cuts)]
    work_s, nbytes = np.add.reduceat(profile.C, begins), np.add.reduceat(profile.W, begins)
    least_s, least_bytes = least_work(profile, len(begins), min_stage)
    little = (work_s < least_s * (1.0 - ROUNDING)) & (nbytes < least_bytes * (1.0 - ROUNDING))
    untrained = (nbytes <= 0.0) & bool(profile.W.any())
    return [int(s) for s in np.flatnonzero(little | untrained)]
