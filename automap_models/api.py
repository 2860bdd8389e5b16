"""What `import automap_models as am` offers: a profile of one's own model, plans for it, and what to do with a plan.

    profile = am.profile(model, inputs)     # of a PyTorch module or a JAX training step
    result = am.plan(profile, "C")          # or am.plan(model, "C", inputs), am.plan("gpt2", gpus="8xh100")
    result.save("plan.json")                # or .plot("plan.png"), .to_split_spec()
    am.export(result, "torchtitan")         # or am.run(result, "my_models:make_model", check=True)

Each function makes the request that the command of its name makes, and has it met in the same way. Its options have the
words of the command's: `pin`, `keep_together`, `forbid`, `memory`, `budget`, `for_`, …; times and sizes are numbers of
seconds and bytes or texts such as "16 GB". Frameworks are imported only where a model of theirs is given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate
from automap_models.core.plan import Plan
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.result import PlanReport, Result
from automap_models.core.run_record import RunRecord
from automap_models.core.schedules import DEFAULT_SCHEDULE, require_schedule
from automap_models.core.strategy import Strategy
from automap_models.cost.runtime import Runtime
from automap_models.errors import BadInput, is_of_type
from automap_models.formats.atomic import write_json
from automap_models.formats.plan import written_plan
from automap_models.formats.staged_plan import StagedDocument, plan_document, staged_document
from automap_models.formats.strategy_plan import StrategyDocument
from automap_models.planners.base import config_of
from automap_models.planners.options import ExploreOptions, PlanOptions
from automap_models.plots.figures import drawn
from automap_models.plots.html import plan_html, strategy_html
from automap_models.requests import (
    DOCTOR_FIELDS,
    DoctorRequest,
    ExportRequest,
    InferRequest,
    ProfileRequest,
    RunRequest,
    narrowed,
    solve,
)
from automap_models.requests.doctor import DoctorResult
from automap_models.requests.fit import FitResult
from automap_models.requests.plan import OF_STRATEGIES, plan_request
from automap_models.requests.profile import OF_SOURCES, ProfileOptions, source_of
from automap_models.requests.strategies import StrategyResult
from automap_models.requests.words import fields_of, in_words
from automap_models.workloads.source import Source, SourceKind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from automap_models.export.exporter import Exported
    from automap_models.export.target import Source as PlanSource
    from automap_models.planners.portfolio.explore import Exploration

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedResult(PlanReport):
    """A plan, what it costs and what is proven about it; it can be kept, drawn and handed to a framework."""

    @classmethod
    def from_report(cls, report: PlanReport, **others: Any) -> Self:
        """The result in a report, and what else it has."""
        return cls(**vars(report), **others)

    @property
    def report(self) -> PlanReport:
        """The same, as results of earlier versions had it apart."""
        return self

    def __repr__(self) -> str:
        plan, cluster = self.plan, self.problem.cluster
        return (
            f"{type(self).__name__}({self.problem.profile.model} on {cluster.name}: {plan.stages} stage(s), "
            f"{plan.micro_batches} micro-batches, by {plan.planner}, {self.status})"
        )

    def _repr_html_(self) -> str:
        """The table of the stages and their schedule, as a notebook shows a result."""
        return plan_html(self)

    def save(self, path: PathLike) -> None:
        """Write plan.json, whole or not at all; `read_plan` and the commands' `--plan` read it.

        Raises:
            BadInput: the file cannot be written.
        """
        write_json(path, plan_document(self))

    def plot(self, path: PathLike | None = None, schedule: str | None = None) -> Figure:
        """The model's arrays with the cuts, and the simulated schedule; a notebook shows the figure as it is.

        Args:
            path: where the picture is written, too (.png, .svg, .pdf).
            schedule: of the simulation; None is the one that was planned for.

        Raises:
            BadInput: an unknown schedule or kind of picture, matplotlib is missing, or the file cannot be written.
        """
        from automap_models.plots.pipeline import draw
        from automap_models.simulate.plan_step import timeline

        name = require_schedule(schedule or self.problem.schedule or DEFAULT_SCHEDULE)
        return drawn(path, lambda: draw(self, timeline(self.cost, self.plan.micro_batches, name)))

    def to_split_spec(self) -> dict[str, Any]:
        """What `torch.distributed.pipelining.pipeline(model, mb_args, split_spec=…)` takes.

        Raises:
            BadInput: the profile was not made of a PyTorch module by `profile` or `automap profile`.
        """
        from automap_models.torch_export.pipelining import split_spec

        return split_spec(self.problem.profile, self.plan.cuts)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExploredResult(PlannedResult):
    """The best plan of every kind; it is the best of them all.

    Attributes:
        exploration: all plans, the best one first, and why the others are not.
    """

    exploration: Exploration

    def plot(self, path: PathLike | None = None, schedule: str | None = None) -> Figure:
        """What the step of each plan consists of; with a schedule the best plan's own picture."""
        if schedule is not None:
            return super().plot(path, schedule)
        from automap_models.plots.exploration import draw_candidates

        return drawn(path, lambda: draw_candidates(self.exploration))


