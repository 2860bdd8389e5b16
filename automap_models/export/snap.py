"""A plan moved to what a target can express: the nearest cuts, equal devices, one degree of sharding; costed again.

blocks          │    │    │    │    │    │        boundaries of the target
cuts of a plan     ↑          ↑                   moved to the nearest, each to one of its own
                  │           │
time moved       0.3    +    0.1    blocks is as little as can be
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.framework import Limits
from automap_models.core.profile import FloatArray
from automap_models.core.result import Result
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.strategy import Strategy
from automap_models.core.units import percent, seconds
from automap_models.errors import BadInput, Infeasible
from automap_models.export.layout import boundaries, place_in_words, require_blocks
from automap_models.export.snap_strategy import snapped_strategy
from automap_models.export.sources import StagedSource
from automap_models.formats.strategy_json import WrittenStrategy
from automap_models.simulate.step import step_cost

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

    source: StagedSource | WrittenStrategy
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


def snapped(source: StagedSource, target: str, limits: Limits) -> Snapped:
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
    cuts = _snapped_cuts(problem, plan, target, limits, changes)
    device_cuts = _snapped_devices(problem, plan, target, limits, changes)
    shardings = _snapped_shardings(problem, plan, limits, changes)
    moved = StagedPlan(cuts, device_cuts, plan.micro_batches, PLANNER, problem.grid.to_points(cuts), shardings)
    if not changes:
        return Snapped(source, (), result.cost.step_s, result.cost.step_s)
    valid, objection = moved.check_valid(problem)
    if not valid:
        what = f"cannot be snapped to {target}: {objection}"
        raise BadInput(what, where=f"plan of {source.name}", do=again(target))
    cost = step_cost(problem, moved)
    if not cost.feasible:
        stage = cost.fullest
        what = f"stage {stage} of the plan snapped to {target} needs {cost.memory_bytes[stage] / 1e9:.1f} GB a device"
        do = again(target)
        raise Infeasible(f"{what}, which has {cost.limit_bytes[stage] / 1e9:.1f} GB", where=source.name, do=do)
    after = replace(source, result=Result(problem, moved, cost, "feasible"))
    return Snapped(after, tuple(changes), result.cost.step_s, cost.step_s)


def snapped_source(source: StagedSource | WrittenStrategy, target: str, limits: Limits, price: Price | None) -> Snapped:
    """A plan of stages or a strategy with the least change that makes it one that the target can express.

    Args:
        price: seconds of a step of a strategy; None where its model or cluster is not known.

    Raises:
        BadInput, Infeasible: see `snapped` and `snapped_strategy`; or a strategy cannot be priced.
    """
    if isinstance(source, StagedSource):
        return snapped(source, target, limits)
    before = source.strategy
    after, changes = snapped_strategy(before, limits, source.facts)
    steps_s = (None, None) if price is None else (price(before), price(after))
    return Snapped(replace(source, strategy=after), changes, *steps_s)


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
    if limits.way_objection(schedule, problem.stages, problem.micro_batches) is None:
        return problem
    other = _NEAREST_SCHEDULE[schedule]
    changes.append(f"schedule {other} instead of {schedule}, which {target} does not run")
    return replace(problem, schedule=other)


def _snapped_cuts(
    problem: StagedProblem, plan: StagedPlan, target: str, limits: Limits, changes: list[str]
) -> tuple[int, ...]:
    if limits.cuts == "anywhere":
        return plan.cuts
    profile = problem.profile
    blocks = require_blocks(profile, target, limits)
    allowed = boundaries(profile, blocks, limits)
    cuts = nearest(profile.C, plan.cuts, allowed)
    if cuts is None:
        what = f"{plan.stages} stages, and {target} can cut the model in {len(allowed)} place(s)"
        raise BadInput(what, where=f"plan of {profile.model}", do="plan fewer stages")
    for stage, (before, after) in enumerate(zip(plan.cuts, cuts, strict=True)):
        if before != after:
            place = place_in_words(profile, blocks, after)
            changes.append(f"stage {stage} ends {place} (instruction {after} instead of {before})")
    return cuts


def _snapped_devices(
    problem: StagedProblem, plan: StagedPlan, target: str, limits: Limits, changes: list[str]
) -> tuple[int, ...]:
    devices, stages = problem.cluster.devices, plan.stages
    if not limits.equal_replicas:
        return plan.device_cuts
    count, rest = divmod(devices, stages)
    if rest:
        what = f"{devices} devices do not make {stages} stages of equally many, as {target} has them"
        raise BadInput(what, where=f"plan of {problem.profile.model}", do=again(target))
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
    return tuple(own if degree == least else index for own, degree in zip(plan.shardings, degrees, strict=True))
