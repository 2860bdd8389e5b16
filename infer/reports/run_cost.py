"""What a whole training takes, as people and programs read it: on the cluster, and on clusters of other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from automap_models.core.estimate import Estimate
from automap_models.core.training_run import TrainingRun
from automap_models.core.units import percent, token_count
from automap_models.errors import Infeasible
from automap_models.requests import PlanRequest, StrategyRequest

from .text import Column, Table


def run_of(request: PlanRequest, estimate: Estimate) -> TrainingRun | None:
    """What the training that is asked for takes by a strategy; None where none is. What an hour costs the cluster says
    where the goal does not."""
    if not isinstance(request, StrategyRequest) or request.goal is None:
        return None
    goal = replace(request.goal, gpu_hour=request.goal.gpu_hour or request.cluster.gpu_hour)
    return goal.run(estimate.tokens_per_s, estimate.strategy.devices)


def run_facts(request: PlanRequest, estimate: Estimate, sizes: Sequence[Estimate] = ()) -> Iterator[tuple[str, str]]:
    """Labels and sentences: what it takes, what failures take of it, and who meets the deadline.

    Args:
        estimate: of the strategy.
        sizes: of the best strategies on clusters of other sizes.
    """
    run = run_of(request, estimate)
    if run is None:
        return
    cost = "" if run.cost is None else f", {run.cost:,.0f} at {run.cost / run.device_hours:g} an hour"
    took = f"{run.days:,.3g} days, {run.device_hours:,.0f} hours of a device{cost}"
    yield "training run", f"{token_count(run.tokens)} tokens take {took}"
    if run.checkpoint_every_s is not None:
        lost = f"{percent(1.0 - run.goodput)} of them go into failures and checkpoints"
        yield "failures", f"{lost}, with one every {run.checkpoint_every_s / 60.0:.3g} min"
    if run.in_time is not None:
        alone = "met" if run.in_time else "missed: more devices may meet it (--devices 64..1024 tries their numbers)"
        yield "deadline", _cheapest(request, sizes) if sizes else alone


def _cheapest(request: PlanRequest, sizes: Sequence[Estimate]) -> str:
    """Which size meets the deadline for the least."""
    runs = {one.strategy.devices: run_of(request, one) for one in sizes}
    in_time = {devices: run for devices, run in runs.items() if run is not None and run.in_time}
    if not in_time:
        return "missed by all of these numbers of devices"
    devices = min(in_time, key=lambda count: in_time[count].device_hours)
    return f"met for the least by {devices} devices, in {in_time[devices].days:,.3g} days"


def exit_code(request: PlanRequest, estimates: Sequence[Estimate]) -> int:
    """That of a plan that does not fit where none of several meets the deadline, else 0."""
    runs = [run for run in (run_of(request, estimate) for estimate in estimates) if run is not None]
    missed = bool(runs) and all(run.in_time is False for run in runs)
    return Infeasible.exit_code if missed else 0


def run_document(request: PlanRequest, estimate: Estimate) -> dict[str, Any]:
    """The same as plain JSON types, under a key of its own."""
    run = run_of(request, estimate)
    return {} if run is None else {"training_run": run._asdict()}


def runs_table(request: PlanRequest, sizes: Sequence[Estimate]) -> Table | None:
    """One row a size of the cluster; None where no training is asked for."""
    runs = [run for run in (run_of(request, estimate) for estimate in sizes) if run is not None]
    if not runs:
        return None
    columns = {
        "devices": [str(estimate.strategy.devices) for estimate in sizes],
        "days": [f"{run.days:,.3g}" for run in runs],
        "hours of a device": [f"{run.device_hours:,.0f}" for run in runs],
    }
    if runs[0].cost is not None:
        columns["cost"] = [f"{run.cost or 0.0:,.0f}" for run in runs]
    if runs[0].in_time is not None:
        columns["deadline"] = ["met" if run.in_time else "missed" for run in runs]
    return Table([Column(heading, cells) for heading, cells in columns.items()])