@dataclass(frozen=True, eq=False, kw_only=True)
class PricedStrategy(Estimate):
    """The price of a strategy, which a notebook shows as the parts of its step, its ranks and its passes."""

    def _repr_html_(self) -> str:
        return strategy_html(self)


def profile(
    model: object,
    inputs: object = None,
    *,
    device: str | Device | None = None,
    measure: bool = False,
    name: str | None = None,
    **options: Any,
) -> Profile:
    """The profile of one micro-batch of a training step.

    Args:
        model: a PyTorch module; a JAX training step (function or TrainingStep); or what `automap profile` takes: the
            name of a built-in model, "my_package.my_module:make_step", a file.
        inputs: of a module, a tensor, a tuple of positional or a dict of keyword arguments; of a function, the tuple of
            its arguments, the trainable parameters first and the batch last, as arrays or their shapes. Only shapes and
            element types count, unless the step is measured.
        device: by whose clock the times are, by name, file or record; None is v100.
        measure: run the step on this machine and take its times instead.
        name: of the model.
        options: of measuring (`repeats`, `warmup`, `seed`); of a name (`batch`, `sequence`, `dtype`,
            `dropout`, `images`, `image_tokens`, `mtp`), and `trainable`.

    Raises:
        BadInput: the model or an option cannot be used.
        UserCodeError: the model's own code raised.
    """
    request = config_of(ProfileOptions, "profile", **options)
    measuring = {key: value for key in ("repeats", "warmup", "seed") if (value := getattr(request, key)) is not None}
    if measuring and not measure:
        raise BadInput("nothing is measured", where=f"`{next(iter(measuring))}`", do="give `measure=True`, too")
    source = source_of(model, inputs, request)
    name = name or (source.what if source.model is not None else None)
    profiled: Profile = solve(ProfileRequest(source, name, device, measuring if measure else None))
    return profiled


def plan(
    model: object,
    cluster: Cluster | PathLike | None = None,
    inputs: object = None,
    *,
    gpus: str | None = None,
    device: str | Device | None = None,
    microbatch_size: int | None = None,
    **options: Any,
) -> ExploredResult | StrategyResult:
    """The best plan of a model on a cluster, whatever kind it is of, as `automap plan` makes it.

    Args:
        model: what `profile` takes, with `inputs`, or a Profile or the file of one: every kind of plan competes, data
            parallelism, partitioned operators, pipelines, hybrids of them and strategies; or a transformer by name, a
            config.json or the ModelWork of one: strategies are searched.
        cluster: a record, a shipped one's name ("A", "C", "p4d-4", …) or a YAML file.
        gpus: devices such as "32xh100", in place of a cluster.
        device: by whose clock a model's times are; None is the kind that the cluster is made of.
        microbatch_size: samples in the profiled micro-batch of a profile that does not say.
        options: those of the command: `global_batch`, `schedule`, `pin`, `max_stages`, `forbid`, `memory`, `budget`, …;
            of a strategy also fields of `Strategy`, which are then given, `runtime`, `reserve` (bytes of each device
            that are left free, or by rank) and `devices` (least and most of a sweep). `for_` is the framework of
            `automap export` that is to run the plan. Those of a name, as of `profile`, are for a model by name.

    Raises:
        BadInput: an argument cannot be used.
        Infeasible: no plan fits the memory.
        UserCodeError: the model's own code raised.
    """
    source, topo = _source(model, inputs, options), _topo(cluster, gpus)
    if source.kind is SourceKind.PROFILE and device is not None:
        raise BadInput(f"does not apply: {source.what} {source.kind.value}", where="`device`", do="leave it out")
    wanted = fields_of("plan", _OF_PLANS, options)
    with in_words():
        answer = solve(plan_request(source, topo, wanted, device=device, microbatch_size=microbatch_size))
    if isinstance(answer, StrategyResult):
        return answer
    return ExploredResult.from_report(answer.report, exploration=answer.exploration)


