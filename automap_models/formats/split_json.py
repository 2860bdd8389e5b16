"""Splits of dnn-partitioning (Tarnawski et al., NeurIPS 2020): which nodes an expert or a program put on which device.

`{"maxLoad", "fpgas": [{"load", "nodes": [ids]}, …], "cpus": [{…}, …]}`; loads are what their writer thought and are
not read. A node that is not listed goes where its colour class is, so that a split of an inference graph is one of the
training graph, too.
"""

from __future__ import annotations

import os

import numpy as np

from automap_models.core.placement import IntArray, PlacementProblem
from automap_models.errors import BadInput
from automap_models.formats.schema import Foreign, Whole, read_json

DO = "give a split file of dnn-partitioning"


class SplitDevice(Foreign):
    """The ids of the nodes on a device."""

    nodes: list[Whole]


class SplitDocument(Foreign):
    """The devices of a split."""

    fpgas: list[SplitDevice]
    cpus: list[SplitDevice]


def read_split(path: str | os.PathLike[str], problem: PlacementProblem) -> IntArray:
    """[n] device of each node of the problem's graph: accelerators, then CPUs, in the order of the file.

    Raises:
        BadInput: the file is no split, has more devices than the problem, or does not place every node exactly once.
    """
    document = read_json(path, SplitDocument, do=DO)
    position = {number: at for at, number in enumerate(problem.graph.ids)}
    assignment = np.full(len(problem.graph), -1)
    for key, devices, first, most in (
        ("fpgas", document.fpgas, 0, problem.accelerators),
        ("cpus", document.cpus, problem.accelerators, problem.cpus),
    ):
        for index, device in enumerate(devices):
            at = f"$.{key}[{index}].nodes"
            if device.nodes and index >= most:
                raise BadInput(f"uses more {key} than the {most} there are", where=str(path), do="give more devices")
            for number in device.nodes:
                if number not in position:
                    what = f"{at}: node {number} is not in the graph"
                    raise BadInput(what, where=str(path), do="give its own graph")
                if assignment[position[number]] >= 0:
                    raise BadInput(f"{at}: node {number} is placed twice", where=str(path), do="place it once")
                assignment[position[number]] = first + index
    assignment = _with_classes(problem, assignment)
    if (assignment < 0).any():
        missing = problem.graph.ids[int(np.argmax(assignment < 0))]
        raise BadInput(f"node {missing} is not placed", where=str(path), do="place every node")
    return assignment


def _with_classes(problem: PlacementProblem, assignment: IntArray) -> IntArray:
    """[n] the assignment with each node that has none where a node of its class is; -1 where none of them is."""
    home = np.full(int(problem.graph.classes.max()) + 1, -1)
    placed = assignment >= 0
    home[problem.graph.classes[placed]] = assignment[placed]
    return np.where(placed, assignment, home[problem.graph.classes])
