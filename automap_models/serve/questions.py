"""What the page asks: a model on a cluster, and fields of a strategy; and the request of `automap plan` that this is.

Models by name, those of a config.json or a profile that comes with the question, and clusters are read once for many
questions.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Dispatcher, Offload, Precision, Recompute
from automap_models.core.tuning import Loss, Optimizer, States, Training
from automap_models.core.units import LARGEST
from automap_models.cost.profile_layers import PRECISIONS, ProfileWork
from automap_models.errors import BadInput
from automap_models.export.targets import training_limits
from automap_models.formats.hardware_yaml import (
    SIZED,
    device_of,
    known_clusters,
    known_devices,
    read_cluster,
    read_device,
    read_kinds,
)
from automap_models.formats.npz import read_npz
from automap_models.formats.runtime_yaml import known_runtimes
from automap_models.formats.schema import Index
from automap_models.planners.strategies.problem import usual_precision
from automap_models.requests import TRAINING, StrategyRequest
from automap_models.requests.plan import FREE, plan_request
from automap_models.serve.limits import LARGEST_QUESTION
from automap_models.workloads.catalogue import canonical, nearest
from automap_models.workloads.config_json import decode_config
from automap_models.workloads.registry import configured
from automap_models.workloads.source import Source, SourceKind, transformer

LARGEST_PROFILE = 64 * LARGEST_QUESTION
"""Bytes of the arrays of a profile: those of 40,000 instructions with their names."""
DTYPES = {precision: dtype for dtype, precision in PRECISIONS.items()}
"""Precision → what layers compute in, where that is not bfloat16."""
Number = Annotated[int, Meta(ge=1, le=LARGEST)]
Numbers = Annotated[tuple[Index, ...], Meta(max_length=4096)]
Kinds = Annotated[tuple[Recompute, ...], Meta(max_length=4096)]


class Question(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A strategy of a model on a cluster; fields are None where they are as `automap plan --price` has them.

    Attributes:
        model: its name; with a config or a profile any, by which it is called.
        config: the text of a config.json.
        profile: the bytes of a profile.npz, in base64.
        cluster: a shipped one's name, or devices such as 32xh100.
        sequence: tokens of a sample.
        runtime: name of a shipped one.
        optimizer, …, packed: options of `core.tuning.Training`; patterns of `freeze` stand with commas between.
        others: fields of `core.strategy.Strategy`.
    """

    model: Annotated[str, Meta(max_length=200)]
    config: str | None = None
    profile: str | None = None
    cluster: Annotated[str, Meta(max_length=200)]
    sequence: Number | None = None
    global_batch: Number | None = None
    runtime: str | None = None
    tp: Number | None = None
    pp: Number | None = None
    dp: Number | None = None
    dp_replicate: Number | None = None
    vp: Number | None = None
    cp: Number | None = None
    ep: Number | None = None
    etp: Number | None = None
    tower_tp: Number | None = None
    micro_batch: Number | None = None
    schedule: str | None = None
    recompute: Recompute | Kinds | None = None
    recompute_blocks: Numbers | None = None
    zero: int | None = None
    sequence_parallel: bool | None = None
    precision: Precision | None = None
    dispatcher: Dispatcher | None = None
    offload: Offload | None = None
    layers: Numbers | None = None
    optimizer: Optimizer | None = None
    states: States | None = None
    freeze: Annotated[str, Meta(max_length=1000)] | None = None
    lora: Annotated[str, Meta(max_length=1000)] | None = None
    quantize: bool | None = None
    loss: Loss | None = None
    packed: Number | None = None

    @property
    def file(self) -> str | None:
        """What the model's file is called that comes with the question."""
        return "config.json" if self.config is not None else "profile.npz" if self.profile is not None else None

    def fields(self) -> dict[str, Any]:
        """Those of the strategy that are given, but for the batch."""
        return {name: value for name in (*FREE, "schedule") if (value := getattr(self, name)) is not None}

    def training(self) -> dict[str, Any]:
        """Those of what is trained that are given."""
        options = {name: value for name in TRAINING if (value := getattr(self, name)) is not None}
        patterns = [pattern.strip() for pattern in options.pop("freeze", "").split(",")]
        return options | ({"freeze": tuple(patterns)} if any(patterns) else {})

    def changed(self, name: str, value: object) -> Question:
        """The same question with another value of a field."""
        return msgspec.structs.replace(self, **{name: value})


