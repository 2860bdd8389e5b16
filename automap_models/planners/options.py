"""What can be asked of a plan, in one record for each way of planning: the commands and Python's functions fill them.

`None` is what is left open where the default depends on something else. Importing this module imports no numpy, so that
a command's help is fast.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models.core.schedules import DEFAULT_MIN_STAGE, DEFAULT_SCHEDULE, require_gain, require_schedule
from automap_models.errors import BadInput, is_of_type

if TYPE_CHECKING:
    from automap_models.core.cluster import Cluster
    from automap_models.core.constraints import Constraints, Technique
    from automap_models.core.framework import StageLimits
    from automap_models.core.staged import StagedPlan
    from automap_models.planners.base import Planner

AUTO = "auto"
"""In place of a number of stages or micro-batches: choose it. Also the planner that may."""
OBJECTIVES = ("step", "length")
"""What a plan shall make small: the step under its schedule, as it runs, or Auto-MAP's length L."""
DEFAULT_OBJECTIVE = "step"
COMPETING = ("1f1b", "gpipe")
"""The schedules that compete where none is asked for: those that every framework with pipelines runs."""
_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(
        ("state_factor", "certify_s", "refine_s", "memory_bytes", "budget_s", "min_stage"), (Real, "a number")
    ),
    **dict.fromkeys(("equal_replicas", "thorough"), (bool, "True or False")),
    **dict.fromkeys(("pins", "together", "forbidden"), (Iterable, "a text or several")),
    "cut_at": (str, "a pattern of layers, or 'blocks'"),
    "policy": ((str, os.PathLike), "the path of a file"),
}
"""Option → its type, and in words. Whole numbers, names and gains are held against what they may be instead."""


@dataclass(frozen=True)
class StageOptions:
    """What is asked of plans of stages, one or several.

    Attributes:
        global_batch: samples between two updates; None is 16 micro-batches of the profiled size.
        state_factor: bytes of training state a byte of parameters.
        schedule: under which the step runs; None is the best of COMPETING.
        objective: one of OBJECTIVES.
        min_gain: how much shorter, relatively, the step of a harder kind of plan has to be; None is 0.02.
        equal_replicas: whether every stage gets equally many devices.
        cut_at: pattern of the layers after which the model may be cut, or "blocks"; None is anywhere.
        min_stage: share of an even share of the work that a stage holds at least; None is 0.25, with the objective
            "length" 0.
        target: what the framework asks that is planned for; its schedules are in place of COMPETING.

    Raises:
        BadInput: a value that cannot be meant.
    """

    global_batch: int | None = None
    state_factor: float | None = None
    schedule: str | None = None
    objective: str = DEFAULT_OBJECTIVE
    min_gain: float | None = None
    equal_replicas: bool = False
    cut_at: str | None = None
    min_stage: float | None = None
    target: StageLimits | None = None

    def __post_init__(self) -> None:
        _require_types(self)
        _set_whole(self, "global_batch")
        if self.objective not in OBJECTIVES:
            do = f"choose from {', '.join(OBJECTIVES)}"
            raise BadInput(f"unknown objective {self.objective!r}", where="`objective`", do=do)
        if self.schedule is not None:
            require_schedule(self.schedule)
        if self.min_gain is not None:
            require_gain(self.min_gain)
        for name in ("min_gain", "min_stage"):
            if self.objective == "length" and getattr(self, name) is not None:
                raise BadInput("is about the step", where=f"`{name}`", do="leave it out, or take the step as objective")

    @property
    def step_schedule(self) -> str | None:
        """The schedule whose step counts; None with the objective "length"."""
        return None if self.objective == "length" else self.schedule or DEFAULT_SCHEDULE

    @property
    def schedules(self) -> tuple[str, ...]:
        """Those that compete: the one that was asked for, or else those that the target or any framework runs."""
        if self.objective == "length":
            return ()
        return (self.schedule,) if self.schedule else COMPETING if self.target is None else self.target.schedules

    @property
    def constraints(self) -> Constraints:
        """What every plan must satisfy."""
        from automap_models.core.constraints import Constraints

        default = 0.0 if self.objective == "length" else DEFAULT_MIN_STAGE
        least = default if self.min_stage is None else self.min_stage
        return Constraints(equal_replicas=self.equal_replicas, cut_at=self.cut_at, min_stage=least, target=self.target)


