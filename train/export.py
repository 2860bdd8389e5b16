"""A trained network as an ONNX policy, with what it says about itself, held against torch state by state."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from automap_models.envs.pipeline.env import Choices, Problems, States, follow
from automap_models.envs.pipeline.features import MOST_DEVICE_CHOICES
from automap_models.formats.atomic import write_bytes
from automap_models.planners.staged.policy_file import INPUTS, KIND, LEGAL, RANGES, VALUES, Policy
from automap_models.rl.networks.pipeline import FlatNetwork
from automap_models.version import __version__

from .data import PipelineData
from .rainbow import RainbowModule

STATES = 10_000
"""Least number of states that a policy must agree in before it is kept."""


def check_parity(module: RainbowModule, path: Path, problems: Problems, states: int = STATES) -> dict[str, float]:
    """Let the file plan in onnxruntime and compare every value on the way with the module in torch.

    Args:
        problems: what to plan; from the first as many as give enough states.
        states: how many states are compared at least, where there are as many.

    Returns:
        States, the largest difference of their values and the share of them in which the greedy choice is the same.

    Raises:
        RuntimeError: values, or larger ones than 1 in proportion, differ by more than 1e-4: float32 sums in another
            order.
    """
    policy, differences, equal = Policy(path), [0.0], [True]

    def value(choices: Choices) -> NDArray[np.float32]:
        ours, theirs = module.agent.worth(choices), policy.worth(choices)
        scale = np.maximum(np.abs(ours).max(axis=1, where=choices.legal, initial=0.0), 1.0)
        apart = np.abs(ours - theirs).max(axis=1, where=choices.legal, initial=0.0) / scale
        differences.extend(apart.tolist())
        chosen = (np.where(choices.legal, worth, -np.inf).argmax(axis=1) for worth in (ours, theirs))
        equal.extend((next(chosen) == next(chosen)).tolist())
        return theirs

    batch = 256
    for start in range(0, len(problems.stages), batch):
        some = problems.take(slice(start, start + batch))
        begun = States.empty(len(some.stages), module.size.max_stages)
        follow(some, begun, some.decisions, module.agent.describe, value)
        if len(differences) > states:
            break
    numbers = (len(differences) - 1.0, max(differences), float(np.mean(equal)))
    report = dict(zip(("states", "largest_difference", "equal_actions"), numbers, strict=True))
    if report["largest_difference"] > 1e-4:
        raise RuntimeError(f"the exported policy differs from the trained one: {report}")
    return report


def value_ranges(problems: Problems) -> dict[str, list[float]]:
    """[smallest, largest] of every scalar the policy was trained on, outwards to three digits.

    Random draws from a range never quite reach its ends, which are what people ask for: equal bandwidths are a 1.
    """
    devices, per_node, ratio, _, stages, micro, _ = problems.numbers.T
    scalars = dict(zip(RANGES, (stages, micro, devices / per_node, per_node, ratio), strict=True))
    return {
        name: [_outwards(float(value.min()), math.floor), _outwards(float(value.max()), math.ceil)]
        for name, value in scalars.items()
    }


def _outwards(value: float, rounded: Callable[[float], int]) -> float:
    """A number > 0 to three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{rounded(value / unit * (1 + (1e-9 if rounded is math.floor else -1e-9))) * unit:.12g}")


def policy_metadata(module: RainbowModule, problems: Problems, config: Any) -> dict[str, str]:
    """What a policy file says about itself: what made it and which problems it is for."""
    canonical = json.dumps(config, sort_keys=True, default=str)
    ranges = value_ranges(problems)
    if not isinstance(module.online, FlatNetwork):  # with two stages the features say all: nothing to train on
        ranges["stages"][0] = min(ranges["stages"][0], 2.0)
    return {
        "automap_kind": KIND,
        "network": module.online.KIND,
        "automap_version": __version__,
        "config_sha256": hashlib.sha256(canonical.encode()).hexdigest(),
        "config": canonical,
        "ranges": json.dumps(ranges),
        "points": str(module.size.points),
        "max_stages": str(module.size.max_stages),
        "max_devices": str(module.size.max_devices),
        "episodes": str(module.episodes),
    }


def write_policy(module: RainbowModule, problems: Problems, metadata: dict[str, str], path: Path) -> None:
    """Write the network and what it says about itself, atomically.

    Args:
        problems: two or more, to trace with.
    """
    network, some = module.online, problems.take(slice(0, 2))
    choices = module.agent.describe(some, States.empty(2, module.size.max_stages))
    example = tuple(map(torch.from_numpy, (*choices.inputs, choices.legal)))
    batch, several = torch.export.Dim("batch"), torch.export.Dim("choices", min=2, max=max(4096, MOST_DEVICE_CHOICES))
    fixed = isinstance(network, FlatNetwork)
    shapes = [{0: batch, 1: several} if tensor.ndim > 1 and not fixed else {0: batch} for tensor in example]
    if not fixed:
        shapes[1] = {0: batch}
    inputs = [*INPUTS[network.KIND], LEGAL]
    options = {"args": example, "input_names": inputs, "output_names": [VALUES], "dynamic_shapes": tuple(shapes)}
    write_onnx(network, metadata, path, opset_version=18, **options)


def write_onnx(network: torch.nn.Module, metadata: dict[str, str], path: Path, **options: Any) -> None:
    """Write a network, what it says about itself, and nothing about this machine, atomically."""
    for chatty in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(network.eval(), dynamo=True, verbose=False, **options)
    model: Any = program.model_proto  # type: ignore[union-attr]
    for part in (model.graph, *model.graph.input, *model.graph.node):
        part.ClearField("metadata_props")  # among them the stack that each node was traced from, with files' paths
    model.graph.ClearField("value_info")
    for key, text in metadata.items():
        model.metadata_props.add(key=key, value=text)
    write_bytes(path, model.SerializeToString())


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
        write_policy(module, data.problems, metadata, candidate)
        report = check_parity(module, candidate, data.problems, states)
        candidate.replace(path)
    finally:
        candidate.unlink(missing_ok=True)
    return report
