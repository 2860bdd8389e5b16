"""Arguments of `automap-search` about who searches and for how long, and what they mean to which planner."""

from __future__ import annotations

import argparse
from typing import Any

from automap_models.errors import BadInput

from ..arguments import at_least

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
    group.add_argument("--agent", metavar="NAME|FILE", help="the agent's hyper-parameters (default paper)")
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


def search_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The planner's options by name.

    Raises:
        BadInput: an argument means nothing to the planner.
    """
    for name in APPLICABLE["agent"]:
        if getattr(arguments, name) is not None and name not in APPLICABLE.get(arguments.planner, ()):
            what = "--" + name.replace("_", "-")
            raise BadInput(f"the planner {arguments.planner} has no use for it", where=what, do="leave it out")
    given = {name: getattr(arguments, name) for name in APPLICABLE["agent"] if name != "plot"}
    return {name: value for name, value in given.items() if value is not None}


def settle(arguments: argparse.Namespace) -> None:
    """Set the objective, planner and rules that were left open; who names an option of counting wants to count.

    Raises:
        BadInput: an option means nothing for the objective.
    """
    counting = [name for name in (*APPLICABLE["agent"], "show_groups") if _given(arguments, name)]
    counting += ["planner"] if arguments.planner not in (None, "milp") else []
    pricing = [name for name in ("verify", "plan", "device") if _given(arguments, name)]
    if arguments.objective is None:
        arguments.objective = COUNTING if counting and not pricing else OBJECTIVES[0]
    counts = arguments.objective == COUNTING
    for name in pricing if counts else counting:
        raise BadInput(
            f"means nothing for --objective {arguments.objective}",
            where="--" + name.replace("_", "-"),
            do=f"leave it out, or give --objective {OBJECTIVES[0] if counts else COUNTING}",
        )
    arguments.planner = arguments.planner or ("agent" if counts else "milp")
    arguments.rules = arguments.rules or ("paper" if counts else "shardy")


def _given(arguments: argparse.Namespace, name: str) -> bool:
    return getattr(arguments, name) not in (None, False)
