"""A placement as people read it: a table of devices, what it is worth, and how near the best it is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from automap_models.core.placement import (
    PlacementProblem,
    PlacementResult,
    describe_objective,
    device_name,
    model_name,
    unit_of_work,
)
from automap_models.core.units import counted, percent, seconds, shortened, size
from automap_models.cost.placement import gap
from automap_models.formats.placement_plan import placement_document
from automap_models.plots.placement import draw_placement
from automap_models.requests import PlaceRequest

from ..runner import Report
from .text import Column, Table, fact_table, plain, print_parts

if TYPE_CHECKING:
    from automap_models.run.verify_placement import VerifiedPlacement


def report(request: PlaceRequest, answer: PlacementResult) -> Report:
    """The placement; one that does not compute what one device does is a defect, and the exit code says so."""
    verified = answer.facts.get("verified")
    return Report(
        partial(print_placement, answer),
        partial(placement_document, answer),
        draw=partial(draw_placement, answer),
        exit_code=0 if verified is None or verified.equal else 1,
    )


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
    per_device = [np.flatnonzero(assignment == device).tolist() for device in devices]
    return Table(
        (
            Column("device", [device_name(problem, device) for device in devices]),
            Column("nodes", [str(len(nodes)) for nodes in per_device]),
            Column("compute", [seconds(float(cost.compute_s[device])) for device in devices]),
            Column("transfer", [seconds(float(cost.transfer_s[device])) for device in devices]),
            Column("load", [seconds(float(cost.loads_s[device])) for device in devices]),
            Column("memory", [size(float(cost.memory_bytes[device])) for device in devices]),
            Column("from … to", lambda room: [_ends(problem, nodes, room) for nodes in per_device], 24, text=True),
        ),
    )


def _ends(problem: PlacementProblem, nodes: list[int], room: int) -> str:
    """First and last forward node of a device by number, with their names where the graph has some."""
    graph = problem.graph
    forward = [node for node in nodes if not graph.backward[node]] or nodes
    ends = [forward[0], forward[-1]] if len(forward) > 1 else forward
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
