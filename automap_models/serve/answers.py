"""What the page is told: prices, values of fields that cannot be taken and why, the schedule, models and clusters;
and a strategy in the words of others, to be copied: a command, Python, and what `automap export` writes.

All are plain JSON types; figures are seconds and bytes.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.plan import Plan
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import OFFLOADS, PRECISIONS, RECOMPUTE, ZERO_STAGES, TransformerShape
from automap_models.errors import AutomapError, BadInput
from automap_models.export.target import Source
from automap_models.export.targets import LAUNCHES, TARGETS, target_by_name
from automap_models.formats.hardware_yaml import known_clusters
from automap_models.formats.runtime_yaml import known_runtimes
from automap_models.formats.strategy_plan import estimate_document
from automap_models.planners.base import SILENT, Watch
from automap_models.plots.html import strategy_timeline
from automap_models.requests import FIELDS, TRAINING, ExportRequest, ModelsRequest, solve
from automap_models.requests.strategies import priceable, searched_document
from automap_models.requests.words import in_words
from automap_models.serve.questions import Question, cluster_named, request_of, sized_devices

MOST_BLOCKS = 8_000
"""Passes of a schedule that is drawn."""
MOST_DEGREE = 64
"""Of degrees that the page offers."""
LANES: Mapping[str, tuple[object, ...]] = {
    "vp": (1, 2, 3, 4, 5, 6, 8, 10),
    "micro_batch": (1, 2, 4, 8, 16, 32),
    "schedule": tuple(SCHEDULES),
    "recompute": RECOMPUTE,
    "zero": ZERO_STAGES,
    "sequence_parallel": (False, True),
    "offload": OFFLOADS,
    "precision": PRECISIONS,
}
"""Field → the values of it that the page offers, whatever the model is."""


def estimate_of(question: Question) -> Estimate:
    """The price of the question's strategy, as `automap plan --price` has it.

    Raises:
        BadInput: the strategy, the model or the cluster cannot be used.
    """
    with in_words():
        estimate: Estimate = solve(request_of(question, price=True))
    return estimate


def price(question: Question) -> dict[str, Any]:
    """The step and its parts, throughput, and the memory of every rank beside what a device has."""
    estimate = estimate_of(question)
    document = estimate_document(estimate)
    for rank in document["memory"]:
        rank["upper"] = estimate.upper_bytes(rank["total"])
    devices = estimate.strategy.devices
    return {**document, "words": strategy_in_words(estimate), "devices": devices, "tokens_per_s": estimate.tokens_per_s}


def choices(question: Question) -> dict[str, Any]:
    """Field → its values, each with the reason why the others leave no room for it, or None.

    A reason that the question itself is refused for is no reason against a value of another field.
    """
    refused = _reason(question)
    return {
        name: [
            {
                "value": value,
                "reason": None if (reason := _reason(question.changed(name, value))) == refused else reason,
            }
            for value in values
        ]
        for name, values in offered(question).items()
    }


def offered(question: Question) -> Mapping[str, tuple[object, ...]]:
    """Field → its values that the page offers for the model on the cluster.

    Raises:
        BadInput: the model or the cluster cannot be used.
    """
    shape = request_of(question, price=True).source.model.shape  # type: ignore[attr-defined]
    tensor, (cluster, _) = question.tp or 1, cluster_named(question.cluster)
    etp = (1, tensor) if shape.experts and tensor > 1 else ()
    groups = (1, *(n for n in range(2, cluster.nodes + 1) if cluster.nodes % n == 0 and question.zero))
    return {**_degrees(shape, cluster.devices), "etp": etp, "dp_replicate": groups, **LANES}


def _reason(question: Question) -> str | None:
    """Why a strategy cannot be priced; None where it can."""
    try:
        with in_words():
            priceable(request_of(question, price=True), SILENT)
    except BadInput as error:
        subject = "" if error.where is None or error.where.startswith("`") else f"{error.where} "
        return f"{subject}{error.what}".replace("`", "")
    return None


def _degrees(shape: TransformerShape, devices: int) -> Mapping[str, tuple[int, ...]]:
    """Divisors of the devices; ep has those of the experts alone, pp no more than there are layers."""
    divisors = tuple(n for n in range(1, min(devices, MOST_DEGREE) + 1) if devices % n == 0)
    pp = tuple(n for n in divisors if n <= shape.layers)
    ep = tuple(n for n in divisors if (shape.experts or 1) % n == 0)
    return {"tp": divisors, "pp": pp, "cp": divisors, "ep": ep}


def timeline(question: Question, most: int = MOST_BLOCKS) -> dict[str, Any]:
    """The schedule as it is played: kind → [rank, micro-batch, virtual stage of the rank, start, end] of each block.

    Raises:
        BadInput: it has more than `most` passes.
    """
    estimate = estimate_of(question)
    passes = 2 * estimate.strategy.micro_batches * estimate.strategy.stages
    if passes > most:
        do = "take a smaller batch to see how it goes"
        raise BadInput(f"{passes:,} passes are too many to draw", where="the timeline", do=do)
    drawn = strategy_timeline(estimate)
    blocks = defaultdict(list)
    for i in drawn.intervals:
        if not i.is_send and i.end_s > i.start_s:
            blocks[i.kind].append((i.resource, i.micro_batch, i.chunk, i.start_s, i.end_s))
    return {"schedule": drawn.schedule, "length_s": drawn.length_s, "ranks": estimate.strategy.pp, "blocks": blocks}


def best(question: Question, watch: Watch) -> dict[str, Any]:
    """The best strategy, and the bound that is proven, as `automap plan --json` prints them.

    Raises:
        BadInput: as of `price`.
        Infeasible: no strategy fits the memory.
    """
    with in_words():
        return searched_document(solve(request_of(question, price=False), watch))


def refusal(error: AutomapError) -> dict[str, Any]:
    """What is wrong as JSON; `field` is the field of the question that it is about, None where it is about none."""
    mention = re.search(r"`(\w+)|\$\.(\w+)", f"{error.where} {error.what}")
    field = (mention[1] or mention[2]) if mention else None
    sentence = str(error).replace("`", "").replace("$.", "")
    return {"what": error.what, "where": error.where, "do": error.do, "sentence": sentence, "field": field}


@cache
def models() -> list[dict[str, Any]]:
    """The transformers that have a name."""
    return [
        {"name": model.name, "parameters": model.parameters, "active": model.active, "layers": model.layers}
        for model in solve(ModelsRequest())
        if model.layers is not None
    ]


@cache
def clusters() -> dict[str, Any]:
    """The shipped clusters, devices that one can ask any number of, runtimes, and what a strategy is copied as."""
    targets = {name: what for name, what in TARGETS.items() if target_by_name(name).takes_strategies}
    described = [(name, *cluster_named(name)) for name in known_clusters()]
    return {
        "clusters": [
            {"name": name, "devices": cluster.devices, "kinds": [device.name for device in devices]}
            for name, cluster, devices in described
        ],
        "devices": list(sized_devices()),
        "runtimes": known_runtimes(),
        "targets": targets,
        "copies": list(COPIES),
    }


def copy(question: Question, target: str) -> dict[str, Any]:
    """The texts of a strategy's files by ending, that of the first under an empty one, and notes.

    Args:
        question: the strategy.
        target: one of COPIES, or a framework that `automap export` writes strategies for.

    Raises:
        BadInput: there is no such target, or it has no words for the strategy.
    """
    if target in COMMANDS:
        return {"files": {"": COMMANDS[target](question)}, "notes": []}
    if target not in (*COPIES, *TARGETS):
        do = f"choose from {', '.join([*COPIES, *TARGETS])}"
        raise BadInput(f"unknown target {target!r}", where="`target`", do=do)
    to, launch = ("megatron", target) if target in LAUNCHES else (target, None)
    estimate, (cluster, _) = estimate_of(question), cluster_named(question.cluster)
    ending = ".json" if to == "deepspeed" and estimate.strategy.pp == 1 else target_by_name(to).ending
    plan, path = Plan.of_strategy(estimate), Path(f"{question.model or 'plan'}{ending}")
    topo = cluster if launch else None
    with in_words(target="to"):
        written = solve(ExportRequest(Source(plan), None, to, path, topo=topo, launch=launch)).written
    return {"files": {"": written.text, **written.beside}, "notes": list(written.notes)}


def _fields(question: Question) -> dict[str, Any]:
    """What is given of the strategy, with the batch that a step has."""
    estimate = estimate_of(question)
    return {**question.fields(), "global_batch": estimate.strategy.global_batch}


def command(question: Question) -> str:
    """The line of a shell that prices the strategy.

    Raises:
        BadInput: it recomputes otherwise in each stage, which no option says.
    """
    fields = _fields(question)
    for name in ("recompute", "recompute_blocks"):
        if isinstance(fields.get(name), tuple):
            raise BadInput("of each stage is no option of the command", where=f"`{name}`", do="copy Python")
    topo = "--topo" if question.cluster in known_clusters() else "--gpus"
    words = ["automap", "plan", question.file or question.model, topo, question.cluster]
    training = question.training()
    patterns = training.pop("freeze", ())
    given = {"sequence": question.sequence, "runtime": question.runtime, **fields, **training}
    for name in ("sequence", "global_batch", "runtime", "schedule", *FIELDS, *TRAINING):
        value = given.get(name)
        if value is not None and value is not False:
            text = [] if value is True else [",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
            words += [f"--{name.replace('_', '-')}", *text]
    words += [word for pattern in patterns for word in ("--freeze", pattern)]
    return shlex.join([*words, "--price"]) + "\n"


def python(question: Question) -> str:
    """The lines of Python that price the strategy."""
    shipped = question.cluster in known_clusters()
    given = {"sequence": question.sequence, "runtime": question.runtime, **_fields(question), **question.training()}
    options = [repr(question.file or question.model)]
    options.append(f"{'' if shipped else 'gpus='}{question.cluster!r}")
    options += [f"{name}={value!r}" for name, value in given.items() if value is not None]
    return (
        f"import automap_models as am\n\nprice = am.price({', '.join(options)})\nprint(price.step_s, price.verdict)\n"
    )


COMMANDS = {"command": command, "python": python}
"""What prices the strategy → its text."""
COPIES = (*COMMANDS, *LAUNCHES)
"""What is no framework's file; those that launch it do so with Megatron."""
