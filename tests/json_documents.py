"""What `--json` prints and nothing reads back, each document by a type: it has exactly these keys."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from automap_models.core import training_run
from automap_models.core.mesh import PlanKind
from automap_models.core.strategy import TransformerShape
from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.formats.npz import SharedDocument
from automap_models.formats.observed_json import DeviceTimes, StageTimes
from automap_models.formats.staged_plan import StagedDocument


class Known(TypedDict):
    """`automap profile --list`: built-in models with what they are, and devices."""

    models: dict[str, str]
    devices: list[str]


class Place(TypedDict):
    index: int
    name: str
    layer: str


class HeavyInstruction(Place):
    forward_s: float
    backward_s: float
    share: float
    parameter_bytes: float


class CheapCut(Place):
    bytes: float
    share_before: float


class LayerGroup(TypedDict):
    """Layers that do the same; numbers in which their names differ are `*` in the pattern."""

    pattern: str
    count: int
    time_s: float
    parameter_bytes: float
    stash_bytes: float
    share: float


class ProfileSummary(TypedDict):
    """`automap profile`: a profile's totals, heaviest parts and cheapest cuts; seconds of a micro-batch."""

    model: str
    instructions: int
    time_s: float
    forward_s: float
    parameter_bytes: float
    stash_bytes: float
    frozen_bytes: float
    fingerprint: str
    heaviest_layers: list[LayerGroup]
    heaviest_instructions: list[HeavyInstruction]
    cheapest_cuts: list[CheapCut]
    shared_parameters: list[SharedDocument]
    warnings: list[str]
    notes: list[str]
    meta: dict[str, Any]


class Bound(TypedDict):
    """No plan of the space is below `bound_s`."""

    bound_s: float
    proof: Literal["exact", "relaxation"]


class Proven(Bound):
    gap: float


class SweepRow(TypedDict):
    cluster: ClusterDocument
    stages: int
    micro_batches: int
    microbatch_size: int | None
    schedule: str | None
    step_s: float | None
    length_s: float | None
    efficiency: float | None
    best_of_cluster: bool
    planner: str | None
    cuts: list[int] | None
    device_cuts: list[int] | None
    optimality: Bound | None
    error: str | None
    outside: str | None


class SweepProvenance(TypedDict):
    automap_version: str
    profile_fingerprint: str
    profile_microbatch_size: int | None


class Sweep(TypedDict):
    """`automap infer --sweep`: a row a combination."""

    schema: Literal[1]
    kind: Literal["sweep"]
    model: str
    rows: list[SweepRow]
    provenance: SweepProvenance


class Breakdown(TypedDict):
    """The parts of a step, seconds, and of the fullest device's memory."""

    compute_s: float
    activation_all_reduce_s: float
    transfers_s: float
    bubble_s: float
    gradient_all_reduce_s: float
    tied_sum_s: float
    update_s: float
    state_bytes: float
    activation_bytes: float


class Degrees(TypedDict):
    data: int
    tensor: int


class Candidate(TypedDict):
    """`automap plan --plan`: a plan, what it costs and what that consists of."""

    kind: PlanKind
    name: str
    planner: str
    stages: int
    micro_batches: int
    cuts: list[int]
    device_cuts: list[int]
    degrees: list[Degrees]
    shardings: list[str]
    step_s: float
    length_s: float
    memory_bytes: float
    fits: bool
    breakdown: Breakdown
    optimality: Proven | None


RankedCandidate = TypedDict("RankedCandidate", {**Candidate.__annotations__, "why": str})


# Keys such as `why` are no names in Python (tests/packaging/test_names.py).
Missing = TypedDict("Missing", {"kind": PlanKind, "name": str, "why": str})  # noqa: UP013
Explored = TypedDict(  # noqa: UP013
    "Explored",
    {
        "schema": Literal[1],
        "kind": Literal["explored"],
        "model": str,
        "cluster": ClusterDocument,
        "global_batch": int | None,
        "objective": Literal["step", "length"],
        "schedule": str | None,
        "best": StagedDocument,
        "candidates": list[RankedCandidate],
        "absent": list[Missing],
        "optimality": Proven | None,
        "batch_dims": dict[str, int] | None,
        "notes": list[str],
        "exploring_s": float,
        "strategy": "Priced | None",
    },
)
"""`automap plan`: every kind of plan, the best one first, and kinds of which there is none."""


TrainingRun = TypedDict("TrainingRun", training_run.TrainingRun.__annotations__)


class Priced(TypedDict):
    """`automap plan --price`: a strategy and its price; parts in seconds, memory of a device of each rank in bytes."""

    schema: Literal[1]
    kind: Literal["strategy"]
    model: str
    shape: TransformerShape | None
    tied: bool
    own_code: bool
    recurrent: bool
    encodes: bool
    training: dict[str, bool | int | str | list[str]] | None
    runtime: str | None
    imbalance: float
    training_run: NotRequired[TrainingRun]
    cluster: str
    device: str
    strategy: dict[str, bool | int | str | list[int | str] | None]
    stage_layers: list[int]
    modules: list[dict[str, int | str]]
    step_s: float
    tokens_per_s_per_device: float
    mfu: float
    bubble_rate: float
    parts: dict[str, float]
    parts_rank: int
    memory: list[dict[str, float]]
    peak_memory_bytes: float
    memory_upper_bytes: float
    host_bytes: float
    fits: bool
    verdict: Literal["fits", "at risk", "does not fit"]


class MemoryOfKind(TypedDict):
    bytes: float
    upper_bytes: float


class TriedChange(TypedDict):
    change: str
    best: Priced


