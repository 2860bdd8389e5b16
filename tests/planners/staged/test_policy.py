"""The policy planner does what the trained network says, and knows what it is not for."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.pipeline import env as pipeline
from automap_models.envs.pipeline.encoding import encode
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.exact import ExactPlanner
from automap_models.planners.staged.policy import (
    CHUNK,
    SHIPPED_FOR,
    PolicyConfig,
    PolicyPlanner,
)
from automap_models.planners.staged.policy_file import Policy
from automap_models.planners.staged.policy_plans import joined
from automap_models.planners.staged.step_plans import moved_plan, step_plan
from automap_models.resources import zoo_dir
from automap_models.rl import targets
from automap_models.simulate.step import step_cost
from automap_models.train import export
from automap_models.train.rainbow import RainbowModule

POINTS = 16


@dataclasses.dataclass(frozen=True)
class Trained:
    """A policy file, the network in it and problems like those it says it was trained on."""

    file: Path
    module: RainbowModule
    problems: list[StagedProblem]


@pytest.fixture(scope="module")
def trained(
    flat_policy: tuple[RainbowModule, onnx.ModelProto],
    random_problems: Callable[..., list[StagedProblem]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Trained:
    """A network with random weights does: it decides something, and nothing sensible by chance."""
    problems = random_problems(seed=11, count=60, granularity=POINTS, memory=(2.0, 50.0))
    module, model = flat_policy
    encoded = pipeline.Problems.from_encoded(encode(problems))
    file = tmp_path_factory.mktemp("policy") / "policy.onnx"
    export.write_model(model, export.policy_metadata(module, encoded, {}), file)
    return Trained(file, module, problems)


def planner(trained: Trained, beam: int = 1, reach: int = 0) -> PolicyPlanner:
    return PolicyPlanner(PolicyConfig(beam=beam, policy=trained.file, reach=reach))


def greedy_in_torch(
    module: RainbowModule, problem: StagedProblem, first_cut: int | None = None
) -> tuple[list[int], list[int]]:
    """Grid cuts and device cuts, each decision (after the first cut, if given) the network's largest value."""
    problems = pipeline.Problems.from_encoded(encode([problem]))
    partial = pipeline.reset(1, max_stages=4)
    if first_cut is not None:
        partial = pipeline.apply(partial, torch.tensor([first_cut]), POINTS)
    while partial.step < 2 * (problem.stages - 1):
        legal = pipeline.legal_actions(problems, partial, max_devices=16)
        with torch.no_grad():
            values = targets.masked(module.agent.q(module.online, problems, partial), legal)
        partial = pipeline.apply(partial, values.argmax(1), POINTS)
    decided = problem.stages - 1
    return partial.cuts[0, :decided].tolist(), partial.device_cuts[0, :decided].tolist()


@pytest.mark.slow
def test_greedy_plans_are_those_of_the_network_stepped_in_torch(trained: Trained) -> None:
    plans = planner(trained).raw_plans(trained.problems)
    for problem, plan in zip(trained.problems, plans, strict=True):
        cuts, device_cuts = greedy_in_torch(trained.module, problem)
        assert (list(plan.coarse_cuts or ()), list(plan.device_cuts)) == (cuts, device_cuts)
        assert plan.cuts == problem.grid.to_instructions(cuts)
        assert plan.check_valid(problem) == (True, "")
        assert plan.planner == "policy"


@pytest.mark.parametrize(("beam", "reach"), [(1, 0), (4, 0), (4, 2)])
def test_a_batch_of_mixed_sizes_is_planned_like_its_problems_one_by_one(
    trained: Trained, beam: int, reach: int
) -> None:
    assert len({problem.stages for problem in trained.problems}) == 3
    by_policy = planner(trained, beam, reach)
    plans = by_policy.raw_plans(trained.problems)
    assert plans == [by_policy.raw_plans([problem])[0] for problem in trained.problems]
    assert by_policy.raw_plans([]) == []


def test_a_large_batch_is_planned_in_parts(trained: Trained) -> None:
    problem = next(problem for problem in trained.problems if problem.stages == 3)
    plans = planner(trained).raw_plans([problem] * (3 * CHUNK + 1))
    assert plans == [planner(trained).raw_plans([problem])[0]] * (3 * CHUNK + 1)


