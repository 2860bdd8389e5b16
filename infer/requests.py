"""What the commands are asked for.

A request is a frozen record, checked as far as that takes no long work. A field is the option of that name, which says
what it means in the command's help; `None` is what the user left open where the default depends on something else.
Nothing here imports numpy: help is to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models.planners.options import ExploreOptions, PlanOptions

if TYPE_CHECKING:
    from automap_models.core.cluster import Cluster
    from automap_models.core.observed import Attribution
    from automap_models.formats.atomic import Cache
    from automap_models.run.base import DeviceKind, Executor
    from automap_models.workloads.source import Framework, Source


@dataclass(frozen=True)
class ProfileRequest:
    """`automap profile`.

    Attributes:
        source: None where only the built-in models shall be listed.
        measuring: options of measuring by name, such as repeats; None where nothing is measured.
    """

    source: Source | None
    framework: Framework | None = None
    model: str | None = None
    device: str | None = None
    measuring: dict[str, Any] | None = None
    show: bool = False
    instructions: bool = False


@dataclass(frozen=True)
class ExportRequest:
    """`automap export`.

    Attributes:
        source: the model that the plan was made for; None where it is not given.
    """

    plan: Path
    source: Source | None
    to: str
    out: Path | None
    snap: bool
    check: bool
    topo: str | None
    device: str | None
    microbatch_size: int | None


@dataclass(frozen=True)
class CalibrateRequest:
    """`automap calibrate`."""

    files: tuple[Path, ...]
    device: str
    also: tuple[str, ...] = ()
    model: str | None = None
    sequence: int | None = None
    pull: float | None = None


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


@dataclass(frozen=True)
class StrategyRequest:
    """A strategy to be searched or priced by `automap plan`.

    Attributes:
        fields: those of `core.strategy.Strategy` that are given.
        flash: whether attention cores are flash kernels.
        price: whether nothing is searched.
        usual: whether no field is given, so that plans of stages are searched where the model is no transformer.
        reserves: bytes that are left free: of each device under None, of devices of a rank beside that by its number.
        target: the framework that is to run it, whose limits hold; None for any.
        sizes: least and most devices of a sweep; None for the cluster as it is.
    """

    fields: dict[str, Any]
    flash: bool = True
    price: bool = False
    usual: bool = False
    reserves: dict[int | None, float] = field(default_factory=dict)
    target: str | None = None
    sizes: tuple[int, int] | None = None


@dataclass(frozen=True)
class PlanRequest:
    """`automap plan`.

    Attributes:
        options: what is asked of the plans.
        cached: whether results are kept and taken from the cache.
        strategy: to search or to price; None for the search of plans of stages.
        of_stages: the option that asks for these alone, if one does.
    """

    source: Source
    topo: str
    device: str | None
    microbatch_size: int | None
    options: ExploreOptions
    cached: bool
    plan: Path | None
    strategy: StrategyRequest | None
    of_stages: str | None

    @property
    def cluster(self) -> Cluster:
        """The cluster, perhaps with less memory."""
        from automap_models.formats.hardware_yaml import read_cluster

        return self.options.limited(read_cluster(self.topo))

    @property
    def cache(self) -> Cache:
        """Of results, or one that keeps nothing."""
        from automap_models.formats.atomic import Cache, cache_folder

        return Cache(cache_folder() if self.cached else None)


@dataclass(frozen=True)
class InferRequest:
    """`automap infer`: one plan. `options` are what is asked of it."""

    profile: Path
    topo: str | None
    options: PlanOptions
    plan: Path | None
    verbose: bool
    out: Path | None


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


@dataclass(frozen=True)
class RunRequest:
    """`automap run`; `virtual` is the number of stages that share a rank's devices."""

    plan: Path
    source: Source
    backend: str | None
    device: DeviceKind | None
    schedule: str | None
    virtual: int | None
    executor: Executor | None
    zero: int
    steps: int
    warmup: int
    seed: int
    check: bool


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
