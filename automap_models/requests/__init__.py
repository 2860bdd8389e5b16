"""What the commands and the functions of Python are asked for, and the one way to an answer: `solve(request)`.

A request is a frozen record, checked as far as that takes no long work. A field is the option of that name, which says
what it means in the command's help; `None` is what the user left open where the default depends on something else.
Nothing here imports numpy: help is to be fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models.core.schedules import DEFAULT_MIN_GAIN
from automap_models.core.training_run import TrainingGoal
from automap_models.core.tuning import FULL, Training
from automap_models.errors import BadInput
from automap_models.planners.options import COMPETING, ExploreOptions, PlanOptions
from automap_models.workloads.source import MODELS

if TYPE_CHECKING:
    from automap_models.core.cluster import Cluster
    from automap_models.core.device import Device
    from automap_models.core.observed import Attribution
    from automap_models.core.plan import Plan
    from automap_models.core.profile import Profile
    from automap_models.core.profiled_model import ProfiledModel
    from automap_models.cost.runtime import Runtime
    from automap_models.export.target import Source as PlanSource
    from automap_models.planners.base import Watch
    from automap_models.run.base import DeviceKind, Executor
    from automap_models.workloads.source import Source


def solve(request: object, watch: Watch | None = None) -> Any:
    """What a request asks for, as the module of SOLVERS that does it says; that is imported now.

    Args:
        request: one of the records below.
        watch: is told how far it is.

    Raises:
        BadInput: the request cannot be met: a file, a model or an option is wrong.
        Infeasible: no plan fits the memory.
        UserCodeError: the model's own code raised.
    """
    from automap_models.planners.base import SILENT

    module, function = SOLVERS[type(request)].split(".")
    return getattr(import_module(f"{__name__}.{module}"), function)(request, watch or SILENT)


def cluster_of(topo: str | Cluster) -> Cluster:
    """The cluster itself, or the one of that name or in that file.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    if not isinstance(topo, str):
        return topo
    from automap_models.formats.hardware_yaml import read_cluster

    return read_cluster(topo)


