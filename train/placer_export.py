"""From a trained placer to an ONNX policy, compared with torch on random problems."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch

from automap_models.envs.placement.generator import random_problem
from automap_models.errors import AutomapError
from automap_models.onnx_runtime import OnnxFile
from automap_models.planners.base import NEVER
from automap_models.planners.placement.learned import KIND, OUTPUT, VERSION
from automap_models.planners.placement.placer_state import PlacerState

from .placer import PlacerModule, stacked

PROBLEMS = 8
TOLERANCE = 1e-3
"""Largest difference of two logits."""


def export_placer(module: PlacerModule, path: Path) -> float:
    """Write the policy; the largest difference of a logit to torch's.

    Raises:
        AutomapError: it differs from torch by more than the tolerance.
    """
    network = module.network.eval()
    states = [
        PlacerState.of(random_problem(np.random.default_rng([module.seed, 31, i])), 0, NEVER) for i in range(PROBLEMS)
    ]
    example = stacked([states[0].inputs])
    torch.onnx.export(
        network, kwargs=example, f=str(path), dynamo=True, external_data=False, output_names=[OUTPUT], verbose=False
    )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"kind": KIND, "version": str(VERSION), "seed": str(module.seed)})
    onnx.save(model, str(path))
    policy, largest = OnnxFile(path), 0.0
    for state in states:
        (logits,) = policy.run(state.inputs.feed(), [OUTPUT], 60.0)
        with torch.no_grad():
            expected = network(**stacked([state.inputs])).numpy()
        there = expected > -1e8
        largest = max(largest, float(np.abs(logits - expected)[there].max()))
    if largest > TOLERANCE:
        raise AutomapError(f"the exported policy differs from torch by {largest:.1e}", where=str(path))
    return largest
