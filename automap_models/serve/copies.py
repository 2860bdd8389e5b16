"""A strategy in the words of others, to be copied: a command, Python, and what `automap export` writes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from automap_models.core.plan import Plan
from automap_models.errors import BadInput
from automap_models.export.target import Source
from automap_models.export.targets import LAUNCHES, TARGETS, target_by_name
from automap_models.formats.hardware_yaml import known_clusters
from automap_models.requests import FIELDS, TRAINING, ExportRequest, solve
from automap_models.requests.words import in_words
from automap_models.serve.answers import estimate_of
from automap_models.serve.questions import Question, cluster_named


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
    path = Path(f"{question.model or 'plan'}{target_by_name(to).ending}")
    plan, (cluster, _) = Plan.of_strategy(estimate_of(question)), cluster_named(question.cluster)
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
    words = ["automap", "plan", question.model if question.config is None else "config.json", topo, question.cluster]
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
    options = [repr(question.model if question.config is None else "config.json")]
    options.append(f"{'' if shipped else 'gpus='}{question.cluster!r}")
    options += [f"{name}={value!r}" for name, value in given.items() if value is not None]
    return (
        f"import automap_models as am\n\nprice = am.price({', '.join(options)})\nprint(price.step_s, price.verdict)\n"
    )


COMMANDS = {"command": command, "python": python}
"""What prices the strategy → its text."""
COPIES = (*COMMANDS, *LAUNCHES)
"""What is no framework's file; those that launch it do so with Megatron."""
