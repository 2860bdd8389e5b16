"""`automap place`: from an operator graph and devices to a placement (formats.md, "Commands")."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models.core.units import BYTES
from automap_models.errors import BadInput
from automap_models.workloads.source import MODELS, SourceKind, traced

from ..requests import PlaceRequest
from ..runner import Command, Output, Report
from .parsing import SEED, STEP, add_options, at_least, given, name_argument, quantity, refuse, source_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from automap_models.core.placement import PlacementGraph, PlacementResult
    from automap_models.core.step_devices import StepDevices

DEFAULT_NODES = 200
DEFAULT_LINK_BYTES_PER_S = 12e9  # what PCIe 3.0 with 16 lanes, 15.75 GB/s, moves in practice
DEFAULT_MEMORY_BYTES = 32e9
DEFAULT_PLANNERS = {"throughput": "ideals", "latency": "milp", "step": "learned"}
"""Objective → planner."""
STEP_PLANNERS = ("learned", "metis", "m-etf")
"""They place the operations of a step, and nothing else."""
FIELDS = {
    "devices": "accelerators",
    "cpus": "cpus",
    "memory": "memory_bytes",
    "objective": "objective",
    "communication": "communication",
    "pieces": "pieces",
}
"""Argument → field of the problem that it replaces."""
OF_PLACING = (*FIELDS, "finetune", "policy", "planner", "time_limit", "seed", "split", "split_passes")
"""Options that a placement made before has no use for."""
DISAGREES = 1
"""Exit code of a run that gives other results than one device."""
EPILOG = """GRAPH is one of
  device-placement JSON   of dnn-partitioning, which brings its own devices and memory
  a built-in model        bert48, t5_base, vgg19, …: see automap-profile --list
  a config.json           of Hugging Face: path/to/config.json, as automap-profile reads it
  a factory               my_package.my_module:make_step, a JAX training step or an nn.Module
  HLO or StableHLO        as automap-profile reads it; without a backward pass, too

examples:
  automap-place bert24.json                                     the optimal contiguous placement, printed
  automap-place bert24.json --planner milp --time-limit 60      not contiguous, with a proven gap
  automap-place bert24.json --objective latency --devices 6     one micro-batch as fast as possible
  automap-place rnnlm_4 --objective step --devices 4            every operation placed
  automap-place gnmt_2 --devices dgx-1 --planner learned --finetune 60
  automap-place bert24.json --objective step                    one step, forward and backward, as fast as possible
  automap-place t5_base --devices 4 --nodes 200 --out placement.json --plot placement.png
  automap-place bert24.json --plan placement.json               cost and show a placement made before
  automap-place my_models:make_step --objective step --devices 8 --verify   … and run it on eight devices of this host

