"""`automap export`: a plan in the words of another framework (docs/how-to/export.md)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.errors import BadInput
from automap_models.export.targets import TARGETS

from ..requests import ExportRequest
from ..runner import Command, Output, Report
from .parsing import (
    DEVICE,
    PROFILED_SIZE,
    STEP,
    Show,
    add_options,
    add_topo,
    file_argument,
    filled,
    given,
    name_argument,
    source_of,
)

if TYPE_CHECKING:
    from automap_models.core.profiled_model import ProfiledModel
    from automap_models.export.exporter import Exported
    from automap_models.export.snap import Price
    from automap_models.export.sources import StagedSource

EPILOG = """PLAN is what automap-infer, automap-plan or automap-search wrote with --out, or printed with --json: a plan
of stages, a strategy (automap-plan MODEL --tp … --json), or a sharding plan. MODEL|FILE is the model or profile that it
was made for, as automap-plan takes it; torch-csv, strategies and sharding plans do without.

examples:
  automap-export plan.json --to torch-csv --out schedule.csv             the schedule, as torch reads it
  automap-export plan.json profile.npz --to megatron --check             Megatron's own parser reads it back
  automap-export plan.json profile.npz --to torchtitan --snap --out config.py
                                                                         cuts go to the nearest ends of blocks
  automap-export strategy.json --to deepspeed --out pipeline.py
  automap-export strategy.json llama3-70b --topo dgx-h100-4 --to deepspeed --snap --out pipeline.py
                                                                         … and what the nearest strategy loses
  automap-export --list                                                  all targets

exit codes: 0 done, 2 the input or the arguments are bad, or the target has no words for the plan, 3 the snapped plan
does not fit the memory, 1 a defect of ours, 141 the output's reader went away
"""


def _print_targets() -> None:
    from automap_models.core.streams import printing

    width = max(map(len, TARGETS))
    with printing():
        print("\n".join(f"{name:<{width}}  {what}" for name, what in TARGETS.items()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which plan, of which model, for whom."""
    parser.add_argument("plan", metavar="PLAN", type=file_argument, help="the plan, see below")
    parser.add_argument("what", metavar="MODEL|FILE", nargs="?", type=name_argument, help="what it was made for")
    text = f"""
        --to TARGET  {", ".join(TARGETS)}
        --list       print the targets and exit
        --snap       where the target has no words for the plan, write the nearest that it has
        --check      have the target's own parser, which must be installed, read the file back
    """
    to, targets = {"choices": tuple(TARGETS), "required": True}, {"action": Show, "show": _print_targets}
    add_options(parser, text, to=to, list=targets)
    add_options(parser.add_argument_group("which training step the plan was made for"), STEP + DEVICE + PROFILED_SIZE)
    add_topo(parser, required=False)


def request(namespace: argparse.Namespace) -> ExportRequest:
    """What is asked for.

    Raises:
        BadInput: an option means nothing for what is given.
    """
    if namespace.what is not None:
        return filled(ExportRequest, namespace, source=source_of(vars(namespace)))
    options = ("batch", "sequence", "dtype", "device", "microbatch_size", "trainable")
    for name in given(namespace, *options):
        raise BadInput("is for a model, and none is given", where=f"`{name}`", do="give the model, or leave it out")
    return filled(ExportRequest, namespace, source=None)


def run(request: ExportRequest) -> Exported:
    """The plan's text for the target.

    Raises:
        BadInput: a file cannot be used, or the target has no words for the plan.
        Infeasible: the snapped plan does not fit.
    """
    from automap_models.export.exporter import export_plan
    from automap_models.export.sources import StagedSource, StrategySource, read_source, with_model
    from automap_models.export.targets import target_by_name

    target, source = target_by_name(request.to), read_source(request.plan)
    target.require_source(source)
    if isinstance(source, StagedSource) and request.source is not None:
        source = with_model(source, request.plan, _profiled(request, source))
    price = None
    if isinstance(source, StrategySource):
        price = _price(request)
    elif request.topo is not None:
        raise BadInput("is for strategies, and the plan has its own", where="`topo`", do="leave it out")
    path = request.out or Path(f"{request.plan.stem}{target.ending}")
    exported = export_plan(source, target, path, snap=request.snap, check=request.check, price=price)
    if exported.written.beside and request.out is None:
        what = f"{request.to} takes {1 + len(exported.written.beside)} files for this plan"
        raise BadInput(what, where="`out`", do="give the name of the first")
    return exported


def _price(request: ExportRequest) -> Price | None:
    """What prices strategies of the model on its cluster; None where one of both is not given.

    Raises:
        BadInput: the cluster is given and the model is not, or one is unknown.
    """
    if request.topo is None:
        return None
    if request.source is None:
        raise BadInput("is for the price of a model, and none is given", where="`topo`", do="give the model after PLAN")
    from automap_models.api import estimate

    model, cluster, device = request.source.what, request.topo, request.device
    sequence, dropout = request.source.sequence, request.source.dropout
    return lambda strategy: estimate(model, cluster, strategy, device=device, sequence=sequence, dropout=dropout).step_s


def _profiled(request: ExportRequest, source: StagedSource) -> ProfiledModel:
    """The model as it was planned, on the cluster of the plan."""
    from automap_models.formats.atomic import Cache, cache_folder
    from automap_models.formats.hardware_yaml import device_of
    from automap_models.planners.portfolio.model import profiled_once

    from ..reports.text import Steps

    assert request.source is not None
    device = device_of(source.written.cluster, request.device)
    with Steps() as steps:
        return profiled_once(
            request.source, device, request.microbatch_size, source.written.cluster, Cache(cache_folder()), steps.begin
        )[1]


def report(request: ExportRequest, exported: Exported) -> Report:
    """The text itself, or with a file what is in it."""
    from automap_models.export.exporter import write_files

    from ..reports.export import export_document, print_export, print_text

    written = exported.written
    return Report(
        (lambda: print_text(written)) if request.out is None else (lambda: print_export(exported)),
        lambda: export_document(exported),
        {"file": lambda path: write_files(path, written)},
        remarks=tuple(f"note: {note}" for note in written.notes),
    )


COMMAND = Command(
    summary="write a plan for another framework",
    description="Write a plan in the words of a framework that trains: torch, torchtitan, Megatron-LM, DeepSpeed, "
    "Galvatron, JAX or transformers. A plan that it has no words for is refused, with the nearest one that it has.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(Output("file", ("-o", "--out"), "file to write (default: print it)"),),
    json="print what is written as JSON and nothing else",
    inputs=("plan", "what"),
    request=request,
    run=run,
    report=report,
)
