"""Explanations: why a plan loses, why there is none of a kind, what would have to change for one to fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from automap_models.core.mesh import PlanKind
from automap_models.core.units import size
from automap_models.cost.collectives import devices_per_node
from automap_models.cost.staged import stage_weights_bytes
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.misfit import least_memory
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.costs import StagedResult

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
