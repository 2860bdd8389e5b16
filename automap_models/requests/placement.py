"""The operators of a graph or a model, placed on accelerators and CPUs."""

from __future__ import annotations

from dataclasses import replace

from automap_models.core.placement import PlacementGraph, PlacementProblem, PlacementResult
from automap_models.core.step_devices import ACCELERATOR, CPU, StepDevices
from automap_models.cost.placement import one_device_s
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import DEFAULT_DEVICE, read_device
from automap_models.formats.placement_plan import read_placement_plan
from automap_models.formats.planning_graphs import read_placement
from automap_models.planners.base import NEVER, Deadline, Progress, Watch
from automap_models.planners.registry import make_planner
from automap_models.requests import PlaceRequest, cluster_of
from automap_models.requests.profile import begin_of
from automap_models.workloads.source import SourceKind, traced


def solve(request: PlaceRequest, watch: Watch) -> PlacementResult:
    """Read or make the graph, then place and cost it, or cost the placement that was given."""
    result = (_placed if request.plan is None else _read_back)(request, watch)
    return _run_on_this_host(request, result, watch) if request.verify else result


def _run_on_this_host(request: PlaceRequest, result: PlacementResult, watch: Watch) -> PlacementResult:
    """The same with what running it came to among its facts."""
    from automap_models.run.verify_placement import verify_placement

    if result.problem.objective != "step":
        raise BadInput("is for placements of `objective=step`", where="`verify`", do="leave it out")
    verified = verify_placement(request.source, result, request.config.get("seed", 0), begin_of(watch))
    return replace(result, facts={**result.facts, "verified": verified})


def _placed(request: PlaceRequest, watch: Watch) -> PlacementResult:
    planner, limit_s = make_planner(request.planner, kind="placement", **request.config), request.time_limit_s
    if request.cluster is None:
        problem = PlacementProblem.create(_graph(request, watch), split_passes=request.split_passes, **request.problem)
    else:
        network = _network(request, request.cluster)
        problem = PlacementProblem.of_step(_graph(request, watch, network.kinds), network)
    watch(Progress(f"placing {len(problem.graph):,} nodes by {planner.name}"))
    result = planner.solve(problem, deadline=NEVER if limit_s is None else Deadline(limit_s), watch=watch)
    result.required_plan()
    return replace(result, facts={**result.facts, "one_device_s": one_device_s(problem), "time_limit_s": limit_s})


def _network(request: PlaceRequest, name: str) -> StepDevices:
    """The devices of the cluster; kinds of which it gives the speed count as that much faster accelerators.

    A model has times on the kind that a uniform cluster is made of, unless `accelerator` names another one; a graph in
    a file has those of its accelerators.
    """
    cluster = cluster_of(name)
    devices = StepDevices.of_cluster(cluster)
    if not cluster.device or request.accelerator or request.source.kind is SourceKind.PROFILE:
        return devices
    return replace(devices, kinds=(cluster.device,) * cluster.devices)


def _read_back(request: PlaceRequest, watch: Watch) -> PlacementResult:
    assert request.plan is not None

    def graph_of(kinds: tuple[str, ...] | None) -> PlacementGraph:
        objective = {} if kinds is None else {"objective": "step"}
        return _graph(replace(request, problem={**request.problem, **objective}), watch, kinds or ())

    result = read_placement_plan(request.plan, graph_of)
    note = f"read from {request.plan}, costed again"
    return replace(result, notes=(note,), facts={"one_device_s": one_device_s(result.problem)})


def _graph(request: PlaceRequest, watch: Watch, kinds: tuple[str, ...] = ()) -> PlacementGraph:
    """The graph in a file, or that of a model's instructions, with times on further kinds of devices.

    A model is traced, costed by the clocks of all devices, and contracted.
    """
    if request.source.kind is SourceKind.PROFILE:
        return read_placement(request.source.what, do="give device-placement JSON, an HLO file or a model")
    accelerator, host = read_device(request.accelerator or DEFAULT_DEVICE), read_device(request.host or "cpu")
    problem = request.problem
    pcie_bytes_per_s = 12e9  # what PCIe 3.0 with 16 lanes, 15.75 GB/s, moves in practice
    given = {
        "link_bytes_per_s": pcie_bytes_per_s if request.link_bytes_per_s is None else request.link_bytes_per_s,
        "accelerators": problem.get("accelerators", 0),  # a placement read back brings its own
        "accelerator_bytes": float(problem.get("memory_bytes", 32e9)),
        "meta": {"accelerator": accelerator.name, "host": host.name, "times": "clock, not measured"},
    }
    begin = begin_of(watch)
    _, graph = traced(request.source, begin)
    from automap_models.hlo.clock import clock_times
    from automap_models.hlo.placement import placement_from_graph
    from automap_models.hlo.step_graph import step_graph

    times = clock_times(graph, accelerator), clock_times(graph, host)
    if problem.get("objective") == "step":
        others = {kind: read_device(kind) for kind in dict.fromkeys(kinds) if kind not in (ACCELERATOR, CPU)}
        return step_graph(graph, *times, {kind: clock_times(graph, others[kind]) for kind in others}, **given)
    begin(f"contracting {len(graph):,} instructions")
    return placement_from_graph(graph, *times, nodes=request.nodes or 200, cpus=problem.get("cpus", 0), **given)
