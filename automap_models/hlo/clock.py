"""Running compiled StableHLO on this machine with random operands, and reading the clock."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

from automap_models.errors import BadInput
from automap_models.hlo.adapter import OneOp, compiled
from automap_models.hlo.operation import Tensor

_LARGEST = 0.1
"""Floats are drawn from [0, this): sums of products stay small, and a second moment must not be negative."""
_INDICES = 1000
"""Integers are drawn below this: token ids, labels; XLA clamps what is out of range. Scalars (counters) are zero."""

_WORDS = {"f": "float", "i": "int", "ui": "uint"}
_NUMPY_NAMES = {f"{short}{bits}": f"{word}{bits}" for short, word in _WORDS.items() for bits in (8, 16, 32, 64)}
_NUMPY_NAMES |= {"i1": "bool", "bf16": "bfloat16", "complex<f32>": "complex64", "complex<f64>": "complex128"}


class Clock:
    """Times modules on jax's default device.

    Args:
        repeats: runs of which the median counts.
        warmup: runs before them.
        seed: of the operands.

    Raises:
        BadInput: a count that makes no sense.
    """

    def __init__(self, repeats: int, warmup: int, seed: int) -> None:
        for name, value, least in (("repeats", repeats, 1), ("warmup", warmup, 0)):
            if value < least:
                raise BadInput(f"{name} is {value}", where="measuring", do=f"give a number ≥ {least}")
        self.repeats, self.warmup = repeats, warmup
        self._rng = np.random.default_rng(seed)
        self._device = jax.local_devices()[0]

    def seconds(self, part: OneOp, needed_bytes: float) -> float | None:
        """Median time of a call, seconds; None where this machine has too little memory free or cannot run it.

        Args:
            part: the module.
            needed_bytes: memory that running it takes.
        """
        if needed_bytes > self.free_bytes() or any(kind.dtype not in _NUMPY_NAMES for kind in part.operands):
            return None
        try:
            run = compiled(part)
            operands = self._draw(part.operands)
            taken = [self._one_run(run, operands) for _ in range(self.warmup + self.repeats)]
        except jax.errors.JaxRuntimeError:  # a custom call that this platform has not, or the memory ran out after all
            return None
        return median(taken[self.warmup :])

    def free_bytes(self) -> float:
        """Memory that the device can still give."""
        stats = self._device.memory_stats()
        if stats and "bytes_limit" in stats:
            return float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
        return _free_host_bytes()

    @staticmethod
    def _one_run(run: Any, operands: list[Any]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(run(operands))  # type: ignore[no-untyped-call]
        return time.perf_counter() - start

    def _draw(self, kinds: Sequence[Tensor]) -> list[Any]:
        with jax.enable_x64(True):
            return [jax.device_put(self._array(kind), self._device) for kind in kinds]

    def _array(self, kind: Tensor) -> Any:
        if kind.dtype == "i1":
            return self._rng.integers(0, 2, kind.shape).astype(bool)
        dtype = jax.numpy.dtype(_NUMPY_NAMES[kind.dtype])
        if "i" in kind.dtype:
            largest = min(_INDICES, np.iinfo(dtype).max) if kind.shape else 1
            return self._rng.integers(0, largest, kind.shape).astype(dtype)
        return (self._rng.random(kind.shape, np.float32) * np.float32(_LARGEST)).astype(dtype)


def _free_host_bytes() -> float:
    """Linux tells what can be had without swapping; elsewhere half of the machine's memory is taken to be free."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        if "MemAvailable" in fields:
            return float(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