def request_of(question: Question, *, price: bool) -> StrategyRequest:
    """What `automap plan` is asked for: the price of the strategy, or the best one in its precision.

    The best one is of those that the program runs whose numbers count, where its limits are known.

    Raises:
        BadInput: there is no such model, cluster or runtime, or the config.json cannot be read.
    """
    cluster, devices = cluster_named(question.cluster)
    options: dict[str, Any] = {"global_batch": question.global_batch, "runtime": question.runtime}
    if question.profile is not None:
        for name, what in (
            ("config", "a profile is a model itself"),
            ("sequence", "its samples have no tokens"),
        ):
            if getattr(question, name) is not None:
                raise BadInput(what, where=f"`{name}`", do="leave it out")
        work: ModelWork = profile_of(question.profile)
        options |= {"precision": question.precision or PRECISIONS[work.dtype], **question.training()}
    else:
        precision = question.precision or usual_precision(devices)
        training = Training.of_options(**question.training())
        work = work_of(question.model, question.config, question.sequence, DTYPES.get(precision, "bfloat16"), training)
        options["precision"] = precision
    if question.runtime is not None and question.runtime not in known_runtimes():
        raise BadInput(f"unknown runtime {question.runtime!r}", where="`runtime`", do=_one_of(known_runtimes()))
    target = question.runtime if question.runtime in training_limits() else None
    request = plan_request(
        Source(work.shape.name, SourceKind.WORKLOAD, model=work),
        cluster,
        {**(question.fields() if price else {"target": target}), **options},
        device=devices[0] if cluster.is_uniform else None,
        price=price,
    )
    assert isinstance(request, StrategyRequest)
    return request


@lru_cache(maxsize=64)
def work_of(model: str, config: str | None, sequence: int | None, dtype: str, training: Training) -> ModelWork:
    """The work of a transformer by name, or of the one in the text of a config.json.

    Raises:
        BadInput: it is none, cannot have so many tokens, or has not what is to be trained.
    """
    if config is None:
        if canonical(model) is None:
            raise BadInput(f"unknown model {model!r}", where="`model`", do=nearest(model))
        return transformer(Source(model, SourceKind.WORKLOAD, sequence=sequence, dtype=dtype)).work(training)
    read = decode_config(config.encode(), model or "config", where="config.json", sequence=sequence)
    return configured(read, sequence=sequence, dtype=dtype).work(training)


@lru_cache(maxsize=8)
def profile_of(encoded: str) -> ProfileWork:
    """The layers of a profile in base64, of at most LARGEST_PROFILE unpacked.

    Raises:
        BadInput: it is no profile, or has no layers that a strategy could divide.
    """
    try:
        file = BytesIO(base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        raise BadInput("is no base64", where="`profile`", do="send the bytes of a profile.npz so") from None
    return ProfileWork.from_profile(read_npz(file, "profile.npz", LARGEST_PROFILE))


@lru_cache(maxsize=64)
def cluster_named(name: str) -> tuple[Cluster, list[Device]]:
    """A shipped cluster, or so many devices of a kind in their usual nodes, with its kinds of devices.

    Raises:
        BadInput: it is neither.
    """
    if name not in known_clusters():
        sized = SIZED.fullmatch(name)
        kind = (sized[3] or sized[4] or "").strip().lower() if sized else ""
        if sized is None or kind not in known_devices():
            do = _one_of([*known_clusters(), "devices × kind, such as 32xh100"])
            raise BadInput(f"unknown cluster {name!r}", where="`cluster`", do=do)
        counts = [count for count in (sized[1], sized[2] or sized[5]) if count]
        name = " × ".join([*counts, kind])  # no file is called so
    cluster = read_cluster(name)
    return cluster, [*read_kinds(cluster).values()] or [device_of(cluster)]


def sized_devices() -> Iterator[str]:
    """Kinds of devices that have usual nodes, of which one can ask for any number."""
    return (name for name in known_devices() if read_device(name).cluster)


def _one_of(names: list[str]) -> str:
    return f"choose from {', '.join(names)}"