def infer(
    profile: Profile | PathLike, cluster: Cluster | PathLike | None = None, *, gpus: str | None = None, **options: Any
) -> PlannedResult:
    """The best plan of pipeline stages of a profile, as `automap infer` makes it.

    Args:
        profile: a record or its file.
        cluster, gpus: as of `plan`.
        options: those of the command: `stages`, `micro_batches`, `global_batch`, `schedule`, `planner`, …

    Raises:
        BadInput, Infeasible: as of `plan`.
    """
    wanted = fields_of("infer", [option.name for option in fields(PlanOptions)], options)
    model = profile if isinstance(profile, Profile) else _path(profile, "`profile`", "give a Profile or its file")
    with in_words():
        request = InferRequest(model, _topo(cluster, gpus), config_of(PlanOptions, "infer", **narrowed(wanted)))
        return PlannedResult.from_report(solve(request))


def price(
    model: object,
    cluster: Cluster | PathLike | None = None,
    strategy: Strategy | None = None,
    *,
    gpus: str | None = None,
    device: str | Device | None = None,
    sequence: int | None = None,
    dropout: bool = False,
    images: int | None = None,
    image_tokens: int | None = None,
    mtp: int | None = None,
    runtime: Runtime | PathLike | None = None,
    **fields: Any,
) -> PricedStrategy:
    """What a strategy costs on a cluster: the step, what it consists of, and the memory of every rank.

    Args:
        model: the name of a built-in transformer or a Hugging Face config.json; or the ModelWork that `read_model_work`
            makes of one, which is worth its while where many strategies are priced; or a profile.
        cluster, gpus: as of `plan`.
        strategy: how the model is trained; or its `fields`, as `automap plan --price` takes them.
        device: what the cluster is made of; None is the kind that the cluster names. A mixed one names several.
        sequence: tokens of a sample; None is as the config.json says.
        dropout, images, image_tokens, mtp: see workloads.config_parts.ConfigOptions.
        runtime: how the framework runs it: a record, a shipped one's name ("megatron", …) or a YAML file; None is as
            programs in general do.

    Raises:
        BadInput: an argument cannot be used, or the model or the cluster cannot be divided as the strategy says.
    """
    given = ProfileOptions(sequence=sequence, dropout=dropout, images=images, image_tokens=image_tokens, mtp=mtp)
    source = source_of(model, None, given)
    of_strategy = {} if strategy is None else asdict(strategy)
    options = {**of_strategy, **fields_of("price", _OF_PLANS, fields), "runtime": runtime}
    with in_words():
        priced = solve(plan_request(source, _topo(cluster, gpus), options, device=device, price=True))
    return PricedStrategy(**vars(priced))


def fit(
    model: object,
    cluster: Cluster | PathLike | None = None,
    inputs: object = None,
    *,
    gpus: str | None = None,
    device: str | Device | None = None,
    microbatch_size: int | None = None,
    **options: Any,
) -> FitResult:
    """Whether a model fits a cluster, by which strategy, and what would fit where none does, as `automap fit` says it.

    Args:
        model, cluster, inputs, gpus, device, microbatch_size: as of `plan`.
        options: those of the command: fields of `Strategy`, which are then given, `global_batch`, `memory`, `reserve`,
            `runtime`, `for_`, `batch`, `sequence`, …

    Returns:
        `verdict` is "fits", "at risk" or "does not fit"; `cost` the price of the best strategy found, or None beside
        `emptiest` and `remedies`.

    Raises:
        BadInput, UserCodeError: as of `plan`.
    """
    source, topo = _source(model, inputs, options), _topo(cluster, gpus)
    wanted = fields_of("fit", _OF_PLANS, options)
    with in_words():
        request = plan_request(source, topo, wanted, device=device, microbatch_size=microbatch_size, fit=True)
        fitting: FitResult = solve(request)
    return fitting


