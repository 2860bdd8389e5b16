"""ONNX graphs as data: the exported pieces of an episode become one planner, with loops over tables and stages.

torch exports a step of the episode; an ONNX Loop around it is a few nodes, and the file stays as small as one step.
Why torch does not export the loops itself (tried with torch 2.13, which knows `while_loop` and `scan`):

- `scan`, which like our Loop stacks what every round makes, refuses a number of rounds that follows from the data
  (GuardOnDataDependentSymNode), and ours is the largest S of the batch.
- `while_loop` stacks nothing: the tables, and the action values that train.export compares, would have to be carried
  whole and copied in every round.
- A planner written with `while_loop` (tables of fixed depth, no action values) goes through torch.export in 100 to
  220 s on two busy cores, but torch.onnx.export fails on it: "Failed to decompose the FX graph for ONNX compatibility
  … Attempting to use FunctionalTensor on its own". With a single linear layer for a body it works.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto, helper

INT, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL


@dataclass
class Graph:
    """A graph under construction: nodes in order, and the initialisers of the pieces in it."""

    name: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initialisers: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0

    def add(self, operator: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        self.count += 1
        output = output or f"{self.name}_{self.count}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def numbers(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.add("Constant", [], value_ints=list(values))

    def number(self, value: int) -> str:
        """A constant int64 scalar."""
        return self.add("Constant", [], value_int=value)

    def splice(self, piece: onnx.ModelProto, name: str) -> None:
        """Put a piece's nodes here; its inputs and outputs keep their names, everything else gets the prefix."""
        kept = {value.name for value in (*piece.graph.input, *piece.graph.output)}
        own = onnx.compose.add_prefix(
            piece, f"{name}/", rename_inputs=False, rename_outputs=False, rename_value_infos=False
        ).graph
        if {value.name for value in (*own.input, *own.output)} != kept:
            raise RuntimeError(f"the inputs and outputs of {name} have changed their names")
        self.nodes.extend(own.node)
        self.initialisers.extend(own.initializer)

    def loop(self, trips: str, body: onnx.GraphProto, start: Sequence[str], outputs: Sequence[str]) -> None:
        """A Loop of `trips` rounds over a body made by `loop_body`."""
        self.nodes.append(helper.make_node("Loop", [trips, "", *start], list(outputs), body=body))


def loop_body(
    piece: onnx.ModelProto, name: str, carried: Mapping[str, str], scans: Iterable[str], counter: str | None = None
) -> onnx.GraphProto:
    """A Loop body around a piece; inputs that are not carried come from the graph around it.

    Args:
        carried: the piece's inputs that the piece itself renews: input → output.
        scans: outputs collected over the rounds.
        counter: a float input that is 2 in the first round, 3 in the second, …
    """
    graph = Graph(f"{name}_glue")
    if counter is not None:
        shifted = graph.add("Add", [f"{name}_round", graph.number(2)])
        graph.add("Cast", [shifted], counter, to=FLOAT)
    graph.splice(piece, name)
    going_on = graph.add("Identity", [f"{name}_going"])
    types = {value.name: value for value in (*piece.graph.input, *piece.graph.output)}
    scanned = [graph.add("Identity", [scan]) for scan in scans]
    outputs = [helper.make_tensor_value_info(going_on, BOOL, [])]
    outputs += [types[renewed] for renewed in carried.values()]
    for copy, scan in zip(scanned, scans, strict=True):
        value = onnx.ValueInfoProto()
        value.CopyFrom(types[scan])
        value.name = copy
        outputs.append(value)
    inputs = [
        helper.make_tensor_value_info(f"{name}_round", INT, []),
        helper.make_tensor_value_info(f"{name}_going", BOOL, []),
        *(types[taken] for taken in carried),
    ]
    return helper.make_graph(graph.nodes, name, inputs, outputs, initializer=graph.initialisers)


@dataclass(frozen=True)
class Pieces:
    """The exported pieces of train.onnx_pieces; those that make tables are missing where there are none."""

    first_cut: onnx.ModelProto
    stage: onnx.ModelProto
    device_cut: onnx.ModelProto
    end: onnx.ModelProto
    begin: onnx.ModelProto | None
    level: onnx.ModelProto | None


def planner_graph(pieces: Pieces, problem: Sequence[str], tables: Sequence[str], max_stages: int) -> onnx.ModelProto:
    """The model (problem…, beam) → cuts, device_cuts, reward of the greedy plans from the `beam` best first cuts.

    Inputs: the problem's tensors with a batch axis B in front; `beam`, int64 [1].
    Outputs: cuts, device_cuts int64 [B, beam, max_stages - 1], reward float32 [B, beam] as train.onnx_pieces.End says,
    best first cut first, and -∞ where there are fewer first cuts; and the action values on the way, for checks:
    first_values [B, P], device_values [rounds, B·beam, …], cut_values [rounds, B·beam, P] and last_device_values, of
    device cuts those that the largest cluster of the batch has; and the tables.
    """
    graph = Graph("glue")
    most = graph.add("Cast", [graph.add("ReduceMax", ["stages"], keepdims=0)], to=INT)
    _add_first_devices(graph)
    if pieces.begin is not None and pieces.level is not None:
        _add_tables(graph, pieces.begin, pieces.level, most)
    _add_empty_plans(graph, graph.add("Shape", ["stages"]), "no_", max_stages, step=0)
    graph.splice(pieces.first_cut, "first_cut")
    shape = _add_first_cuts(graph, [*problem, *tables], max_stages)
    carried = {name: f"next_{name}" for name in ("row_cuts", "row_device_cuts", "row_step")}
    rounds = graph.add("Sub", [most, graph.number(2)])
    body = loop_body(pieces.stage, "stage", carried, ["device_values", "cut_values"])
    graph.loop(
        rounds,
        body,
        ["cut_row_cuts", "first_row_device_cuts", "first_row_step"],
        [*carried, "device_values", "cut_values"],
    )
    graph.splice(pieces.device_cut, "device_cut")
    _add_end(graph, pieces.end, shape)
    parts = (pieces.first_cut, pieces.stage, pieces.device_cut)
    types = {value.name: value for piece in parts for value in piece.graph.output}
    kinds = {value.name: value for value in pieces.first_cut.graph.input}
    inputs = [_free_batch(kinds[name]) for name in problem] + [helper.make_tensor_value_info("beam", INT, [1])]
    plans: list[str | int | None] = ["batch", "beam", max_stages - 1]
    outputs = [
        helper.make_tensor_value_info("cuts", INT, plans),
        helper.make_tensor_value_info("device_cuts", INT, plans),
        helper.make_tensor_value_info("reward", FLOAT, plans[:2]),
        types["first_values"],
        types["last_device_values"],
        *(
            helper.make_tensor_value_info(name, FLOAT, ["rounds", "rows", None])
            for name in ("device_values", "cut_values")
        ),
        *(kinds[name] for name in tables),
    ]
    whole = helper.make_graph(graph.nodes, "planner", inputs, outputs, initializer=graph.initialisers)
    return helper.make_model(whole, opset_imports=pieces.end.opset_import, ir_version=pieces.end.ir_version)


