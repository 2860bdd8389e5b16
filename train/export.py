"""Checkpoint → ONNX policy: a graph that any runtime can step, checked against torch before it is kept."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

import automap_models
from automap_models.envs.pipeline import Partial, Problems, legal_actions
from automap_models.formats.files import write_atomically
from automap_models.rl import targets
from automap_models.rl.q_network import LookAheadQNetwork
from automap_models.train.data import PipelineData
from automap_models.train.module import RainbowModule
from automap_models.train.onnx_graph import either, free_batch, strip

OPSET = 18
PARITY_STATES = 10_000
PARITY_TOLERANCE = 1e-5


INPUTS = (*Problems._fields, *Partial._fields)
OUTPUTS = ("values",)


class FlatGraph(nn.Module):
    """What is exported: tensors in the order of INPUTS → action values [B, P + max_devices - 1], -∞ if illegal."""

    def __init__(self, module: RainbowModule) -> None:
        super().__init__()
        self.network, self.agent = module.online, module.agent

    def forward(self, *inputs: Tensor) -> Tensor:
        """Masked action values."""
        described = self.network.describe(*_records(inputs))
        return targets.masked(self.agent.expected(self.network(described)), described[1])


class CutGraph(FlatGraph):
    """The half of a LookAheadQNetwork that cuts instructions."""

    network: LookAheadQNetwork

    def forward(self, *inputs: Tensor) -> Tensor:
        """Masked action values of states that cut instructions."""
        described = self.network.describe_cuts(*_records(inputs))
        values = targets.masked(self.agent.expected(self.network.cut(*described)), described.legal)
        return functional.pad(values, (0, self.network.size.max_devices - 1), value=targets.ILLEGAL)


class DeviceCutGraph(FlatGraph):
    """The half of a LookAheadQNetwork that cuts devices."""

    network: LookAheadQNetwork

    def forward(self, *inputs: Tensor) -> Tensor:
        """Masked action values of states that cut devices."""
        described = self.network.describe_device_cuts(*_records(inputs))
        values = targets.masked(self.agent.expected(self.network.device_cut(*described)), described.legal)
        return functional.pad(values, (self.network.size.points, 0), value=targets.ILLEGAL)


def _records(inputs: tuple[Tensor, ...]) -> tuple[Problems, Partial]:
    return Problems(*inputs[: len(Problems._fields)]), Partial(*inputs[len(Problems._fields) :])


def value_ranges(problems: Problems) -> dict[str, list[float]]:
    """[smallest, largest] of every scalar the policy was trained on."""
    scalars = {name: getattr(problems, name) for name in Problems._fields[2:]}
    scalars["devices"] = problems.devices
    return {name: [float(value.min()), float(value.max())] for name, value in scalars.items()}


def sample_states(module: RainbowModule, problems: Problems, states: int, seed: int) -> list[tuple[Problems, Partial]]:
    """At least `states` states from ε-greedy episodes, in batches of one step each."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    found: list[tuple[Problems, Partial]] = []
    while sum(len(partial.step) for _, partial in found) < states:
        some = problems.take(torch.from_numpy(rng.integers(0, len(problems.stages), 512)))
        complete, _, steps, _ = module.agent.rollout(some, 0.3, generator)
        for t in range(int(steps.max())):
            rows = (steps > t).nonzero().squeeze(1)
            found.append((some.take(rows), complete.take(rows).at_step(torch.full_like(rows, t))))
    return found


def to_onnx(module: RainbowModule, example: tuple[Problems, Partial], metadata: dict[str, str], path: Path) -> None:
    """Export with a dynamic batch axis and metadata, atomically.

    All states of a batch must be at the same kind of step, so that only that half of a LookAheadQNetwork runs. The
    halves are exported apart and joined by an ONNX `If`: torch.cond would trace each several times.
    """
    inputs = tuple(tensor[:4] for record in example for tensor in record)
    if isinstance(module.online, LookAheadQNetwork):
        model = either(_export(CutGraph(module), inputs), _export(DeviceCutGraph(module), inputs), counter="step")
    else:
        model = _export(FlatGraph(module), inputs)
    strip(model.graph)
    free_batch(model.graph)
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)

    def write(file: BinaryIO) -> None:
        file.write(model.SerializeToString())

    write_atomically(path, write)


