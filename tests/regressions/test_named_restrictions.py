"""Where a restriction of the stages is why something is missing, reports say so; they blamed the memory.

With `--cut-at` a report said "uniform cuts do not fit the memory" and "the policy found no plan that fits the memory",
though both would have fitted: they cut where they must not.
"""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.planners.options import PlanOptions
from automap_models.planners.portfolio.planning import planned
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.feasibility import out_of_memory
from automap_models.simulate.plan_step import step_cost

LAYERS = tuple(f"block_{i // 4}/layer_{i}" for i in range(16))


def profile() -> Profile:
    """Four blocks of which the last takes half the time: even cuts are far from the shortest."""
    seconds = np.repeat([1.0, 1.0, 1.0, 3.0], 4) * 1e-3
    return Profile.create(
        seconds, np.full(16, 1e5), np.full(16, 1e6), stash=np.full(16, 1e6), layers=LAYERS, names=LAYERS
    )


def cluster(memory: float) -> Cluster:
    return Cluster(2, 2, 1e11, 1e10, memory, "pair")


def test_a_baseline_is_what_one_gets_without_planning_whatever_is_asked_of_the_plan() -> None:
    options = PlanOptions(stages=2, micro_batches=8, cut_at="block_0", schedule="1f1b")
    report = planned(profile(), cluster(32e9), options)
    free = StagedProblem(profile(), cluster(32e9), 2, 8, schedule="1f1b")
    uniform = UniformPlanner().solve(free).required_plan()
    assert uniform.cuts != (3,), "even stages would do, and the test tell nothing"
    assert report.uniform_s == pytest.approx(step_cost(free, uniform).step_s)
    assert report.plan.cuts == (3,)
    assert not any("memory" in note for note in report.notes)


def test_what_does_not_fit_with_a_restriction_names_it() -> None:
    problem = StagedProblem(
        profile(), cluster(1e7), 2, 8, schedule="1f1b", constraints=Constraints(cut_at="blocks", equal_replicas=True)
    )
    error = out_of_memory(problem)
    assert "2 stages with `cut_at='blocks'` and `equal_replicas` fits" in error.what
    assert error.do is not None and "fewer restrictions" in error.do
    assert "with" not in out_of_memory(StagedProblem(profile(), cluster(1e7), 2, 8)).what


def test_all_constraints_have_words() -> None:
    assert Constraints().in_words == ""
    restrictions = Constraints(together=("a*",), max_stages=4, forbidden=frozenset({"data"}), cut_at="blocks")
    assert restrictions.in_words == "`together='a*'` and `max_stages=4` and `forbidden='data'` and `cut_at='blocks'`"
