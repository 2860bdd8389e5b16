"""A job that runs: the devices its plan runs on, what was measured of it, and the problem of planning it again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput

Unit = Literal["stage", "device"]
Attribution = Literal["instructions", "devices", "either"]
"""What a time is put down to by which all devices of a stage deviate alike; see planners.replan.speeds."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Times of one micro-batch, measured on a running job.

    Attributes:
        unit: whether they are those of whole stages or of single devices.
        forward_s, backward_s: stage or device → [samples] of its own part of a micro-batch; the same keys in both.
        where: the file they come from.
    """

    unit: Unit
    forward_s: Mapping[int, FloatArray]
    backward_s: Mapping[int, FloatArray]
    where: str = "observed times"


@dataclass(frozen=True)
class PlacedPlan:
    """A plan with the device at each of its positions, and the devices among them that stand idle.

    Attributes:
        plan: the stages, on positions 0 … D-1.
        device_order: [D] device at each position.
        idle: devices that do not work; they hold nothing.
    """

    plan: StagedPlan
    device_order: tuple[int, ...]
    idle: tuple[int, ...] = ()

    def stage_of_device(self) -> NDArray[np.int64]:
        """[D] the stage that each device belongs to, whether it works or stands idle."""
        bound = (0, *self.plan.device_cuts, len(self.device_order))
        stage = np.empty(len(self.device_order), dtype=np.int64)
        stage[list(self.device_order)] = np.repeat(np.arange(self.plan.stages), np.diff(bound))
        return stage

    def working(self) -> NDArray[np.bool_]:
        """[D] whether each device works."""
        works = np.ones(len(self.device_order), dtype=np.bool_)
        works[list(self.idle)] = False
        return works

    def idle_positions(self) -> tuple[int, ...]:
        """Positions whose devices stand idle, ascending."""
        return tuple(sorted(self.device_order.index(device) for device in self.idle))

    def check_valid(self, problem: StagedProblem) -> tuple[bool, str]:
        """Whether this is a plan of that problem on the devices of its cluster, and if not, why not."""
        valid, reason = self.plan.check_valid(problem)
        if not valid:
            return False, reason
        if sorted(self.device_order) != list(range(problem.cluster.devices)):
            return False, f"the device order does not name the devices 0 to {problem.cluster.devices - 1} once each"
        kinds = problem.cluster.group_of
        if (kinds[list(self.device_order)] != kinds).any():
            return False, "the device order puts devices of a group of nodes at positions of another group"
        if not set(self.idle) <= set(self.device_order):
            return False, f"idle devices {list(self.idle)} are not all among 0 to {problem.cluster.devices - 1}"
        if set(self.stage_of_device()[self.working()].tolist()) != set(range(self.plan.stages)):
            return False, "the idle devices leave a stage without a device that works"
        return True, ""


@dataclass(frozen=True, eq=False)
class ReplanProblem:
    """Whether a running job had better go on by another plan.

    Attributes:
        staged: the problem that the running plan solves, with the profile that it was made for.
        running: the plan that runs, with its devices.
        observed: its measured times.
        attribution: what a deviation common to a stage's devices is due to; None is as the profile's past suggests.
        known_slowdown: [D] time of each device over that of a healthy one, as known before; None where nothing is.
        restart_s: seconds that a migration takes beside moving bytes.

    Raises:
        BadInput: the running plan is none of that problem, or a number is out of range.
    """

    staged: StagedProblem
    running: PlacedPlan
    observed: Observed
    attribution: Attribution | None = None
    known_slowdown: FloatArray | None = None
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        valid, reason = self.running.check_valid(self.staged)
        if not valid:
            raise BadInput(reason, where="the running plan", do="give the plan with its own profile and cluster")
        sharded = [s for s, sharding in enumerate(self.running.plan.shardings) if sharding]
        if sharded:
            what = f"stage {sharded[0]} shares its operators among devices"
            raise BadInput(what, where="the running plan", do="give a plan whose stages are replicated")
        if not 0 <= self.restart_s < math.inf:
            raise BadInput(f"{self.restart_s:g} seconds", where="`restart_s`", do="give 0 or more")
        slow, devices = self.known_slowdown, self.staged.cluster.devices
        if slow is not None and not (slow.shape == (devices,) and (np.isfinite(slow) & (slow > 0)).all()):
            raise BadInput("are no positive numbers, one a device", where="known slowdowns", do=f"give {devices}")
