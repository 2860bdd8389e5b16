"""The sharding program returned the solver's first plans when its time was up.

On 600 classes in 12,000 conflicts HiGHS had a plan of 2 variables after three seconds, where greedy decisions partition
47 in milliseconds. A stopped program returns the better of the two and says so.
"""

from __future__ import annotations

import pytest

from automap_models.core.sharding import ShardingProblem
from automap_models.envs.sharding.propagation import Propagation
from automap_models.planners.base import Deadline
from automap_models.planners.registry import make_planner


@pytest.mark.parametrize("budget_s", [1e-9, 0.5])
def test_a_stopped_program_is_no_worse_than_greedy_decisions(
    budget_s: float, hard_sharding_problem: ShardingProblem
) -> None:
    problem = hard_sharding_problem
    (along,) = problem.along
    greedy = Propagation(along).greedy(linkage_groups=True)
    result = make_planner("milp", kind="sharding").solve(problem, deadline=Deadline(budget_s))
    assert result.required_plan().check_valid(problem) == (True, "")
    assert result.status == "feasible"
    assert result.cost.partitioned >= along.weights[greedy].sum()
    assert result.bound is not None and result.bound.value >= result.cost.partitioned
    if budget_s < 1e-6:  # the solver did not even begin
        assert any("greedy" in note for note in result.notes)
