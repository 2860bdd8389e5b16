"""A pipeline plan: where the model is cut and which devices each stage gets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from automap_models.core.problem import PipelineProblem

Outcome = Literal["planned", "does not fit", "discarded", "proven"]
"""How far a planner got with one of several problems; see `Tried`."""


@dataclass(frozen=True)
class Optimality:
    """What is proven about the best length of plans that cut on the grid.

    `bound_s` is that optimum itself ("exact") or a lower bound of it. A plan off the grid may be shorter.
    """

    bound_s: float
    proof: Literal["exact", "relaxation"]


@dataclass(frozen=True)
class Tried:
    """One number of stages and micro-batches among which a planner chose.

    Attributes:
        stages, micro_batches: S and M.
        microbatch_size: samples in a micro-batch; None where the profile does not say.
        planner: who made its best plan on the grid; None where there is none.
        length_s: length L of that plan, seconds.
        bound_s: no plan of it on the grid is shorter; None where no plan fits.
        outcome: `planned`, `does not fit`, or that it is out of the question that it has a shorter plan on the grid
            than the best of all: `discarded` by a relaxation, `proven` by the exact search.
        chosen: whether it is the one whose plan was returned.
    """

    stages: int
    micro_batches: int
    microbatch_size: int | None
    planner: str | None
    length_s: float | None
    bound_s: float | None
    outcome: Outcome
    chosen: bool


@dataclass(frozen=True)
class PipelinePlan:
    """The decision, apart from what it costs (cost.pipeline says that).

    Attributes:
        cuts: last instruction of each stage but the last, [S-1], increasing.
        device_cuts: first device of each stage but the first, [S-1], increasing.
        micro_batches: micro-batches in a global batch.
        planner: who made it.
        coarse_cuts: the cuts as points of the grid; None when they are not on it.
        optimality: what the planner could prove, if anything.
    """

    cuts: tuple[int, ...]
    device_cuts: tuple[int, ...]
    micro_batches: int
    planner: str
    coarse_cuts: tuple[int, ...] | None = None
    optimality: Optimality | None = None

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return len(self.cuts) + 1

    def stage_instructions(self, n: int) -> tuple[tuple[int, int], ...]:
        """First and last instruction of each stage of a model with n instructions."""
        last = (*self.cuts, n - 1)
        first = (0, *(cut + 1 for cut in self.cuts))
        return tuple(zip(first, last, strict=True))

    def stage_devices(self, devices: int) -> tuple[tuple[int, int], ...]:
        """First and last device of each stage on a cluster of that many devices."""
        first = (0, *self.device_cuts)
        last = (*(cut - 1 for cut in self.device_cuts), devices - 1)
        return tuple(zip(first, last, strict=True))

    def check_valid(self, problem: PipelineProblem) -> tuple[bool, str]:
        """Whether this plan solves that problem's structure, and if not, why not.

        Memory is the cost model's business: a valid plan may still not fit.
        """
        n, devices = len(problem.profile), problem.cluster.devices
        increasing_cuts = all(a < b for a, b in pairwise((-1, *self.cuts, n - 1)))
        increasing_devices = all(a < b for a, b in pairwise((0, *self.device_cuts, devices)))
        off_grid = self.coarse_cuts is not None and self.coarse_cuts != problem.grid.to_points(self.cuts)
        objections = (
            (
                len(self.device_cuts) != len(self.cuts),
                f"{len(self.cuts)} instruction cut(s) but {len(self.device_cuts)} device cut(s)",
            ),
            (self.stages != problem.stages, f"{self.stages} stages instead of {problem.stages}"),
            (
                self.micro_batches != problem.micro_batches,
                f"{self.micro_batches} micro-batches instead of {problem.micro_batches}",
            ),
            (not increasing_cuts, f"instruction cuts {list(self.cuts)} do not increase inside 0..{n - 2}"),
            (not increasing_devices, f"device cuts {list(self.device_cuts)} do not increase inside 1..{devices - 1}"),
            (off_grid, f"coarse cuts {list(self.coarse_cuts or ())} do not stand for cuts {list(self.cuts)}"),
        )
        return next(((False, why) for wrong, why in objections if wrong), (True, ""))
