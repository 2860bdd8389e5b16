"""A plan is costed once and its cost is carried: one `automap infer` once made 33 evaluations of 7 plans."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost import staged
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.infer.app import main

BERT = Path(__file__).resolve().parents[2] / "examples" / "bert48_v100.npz"


BRIEF = ("--certify-budget", "20", "--refine-budget", "20")


@pytest.mark.parametrize(
    "options", [BRIEF, ("--stages", "auto", *BRIEF), ("--planner", "exact"), ("--planner", "uniform")]
)
def test_every_plan_of_a_run_is_costed_once(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[object] = Counter()

    def counted(problem: StagedProblem, plan: StagedPlan, *devices: Any) -> StagedCost:
        seen[plan.cuts, plan.device_cuts, plan.shardings, problem.micro_batches, problem.schedule] += 1
        return plan_cost(problem, plan, *devices)

    import automap_models.formats.staged_plan
    import automap_models.planners.portfolio.auto  # noqa: F401  (all modules that evaluate are imported now)

    for module in list(sys.modules.values()):
        if module is not staged and getattr(module, "plan_cost", None) is plan_cost and module.__name__ != __name__:
            monkeypatch.setattr(module, "plan_cost", counted)
    arguments = ["infer", str(BERT), "--topo", "C", *options, "--out", str(tmp_path / "plan.json")]
    assert main(arguments) == 0
    assert seen and set(seen.values()) == {1}
