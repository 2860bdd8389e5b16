"""Every shipped rule set can be asked for by name."""

from __future__ import annotations

import pytest

from automap_models.hlo.rule_sets import read_rule_set
from automap_models.resources import conf_dir

NAMES = sorted(path.stem for path in (conf_dir() / "rules").glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_rule_set_loads_under_its_own_name(name: str) -> None:
    assert read_rule_set(name).name == name


def test_shardys_rules_restrict_nothing_and_the_papers_the_forward_pass_alone() -> None:
    assert read_rule_set("shardy").restrictions == ()
    assert {restriction.phase for restriction in read_rule_set("paper").restrictions} == {"forward"}
