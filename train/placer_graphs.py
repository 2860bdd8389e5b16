"""Graphs that the placer is trained and measured on: traced steps of built-in models, kept once they are traced."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from automap_models.core.placement import PlacementGraph
from automap_models.formats.atomic import write_atomically


def traced_graph(name: str, sequence: int | None = None) -> PlacementGraph:
    """The step of a built-in model, timed by the roofline of a V100; this takes jax, and for some models minutes.

    Args:
        name: of the model.
        sequence: tokens of a sample; None: as many as are usual for it.
    """
    from automap_models.formats.hardware_yaml import DEFAULT_DEVICE, read_device
    from automap_models.hlo.adapter import trace
    from automap_models.hlo.clock import clock_times
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.step_graph import step_graph
    from automap_models.workloads.registry import build

    graph = instruction_graph(trace(build(name, sequence=sequence)))
    accelerator, host = (clock_times(graph, read_device(kind)) for kind in (DEFAULT_DEVICE, "cpu"))
    return step_graph(graph, accelerator, host, {}, link_bytes_per_s=12e9, accelerators=4, accelerator_bytes=32e9)


def kept_graph(name: str, folder: Path, sequence: int | None = None) -> PlacementGraph:
    """The traced step of a built-in model (`traced_graph`), read from the folder, or traced and kept there."""
    path = folder / (f"{name}.npz" if sequence is None else f"{name}_{sequence}.npz")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _keep(traced_graph(name, sequence), path)
    with np.load(path, allow_pickle=False) as content:
        kept: dict[str, Any] = {key: content[key] for key in content.files}
    plain = json.loads(str(kept.pop("plain")))
    tuples = {key: tuple(plain[key]) for key in ("ids", "names", "opcodes")}
    return PlacementGraph(**kept, **{**plain, **tuples}, kind_s={})


def _keep(graph: PlacementGraph, path: Path) -> None:
    """Write a graph without times on further kinds of devices."""
    values = {field.name: getattr(graph, field.name) for field in fields(graph) if field.name != "kind_s"}
    arrays: dict[str, Any] = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in values.items() if name not in arrays}
    write_atomically(path, lambda file: np.savez_compressed(file, plain=np.array(json.dumps(plain)), **arrays))
