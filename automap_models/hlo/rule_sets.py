"""Which shardings are allowed, as data: Shardy's own rules, and restrictions of them by opcode, scope and phase.

A rule set is a YAML file, shipped in conf/rules or the user's own:

    description: Auto-MAP's tables
    forbid:
      - {opcode: reduce, phase: forward, factor: reduction, except: [loss]}
      - {opcode: convolution, phase: forward, factor: reduction}

`opcode` and `scope` are shell patterns; a scope is one name of a location's module path, or the whole of it. `factor`
says what must stay whole: what is summed over (`reduction`), or everything that matching operations read and make
(`any`), which also allows operations for which Shardy has no rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import IntArray, Phase
from automap_models.errors import BadInput
from automap_models.formats.schema import Document, Text, find_yaml, read_yaml
from automap_models.hlo.locations import scopes
from automap_models.hlo.module import Module
from automap_models.hlo.order import phases
from automap_models.hlo.sharding_rules import Role, ShardingRules, Use

_KEYS = "it needs description and forbid, a list of {opcode, scope, phase, factor, except}"


class Restriction(Document):
    """What must not be sharded.

    Attributes:
        opcode: pattern of StableHLO's word for the operation.
        scope: pattern of a scope that it stands in.
        phase: of the training step.
        factor: "reduction" for what it sums over, "any" for all dimensions.
        excepted: patterns of scopes in which it is allowed all the same.
    """

    opcode: Text = "*"
    scope: Text = "*"
    phase: Literal["any", "forward", "backward", "update"] = "any"
    factor: Literal["reduction", "any"] = "reduction"
    excepted: list[str] = msgspec.field(name="except", default_factory=list)


class RuleSetDocument(Document):
    """A rules file."""

    description: Text
    forbid: list[Restriction]


@dataclass(frozen=True)
class RuleSet:
    """Restrictions under a name."""

    name: str
    description: str
    restrictions: tuple[Restriction, ...] = ()


def read_rule_set(name_or_path: str | Path) -> RuleSet:
    """The shipped rule set of that name (`shardy`, `paper`), or the one in that YAML file.

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "rules", "rule set")
    document = read_yaml(path, RuleSetDocument, do=_KEYS)
    return RuleSet(path.stem, document.description, tuple(document.forbid))


def undivided(module: Module, rules: ShardingRules, rule_set: RuleSet) -> tuple[IntArray, NDArray[np.bool_]]:
    """What a rule set keeps whole: dimensions of operations for which Shardy has no rule, and [f] whether a factor.

    Raises:
        BadInput: Shardy has no rule for an operation, and the rule set says nothing of it either.
    """
    of_phase = phases(module.operations, module.arguments)
    factors = np.zeros(rules.factor_sizes.size, dtype=np.bool_)
    reductions = rules.factor_roles & Role.REDUCTION > 0
    for restriction in rule_set.restrictions:
        covered = np.array([_covers(restriction, module, use, of_phase) for use in rules.uses], dtype=np.bool_)
        of_covered = np.repeat(covered, np.diff(rules.factor_offsets))
        factors |= of_covered if restriction.factor == "any" else of_covered & reductions
    everything = [restriction for restriction in rule_set.restrictions if restriction.factor == "any"]
    for use in rules.unruled:
        if not any(_covers(restriction, module, use, of_phase) for restriction in everything):
            raise _no_rule(module, use)
    first, values = rules.dim_offsets, [v for use in rules.unruled for v in use.values]
    return np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(first[v], first[v + 1]) for v in values)]), factors


def _no_rule(module: Module, use: Use) -> BadInput:
    op = module.operations[use.operation]
    called = f"{op.name} ({use.opcode}{f' of {op.target}' if op.target else ''})"
    return BadInput(
        f"Shardy has no sharding rule for {called}",
        where=module.name,
        do=f"keep it whole with a rules file that forbids {{opcode: {use.opcode}, factor: any}}",
    )


def _covers(restriction: Restriction, module: Module, use: Use, of_phase: NDArray[np.int8]) -> bool:
    """Whether a restriction speaks of an operation."""
    path, phase = module.operations[use.operation].path, Phase(of_phase[use.operation])
    return (
        fnmatchcase(use.opcode, restriction.opcode)
        and restriction.phase in ("any", phase.name.lower())
        and _stands_in(path, restriction.scope)
        and not any(_stands_in(path, pattern) for pattern in restriction.excepted)
    )


@lru_cache(maxsize=1 << 16)
def _stands_in(path: str, pattern: str) -> bool:
    if pattern == "*":
        return True
    path_scopes = scopes(path)
    return fnmatchcase("/".join(path_scopes), pattern) or any(fnmatchcase(scope, pattern) for scope in path_scopes)
