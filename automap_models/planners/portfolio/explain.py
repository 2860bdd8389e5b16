"""Explanations: why a plan loses, why there is none of a kind, and why none fits.

What every plan needs at least is said, and what would help. Whatever is said to fit does: for each a plan is
made that packs the memory (staged.feasibility).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from automap_models.core.estimate import strategy_in_words
from automap_models.core.mesh import PlanKind
from automap_models.core.staged import StagedProblem
from automap_models.core.units import counted, rounds, seconds, size
from automap_models.cost.collectives import devices_per_node
from automap_models.cost.staged import stage_weights_bytes
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.portfolio.candidate import Candidate, one_stage_plans
from automap_models.planners.portfolio.profile_strategy import best_strategy
from automap_models.planners.portfolio.space import PlanningSpace, possible_stages, staged_problems
from automap_models.planners.staged.costs import StagedResult, untrained_in_words
from automap_models.planners.staged.feasibility import least_share, plans_fit
from automap_models.planners.staged.improve import Moves
from automap_models.planners.staged.stage_arrays import StageArrays
from automap_models.planners.staged.stage_devices import MOST_DEVICES
from automap_models.planners.staged.step_bounds import BIG
from automap_models.simulate.plan_step import step_cost

NEARLY = 0.95
"""Of the memory: a plan that takes more would rather have taken another shape."""
SLIGHT = 0.005
"""Plans that differ relatively by less are equal to a reader."""
_TECHNIQUES: dict[PlanKind, tuple[str, ...]] = {
    "data": ("data",),
    "operator": ("operator",),
    "pipeline": ("pipeline",),
    "hybrid": ("operator", "pipeline"),
}
"""What a kind of plan cannot do without."""
_RULED_OUT = "ruled out by what is asked of the stages"


def explain_loss(loser: Candidate, best: Candidate) -> str:
    """Why a plan loses: about the memory if it does not fit, else about what it has most more of than the best one."""
    if not loser.fits:
        return _does_not_fit(loser)
    if loser.step_s <= best.step_s * (1.0 + SLIGHT):
        return f"within {100 * SLIGHT:g} % of the best"
    explained: dict[str, Callable[[Candidate], str] | str] = {
        "gradients_s": _gradients,
        "activations_s": _activations,
        "bubble_s": "idle time",
        "transfers_s": "transfers between stages",
        "tied_s": "sum of tied weights' gradients",
        "update_s": "update of its parameters",
        "compute_s": _compute,
    }
    ours, theirs = loser.parts, best.parts
    part = max(explained, key=lambda name: getattr(ours, name) - getattr(theirs, name))
    words = explained[part]
    return f"{words}: {_share(loser, getattr(ours, part))}" if isinstance(words, str) else words(loser)


def _does_not_fit(loser: Candidate) -> str:
    needed, have = loser.memory_bytes, loser.limit_bytes
    parts = loser.parts
    what, part = max(
        (("training state", parts.state_bytes), ("activations", parts.stash_bytes)), key=lambda named: named[1]
    )
    return f"does not fit: {size(needed)} of {size(have)}, {size(part)} of it {what}"


def _gradients(loser: Candidate) -> str:
    stage = loser.parts.last_reduced
    weights = stage_weights_bytes(loser.problem, loser.plan)[stage]
    first, last = loser.plan.stage_devices(loser.problem.cluster.devices)[stage]
    nodes = int((devices_per_node(loser.problem.cluster, first, last + 1) > 0).sum())
    over = f"{nodes} nodes" if nodes > 1 else f"{last - first + 1} devices"
    return f"gradient all-reduce of {size(weights)} over {over}: {_share(loser, loser.parts.gradients_s)}"


def _activations(loser: Candidate) -> str:
    stage = loser.parts.bottleneck // 2
    sharding = loser.problem.all_shardings[loser.plan.shardings[stage]]
    first, last = loser.plan.stage_instructions(len(sharding))[stage]
    span = slice(first, last + 1)
    d, t = loser.degrees[stage]
    reduced = float(sharding.reduced_fwd[span].sum() + sharding.reduced_bwd[span].sum()) / d
    share = _share(loser, loser.parts.activations_s)
    return f"all-reduces of activations over {t} devices, {size(reduced)} a micro-batch: {share}"


def _compute(loser: Candidate) -> str:
    problem = loser.problem
    even_s = problem.micro_batches * float(problem.profile.C.sum()) / problem.capacity
    over = loser.parts.compute_s / even_s - 1.0
    if loser.plan.stages > 1:
        uneven = f"uneven stages: the slowest one computes {100 * over:.0f} % longer than an even share"
        needed, have = loser.memory_bytes, loser.limit_bytes
        return uneven if needed < NEARLY * have else f"{uneven}, for want of memory ({size(needed)} of {size(have)})"
    if problem.slowdowns is not None:
        return f"fast devices wait for the slowest one: it computes {100 * over:.0f} % longer than an even share"
    return f"what it leaves whole is computed on every device: {100 * over:.0f} % more computation"


def _share(loser: Candidate, part_s: float) -> str:
    return f"{100 * part_s / loser.step_s:.0f} % of the step"


def explain_missing(kind: PlanKind, space: PlanningSpace, searched: StagedResult | None) -> str:
    """Why there is no plan of a kind to show.

    Args:
        searched: what the search for plans of that kind came to, if there was one.
    """
    constraints = space.constraints
    forbidden = [f"`forbidden='{name}'`" for name in _TECHNIQUES[kind] if name in constraints.forbidden]
    if forbidden:
        return f"ruled out by {' and '.join(forbidden)}"
    if kind in ("operator", "hybrid") and not space.model.shardings:
        nothing = "no dimension divides by devices of this cluster"
        return nothing if space.model.batch_dims is not None else "a profile has no operations to partition"
    if kind in ("data", "operator"):
        return _explain_one_stage(space)
    return _explain_several(kind, space, searched)


def _explain_several(kind: PlanKind, space: PlanningSpace, searched: StagedResult | None) -> str:
    if not space.several:
        return "ruled out by `max_stages`" if space.constraints.max_stages == 1 else "there is nowhere to cut"
    if searched is None or not searched.search_log:
        return _RULED_OUT
    problems, unfinished = len(searched.search_log), sum(log.outcome == "planned" for log in searched.search_log)
    if kind == "hybrid":
        remark = f"{unfinished} of {problems} combinations not searched to the end"
        return f"none is shorter than the best: {remark if unfinished else 'proven'}"
    return "none that fits was found in time" if unfinished else _explain_no_pipeline(space)


def _explain_one_stage(space: PlanningSpace) -> str:
    constraints = space.constraints
    devices = space.cluster.devices
    if not space.allows(1):
        return _RULED_OUT
    if "data" in constraints.forbidden:
        return f"no dimension divides by all {devices} devices, and `forbidden='data'` allows no replicas"
    return f"{space.global_batch} samples do not give each of {devices} devices one"


def _explain_no_pipeline(space: PlanningSpace) -> str:
    constraints = replace(space.constraints, forbidden=frozenset((*space.constraints.forbidden, "operator")))
    needed, _ = least_memory(replace(space, constraints=constraints), staged_only=True)
    if math.isinf(needed):
        return "stages cannot share out the devices with as few replicas as they may have"
    restrictions = space.constraints.in_words
    subject = f"each with {restrictions}" if restrictions else "each"
    return f"does not fit: {subject} needs {needed / 1e9:.4g} GB or more on its fullest device"


# ---- nothing fits

SLACK = 2e-3
"""How much more memory than the least, relatively, the plan gets that verifies it: twice the bisection's precision."""
NODES_S, MOST_TIMES = 5.0, 8
"""Counted seconds for the number of nodes, and so many times those there are at most."""


