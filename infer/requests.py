"""What the commands are asked for: the types of arguments, and the requests they become.

A request is a frozen record, checked as far as that takes no long work; `None` is what the user left open where the
default depends on something else. Nothing here imports numpy: help is to be fast.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models.errors import BadInput

if TYPE_CHECKING:
    from automap_models.core.constraints import Technique
    from automap_models.core.observed import Attribution

LARGEST = 2**31 - 1
"""Number given as an argument."""
LONGEST_NAME, LONGEST_PATH = 255, 4095
"""Bytes of a file's name and of a whole path that a file system takes."""


def add_topo(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """--topo: which cluster is meant."""
    shown = "a shipped cluster (A, B, C, …) or a YAML file"
    parser.add_argument("--topo", metavar="NAME|FILE", type=name_argument, required=required, help=shown)


def add_step_arguments(group: argparse._ArgumentGroup) -> None:
    """--batch, --sequence, --dtype and --trainable: which training step is meant."""
    group.add_argument("--batch", metavar="N", type=at_least(1), help="samples in a micro-batch")
    group.add_argument("--sequence", metavar="N", type=at_least(1), help="tokens in a sample")
    group.add_argument("--dtype", metavar="NAME", help="type that the layers compute in: float32, bfloat16, float16")
    group.add_argument(
        "--trainable",
        metavar="PATTERN",
        action="append",
        help="for HLO files: names of the trainable parameters, such as 'params/*'; may be repeated",
    )


def given(arguments: object, *names: str) -> dict[str, Any]:
    """Those of the named arguments, or fields of a request, that are not None."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def flag(name: str) -> str:
    """An argument's name as it is written: `state_factor` → `--state-factor`."""
    return "--" + name.replace("_", "-")


ARGUMENTS: Mapping[str, str] = {
    **{
        name: flag(name)
        for name in (
            *("batch", "beam", "communication", "cpus", "device", "dtype", "framework", "global_batch", "granularity"),
            *("max_stages", "measure", "mesh", "micro_batches", "microbatch_size", "nodes", "objective", "pieces"),
            *("plan", "planner", "policy", "radius", "rules", "schedule", "sequence", "split_passes", "stages"),
            *("state_factor", "thorough", "trainable", "verify"),
        )
    },
    "accelerators": "--devices",
    "budget_s": "--budget",
    "forbidden": "--forbid",
    "link_bytes_per_s": "--link",
    "memory_bytes": "--memory",
    "pins": "--pin",
    "restart_s": "--restart",
    "time_limit_s": "--time-limit",
    "together": "--keep-together",
}
"""Argument of the library, as its messages name it → the commands' option for it."""
_MENTION = re.compile(r"`(\w+)(?:=([^`]*))?`")


def in_options(text: str) -> str:
    """A sentence of the library with the commands' options for its arguments: `stages=3` becomes --stages 3."""

    def option(mention: re.Match[str]) -> str:
        name, value = mention.groups()
        if name not in ARGUMENTS:
            return mention[0]
        return ARGUMENTS[name] + (f" {value.strip(chr(39))}" if value else "")

    return _MENTION.sub(option, text)


def refuse(namespace: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Refuse arguments that mean nothing beside the others.

    Raises:
        BadInput: naming the first that is given.
    """
    for name, value in given(namespace, *names).items():
        if value is not False and value != []:
            raise BadInput(why, where=flag(name), do="leave it out")


def at_least(least: int) -> Callable[[str], int]:
    """An argument's type: a whole number from `least` to LARGEST."""

    def number(text: str) -> int:
        if text.isascii() and text.isdigit() and int(text) >= least:
            if int(text) > LARGEST:
                raise argparse.ArgumentTypeError(f"{text!r} is more than {LARGEST:,}")
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number ≥ {least}")

    return number


def whole_number(text: str) -> int:
    """An argument's type: a whole number of 64 bits, whose limits the library knows."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if abs(number) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} does not fit 64 bits")
    return number


def positive(unit: str) -> Callable[[str], float]:
    """An argument's type: a positive number of that unit."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is no positive number of {unit}")
        return value

    return number


def name_argument(text: str) -> str:
    """An argument's type: a name, or a file that an operating system can have."""
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be the name of a file") from None
    if b"\0" in encoded:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} holds a NUL character, which no file's name does")
    longest = max(map(len, encoded.split(b"/")))
    if longest > LONGEST_NAME or len(encoded) > LONGEST_PATH:
        what = f"a name of {longest} bytes" if longest > LONGEST_NAME else f"a path of {len(encoded)} bytes"
        most = LONGEST_NAME if longest > LONGEST_NAME else LONGEST_PATH
        raise argparse.ArgumentTypeError(f"{what} ({text[:20]}…); a file can have at most {most}")
    return text


def file_argument(text: str) -> Path:
    """An argument's type: the path of a file."""
    return Path(name_argument(text))


MESH_AXES = ("data", "model")
"""Names of a mesh's axes; core.mesh knows them, too, and a test holds them together."""
MeshSizes = tuple[tuple[str, int], ...]


def mesh_argument(text: str) -> int | MeshSizes:
    """An argument's type: `4`, devices along the one axis, or `data=2,model=4`, named axes."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= LARGEST:
        return int(text)
    axes = [part.partition("=") for part in text.split(",")]
    names = [name for name, _, _ in axes]
    numbered = all(size.isascii() and size.isdigit() and size[0] != "0" for _, _, size in axes)
    if not numbered or len(set(names)) < len(names) or not set(names) <= set(MESH_AXES):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of devices nor axes such as data=2,model=4")
    if any(int(size) > LARGEST for _, _, size in axes):
        raise argparse.ArgumentTypeError(f"{text!r} has more than {LARGEST:,} devices")
    return tuple((name, int(size)) for name, _, size in axes)


AUTO = "auto"
"""In place of a number of stages or micro-batches: choose it."""


class SourceKind(Enum):
    """What a model comes from; the value says why an option does not apply to it."""

    PROFILE = "is a profile, with times and sizes of its own"
    MODULE = "is an HLO file, with shapes of its own"
    WORKLOAD = "is a built-in JAX model"
    FACTORY = "is a factory"


@dataclass(frozen=True)
class Source:
    """Where a model comes from, and which training step of it is meant.

    Attributes:
        what: the file, built-in model or factory.
        batch: samples in a micro-batch.
        sequence: tokens in a sample.
        dtype: that the layers compute in.
        trainable: patterns of an HLO file's trainable parameters.
    """

    what: str
    kind: SourceKind
    batch: int | None = None
    sequence: int | None = None
    dtype: str | None = None
    trainable: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, Any]:
        """What a built-in model or a factory is called with."""
        return {"batch": self.batch, "sequence": self.sequence, "dtype": self.dtype}


@dataclass(frozen=True)
class ProfileRequest:
    """`automap profile`.

    Attributes:
        source: None where only the built-in models shall be listed.
        framework: "torch" or "jax" (also None), which a factory's model is written in.
        model: name that the profile shall have.
        device: roofline of a known device or one in a file; None for the default, or where the step is measured.
        measuring: options of measuring by name, such as repeats; None where nothing is measured.
        show, instructions: whether totals and every instruction are printed.
    """

    source: Source | None
    framework: str | None = None
    model: str | None = None
    device: str | None = None
    measuring: dict[str, Any] | None = None
    show: bool = False
    instructions: bool = False


@dataclass(frozen=True)
class PlaceRequest:
    """`automap place`.

    Attributes:
        overrides: fields of the placement problem that are not the graph's, by name.
        split_passes: whether the largest forward and the largest backward load count.
        planner: by name; None for the objective's default.
        config: options of the planner that were given, by name.
        time_limit_s: after which it returns its best plan; None for its own limit.
        plan: a placement.json to cost, instead of making one.
        nodes, accelerator, host, link_bytes_per_s: how a model becomes a graph.
    """

    source: Source
    overrides: dict[str, Any]
    split_passes: bool
    planner: str | None
    config: dict[str, Any]
    time_limit_s: float | None
    plan: Path | None
    nodes: int | None
    accelerator: str | None
    host: str | None
    link_bytes_per_s: float | None


@dataclass(frozen=True)
class PlanRequest:
    """`automap plan`.

    Attributes:
        topo: the cluster, by name or file.
        device: roofline of a model's times, by name or file.
        microbatch_size: samples in the profiled micro-batch of a profile that does not say.
        global_batch: samples between two updates.
        state_factor: bytes of training state a byte of parameters.
        pins: `layer=stage`.
        together: patterns of layers that no cut may part.
        max_stages: of the deepest pipeline.
        memory_bytes: of a device that plans may use.
        forbidden: kinds of parallelism.
        budget_s: processor time of the exact search.
        thorough: whether everything is searched to the end.
        seed: of random draws.
        cached: whether results are kept and taken from the cache.
        plan: a plan.json to cost, instead of making one.
    """

    source: Source
    topo: str
    device: str | None
    microbatch_size: int | None
    global_batch: int | None
    state_factor: float | None
    pins: tuple[str, ...]
    together: tuple[str, ...]
    max_stages: int | None
    memory_bytes: float | None
    forbidden: tuple[Technique, ...]
    budget_s: float | None
    thorough: bool
    seed: int
    cached: bool
    plan: Path | None


@dataclass(frozen=True)
class PlannerRequest:
    """Who plans pipelines, and how long; None is the planner's own default.

    Attributes:
        name: of the planner.
        beam: first cuts from which the policy goes on.
        policy: an exported policy.
        certify_s, refine_s: how long the proof and the refinement may take.
        schedule: whose simulated length is refined.
    """

    name: str
    beam: int | None = None
    policy: Path | None = None
    certify_s: float | None = None
    refine_s: float | None = None
    schedule: str | None = None


@dataclass(frozen=True)
class InferRequest:
    """`automap infer`: one plan.

    Attributes:
        profile: its file.
        topo: the cluster, by name or file.
        stages, micro_batches: numbers, or AUTO where they are to be chosen.
        global_batch: samples between two updates.
        microbatch_size: samples in the profiled micro-batch of a profile that does not say.
        state_factor: bytes of training state a byte of parameters.
        granularity: points at which the model may be cut.
        plan: a plan.json to cost, instead of making one.
        verbose: whether everything tried is printed.
    """

    profile: Path
    topo: str | None
    stages: int | str | None
    micro_batches: int | str | None
    global_batch: int | None
    microbatch_size: int | None
    state_factor: float | None
    granularity: int | None
    planner: PlannerRequest
    plan: Path | None
    verbose: bool


@dataclass(frozen=True)
class SweepRequest:
    """`automap infer --sweep`: a plan for every combination in a file. Attributes as in InferRequest."""

    profile: Path
    sweep: Path
    microbatch_size: int | None
    state_factor: float | None
    granularity: int | None
    planner: PlannerRequest


@dataclass(frozen=True)
class ReplanRequest:
    """`automap infer --observed`: the next plan of a running job.

    Attributes:
        plan: what is running.
        observed: its measured stage times.
        policy: an exported policy for the plans from which the search starts.
        attribute: what a stage all of whose devices are slow is put down to.
        restart_s: seconds that a move costs beside moving bytes.
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
class SearchRequest:
    """`automap search opp` and `adp`.

    Attributes:
        search: "opp" partitions trainable parameters, "adp" inputs.
        topo: the cluster, by name or file.
        mesh: devices along the one axis, or axes with their sizes; None for all devices of the cluster.
        objective: "time", "memory" or "count".
        device: roofline of the cluster's devices, by name or file.
        rules: what may be sharded, by name or file.
        plan: a plan.json to price, instead of searching one.
        verify: whether the step is run with the plan and compared.
        planner: by name.
        agent, episodes, stop_at_optimum, seed: of a planner that plays.
        show_groups: whether the linkage groups are printed.
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
    """`automap search pp`.

    Attributes:
        profiled: where the profile comes from.
        topo: the cluster, by name or file.
        stages, micro_batches: numbers; None for one stage a node and the default.
        state_factor: bytes of training state a byte of parameters.
        radius: devices around the node boundaries.
        agent: hyper-parameters, by name or file.
        episodes: to play; None for the agent's.
        seed: of random draws.
        warm_start: "policy" or a plan.json to begin with.
    """

    profiled: ProfileRequest
    topo: str
    stages: int | None
    micro_batches: int | None
    state_factor: float | None
    radius: int
    agent: str
    episodes: int | None
    seed: int
    warm_start: str | None
