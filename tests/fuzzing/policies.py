"""Policies in ONNX whose graph answers what a test wants it to."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from automap_models.envs.pipeline.features import FEATURES, GLOBAL_FEATURES
from automap_models.envs.pipeline.flat import width
from automap_models.planners.staged import policy_file

RANGES = {name: [0.001, 64.0] for name in policy_file.RANGES}
METADATA = {
    "automap_kind": policy_file.KIND,
    "points": "16",
    "max_stages": "4",
    "max_devices": "16",
    "ranges": json.dumps(RANGES),
}
INPUTS = {
    "choices": {"features": ["batch", "choices", FEATURES], "globally": ["batch", GLOBAL_FEATURES]},
    "flat": {"state": ["batch", width(16, 4, 16)]},
}


def write_policy(
    file: Path,
    nodes: list[onnx.NodeProto] | None = None,
    *,
    network: str = "choices",
    metadata: dict[str, str] | None = None,
    kind: int = TensorProto.FLOAT,
) -> Path:
    """A policy file whose graph answers the sum of a choice's features, or what some nodes make, of a kind."""
    total = [
        helper.make_node("Constant", [], ["axis"], value_ints=[2]),
        helper.make_node("ReduceSum", ["features", "axis"], [policy_file.VALUES], keepdims=0),
    ]
    outputs = [helper.make_tensor_value_info(policy_file.VALUES, kind, None)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in INPUTS[network].items()]
    inputs.append(helper.make_tensor_value_info(policy_file.LEGAL, TensorProto.BOOL, ["batch", "choices"]))
    graph = helper.make_graph(nodes or total, "policy", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.helper.set_model_props(model, METADATA | {"network": network} | (metadata or {}))
    onnx.save(model, file)
    return file
