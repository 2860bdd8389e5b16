"""The largest and smallest numbers that a profile or a cluster may hold (docs/reference/files.md).

They are far beyond every model and every machine, and far enough from the range of a float that no sum, product or
ratio of them overflows.
"""

from __future__ import annotations

LARGEST_S = 1e9
"""Of an instruction's time, and of a whole micro-batch's: thirty years."""
SMALLEST_STEP_S = 1e-12
"""Of a whole micro-batch's time: a picosecond."""
LARGEST_BYTES = 1e18
"""Of an instruction's bytes, of a model's parameters or stash in all, of a device's memory, and of a bandwidth per
second."""
SMALLEST_RATE = 1e-6
"""Of a bandwidth in bytes per second, and of a device's memory in bytes."""
MAX_INSTRUCTIONS = 1_000_000
"""Of a profile: the arrays and the names of so many take some hundred megabytes."""
