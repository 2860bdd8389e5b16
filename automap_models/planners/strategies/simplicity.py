"""What makes a strategy harder to run than data parallelism alone, and how much shorter it has to be for that.

Each of STEPS asks for a step that is `min_gain` shorter, so that strategies compare by one number:

    charged_s = step · (1 - min_gain) ^ -(steps of difficulty)
"""

from __future__ import annotations

from collections.abc import Mapping

from automap_models.core.schedules import DEFAULT_MIN_GAIN
from automap_models.core.strategy import Strategy

TENSOR, CONTEXT, PIPELINE = "tensor parallelism", "context parallelism", "a pipeline"
SPLIT, UNEQUAL, PARTIAL = "a backward pass in two parts", "unequal layers", "partial recomputation"
PARALLEL: Mapping[str, str] = {"tp": TENSOR, "cp": CONTEXT, "pp": PIPELINE}
"""Degree of a strategy → what it is harder by where that is more than 1."""
STEPS = frozenset({*PARALLEL.values(), SPLIT, UNEQUAL, PARTIAL})
SPLITTING = frozenset({"zb-h1", "zb-h2", "zb-v", "dualpipev"})
"""Schedules whose ranks have gradients of inputs and of weights in passes of their own."""


def steps_of(strategy: Strategy) -> frozenset[str]:
    """Which of STEPS a strategy takes."""
    s = strategy
    taken = {name: getattr(s, degree) > 1 for degree, name in PARALLEL.items()}
    taken[SPLIT] = s.stages > 1 and s.schedule in SPLITTING
    taken[UNEQUAL] = s.layers is not None and len(set(s.layers)) > 1
    taken[PARTIAL] = s.recompute_blocks is not None or isinstance(s.recompute, tuple)
    return frozenset(name for name, does in taken.items() if does)


def charged_s(step_s: float, steps: int, min_gain: float = DEFAULT_MIN_GAIN) -> float:
    """By what strategies compare: seconds of a step, as much longer as they have to be shorter."""
    return step_s / (1.0 - min_gain) ** steps
