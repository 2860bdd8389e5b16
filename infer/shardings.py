"""`automap search opp` and `adp`: from the request to a checked plan, by count, time or memory.

A plan can also be held against XLA: the real step runs on the host's devices, and its results and collectives are
compared. That takes a process of its own, which is this module run as a script.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import AXES, Mesh, MeshAxis, PlanKind
from automap_models.core.result import Result
from automap_models.core.sharding import Objective, ShardingPlan, ShardingProblem
from automap_models.cost.sharding import ShardingPrice, plan_price, replicated_price
from automap_models.errors import AutomapError, BadInput
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.device_yaml import read_device
from automap_models.formats.sharding_json import ShardingReport, read_sharding_plan
from automap_models.formats.sharding_json import mesh_of as mesh_in
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.planners.registry import make_planner
from automap_models.planners.sharding.evaluate import evaluated

from .reports.text import Steps, size
from .requests import SearchRequest, Source, given
from .sources import DEFAULT_DEVICE, module_of

if TYPE_CHECKING:
    from automap_models.hlo.module import Module
    from automap_models.hlo.rule_sets import RuleSet
    from automap_models.hlo.sharding_classes import ModuleSharding

KINDS: Mapping[str, PlanKind] = {"opp": "operator", "adp": "data"}
"""Search → kind of the plans that it makes."""
COUNT: Objective = "count"
"""The objective of as many partitioned variables as possible; the others price the step."""


class Inserted(NamedTuple):
    """Collective operations of one sort: how many, and the bytes of their results."""

    number: int
    nbytes: float


@dataclass(frozen=True)
class Sharded:
    """What a search came to.

    Attributes:
        report: the plan, its price and what is said about it.
        inserted: what Shardy's own propagation of it inserts, by Shardy's word; a legal plan needs no `reshard`.
        verified: what XLA made of it, if that was asked for.
        estimates: plan by name, as in `verified` → bytes that XLA for CPUs is expected to all-reduce.
    """

    report: ShardingReport
    inserted: Mapping[str, Inserted]
    verified: Verified | None = None
    estimates: Mapping[str, float] | None = None


def sharded(request: SearchRequest) -> Sharded:
    """The plan that was asked for: the best by its objective, or the one in a file.

    Raises:
        BadInput: the model cannot be read, traced or partitioned, or the planner does not know an option.
        Infeasible: no plan fits the devices' memory.
        UserCodeError: the user's own code raised.
    """
    begun = time.perf_counter()
    cluster, rule_set = read_cluster(request.topo), read_rule_set(request.rules)
    with contextlib.redirect_stdout(sys.stderr), Steps() as steps:
        if request.objective == COUNT:
            return _counted(request, cluster, rule_set, steps, begun)
        return _priced(request, cluster, rule_set, steps, begun)


def _counted(request: SearchRequest, cluster: Cluster, rule_set: RuleSet, steps: Steps, begun: float) -> Sharded:
    mesh = _one_axis(request, cluster)
    planner = make_planner(request.planner, kind="sharding", **_options(request))
    module, sharding = _classes(request, rule_set, steps)
    problem = ShardingProblem(module.name, sharding.classes, cluster, mesh, rules=rule_set.name)
    steps.begin(f"searching {len(problem.along[0].candidate_dims)} dimensions")
    result = planner.solve(problem, watch=lambda news: steps.begin(news.what))
    planning_s = time.perf_counter() - begun
    inserted = _inserted_by_shardy(module, result.required_plan(), steps)
    return Sharded(ShardingReport(result, planning_s, _count_notes(result, inserted)), inserted)


def _priced(request: SearchRequest, cluster: Cluster, rule_set: RuleSet, steps: Steps, begun: float) -> Sharded:
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.sharding_work import sharding_work

    device = read_device(request.device or DEFAULT_DEVICE)
    mesh = mesh_in(request.plan) if request.plan else _mesh(request, cluster)
    module, sharding = _classes(request, rule_set, steps)
    steps.begin(f"pricing {len(module.operations):,} operations")
    graph = instruction_graph(module)
    work = sharding_work(module, sharding, graph, device)
    problem = ShardingProblem(
        module.name,
        sharding.classes,
        cluster,
        mesh,
        "memory" if request.objective == "memory" else "time",
        work,
        rule_set.name,
        device.launch_s,
    )
    steps.begin("searching")
    report = _price_report(request, problem, begun)
    outcome = Sharded(report, _inserted_by_shardy(module, report.plan, steps))
    if not request.verify:
        return outcome
    steps.begin("running the plan on the host's devices with XLA")
    separate = sharding_work(module, sharding, graph, device, reassociated=False)
    return _verified(request, outcome, replace(problem, work=separate))


def _options(request: SearchRequest) -> dict[str, Any]:
    """The planner's options by name; those that were not given have its defaults."""
    return given(request, "agent", "episodes", "stop_at_optimum", "seed")