def _export(graph: nn.Module, inputs: tuple[Tensor, ...]) -> onnx.ModelProto:
    batch = torch.export.Dim("batch", min=1)
    for chatty in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph.eval(),
            inputs,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_shapes=(tuple({0: batch} for _ in inputs),),
            verbose=False,
        )
    return program.model_proto  # type: ignore[union-attr]


def check_parity(module: RainbowModule, path: Path, states: list[tuple[Problems, Partial]]) -> dict[str, float]:
    """Compare the file in onnxruntime with the module in torch.

    Returns:
        States compared, the largest difference of legal values and the share of equal greedy actions.

    Raises:
        RuntimeError: they differ by more than PARITY_TOLERANCE, or choose differently beyond it.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    count, worst, equal, worse = 0, 0.0, 0, 0.0
    for problems, partial in states:
        feed = {name: tensor.numpy() for name, tensor in zip(INPUTS, (*problems, *partial), strict=True)}
        onnx = torch.from_numpy(session.run(list(OUTPUTS), feed)[0])
        legal = legal_actions(problems, partial, module.size.max_devices)
        with torch.no_grad():
            expected = targets.masked(module.agent.q(module.agent.online, problems, partial), legal)
        if not torch.equal(onnx.isfinite(), legal):
            raise RuntimeError("the exported policy calls other actions legal than the environment does")
        count += len(legal)
        worst = max(worst, float((onnx - expected)[legal].abs().max()))
        chosen = onnx.argmax(1, keepdim=True)
        equal += int((chosen.squeeze(1) == expected.argmax(1)).sum())
        worse = max(worse, float((expected.amax(1) - expected.gather(1, chosen).squeeze(1)).max()))
    report = {"states": count, "largest_difference": worst, "equal_actions": equal / count}
    if worst > PARITY_TOLERANCE or worse > PARITY_TOLERANCE:
        raise RuntimeError(f"the exported policy differs from the trained one: {report}")
    return report


def policy_metadata(module: RainbowModule, problems: Problems, config: Any) -> dict[str, str]:
    """What a policy file says about itself: what made it and which problems it is for."""
    canonical = json.dumps(config, sort_keys=True, default=str)
    ranges = value_ranges(problems)
    if module.exact_decisions:  # problems with so few stages need not be trained on: the look-ahead decides
        ranges["stages"][0] = min(ranges["stages"][0], 1 + module.exact_decisions // 2)
    return {
        "automap_kind": "pipeline-policy",
        "opset": str(OPSET),
        "automap_version": automap_models.__version__,
        "config_sha256": hashlib.sha256(canonical.encode()).hexdigest(),
        "config": canonical,
        "ranges": json.dumps(ranges),
        "points": str(module.size.points),
        "max_stages": str(module.size.max_stages),
        "max_devices": str(module.size.max_devices),
        "episodes": str(module.episodes),
    }


def export_policy(module: RainbowModule, data: PipelineData, path: Path, config: Any) -> dict[str, float]:
    """Write an ONNX policy with its metadata; it is kept only if it agrees with torch.

    Args:
        config: the training config; its hash goes into the metadata.

    Returns:
        The parity report.
    """
    module.eval().cpu()
    metadata = policy_metadata(module, data.problems, config)
    states = sample_states(module, data.problems, PARITY_STATES, seed=module.seed)
    candidate = path.with_suffix(".unchecked.onnx")
    try:
        to_onnx(module, states[0], metadata, candidate)
        report = check_parity(module, candidate, states)
        candidate.replace(path)
    finally:
        candidate.unlink(missing_ok=True)
    return report
