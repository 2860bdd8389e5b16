"""What is fuzzed, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .cases import Target
from .commands import COMMANDS, commands
from .programs import programs
from .questions import questions
from .readers import descriptions, documents, modules, policies, profiles, stored

TARGETS: Mapping[Callable[[], dict[str, Target]], Sequence[str]] = {
    profiles: ("npz", "graph.txt", "piper", "placement graph as profile"),
    descriptions: ("cluster", "device", "sweep", "rules", "search agent", "online agent"),
    documents: (
        "times",
        "placement graph",
        "split",
        "placement",
        "plan",
        "hybrid plan",
        "plan to run",
        "measured steps",
        "measured profile",
        "config",
        "sharding plan",
        "strategy",
    ),
    stored: ("manifest", "shard", "cached model"),
    policies: ("policy",),
    modules: ("HLO text", "StableHLO text", "StableHLO bytecode"),
    questions: ("serve", "mcp"),
    commands: (*(f"automap-{name}" for name in COMMANDS), "automap"),
    programs: ("datagen", "datagen with Hydra's main", "train"),
}
"""What prepares targets → their names."""
NAMES = tuple(name for names in TARGETS.values() for name in names)
CALLED = tuple(name for make in (commands, programs) for name in TARGETS[make])
"""Those whose cases are calls."""


def prepared(names: Sequence[str]) -> dict[str, Target]:
    """Targets by name, with what they need; those that need the same are prepared once."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise SystemExit(f"no target {unknown[0]!r}; there are {', '.join(NAMES)}")
    ready: dict[str, Target] = {}
    for make, names_of_make in TARGETS.items():
        if set(names_of_make) & set(names):
            ready |= make()
    return {name: ready[name] for name in names}
