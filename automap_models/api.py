"""What `import automap_models as am` offers: a profile of one's own model, plans for it, and what to do with a plan.

    profile = am.profile(model, inputs)     # of a PyTorch module or a JAX training step
    result = am.plan(profile, "C")          # or am.explore(model, "C", inputs, global_batch=256): every kind of plan
    result.save("plan.json")                # or .plot("plan.png"), .to_split_spec()

It stands above the planners as the commands do, and does the same with the same options. Frameworks are imported only
where a model of theirs is given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate
from automap_models.core.model_work import ModelWork
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.result import PlanReport, Result
from automap_models.core.schedules import DEFAULT_SCHEDULE, require_schedule
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_times import DEFAULT_RUNTIME, Runtime
from automap_models.errors import BadInput, is_of_type
from automap_models.export.targets import strategy_limits
from automap_models.formats.atomic import Cache, write_json
from automap_models.formats.hardware_yaml import DEFAULT_DEVICE, device_of, read_cluster, read_device, read_kinds
from automap_models.formats.plan_json import plan_document
from automap_models.formats.plan_reader import read_plan as read_plan_file
from automap_models.hlo.step import TrainingStep
from automap_models.planners.base import config_of
from automap_models.planners.options import ExploreOptions, PlanOptions
from automap_models.planners.portfolio.explore import Exploration, ExplorePlanner
from automap_models.planners.portfolio.planning import explore_config, planned, space_to_explore
from automap_models.planners.staged.evaluate import evaluate
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.source import Source, SourceKind, framework_of, read_model_work, source_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedResult(Result[StagedProblem, StagedPlan]):
    """A plan, what it costs and what is proven about it; it can be kept, drawn and handed to a framework.

    Attributes:
        report: the same held against what one gets without planning (simulated steps, baselines).
    """

    report: PlanReport

    @classmethod
    def of(cls, report: PlanReport) -> PlannedResult:
        """The result in a report."""
        own = {field.name: getattr(report.result, field.name) for field in fields(Result)}
        return cls(**own, report=report)

    def __repr__(self) -> str:
        plan, cluster = self.required_plan(), self.problem.cluster
        return (
            f"{type(self).__name__}({self.problem.profile.model} on {cluster.name}: {plan.stages} stage(s), "
            f"{plan.micro_batches} micro-batches, by {plan.planner}, {self.status})"
        )

    def save(self, path: PathLike) -> None:
        """Write plan.json, whole or not at all; `read_plan` and the commands' `--plan` read it.

        Raises:
            BadInput: the file cannot be written.
        """
        write_json(path, plan_document(self.report))

    def plot(self, path: PathLike | None = None, schedule: str | None = None) -> Figure:
        """The model's arrays with the cuts, and the simulated schedule; a notebook shows the figure as it is.

        Args:
            path: where the picture is written, too (.png, .svg, .pdf).
            schedule: of the simulation; None is the one that was planned for.

        Raises:
            BadInput: an unknown schedule or kind of picture, matplotlib is missing, or the file cannot be written.
        """
        from automap_models.plots.pipeline import draw
        from automap_models.simulate.step import timeline

        name = require_schedule(schedule or self.problem.schedule or DEFAULT_SCHEDULE)
        return _drawn(path, lambda: draw(self.report, timeline(self.cost, self.required_plan().micro_batches, name)))

    def to_split_spec(self) -> dict[str, Any]:
        """What `torch.distributed.pipelining.pipeline(model, mb_args, split_spec=…)` takes.

        Raises:
            BadInput: the profile was not made of a PyTorch module by `profile` or `automap-profile`.
        """
        from automap_models.torch_export.pipelining import split_spec

        return split_spec(self.problem.profile, self.required_plan().cuts)


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

        return _drawn(path, lambda: draw_candidates(self.exploration))


def profile(
    model: object,
    inputs: object = None,
    *,
    device: str | Device = DEFAULT_DEVICE,
    measure: bool = False,
    name: str | None = None,
    **options: Any,
) -> Profile:
    """The profile of one micro-batch of a training step.

    Args:
        model: a PyTorch module; a JAX training step (function or TrainingStep); or what `automap-profile` takes: the
            name of a built-in model, "my_package.my_module:make_step", a file.
        inputs: of a module, a tensor, a tuple of positional or a dict of keyword arguments; of a function, the tuple of
            its arguments, the trainable parameters first and the batch last, as arrays or their shapes. Only shapes and
            element types count, unless the step is measured.
        device: by whose clock the times are, by name, file or record.
        measure: run the step on this machine and take its times instead.
        name: of the model.
        options: of measuring (`repeats`, `warmup`, `seed`); of a name (`batch`, `sequence`, `dtype`,
            `dropout`), and `trainable`.

    Raises:
        BadInput: the model or an option cannot be used.
        UserCodeError: the model's own code raised.
    """
    from automap_models.workloads.source import profile_source

    request = config_of(_ProfileOptions, "profile", **options)
    measuring = {key: value for key in ("repeats", "warmup", "seed") if (value := getattr(request, key)) is not None}
    if measuring and not measure:
        raise BadInput("nothing is measured", where=f"`{next(iter(measuring))}`", do="give `measure=True`, too")
    source = _source(model, inputs, request)
    timed = device if isinstance(device, Device) else read_device(device)
    profiled = profile_source(
        source, None, timed, measuring if measure else None, lambda what: None, lambda *progress: None
    )
    name = name or (source.what if source.model is not None else None)
    return profiled if name is None else replace(profiled, meta={**profiled.meta, "model": name})


def plan(profile: Profile | PathLike, cluster: Cluster | PathLike, **options: Any) -> PlannedResult:
    """The best plan of pipeline stages for a profiled model, or data parallelism where that is faster.

    Args:
        profile: as `profile` makes it, or a file.
        cluster: a record, a shipped one's name ("A", "p4d-4", …), "32xh100", or a YAML file.
        options: fields of `planners.options.PlanOptions`: `stages`, `micro_batches`, `global_batch`, `schedule`, ….

    Raises:
        BadInput: an argument cannot be used.
        Infeasible: no plan fits the memory.
    """
    request = config_of(PlanOptions, "plan", **options)
    return PlannedResult.of(planned(_profile(profile), _cluster(cluster), request))


def explore(
    model: object,
    cluster: Cluster | PathLike,
    inputs: object = None,
    *,
    device: str | Device | None = None,
    microbatch_size: int | None = None,
    **options: Any,
) -> ExploredResult:
    """The best plan of every kind: data parallelism, partitioned operators, pipelines, and hybrids of them.

    Args:
        model, inputs: as of `profile`; or a Profile, which has no operations, so that no plan partitions them.
        cluster: a record, a shipped one's name or a YAML file.
        device: by whose clock a model's times are; None is the kind that the cluster is made of.
        microbatch_size: samples in the profiled micro-batch of a profile that does not say.
        options: fields of `planners.options.ExploreOptions`: `global_batch`, `pins`, `max_stages`, `forbidden`, ….

    Raises:
        BadInput: an argument cannot be used.
        Infeasible: no plan fits the memory.
        UserCodeError: the model's own code raised.
    """
    request = config_of(ExploreOptions, "explore", **options)
    limited, _ = request.limited(_cluster(cluster)), request.constraints
    profiled = _profiled_model(model, inputs, limited, _device(device, limited), microbatch_size)
    result = ExplorePlanner(explore_config(request)).solve(space_to_explore(profiled, limited, request))
    result.required_plan()
    best = PlannedResult.of(evaluate(result, seed=request.seed))
    return ExploredResult(**vars(best), exploration=result.facts["exploration"])


def estimate(
    model: ModelWork | PathLike,
    cluster: Cluster | PathLike,
    strategy: Strategy,
    *,
    device: str | Device | None = None,
    sequence: int | None = None,
    dropout: bool = False,
    runtime: Runtime = DEFAULT_RUNTIME,
) -> Estimate:
    """What a strategy costs on a cluster: the step, what it consists of, and the memory of every rank.

    Args:
        model: the name of a built-in transformer or a Hugging Face config.json; or the ModelWork that `read_model_work`
            makes of one, which is worth its while where many strategies are priced.
        cluster: a record, a shipped one's name or a YAML file.
        strategy: how the model is trained.
        device: what the cluster is made of, with constants of training steps; None is the kind that the cluster
            names. A mixed one names several.
        sequence: tokens of a sample; None is the model's own number.
        dropout: whether the model has the dropout that its config.json says.
        runtime: how the framework runs it.

    Raises:
        BadInput: an argument cannot be used, or the strategy divides the model or the cluster otherwise than these can
            be divided.
    """
    if not isinstance(model, (ModelWork, str, os.PathLike)):
        do = "give the name of a built-in model, a config.json, or what `read_model_work` makes of one"
        raise BadInput(is_of_type(model), where="`model`", do=do)
    for name, value in (("sequence", sequence), ("dropout", dropout)):
        if isinstance(model, ModelWork) and value:
            raise BadInput("is for the name of a model", where=f"`{name}`", do="leave it out: the work has its own")
    placed = _cluster(cluster)
    chips = _device(device, placed)
    strategy.require_cluster(placed)
    if not isinstance(model, ModelWork):
        model = read_model_work(os.fspath(model), sequence=sequence, dtype=strategy.dtype, dropout=dropout)
    return StrategyPricing(model, placed, chips, runtime, read_kinds(placed)).estimate(strategy)


def search_strategies(
    model: ModelWork | PathLike,
    cluster: Cluster | PathLike,
    global_batch: int,
    *,
    device: str | Device | None = None,
    sequence: int | None = None,
    target: str | None = None,
    reserve_bytes: float | None = None,
    rank_reserve_bytes: Mapping[int, float] = MappingProxyType({}),
    budget_s: float = 20.0,
    gap: float = 0.01,
    runtime: Runtime = DEFAULT_RUNTIME,
    **fixed: Any,
) -> Result[StrategyProblem, Strategy]:
    """The fastest strategy of a model on a cluster, and how much shorter any other can be at most.

    Args:
        model, cluster, device, sequence, runtime: as of `estimate`.
        global_batch: samples of a step.
        target: a framework of `automap-export` that is to run it, such as "megatron"; None for any.
        reserve_bytes: of each device that is left free; None is RESERVE of its memory, 8 %.
        rank_reserve_bytes: of devices of a rank beside that, by its number, from the last one on below 0.
        budget_s: counted seconds (see docs/explanation/proofs.md) after which the search ends.
        gap: share of the step by which another strategy may be shorter at most when it ends before.
        fixed: fields of `Strategy` that are given, by name; the others are searched.

    Returns:
        The strategy as `plan`, its Estimate as `cost`, and a bound on the simulated step.

    Raises:
        BadInput: an argument cannot be used, or fields that are given contradict the model, the cluster or one another.
        Infeasible: no strategy fits the memory.
    """
    placed = _cluster(cluster)

    def work(dtype: str) -> ModelWork:
        if isinstance(model, ModelWork):
            return model
        return read_model_work(os.fspath(model), sequence=sequence, dtype=dtype)

    problem = StrategyProblem.of(
        work,
        placed,
        _device(device, placed),
        global_batch=global_batch,
        fixed=fixed,
        within=None if target is None else strategy_limits(target),
        reserve_bytes=reserve_bytes,
        rank_reserve_bytes=rank_reserve_bytes,
        runtime=runtime,
    )
    result = StrategiesPlanner(StrategiesConfig(gap=gap, budget_s=budget_s)).solve(problem)
    result.required_plan()
    return result


def read_plan(
    path: PathLike, model: Profile | ProfiledModel | PathLike, cluster: Cluster | PathLike | None = None
) -> PlannedResult:
    """The plan in a file, costed again; a plan belongs to the profile that it was made for, which the file names.

    Args:
        path: of a plan.json.
        model: the profile, or its file; a plan that partitions operators needs the ProfiledModel.
        cluster: None takes the one in the file.

    Raises:
        BadInput: the file is no such plan, belongs to another profile or cluster, or contradicts itself.
        Infeasible: a stage does not fit the memory.
    """
    own = model if isinstance(model, ProfiledModel) else _profile(model)
    result = read_plan_file(path, own, None if cluster is None else _cluster(cluster))
    report = evaluate(result, notes=(f"read from {os.fspath(path)}, costed again",))
    return PlannedResult.of(report)


@dataclass(frozen=True)
class _ProfileOptions:
    """Options of a source and of measuring; None is the default of each."""

    batch: int | None = None
    sequence: int | None = None
    dtype: str | None = None
    trainable: tuple[str, ...] = ()
    dropout: bool = False
    repeats: int | None = None
    warmup: int | None = None
    seed: int | None = None


def _source(model: object, inputs: object, options: _ProfileOptions) -> Source:
    """Where the model comes from: a name or a file, or the object itself as a factory would return it."""
    if isinstance(model, (str, os.PathLike)):
        if inputs is not None:
            raise BadInput(f"{model} brings its own", where="`inputs`", do="leave it out")
        what = os.fspath(model)
        kind = source_kind(what)
        if options.dropout and kind not in (SourceKind.WORKLOAD, SourceKind.CONFIG):
            raise BadInput(f"{what} {kind.value}", where="`dropout`", do="leave it out")
        sizes = options.batch, options.sequence, options.dtype
        return Source(what, kind, *sizes, options.trainable, options.dropout)
    for name in ("batch", "sequence", "dtype", "trainable", "dropout"):
        if getattr(options, name):
            raise BadInput("is for the name of a model", where=f"`{name}`", do="leave it out: the inputs say it")
    name = str(getattr(model, "name", None) or getattr(model, "__name__", None) or type(model).__name__)
    if framework_of(model) == "torch":
        return Source(name, SourceKind.FACTORY, model=(model, _module_inputs(inputs)))
    if isinstance(model, TrainingStep):
        return Source(name, SourceKind.FACTORY, model=model)
    if not callable(model):
        do = "give a PyTorch module, a JAX training step, the name of a model or a file"
        raise BadInput(is_of_type(model), where="`model`", do=do)
    if not isinstance(inputs, (tuple, list)):
        do = "give the tuple of the step's arguments, the trainable parameters first and the batch last"
        raise BadInput(is_of_type(inputs), where="`inputs`", do=do)
    return Source(name, SourceKind.FACTORY, model=(model, tuple(inputs)))


def _module_inputs(inputs: object) -> object:
    """Inputs of a PyTorch module."""
    from torch import Tensor

    if isinstance(inputs, (Tensor, tuple, list, Mapping)):
        return inputs
    do = "give a tensor, a tuple of positional or a dict of keyword arguments"
    raise BadInput(is_of_type(inputs), where="`inputs`", do=do)


def _profiled_model(
    model: object, inputs: object, cluster: Cluster, device: Device, microbatch_size: int | None
) -> ProfiledModel:
    from automap_models.core.microbatch import sized

    if isinstance(model, Profile):
        model = ProfiledModel(model)
    if isinstance(model, ProfiledModel):
        return replace(model, profile=sized(model.profile, microbatch_size))
    from automap_models.planners.portfolio.model import profiled_once

    source = _source(model, inputs, _ProfileOptions())
    return profiled_once(source, device, microbatch_size, cluster, Cache(None), lambda what: None)[1]


def _profile(profile: Profile | PathLike) -> Profile:
    if isinstance(profile, Profile):
        return profile
    if not isinstance(profile, (str, os.PathLike)):
        do = "give a Profile, which `am.profile` makes, or the file of one"
        raise BadInput(is_of_type(profile), where="`profile`", do=do)
    from automap_models.formats.files import read_profile

    return read_profile(profile)


def _cluster(cluster: Cluster | PathLike) -> Cluster:
    return cluster if isinstance(cluster, Cluster) else read_cluster(os.fspath(cluster))


def _device(device: str | Device | None, cluster: Cluster) -> Device:
    return device if isinstance(device, Device) else device_of(cluster, device)


def _drawn(path: PathLike | None, draw: Any) -> Figure:
    """A picture, written where there is a path; whether it can be is known before it is drawn."""
    from automap_models.plots.figures import require_plotting, save_figure

    require_plotting(Path("figure.png") if path is None else Path(path))
    figure: Figure = draw()
    if path is not None:
        save_figure(Path(path), figure)
    return figure