def device_on(cluster: Cluster, device: str | Device | None) -> Device:
    """The device itself, or the one of that name or in that file, or the kind that the cluster is made of.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    from automap_models.core.device import Device
    from automap_models.formats.hardware_yaml import device_of

    return device if isinstance(device, Device) else device_of(cluster, device)


@dataclass(frozen=True)
class ProfileRequest:
    """`automap profile`.

    Attributes:
        source: None where only the built-in models shall be listed.
        measuring: options of measuring by name, such as repeats; None where nothing is measured.
    """

    source: Source | None
    model: str | None = None
    device: str | Device | None = None
    measuring: dict[str, Any] | None = None
    show: bool = False
    instructions: bool = False


@dataclass(frozen=True)
class ExportRequest:
    """`automap export`.

    Attributes:
        source: the model that the plan was made for; None where it is not given.
        launch: one of `export.targets.LAUNCHES`, whose file is written, too.
    """

    plan: Path | PlanSource
    source: Source | None
    to: str
    out: Path | None = None
    snap: bool = False
    check: bool = False
    topo: str | Cluster | None = None
    device: str | Device | None = None
    microbatch_size: int | None = None
    launch: str | None = None


@dataclass(frozen=True)
class CalibrateRequest:
    """`automap calibrate`; what is fitted is the device, the runtime, or both."""

    files: tuple[Path, ...]
    device: str | None = None
    runtime: str | None = None
    also: tuple[str, ...] = ()
    model: str | None = None
    sequence: int | None = None
    pull: float | None = None

    def __post_init__(self) -> None:
        if self.device is None and self.runtime is None:
            do = "give `device`, `runtime`, or both"
            raise BadInput("nothing is to be fitted", where="a calibration", do=do)
        if self.also and self.device is None:
            raise BadInput("goes with `device`", where="`also`", do="give it, or leave this out")


@dataclass(frozen=True)
class PlaceRequest:
    """`automap place`.

    Attributes:
        problem: fields of the placement problem that are given in place of the graph's, by name.
        config: options of the planner that are given, by name.
        cluster: of the objective step, by name or file; None: as many equal devices as `problem` says.
    """

    source: Source
    problem: dict[str, Any]
    split_passes: bool
    planner: str
    config: dict[str, Any]
    time_limit_s: float | None
    plan: Path | None
    nodes: int | None
    accelerator: str | None
    host: str | None
    link_bytes_per_s: float | None
    cluster: str | None
    verify: bool


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """`automap plan`.

    Attributes:
        options: what is asked of the plans; of strategies, the batch, the memory and how long to look.
        microbatch_size: samples in the micro-batch of a profile that does not say.
        cached: whether what was traced is kept, and taken from the cache.
        verbose: whether the report lists what was searched.
    """

    source: Source
    topo: str | Cluster
    device: str | Device | None = None
    options: ExploreOptions
    microbatch_size: int | None = None
    cached: bool = False
    verbose: bool = False

    @property
    def cluster(self) -> Cluster:
        """The cluster, perhaps with less memory."""
        return self.options.limited(cluster_of(self.topo))


@dataclass(frozen=True, kw_only=True)
class ExploreRequest(PlanRequest):
    """Every kind of plan competes.

    Attributes:
        plan: is costed and shown, where it is given, and nothing searched.
        target: the framework that is to run the plan, which `options` have the limits of; None for any.
    """

    plan: Path | None = None
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class StrategyRequest(PlanRequest):
    """A strategy is searched, or priced.

    Attributes:
        fields: those of `core.strategy.Strategy` that are given.
        training: what of the model is trained, and by which optimiser.
        runtime: how the framework runs it: a record, a shipped one's name or a file; None: as the target's, and without
            one as programs in general do.
        flash: whether there are flash kernels.
        imbalance: tokens for the experts of the fullest device over the mean of all; None: as the runtime has it.
        price: whether nothing is searched.
        reserve: bytes that are left free: of each device under None, of devices of a rank beside that by its number.
        target: the framework that is to run it, whose limits hold; None for any.
        devices: least and most devices of a sweep; None for the cluster as it is.
        minimize: what the chosen one of several clusters, or of fewer nodes of them, has the least of, one of
            MINIMIZED; None is the step of those that `topo` names, with commas between.
        goal: the whole training; None where nobody asks what that takes.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    training: Training = FULL
    runtime: Runtime | str | Path | None = None
    flash: bool = True
    imbalance: float | None = None
    price: bool = False
    reserve: Mapping[int | None, float] = field(default_factory=dict)
    target: str | None = None
    devices: tuple[int, int] | None = None
    goal: TrainingGoal | None = None
    minimize: str | None = None

    def __post_init__(self) -> None:
        if self.minimize not in (None, *MINIMIZED):
            raise BadInput(f"is {self.minimize!r}", where="`minimize`", do=f"give {', '.join(MINIMIZED)}")
        if self.minimize == "cost" and self.goal is None:
            raise BadInput("cost is of a training that nobody asks for", where="`minimize`", do="give `tokens`")
        sizes: object = self.devices
        pair = isinstance(sizes, tuple) and len(sizes) == 2 and all(isinstance(n, int) and n > 0 for n in sizes)
        if sizes is not None and not pair:
            raise BadInput(f"is {sizes!r}", where="`devices`", do="give the least and the most number, such as (8, 64)")
        if self.training.packed and not self.flash:
            raise BadInput("documents apart need flash kernels", where="`packed`", do="leave `flash` as it is")
        if self.imbalance is not None and not 1.0 <= self.imbalance < math.inf:
            raise BadInput(f"is {self.imbalance:g}", where="`imbalance`", do="give a number from 1 on")


