"""`automap place`: from an operator graph and devices to a placement (formats.md, "Commands")."""

from __future__ import annotations

import argparse
import math

from automap_models.core.units import BYTES
from automap_models.errors import BadInput
from automap_models.planners.options import given
from automap_models.requests import PlaceRequest
from automap_models.workloads.source import MODELS, SourceKind

from ..runner import Command, Output, reported_by
from .parsing import SEED, STEP, add_options, at_least, filled, flag, name_argument, quantity, refuse, source_of

DEFAULT_PLANNERS = {"throughput": "ideals", "latency": "milp", "step": "learned"}
"""Objective → planner."""
STEP_PLANNERS = ("learned", "metis", "m-etf")
"""They place the operations of a step, and nothing else."""
OF_PLACING = (
    *("devices", "cpus", "memory_bytes", "objective", "communication", "pieces"),
    *("finetune_s", "policy", "planner", "time_limit_s", "seed", "split", "split_passes"),
)
"""Options that a placement made before has no use for."""
EPILOG = """GRAPH is one of
  device-placement JSON   of dnn-partitioning, which brings its own devices and memory
  a built-in model        bert48, t5_base, vgg19, …: see automap profile --list
  a config.json           of Hugging Face: path/to/config.json, as automap profile reads it
  a factory               my_package.my_module:make_step, a JAX training step or an nn.Module
  HLO or StableHLO        as automap profile reads it; without a backward pass, too

examples:
  automap place bert24.json                                     the optimal contiguous placement, printed
  automap place bert24.json --planner milp --time-limit 60      not contiguous, with a proven gap
  automap place bert24.json --objective latency --devices 6     one micro-batch as fast as possible
  automap place rnnlm_4 --objective step --devices 4            every operation placed
  automap place gnmt_2 --devices dgx-1 --planner learned --finetune 60
  automap place bert24.json --objective step                    one step, forward and backward, as fast as possible
  automap place t5_base --devices 4 --nodes 200 --out placement.json --plot placement.png
  automap place bert24.json --plan placement.json               cost and show a placement made before
  automap place my_models:make_step --objective step --devices 8 --verify   … and run it on eight devices of this host
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to place, and how."""
    parser.add_argument("what", metavar="GRAPH", type=name_argument, help="what to place, see below")
    devices = """
        --devices K|CLUSTER  accelerators (default: the graph's); for --objective step also a cluster, by name or file
        --gpus N×KIND        for --objective step: devices of a kind in its usual nodes, such as 8xh100
    """
    problem = """
        --cpus L             CPUs (default: the graph's; 0 for models)
        --memory SIZE        memory of one accelerator (default: the graph's; 32 GB)
        --objective          the largest load of a device, the time of one micro-batch through subgraphs, or the
            makespan of one step whose operations start as soon as they can (default: throughput, or step where the
            planner is for steps)
        --communication      transfers and compute of a device take turns or overlap (default sum)
        --split-passes       minimise the largest forward load plus the largest backward load
        --pieces Q           subgraphs an accelerator (latency; default 1)
    """
    group = parser.add_argument_group("what to plan")
    add_options(group.add_mutually_exclusive_group(), devices, gpus={"dest": "devices"})
    add_options(
        group,
        problem,
        memory_bytes={"type": quantity(BYTES)},
        objective={"choices": tuple(DEFAULT_PLANNERS)},
        communication={"choices": ("sum", "max")},
    )
    how = f"""
        --planner NAME     ideals (default for throughput), milp (default for latency), local-search, expert,
            metis (step), m-etf (step), learned (default for step)
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
    """What is asked for."""
    for option, value_s in given(namespace, "time_limit_s", "finetune_s").items():
        if not 0 < value_s < math.inf:
            raise BadInput(f"{value_s:g} seconds", where=flag(option), do="give a positive number")
    if namespace.planner in STEP_PLANNERS and namespace.plan is None:
        if namespace.objective not in (None, "step"):
            do = "give --objective step, or none"
            raise BadInput("is for steps only", where=f"--planner {namespace.planner}", do=do)
        namespace.objective = "step"
    if namespace.plan is not None:
        refuse(namespace, OF_PLACING, "the placement read has its own")
    elif namespace.planner != "expert":
        refuse(namespace, ("split",), "is for --planner expert")
    planner = namespace.planner or DEFAULT_PLANNERS[namespace.objective or "throughput"]
    if planner != "learned":
        refuse(namespace, ("finetune_s", "policy"), "is for --planner learned")
    devices, cluster = _devices(namespace)
    source = source_of(vars(namespace))
    if source.kind not in MODELS:
        refuse(namespace, ("verify",), f"{source.what} {source.kind.value}", "give a model or a factory to run")
    if namespace.plan is None and namespace.objective != "step":
        refuse(namespace, ("verify",), "is for --objective step")
    if source.kind is not SourceKind.PROFILE and namespace.devices is None and namespace.plan is None:
        raise BadInput("a model brings no devices", where="--devices", do="say how many accelerators there are")
    return filled(
        PlaceRequest,
        namespace,
        source=source,
        problem=devices | given(namespace, "cpus", "memory_bytes", "objective", "communication", "pieces"),
        planner=planner,
        config=given(namespace, "finetune_s", "policy", "seed", "split"),
        cluster=cluster,
    )


def _devices(namespace: argparse.Namespace) -> tuple[dict[str, int], str | None]:
    """The number of accelerators, or the cluster that is named."""
    text = namespace.devices
    if text is None:
        return {}, None
    if text.isascii() and text.isdigit():
        return {"accelerators": at_least(0)(text)}, None
    if namespace.objective != "step":
        raise BadInput(f"{text!r} is no whole number", where="--devices", do="a cluster is for --objective step")
    refuse(namespace, ("cpus", "memory_bytes"), "is the cluster's", "leave it out, or give --devices a number")
    return {}, str(text)


COMMAND = Command(
    description="Place the operators of a model on accelerators and CPUs, so that a pipeline of micro-batches flows "
    "fast or that one micro-batch is done soon.",
    epilog=EPILOG,
    exits={1: "--verify found a difference", 3: "no placement fits the memory"},
    add_arguments=add_arguments,
    outputs=(
        Output("placement", ("--out",), "write the placement as JSON"),
        Output("plot", ("--plot",), "draw the loads of the devices (.png, .svg, .pdf)", picture=True),
    ),
    json="print the placement as JSON and nothing else",
    inputs=("what", "plan", "split"),
    request=request,
    report=reported_by("placement"),
)