@dataclass(frozen=True)
class PlanOptions(StageOptions):
    """One plan of pipeline stages: `automap infer`, `automap_models.infer`.

    By the objective "length" the schedule is only drawn.

    Attributes:
        stages: S; None or "auto" is the best number. With the objective "length" None is one stage a node, or one stage
            where that is shorter.
        micro_batches: M; "auto" is the best divisor of the global batch. None is the same where there is one, else 16;
            with the objective "length" it is what the global batch makes of the profiled micro-batch.
        microbatch_size: samples in the profiled micro-batch of a profile that does not say.
        granularity: points at which the model may be cut.
        planner: who plans, by name.
        beam: first cuts of the policy to go on from.
        policy: an exported policy in place of the shipped one.
        certify_s, refine_s: how long the proof and the refinement may take, seconds; 0 leaves them out.

    Raises:
        BadInput: a value that cannot be meant, or one that the planner does not read.
    """

    stages: int | str | None = None
    micro_batches: int | str | None = None
    microbatch_size: int | None = None
    granularity: int | None = None
    planner: str = AUTO
    beam: int | None = None
    policy: Path | str | None = None
    certify_s: float | None = None
    refine_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("stages", "micro_batches"):
            number = getattr(self, name)
            if number != AUTO:
                _set_whole(self, name, " or 'auto'")
            elif self.planner != AUTO:
                where, do = f"`{name}='auto'`", "give a number, or leave `planner` out"
                raise BadInput(f"planner {self.planner} does not choose", where=where, do=do)
        for name in ("microbatch_size", "granularity", "beam"):
            _set_whole(self, name)
        if self.beam is not None and self.beam < 1:
            raise BadInput(f"a beam of {self.beam}", where="`beam`", do="give at least 1")
        for name in ("certify_s", "refine_s"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds >= 0:
                raise BadInput(f"{seconds:g} seconds", where=f"`{name}`", do="give 0 or more")
        self._require_read()
        _ = self.constraints  # raises what is wrong with them

    def _require_read(self) -> None:
        """Refuse options that the planner does not read."""
        planner = self.planner
        if planner == "data-parallel" and self.stages not in (None, 1):
            what = f"data parallelism has one stage, not {self.stages}"
            raise BadInput(what, where="`stages`", do="leave it out")
        unread: dict[str, str] = {}
        if planner not in (AUTO, "policy"):
            unread |= dict.fromkeys(("policy", "beam"), f"planner {planner} uses none")
        if planner == AUTO and self.objective == "step":
            reason = "the default planner asks no policy for plans by the step"
            unread |= dict.fromkeys(("policy", "beam"), f"{reason}: give `planner='policy'`, or `objective='length'`")
        if planner != AUTO and self.refine_s:
            unread["refine_s"] = f"planner {planner} is not refined"
        if planner != AUTO:
            unread["min_gain"] = f"planner {planner} takes the stages that it is given"
        if planner == "data-parallel":
            unread["certify_s"] = f"a plan of planner {planner} needs no proof"
        for name, reason in unread.items():
            if getattr(self, name) is not None:
                raise BadInput(reason, where=f"`{name}`", do="leave it out")

    def make_planner(self, name: str | None = None) -> Planner[Any, StagedPlan, Any]:
        """The planner asked for, or another one, with the options that are given and that it has.

        Raises:
            BadInput: there is no such planner, or its policy file cannot be read.
        """
        from automap_models.planners.registry import config_names, make_planner, planner_names

        name = self.planner if name is None else name
        if name not in planner_names("staged"):
            do = f"choose from {', '.join(planner_names('staged'))}"
            raise BadInput(f"unknown planner {name!r}", where="`planner`", do=do)
        config = given(self, "policy", "beam", "certify_s", "refine_s", "min_gain")
        if "policy" in config:
            config["policy"] = Path(config["policy"])
        accepted = config_names(name)
        accepted_values = {option: value for option, value in config.items() if option in accepted}
        planner: Planner[Any, StagedPlan, Any] = make_planner(name, **accepted_values)
        return planner


@dataclass(frozen=True)
class ExploreOptions(StageOptions):
    """The best plan of every kind: `automap plan`, `automap_models.plan`.

    Attributes:
        pins: layers with the stage that each shall run in, as "layer=stage".
        together: patterns of layers that no cut may part.
        max_stages: of the deepest pipeline.
        memory_bytes: of a device that plans may use; None is all.
        forbidden: kinds of parallelism: "data", "operator", "pipeline".
        budget_s: counted seconds (planners.effort) of the exact search.
        thorough: whether everything is searched to the end.

    Raises:
        BadInput: a value that cannot be meant.
    """

    pins: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    max_stages: int | None = None
    memory_bytes: float | None = None
    forbidden: tuple[Technique, ...] = ()
    budget_s: float | None = None
    thorough: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "length" and self.schedule is not None:
            raise BadInput("is not that of a length", where="`schedule`", do="leave it out, or take the step")
        _set_whole(self, "max_stages")
        for name in ("pins", "together", "forbidden"):  # one of them, or several in any collection
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        for name in ("memory_bytes", "budget_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadInput(f"is {value!r}", where=f"`{name}`", do="give a positive number")
        _ = self.constraints  # raises what is wrong with them

    @property
    def constraints(self) -> Constraints:
        """What every plan must satisfy.

        Raises:
            BadInput: a pin that is none, or a kind of parallelism that does not exist.
        """
        from automap_models.core.constraints import Pin

        pins, forbidden = tuple(map(Pin.parse, self.pins)), frozenset(self.forbidden)
        return replace(
            super().constraints, pins=pins, together=self.together, max_stages=self.max_stages, forbidden=forbidden
        )

    def limited(self, cluster: Cluster) -> Cluster:
        """The cluster, perhaps with less memory.

        Raises:
            BadInput: it has less than that.
        """
        memory_bytes = self.memory_bytes
        if memory_bytes is None:
            return cluster
        most = float(cluster.device_memory.max())
        if memory_bytes > most:
            what = f"{memory_bytes:g} bytes are more than the {most:g} of a device of cluster {cluster.name}"
            raise BadInput(what, where="`memory_bytes`", do="give less, or another cluster")
        return cluster.with_memory_at_most(memory_bytes)


def given(arguments: object, *names: str) -> dict[str, Any]:
    """Those of the named arguments, options or fields of a request that are not None."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _require_types(options: object) -> None:
    """Refuse a value that is not of its option's type.

    Raises:
        BadInput: naming the option.
    """
    for name, (kind, words) in _TYPES.items():
        value = getattr(options, name, None)
        if value is not None and not isinstance(value, kind):
            raise BadInput(is_of_type(value), where=f"`{name}`", do=f"give {words}")


def _set_whole(options: object, name: str, other: str = "") -> None:
    """Make a whole number that is given an int, as numpy's integers are none.

    Raises:
        BadInput: it is no whole number, such as the text of one.
    """
    value = getattr(options, name)
    if value is None and getattr(type(options), name) is None:
        return
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise BadInput(f"is {value!r}", where=f"`{name}`", do=f"give a whole number{other}")
    object.__setattr__(options, name, operator.index(value))