def test_a_beam_follows_each_of_the_best_first_cuts_greedily(trained: Trained) -> None:
    """As wide as there are first cuts, it holds the greedy continuation of every one of them."""
    for problem in [problem for problem in trained.problems if problem.stages > 2][:6]:
        planned_cuts = dict(planned(trained, problem, beam=20))
        firsts = {first for first, *_ in planned_cuts}
        legal = pipeline.legal_cuts(pipeline.Problems.from_encoded(encode([problem])), pipeline.reset(1, max_stages=4))
        assert firsts == set(legal[0].nonzero().squeeze(1).tolist())
        for first in firsts:
            expected_cuts, expected_devices = greedy_in_torch(trained.module, problem, first)
            assert planned_cuts[tuple(expected_cuts)] == tuple(expected_devices)


def planned(trained: Trained, problem: StagedProblem, beam: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Grid cuts and device cuts of all the plans that the file finds, best first cut first."""
    cuts, device_cuts, reward = (arrays[0] for arrays in Policy(trained.file).plans(encode([problem]), beam))
    boundaries = problem.stages - 1
    return [
        (tuple(points[:boundaries].tolist()), tuple(devices[:boundaries].tolist()))
        for points, devices in zip(cuts[np.isfinite(reward)], device_cuts[np.isfinite(reward)], strict=True)
    ]


def test_a_beam_returns_its_shortest_plan_that_fits(trained: Trained) -> None:
    beam = 6
    for problem in trained.problems[:20]:
        plans = [
            StagedPlan(problem.grid.to_instructions(points), devices, problem.micro_batches, "policy")
            for points, devices in planned(trained, problem, beam)
        ]
        assert len({(plan.cuts, plan.device_cuts) for plan in plans}) == len(plans)
        costs = [plan_cost(problem, plan) for plan in plans]
        best = plan_cost(problem, planner(trained, beam).raw_plans([problem])[0])
        lengths = [cost.length_s for cost in costs if cost.feasible]
        assert best.feasible == bool(lengths)
        if lengths:
            assert best.length_s == pytest.approx(min(lengths), rel=1e-6)
        else:
            least = min(cost.memory_bytes.max() for cost in costs)
            assert best.memory_bytes.max() == pytest.approx(least, rel=1e-6)


def test_plans_are_joined_to_one_that_is_no_longer_and_near_them(trained: Trained) -> None:
    """A network that decides nothing sensible leaves much to join; with places for every plan the optimum comes out."""
    exact = ExactPlanner()
    shorter = whole = 0
    for problem in trained.problems[:20]:
        lengths = []
        for reach in (0, 1, POINTS):
            plan = planner(trained, 3, reach).raw_plans([problem])[0]
            assert plan is not None
            assert plan.check_valid(problem) == (True, "")
            cost = plan_cost(problem, plan)
            lengths.append(cost.length_s if cost.feasible else np.inf)
        assert lengths[0] * (1 + 1e-9) >= lengths[1]
        shorter += lengths[1] < lengths[0]
        best = exact.solve(problem)
        if best.plan is not None:
            assert lengths[2] >= best.cost.length_s * (1 - 1e-9)
            whole += lengths[2] <= best.cost.length_s * (1 + 1e-9)
    assert shorter > 10
    assert whole > 10


def test_on_more_devices_than_searches_know_the_best_plan_stays_as_it_is() -> None:
    profile = Profile.create(np.ones(64), np.ones(64), np.ones(64))
    problem = StagedProblem(profile, Cluster(64, 16, 100e9, 10e9, 16e9, "1,024 devices"), 4, 8)
    plans = [plan for plan in [UniformPlanner().solve(problem).plan] if plan is not None]
    assert len(plans) == 1
    assert joined(problem, plans, 4) is plans[0]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_under_a_schedule_a_beam_returns_the_plan_with_the_shortest_step(trained: Trained, schedule: str) -> None:
    others = 0
    for problem in [replace(problem, schedule=schedule) for problem in trained.problems[:20]]:
        plans = [
            StagedPlan(problem.grid.to_instructions(points), devices, problem.micro_batches, "policy")
            for points, devices in planned(trained, problem, 6)
        ]
        costs = [step_cost(problem, plan) for plan in plans]
        steps = [cost.step_s if cost.feasible else np.inf for cost in costs]
        chosen = planner(trained, 6).raw_plans([problem])[0]
        assert chosen is not None
        if min(steps) < np.inf:
            assert step_cost(problem, chosen).step_s == pytest.approx(min(steps), rel=1e-9)
            shortest = min((cost.length_s, i) for i, cost in enumerate(costs) if cost.feasible)[1]
            others += steps[shortest] > min(steps) * (1 + 1e-6)
    assert others > 0  # the one with the shortest length L is another now and then


def test_under_a_schedule_moves_lead_on_from_the_plans_of_a_policy_file(trained: Trained) -> None:
    shorter = 0
    for problem in [replace(problem, schedule="1f1b") for problem in trained.problems[:20]]:
        (plans,) = Policy(trained.file).best_plans([problem], 3, "policy")
        (own,), (chosen,) = planner(trained, 3).raw_plans([problem]), planner(trained, 3, reach=8).raw_plans([problem])
        assert chosen == moved_plan(problem, plans)
        assert own is not None and chosen is not None
        before, after = step_cost(problem, own), step_cost(problem, chosen)
        if before.feasible:
            assert after.feasible
            assert after.step_s <= before.step_s * (1 + 1e-9)
            shorter += after.step_s < before.step_s * (1 - 1e-6)
    assert shorter > 0


def test_under_1f1b_moves_set_out_from_the_plans_of_its_network_as_well_as_those_of_tables(
    random_problems: Callable[..., list[StagedProblem]],
) -> None:
    """With numba, where the network was trained for it, from a beam of 2 on, unless a search follows."""
    drawn = random_problems(5, 40, granularity=128, stages=(3, 4), instructions=(60, 200), clusters=[(3, 8)])
    scheduled = Policy(zoo_dir() / SHIPPED_FOR["1f1b"])
    drawn = [replace(problem, micro_batches=8) for problem in drawn]
    problems = [problem for problem in drawn if scheduled.out_of_range(problem) is None]
    assert len(problems) > 20
    shorter = 0
    for problem in [replace(problem, schedule="1f1b") for problem in problems]:
        (beside,) = scheduled.best_plans([problem], 2, "policy")
        alone, both = (step_plan(problem, 2, 8, "policy", plans) for plans in ([], beside))
        assert PolicyPlanner(PolicyConfig(beam=2)).raw_plans([problem]) == [both]
        assert PolicyPlanner(PolicyConfig(beam=2, network=False)).raw_plans([problem]) == [alone]
        assert PolicyPlanner(PolicyConfig(beam=1)).raw_plans([problem]) == [step_plan(problem, 1, 8, "policy")]
        shorter += step_cost(problem, both).step_s < step_cost(problem, alone).step_s * (1 - 1e-9)
    assert shorter > 0
    others = [replace(problem, schedule=schedule) for problem in problems[:3] for schedule in ("gpipe", "1f1b-deep")]
    assert PolicyPlanner().raw_plans(others) == [step_plan(problem, 4, 8, "policy") for problem in others]


def test_fewer_plans_than_the_beam_is_wide_leave_rows_that_count_as_nothing(trained: Trained) -> None:
    profile = Profile.create(np.ones(2), np.ones(2), np.ones(2))
    problem = StagedProblem(profile, Cluster(1, 3, 1e9, 1e9, 1e9), stages=2, micro_batches=4, granularity=POINTS)
    cuts, device_cuts, reward = Policy(trained.file).plans(encode([problem]), beam=5)
    assert cuts[0, 0].tolist() == [problem.grid.cut_points.item(), -1, -1]
    assert device_cuts[0, 0, 0] in (1, 2)
    assert reward[0, 0] > 0
    assert np.isneginf(reward[0, 1:]).all()
    (plan,) = planner(trained, beam=5).raw_plans([problem])
    assert plan.check_valid(problem) == (True, "")


def test_a_beam_wider_than_there_are_points_is_as_good_as_one_of_all(trained: Trained) -> None:
    all_points, wider = (planner(trained, beam).raw_plans(trained.problems) for beam in (POINTS, 1000))
    assert all_points == wider


def test_one_stage_needs_no_decision(trained: Trained) -> None:
    problem = replace(trained.problems[0], stages=1)
    roomy = replace(problem, cluster=replace(problem.cluster, memory=1e18))
    plan = planner(trained).plan(roomy)
    assert (plan.cuts, plan.device_cuts, plan.stages) == ((), (), 1)
    others = trained.problems[1:3]
    among_others = planner(trained).raw_plans([others[0], roomy, others[1]])
    assert among_others == [*planner(trained).raw_plans(others[:1]), plan, *planner(trained).raw_plans(others[1:])]


def test_a_plan_that_does_not_fit_is_no_result_alone_or_in_a_batch(trained: Trained) -> None:
    """A batch once returned such plans as if they could be run."""
    problem = trained.problems[0]
    tight = replace(problem, cluster=replace(problem.cluster, memory=1.0, name="tiny"))
    with pytest.raises(Infeasible, match="cluster tiny has"):
        planner(trained, beam=4).plan(tight)
    (plan,) = planner(trained, beam=4).raw_plans([tight])
    assert plan is not None and plan.check_valid(tight) == (True, "")
    (result,) = planner(trained, beam=4).solve_batch([tight])
    assert (result.plan, result.status) == (None, "stopped")


def inside(trained: Trained) -> StagedProblem:
    """A problem in the middle of all ranges."""
    ranges = json.loads(Policy(trained.file).metadata["ranges"])
    ratio = ranges["inter_over_intra"][1] * 0.9
    cluster = Cluster(2, 3, intra=1e9 / ratio, inter=1e9, memory=1e12)
    profile = Profile.create(np.ones(20), np.ones(20), np.ones(20))
    return StagedProblem(profile, cluster, stages=3, micro_batches=8, granularity=POINTS)


def test_problems_like_those_trained_on_are_in_range(trained: Trained) -> None:
    by_policy = planner(trained)
    assert by_policy.out_of_range(inside(trained)) is None
    assert [by_policy.out_of_range(problem) for problem in trained.problems] == [None] * len(trained.problems)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("granularity", 64, "granularity 64 is not the policy's 16"),
        ("stages", 5, "stages 5 is outside 2 … 4, for which the policy was trained"),
        ("stages", 1, "stages 1 is outside 2 … 4, for which the policy was trained"),
        ("micro_batches", 1000, "micro batches 1000 is outside"),
        ("nodes", 7, "nodes 7 is outside 1 … 4"),
        ("devices_per_node", 11, "devices per node 11 is outside 1 …"),
        ("intra", 1e7, "inter over intra 100 is outside"),
        ("intra", 1e15, "inter over intra 1e-06 is outside"),
    ],
)
def test_what_lies_outside_is_said_in_a_sentence(trained: Trained, field: str, value: float, sentence: str) -> None:
    problem = inside(trained)
    where = {name.name for name in dataclasses.fields(Cluster)}
    changes = {"cluster": replace(problem.cluster, **{field: value})} if field in where else {field: value}
    note = planner(trained).out_of_range(replace(problem, **changes))  # type: ignore[arg-type]
    assert note is not None
    assert note.startswith(sentence)
    assert "\n" not in note


@pytest.mark.parametrize(
    "changes",
    [{"stages": 5}, {"granularity": 20}, {"cluster": Cluster(1, 17, 1e9, 1e9, 1e12)}],
)
def test_what_the_network_cannot_express_is_refused(trained: Trained, changes: dict[str, object]) -> None:
    problem = replace(inside(trained), **changes)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="beyond the policy's 4, 16 and 16; use `planner='exact'`"):
        planner(trained).plan(problem)


def another_model() -> bytes:
    """An ONNX model that has nothing to do with us."""
    kind = onnx.TensorProto.FLOAT
    value = [onnx.helper.make_tensor_value_info(name, kind, [1]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    opset = [onnx.helper.make_opsetid("", 18)]
    content: bytes = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return content


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "no such policy file"),
        ("folder", "no such policy file"),
        (b"", "cannot be read as an ONNX model"),
        (b"a policy", "cannot be read as an ONNX model"),
        ("truncated", "cannot be read as an ONNX model"),
        (another_model(), "not a pipeline policy of automap"),
    ],
    ids=["missing", "folder", "empty", "text", "truncated", "another"],
)
def test_what_is_no_policy_is_refused_by_name(
    content: bytes | str | None, named: str, trained: Trained, tmp_path: Path
) -> None:
    file = tmp_path / "some.onnx"
    if content == "folder":
        file.mkdir()
    elif content == "truncated":
        file.write_bytes(trained.file.read_bytes()[:-2000])
    elif isinstance(content, bytes):
        file.write_bytes(content)
    with pytest.raises(BadInput, match=named) as refused:
        PolicyPlanner(PolicyConfig(policy=file)).plan(inside(trained))
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["points", "max_stages", "max_devices", "ranges", "a range"])
def test_a_policy_that_does_not_say_what_it_is_for_is_refused(key: str, trained: Trained, tmp_path: Path) -> None:
    model = onnx.load(trained.file)
    kept = {entry.key: entry.value for entry in model.metadata_props if entry.key != key}
    if key == "a range":
        kept["ranges"] = json.dumps({"stages": [2]})
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, kept)
    file = tmp_path / "policy.onnx"
    onnx.save(model, file)
    with pytest.raises(BadInput, match="does not say which problems"):
        Policy(file)


def test_planning_by_policy_imports_no_torch(trained: Trained) -> None:
    profile = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.npz"))[0]
    arguments = [str(profile), "--topo", "A", "--planner", "policy", "--policy", str(trained.file), "--json"]
    code = f"""
import sys
from automap_models.infer.app import infer as main
assert main({[*arguments, "--granularity", str(POINTS)]!r}) == 0
assert "onnxruntime" in sys.modules
print(sorted({{"torch", "lightning", "onnx", "hydra"}} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert json.loads(done.stdout)["planner"] == "policy"