@dataclass(frozen=True, kw_only=True)
class FitRequest(StrategyRequest):
    """`automap fit`: whether a strategy fits, and what would where none does; nothing is proven of its step."""


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """`automap doctor`.

    Attributes:
        what: the path of a file of another program, or a command line.
        model: in place of what the file says; None where that is enough.
        topo: the cluster; None: as many `device` as the file says.
        sequence, vocabulary: tokens of a sample, and of the model, where the file does not say them.
        packed: tokens of each document where several share a sample.
        fields: those of a strategy that it does not say.
        variables: of a script, that are set outside.
        ignored: settings that are not known, and priced without; all of them under "all".
        min_gain: how much shorter a setting has to be for each thing that makes it harder to run.
    """

    what: str
    model: Source | None = None
    topo: str | Cluster | None = None
    device: str | Device | None = None
    sequence: int | None = None
    vocabulary: int | None = None
    packed: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    min_gain: float = DEFAULT_MIN_GAIN


DOCTOR_FIELDS = ("micro_batch", "global_batch", "recompute")
"""Fields of a strategy that a file of another program may leave to something else."""
FIELDS = (
    *("tp", "pp", "dp", "dp_replicate", "vp", "cp", "ep", "etp", "tower_tp"),
    *("micro_batch", "recompute", "zero", "sequence_parallel", "precision", "dispatcher", "offload", "layers"),
)
"""Fields of a strategy that are options; `schedule` and `global_batch` are of plans of stages, too."""


TRAINING = ("optimizer", "states", "freeze", "lora", "quantize", "loss", "packed")
"""Options of `core.tuning.Training`."""
MINIMIZED = ("step", "cost", "devices")
"""What the cluster that is chosen has the least of."""
TRAINING_GOAL = ("tokens", "gpu_hour", "deadline", "max_cost", "mtbf", "checkpoint", "restart")
"""Options of `core.training_run.TrainingGoal`."""