def nothing_fits(space: PlanningSpace) -> tuple[Infeasible, bool]:
    """The error for a space of which no plan was found, and whether it is proven that there is none."""
    where, have = space.model.profile.model, space.cluster.memory
    least, nearest = least_memory(space)
    if nearest is None:
        return _cannot_share(space), True
    if least <= have:
        return _unsatisfied(nearest), False
    roomier = replace(space, cluster=space.cluster.with_memory(least * (1.0 + SLACK)))
    plan = _some_plan(roomier)
    do = [] if plan is None else [f"devices with {plan.memory_bytes / 1e9:.4g} GB would fit ({plan.name})"]
    if (stages := _other_stages(space)) is not None:
        do.insert(0, f"`stages={stages}` would fit")
    if (nodes := _fewest_nodes(space)) is not None:
        do.append(f"{nodes} nodes like these would fit")
    if not isinstance(strategy := best_strategy(space), str):
        do.insert(
            0, f"automap plan fits it: {strategy_in_words(strategy.cost)}, {seconds(strategy.cost.step_s)} a step"
        )
    return Infeasible(
        f"no plan fits the {have / 1e9:.4g} GB of cluster {space.cluster.name}: every one needs "
        f"{least / 1e9:.4g} GB or more on its fullest device{_nearest(plan)}",
        where=where,
        do=", ".join(do),
    ), True


def _cannot_share(space: PlanningSpace) -> Infeasible:
    """The error where the devices cannot be shared out at all."""
    where, words = space.model.profile.model, space.constraints.in_words
    shape = f"{_range(space.stage_numbers, 'stage')} in {_range(space.counts, 'micro-batch', 'es')}"
    if space.constraints.target is not None:
        return Infeasible(
            f"the framework planned for trains no plan of {shape}: it asks for whole samples, and some for a "
            "micro-batch a stage or for stages that share no weight",
            where=where,
            do="take other numbers of stages or micro-batches, or another framework",
        )
    return Infeasible(
        f"no plan of {shape} gives each of the {space.cluster.devices} devices of cluster {space.cluster.name} a sample"
        f"{f' and is as {words} ask' if words else ''}",
        where=where,
        do="give a larger `global_batch`, a smaller cluster or fewer constraints, or take other numbers of stages",
    )


