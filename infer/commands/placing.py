"""From the arguments of `automap-place` to a placement and its cost: a new one, or one read back."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from automap_models.core.placement import PlacementGraph, PlacementProblem, PlacementResult
from automap_models.cost.placement import one_device_s
from automap_models.errors import BadInput
from automap_models.formats.device_yaml import read_device
from automap_models.formats.json_fields import read_json
from automap_models.formats.placement_json import looks_like_placement, parse_placement
from automap_models.formats.placement_plan import read_placement_plan
from automap_models.planners.deadline import NEVER, Deadline
from automap_models.planners.registry import make_planner

from ..reports.progress import Steps
from ..sources import DEFAULT_DEVICE, Kind, kind_of, require_applicable, traced

DEFAULT_NODES = 200
DEFAULT_LINK_BYTES_PER_S = 12e9  # what PCIe 3.0 with 16 lanes, 15.75 GB/s, moves in practice
DEFAULT_MEMORY_BYTES = 32e9
DEFAULT_PLANNERS = {"throughput": "ideals", "latency": "milp"}
"""Objective → planner."""

_PROBLEM = ("devices", "cpus", "memory", "objective", "communication", "pieces")


def placed(arguments: argparse.Namespace) -> PlacementResult:
    """Read or make the graph, place it, cost it.

    Raises:
        BadInput: an argument or a file cannot be used, or the planner is not made for the problem.
        Infeasible: no placement fits the memory.
    """
    name = arguments.planner or DEFAULT_PLANNERS[arguments.objective or "throughput"]
    planner = make_planner(name, kind="placement", **_config(arguments))
    limit_s = arguments.time_limit
    problem = _problem(_graph(arguments), arguments)
    with Steps() as steps:
        steps.begin(f"placing {len(problem.graph):,} nodes by {planner.name}")
        result = planner.solve(problem, deadline=NEVER if limit_s is None else Deadline(limit_s))
    result.required_plan()
    return replace(result, facts={**result.facts, "one_device_s": one_device_s(problem), "time_limit_s": limit_s})


def shown(arguments: argparse.Namespace) -> PlacementResult:
    """Read a placement back and cost it again.

    Raises:
        BadInput: the file is none, or belongs to another graph, or an argument asks for another placement.
    """
    for name in (*_PROBLEM, "planner", "time_limit", "seed", "split", "split_passes"):
        if getattr(arguments, name) not in (None, False):
            raise BadInput("the placement read has its own", where="--" + name.replace("_", "-"), do="leave it out")
    result = read_placement_plan(arguments.plan, _graph(arguments))
    note = f"read from {arguments.plan}, costed again"
    return replace(result, notes=(note,), facts={"one_device_s": one_device_s(result.problem)})


def _config(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the planner that were given."""
    limit = arguments.time_limit
    if limit is not None and not (math.isfinite(limit) and limit > 0):
        raise BadInput(f"{limit:g} seconds", where="--time-limit", do="give a positive number")
    if arguments.split is not None and arguments.planner != "expert":
        raise BadInput("is for --planner expert", where="--split", do="leave it out")
    given = {"seed": arguments.seed, "split": arguments.split}
    return {name: value for name, value in given.items() if value is not None}


def _problem(graph: PlacementGraph, arguments: argparse.Namespace) -> PlacementProblem:
    given: dict[str, Any] = {
        "accelerators": arguments.devices,
        "cpus": arguments.cpus,
        "memory_bytes": arguments.memory,
        "objective": arguments.objective,
        "communication": arguments.communication,
        "pieces": arguments.pieces,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    return PlacementProblem.of(graph, split_passes=arguments.split_passes, **overrides)


def _graph(arguments: argparse.Namespace) -> PlacementGraph:
    """The graph in a file, or that of a model's instructions."""
    kind = kind_of(arguments.what)
    require_applicable(kind, arguments)
    return _read_graph(arguments.what) if kind is Kind.PROFILE else _graph_of_model(kind, arguments)


def _read_graph(path: str) -> PlacementGraph:
    do = "give device-placement JSON, an HLO file or a model"
    try:
        document = read_json(path)
    except BadInput as error:
        raise BadInput(error.what, where=error.where, do=do) from None
    if not looks_like_placement(document):
        raise BadInput("is no device-placement graph: it has no maxFPGAs", where=path, do=do)
    return parse_placement(document, model=Path(path).stem)


def _graph_of_model(kind: Kind, arguments: argparse.Namespace) -> PlacementGraph:
    """Traced, costed by two rooflines, contracted; what user code prints goes to stderr."""
    if arguments.devices is None and not arguments.plan:
        raise BadInput("a model brings no devices", where="--devices", do="say how many accelerators there are")
    accelerator, host = read_device(arguments.accelerator or DEFAULT_DEVICE), read_device(arguments.host or "cpu")
    with contextlib.redirect_stdout(sys.stderr), Steps() as steps:
        _, graph = traced(kind, arguments, steps)
        steps.begin(f"contracting {len(graph):,} instructions")
        from automap_models.cost.roofline import roofline_times
        from automap_models.hlo.placement import placement_from_graph

        return placement_from_graph(
            graph,
            roofline_times(graph, accelerator),
            roofline_times(graph, host),
            nodes=arguments.nodes or DEFAULT_NODES,
            link_bytes_per_s=DEFAULT_LINK_BYTES_PER_S if arguments.link is None else arguments.link,
            accelerators=arguments.devices or 0,  # a placement read back brings its own
            cpus=arguments.cpus or 0,
            accelerator_bytes=DEFAULT_MEMORY_BYTES if arguments.memory is None else arguments.memory,
            meta={"times": "roofline, not measured", "accelerator": accelerator.name, "host": host.name},
        )
