"""Why there is no plan of a kind to show: one sentence."""

from __future__ import annotations

import math
from dataclasses import replace

from automap_models.core.constraints import Constraints
from automap_models.planners.portfolio.candidate import Kind
from automap_models.planners.portfolio.needs import least_memory
from automap_models.planners.portfolio.space import Space
from automap_models.planners.portfolio.staged_search import Searched

_TECHNIQUES: dict[Kind, tuple[str, ...]] = {
    "data": ("data",),
    "operator": ("operator",),
    "pipeline": ("pipeline",),
    "hybrid": ("operator", "pipeline"),
}
"""What a kind of plan cannot do without."""
_STAGES_ASKED = "ruled out by what is asked of the stages"


def why_absent(kind: Kind, space: Space, constraints: Constraints, searched: Searched | None) -> str:
    """The sentence.

    Args:
        searched: what the search for plans of that kind came to, if there was one.
    """
    forbidden = [f"--forbid {each}" for each in _TECHNIQUES[kind] if each in constraints.forbidden]
    if forbidden:
        return f"ruled out by {' and '.join(forbidden)}"
    if kind in ("operator", "hybrid") and not space.model.shardings:
        nothing = "no dimension divides by devices of this cluster"
        return nothing if space.model.batch_dims is not None else "a profile has no operations to partition"
    if kind in ("data", "operator"):
        return _why_not_in_one_stage(space, constraints)
    return _why_not_in_several(kind, space, constraints, searched)


def _why_not_in_several(kind: Kind, space: Space, constraints: Constraints, searched: Searched | None) -> str:
    if len(space.stages) < 2:
        return "ruled out by --max-stages" if constraints.max_stages == 1 else "there is nowhere to cut"
    if searched is None or not searched.problems:
        return _STAGES_ASKED
    if kind == "hybrid":
        left = f"{searched.unfinished} of {searched.problems} combinations not searched to the end"
        return f"none is shorter than the best: {left if searched.unfinished else 'proven'}"
    return _why_no_pipeline(space, constraints, searched)


def _why_not_in_one_stage(space: Space, constraints: Constraints) -> str:
    devices = space.cluster.devices
    if not constraints.allow(space.model.profile, 1):
        return _STAGES_ASKED
    if "data" in constraints.forbidden:
        return f"no dimension divides by all {devices} devices, and --forbid data allows no replicas"
    return f"{space.global_batch} samples do not give each of {devices} devices one"


def _why_no_pipeline(space: Space, constraints: Constraints, searched: Searched) -> str:
    if searched.unfinished:
        return "none that fits was found in time"
    plain = replace(constraints, forbidden=constraints.forbidden | {"operator"})
    needed = least_memory(space, plain, staged_only=True)
    if math.isinf(needed):
        return "stages cannot share out the devices with as few replicas as they may have"
    return f"does not fit: each needs {needed / 1e9:.4g} GB or more on its fullest device"
