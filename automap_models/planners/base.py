"""The one interface of everything that makes plans: `Planner.solve(problem) -> Result`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Generic, TypeVar

from automap_models.core.result import Result
from automap_models.errors import AutomapError, BadInput


@dataclass(frozen=True)
class Progress:
    """One piece of news.

    Attributes:
        what: what is being done, for people: "searching 3 of 40 combinations of stages and micro-batches".
        done, total: how far it is, in any unit; None where that is unknown.
    """

    what: str
    done: int | None = None
    total: int | None = None


Watch = Callable[[Progress], None]


def SILENT(news: Progress) -> None:
    """The watcher that nobody hears."""


class OutOfTime(Exception):
    """A search was stopped by its deadline.

    Attributes:
        bound_s: no plan that the search was to look at is shorter; 0 when it came to know nothing.
        incumbent: the best plan by then, as the search has it; None where it has none.
    """

    def __init__(self, bound_s: float = 0.0, incumbent: Any = None) -> None:
        super().__init__(f"stopped with a lower bound of {bound_s} s")
        self.bound_s, self.incumbent = bound_s, incumbent


class Deadline:
    """So many seconds from its making on; without a number, never.

    Args:
        budget_s: how many.
        clock: by which; `time.process_time` counts processor time, whatever else the machine does, and
            `effort.counted_s` what searches compute, whatever the machine.
        within: another deadline, which ends this one, too.
    """

    def __init__(
        self,
        budget_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        within: Deadline | None = None,
    ) -> None:
        self._clock, self._within = clock, within
        self._end_s = clock() + budget_s

    def part(self, budget_s: float, clock: Callable[[], float] | None = None) -> Deadline:
        """So many seconds from now on, by the same clock or another, but no longer than this deadline."""
        return Deadline(budget_s, self._clock if clock is None else clock, self)

    @property
    def remaining_s(self) -> float:
        """Seconds until the time is up, by its clock; 0 from then on."""
        own_s = max(self._end_s - self._clock(), 0.0)
        return own_s if self._within is None else min(own_s, self._within.remaining_s)

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self._clock() >= self._end_s or (self._within is not None and self._within.passed)

    def check(self) -> None:
        """Go on, or not.

        Raises:
            OutOfTime: the time is up.
        """
        if self.passed:
            raise OutOfTime


NEVER = Deadline()
"""The deadline that never comes."""


ProblemT = TypeVar("ProblemT")
PlanT = TypeVar("PlanT")
ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class NoConfig:
    """The configuration of a planner that has nothing to configure."""


class Planner(ABC, Generic[ProblemT, PlanT, ConfigT]):
    """Makes a plan for a problem of one kind.

    A planner is made once, with its configuration, and may solve many problems. All its random draws come from a seed
    in that configuration.

    Attributes:
        name: by which people ask for it.
        config_type: a frozen dataclass, all of whose fields have defaults.
    """

    name: ClassVar[str]
    config_type: ClassVar[type[Any]] = NoConfig

    def __init__(self, config: ConfigT | None = None) -> None:
        self.config: ConfigT = self.config_type() if config is None else config

    @abstractmethod
    def solve(self, problem: ProblemT, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> Result[ProblemT, PlanT]:
        """What the planner finds out about the problem. That no plan fits is a result, too, not an error.

        Args:
            problem: of the kind that the planner is made for.
            deadline: when to stop with the best plan so far. A planner looks at it often enough to end within twice
                the time given, or within a tenth of a second.
            watch: is told how far it is.

        Raises:
            BadInput: the planner is not made for such a problem.
        """

    def plan(self, problem: ProblemT) -> PlanT:
        """The planner's best plan: valid, and it fits the memory.

        Raises:
            Infeasible: it found none, and why.
            BadInput: it is not made for such a problem.
        """
        return self.solve(problem).required_plan()

    def out_of_range(self, problem: ProblemT) -> str | None:
        """Which value of the problem lies outside what this planner was made for, as a sentence; None if none does."""
        return None

    def solve_batch(
        self, problems: Sequence[ProblemT], *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> list[Result[ProblemT, PlanT]]:
        """Results for many problems, each as `solve` alone would give it; planners that are faster together override.

        Raises:
            BadInput: the planner is not made for one of them.
        """
        return [self.solve(problem, deadline=deadline, watch=watch) for problem in problems]


_MAKERS = {"auto": "local search", "blocks": "block cuts"}


def maker_in_words(planner: str) -> str:
    """Who made a plan, by the name that the plan has: what `--planner auto` tries has names that the option lacks."""
    return _MAKERS.get(planner, planner)


def solve_all(
    planner: Planner[ProblemT, PlanT, Any], problems: Sequence[ProblemT]
) -> list[Result[ProblemT, PlanT] | AutomapError]:
    """A result for each problem, or the error that it raises; together as far as possible."""
    try:
        return [*planner.solve_batch(problems)]
    except AutomapError:  # one of them is to blame: the others get their plans one by one
        return [_attempt(planner, problem) for problem in problems]


def _attempt(planner: Planner[ProblemT, PlanT, Any], problem: ProblemT) -> Result[ProblemT, PlanT] | AutomapError:
    try:
        return planner.solve(problem)
    except AutomapError as error:
        return error


def config_of(config_type: type[ConfigT], where: str, **options: Any) -> ConfigT:
    """A planner's configuration from options by name.

    Raises:
        BadInput: the configuration has no such option; those that it has are listed.
    """
    inherited = {field.name for base in config_type.__bases__ if is_dataclass(base) for field in fields(base)}
    names = [field.name for field in fields(config_type)]  # type: ignore[arg-type]
    accepted = sorted(names, key=inherited.__contains__)  # what a configuration adds to another one first
    for name in options:
        if name not in accepted:
            raise BadInput(
                f"has no option {name!r}",
                where=where,
                do=f"it has {', '.join(accepted)}" if accepted else "it has none",
            )
    return config_type(**options)
