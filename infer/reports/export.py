"""What was written for another framework, as people read it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.units import counted, rounds
from automap_models.errors import BadInput
from automap_models.export.exporter import Exported, export_plan, write_files
from automap_models.export.snap import Price
from automap_models.export.target import read_source
from automap_models.export.targets import target_by_name
from automap_models.formats.atomic import Cache, cache_folder
from automap_models.formats.hardware_yaml import device_of
from automap_models.workloads.source import Source

from ..requests import ExportRequest
from ..runner import Report
from .text import Steps, fact_table, plain, print_parts


def report(request: ExportRequest) -> Report:
    """The plan's text for the target itself, for a pipe or a redirection, or with a file what is in it."""
    exported = _exported(request)
    written = exported.written
    return Report(
        partial(print, written.text, end="") if request.out is None else partial(print_export, exported),
        partial(export_document, exported),
        {"file": lambda path: write_files(path, written)},
        remarks=tuple(f"note: {note}" for note in written.notes),
    )


def _exported(request: ExportRequest) -> Exported:
    target, source, price = target_by_name(request.to), read_source(request.plan), None
    target.require_source(source)
    if source.plan.kind == "stages" and request.source is not None:
        source = read_source(request.plan, _profiled(request, request.source, source.plan.cluster))
    if source.plan.kind == "strategy":
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
    """What prices strategies of the model on its cluster; None where one of both is not given."""
    cluster, source = request.topo, request.source
    if cluster is None:
        return None
    if source is None:
        raise BadInput("is for the price of a model, and none is given", where="`topo`", do="give the model after PLAN")
    from automap_models.api import estimate

    model, device, sequence, dropout = source.what, request.device, source.sequence, source.dropout
    return lambda strategy: estimate(model, cluster, strategy, device=device, sequence=sequence, dropout=dropout).step_s


def _profiled(request: ExportRequest, model: Source, cluster: Cluster | None) -> ProfiledModel:
    """The model as it was planned, on the cluster of the plan."""
    from automap_models.planners.portfolio.model import profiled_once

    assert cluster is not None  # of a plan of stages
    cache = Cache(cache_folder())
    with Steps() as steps:
        device = device_of(cluster, request.device)
        return profiled_once(model, device, request.microbatch_size, cluster, cache, steps.begin)[1]


def print_export(exported: Exported) -> None:
    """Print what is in the file."""
    title = f"[bold]{plain(exported.source.name)}[/bold] for {plain(exported.target)}"
    print_parts([title], [fact_table(facts(exported))])


def facts(exported: Exported) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything."""
    plan = exported.source.plan
    if plan.sharding is not None:
        mesh = " and ".join(f"{axis.size} along {axis.name}" for axis in plan.sharding.mesh)
        yield "plan", f"{counted(len(plan.sharding.variables), 'variable')} on a mesh of {mesh}"
    else:
        schedule = plan.build_schedule()
        ranks = counted(schedule.ranks, "rank") if schedule.virtual > 1 else ""
        stages = counted(schedule.stages, "stage") + (f" on {ranks}" if ranks else "")
        yield "plan", f"{stages}, {rounds(schedule.micro_batches)}, {schedule.name}"
    if exported.snapped is not None:
        for change in exported.snapped.changes:
            yield "changed", change
        yield "loses", exported.snapped.loss
    if exported.checked_by is not None:
        yield "checked", f"{exported.checked_by} reads the plan back as it is"


def export_document(exported: Exported) -> dict[str, Any]:
    """The same as plain JSON types; texts of the files by ending, that of the file itself under an empty one."""
    moved, written = exported.snapped, exported.written
    return {
        "schema": 1,
        "kind": "export",
        "target": exported.target,
        "model": exported.source.name,
        "files": {"": written.text, **written.beside},
        "notes": list(written.notes),
        "changes": [] if moved is None else list(moved.changes),
        "step_s": None if moved is None else {"before": moved.before_s, "after": moved.after_s},
        "checked_by": exported.checked_by,
    }