def doctor(
    what: PathLike,
    cluster: Cluster | PathLike | None = None,
    *,
    gpus: str | None = None,
    model: str | None = None,
    variables: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    **options: Any,
) -> DoctorResult:
    """What a file or a command line of another program will do, and the better setting, as `automap doctor` says it.

    Args:
        what: a command line, or the path of a script or of a configuration (docs/how-to/doctor.md has the programs).
        cluster, gpus: as of `plan`; without both as many of `device` as the file says.
        model: the name of a built-in transformer or a config.json, where the file does not say its sizes.
        variables: of a script, that are set outside.
        ignore: settings that are not known, to be priced without.
        options: what the file does not say: `device`, `sequence`, `vocabulary`, `packed`, `micro_batch`,
            `global_batch`, `recompute`; and `min_gain`.

    Returns:
        `current` is the price of what the file says, or None where that is refused; `plan` and `cost` are the better
        setting, or None; `changes` its lines of the file; `refusals` sentences; `shorter` what is harder to run.

    Raises:
        BadInput: the file cannot be read or contradicts itself, or something that matters is not known or not said.
    """
    source = None if model is None else source_of(model, None, ProfileOptions())
    given = fields_of("doctor", (*DOCTOR_FIELDS, "device", "sequence", "vocabulary", "packed", "min_gain"), options)
    topo = None if cluster is None and gpus is None else _topo(cluster, gpus)
    fields = {name: given.pop(name) for name in DOCTOR_FIELDS if name in given}
    given |= {"topo": topo, "fields": fields, "variables": variables or {}, "ignored": tuple(ignore)}
    with in_words(set="variables"):
        answer: DoctorResult = solve(DoctorRequest(what=os.fspath(what), model=source, **given))
    return answer


def run(plan: PlannedResult | StrategyResult | PathLike, model: PathLike, **options: Any) -> RunRecord | None:
    """Run a plan for some steps, one process a device, and compare it with its prediction, as `automap run` does.

    Args:
        plan: a result of stages, or the file of a plan of stages or of shardings; strategies are for `export`.
        model: what its profile was made of: the name of a model, a config.json or "my_models:make_model". An object of
            one's own runs in `automap_models.run.Pipeline`.
        options: those of the command: `backend`, `device`, `schedule`, `vp`, `executor`, `zero`, `steps`,
            `warmup`, `seed`, `check`; and `batch`, `sequence`, `dtype` of a model by name.

    Returns:
        Measured times of every step and what the check found; None in a process that another one reports for.

    Raises:
        BadInput: the plan, the model, an option or the machine cannot be used.
        RunFailed: a worker has ended.
        UserCodeError: the model's own code raised.
    """
    do = "give the name of a model or my_package.my_module:make_model; Pipeline of automap_models.run takes objects"
    _path(model, "`model`", do)
    source = _source(model, None, options)
    do = "give a plan of stages that `am.plan` made, or the file of a plan of stages or shardings"
    written = _plan_source(plan).plan if isinstance(plan, (Result, Estimate)) else _path(plan, "`plan`", do)
    names = [option.name for option in fields(RunRequest) if option.name not in ("plan", "source")]
    wanted = fields_of("run", names, options)
    with in_words():
        record: RunRecord | None = solve(RunRequest(plan=written, source=source, **wanted))
    return record


