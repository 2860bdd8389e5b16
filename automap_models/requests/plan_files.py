"""A plan that is made: written for another framework, or run for some steps.

The step of a run is a row of measured steps, which automap calibrate reads beside those that people write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from automap_models.core.plan import Plan, Stage
from automap_models.core.run_record import RunRecord
from automap_models.core.strategy import Strategy
from automap_models.cost.measured_step import SkippedStep
from automap_models.errors import BadInput
from automap_models.export.exporter import Exported, export_plan
from automap_models.export.snap import Price
from automap_models.export.target import read_source
from automap_models.export.targets import target_by_name, training_limits
from automap_models.formats.hardware_yaml import SIZED, ClusterDocument, known_clusters
from automap_models.formats.measured_documents import RowDocument, SourceDocument
from automap_models.formats.measured_rows import step_of
from automap_models.formats.plan import written_plan
from automap_models.formats.runtime_yaml import known_runtimes, read_runtime
from automap_models.formats.schema import convert
from automap_models.formats.sharding_plan import SHARDING_DOCUMENTS
from automap_models.formats.staged_plan import StagedDocument
from automap_models.formats.strategy_plan import StrategyDocument
from automap_models.planners.base import Watch
from automap_models.planners.options import ExploreOptions
from automap_models.requests import ExportRequest, RunRequest, StrategyRequest, cluster_of, device_on
from automap_models.requests import solve as answer
from automap_models.requests.profile import begin_of, profiled_model
from automap_models.run import make_backend
from automap_models.run.base import RunProblem, run_schedule
from automap_models.workloads.measured import DTYPES, parameters_of, row_model, step_work
from automap_models.workloads.source import SourceKind, described, framework_of


def export(request: ExportRequest, watch: Watch) -> Exported:
    """The files' text, and what was changed where the target has no words for the plan; nothing is written."""
    target, plan, price = target_by_name(request.to), request.plan, None
    source = read_source(plan) if isinstance(plan, Path) else plan
    target.require_source(source)
    if source.plan.kind == "stages" and request.source is not None and isinstance(plan, Path):
        assert source.plan.cluster is not None
        model = profiled_model(request, source.plan.cluster, watch, cached=True)
        source = read_source(plan, model)
    if source.plan.kind == "strategy":
        price = _price(request)
    elif request.topo is not None:
        raise BadInput("is for strategies, and the plan has its own", where="`topo`", do="leave it out")
    path = request.out or Path(f"{plan.stem if isinstance(plan, Path) else 'plan'}{target.ending}")
    exported = export_plan(source, target, path, snap=request.snap, check=request.check, price=price)
    if request.launch is not None:
        exported = _launched(exported, request.launch, request, path)
    if exported.written.beside and request.out is None:
        what = f"{request.to} takes {1 + len(exported.written.beside)} files for this plan"
        raise BadInput(what, where="`out`", do="give the name of the first")
    return exported


def _price(request: ExportRequest) -> Price | None:
    """What prices strategies of the model on its cluster, those that the target does not run, too; None where one of
    both is not given."""
    cluster, source = request.topo, request.source
    if cluster is None or (source is None and request.launch is not None):
        return None
    if source is None:
        raise BadInput("is for the price of a model, and none is given", where="`topo`", do="give the model after PLAN")
    priced = StrategyRequest(
        source=source, topo=cluster, device=request.device, options=ExploreOptions(), cached=True, price=True
    )
    runtime = read_runtime(request.to) if request.to in known_runtimes() else None

    def price(strategy: Strategy) -> float:
        numbers = runtime and runtime.runtime(strategy.precision, device_on(priced.cluster, request.device).name)
        return float(answer(replace(priced, fields=asdict(strategy), runtime=numbers)).step_s)

    return price


def _launched(exported: Exported, launcher: str, request: ExportRequest, path: Path) -> Exported:
    """With the file that launches it on the cluster that is given, or that the plan names."""
    from automap_models.export.launch import LAUNCHERS, launch

    if launcher not in LAUNCHERS:
        do = f"choose from {', '.join(LAUNCHERS)}"
        raise BadInput(f"is {launcher!r}", where="`launch`", do=do)
    plan = exported.source.plan
    topo = request.topo or plan.cluster or plan.cluster_name
    if isinstance(topo, str) and request.topo is None and topo not in known_clusters() and not SIZED.fullmatch(topo):
        what = "the plan does not say which nodes it is for"
        raise BadInput(what, where="`launch`", do="give them, such as `gpus` 32xh100")
    cluster = cluster_of(topo)
    if plan.strategy is not None and plan.strategy.devices != cluster.devices:
        what = f"cluster {cluster.name} has {cluster.devices} devices, and the strategy {plan.strategy.devices}"
        raise BadInput(what, where="`topo`", do="give the cluster that it is for")
    return launch(exported, launcher, cluster, device_on(cluster, request.device).name, path)


def _strategy_refused(plan: Plan, strategy: Strategy) -> BadInput:
    """What to do with a strategy, whose ZeRO and recomputation the stages of a run do not have."""
    trains = [name for name, limits in training_limits().items() if limits.objection(strategy, plan.facts) is None]
    export = f"automap export writes it for {' or '.join(trains)}; or " if trains else ""
    do = f"{export}plan stages, which run: automap plan with `target='torch-split-spec'`"
    return BadInput("is a strategy, and runs are of plans of stages", where=plan.where, do=do)


