"""The operators of a model, each to be placed on a device: the input of the device-placement problem.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PlacementGraph:
    """A directed acyclic graph of n operators with e edges, and the devices that they are to be placed on.

    Attributes:
        ids: [n] numbers of the nodes in the file they come from, ascending.
        names: [n] what the file calls them; "" where it does not.
        accelerator_s: [n] time of each on an accelerator.
        cpu_s: [n] time of each on a CPU.
        memory_bytes: [n] what each takes on an accelerator.
        transfer_s: [n] time to move its output between an accelerator and the CPUs' memory, whoever reads it; 0
            without readers.
        output_bytes: [n] size of that output; 0 without readers.
        supported: [n] whether it can be placed on an accelerator.
        backward: [n] whether it belongs to the backward pass; an inference graph has none that do.
        classes: [n] nodes of one class must share a device; a node that may stand alone has a class of its own.
        edges: [e, 2] positions of producer and consumer, in ascending order, each pair once.
        accelerators: how many there are (K).
        cpus: how many there are (ℓ).
        accelerator_bytes: memory of one accelerator.
        meta: where the graph comes from.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]
    accelerator_s: FloatArray
    cpu_s: FloatArray
    memory_bytes: FloatArray
    transfer_s: FloatArray
    output_bytes: FloatArray
    supported: BoolArray
    backward: BoolArray
    classes: IntArray
    edges: IntArray
    accelerators: int
    cpus: int
    accelerator_bytes: float
    meta: Mapping[str, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_training(self) -> bool:
        """Whether the graph has a backward pass."""
        return bool(self.backward.any())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over ids, times, sizes, kinds and edges: a plan belongs to exactly these."""
        digest = hashlib.sha256(np.array(self.ids, dtype=np.int64).tobytes())
        for times in (self.accelerator_s, self.cpu_s, self.memory_bytes, self.transfer_s):
            digest.update(np.ascontiguousarray(times, dtype=np.float64).tobytes())
        for kinds in (self.supported, self.backward, self.classes, self.edges):
            digest.update(np.ascontiguousarray(kinds, dtype=np.int64).tobytes())
        return digest.hexdigest()

    def successors(self) -> list[list[int]]:
        """[n] positions of each node's consumers, ascending."""
        consumers: list[list[int]] = [[] for _ in self.ids]
        for producer, consumer in self.edges.tolist():
            consumers[producer].append(consumer)
        return consumers