exit codes: 0 done, 1 --verify found a difference, 2 the input or the arguments are bad,
3 no placement fits the memory, 141 the output's reader went away
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to place, and how."""
    parser.add_argument("what", metavar="GRAPH", type=name_argument, help="what to place, see below")
    problem = """
        --devices K|CLUSTER  accelerators (default: the graph's); for --objective step also a cluster, by name or file
        --cpus L             CPUs (default: the graph's; 0 for models)
        --memory SIZE        memory of one accelerator (default: the graph's; 32 GB)
        --objective          the largest load of a device, the time of one micro-batch through subgraphs, or the
            makespan of one step whose operations start as soon as they can (default: throughput, or step where the
            planner is for steps)
        --communication      transfers and compute of a device take turns or overlap (default sum)
        --split-passes       minimise the largest forward load plus the largest backward load
        --pieces Q           subgraphs an accelerator (latency; default 1)
    """
    add_options(
        parser.add_argument_group("what to plan"),
        problem,
        memory={"type": quantity(BYTES)},
        objective={"choices": tuple(DEFAULT_PLANNERS)},
        communication={"choices": ("sum", "max")},
    )
    how = f"""
        --planner NAME     ideals (default for throughput), milp (default for latency), milp-ordered, local-search,
            expert, metis (step), m-etf (step), learned (default for step)
        --split FILE       for expert: a split file of dnn-partitioning
        --finetune TIME    for learned: go on making moves for so long
        --policy FILE      for learned: another policy (.onnx)
        --time-limit TIME  after which a solver returns its best plan
        {SEED}
        --plan FILE        plan nothing: cost and show this placement.json
        --verify           for --objective step: run the operations of a JAX step on devices made of this host, and
            compare the loss and all results with those of one device
    """
    add_options(parser.add_argument_group("how to plan"), how)
    model = f"""
        {STEP}
        --nodes N                most nodes of the graph to make (default 200)
        --accelerator NAME|FILE  kind of the accelerators (default: the cluster's, else v100)
        --host NAME|FILE         kind of the CPUs (default cpu)
        --link BANDWIDTH         between an accelerator and the CPUs (default 12 GB/s: PCIe 3.0)
    """
    group = parser.add_argument_group("for models and HLO files, which have no times and devices of their own")
    add_options(group, model, nodes={"type": at_least(2)})


def request(namespace: argparse.Namespace) -> PlaceRequest:
    """What is asked for.

    Raises:
        BadInput: an option means nothing for what is given, or has a value that it cannot have.
    """
    limit_s = namespace.time_limit
    for option, value_s in (("--time-limit", limit_s), ("--finetune", namespace.finetune)):
        if value_s is not None and not 0 < value_s < math.inf:
            raise BadInput(f"{value_s:g} seconds", where=option, do="give a positive number")
    if namespace.planner in STEP_PLANNERS and namespace.plan is None:
        namespace = _of_steps(namespace)
    if namespace.plan is not None:
        refuse(namespace, OF_PLACING, "the placement read has its own")
    elif namespace.split is not None and namespace.planner != "expert":
        raise BadInput("is for --planner expert", where="--split", do="leave it out")
    planner = namespace.planner or DEFAULT_PLANNERS[namespace.objective or "throughput"]
    for option in ("finetune", "policy"):
        if getattr(namespace, option) is not None and planner != "learned":
            raise BadInput("is for --planner learned", where=f"--{option}", do="leave it out")
    devices, cluster = _devices(namespace)
    source = source_of(vars(namespace))
    if namespace.verify and source.kind not in MODELS:
        raise BadInput(f"{source.what} {source.kind.value}", where="--verify", do="give a model or a factory to run")
    if namespace.verify and namespace.plan is None and namespace.objective != "step":
        raise BadInput("is for --objective step", where="--verify", do="leave it out")
    if source.kind is not SourceKind.PROFILE and namespace.devices is None and namespace.plan is None:
        raise BadInput("a model brings no devices", where="--devices", do="say how many accelerators there are")
    return PlaceRequest(
        source,
        {FIELDS[name]: value for name, value in given(namespace, *FIELDS).items() if name != "devices"} | devices,
        namespace.split_passes,
        namespace.planner,
        _config(namespace),
        limit_s,
        namespace.plan,
        namespace.nodes,
        namespace.accelerator,
        namespace.host,
        namespace.link,
        cluster,
        namespace.verify,
    )


def _of_steps(namespace: argparse.Namespace) -> argparse.Namespace:
    """The same with the objective that its planner has."""
    if namespace.objective not in (None, "step"):
        raise BadInput("is for steps only", where=f"--planner {namespace.planner}", do="give --objective step, or none")
    return argparse.Namespace(**{**vars(namespace), "objective": "step"})


def _devices(namespace: argparse.Namespace) -> tuple[dict[str, Any], str | None]:
    """The number of accelerators, or the cluster that is named."""
    text = namespace.devices
    if text is None:
        return {}, None
    if text.isascii() and text.isdigit():
        return {"accelerators": at_least(0)(text)}, None
    if namespace.objective != "step":
        raise BadInput(f"{text!r} is no whole number", where="--devices", do="a cluster is for --objective step")
    for option in ("cpus", "memory"):
        if getattr(namespace, option) is not None:
            raise BadInput("is the cluster's", where=f"--{option}", do="leave it out, or give --devices a number")
    return {}, str(text)


def _config(namespace: argparse.Namespace) -> dict[str, Any]:
    """Options of the planner that were given."""
    config = given(namespace, "seed", "split", "policy")
    if namespace.finetune is not None:
        config["finetune_s"] = namespace.finetune
    return {name: str(value) if name == "policy" else value for name, value in config.items()}


def run(request: PlaceRequest) -> PlacementResult:
    """Read or make the graph, then place and cost it, or cost the placement that was given.

    Raises:
        BadInput: a file cannot be used, or the planner is unknown or not made for the problem.
        Infeasible: no placement fits the memory.
        UserCodeError: the user's own code raised.
    """
    result = _placed(request) if request.plan is None else _read_back(request, request.plan)
    return _verified(request, result) if request.verify else result


def _verified(request: PlaceRequest, result: PlacementResult) -> PlacementResult:
    """The same with what running it came to among its facts."""
    from automap_models.run.verify_placement import verify_placement

    from ..reports.text import Steps

    if result.problem.objective != "step":
        raise BadInput("is for placements of --objective step", where="--verify", do="leave it out")
    with Steps() as steps:
        verified = verify_placement(request.source, result, request.config.get("seed", 0), steps.begin)
    return replace(result, facts={**result.facts, "verified": verified})


def _placed(request: PlaceRequest) -> PlacementResult:
    from automap_models.core.placement import PlacementProblem
    from automap_models.cost.placement import one_device_s
    from automap_models.planners.base import NEVER, Deadline
    from automap_models.planners.registry import make_planner

    from ..reports.text import Steps

    planner = make_planner(_planner_name(request), kind="placement", **request.config)
    if request.cluster is None:
        problem = PlacementProblem.of(_graph(request), split_passes=request.split_passes, **request.overrides)
    else:
        network = _network(request)
        problem = PlacementProblem.of_step(_graph(request, network.kinds), network)
    limit_s = request.time_limit_s
    with Steps() as steps:
        steps.begin(f"placing {len(problem.graph):,} nodes by {planner.name}")
        result = planner.solve(problem, deadline=NEVER if limit_s is None else Deadline(limit_s), watch=steps.watch)
    result.required_plan()
    return replace(result, facts={**result.facts, "one_device_s": one_device_s(problem), "time_limit_s": limit_s})


def _planner_name(request: PlaceRequest) -> str:
    return request.planner or DEFAULT_PLANNERS[request.overrides.get("objective", "throughput")]


def _network(request: PlaceRequest) -> StepDevices:
    """The devices of the cluster; kinds of which it gives the speed count as that much faster accelerators.

    A model has times on the kind that a uniform cluster is made of, unless --accelerator names another one; a graph in
    a file has those of its accelerators.
    """
    from automap_models.core.step_devices import StepDevices
    from automap_models.formats.hardware_yaml import read_cluster

    cluster = read_cluster(str(request.cluster))
    devices = StepDevices.of_cluster(cluster)
    if not cluster.device or request.accelerator or request.source.kind is SourceKind.PROFILE:
        return devices
    return replace(devices, kinds=(cluster.device,) * cluster.devices)


def _read_back(request: PlaceRequest, path: Path) -> PlacementResult:
    from automap_models.cost.placement import one_device_s
    from automap_models.formats.placement_plan import read_placement_plan

    def graph_of(kinds: tuple[str, ...] | None) -> PlacementGraph:
        objective = {} if kinds is None else {"objective": "step"}
        return _graph(replace(request, overrides={**request.overrides, **objective}), kinds or ())

    result = read_placement_plan(path, graph_of)
    note = f"read from {path}, costed again"
    return replace(result, notes=(note,), facts={"one_device_s": one_device_s(result.problem)})


def _graph(request: PlaceRequest, kinds: tuple[str, ...] = ()) -> PlacementGraph:
    """The graph in a file, or that of a model's instructions, with times on further kinds of devices."""
    if request.source.kind is SourceKind.PROFILE:
        from automap_models.formats.placement_json import read_placement

        return read_placement(request.source.what, do="give device-placement JSON, an HLO file or a model")
    return _graph_of_model(request, kinds)


def _graph_of_model(request: PlaceRequest, kinds: tuple[str, ...]) -> PlacementGraph:
    """Traced, costed by two clocks, contracted; what user code prints goes to stderr."""
    from automap_models.formats.hardware_yaml import DEFAULT_DEVICE, read_device

    from ..reports.text import Steps

    accelerator, host = read_device(request.accelerator or DEFAULT_DEVICE), read_device(request.host or "cpu")
    link_bytes_per_s = DEFAULT_LINK_BYTES_PER_S if request.link_bytes_per_s is None else request.link_bytes_per_s
    with contextlib.redirect_stdout(sys.stderr), Steps() as steps:
        _, graph = traced(request.source, steps.begin)
        from automap_models.hlo.clock import clock_times

        times = {"accelerator": accelerator.name, "host": host.name, "times": "clock, not measured"}
        if request.overrides.get("objective") == "step":
            from automap_models.core.step_devices import ACCELERATOR, CPU
            from automap_models.hlo.step_graph import step_graph

            others = {kind: read_device(kind) for kind in dict.fromkeys(kinds) if kind not in (ACCELERATOR, CPU)}
            return step_graph(
                graph,
                clock_times(graph, accelerator),
                clock_times(graph, host),
                {kind: clock_times(graph, device) for kind, device in others.items()},
                link_bytes_per_s=link_bytes_per_s,
                accelerators=int(request.overrides.get("accelerators", 0)),
                accelerator_bytes=float(request.overrides.get("memory_bytes", DEFAULT_MEMORY_BYTES)),
                meta=times,
            )
        steps.begin(f"contracting {len(graph):,} instructions")
        from automap_models.hlo.placement import placement_from_graph

        return placement_from_graph(
            graph,
            clock_times(graph, accelerator),
            clock_times(graph, host),
            nodes=request.nodes or DEFAULT_NODES,
            link_bytes_per_s=link_bytes_per_s,
            accelerators=int(request.overrides.get("accelerators", 0)),  # a placement read back brings its own
            cpus=int(request.overrides.get("cpus", 0)),
            accelerator_bytes=float(request.overrides.get("memory_bytes", DEFAULT_MEMORY_BYTES)),
            meta=times,
        )


def report(request: PlaceRequest, outcome: PlacementResult) -> Report:
    """A table of devices, a picture of their loads, placement.json."""
    from automap_models.formats.placement_plan import placement_document

    from ..reports.placement import print_placement

    def draw() -> Figure:
        from automap_models.plots.placement import draw_placement

        return draw_placement(outcome)

    verified = outcome.facts.get("verified")
    return Report(
        lambda: print_placement(outcome),
        lambda: placement_document(outcome),
        draw=draw,
        exit_code=DISAGREES if verified is not None and not verified.equal else 0,
    )


COMMAND = Command(
    summary="place the operators of a model on accelerators and CPUs",
    description="Place the operators of a model on accelerators and CPUs, so that a pipeline of micro-batches flows "
    "fast or that one micro-batch is done soon.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(
        Output("placement", ("--out",), "write the placement as JSON"),
        Output("plot", ("--plot",), "draw the loads of the devices (.png, .svg, .pdf)", picture=True),
    ),
    json="print the placement as JSON and nothing else",
    inputs=("what", "plan", "split"),
    request=request,
    run=run,
    report=report,
)