def _unsatisfied(nearest: StagedProblem) -> Infeasible:
    """The error where the memory would do, but no plan was found."""
    where, constraints, fits = nearest.profile.model, nearest.constraints, f"{_shape(nearest)} would fit"
    if constraints.min_stage:
        do = "take other numbers of stages, or `min_stage=0`, which allows stages without work"
        return Infeasible(f"no plan was found in which every stage holds work: {fits} otherwise", where=where, do=do)
    words = f" with {constraints.in_words}" if constraints.in_words else ""
    what = f"no plan{words} was found in time: {fits} the memory"
    return Infeasible(what, where=where, do="allow more time, or ask for less")


def _shape(problem: StagedProblem) -> str:
    stages = "data parallelism" if problem.stages == 1 else counted(problem.stages, "stage")
    return f"{stages} in {rounds(problem.micro_batches)}"


def _nearest(plan: Candidate | None) -> str:
    """Which plan comes nearest, and what of its fullest device's memory is not trained."""
    if plan is None:
        return ""
    stage, several = int(plan.cost.fullest), plan.plan.stages > 1
    untrained = untrained_in_words(plan.problem, plan.plan, stage).rstrip(", ")
    by = f", by stage {stage}" if several else ""
    return f": {_shape(plan.problem)} come{'' if several else 's'} nearest{by}{f', {untrained}' if untrained else ''}"


def least_memory(space: PlanningSpace, *, staged_only: bool = False) -> tuple[float, StagedProblem | None]:
    """Bytes that the fullest device of any plan needs at least, to 0.1 %, where that is more than the devices have.

    Args:
        staged_only: whether plans of one stage are left out.

    Returns:
        The bytes, and the problem whose plans need no more; inf and None where no plan satisfies the constraints.
    """
    have, one_stage = space.cluster.memory, [] if staged_only else one_stage_plans(space)
    best = min(one_stage, key=lambda plan: plan.memory_bytes, default=None)
    least, nearest = (np.inf, None) if best is None else (best.memory_bytes, best.problem)
    for problem, stages in _every_problem(space):
        if least > have and plans_fit(stages, min(least / have, BIG)):
            least, nearest = have * least_share(stages), problem
    return least, nearest


def _every_problem(space: PlanningSpace) -> Iterator[tuple[StagedProblem, StageArrays]]:
    """All problems of several stages that can share out the devices, the smallest micro-batches first."""
    for problem in sorted(staged_problems(space), key=lambda problem: -problem.micro_batches):
        stages = possible_stages(problem) if space.for_target(problem) else None
        if stages is not None:
            yield problem, stages


def _some_plan(space: PlanningSpace) -> Candidate | None:
    """A plan that fits, with one stage where that does; None where there is none."""
    fitting = [plan for plan in one_stage_plans(space) if plan.fits]
    if fitting:
        return min(fitting, key=lambda plan: plan.memory_bytes)
    for problem, _ in _every_problem(space):
        for plan in Moves(problem).packed():
            return Candidate(problem, plan, step_cost(problem, plan))
    return None


def _other_stages(space: PlanningSpace) -> int | None:
    """Another number of stages that would fit, the nearest one; None where all were looked at."""
    free = replace(space, stages=None)
    stage_numbers, middle = space.stage_numbers, space.stage_numbers[-1]
    for stages in sorted({*free.stage_numbers} - {*stage_numbers}, key=lambda stages: (abs(stages - middle), stages)):
        if _some_plan(replace(space, stages=(stages,))) is not None:
            return stages
    return None


def _fewest_nodes(space: PlanningSpace) -> int | None:
    """The fewest nodes on which a plan fits, by doubling and bisection; None if that is none, or not found in time."""
    if space.cluster.groups:  # of which nodes there should be more, nobody says
        return None
    most = min(MOST_TIMES * space.cluster.nodes, MOST_DEVICES // space.cluster.devices_per_node)
    deadline, low, high = Deadline(NODES_S, effort.counted_s), space.cluster.nodes, 2 * space.cluster.nodes
    try:
        while high <= most and not _fits(space, high, deadline):
            low, high = high, 2 * high
        while high <= most and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _fits(space, middle, deadline) else (middle, high)
    except OutOfTime:
        return None
    return high if high <= most else None


def _fits(space: PlanningSpace, nodes: int, deadline: Deadline) -> bool:
    """Whether a plan fits so many nodes.

    Raises:
        OutOfTime: before that is known.
    """
    larger = replace(space, cluster=replace(space.cluster, nodes=nodes))
    if any(plan.fits for plan in one_stage_plans(larger)):
        return True
    for _, stages in _every_problem(larger):
        deadline.check()
        if plans_fit(stages):
            return True
    return False


def _range(numbers: Sequence[int], noun: str, plural: str = "s") -> str:
    """`1 stage`, `1 to 16 stages`."""
    first = f"{numbers[0]} to " if len(numbers) > 1 else ""
    return f"{first}{numbers[-1]} {noun}{plural if numbers[-1] > 1 else ''}"