def _mesh(request: SearchRequest, cluster: Cluster) -> Mesh:
    """The mesh that was asked for; by default one axis of all the cluster's devices."""
    if isinstance(request.mesh, tuple):
        return tuple(MeshAxis(name, size) for name, size in request.mesh)
    return (MeshAxis(_axis_name(request), request.mesh or cluster.devices),)


def _one_axis(request: SearchRequest, cluster: Cluster) -> Mesh:
    """The mesh of a plan that is made by counting.

    Raises:
        BadInput: two axes, or the other one.
    """
    mesh = _mesh(request, cluster)
    if [axis.kind for axis in mesh] != [KINDS[request.search]]:
        do = f"give {_axis_name(request)}=N, or --objective time"
        raise BadInput("variables are counted along one axis", where="--mesh", do=do)
    return mesh


def _axis_name(request: SearchRequest) -> str:
    return next(name for name, kind in AXES.items() if kind == KINDS[request.search])


def _classes(request: SearchRequest, rule_set: RuleSet, steps: Steps) -> tuple[Module, ModuleSharding]:
    """The module, and the classes of its variables under a rule set."""
    from automap_models.hlo.graph import rules_of
    from automap_models.hlo.sharding_classes import sharding_classes

    steps.begin(f"tracing {request.source.what}")
    module = module_of(request.source)
    steps.begin(f"propagating through {len(module.operations):,} operations")
    return module, sharding_classes(module, rules_of(module), rule_set)


def _inserted_by_shardy(module: Module, plan: ShardingPlan, steps: Steps) -> dict[str, Inserted]:
    """What Shardy's own propagation of a plan along all its axes inserts: its word for it → number and bytes."""
    from automap_models.hlo.shardy import collectives

    steps.begin("checking the plan with Shardy")
    inserted: dict[str, Inserted] = {}
    along = [(dims, axis.size) for dims, axis in zip(plan.dims, plan.mesh, strict=True)]
    for kind, nbytes in collectives(module, along):
        number, total = inserted.get(kind, Inserted(0, 0.0))
        inserted[kind] = Inserted(number + 1, total + nbytes)
    return inserted


def _count_notes(result: Result[ShardingProblem, ShardingPlan], inserted: Mapping[str, Inserted]) -> tuple[str, ...]:
    notes = list(result.notes)
    if result.facts.get("interrupted"):
        notes.append(f"interrupted after {result.facts['episodes']:,} episodes: the best plan until then")
    if reshards := inserted.get("reshard"):
        notes.append(f"Shardy's own propagation of this plan needs {reshards.number} reshards")
    return tuple(notes)


def _price_report(request: SearchRequest, problem: ShardingProblem, begun: float) -> ShardingReport:
    """The plan and the prices beside it."""
    if request.plan:
        result = evaluated(problem, read_sharding_plan(request.plan, problem))
    else:
        result = make_planner(request.planner, kind="sharding").solve(problem)
        result.required_plan()
    parallel = _data_parallel(problem)
    return ShardingReport(
        result=result,
        planning_s=time.perf_counter() - begun,
        notes=(*result.notes, *_price_notes(problem, result.cost)),
        replicated=replicated_price(problem),
        data_parallel=plan_price(problem, parallel) if parallel else None,
    )


def _price_notes(problem: ShardingProblem, price: ShardingPrice) -> tuple[str, ...]:
    if price.memory_bytes <= problem.cluster.memory:
        return ()
    return (f"needs {price.memory_bytes / 1e9:.1f} GB, a device has {problem.cluster.memory / 1e9:.1f} GB",)


def _data_parallel(problem: ShardingProblem) -> ShardingPlan | None:
    """The batch across all devices of the mesh; None where they do not divide it."""
    mesh = (MeshAxis("data", math.prod(axis.size for axis in problem.mesh)),)
    try:
        counted = replace(problem, mesh=mesh, objective=COUNT)
    except BadInput:
        return None
    return make_planner("milp", kind="sharding").plan(counted)


def _verified(request: SearchRequest, outcome: Sharded, problem: ShardingProblem) -> Sharded:
    """The same with what XLA made of it; `problem` prices every all-reduce on its own, as XLA for CPUs has it."""

    report = outcome.report
    plans = {"plan": (report.plan.mesh, report.plan.dims)}
    estimates = {"plan": _reduced(plan_price(problem, report.plan))}
    if parallel := _data_parallel(problem):
        plans["data-parallel"] = (parallel.mesh, parallel.dims)
        estimates["data-parallel"] = _reduced(plan_price(problem, parallel))
    devices = math.prod(axis.size for axis in report.plan.mesh)
    needed = devices * report.result.cost.memory_bytes + 2 * replicated_price(problem).memory_bytes
    return replace(outcome, verified=verify(request.source, plans, needed), estimates=estimates)


