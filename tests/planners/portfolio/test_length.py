"""Plans by the length L: never longer than what anyone gets without a planner, and proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.result import Bound, Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import NEVER, SILENT, Deadline, NoConfig, Planner, Watch
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.length import LengthSearch
from automap_models.planners.portfolio.space import default_stages
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.costs import StagedResult, result_of
from automap_models.planners.staged.policy import PolicyPlanner

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = Cluster(nodes=2, devices_per_node=2, intra=100.0, inter=1.0, memory=100.0, name="tiny")


class Scripted(Planner[StagedProblem, StagedPlan, NoConfig]):
    """A planner whose answer is written down beforehand; asking it for what is not written fails the test."""

    name: ClassVar[str] = "scripted"

    def __init__(self, answer: StagedPlan | None, outside: str | None = None, bound: Bound | None = None) -> None:
        super().__init__()
        self.answer, self.outside, self.bound = answer, outside, bound

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        if self.answer is None:
            return Result(problem, None, None, "stopped", reason=Infeasible("stage 0 needs 2 GB", where="scripted"))
        return result_of(problem, self.answer, begun_s=0.0, bound=self.bound)

    def out_of_range(self, problem: StagedProblem) -> str | None:
        return self.outside


SHIPPED = LengthSearch(None, prove_s=0.3, refine_s=0.1, deadline=NEVER)
"""By tables."""


def choose(
    problems: Sequence[StagedProblem],
    policy: Scripted | None = None,
    *,
    prove_s: float = 0.3,
    refine_s: float = 0.1,
) -> StagedResult:
    """The best plan of these problems; raises where nothing fits.

    Args:
        problems: that compete.
        policy: in place of tables.
        prove_s, refine_s: proof and refinement may change a plan; with 0 there is what is there before.
    """
    search = replace(SHIPPED, prove_s=prove_s, refine_s=refine_s, baselines=[])
    result = (search if policy is None else replace(search, policy=policy)).solve(problems)
    result.required_plan()
    return result


AS_PLANNED = {"prove_s": 0.0, "refine_s": 0.0}
ENDLESS = {"prove_s": np.inf, "refine_s": np.inf}


def problem(
    weights: float = 0.1, activations: float = 0.1, memory: float = 100.0, n: int = 8, stages: int = 2
) -> StagedProblem:
    profile = Profile.create(C=np.ones(n), A=np.full(n, activations), W=np.full(n, weights))
    return StagedProblem(profile, replace(CLUSTER, memory=memory), stages=stages, micro_batches=8, granularity=n)


def plan(cut: int, device: int, planner: str) -> StagedPlan:
    return StagedPlan((cut,), (device,), 8, planner, coarse_cuts=(cut,))


def length(staged_problem: StagedProblem, answer: StagedPlan) -> float:
    return plan_cost(staged_problem, answer).length_s


# With these weights an all-reduce over the slow link costs far more than a pipeline's transfers do.
PIPELINE_WINS = {"weights": 5.0, "activations": 0.01}
# Without weights there is nothing to all-reduce, and no bubble in data parallelism.
DATA_PARALLEL_WINS = {"weights": 0.0, "activations": 1.0}


def test_a_good_plan_of_the_policy_is_returned_under_its_name() -> None:
    staged_problem = problem(**PIPELINE_WINS)
    choice = choose([staged_problem], Scripted(plan(3, 2, "policy")))
    assert (choice.plan.planner, choice.plan.cuts, choice.plan.device_cuts) == ("policy", (3,), (2,))
    assert choice.cost.length_s == length(staged_problem, plan(3, 2, "x"))
    assert choice.notes == ()


def test_a_bad_plan_of_the_policy_gives_way_to_uniform_cuts() -> None:
    staged_problem = problem(**PIPELINE_WINS, memory=1e9)
    choice = choose([staged_problem], Scripted(plan(0, 3, "policy")), **AS_PLANNED)
    assert choice.plan.planner == "uniform"
    assert choice.plan.cuts == (3,)


def test_data_parallelism_wins_where_it_is_faster_and_the_stages_are_open() -> None:
    staged_problem = problem(**DATA_PARALLEL_WINS)
    policy = Scripted(plan(3, 2, "policy"))
    choice = choose([replace(staged_problem, stages=1), staged_problem], policy)
    assert (choice.plan.planner, choice.plan.stages, choice.problem.stages) == ("data-parallel", 1, 1)
    assert choice.plan.check_valid(choice.problem) == (True, "")
    assert choice.cost.length_s == pytest.approx(8 * 8 / 4)  # eight rounds of eight seconds on four devices


def test_fixed_stages_are_kept_and_one_note_says_that_data_parallelism_is_faster() -> None:
    staged_problem = problem(**DATA_PARALLEL_WINS)
    choice = choose([staged_problem], Scripted(plan(3, 2, "policy")), **AS_PLANNED)
    assert choice.plan.stages == 2
    (note,) = choice.notes
    assert "data parallelism" in note
    assert f"{100 * (1 - 16 / choice.cost.length_s):.1f} %" in note


def test_outside_its_ranges_the_policy_is_not_asked_and_a_note_says_why() -> None:
    never = Scripted(None, outside="400 micro-batches are more than the 64 of the training.")
    staged_problem = problem(**PIPELINE_WINS)
    choice = choose([staged_problem], never)
    assert choice.plan == replace(make_planner("exact").plan(staged_problem), planner="tables")
    assert choice.notes == ("400 micro-batches are more than the 64 of the training: tables took its place",)


def test_a_policy_that_finds_nothing_that_fits_gives_way_to_tables() -> None:
    choice = choose([problem(**PIPELINE_WINS)], Scripted(None))
    assert choice.plan.planner == "tables"
    assert choice.notes[0] == "the policy found no plan: tables took its place"


def real(topo: str, stages: int) -> StagedProblem:
    """VGG-19 on a shipped cluster."""
    return StagedProblem(read_profile(ROOT / "examples" / "vgg19_v100.npz"), read_cluster(topo), stages, 16)


def test_where_nothing_is_proven_the_shipped_network_is_asked_and_named() -> None:
    """Twelve stages of a CNN, whose work lies in its front and whose parameters at its end: tables are far off."""
    problem = real("C", 12)
    choice = choose([problem])
    assert choice.plan.planner == "policy"
    assert choice.bound == Bound(choice.cost.length_s, "exact")  # as short as it is, the proof comes to its end
    before_s = make_planner("tables").solve(problem).cost.length_s
    assert choice.cost.length_s < 0.7 * before_s
    shorter = 100 * (1 - choice.cost.length_s / before_s)
    assert choice.notes == (f"the trained network made the plan shorter, by {shorter:.2g} %",)


def test_what_is_proven_asks_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyPlanner, "solve_batch", Mock(side_effect=AssertionError("the network was asked")))
    problem = real("A", 2)
    assert choose([problem]).bound.proof == "exact"
    with pytest.raises(AssertionError, match="the network was asked"):
        choose([problem], prove_s=0.0)


def test_without_time_for_a_proof_the_plan_gets_a_lower_bound() -> None:
    choice = choose([problem(**PIPELINE_WINS)], Scripted(plan(3, 2, "policy")), **AS_PLANNED)
    assert choice.bound is not None
    assert choice.bound.proof == "relaxation"
    assert choice.bound.value <= choice.cost.length_s * (1 + 1e-12)


def test_the_best_plan_is_proven_under_its_maker_s_name() -> None:
    choice = choose([problem(**PIPELINE_WINS)], Scripted(plan(3, 2, "policy")))
    assert choice.plan.planner == "policy"
    assert choice.bound == Bound(choice.cost.length_s, "exact")


def test_a_plan_that_is_not_the_best_is_corrected_and_a_note_says_by_how_much() -> None:
    staged_problem = problem(**DATA_PARALLEL_WINS)
    scripted_plan = plan(3, 2, "policy")
    choice = choose([staged_problem], Scripted(scripted_plan))
    best = make_planner("exact").plan(staged_problem)
    assert choice.plan == best
    assert choice.cost.length_s == length(staged_problem, best) < length(staged_problem, scripted_plan)
    shorter = 100 * (1 - choice.cost.length_s / length(staged_problem, scripted_plan))
    assert choice.notes[0] == f"the exact search corrected the plan of policy: {shorter:.2g} % shorter"


def test_data_parallelism_that_wins_is_proven_against_every_plan_of_several_stages() -> None:
    policy = Scripted(plan(3, 2, "policy"))
    choice = choose([problem(**DATA_PARALLEL_WINS, stages=1), problem(**DATA_PARALLEL_WINS)], policy)
    assert choice.plan.planner == "data-parallel"
    assert choice.bound == Bound(choice.cost.length_s, "exact")


def off_grid_problem() -> StagedProblem:
    """Sixty-four instructions of random weight on a grid of sixteen, which misses the best cut (by brute force)."""
    C, A, W = np.random.default_rng(6).uniform(size=(3, 64))
    profile = Profile.create(C=C + 0.1, A=A * 0.1, W=W * 2)
    return StagedProblem(profile, replace(CLUSTER, memory=1e9), stages=2, micro_batches=8, granularity=16)


def test_refined_plans_keep_what_is_proven_on_the_grid_and_a_note_says_what_they_gain() -> None:
    staged_problem = off_grid_problem()
    on_grid = choose([staged_problem], prove_s=np.inf, refine_s=0.0)
    refined = choose([staged_problem], **ENDLESS)
    assert refined.plan.coarse_cuts == staged_problem.grid.to_points(refined.plan.cuts)
    assert refined.bound == on_grid.bound == Bound(on_grid.cost.step_s, "exact")
    before, after = (result.cost.step_s for result in (on_grid, refined))
    assert after < before
    gained = f"{100 * (1 - after / before):.2g} % shorter"
    assert f"refined by single instructions: the length is {gained}" in refined.notes


def test_one_stage_leaves_one_plan_and_that_is_proven() -> None:
    choice = choose([problem(stages=1)], Scripted(None))
    assert choice.plan.planner == "data-parallel"
    assert choice.bound == Bound(choice.cost.length_s, "exact")


def test_where_nothing_fits_the_error_says_which_stage_needs_how_much_and_how_many_stages_would_fit() -> None:
    # Eight instructions of 4·1 bytes of state: two stages of sixteen do not fit 10 bytes, four stages of eight do.
    staged_problem = problem(weights=1.0, memory=10.0)
    with pytest.raises(Infeasible, match=r"needs 1.6e-08 GB .*by stage \d; `stages=[34]` would fit"):
        AutoPlanner().plan(staged_problem)


def test_where_no_number_of_stages_fits_the_error_still_says_what_would_help() -> None:
    with pytest.raises(Infeasible, match=r"needs .*; \w+"):
        AutoPlanner().plan(problem(weights=1.0, memory=3.0))


def test_the_planner_behind_the_one_interface_keeps_the_problem_s_stages() -> None:
    staged_problem = problem(**DATA_PARALLEL_WINS)
    answer = AutoPlanner(AutoConfig(beam=1)).plan(staged_problem)
    assert answer.check_valid(staged_problem) == (True, "")


def random_problem(rng: np.random.Generator) -> StagedProblem:
    n = int(rng.integers(4, 200))
    cluster = Cluster(2, int(rng.integers(1, 5)), intra=130.0, inter=float(rng.uniform(1, 50)), memory=1e9)
    profile = Profile.create(
        C=rng.uniform(0.01, 1, n), A=rng.uniform(0, 2, n), W=rng.uniform(0, 10 ** rng.uniform(-2, 1), n)
    )
    return StagedProblem(profile, cluster, stages=2, micro_batches=int(rng.integers(1, 33)))


@pytest.mark.parametrize("seed", range(8))
def test_the_default_is_never_worse_than_the_baselines(seed: int) -> None:
    staged_problem = random_problem(np.random.default_rng(seed))
    best = choose([replace(staged_problem, stages=1), staged_problem])
    uniform = make_planner("uniform").plan(staged_problem)
    single = replace(staged_problem, stages=1)
    data_parallel = make_planner("data-parallel").plan(single)
    assert best.plan.check_valid(best.problem) == (True, "")
    assert best.cost.length_s <= min(length(staged_problem, uniform), length(single, data_parallel))
    assert best.cost.length_s == length(best.problem, best.plan)
    assert best.bound is not None
    assert best.bound.value <= best.cost.length_s * (1 + 1e-9)


@pytest.mark.parametrize(("n", "nodes", "stages"), [(2, 4, 2), (3, 4, 3), (500, 4, 4), (500, 1, 1)])
def test_the_default_is_a_stage_a_node_as_far_as_the_profile_can_be_cut(n: int, nodes: int, stages: int) -> None:
    profile = Profile.create(C=np.ones(n), A=np.ones(n), W=np.ones(n))
    assert default_stages(profile, replace(CLUSTER, nodes=nodes)) == stages