def export(
    plan: PlannedResult | StrategyResult | Estimate | PathLike,
    to: str,
    model: object = None,
    *,
    out: PathLike | None = None,
    snap: bool = False,
    check: bool = False,
    cluster: Cluster | PathLike | None = None,
    device: str | Device | None = None,
    microbatch_size: int | None = None,
    launch: str | None = None,
    **options: Any,
) -> Exported:
    """A plan in the words of a framework, as `automap export` writes it.

    Args:
        plan: a result, a price, or the file of a plan.
        to: the framework: a key of `automap_models.export.targets.TARGETS`.
        model: what the plan in a file was made for, as `plan` takes it; a result brings its own.
        out: where the text is written, too.
        snap: write the nearest plan that the target has words for, where it has none for this one.
        check: have the target's own parser, which must be installed, read the text back.
        cluster, device: of a strategy, to say what a snapped one loses, which needs the model; or to launch it on.
        microbatch_size: as of `plan`.
        launch: "slurm", "skypilot" or "jobset": write what starts it on the cluster, too.
        options: of a name, as of `profile`.

    Returns:
        `written.text` is the file, `written.beside` those beside it, `snapped` what was changed.

    Raises:
        BadInput: an argument cannot be used, or the target has no words for the plan.
        Infeasible: the snapped plan does not fit the memory.
    """
    source = None if model is None else source_of(model, None, config_of(ProfileOptions, "export", **options))
    written = _path(plan, "`plan`") if isinstance(plan, (str, os.PathLike)) else _plan_source(plan)
    path, topo = None if out is None else Path(out), None if cluster is None else _topo(cluster)
    with in_words(target="to"):
        request = ExportRequest(written, source, to, path, snap, check, topo, device, microbatch_size, launch)
        exported: Exported = solve(request)
    if path is not None:
        from automap_models.export.exporter import write_files

        write_files(path, exported.written)
    return exported


def read_plan(
    path: PathLike, model: Profile | ProfiledModel | PathLike, cluster: Cluster | PathLike | None = None
) -> PlannedResult | PricedStrategy:
    """The plan in a file, costed again; a plan of stages belongs to the profile that it was made for, which it names.

    Args:
        path: of a plan of stages, or of a strategy, of which the price is returned.
        model: the profile, or its file; a plan that partitions operators needs the ProfiledModel. Of a strategy what
            `price` takes.
        cluster: None takes the one in the file; that of a strategy has none.

    Raises:
        BadInput: the file is no such plan, belongs to another profile or cluster, or contradicts itself.
        Infeasible: a stage does not fit the memory.
    """
    written, topo = _path(path, "`path`"), None if cluster is None else _topo(cluster)
    if written_plan(written, StagedDocument, StrategyDocument).strategy is not None:
        source = source_of(model, None, ProfileOptions())
        return PricedStrategy(**vars(solve(plan_request(source, _topo(cluster), {}, plan=written))))
    profile = model if isinstance(model, (Profile, ProfiledModel)) else _path(model, "`model`")
    return PlannedResult.from_report(solve(InferRequest(profile, topo, PlanOptions(), written)))


_OF_PLANS = (*(option.name for option in fields(ExploreOptions)), *OF_STRATEGIES)
"""Fields of the requests that `plan`, `price` and `fit` make."""


def _source(model: object, inputs: object, options: dict[str, Any]) -> Source:
    """The model with the options that say which training step of it is meant; these are taken out."""
    of_source = {name: options.pop(name) for name in OF_SOURCES if name in options}
    return source_of(model, inputs, ProfileOptions(**of_source))


def _path(path: object, where: str, do: str = "give the path of a file") -> Path:
    """The path of a file."""
    if not isinstance(path, (str, os.PathLike)):
        raise BadInput(is_of_type(path), where=where, do=do)
    return Path(path)


def _plan_source(plan: object) -> PlanSource:
    """What is exported of a result or a price, as its file would tell it."""
    from automap_models.export.target import Source as PlanSource

    if isinstance(plan, PlannedResult):
        explored = plan.exploration.space.model if isinstance(plan, ExploredResult) else None
        model = explored or ProfiledModel(plan.problem.profile)
        return PlanSource(staged_document(plan).plan("the plan"), plan, model)
    priced = plan.cost if isinstance(plan, Result) else plan
    if isinstance(priced, Estimate):
        return PlanSource(Plan.of_strategy(priced))
    raise BadInput(is_of_type(plan), where="`plan`", do="give a result of `am.plan`, a price, or the file of a plan")


def _topo(cluster: Cluster | PathLike | None, gpus: str | None = None) -> str | Cluster:
    if (cluster is None) == (gpus is None):
        what = "no cluster is given" if cluster is None else "is given beside a cluster"
        raise BadInput(what, where="`gpus`", do="give a cluster, or devices such as gpus='8xh100'")
    return cluster if isinstance(cluster, Cluster) else os.fspath(gpus if cluster is None else cluster)  # type: ignore[arg-type]
