"""sweep.yaml: clusters, stages and micro-batches of a what-if, with lists and ranges (what-if.md, "What if")."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import require_samples
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import (
    CLUSTER_KEYS,
    RATES,
    SIZES,
    ClusterDocument,
    read_cluster,
    read_hardware,
)
from automap_models.formats.schema import Count, Document, Integer, Text, convert, shipped_names, wrong
from automap_models.resources import is_file

MAX_COMBINATIONS = 10_000
"""Problems of the largest sweep; minutes of planning, and a table that nobody reads."""
_KEYS = "it needs clusters and may have stages, micro_batches and global_batch"
_RANGE = "give a number, a list, or {from: 1 GB/s, to: 100 GB/s, steps: 5}"


class RangeDocument(Document):
    """Whole numbers one by one, or `steps` numbers evenly on a logarithmic scale, both ends included."""

    first: float = msgspec.field(name="from")
    last: float = msgspec.field(name="to")
    steps: Count | None = None


_Integers = Integer | Annotated[list[Integer], Meta(min_length=1, max_length=MAX_COMBINATIONS)] | RangeDocument
_Floats = float | Annotated[list[float], Meta(min_length=1, max_length=MAX_COMBINATIONS)] | RangeDocument


class FamilyDocument(Document):
    """Clusters that differ in some numbers: those of `base`, if there is one, with others in their place."""

    base: Text | None = None
    name: Text | None = None
    nodes: _Integers | None = None
    devices_per_node: _Integers | None = None
    intra: _Floats | None = None
    inter: _Floats | None = None
    memory: _Floats | None = None


class SweepDocument(Document):
    """A sweep.yaml; a cluster is a shipped name, a file, or a family."""

    clusters: str | FamilyDocument | list[str | FamilyDocument]
    stages: Literal["auto"] | _Integers | None = None
    micro_batches: Literal["auto"] | _Integers | None = None
    global_batch: Integer | None = None


Numbers = tuple[int, ...] | Literal["auto"] | None


@dataclass(frozen=True)
class SweepSpec:
    """What a sweep.yaml asks for.

    Attributes:
        clusters: each with a name of its own.
        stages: numbers of stages; auto is every one, None one a node and plain data parallelism.
        micro_batches: numbers of micro-batches; auto is every divisor of the global batch, None the default.
        global_batch: samples between two updates; None where the micro-batches are as profiled.
    """

    clusters: tuple[Cluster, ...]
    stages: Numbers = None
    micro_batches: Numbers = None
    global_batch: int | None = None


def read_sweep(path: Path) -> SweepSpec:
    """The sweep in a file.

    Raises:
        BadInput: it cannot be read, is no YAML, or a key is missing, unknown or has a wrong value; more combinations
            than MAX_COMBINATIONS.
    """
    document, where = read_hardware(path, SweepDocument, do=_KEYS), str(path)
    stages = _counts(document.stages, "$.stages", where)
    micro_batches = _counts(document.micro_batches, "$.micro_batches", where)
    global_batch = document.global_batch
    if global_batch is not None:
        require_samples(global_batch, where)
    if micro_batches == "auto" and global_batch is None:
        raise BadInput("micro_batches is auto, but there is no global_batch", where=where, do="add global_batch")
    clusters = _clusters(document.clusters, path)
    require_few(math.prod(len(axis) for axis in (clusters, stages, micro_batches) if isinstance(axis, tuple)), where)
    return SweepSpec(clusters, stages, micro_batches, global_batch)


def require_few(count: int, where: str) -> None:
    """Refuse a sweep of too many combinations.

    Raises:
        BadInput: there are more than MAX_COMBINATIONS.
    """
    if count > MAX_COMBINATIONS:
        raise BadInput(f"{count:,} combinations", where=where, do=f"ask for at most {MAX_COMBINATIONS:,}")


def _counts(given: Literal["auto"] | _Integers | None, path: str, where: str) -> Numbers:
    if given is None or isinstance(given, str):
        return given
    numbers = sorted({int(number) for number in _listed(given, path, where, integers=True)})
    if numbers[0] < 1:
        raise wrong(path, numbers[0], "a whole number ≥ 1", where, _RANGE)
    return tuple(numbers)


def _listed(given: _Integers | _Floats, path: str, where: str, *, integers: bool) -> Sequence[float]:
    """The numbers that are given, listed or in a range."""
    if not isinstance(given, RangeDocument):
        return given if isinstance(given, list) else [given]
    first, last, steps = given.first, given.last, given.steps
    if steps is None and not integers:
        raise BadInput(f"{path}.steps is missing", where=where, do=_RANGE)
    if not 0 < first <= last or math.isinf(last / first):
        do = "begin above 0 and go up to a number that can be meant"
        raise BadInput(f"{path} goes from {first:g} to {last:g}", where=where, do=do)
    for right, key, value, expected in (
        (steps is not None or first.is_integer(), "from", first, "a whole number"),
        (steps is not None or last.is_integer(), "to", last, "a whole number"),
        (steps is None or steps >= 2, "steps", steps, "a whole number ≥ 2"),
    ):
        if not right:
            raise wrong(f"{path}.{key}", value, expected, where, _RANGE)
    require_few(int(last) - int(first) + 1 if steps is None else steps, f"{where}, {path}")
    if steps is None:
        return range(int(first), int(last) + 1)
    points = [*(first * (last / first) ** (j / (steps - 1)) for j in range(steps - 1)), last]
    return [round(point) for point in points] if integers else points


def _clusters(given: str | FamilyDocument | list[str | FamilyDocument], path: Path) -> tuple[Cluster, ...]:
    clusters: dict[str, Cluster] = {}
    for j, entry in enumerate(given if isinstance(given, list) else [given]):
        for cluster in _entry_clusters(entry, f"$.clusters[{j}]" if isinstance(given, list) else "$.clusters", path):
            if clusters.get(cluster.name, cluster) != cluster:
                raise BadInput(f"two clusters are called {cluster.name}", where=str(path), do="give each its own name")
            clusters[cluster.name] = cluster
            require_few(len(clusters), str(path))
    if not clusters:
        raise BadInput("names no cluster", where=str(path), do="list at least one under clusters")
    return tuple(clusters.values())


def _entry_clusters(entry: str | FamilyDocument, path: str, file: Path) -> list[Cluster]:
    """The clusters of one entry, one for every combination of the numbers that it lists."""
    if isinstance(entry, str):
        return [_named(entry, file.parent)]
    base = None if entry.base is None else _named(entry.base, file.parent)
    if base is not None and base.groups:
        do = "list the mixed cluster by its name, or give a base of equal nodes"
        what = f"cluster {base.name} is mixed: its numbers are those of its groups"
        raise BadInput(what, where=f"{file}, {path}", do=do)
    numbers = {} if base is None else {key: getattr(base, key) for key in (*SIZES, *RATES, "device")}
    label = entry.name or (base.name if base else "cluster")
    choices: dict[str, list[float]] = {}
    for key in (*SIZES, *RATES):
        given = getattr(entry, key)
        if given is not None:
            choices[key] = list(_listed(given, f"{path}.{key}", str(file), integers=key in SIZES))
    where = f"{file}, {path}"
    require_few(math.prod(map(len, choices.values())), where)
    several = [key for key, values in choices.items() if len(values) > 1]
    combinations = (dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values()))
    return [
        convert({**numbers, **chosen}, ClusterDocument, where=where, do=CLUSTER_KEYS).cluster(
            where, _name(label, chosen, several)
        )
        for chosen in combinations
    ]


def _name(label: str, chosen: Mapping[str, float], several: list[str]) -> str:
    """`C, inter 1.25 GB/s`: the label and what tells the cluster from its siblings."""
    unit = {"intra": (1e9, " GB/s"), "inter": (1e9, " GB/s"), "memory": (1e9, " GB")}
    parts = ((key, *unit.get(key, (1.0, ""))) for key in several)
    return ", ".join([label, *(f"{key} {chosen[key] / size:g}{name}" for key, size, name in parts)])


def _named(name: str, folder: Path) -> Cluster:
    """A shipped cluster, or a file, looked for beside the sweep first."""
    beside = name not in shipped_names("topo") and is_file(folder / name)
    return read_cluster(folder / name if beside else name)
