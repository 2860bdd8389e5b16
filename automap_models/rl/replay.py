"""Proportional prioritised experience replay (Schaul et al. 2016).

Rows are found by running sums of all masses, priority^α: of the ten thousands of rows that replays hold here, these
take less time than a sum tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Items = dict[str, NDArray[Any]]


class PrioritisedReplay:
    """A ring of items, each a row in a few parallel arrays, drawn in proportion to priority^α.

    Args:
        like: one item per array: its shape and dtype.
        alpha: 0 draws uniformly, 1 in proportion to the priority.
        beta: exponent of the importance weights (N·P(i))^-β.
    """

    def __init__(self, capacity: int, like: Mapping[str, NDArray[Any]], alpha: float, beta: float) -> None:
        self.capacity, self.alpha, self.beta = capacity, alpha, beta
        self.items: Items = {
            name: np.zeros((capacity, *np.shape(item)), dtype=np.asarray(item).dtype) for name, item in like.items()
        }
        self.mass = np.zeros(capacity, dtype=np.float64)
        self.added = 0
        self.largest = 1.0

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, items: Mapping[str, NDArray[Any]]) -> None:
        """Add B rows with the largest priority so far, so that each is seen soon; the oldest make room."""
        rows = len(next(iter(items.values())))
        index = (self.added + np.arange(rows)) % self.capacity
        for name, array in self.items.items():
            array[index] = items[name]
        self.mass[index] = self.largest**self.alpha
        self.added += rows

    def sample(self, batch: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], Items, NDArray[np.float64]]:
        """Draw with replacement, stratified over the total mass.

        Returns:
            [batch] indices, the rows, and [batch] importance weights scaled to a maximum of 1.
        """
        running = np.cumsum(self.mass)
        drawn = (np.arange(batch) + rng.random(batch)) * (running[-1] / batch)
        index = np.searchsorted(running, np.minimum(drawn, np.nextafter(running[-1], 0)), side="right")
        probability = self.mass[index] / running[-1]
        weights = (len(self) * probability) ** -self.beta
        return index, {name: array[index] for name, array in self.items.items()}, weights / weights.max()

    def update(self, index: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Set the priorities of drawn items to their new absolute errors."""
        priorities = np.maximum(priorities, 1e-6)
        self.largest = max(self.largest, float(priorities.max()))
        self.mass[index] = priorities**self.alpha

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped, as tensors (a checkpoint is read with weights_only)."""
        size = len(self)
        return {
            "items": {name: torch.from_numpy(array[:size].copy()) for name, array in self.items.items()},
            "priorities": torch.from_numpy(self.mass[:size].copy()),
            "added": self.added,
            "largest": self.largest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.added, self.largest = int(state["added"]), float(state["largest"])
        size = len(self)
        for name, array in state["items"].items():
            self.items[name][:size] = np.asarray(array)
        self.mass[:] = 0.0
        self.mass[:size] = np.asarray(state["priorities"])
