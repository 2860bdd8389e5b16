"""What plan.json of both kinds of pipelines have in common: the fields that say which problem a plan solves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import rescaled, with_microbatch_size
from automap_models.core.profile import Profile
from automap_models.core.result import Bound
from automap_models.core.staged import DEFAULT_STATE_FACTOR, StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.json_fields import Fields, finite
from automap_models.formats.plan_report import SCHEMA, cluster_document

TOLERANCE = 1e-6
"""Relative difference at which a file's figure and the cost model's disagree."""

STALE = "plan again for this profile and cluster"
_PROFILED = "profile_microbatch_size"


def require_kind(fields: Fields, kind: str, profile: Profile) -> None:
    """The document is a plan of that kind for that profile.

    Raises:
        BadInput: it is not.
    """
    if fields.any("schema") != SCHEMA:
        fields.refuse("schema", f"{SCHEMA}, the one that this version reads")
    if fields.any("kind") != kind:
        fields.refuse("kind", kind)
    if fields.object("provenance").text("profile_fingerprint") != profile.fingerprint:
        raise BadInput(f"belongs to another profile than {profile.model}", where=fields.where, do=STALE)


def _rescaled(fields: Fields, profile: Profile) -> Profile:
    """The profile at the plan's micro-batch size, where the file names one."""
    origin = fields.object("provenance")
    if all(each.document.get(key) is None for each, key in ((fields, "microbatch_size"), (origin, _PROFILED))):
        return profile
    profiled, samples = origin.whole(_PROFILED), fields.whole("microbatch_size")
    try:
        return rescaled(with_microbatch_size(profile, profiled), samples)
    except BadInput as error:
        raise BadInput(error.what, where=fields.where, do=STALE) from None


def _cluster(fields: Fields, cluster: Cluster | None) -> Cluster:
    """The cluster in the file, which must be the given one but for its name."""
    written = fields.object("cluster")
    try:
        own = Cluster(
            nodes=written.whole("nodes"),
            devices_per_node=written.whole("devices_per_node"),
            intra=written.number("intra"),
            inter=written.number("inter"),
            memory=written.number("memory"),
            name=written.text("name"),
        )
    except BadInput as error:
        raise BadInput(error.what, where=written.where, do=error.do) from None
    if cluster is None:
        return own
    theirs = cluster_document(cluster)
    for key, value in cluster_document(own).items():
        if key != "name" and value != theirs[key]:
            raise BadInput(
                f"{key} is {value}, but cluster {cluster.name} has {theirs[key]}", where=written.where, do=STALE
            )
    return cluster


def problem_in(fields: Fields, profile: Profile, cluster: Cluster | None) -> StagedProblem:
    """The problem that a plan in a file solves.

    Args:
        profile: that it was made for.
        cluster: likewise; None takes the one in the file.

    Raises:
        BadInput: the file's is another cluster, or is none.
    """
    profile, cluster = _rescaled(fields, profile), _cluster(fields, cluster)
    state_factor = fields.number("state_factor") if "state_factor" in fields else DEFAULT_STATE_FACTOR
    try:
        return StagedProblem(
            profile,
            cluster,
            stages=len(fields.wholes("cuts")) + 1,
            micro_batches=fields.whole("micro_batches"),
            state_factor=state_factor,
            granularity=fields.whole("granularity"),
        )
    except BadInput as error:
        raise BadInput(error.what, where=fields.where, do=STALE) from None


def plan_in(fields: Fields, problem: StagedProblem) -> StagedPlan:
    """The cuts of a plan in a file, with what is proven about it; that they suit the problem is the caller's to check.

    Raises:
        BadInput: a field is missing or of another type.
    """
    return StagedPlan(
        cuts=fields.wholes("cuts"),
        device_cuts=fields.wholes("device_cuts"),
        micro_batches=problem.micro_batches,
        planner=fields.text("planner"),
        coarse_cuts=None if fields.any("coarse_cuts") is None else fields.wholes("coarse_cuts"),
        optimality=_optimality(fields),
    )


def require_same_cost(
    fields: Fields, cluster: Cluster, cost: StagedCost, expected_stages: Sequence[Mapping[str, object]]
) -> None:
    """The figures in a file are those of the cost model, and they fit the memory.

    Args:
        cost: of the plan.
        expected_stages: the stages table as it would be written.

    Raises:
        BadInput: a figure differs by more than TOLERANCE, or anything else at all.
        Infeasible: a stage does not fit the memory.
    """
    stages = fields.objects("stages")
    if len(stages) != len(expected_stages):
        what = f"lists {len(stages)} stages, but the cuts make {len(expected_stages)}"
        raise BadInput(what, where=fields.where, do=STALE)
    for written, expected in zip(stages, expected_stages, strict=True):
        for key, value in expected.items():
            _require_same(written, key, value)
    _require_same(fields, "length_s", cost.length_s)
    _require_same(fields, "span_s", cost.span_s)
    if not 0 <= fields.whole("pivot") < 2 * len(stages) - 1:
        fields.refuse("pivot", f"one of the {2 * len(stages) - 1} pseudo-stages")
    if not cost.feasible:
        stage = int(cost.memory_bytes.argmax())
        raise Infeasible(
            f"stage {stage} needs {cost.memory_bytes[stage] / 1e9:.1f} GB on each device, "
            f"cluster {cluster.name} has {cluster.memory / 1e9:.1f} GB",
            where=fields.where,
            do="plan again",
        )


def _optimality(fields: Fields) -> Bound | None:
    if fields.any("optimality") is None:
        return None
    written = fields.object("optimality")
    proof, bound, gap = written.text("proof"), written.number("bound_s"), written.number("gap")
    if proof not in ("exact", "relaxation"):
        written.refuse("proof", "exact or relaxation")
    if bound <= 0:
        written.refuse("bound_s", "a positive number of seconds")
    if not math.isclose(fields.number("length_s"), bound * (1.0 + gap), rel_tol=TOLERANCE) or gap < -TOLERANCE:
        written.refuse("gap", "length_s over bound_s less 1")
    on_grid = written.number("grid_bound_s") if "grid_bound_s" in written else bound
    if on_grid < bound * (1.0 - TOLERANCE) or (on_grid > bound * (1.0 + TOLERANCE) and gap > TOLERANCE):
        written.refuse("grid_bound_s", "bound_s, or more where the plan is shorter than all on the grid")
    return Bound(on_grid, "exact" if proof == "exact" else "relaxation")


def _require_same(fields: Fields, key: str, value: object) -> None:
    """A figure agrees with the cost model's to TOLERANCE, everything else exactly."""
    written = fields.any(key)
    if isinstance(value, float):
        number = finite(written)
        same = number is not None and math.isclose(number, value, rel_tol=TOLERANCE)
    else:
        same = type(written) is type(value) and written == value
    if not same:
        fields.refuse(key, f"{value!r} as its cuts make it")
