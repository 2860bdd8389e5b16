"""ONNX graphs as data: one graph out of two that take turns, and nothing in it but the computation."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper


def either(even: onnx.ModelProto, odd: onnx.ModelProto, counter: str) -> onnx.ModelProto:
    """A model that runs `even` or `odd`, whichever the first entry of the int64 input `counter` is.

    Both have the same inputs, of which they may use some, and one output of the same name.
    """
    inputs, output = list(even.graph.input), even.graph.output[0]
    halves = {"then_branch": _branch(even, "even/"), "else_branch": _branch(odd, "odd/")}
    nodes = [
        _constant("first", 0),
        _constant("two", 2),
        helper.make_node("Gather", [counter, "first"], ["count"]),
        helper.make_node("Mod", ["count", "two"], ["remainder"]),
        helper.make_node("Equal", ["remainder", "first"], ["is_even"]),
        helper.make_node("If", ["is_even"], [output.name], **halves),
    ]
    graph = helper.make_graph(nodes, "either", inputs, [output])
    return helper.make_model(graph, opset_imports=even.opset_import, ir_version=even.ir_version)


def _constant(name: str, value: int) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value_int=value)


def _branch(model: onnx.ModelProto, prefix: str) -> onnx.GraphProto:
    """The model's graph with names of its own; its inputs become those of the graph around it."""
    own = onnx.compose.add_prefix(model, prefix, rename_inputs=False).graph
    own.ClearField("input")
    return own


def free_batch(graph: onnx.GraphProto) -> None:
    """Call the first axis of every input and output `batch`; the exporter fixes that of inputs it finds unused."""
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def strip(graph: Any) -> None:
    """Drop the exporter's notes on every node: they hold stack traces and nine tenths of the file."""
    graph.ClearField("metadata_props")
    graph.ClearField("value_info")
    for node in graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                strip(attribute.g)
