"""Policies in ONNX whose graph answers what a test wants it to."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto, helper

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
    "arrays": (TensorProto.FLOAT, ["batch", 5, 16]),
    "cut_mask": (TensorProto.BOOL, ["batch", 16]),
    "beam": (TensorProto.INT64, [1]),
    **{
        name: (TensorProto.FLOAT, ["batch"])
        for name in ("nodes", "devices_per_node", "inter_over_intra", "state_over_memory", "stages", "micro_batches")
    },
}


def write_policy(
    file: Path,
    cuts: list[int],
    device_cuts: list[int],
    *,
    metadata: dict[str, str] | None = None,
    nodes: list[onnx.NodeProto] | None = None,
    cut_type: str = "value_ints",
) -> Path:
    """A policy file whose graph answers the same row of cuts and device cuts to every problem."""
    constants = []
    for name, values in (("flat_cuts", cuts), ("flat_device_cuts", device_cuts)):
        attribute: dict[str, object] = {cut_type: [float(v) if cut_type == "value_floats" else v for v in values]}
        constants.append(helper.make_node("Constant", [], [name], **attribute))
    constants += [
        helper.make_node("Constant", [], ["row"], value_ints=[1, 1, -1]),
        helper.make_node("Reshape", ["flat_cuts", "row"], ["cuts"]),
        helper.make_node("Reshape", ["flat_device_cuts", "row"], ["device_cuts"]),
    ]
    reward = [
        helper.make_node("Constant", [], ["flat_reward"], value_floats=[0.5]),
        helper.make_node("Constant", [], ["one"], value_ints=[1, 1]),
        helper.make_node("Reshape", ["flat_reward", "one"], ["reward"]),
    ]
    kind = TensorProto.FLOAT if cut_type == "value_floats" else TensorProto.INT64
    outputs = [
        helper.make_tensor_value_info("cuts", kind, ["batch", "beam", None]),
        helper.make_tensor_value_info("device_cuts", kind, ["batch", "beam", None]),
        helper.make_tensor_value_info("reward", TensorProto.FLOAT, ["batch", "beam"]),
    ]
    inputs = [helper.make_tensor_value_info(name, *value) for name, value in INPUTS.items()]
    graph = helper.make_graph([*constants, *(nodes or reward)], "planner", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.helper.set_model_props(model, METADATA | (metadata or {}))
    onnx.save(model, file)
    return file