def _reduced(price: ShardingPrice) -> float:
    return sum(price.activation_bytes) + sum(price.gradient_bytes)


TOLERANCE = 1e-4
"""Largest relative difference between the sharded step's results and one device's."""
_SEED = 0
_SHARE = 0.6
"""Of the memory that is free: so much the run may take."""


class Communicated(NamedTuple):
    """Collectives of one sort: how many, and bytes of their results on one device."""

    number: int
    nbytes: float


@dataclass(frozen=True)
class Verified:
    """What XLA made of a plan.

    Attributes:
        communication: plan ("plan", "data-parallel") → XLA's word for a collective → number and bytes.
        loss, arrays: largest relative difference to one device among scalars and among arrays (updated parameters and
            the optimiser's moments, the first of which shows the gradient); None where the step was only compiled.
        why_not_run: a sentence where it was only compiled.
    """

    communication: Mapping[str, Mapping[str, Communicated]]
    loss: float | None
    arrays: float | None
    why_not_run: str = ""

    @property
    def equal(self) -> bool:
        """Whether the results are one device's; also true where nothing was run."""
        return max(self.loss or 0.0, self.arrays or 0.0) <= TOLERANCE

    def nbytes(self, plan: str) -> float:
        """Bytes that a plan's collectives result in on one device."""
        return sum(collectives.nbytes for collectives in self.communication[plan].values())


def verify(
    source: Source,
    plans: Mapping[str, tuple[Mesh, Sequence[Sequence[int]]]],
    needed_bytes: float,
) -> Verified:
    """Compile and run the step with the shardings of the plan named "plan"; of the others only compile it.

    Args:
        source: which step.
        plans: name → mesh and, for each of its axes, the partitioned dimension of each argument of the step.
        needed_bytes: what running it takes on all devices together.

    Raises:
        BadInput: the step cannot be compiled or run.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    why = f"running it on this host takes {size(needed_bytes)}" if needed_bytes > _SHARE * free else ""
    request = {
        "what": source.what,
        "sizes": source.sizes,
        "plans": {
            name: {"sizes": {axis.name: axis.size for axis in mesh}, "dims": [list(map(int, along)) for along in dims]}
            for name, (mesh, dims) in plans.items()
        },
        "run": not why,
        "seed": _SEED,
    }
    devices = 1
    for axis in plans["plan"][0]:
        devices *= axis.size
    answer = _answered(request, devices, source.what)
    communication = {
        name: {kind: Communicated(*numbers) for kind, numbers in kinds.items()}
        for name, kinds in answer["communication"].items()
    }
    return Verified(communication, answer.get("loss"), answer.get("arrays"), why)


def _answered(request: Mapping[str, Any], devices: int, where: str) -> Mapping[str, Any]:
    """What the process that does it answers."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "automap_models.infer.shardings"]
    done = subprocess.run(
        command, input=json.dumps(request), env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stderr.strip().splitlines()
    if done.returncode:
        last = lines[-1][:300] if lines else f"exit code {done.returncode}"
        raise BadInput(f"XLA could not run the plan ({last})", where=where, do="leave out --verify")
    answer: Mapping[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise BadInput(f"the plan could not be run ({answer['error']})", where=where, do="leave out --verify")
    return answer


def main() -> int:
    """The process in which XLA verifies a plan: compile, run and compare.

    What to run comes in on stdin as JSON, what came of it goes out on stdout, an error of ours as `error`. It is a
    process of its own, because the number of a host's devices is fixed when jax starts.
    """
    request = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer = _answer(request)
        except AutomapError as error:
            answer = {"error": str(error)}
    print(json.dumps(answer))
    return 0


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from automap_models import workloads
    from automap_models.hlo.sharded_step import Along, compile_step, differences, on_one_device, run

    build = workloads.build if request["what"] in workloads.names() else workloads.from_factory
    step = build(request["what"], **request["sizes"])
    answer: dict[str, Any] = {"communication": {}}
    compiled = {name: compile_step(step, Along(plan["sizes"], plan["dims"])) for name, plan in request["plans"].items()}
    for name, one in compiled.items():
        answer["communication"][name] = {kind: tuple(numbers) for kind, numbers in one.communication.items()}
    if request["run"]:
        values, expected = on_one_device(step, request["seed"])
        answer["loss"], answer["arrays"] = differences(run(compiled["plan"], step, values), expected)
    return answer


if __name__ == "__main__":
    raise SystemExit(main())