def _free_batch(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Call the first axis `batch`; the exporter fixes that of inputs that a piece does not use."""
    value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return value


def _add_first_devices(graph: Graph) -> None:
    """first_devices: 1, 2, … as far as the largest cluster has devices."""
    devices = graph.add("ReduceMax", [graph.add("Mul", ["nodes", "devices_per_node"])], keepdims=0)
    one = graph.add("Constant", [], value_float=1.0)
    graph.add("Range", [one, devices, one], "first_devices")


def _add_tables(graph: Graph, begin: onnx.ModelProto, level: onnx.ModelProto, most: str) -> None:
    """The loop that makes the tables, from one stage left to all but one; at least one round."""
    graph.splice(begin, "begin")
    renewed = [value.name for value in level.graph.output if value.name.startswith("next_")]
    scanned = [value.name for value in level.graph.output if value.name.startswith("level_")]
    names = [name.removeprefix("next_rest_") for name in renewed]
    rounds = graph.add("Max", [graph.add("Sub", [most, graph.number(2)]), graph.number(1)])
    body = loop_body(level, "level", {f"rest_{name}": f"next_rest_{name}" for name in names}, scanned, counter="left")
    graph.loop(
        rounds,
        body,
        [f"last_{name}" for name in names],
        [f"unused_{name}" for name in names] + [f"stacked_{name}" for name in scanned],
    )
    for name in scanned:
        graph.add("Transpose", [f"stacked_{name}"], name.removeprefix("level_"), perm=[1, 0, 2, 3])


def _add_first_cuts(graph: Graph, tensors: Sequence[str], max_stages: int) -> str:
    """A row for each of the best first cuts: repeats every tensor as row_…, begins the plans; returns [B, beam]."""
    graph.nodes.append(
        helper.make_node("TopK", ["first_values", "beam"], ["beam_values", "beam_cuts"], axis=1, sorted=1)
    )
    flat = graph.numbers(-1)
    batch = graph.add("Shape", ["stages"])
    zero, one = graph.number(0), graph.number(1)
    number = graph.add("Range", [zero, graph.add("Squeeze", [batch]), one])
    shape = graph.add("Concat", [batch, "beam"], axis=0)
    rows = graph.add("Expand", [graph.add("Unsqueeze", [number, graph.numbers(1)]), shape])
    rows = graph.add("Reshape", [rows, flat])
    for name in tensors:
        graph.add("Gather", [name, rows], f"row_{name}", axis=0)
    _add_empty_plans(graph, graph.add("Shape", [rows]), "first_row_", max_stages, step=1)
    first = graph.add("Reshape", ["beam_cuts", graph.numbers(-1, 1)])
    others = graph.add("Slice", ["first_row_cuts", graph.numbers(1), graph.numbers(max_stages), graph.numbers(1)])
    graph.add("Concat", [first, others], "cut_row_cuts", axis=1)
    return shape


def _add_empty_plans(graph: Graph, count: str, prefix: str, max_stages: int, step: int) -> None:
    """Plans in which nothing is decided: `prefix` + cuts, device_cuts, step; as many rows as `count`, [1], says."""
    unset = helper.make_tensor("unset", INT, [1], [-1])
    shape = graph.add("Concat", [count, graph.numbers(max_stages - 1)], axis=0)
    graph.add("ConstantOfShape", [shape], f"{prefix}cuts", value=unset)
    graph.add("ConstantOfShape", [shape], f"{prefix}device_cuts", value=unset)
    graph.add("ConstantOfShape", [count], f"{prefix}step", value=helper.make_tensor("step", INT, [1], [step]))


def _add_end(graph: Graph, end: onnx.ModelProto, shape: str) -> None:
    """Rewards of the complete plans; everything in the shape [B, beam, …]."""
    graph.splice(end, "end")
    plans = graph.add("Concat", [shape, graph.numbers(-1)], axis=0)
    graph.add("Reshape", ["final_row_cuts", plans], "cuts")
    graph.add("Reshape", ["final_row_device_cuts", plans], "device_cuts")
    reward = graph.add("Reshape", ["row_reward", shape])
    nothing = graph.add("Constant", [], value_float=float("-inf"))
    graph.add("Where", [graph.add("IsInf", ["beam_values"], detect_positive=0), nothing, reward], "reward")


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
