"""Checkpoint → ONNX planner: a graph that any runtime can run, checked against torch before it is kept."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import torch
from torch import Tensor

from automap_models.envs.pipeline.env import SCALARS, Problems
from automap_models.formats.files import write_atomically
from automap_models.rl.networks.pipeline import LookAheadQNetwork
from automap_models.train.data import PipelineData
from automap_models.train.module import RainbowModule
from automap_models.train.onnx_graph import Pieces, planner_graph, strip
from automap_models.train.onnx_pieces import (
    PLAN,
    PROBLEM,
    REST,
    ROW_PROBLEM,
    ROW_TABLES,
    STAGES,
    START,
    TABLES,
    Begin,
    DeviceCut,
    End,
    FirstCut,
    Level,
    Piece,
    Stage,
    example_tensors,
)
from automap_models.train.parity import STATES, check_parity
from automap_models.version import __version__

OPSET = 18


BATCH_AXES = {
    **{name: {0: "batch"} for name in (*PROBLEM, *START, *STAGES, "points", *REST)},
    "first_devices": {0: "devices"},
    **{name: {0: "batch", 1: "levels"} for name in TABLES[1:]},
    **{name: {0: "rows"} for name in (*ROW_PROBLEM, "row_points", *PLAN, "final_row_cuts", "final_row_device_cuts")},
    **{name: {0: "rows", 1: "levels"} for name in ROW_TABLES[1:]},
}
"""The axes of the pieces' inputs that have no fixed length."""


def value_ranges(problems: Problems) -> dict[str, list[float]]:
    """[smallest, largest] of every scalar the policy was trained on, outwards to three digits.

    Random draws from a range never quite reach its ends, which are what people ask for: equal bandwidths are a 1.
    """
    scalars = {name: getattr(problems, name) for name in SCALARS}
    scalars["devices"] = problems.devices
    return {
        name: [_outwards(float(value.min()), math.floor), _outwards(float(value.max()), math.ceil)]
        for name, value in scalars.items()
    }


def _outwards(value: float, rounded: Callable[[float], int]) -> float:
    """A number > 0 to three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{rounded(value / unit * (1 + (1e-9 if rounded is math.floor else -1e-9))) * unit:.12g}")


def planner_model(module: RainbowModule, problems: Problems) -> onnx.ModelProto:
    """The planner as one ONNX graph with dynamic axes; it says nothing about itself yet.

    Args:
        problems: some to trace with.
    """
    examples = example_tensors(module, problems)
    tables = isinstance(module.online, LookAheadQNetwork)
    model: onnx.ModelProto = planner_graph(
        Pieces(
            first_cut=_export(FirstCut(module), examples),
            stage=_export(Stage(module), examples),
            device_cut=_export(DeviceCut(module), examples),
            end=_export(End(module), examples),
            begin=_export(Begin(module), examples) if tables else None,
            level=_export(Level(module), examples) if tables else None,
        ),
        PROBLEM,
        TABLES if tables else (),
        module.size.max_stages,
    )
    strip(model.graph)
    return model


def write_model(model: onnx.ModelProto, metadata: dict[str, str], path: Path) -> None:
    """Write a model with what it says about itself, atomically.

    Raises:
        onnx.checker.ValidationError: it is no valid model.
    """
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)

    def write(file: BinaryIO) -> None:
        file.write(model.SerializeToString())

    write_atomically(path, write)


def _export(piece: Piece, examples: dict[str, Tensor]) -> onnx.ModelProto:
    for chatty in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    axes = {name: torch.export.Dim(name, min=1) for name in ("batch", "rows", "levels")}
    axes["devices"] = torch.export.Dim("devices", min=2)
    dynamic = tuple({axis: axes[name] for axis, name in BATCH_AXES.get(tensor, {}).items()} for tensor in piece.inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # Exported here: torch.onnx would fall back to fixed axes without a word where this one fails.
        program = torch.export.export(
            piece.eval(), tuple(examples[name] for name in piece.inputs), dynamic_shapes=(dynamic,)
        )
        converted = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(piece.inputs),
            output_names=list(piece.outputs),
            verbose=False,
        )
    return converted.model_proto  # type: ignore[union-attr]


def policy_metadata(module: RainbowModule, problems: Problems, config: Any) -> dict[str, str]:
    """What a policy file says about itself: what made it and which problems it is for."""
    canonical = json.dumps(config, sort_keys=True, default=str)
    ranges = value_ranges(problems)
    if module.exact_decisions:  # problems with so few stages need not be trained on: the look-ahead decides
        ranges["stages"][0] = min(ranges["stages"][0], 1 + module.exact_decisions // 2)
    return {
        "automap_kind": "pipeline-planner",
        "opset": str(OPSET),
        "automap_version": __version__,
        "config_sha256": hashlib.sha256(canonical.encode()).hexdigest(),
        "config": canonical,
        "ranges": json.dumps(ranges),
        "points": str(module.size.points),
        "max_stages": str(module.size.max_stages),
        "max_devices": str(module.size.max_devices),
        "episodes": str(module.episodes),
    }


def export_policy(
    module: RainbowModule, data: PipelineData, path: Path, config: Any, states: int = STATES
) -> dict[str, float]:
    """Write an ONNX policy with its metadata; it is kept only if it agrees with torch.

    Args:
        config: the training config; its hash goes into the metadata.
        states: how many states are compared at least.

    Returns:
        The parity report.
    """
    module.eval().cpu()
    metadata = policy_metadata(module, data.problems, config)
    candidate = path.with_suffix(".unchecked.onnx")
    try:
        write_model(planner_model(module, data.problems), metadata, candidate)
        report: dict[str, float] = check_parity(module, candidate, data.problems, states)
        candidate.replace(path)
    finally:
        candidate.unlink(missing_ok=True)
    return report
