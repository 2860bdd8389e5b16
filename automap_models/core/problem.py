"""What a planner is asked: this profile on that cluster, in so many stages and micro-batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from automap_models.core.cluster import Cluster
from automap_models.core.coarsen import DEFAULT_GRANULARITY, Grid
from automap_models.core.profile import Profile
from automap_models.errors import BadInput

DEFAULT_MICRO_BATCHES = 16
DEFAULT_STATE_FACTOR = 4.0

MAX_MICRO_BATCHES = 1_000_000_000
MAX_GRANULARITY = 65_536
"""Beyond these nobody plans: numbers so large are mistakes, and would exhaust memory or the range of a float."""


@dataclass(frozen=True, eq=False)
class PipelineProblem:
    """A pipeline planning problem.

    Attributes:
        profile: the model's training step, for one micro-batch.
        cluster: where it shall run.
        stages: number of stages S; 1 is plain data parallelism.
        micro_batches: micro-batches M in a global batch.
        state_factor: σ, bytes of training state per byte of parameters (cost-model, "Memory").
        granularity: number of cut points the instructions are coarsened to.

    Raises:
        BadInput: S, M or σ out of range for this profile and cluster.
    """

    profile: Profile
    cluster: Cluster
    stages: int
    micro_batches: int = DEFAULT_MICRO_BATCHES
    state_factor: float = DEFAULT_STATE_FACTOR
    granularity: int = DEFAULT_GRANULARITY

    def __post_init__(self) -> None:
        if not 1 <= self.micro_batches <= MAX_MICRO_BATCHES:
            do = f"give 1 to {MAX_MICRO_BATCHES:,}"
            raise BadInput(f"{self.micro_batches} micro-batches", where="--micro-batches", do=do)
        if not (math.isfinite(self.state_factor) and self.state_factor > 0):
            raise BadInput(f"state factor {self.state_factor}", where="--state-factor", do="give a positive number")
        if not 2 <= self.granularity <= MAX_GRANULARITY:
            do = f"give 2 to {MAX_GRANULARITY:,}"
            raise BadInput(f"granularity {self.granularity}", where="--granularity", do=do)
        if self.stages < 1:
            raise BadInput(f"{self.stages} stages", where="--stages", do="give at least 1")
        if self.stages > self.cluster.devices:
            raise BadInput(
                f"{self.stages} stages on the {self.cluster.devices} device(s) of cluster {self.cluster.name}",
                where="--stages",
                do=f"a stage needs a device of its own: give at most {self.cluster.devices}",
            )
        cut_points = self.grid.cut_points.size
        if self.stages - 1 > cut_points:
            raise BadInput(
                f"{self.stages} stages, but the profile can be cut in {cut_points} place(s)",
                where="--stages",
                do=f"give at most {cut_points + 1}",
            )

    @property
    def grid(self) -> Grid:
        """The coarse grid on this profile."""
        return Grid(len(self.profile), self.granularity)
