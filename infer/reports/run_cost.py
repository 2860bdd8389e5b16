"""What a whole training takes, as people and programs read it: on the cluster, and on others beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import Estimate
from automap_models.core.units import percent, token_count
from automap_models.errors import Infeasible
from automap_models.requests import PlanRequest, StrategyRequest
from automap_models.requests.offers import Choice, run_of

from .text import Column, Table

Sizes = Sequence[tuple[Cluster, Estimate]]
"""Clusters with their best strategies."""


def run_facts(
    request: PlanRequest, cluster: Cluster, estimate: Estimate, sizes: Sizes = ()
) -> Iterator[tuple[str, str]]:
    """Labels and sentences: what it takes, what failures take of it, and who meets the deadline.

    Args:
        cluster, estimate: of the strategy.
        sizes: all that were searched, where there are several.
    """
    run = run_of(request, cluster, estimate)
    if run is None:
        return
    cost = "" if run.cost is None else f", {run.cost:,.0f} at {run.cost / run.device_hours:.4g} an hour"
    took = f"{run.days:,.3g} days, {run.device_hours:,.0f} hours of a device{cost}"
    yield "training run", f"{token_count(run.tokens)} tokens take {took}"
    if run.checkpoint_every_s is not None:
        lost = f"{percent(1.0 - run.goodput)} of them go into failures and checkpoints"
        yield "failures", f"{lost}, with one every {run.checkpoint_every_s / 60.0:.3g} min"
    if run.in_time is not None:
        alone = "met" if run.in_time else "missed: more devices may meet it (--devices 64..1024 tries their numbers)"
        yield "deadline", _cheapest(request, cluster, sizes) if sizes else alone
    if run.in_budget is not None:
        assert isinstance(request, StrategyRequest)
        assert request.goal is not None
        enough = "is enough" if run.in_budget else "is too little"
        yield (
            "budget",
            f"{request.goal.max_cost:,.0f} {enough}{'' if run.in_budget or not sizes else ' for all of these'}",
        )


def _cheapest(request: PlanRequest, chosen: Cluster, sizes: Sizes) -> str:
    """Whether the strategy on the chosen cluster meets the deadline, and which cluster meets it for the least."""
    runs = {cluster: run_of(request, cluster, one) for cluster, one in sizes}
    in_time = {cluster: run for cluster, run in runs.items() if run is not None and run.in_time}
    called = {cluster: cluster.name if _are_of_kinds(sizes) else f"{cluster.devices} devices" for cluster in runs}
    if not in_time:
        return f"missed with {', '.join(called.values())}, which are all that were tried"
    cluster = min(in_time, key=lambda entry: (in_time[entry].cost or 0.0, in_time[entry].device_hours))
    run = in_time[cluster]
    least = "with the fewest hours of a device" if run.cost is None else "at the lowest cost"
    meets = f"{called[cluster]} meet it in {run.days:,.3g} days, {least} of all that were tried"
    if chosen == cluster:
        return meets
    return f"{'met' if chosen in in_time else 'missed'} with {called[chosen]}; {meets}"


def choice_facts(choice: Choice | None, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Why it is this cluster."""
    if choice is None:
        return
    what = {"step": "the shortest step", "cost": "the least cost", "devices": "the fewest devices"}[choice.minimize]
    better = {"step": "shorter", "cost": "cheaper", "devices": "smaller"}[choice.minimize]
    proof = "" if choice.gap is None else f" can be more than {percent(choice.gap)} {better}"
    if choice.clusters > 1:
        what = f"{cluster.name}, of {choice.clusters} the one with {what}"
        yield "cluster", f"{what}; none{proof}" if proof else what
    elif proof:
        yield "cluster", f"all of {cluster.name}; no part of it{proof}"


def exit_code(request: PlanRequest, sizes: Sizes) -> int:
    """That of plans of which none fits the memory, or none meets the deadline and the budget, else 0."""
    runs = [run for run in (run_of(request, *entry) for entry in sizes) if run is not None]
    missed = bool(runs) and all(run.in_time is False or run.in_budget is False for run in runs)
    return Infeasible.exit_code if missed or not any(estimate.fits for _, estimate in sizes) else 0


def run_document(request: PlanRequest, cluster: Cluster, estimate: Estimate) -> dict[str, Any]:
    """The same as plain JSON types, under a key of its own."""
    run = run_of(request, cluster, estimate)
    return {} if run is None else {"training_run": run._asdict()}


def runs_table(request: PlanRequest, sizes: Sizes) -> Table | None:
    """One row a cluster; None where no training is asked for."""
    runs = [run for run in (run_of(request, *entry) for entry in sizes) if run is not None]
    if not runs:
        return None
    columns = {
        "days": [f"{run.days:,.3g}" for run in runs],
        "hours of a device": [f"{run.device_hours:,.0f}" for run in runs],
    }
    if any(run.cost is not None for run in runs):
        columns["cost"] = ["" if run.cost is None else f"{run.cost:,.0f}" for run in runs]
    if runs[0].in_time is not None:
        columns["deadline"] = ["met" if run.in_time else "missed" for run in runs]
    if any(run.in_budget is not None for run in runs):
        columns["budget"] = ["enough" if run.in_budget else "too little" for run in runs]
    return Table([names([cluster for cluster, _ in sizes]), *(Column(name, cells) for name, cells in columns.items())])


def names(clusters: Sequence[Cluster]) -> Column:
    """A column that tells clusters apart: by their devices, or where these are of several kinds by their names."""
    if _are_of_kinds([(cluster, None) for cluster in clusters]):
        return Column("cluster", [cluster.name for cluster in clusters], text=True)
    return Column("devices", [str(cluster.devices) for cluster in clusters])


def _are_of_kinds(sizes: Sequence[tuple[Cluster, object]]) -> bool:
    return len({tuple(group.device for group in cluster.node_groups) for cluster, _ in sizes}) > 1