def run(request: RunRequest, watch: Watch) -> RunRecord | None:
    """Run it; None in a process that another one reports for."""
    plan = request.plan
    if isinstance(plan, Path):
        plan = written_plan(plan, StagedDocument, StrategyDocument, *SHARDING_DOCUMENTS)
    if plan.strategy is not None:
        raise _strategy_refused(plan, plan.strategy)
    begin, backend = begin_of(watch), request.backend
    problem = {field.name: getattr(request, field.name) for field in fields(RunProblem)}
    problem |= {"plan": plan, "schedule": run_schedule(plan, request.schedule, request.virtual)}
    begin(f"building {request.source.what}")
    if backend is None:
        backend = framework_of(request.source.returned()) if request.source.kind is SourceKind.FACTORY else "jax"
    record: RunRecord | None = make_backend(backend).run(RunProblem(**problem), begin)
    return None if record is None else with_row(record, request)


# ---- the row of a run

SOURCE = "automap run"
"""Who measured the steps of all runs."""
SAME = 0.02
"""Share by which the parameters of a row's model may differ from those of the one that ran."""
_NUMBER = re.compile(r"\d+")


def with_row(record: RunRecord, request: RunRequest) -> RunRecord:
    """The record with its row, or with why there is none."""
    try:
        return replace(record, row=_row(record, request))
    except BadInput as error:
        return replace(record, no_row=str(error))


def _row(record: RunRecord, request: RunRequest) -> dict[str, Any]:
    """See docs/reference/files.md.

    Raises:
        BadInput: rows have no words for the plan or the model.
    """
    transformer: Any = described(request.source).get("transformer")
    if transformer is None:
        raise BadInput("is no transformer by name, by a config.json, or of transformers", where=request.source.what)
    dtype, (model, work) = transformer["dtype"], row_model(transformer, record.plan.model)
    row = {
        **{"source": SOURCE, "system": f"automap run on {record.backend}", "model": model},
        **_strategy(record, request, work.shape.layers),
        **{"gpu_type": record.device, "flash": transformer["flash"], "precision": DTYPES.get(dtype, dtype)},
        "measured": {"iteration_s": record.step_s, "memory_max_allocated_bytes": record.memory_bytes},
    }
    row["id"] = f"{model['name']}: pp {row['pp']}, dp {row['dp']}, {row['global_batch']} samples"
    step = step_of(convert(row, RowDocument, where=record.plan.where, do=""), SourceDocument())
    if isinstance(step, SkippedStep):
        raise BadInput(step.reason)
    if abs(parameters_of(step_work(step)) / parameters_of(work) - 1.0) > SAME:
        raise BadInput("is no GPT-2, BERT, Llama or mixture of these by its parameters", where=record.plan.model)
    return row


def _strategy(record: RunRecord, request: RunRequest, layers: int) -> dict[str, Any]:
    """Its keys, and those of the cluster.

    Raises:
        BadInput: a strategy has no words for the plan.
    """
    plan, schedule = record.plan, record.schedule
    ranks, cluster, samples = {stage.device_count for stage in plan.stages}, plan.cluster, plan.microbatch_size
    dp = min(ranks)
    for what, is_so in {
        "is no plan of stages": plan.kind != "stages",
        "has stages that share operators": any(stage.tensor > 1 for stage in plan.stages),
        "has stages of unequal numbers of devices": len(ranks) > 1,
        "is for several kinds of devices": cluster is not None and bool(cluster.groups),
        "has micro-batches that are no equal parts for replicas": samples is None or samples % dp > 0,
    }.items():
        if is_so:
            raise BadInput(what, where=plan.where)
    assert cluster is not None and samples is not None
    return {
        **{"gpus": cluster.devices, "cluster": ClusterDocument.from_cluster(cluster).builtins()},
        **{"tp": 1, "pp": schedule.ranks, "dp": dp, "vp": schedule.virtual, "schedule": schedule.name},
        **{"micro_batch": samples // dp, "global_batch": samples * plan.micro_batches},
        **{"recompute": "none", "zero": request.zero, "layers_per_stage": _stage_layers(plan, layers)},
    }


def _stage_layers(plan: Plan, layers: int) -> list[int]:
    """[S] blocks of each stage.

    Raises:
        BadInput: a stage ends inside of one.
    """
    ends = [0, *(_blocks_before(cut, plan.where) for cut in pairwise(plan.stages)), layers]
    return [after - before for before, after in pairwise(ends)]


def _blocks_before(cut: Sequence[Stage], where: str) -> int:
    """Blocks before a cut, of which the last one's number stands in the name of the layer before it, if any does."""
    before, after = (_NUMBER.search(name) for name in (cut[0].layers[1], cut[1].layers[0]))
    if before is None:
        return 0
    if after is not None and after[0] == before[0]:
        raise BadInput("has a stage that ends inside a block", where=where, do="plan with `cut_at=blocks`")
    return int(before[0]) + 1
