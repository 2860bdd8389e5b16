"""Arguments of `automap-search` about who searches and for how long, and what they mean to which planner."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from automap_models.errors import BadInput

from ..arguments import at_least, name_argument
from ..requests import SearchRequest

OBJECTIVES = ("time", "memory", "count")
COUNTING = "count"
_PLAYING = ("episodes", "stop_at_optimum", "seed", "plot")
APPLICABLE: dict[str, tuple[str, ...]] = {"agent": ("agent", *_PLAYING), "random": _PLAYING}
"""Planner → the arguments that mean something to it; none to the others."""


def add_search_arguments(group: argparse._ArgumentGroup) -> None:
    """--planner, --agent, --episodes, --stop-at-optimum and --seed."""
    group.add_argument(
        "--planner",
        metavar="NAME",
        help="who searches: milp (the proven optimum; the default but for --objective count), agent (reinforcement "
        "learning; the default there), greedy, random",
    )
    group.add_argument("--agent", metavar="NAME|FILE", type=name_argument, help="its hyper-parameters (default paper)")
    group.add_argument(
        "--episodes", metavar="N", type=at_least(1), help="learn for at most so many (default: until nothing improves)"
    )
    group.add_argument(
        "--stop-at-optimum",
        action="store_true",
        default=None,
        help="end with the first plan that is proven to be as good as any",
    )
    group.add_argument("--seed", metavar="N", type=at_least(0), help="of random draws (default 0)")


def search_options(arguments: SearchRequest) -> dict[str, Any]:
    """The planner's options by name; those that were not given have its defaults."""
    given = {name: getattr(arguments, name) for name in ("agent", "episodes", "stop_at_optimum", "seed")}
    return {name: value for name, value in given.items() if value is not None}


def settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with objective, planner and rules set; who names an option of counting wants to count.

    Raises:
        BadInput: an option means nothing for the objective.
    """

    def given(name: str) -> bool:
        return options[name] not in (None, False)

    objective = options["objective"]
    counting = [name for name in (*APPLICABLE["agent"], "show_groups") if given(name)]
    counting += ["planner"] if options["planner"] not in (None, "milp") else []
    pricing = [name for name in ("verify", "plan", "device") if given(name)]
    if objective is None:
        objective = COUNTING if counting and not pricing else OBJECTIVES[0]
    counts = objective == COUNTING
    for name in pricing if counts else counting:
        raise BadInput(
            f"means nothing for --objective {objective}",
            where="--" + name.replace("_", "-"),
            do=f"leave it out, or give --objective {OBJECTIVES[0] if counts else COUNTING}",
        )
    planner, rules = ("agent", "paper") if counts else ("milp", "shardy")
    return {
        **options,
        "objective": objective,
        "planner": options["planner"] or planner,
        "rules": options["rules"] or rules,
    }


def refuse_of_planner(options: Mapping[str, Any]) -> None:
    """Refuse options that the planner has no use for.

    Raises:
        BadInput: naming the first.
    """
    for name in APPLICABLE["agent"]:
        if options[name] is not None and name not in APPLICABLE.get(options["planner"], ()):
            what = "--" + name.replace("_", "-")
            raise BadInput(f"the planner {options['planner']} has no use for it", where=what, do="leave it out")
