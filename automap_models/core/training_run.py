"""What a whole training takes: days, hours of devices, money; and what failures of devices take of it.

    | τ seconds of steps | δ of a checkpoint | τ | δ | τ  ✗ failure: R until it goes on from the last checkpoint | τ …

Devices fail independently of one another, M seconds apart in the mean on all of them together. A part that began at a
checkpoint has to come to the next one without a failure, which takes (Daly, 2006, equation 20)

    M · e^(R / M) · (e^((τ + δ) / M) - 1)    in the mean, for τ seconds of steps

and least where τ is about √(2 · δ · M) (Young, 1974).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from automap_models.errors import BadInput


class TrainingRun(NamedTuple):
    """What training on so many tokens takes.

    Attributes:
        tokens: all of them.
        days: of steps, and of what failures take.
        device_hours: of all devices together.
        cost: in the currency that a device's hour is priced in; None where nobody says.
        goodput: share of the days that are steps which are not repeated.
        checkpoint_every_s: seconds of steps between two checkpoints that are best; None without failures.
        in_time: whether the days are no more than those of the deadline; None where there is none.
        in_budget: whether the cost is no more than it may be; None where it may be any.
    """

    tokens: float
    days: float
    device_hours: float
    cost: float | None
    goodput: float
    checkpoint_every_s: float | None
    in_time: bool | None
    in_budget: bool | None


@dataclass(frozen=True, kw_only=True)
class TrainingGoal:
    """What is to be trained, until when, and what interrupts it.

    Attributes:
        tokens: all of them.
        gpu_hour: what a device costs an hour, in any currency, or by kind; None where nobody asks.
        deadline: seconds that training may take; None is any number.
        max_cost: most that training may cost, in that currency; None is any amount.
        mtbf: seconds between two failures of one device in the mean; None is without failures.
        checkpoint: seconds in which training stands still for a checkpoint.
        restart: seconds from a failure until training goes on.

    Raises:
        BadInput: a number that is not positive and finite, or one that is given without those it goes with.
    """

    tokens: float
    gpu_hour: float | Mapping[str, float] | None = None
    deadline: float | None = None
    max_cost: float | None = None
    mtbf: float | None = None
    checkpoint: float = 30.0
    restart: float = 300.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            for number in value.values() if isinstance(value, Mapping) else (value,):
                if number is not None and not 0 < number < math.inf:
                    raise BadInput(f"is {number:g}", where=f"`{field.name}`", do="give a positive number")

    @classmethod
    def of_options(cls, options: dict[str, Any]) -> TrainingGoal | None:
        """What options say, by name; None where none is given.

        Raises:
            BadInput: see above.
        """
        for names, wanted in ((options, "tokens"), (set(options) & {"checkpoint", "restart"}, "mtbf")):
            if names and wanted not in options:
                raise BadInput("is of a training that nobody asks for", where=f"`{min(names)}`", do=f"give `{wanted}`")
        return cls(**options) if options else None

    def run(self, tokens_per_s: float, devices: int) -> TrainingRun:
        """What it takes on so many devices, which have one price.

        Args:
            tokens_per_s: of all of them.
            devices: how many.

        Raises:
            BadInput: devices fail before they come to a checkpoint.
        """
        share, interval_s = 1.0, None
        if self.mtbf is not None:
            share, interval_s = goodput(self.mtbf / devices, self.checkpoint, self.restart)
        if not share:
            what = f"is so short that {devices} devices never come to a checkpoint"
            raise BadInput(what, where="`mtbf`", do="give the time between two failures of one device")
        taken_s = self.tokens / tokens_per_s / share
        hours = taken_s / 3600.0 * devices
        cost = None if self.gpu_hour is None else hours * self.gpu_hour  # type: ignore[operator]
        in_time = None if self.deadline is None else taken_s <= self.deadline
        in_budget = None if self.max_cost is None or cost is None else cost <= self.max_cost
        return TrainingRun(self.tokens, taken_s / 86400.0, hours, cost, share, interval_s, in_time, in_budget)


def goodput(failing_s: float, checkpoint_s: float, restart_s: float) -> tuple[float, float]:
    """The share of time that is steps which are not repeated, and the seconds of them between two checkpoints.

    Args:
        failing_s: M, between two failures in the mean.
        checkpoint_s, restart_s: δ, R.
    """
    interval_s = math.sqrt(2.0 * checkpoint_s * failing_s)
    exponents = restart_s / failing_s, (interval_s + checkpoint_s) / failing_s
    if sum(exponents) > 700.0:  # nothing ever comes to a checkpoint
        return 0.0, interval_s
    return interval_s / (failing_s * math.exp(exponents[0]) * math.expm1(exponents[1])), interval_s
