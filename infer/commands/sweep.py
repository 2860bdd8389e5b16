"""`automap-infer PROFILE --sweep FILE`: the arguments, the progress bar, and what is written."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from automap_models.errors import BadInput
from automap_models.formats.sweep_yaml import read_sweep
from automap_models.planners.registry import make_planner

from ..reports.progress import Steps
from ..sweeps import Settings, combinations, sweep
from .planning import planner_options, refuse_wrong_options
from .problems import sized_profile

_FROM_FILE = ("topo", "stages", "micro_batches", "global_batch")
_OF_ONE_PLAN = ("plan", "trace", "schedule", "observed", "attribute", "restart", "corrected")


def run_sweep(arguments: argparse.Namespace, files: Mapping[str, Path]) -> dict[str, Any]:
    """Read, plan, write, and print unless JSON is asked for; returns the JSON document.

    Args:
        files: what is written → where, as the report names it.

    Raises:
        BadInput: an argument or a file cannot be used.
    """
    _refuse_arguments(arguments)
    spec, profile, options = read_sweep(arguments.sweep), sized_profile(arguments), planner_options(arguments)
    out_of_range = make_planner("policy", options).out_of_range
    settings = Settings(arguments.state_factor, arguments.granularity)
    asked = combinations(spec, profile, settings, out_of_range, str(arguments.sweep))
    with Steps() as steps:
        steps.begin(f"planning {len(asked)} combinations")
        rows = sweep(asked, _planner(arguments), options, lambda done, total: steps.advance(done, total, "planning"))
    from ..reports.sweep_files import sweep_document, write_rows

    document = sweep_document(profile, rows)
    if arguments.out:
        write_rows(arguments.out, document)
    if arguments.plot:
        from ..plots.sweep import write_sweep_plot

        write_sweep_plot(arguments.plot, profile.model, rows, same_batch=spec.global_batch is not None)
    if not arguments.json:
        from ..reports.sweep import print_sweep

        print_sweep(profile, rows, files, spec.global_batch)
    return document


def _planner(arguments: argparse.Namespace) -> str | None:
    """The planner for every combination; None is the quick default of a sweep."""
    budgets = (arguments.certify_budget, arguments.refine_budget)
    quick = arguments.planner == "auto" and all(budget is None for budget in budgets)
    return None if quick else str(arguments.planner)


def _refuse_arguments(arguments: argparse.Namespace) -> None:
    refuse_wrong_options(arguments)
    for name in _FROM_FILE:
        if getattr(arguments, name) is not None:
            where = "--" + name.replace("_", "-")
            raise BadInput("a sweep has its own in its file", where=where, do="leave it out")
    for name in _OF_ONE_PLAN:
        if getattr(arguments, name) is not None:
            raise BadInput("is about one plan, not a sweep", where=f"--{name}", do="leave it out")
    if arguments.out and arguments.out.suffix.lower() not in (".csv", ".json"):
        raise BadInput(
            f"no table of a sweep ends in {arguments.out.suffix!r}",
            where=f"--out {arguments.out}",
            do="use .csv or .json",
        )
