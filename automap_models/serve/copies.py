"""A strategy in the words of others, to be copied: a command, Python, a Slurm script, what `automap export` writes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from automap_models.core.plan import Plan
from automap_models.errors import BadInput
from automap_models.export.target import Source
from automap_models.export.targets import TARGETS, target_by_name
from automap_models.formats.hardware_yaml import known_clusters
from automap_models.requests import FIELDS, ExportRequest, solve
from automap_models.requests.words import in_words
from automap_models.serve.answers import estimate_of
from automap_models.serve.questions import Question, cluster_named

SLURM = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={devices}
export CUDA_DEVICE_MAX_CONNECTIONS=1
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes {nodes} --nproc-per-node {devices} \\
    --rdzv-backend c10d --rdzv-endpoint "$head_node:29500" --rdzv-id "$SLURM_JOB_ID" \\
    {program}
"""
"""One task a node, which starts a process a device; Megatron asks for one connection, which keeps kernels in order."""


def copy(question: Question, target: str) -> dict[str, Any]:
    """The texts of a strategy's files by ending, that of the first under an empty one, and notes.

    Args:
        question: the strategy.
        target: a key of COPIES, or a framework that `automap export` writes strategies for.

    Raises:
        BadInput: there is no such target, or it has no words for the strategy.
    """
    if target in COPIES:
        return {"files": {"": COPIES[target](question)}, "notes": []}
    if target not in TARGETS:
        do = f"choose from {', '.join([*COPIES, *TARGETS])}"
        raise BadInput(f"unknown target {target!r}", where="`target`", do=do)
    path = Path(f"{question.model or 'plan'}{target_by_name(target).ending}")
    written = _exported(question, target, path).written
    return {"files": {"": written.text, **written.beside}, "notes": list(written.notes)}


def _exported(question: Question, target: str, path: Path) -> Any:
    """The files as `automap export` would write them there."""
    plan = Plan.of_strategy(estimate_of(question))
    with in_words(target="to"):
        return solve(ExportRequest(Source(plan), None, target, path))


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
    words = ["automap", "plan", question.model if question.config is None else "config.json", *_cluster(question)]
    given = {"sequence": question.sequence, "runtime": question.runtime, **fields}
    for name in ("sequence", "global_batch", "runtime", "schedule", *FIELDS):
        value = given.get(name)
        if value is not None and value is not False:
            text = [] if value is True else [",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
            words += [f"--{name.replace('_', '-')}", *text]
    return shlex.join([*words, "--price"]) + "\n"


def _cluster(question: Question) -> list[str]:
    return ["--topo" if question.cluster in known_clusters() else "--gpus", question.cluster]


def python(question: Question) -> str:
    """The lines of Python that price the strategy."""
    shipped = question.cluster in known_clusters()
    given = {"sequence": question.sequence, "runtime": question.runtime, **_fields(question)}
    options = [repr(question.model if question.config is None else "config.json")]
    options.append(f"{'' if shipped else 'gpus='}{question.cluster!r}")
    options += [f"{name}={value!r}" for name, value in given.items() if value is not None]
    return (
        f"import automap_models as am\n\nprice = am.price({', '.join(options)})\nprint(price.step_s, price.verdict)\n"
    )


def slurm(question: Question) -> str:
    """A script for sbatch that starts Megatron with its arguments.

    Raises:
        BadInput: Megatron has no words for the strategy, or nodes have different numbers of devices.
    """
    cluster, _ = cluster_named(question.cluster)
    cluster.require_uniform("a script for Slurm", "take a cluster of equal nodes")
    program = _exported(question, "megatron", Path("plan.txt")).written.program
    devices = cluster.devices_per_node
    name = shlex.quote(question.model if question.config is None else "model")
    return SLURM.format(name=name, nodes=cluster.nodes, devices=devices, program=program)


COPIES = {"command": command, "python": python, "slurm": slurm}
"""What is no framework's file → its text."""
