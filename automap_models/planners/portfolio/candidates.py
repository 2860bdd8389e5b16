"""The problems among which `--stages auto` and `--micro-batches auto` choose: one for every S and M in question."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from automap_models.core.microbatch import rescaled
from automap_models.core.staged import StagedProblem
from automap_models.errors import BadInput

MAX_STAGES = 16
"""Stages of the deepest pipeline that is tried; a number asked for by name may be larger."""
OutOfRange = Callable[[StagedProblem], str | None]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Problems that compete.

    Attributes:
        problems: with few stages first, among those the ones with few micro-batches.
        left_out: how many others a planner is not made for.
        why: a sentence on one of those.
    """

    problems: tuple[StagedProblem, ...]
    left_out: int = 0
    why: str | None = None


def stage_numbers(problem: StagedProblem) -> range:
    """Every S from 1 (plain data parallelism) to as many as devices, cut points and MAX_STAGES allow."""
    return range(1, min(problem.cluster.devices, problem.grid.cut_points.size + 1, MAX_STAGES) + 1)


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def candidates(
    problem: StagedProblem,
    stages: Iterable[int],
    global_batch: int | None = None,
    out_of_range: OutOfRange | None = None,
) -> Candidates:
    """One problem for each number of stages and, with a global batch, each number of micro-batches that divides it.

    A micro-batch needs at least D / S samples: some stage has at least so many replicas, and each needs a sample.

    Args:
        problem: profile, cluster and whatever is the same for all; its M counts where there is no global batch.
        stages: numbers of stages to try.
        global_batch: samples between two updates. A candidate's profile is that of B / M samples (core.microbatch).
        out_of_range: says why a planner is not made for a problem; such candidates are left out, plain data
            parallelism apart, as long as that leaves any with several stages.

    Raises:
        BadInput: the batch is too small for the cluster, or the profile does not say how many samples it describes.
    """
    counts = [problem.micro_batches] if global_batch is None else divisors(global_batch)
    asked = [replace(problem, stages=S, micro_batches=M) for S in sorted(set(stages)) for M in counts]
    if global_batch is not None:
        asked = [p for p in asked if global_batch // p.micro_batches * p.stages >= problem.cluster.devices]
        if not asked:
            raise _too_small(global_batch, problem)
    kept, why = (asked, None) if out_of_range is None else _at_home(asked, out_of_range)
    left_out = len(asked) - len(kept)
    if global_batch is not None:
        profiles = {M: rescaled(problem.profile, global_batch // M) for M in {p.micro_batches for p in kept}}
        kept = [replace(p, profile=profiles[p.micro_batches]) for p in kept]
    return Candidates(tuple(kept), left_out, why if left_out else None)


def _at_home(asked: list[StagedProblem], out_of_range: OutOfRange) -> tuple[list[StagedProblem], str | None]:
    """The problems that the planner is made for, or all where it is for none; and why it is not for the last other."""
    outside = [out_of_range(p) if p.stages > 1 else None for p in asked]
    kept = [p for p, why in zip(asked, outside, strict=True) if why is None]
    whys = [why for why in outside if why is not None]
    return (kept if any(p.stages > 1 for p in kept) else asked), (whys[-1] if whys else None)


def _too_small(global_batch: int, problem: StagedProblem) -> BadInput:
    return BadInput(
        f"{global_batch} samples cannot give each of the {problem.cluster.devices} devices of cluster "
        f"{problem.cluster.name} one at a time in any number of stages asked for",
        where="--global-batch",
        do="give more samples, more stages or a smaller cluster",
    )