class Fit(TypedDict):
    """`automap fit`: memory of the fullest device by kind, of the best strategy found, or where none fits of the
    emptiest."""

    schema: Literal[1]
    kind: Literal["fit"]
    verdict: Literal["fits", "at risk", "does not fit"]
    status: Literal["optimal", "feasible", "infeasible", "stopped"]
    memory: dict[str, MemoryOfKind]
    memory_bytes: float
    best: Priced | None
    emptiest: Priced | None
    remedies: list[TriedChange]
    search_s: float


class Doctor(TypedDict):
    """`automap doctor`: what a file of another program says, its price, and the better setting."""

    schema: Literal[1]
    kind: Literal["doctor"]
    program: str
    fields: dict[str, bool | int | str | list[int] | None]
    refusals: list[str]
    notes: list[str]
    unread: dict[str, str]
    verdict: Literal["fits", "at risk", "does not fit"] | None
    current: Priced | None
    better: Priced | None
    gain: float | None
    changes: list[str]
    shorter: list[Shorter]
    search_s: float


class WithoutChoice(TypedDict):
    choice: str
    requires: list[str]
    best: Priced | None


class OfKind(TypedDict):
    kind: str
    best: Priced | None


class Shorter(TypedDict):
    requires: list[str]
    best: Priced


class OfSize(TypedDict):
    cluster: str
    devices: int
    bound_s: float | None
    best: Priced | None


class Idle(TypedDict):
    """Devices of a kind in a zone that stand idle, of how many."""

    device: str
    zone: str
    devices: int
    among: int


class Choice(TypedDict):
    minimize: Literal["step", "cost", "devices"]
    clusters: int
    gap: float | None
    part_of: str
    idle: list[Idle]


Searched = TypedDict(
    "Searched",
    {
        **Priced.__annotations__,
        "status": Literal["optimal", "feasible", "infeasible", "stopped"],
        "bound_s": float | None,
        "gap": float | None,
        "search": dict[str, Any],
        "search_s": float,
        "model_s": float,
        "choices": list[WithoutChoice],
        "kinds": list[OfKind],
        "shorter": list[Shorter],
        "memory": list[Priced],
        "unequal_layers": NotRequired[Priced],
        "node_order": NotRequired[list[str | None]],
        "for": NotRequired[str],
        "without_limits": NotRequired[Priced | None],
        "command": NotRequired[str | None],
        "sizes": NotRequired[list[OfSize]],
        "choice": NotRequired[Choice],
        "even_batch": NotRequired["Priced"],
    },
)
"""`automap plan --tp …`: the best strategy, its proof, and what it was compared with."""


class Both(TypedDict):
    predicted: float | None
    measured: float


class StageOfRun(TypedDict):
    """A stage's slowest replica in a step, seconds."""

    index: int
    replicas: int
    forward_s: Both
    backward_s: Both
    reduction_s: Both
    update_s: Both
    share: Both
    idle_share: Both


class Check(TypedDict):
    """The run held against the model on one process."""

    agrees: bool
    loss_error: float
    gradient_error: float
    tensors: int
    tolerance: float
    difference: str | None


class Run(TypedDict):
    model: str
    backend: str
    executor: str
    device: str
    clock: str
    schedule: str
    processes: int
    micro_batches: int
    losses: list[float]
    warmup: int
    step_s: Both
    stages: list[StageOfRun]
    check: Check | None
    memory_bytes: float | None
    no_row: str | None
    notes: list[str]


class Observed(TypedDict):
    """`automap run`: measured times as times.json, of stages, or of devices where a stage has several."""

    schema: Literal[1]
    kind: Literal["observed"]
    stages: NotRequired[list[StageTimes]]
    devices: NotRequired[list[DeviceTimes]]
    rows: list[dict[str, Any]]
    run: Run


class LinkageGroup(TypedDict):
    """What deciding a dimension decides: how many more are partitioned and replicated, or null where it conflicts."""

    variable: str
    dim: int
    partition: list[int] | None
    replicate: int | None


class Collective(TypedDict):
    number: int
    bytes: float


class Communication(TypedDict):
    estimated_bytes: float
    bytes: float
    by_kind: dict[str, Collective]


class VerifiedSharding(TypedDict):
    """What XLA made of the plan, beside one device."""

    equal: bool | None
    loss: float | None
    arrays: float | None
    why_not_run: str | None
    collectives: dict[str, Communication]


class Snapped(TypedDict):
    """Seconds of a step before and after a plan was moved to the nearest that the target has words for."""

    before: float | None
    after: float | None


class Exported(TypedDict):
    """`automap export`: texts of the files by ending, that of the file itself under an empty one."""

    schema: Literal[1]
    kind: Literal["export"]
    target: str
    model: str
    files: dict[str, str]
    notes: list[str]
    changes: list[str]
    step_s: Snapped | None
    checked_by: str | None


class SourceErrors(TypedDict):
    """Of predicted steps: |predicted / measured - 1|, and the median of predicted / measured."""

    source: str
    steps: int
    median: float
    p90: float
    ratio: float


class Skipped(TypedDict):
    id: str
    reason: str


class FittedNumber(TypedDict):
    """A number; `resolution` is the share of it that the steps tell, `evidence` the step that tells more."""

    name: str
    was: float
    fitted: float
    resolution: float
    evidence: str


class Calibrated(TypedDict):
    """`automap calibrate`: numbers of a runtime, constants of a kind of device, and errors by source."""

    device: str | None
    runtime: str | None
    steps: int
    other_rows: int
    constants: dict[str, float] | None
    numbers: list[FittedNumber]
    before: list[SourceErrors]
    fitted: list[SourceErrors]
    left_out: list[SourceErrors]
    together: list[SourceErrors]
    skipped: list[Skipped]