def narrowed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of plans of stages within what the framework that `target` names can express.

    `equal_replicas`, `cut_at` and, where it is an option, `forbidden` are set accordingly. Stages that divide
    operators, each by its own number of devices, are left out where the framework has one number.

    Raises:
        BadInput: there is no such framework, it takes no plans of stages, or does not run the schedule.
    """
    name, options = options.get("target"), dict(options)
    if not isinstance(name, str):
        return options
    from automap_models.core.constraints import BLOCKS
    from automap_models.core.framework import StageLimits
    from automap_models.export.targets import target_by_name

    target, schedule = target_by_name(name), options.get("schedule")
    limits = target.limits
    if limits is None:
        raise BadInput(f"{name} restricts no plan of stages", where="`target`", do="leave it out")
    if schedule is not None and schedule not in limits.schedules:
        do = f"choose from {', '.join(limits.schedules)}"
        raise BadInput(f"{name} does not run schedule {schedule}", where="`schedule`", do=do)
    schedules = tuple(schedule for schedule in COMPETING if schedule in limits.schedules)
    options["target"] = StageLimits(
        schedules,
        limits.filled,
        limits.ties,
        target.takes_strategies,
        limits.power_of_two,
        name if limits.one_series else "",
        "pp" not in limits.undivided,
    )
    if "pp" in limits.undivided and options.get("stages") not in (None, 1, "auto"):
        raise BadInput(f"{name} has no pipelines", where="`stages`", do="leave it out")
    options["equal_replicas"] = options.get("equal_replicas") or limits.equal_replicas
    if limits.cuts != "anywhere":
        if options.get("cut_at") not in (None, BLOCKS):
            raise BadInput(f"{name} cuts where blocks end", where="`cut_at`", do="leave it out")
        options["cut_at"] = BLOCKS
    forbidden = options.get("forbidden")
    if limits.sharding != "by stage" and forbidden is not None and "operator" not in forbidden:
        options["forbidden"] = (*forbidden, "operator")
    return options


@dataclass(frozen=True)
class InferRequest:
    """`automap infer`: one plan. `options` are what is asked of it; `plan` is costed, where it is given."""

    profile: Path | Profile | ProfiledModel
    topo: str | Cluster | None
    options: PlanOptions
    plan: Path | None = None
    verbose: bool = False


@dataclass(frozen=True)
class SweepRequest:
    """`automap infer --sweep`: a plan for every combination in a file."""

    profile: Path
    sweep: Path
    options: PlanOptions


@dataclass(frozen=True)
class ReplanRequest:
    """`automap infer --observed`: the next plan of a running job.

    Attributes:
        names_corrected: whether the user knows where the corrected profile goes.
    """

    profile: Path
    topo: str | None
    microbatch_size: int | None
    plan: Path
    observed: Path
    policy: Path | None
    attribute: Attribution | None
    restart_s: float
    names_corrected: bool


_OF_RUNS = {"device": (None, "cpu", "cuda"), "executor": (None, "torch", "automap"), "zero": (0, 2, 3)}
"""Option of a run → what it may be."""


@dataclass(frozen=True)
class RunRequest:
    """`automap run`; `virtual` is the number of stages that share a rank's devices."""

    plan: Path | Plan
    source: Source
    backend: str | None = None
    device: DeviceKind | None = None
    schedule: str | None = None
    virtual: int | None = None
    executor: Executor | None = None
    zero: int = 0
    steps: int = 3
    warmup: int = 1
    seed: int = 0
    check: bool = False

    def __post_init__(self) -> None:
        if self.source.kind not in MODELS:
            do = "give a model that can run, such as a factory"
            raise BadInput(self.source.kind.value, where=self.source.what, do=do)
        for name, least in (("steps", 1), ("warmup", 0), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise BadInput(f"is {value!r}", where=f"`{name}`", do=f"give a whole number ≥ {least}")
        for name, choices in _OF_RUNS.items():
            if getattr(self, name) not in choices:
                do = f"choose from {', '.join(map(str, choices))}"
                raise BadInput(f"is {getattr(self, name)!r}", where=f"`{name}`", do=do)


@dataclass(frozen=True)
class SearchRequest:
    """`automap search opp` and `adp`.

    Attributes:
        search: "opp" partitions trainable parameters, "adp" inputs.
        mesh: devices along the one axis, or axes with their sizes; None for all devices of the cluster.
    """

    search: str
    source: Source
    topo: str
    mesh: int | tuple[tuple[str, int], ...] | None
    objective: str
    device: str | None
    rules: str
    plan: Path | None
    verify: bool
    planner: str
    agent: str | None
    episodes: int | None
    stop_at_optimum: bool | None
    seed: int | None
    show_groups: bool


@dataclass(frozen=True)
class OnlineRequest:
    """`automap search pp`."""

    source: Source
    device: str | None
    topo: str
    stages: int | None
    micro_batches: int | None
    state_factor: float | None
    agent: str
    episodes: int
    seed: int
    warm_start: str | None


@dataclass(frozen=True)
class ModelsRequest:
    """`automap models`."""

    filter: str = ""
    model_types: bool = False


SOLVERS: Mapping[type, str] = {
    ProfileRequest: "profile.solve",
    InferRequest: "stages.solve",
    SweepRequest: "stages.swept",
    ReplanRequest: "stages.replanned",
    OnlineRequest: "stages.trained",
    ExploreRequest: "exploration.solve",
    StrategyRequest: "strategies.solve",
    FitRequest: "fit.solve",
    DoctorRequest: "doctor.solve",
    RunRequest: "plan_files.run",
    ExportRequest: "plan_files.export",
    PlaceRequest: "placement.solve",
    SearchRequest: "sharding.solve",
    CalibrateRequest: "calibration.solve",
    ModelsRequest: "models.solve",
}
"""Request → the module of this package and its function."""
