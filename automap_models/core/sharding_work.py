"""What a training step computes, sums and keeps, by the classes of dimensions that a sharding plan may divide."""

from __future__ import annotations

from dataclasses import dataclass

from automap_models.core.instruction_graph import FloatArray


@dataclass(frozen=True, eq=False)
class ShardingWork:
    """Sums over a step's instructions and values, enough to price every legal choice of classes on up to two axes.

    Along one axis, an instruction (a value) has at most one sharded class, since two would conflict. So what k classes
    divide is told by sums over the instructions with class i (the diagonal) and with both i and j: float64 [k, k].

    Attributes:
        compute_s: time of all instructions on one device, without launches.
        launch_s: their launches, which nothing divides.
        compute: seconds of the instructions with classes i and j.
        held_bytes: what a device keeps for a step without sharding: arguments, gradients, activations for the backward
            pass.
        held: bytes of those values that have dimensions of classes i and j.
        activation_sums: bytes of the results that are summed over class i and read by further layers; off the
            diagonal, of those with a dimension of class j. One all-reduce each where class i is sharded.
        gradient_sums: the same of results that only the update of the parameters reads.
        starts: [k] how many results `activation_sums` counts.
    """

    compute_s: float
    launch_s: float
    compute: FloatArray
    held_bytes: float
    held: FloatArray
    activation_sums: FloatArray
    gradient_sums: FloatArray
    starts: FloatArray

    def __len__(self) -> int:
        return int(self.starts.size)
