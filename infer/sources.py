"""What `automap-profile` was given, a file, a model's name or a factory, and the way from there to a profile."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models import workloads
from automap_models.core.factory import call_factory, user_code
from automap_models.errors import BadInput
from automap_models.formats.device_yaml import read_device
from automap_models.formats.files import holds_module, read_profile

from .reports.progress import Steps

if TYPE_CHECKING:
    from automap_models.core.instruction_graph import InstructionGraph
    from automap_models.core.profile import Profile
    from automap_models.cost.roofline import Device
    from automap_models.hlo.adapter import Module

DEFAULT_DEVICE = "v100"


class Kind(Enum):
    """What the command was given; the value says why an option does not apply to it."""

    PROFILE = "is a profile, with times and sizes of its own"
    MODULE = "is an HLO file, with shapes of its own"
    WORKLOAD = "is a built-in JAX model"
    FACTORY = "is a factory"


MODELS = (Kind.WORKLOAD, Kind.FACTORY)
STEPS = (Kind.MODULE, *MODELS)
APPLIES: Mapping[str, tuple[Kind, ...]] = {
    "framework": MODELS,
    "batch": MODELS,
    "sequence": MODELS,
    "dtype": MODELS,
    "trainable": (Kind.MODULE,),
    "device": STEPS,
    "measure": STEPS,
    "nodes": STEPS,
    "accelerator": STEPS,
    "host": STEPS,
    "link": STEPS,
}
"""Option → what it can be given for."""

MEASURING = ("repeats", "warmup", "seed")
_FACTORY = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:\w+")
_WORD = re.compile(r"[\w-]+")
_OTHER_FILES: Mapping[str, tuple[str, str]] = {
    ".py": ("is Python source", "name the factory in it, as in my_package.my_module:make_step"),
    ".pb": ("is a protocol buffer", "give XLA's dump as text: XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text'"),
}
"""Ending → what such a file is and what to give in its place."""


def kind_of(what: str) -> Kind:
    """What the positional argument is: a model's name before a file of that name (`./bert48` is the file).

    Raises:
        BadInput: it looks like a name and is none, or the file cannot be read.
    """
    if what in workloads.names():
        return Kind.WORKLOAD
    path = Path(what)
    if not path.exists():
        if _FACTORY.fullmatch(what):
            return Kind.FACTORY
        if _WORD.fullmatch(what):
            raise _unknown_name(what)
        if ":" in path.name:
            do = "write a factory as my_package.my_module:make_step, without folders and .py"
            raise BadInput("is neither a file nor the name of a factory", where=what, do=do)
    elif path.suffix in _OTHER_FILES:
        told, do = _OTHER_FILES[path.suffix]
        raise BadInput(told, where=what, do=do)
    return Kind.MODULE if holds_module(path) else Kind.PROFILE


def require_no_model(what: Path) -> None:
    """Refuse what only `automap-profile` understands where a profile is asked for.

    Raises:
        BadInput: it is no file but a model's name or a factory.
    """
    name = str(what)
    if not what.exists() and (name in workloads.names() or _FACTORY.fullmatch(name)):
        raise BadInput(
            "is a model, not a profile", where=name, do=f"run automap-profile {name} -o profile.npz first and plan that"
        )


def _unknown_name(what: str) -> BadInput:
    known = workloads.names()
    close = difflib.get_close_matches(what, known, n=1)
    hint = f"did you mean {close[0]}? See" if close else f"known are {', '.join(known)}; see"
    return BadInput("is neither a file nor a known model", where=what, do=f"{hint} automap-profile --list")


def require_fitting(kind: Kind, arguments: argparse.Namespace) -> None:
    """Every option that was given means something for what was given.

    Raises:
        BadInput: naming the option.
    """
    require_applicable(kind, arguments)
    if kind is Kind.WORKLOAD and arguments.framework == "torch":
        raise _superfluous("framework", f"{arguments.what} {kind.value}")
    if arguments.measure and arguments.device:
        raise _superfluous("device", "--measure runs the model on this machine")
    for name in MEASURING:
        if getattr(arguments, name) is not None and not arguments.measure:
            raise _superfluous(name, "nothing is measured without --measure")


def require_applicable(kind: Kind, arguments: argparse.Namespace) -> None:
    """Of the options in APPLIES, those that a command has and that were given apply to what was given.

    Raises:
        BadInput: naming the option.
    """
    for name, kinds in APPLIES.items():
        if getattr(arguments, name, None) and kind not in kinds:
            raise _superfluous(name, f"{arguments.what} {kind.value}")


def _superfluous(name: str, why: str) -> BadInput:
    return BadInput(f"does not apply: {why}", where=f"--{name}", do="leave it out")


def profile_of(kind: Kind, arguments: argparse.Namespace) -> Profile:
    """Read, trace, cost or measure: whatever the profile takes. What user code prints goes to stderr.

    Raises:
        BadInput: it cannot be done, see each of the ways.
        UserCodeError: the user's own code raised.
    """
    if kind is Kind.PROFILE:
        profile = read_profile(arguments.what)
    else:
        device = None if arguments.measure else read_device(arguments.device or DEFAULT_DEVICE)
        of = _torch_profile if arguments.framework == "torch" else _jax_profile
        with contextlib.redirect_stdout(sys.stderr), Steps() as steps:
            profile = of(kind, arguments, device, steps)
    if arguments.model is None:
        return profile
    return replace(profile, meta={**profile.meta, "model": arguments.model})


def _jax_profile(kind: Kind, arguments: argparse.Namespace, device: Device | None, steps: Steps) -> Profile:
    from automap_models.hlo.profile import profile_from_graph

    module, graph = traced(kind, arguments, steps)
    if device is None:
        from automap_models.hlo.measure import measure_times

        measured = measure_times(module, graph=graph, progress=steps.advance, **_measuring(arguments))
        return profile_from_graph(graph, measured.times_s, measured.meta)
    from automap_models.cost.roofline import roofline_times

    meta = {"times": "roofline, not measured", "device": device.name}
    return profile_from_graph(graph, roofline_times(graph, device), meta)


def traced(kind: Kind, arguments: argparse.Namespace, steps: Steps) -> tuple[Module, InstructionGraph]:
    """The module of an HLO file or of a JAX model's training step, and its instruction graph.

    Raises:
        BadInput: it cannot be read or traced.
        UserCodeError: the user's own code raised.
    """
    steps.begin(f"tracing {arguments.what}" if kind in MODELS else f"reading {arguments.what}")
    from automap_models.hlo.graph import instruction_graph

    module = module_of(kind, arguments)
    steps.begin(f"costing {len(module.operations):,} instructions")
    return module, instruction_graph(module)


def module_of(kind: Kind, arguments: argparse.Namespace) -> Module:
    """The module of an HLO file or of a JAX model's training step.

    Raises:
        BadInput: it cannot be read or traced.
        UserCodeError: the user's own code raised.
    """
    from automap_models.hlo.adapter import read_module, trace

    if kind is Kind.MODULE:
        return read_module(arguments.what, trainable=arguments.trainable or ())
    step = (workloads.build if kind is Kind.WORKLOAD else workloads.from_factory)(arguments.what, **_sizes(arguments))
    with user_code(arguments.what) if kind is Kind.FACTORY else contextlib.nullcontext():
        return trace(step)


def _torch_profile(kind: Kind, arguments: argparse.Namespace, device: Device | None, steps: Steps) -> Profile:
    steps.begin("importing torch")
    from automap_models.torch_export.example import read_example
    from automap_models.torch_export.measure import measure_module
    from automap_models.torch_export.profile import profile_module

    steps.begin(f"building {arguments.what}")
    example = read_example(call_factory(arguments.what, **_sizes(arguments)), arguments.what)
    given = (example.model, example.args, example.kwargs)
    if device is None:
        steps.begin(f"measuring {arguments.what}")
        return measure_module(*given, **_measuring(arguments))
    steps.begin(f"exporting {arguments.what}")
    return profile_module(*given, device=device)


def _sizes(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("batch", "sequence", "dtype")}


def _measuring(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in MEASURING if getattr(arguments, name) is not None}
