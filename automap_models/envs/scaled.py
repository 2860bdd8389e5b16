"""Problems in units that tell nothing of their size: times over the ideal length ΣC·M / D."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional


class Scaled(NamedTuple):
    """B problems with times in units of the ideal length, stash as a fraction of device memory.

    arrays: [B, 5, P] as in envs.encoding; the rest [B, 1, 1].
    """

    arrays: Tensor
    devices: Tensor
    per_node: Tensor
    ratio: Tensor
    state: Tensor
    stages: Tensor
    micro: Tensor

    def take(self, index: Tensor) -> Scaled:
        """Some of the problems."""
        return Scaled(*(tensor[index] for tensor in self))

    def at(self, points: Tensor) -> Tensor:
        """[B, 5, k] the channels at points, int64 [B, k]; -1 is the start of the model."""
        return functional.pad(self.arrays, (1, 0)).gather(2, (points + 1).unsqueeze(1).expand(-1, 5, -1))

    @property
    def total(self) -> Tensor:
        """[B, 5, 1] the channels at the end of the model."""
        return self.arrays[:, :, -1:]
