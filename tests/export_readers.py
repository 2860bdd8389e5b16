"""Readers of what targets are given, written from the targets' documentation and not from their code.

They stand in where a target is not installed. test_real_parsers.py reads the same files with the targets' own parsers.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

_REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|([EtmL])\*(\d+)")


def megatron_stages(layout: str) -> list[str]:
    """The letters of each stage, as Megatron's documentation of --pipeline-model-parallel-layout describes them.

    `x*n` stands for n times x, `(…)*n` for n times what is in the brackets, commas mean nothing, a bar ends a stage.
    """
    text = layout.replace(",", "")
    while match := _REPEATED.search(text):
        what, times = (match[1], match[2]) if match[1] is not None else (match[3], match[4])
        text = text[: match.start()] + what * int(times) + text[match.end() :]
    return text.split("|")


def megatron_arguments(text: str) -> dict[str, list[str]]:
    """Argument → its values."""
    words = [word for line in text.splitlines() if not line.startswith("#") for word in shlex.split(line)]
    read: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            read[word] = []
        else:
            read[list(read)[-1]].append(word)
    return read


@contextmanager
def stand_ins(**modules: dict[str, Any]) -> Iterator[None]:
    """Modules with these attributes, dots written as double underscores, in place of packages not installed."""
    paths: dict[str, ModuleType] = {}
    for name, attributes in modules.items():
        parts = name.split("__")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            paths.setdefault(path, ModuleType(path))
        paths[".".join(parts)].__dict__.update(attributes)
    before = {path: sys.modules.get(path) for path in paths}
    sys.modules.update(paths)
    try:
        yield
    finally:
        for path, module in before.items():
            if module is None:
                del sys.modules[path]
            else:
                sys.modules[path] = module


def run(text: str) -> dict[str, Any]:
    """The names that a Python file defines."""
    names: dict[str, Any] = {"__name__": "exported"}
    exec(compile(text, "exported.py", "exec"), names)
    return names


def titan_configs(text: str) -> dict[str, Any]:
    """`parallelism`, `training` and `activation_checkpoint` of a torchtitan module."""
    configs = {"ParallelismConfig": SimpleNamespace, "TrainingConfig": SimpleNamespace}
    policies = {name: SimpleNamespace(Config=lambda name=name: name) for name in ("FullAC", "SelectiveAC")}
    with stand_ins(torchtitan__config__configs=configs, torchtitan__distributed__activation_checkpoint=policies):
        return run(text)


class _Pipeline:
    """What PipelineModule documents: it makes its layers, asks `_partition_layers`, and `_set_bounds` notes a range."""

    def __init__(self, layers: list[Any], topology: Any, activation_checkpoint_interval: int) -> None:
        self._layer_specs, self._topo, self.interval = layers, topology, activation_checkpoint_interval

    def _set_bounds(self, start: int, stop: int) -> None:
        self.bounds = (start, stop)


def deepspeed_stages(text: str) -> tuple[dict[str, Any], list[tuple[int, int]], int]:
    """The configuration, the layers of the stage on each rank, and every how many layers are recomputed."""
    ranks: dict[str, int] = {}

    def topology(num_pp: int, num_mp: int, num_dp: int) -> Any:
        ranks.update(pp=num_pp, others=num_mp * num_dp)
        return SimpleNamespace(get_coord=lambda rank: SimpleNamespace(pipe=rank // (num_mp * num_dp)))

    with stand_ins(
        deepspeed={},
        deepspeed__pipe={"PipelineModule": _Pipeline},
        deepspeed__runtime__pipe__topology={"PipeModelDataParallelTopology": topology},
    ):
        read = run(text)
    if "PARTS" not in read:
        return read["CONFIG"], [], 0
    model = read["PlannedPipeline"](range(read["PARTS"][-1]))
    bounds = []
    for rank in range(ranks["pp"] * ranks["others"]):
        model.global_rank = rank
        model._partition_layers()
        bounds.append(model.bounds)
    return read["CONFIG"], bounds, model.interval


def galvatron_layers(path: Path) -> dict[str, Any]:
    """Galvatron's document with its texts as lists of numbers."""
    read = json.loads(path.read_text("utf-8"))
    lists = ("tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint", "pp_division")
    return {**read, **{key: [int(number) for number in read[key].split(",")] for key in lists}}
