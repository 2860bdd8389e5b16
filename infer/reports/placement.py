"""A placement as people read it: a table of devices, what it is worth, and how near the best it is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.placement import (
    PlacementGraph,
    PlacementProblem,
    PlacementResult,
    describe_objective,
    device_name,
    model_name,
    unit_of_work,
)
from automap_models.core.step_devices import ACCELERATOR, CPU, StepDevices
from automap_models.core.units import counted, percent, seconds, shortened, size
from automap_models.cost.placement import gap, one_device_s
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import DEFAULT_DEVICE, read_cluster, read_device
from automap_models.formats.placement_plan import placement_document, read_placement_plan
from automap_models.formats.planning_graphs import read_placement
from automap_models.planners.base import NEVER, Deadline
from automap_models.planners.registry import make_planner
from automap_models.plots.placement import draw_placement
from automap_models.workloads.source import SourceKind, traced

from ..requests import PlaceRequest
from ..runner import Report
from .text import Column, Steps, Table, fact_table, plain, print_parts

if TYPE_CHECKING:
    from automap_models.run.verify_placement import VerifiedPlacement


def report(request: PlaceRequest) -> Report:
    """Read or make the graph, then place and cost it, or cost the placement that was given."""
    result = _placed(request) if request.plan is None else _read_back(request)
    if request.verify:
        result = _run_on_this_host(request, result)
    verified = result.facts.get("verified")
    return Report(
        partial(print_placement, result),
        partial(placement_document, result),
        draw=partial(draw_placement, result),
        exit_code=0 if verified is None or verified.equal else 1,
    )


def _run_on_this_host(request: PlaceRequest, result: PlacementResult) -> PlacementResult:
    """The same with what running it came to among its facts."""
    from automap_models.run.verify_placement import verify_placement

    if result.problem.objective != "step":
        raise BadInput("is for placements of --objective step", where="--verify", do="leave it out")
    with Steps() as steps:
        verified = verify_placement(request.source, result, request.config.get("seed", 0), steps.begin)
    return replace(result, facts={**result.facts, "verified": verified})


def _placed(request: PlaceRequest) -> PlacementResult:
    planner, limit_s = make_planner(request.planner, kind="placement", **request.config), request.time_limit_s
    if request.cluster is None:
        problem = PlacementProblem.of(_graph(request), split_passes=request.split_passes, **request.problem)
    else:
        network = _network(request, request.cluster)
        problem = PlacementProblem.of_step(_graph(request, network.kinds), network)
    with Steps() as steps:
        steps.begin(f"placing {len(problem.graph):,} nodes by {planner.name}")
        result = planner.solve(problem, deadline=NEVER if limit_s is None else Deadline(limit_s), watch=steps.watch)
    result.required_plan()
    return replace(result, facts={**result.facts, "one_device_s": one_device_s(problem), "time_limit_s": limit_s})


def _network(request: PlaceRequest, name: str) -> StepDevices:
    """The devices of the cluster; kinds of which it gives the speed count as that much faster accelerators.

    A model has times on the kind that a uniform cluster is made of, unless --accelerator names another one; a graph in
    a file has those of its accelerators.
    """
    cluster = read_cluster(name)
    devices = StepDevices.of_cluster(cluster)
    if not cluster.device or request.accelerator or request.source.kind is SourceKind.PROFILE:
        return devices
    return replace(devices, kinds=(cluster.device,) * cluster.devices)


def _read_back(request: PlaceRequest) -> PlacementResult:
    assert request.plan is not None

    def graph_of(kinds: tuple[str, ...] | None) -> PlacementGraph:
        objective = {} if kinds is None else {"objective": "step"}
        return _graph(replace(request, problem={**request.problem, **objective}), kinds or ())

    result = read_placement_plan(request.plan, graph_of)
    note = f"read from {request.plan}, costed again"
    return replace(result, notes=(note,), facts={"one_device_s": one_device_s(result.problem)})


def _graph(request: PlaceRequest, kinds: tuple[str, ...] = ()) -> PlacementGraph:
    """The graph in a file, or that of a model's instructions, with times on further kinds of devices.

    A model is traced, costed by the clocks of all devices, and contracted; what user code prints goes to stderr.
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
    with contextlib.redirect_stdout(sys.stderr), Steps() as steps:
        _, graph = traced(request.source, steps.begin)
        from automap_models.hlo.clock import clock_times
        from automap_models.hlo.placement import placement_from_graph
        from automap_models.hlo.step_graph import step_graph

        times = clock_times(graph, accelerator), clock_times(graph, host)
        if problem.get("objective") == "step":
            others = {kind: read_device(kind) for kind in dict.fromkeys(kinds) if kind not in (ACCELERATOR, CPU)}
            return step_graph(graph, *times, {kind: clock_times(graph, others[kind]) for kind in others}, **given)
        steps.begin(f"contracting {len(graph):,} instructions")
        return placement_from_graph(graph, *times, nodes=request.nodes or 200, cpus=problem.get("cpus", 0), **given)


