"""Everything that is said about a plan, and the JSON document that says it (formats.md, "plan.json")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import microbatch_size, profiled_fingerprint, profiled_size
from automap_models.core.result import Bound
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.version import __version__

SCHEMA = 1
KIND = "pipeline"


@dataclass(frozen=True)
class PlanReport:
    """Everything that is said about a plan; seconds.

    Attributes:
        problem, plan, cost: what was asked, what was decided, what it costs.
        simulated_length_s: simulated length by schedule name.
        single_device_s: one global batch on one device.
        data_parallel_s: length of plain data parallelism; None where it does not fit the memory.
        uniform_s: length of uniform cuts; None where they do not fit.
        planning_s: how long planning took.
        policy: the policy that made the plan, if one did.
        seed: the seed of a planner that draws.
        notes: sentences for people.
        tried: the numbers of stages and micro-batches among which the planner chose, if it did.
    """

    problem: StagedProblem
    plan: StagedPlan
    cost: StagedCost
    simulated_length_s: Mapping[str, float]
    single_device_s: float
    data_parallel_s: float | None
    uniform_s: float | None
    planning_s: float
    policy: str | None = None
    seed: int | None = None
    notes: tuple[str, ...] = ()
    tried: tuple[SearchLogEntry, ...] = ()


def plan_document(report: PlanReport) -> dict[str, Any]:
    """The report as the JSON document of formats.md: plain Python numbers, lists and dictionaries."""
    problem, plan, cost = report.problem, report.plan, report.cost
    points, samples = problem.grid.to_points(plan.cuts), microbatch_size(problem.profile)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "model": problem.profile.model,
        "planner": plan.planner,
        "granularity": problem.granularity,
        "cluster": cluster_document(problem.cluster),
        "micro_batches": plan.micro_batches,
        "microbatch_size": samples,
        "global_batch": None if samples is None else samples * plan.micro_batches,
        "state_factor": float(problem.state_factor),
        "cuts": [int(cut) for cut in plan.cuts],
        "coarse_cuts": None if points is None else [int(point) for point in points],
        "device_cuts": [int(cut) for cut in plan.device_cuts],
        "stages": stage_documents(problem, plan, cost),
        "length_s": float(cost.length_s),
        "span_s": float(cost.span_s),
        "pivot": int(cost.pivot),
        "simulated_length_s": {name: float(value) for name, value in report.simulated_length_s.items()},
        "baselines": {
            "single_device_s": float(report.single_device_s),
            "data_parallel_s": _float_or_none(report.data_parallel_s),
            "uniform_s": _float_or_none(report.uniform_s),
        },
        "optimality": _optimality_document(plan.optimality, float(cost.length_s), on_grid=points is not None),
        "planning_s": float(report.planning_s),
        "notes": list(report.notes),
        "tried": [asdict(each) for each in report.tried],
        "provenance": {
            "automap_version": __version__,
            "policy": report.policy,
            "profile_fingerprint": profiled_fingerprint(problem.profile),
            "profile_microbatch_size": profiled_size(problem.profile),
            "seed": report.seed,
        },
    }


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """The cluster as plan.json keeps it."""
    return {
        "name": cluster.name,
        "nodes": cluster.nodes,
        "devices_per_node": cluster.devices_per_node,
        "intra": float(cluster.intra),
        "inter": float(cluster.inter),
        "memory": float(cluster.memory),
    }


def stage_documents(problem: StagedProblem, plan: StagedPlan, cost: StagedCost) -> list[dict[str, Any]]:
    """The stages table of plan.json."""
    profile = problem.profile
    instructions = plan.stage_instructions(len(profile))
    devices = plan.stage_devices(problem.cluster.devices)
    return [
        {
            "index": s,
            "first": int(first),
            "last": int(last),
            "first_name": profile.name(first),
            "last_name": profile.name(last),
            "layers": [profile.layer(first), profile.layer(last)],
            "devices": [int(device) for device in devices[s]],
            "replicas": int(devices[s][1] - devices[s][0] + 1),
            "forward_s": float(cost.forward_s[s]),
            "backward_s": float(cost.backward_s[s]),
            "transfer_s": float(cost.transfer_s[s]) if s < plan.stages - 1 else None,
            "all_reduce_s": float(cost.all_reduce_s[s]),
            "memory_bytes": float(cost.memory_bytes[s]),
        }
        for s, (first, last) in enumerate(instructions)
    ]


def _optimality_document(optimality: Bound | None, length_s: float, *, on_grid: bool) -> dict[str, Any] | None:
    """What is proven about plans on the grid and this one: none of them is shorter than `bound_s`.

    A plan off the grid may be shorter than all on it: `bound_s` is then its own length, and `grid_bound_s` theirs.
    """
    if optimality is None:
        return None
    grid_bound_s = float(optimality.value)
    bound_s = grid_bound_s if on_grid else min(grid_bound_s, length_s)
    return {
        "bound_s": bound_s,
        "proof": optimality.proof,
        "gap": length_s / bound_s - 1.0,
        "grid_bound_s": grid_bound_s,
    }


def _float_or_none(value: float | None) -> float | None:
    return None if value is None else float(value)
