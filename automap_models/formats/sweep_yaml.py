"""sweep.yaml: clusters, stages and micro-batches of a what-if, with lists and ranges (plan.md, "What if")."""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import require_samples
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import RATES, SIZES, cluster_from_mapping, read_cluster
from automap_models.formats.yaml_fields import YamlFields, load_yaml, shipped_names

MAX_COMBINATIONS = 10_000
"""Problems of the largest sweep; minutes of planning, and a table that nobody reads."""
_KEYS = "it needs clusters and may have stages, micro_batches and global_batch"
_RANGE = "give a number, a list, or {from: 1e9, to: 1e11, steps: 5}"
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 1

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
    fields = YamlFields(
        load_yaml(path, _KEYS),
        str(path),
        required=("clusters",),
        optional=("stages", "micro_batches", "global_batch"),
        do=_KEYS,
    )
    stages, micro_batches = (_numbers_or_auto(fields, key) for key in ("stages", "micro_batches"))
    global_batch = None
    if "global_batch" in fields.document:
        global_batch = require_samples(_whole(fields.number("global_batch"), f"{path}, global_batch"), str(path))
    if micro_batches == "auto" and global_batch is None:
        raise BadInput("micro_batches is auto, but there is no global_batch", where=str(path), do="add global_batch")
    clusters = _clusters(fields.document["clusters"], path)
    listed = [len(each) for each in (clusters, stages, micro_batches) if isinstance(each, tuple)]
    require_few(math.prod(listed), str(path))
    return SweepSpec(clusters, stages, micro_batches, global_batch)


def require_few(count: int, where: str) -> None:
    """Refuse a sweep of too many combinations.

    Raises:
        BadInput: there are more than MAX_COMBINATIONS.
    """
    if count > MAX_COMBINATIONS:
        raise BadInput(f"{count:,} combinations", where=where, do=f"ask for at most {MAX_COMBINATIONS:,}")


def _numbers_or_auto(fields: YamlFields, key: str) -> Numbers:
    if key not in fields.document:
        return None
    if fields.document[key] == "auto":
        return "auto"
    where = f"{fields.source}, {key}"
    numbers = sorted({_whole(number, where) for number in _numbers(fields.document[key], where, whole=True)})
    if numbers[0] < 1:
        raise BadInput(f"{numbers[0]} is no number of {key.replace('_', '-')}", where=where, do="give 1 or more")
    return tuple(numbers)


def _whole(number: float, where: str) -> int:
    if not float(number).is_integer():
        raise BadInput(f"{number:g} is no whole number", where=where, do="give whole numbers")
    return int(number)


def _numbers(value: object, where: str, *, whole: bool) -> list[float]:
    """The numbers that a value stands for: itself, a list's, or a range's."""
    if isinstance(value, Mapping):
        return _range(YamlFields(value, where, required=("from", "to"), optional=("steps",), do=_RANGE), whole)
    values = value if isinstance(value, list) else [value]
    if not values:
        raise BadInput("an empty list", where=where, do=_RANGE)
    require_few(len(values), where)
    return [_number(each, where) for each in values]


def _number(value: object, where: str) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise BadInput(f"{_SHORT.repr(value)} is no number", where=where, do=_RANGE)


def _range(fields: YamlFields, whole: bool) -> list[float]:
    """Whole numbers one by one, or `steps` numbers evenly on a logarithmic scale, both ends included."""
    first, last = (_number(fields.document[key], fields.source) for key in ("from", "to"))
    if not 0 < first <= last:
        raise BadInput(f"from {first:g} to {last:g}", where=fields.source, do="begin above 0 and go up")
    if "steps" not in fields.document:
        if not whole:
            raise BadInput("steps is missing", where=fields.source, do=_RANGE)
        require_few(_whole(last, fields.source) - _whole(first, fields.source) + 1, fields.source)
        return [float(number) for number in range(int(first), int(last) + 1)]
    steps = _whole(fields.number("steps"), fields.source)
    if steps < 2:
        raise BadInput(f"{steps} step(s)", where=fields.source, do="give 2 or more")
    require_few(steps, fields.source)
    points = [first * (last / first) ** (j / (steps - 1)) for j in range(steps)]
    return [float(round(point)) for point in points] if whole else [*points[:-1], last]


def _clusters(value: object, path: Path) -> tuple[Cluster, ...]:
    listed = value if isinstance(value, list) else [value]
    clusters: dict[str, Cluster] = {}
    for j, each in enumerate(listed):
        for cluster in _family(each, f"{path}, cluster {j + 1}", path.parent):
            if clusters.get(cluster.name, cluster) != cluster:
                raise BadInput(f"two clusters are called {cluster.name}", where=str(path), do="give each its own name")
            clusters[cluster.name] = cluster
            require_few(len(clusters), str(path))
    if not clusters:
        raise BadInput("names no cluster", where=str(path), do="list at least one under clusters")
    return tuple(clusters.values())


def _family(value: object, where: str, folder: Path) -> list[Cluster]:
    """The clusters of one entry: a name, a file, or a mapping in which numbers may be lists and ranges."""
    if isinstance(value, str):
        return [_named(value, folder)]
    fields = YamlFields(
        value, where, required=(), optional=("base", "name", *SIZES, *RATES), do="give a name, a file, or its numbers"
    )
    numbers: dict[str, object] = {}
    label = fields.text("name", "cluster")
    if "base" in fields.document:
        base = _named(fields.text("base", ""), folder)
        numbers = {key: getattr(base, key) for key in (*SIZES, *RATES)}
        label = fields.text("name", base.name)
    given = {key: fields.document[key] for key in (*SIZES, *RATES) if key in fields.document}
    choices = {key: _numbers(each, f"{where}, {key}", whole=key in SIZES) for key, each in given.items()}
    require_few(math.prod(map(len, choices.values())), where)
    several = [key for key, each in choices.items() if len(each) > 1]
    return [
        cluster_from_mapping({**numbers, **chosen}, source=where, name=_name(label, chosen, several))
        for chosen in (dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values()))
    ]


def _name(label: str, chosen: Mapping[str, float], several: list[str]) -> str:
    """`C, inter 1.25 GB/s`: the label and what tells the cluster from its siblings."""
    unit = {"intra": (1e9, " GB/s"), "inter": (1e9, " GB/s"), "memory": (1e9, " GB")}
    parts = ((key, *unit.get(key, (1.0, ""))) for key in several)
    return ", ".join([label, *(f"{key} {chosen[key] / size:g}{name}" for key, size, name in parts)])


def _named(name: str, folder: Path) -> Cluster:
    """A shipped cluster, or a file, looked for beside the sweep first."""
    beside = folder / name
    return read_cluster(beside if name not in shipped_names("topo") and beside.is_file() else name)