def print_placement(report: PlacementResult) -> None:
    """Print a placement for people."""
    problem = report.problem
    took = f", planned in {seconds(report.taken_s)}" if report.taken_s else ""  # a plan read back took none
    nodes = f"{len(problem.graph):,} nodes, {describe_objective(problem)}"
    print_parts(
        [
            f"[bold]{plain(model_name(problem.graph))}[/bold] on {plain(describe_devices(problem))}",
            f"placement by [bold]{plain(report.required_plan().planner)}[/bold]: {nodes}{took}",
        ],
        [device_table(report)],
        [fact_table(facts(report), report.notes)],
    )


def describe_devices(problem: PlacementProblem) -> str:
    """`6 accelerators with 17.2 GB and 1 CPU`."""
    if problem.network is not None:
        kinds = [f"{problem.network.kinds.count(kind)} {kind}" for kind in dict.fromkeys(problem.network.kinds)]
        return f"{counted(problem.devices, 'device')}: {', '.join(kinds)}"
    accelerators = f"{counted(problem.accelerators, 'accelerator')} with {size(problem.memory_bytes)}"
    counts = ((problem.accelerators, accelerators), (problem.cpus, counted(problem.cpus, "CPU")))
    return " and ".join(text for count, text in counts if count)


def device_table(report: PlacementResult) -> Table:
    """One row a device that has nodes: how many, its times for one micro-batch, its memory."""
    problem, cost, assignment = report.problem, report.cost, report.required_plan().assignment
    devices = np.unique(assignment).tolist()
    held = [np.flatnonzero(assignment == device).tolist() for device in devices]
    return Table(
        (
            Column("device", [device_name(problem, device) for device in devices]),
            Column("nodes", [str(len(nodes)) for nodes in held]),
            Column("compute", [seconds(float(cost.compute_s[device])) for device in devices]),
            Column("transfer", [seconds(float(cost.transfer_s[device])) for device in devices]),
            Column("load", [seconds(float(cost.loads_s[device])) for device in devices]),
            Column("memory", [size(float(cost.memory_bytes[device])) for device in devices]),
            Column("from … to", lambda room: [_ends(problem, nodes, room) for nodes in held], 24, left=True),
        ),
    )


def _ends(problem: PlacementProblem, held: list[int], room: int) -> str:
    """First and last forward node of a device by number, with their names where the graph has some."""
    graph = problem.graph
    shown = [node for node in held if not graph.backward[node]] or held
    ends = [shown[0], shown[-1]] if len(shown) > 1 else shown
    labels = [f"{graph.ids[node]} {graph.names[node]}".strip() for node in ends]
    return " … ".join(shortened(label, room // 2 - 1) for label in labels)


def facts(report: PlacementResult) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything below the table."""
    problem, value_s, unit = report.problem, report.cost.value_s, unit_of_work(report.problem.graph)
    if problem.objective == "step":
        yield "step", f"{seconds(value_s)} from the first operation of a {unit} to its last"
    elif problem.objective == "latency":
        yield "latency", f"{seconds(value_s)} from the first operator of a {unit} to its last"
    else:
        yield "time", f"{seconds(value_s)} a {unit} in steady state, {what_sets_the_pace(report)}"
    one_device_s = report.facts["one_device_s"]
    if one_device_s is None:
        yield "speed-up", "unknown: it does not fit one device"
    elif value_s:
        yield "speed-up", f"{one_device_s / value_s:.2f}× over one device"
    yield "optimum", optimality_in_words(report)
    idle = problem.devices - np.unique(report.required_plan().assignment).size
    if idle:
        yield "idle", counted(idle, "device")
    if "verified" in report.facts:
        yield "verified", _verified(report.facts["verified"])


def _verified(verified: VerifiedPlacement) -> str:
    """What running it came to."""
    ran = f"{counted(verified.parts, 'part')} on {counted(verified.devices, 'device')} of this host"
    moved = f"{counted(verified.moved, 'value')} moved between them"
    errors = f"loss to {verified.loss_error:.1e}, updated arrays to {verified.array_error:.1e}"
    return f"{'equal' if verified.equal else 'NOT EQUAL'} to one device ({errors}): {ran}, {moved}"


def what_sets_the_pace(report: PlacementResult) -> str:
    """The device with the largest load."""
    device = int(report.cost.loads_s.argmax())
    name = device_name(report.problem, device)
    busiest = name if device >= report.problem.accelerators else f"device {name}"
    if report.problem.split_passes:
        return f"largest forward and largest backward load; {busiest} is busiest"
    return f"the load of {busiest}"


def optimality_in_words(report: PlacementResult) -> str:
    """How far the value can be from the best one: of all steps, or of the plans that the planner chooses from."""
    planner, above, of_steps = report.required_plan().planner, gap(report), report.problem.objective == "step"
    if report.status == "optimal":
        best = "has a shorter step" if of_steps else f"that {planner} chooses from is better"
        return f"proven: no placement {best}"
    if report.bound is None or above is None:
        return "nothing is proven"
    best = "best placement" if of_steps else f"best that {planner} chooses from"
    return f"at most {percent(above)} above the {best} (proven lower bound {seconds(report.bound.value)})"
