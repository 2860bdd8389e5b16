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
from optima import exact_search

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Problems, States
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.staged.policy import CHUNK, SHIPPED, PolicyConfig, PolicyPlanner
from automap_models.planners.staged.policy_file import Policy, policy_of
from automap_models.resources import zoo_dir
from automap_models.simulate.plan_step import step_cost
from automap_models.train.rainbow import RainbowModule

POINTS, MAX_STAGES = 16, 4
ROOT = Path(__file__).resolve().parents[3]


@dataclasses.dataclass(frozen=True)
class Trained:
    """A policy file, the network in it and problems like those it says it was trained on."""

    file: Path
    module: RainbowModule
    problems: list[StagedProblem]


@pytest.fixture(scope="module", params=["choices", "flat"])
def trained(request: pytest.FixtureRequest, random_problems: Callable[..., list[StagedProblem]]) -> Trained:
    """A network with random weights does: it decides something, and nothing sensible by chance."""
    module, file = request.getfixturevalue({"choices": "choice_policy", "flat": "flat_policy"}[request.param])
    return Trained(file, module, random_problems(seed=11, count=60, granularity=POINTS, memory=(2.0, 50.0)))


def planner(trained: Trained, beam: int = 1, *, search: bool = False) -> PolicyPlanner:
    return PolicyPlanner(PolicyConfig(beam=beam, policy=trained.file, search=search))


def plans_of(trained: Trained, problems: list[StagedProblem], beam: int) -> list[list[StagedPlan]]:
    """All the plans that the file finds, the shortest first."""
    return Policy(trained.file).best_plans(problems, beam, "policy")


def followed(module: RainbowModule, problem: StagedProblem, first: int | None = None) -> StagedPlan:
    """Every decision, after the first cut if one is given, has the largest value, or earns most where that is clear."""
    problems, state = Problems.from_encoded(encode([problem])), States.empty(1, MAX_STAGES)
    if first is not None:
        state = state.after(np.array([first]))
    while state.step[0] < problems.decisions[0]:
        choices = module.agent.describe(problems, state)
        worth = choices.estimate if choices.settled[0] else module.agent.worth(choices)
        state = state.after(choices.choice[:, np.where(choices.legal[0], worth[0], -np.inf).argmax()])
    points, devices = (tuple(part[0, : problem.stages - 1].tolist()) for part in (state.cuts, state.firsts))
    return StagedPlan(problem.grid.to_instructions(points), devices, problem.micro_batches, "policy", points)


def test_a_beam_follows_each_of_the_best_first_cuts_greedily(trained: Trained) -> None:
    """As wide as there are first cuts, it holds the greedy continuation of every one; with 1 it is plain greedy."""
    for problem in [problem for problem in trained.problems if problem.stages > 2][:6]:
        (plans,) = plans_of(trained, [problem], 20)
        ((greedy,),) = plans_of(trained, [problem], 1)
        firsts = problem.grid.cut_points[: len(problem.grid.cut_points) - (problem.stages - 2)]
        expected = {followed(trained.module, problem, int(first)) for first in firsts}
        assert set(plans) == expected and len(plans) == len(expected)
        assert greedy == followed(trained.module, problem) in plans
        lengths = [cost.length_s for cost in (plan_cost(problem, plan) for plan in plans) if cost.feasible]
        assert lengths == pytest.approx(sorted(lengths), rel=1e-5)
        assert all(plan.check_valid(problem) == (True, "") for plan in plans)


def test_a_batch_of_mixed_sizes_is_planned_like_its_problems_one_by_one(trained: Trained) -> None:
    """And a large one in parts, in the order of the problems."""
    several = trained.problems[: CHUNK + 4]
    assert len({problem.stages for problem in several}) == 3
    by_policy = planner(trained, beam=4)
    results = by_policy.solve_batch(several)
    assert [result.plan for result in results] == [by_policy.solve(problem).plan for problem in several]
    assert [result.problem for result in results] == several
    assert by_policy.solve_batch([]) == []


@pytest.mark.parametrize("schedule", [None, "1f1b"])
def test_the_planner_s_plan_is_the_shortest_beside_the_network_s(trained: Trained, schedule: str | None) -> None:
    """Mostly a shorter one than all of these; without a search it is the shortest of them."""
    shorter = 0
    for problem in trained.problems[:8]:
        (plans,) = plans_of(trained, [problem], 3)
        assert planner(trained, 3).solve(problem).plan in (plans[0], None)
        scheduled = replace(problem, schedule=schedule)
        result = planner(trained, 3, search=True).solve(scheduled)
        costs = [cost for cost in (step_cost(scheduled, plan) for plan in plans) if cost.feasible]
        if costs:
            best_s = min(cost.step_s for cost in costs)
            assert result.cost.step_s <= best_s * (1 + 1e-9)
            shorter += result.cost.step_s < best_s * (1 - 1e-6)
    assert shorter > 2


def test_fewer_first_cuts_than_the_beam_is_wide_are_all_followed(trained: Trained) -> None:
    profile = Profile.create(np.ones(2), np.ones(2), np.ones(2))
    problem = StagedProblem(profile, Cluster(1, 3, 1e9, 1e9, 1e9), stages=2, micro_batches=4, granularity=POINTS)
    ((plan,),) = plans_of(trained, [problem], 5)
    assert plan.coarse_cuts == (problem.grid.cut_points.item(),) and plan.device_cuts[0] in (1, 2)
    mixed = plans_of(trained, [problem, *trained.problems[:3]], 1000)
    assert [len(plans) for plans in mixed] == [
        len(plans_of(trained, [p], 1000)[0]) for p in [problem, *trained.problems[:3]]
    ]


def test_one_stage_needs_no_decision(trained: Trained) -> None:
    first, second = trained.problems[1:3]
    problem = replace(first, stages=1, cluster=replace(first.cluster, memory=1e18))
    results = planner(trained).solve_batch([first, problem, second])
    plan = results[1].plan
    assert plan is not None and (plan.cuts, plan.device_cuts, plan.stages) == ((), (), 1)
    assert [results[0].plan, results[2].plan] == [planner(trained).solve(p).plan for p in (first, second)]


def test_a_plan_that_does_not_fit_is_no_result_alone_or_in_a_batch(trained: Trained) -> None:
    """A batch once returned such plans as if they could be run."""
    problem = trained.problems[0]
    tight = replace(problem, cluster=replace(problem.cluster, memory=1.0, name="tiny"))
    with pytest.raises(Infeasible, match="cluster tiny has"):
        planner(trained, beam=4).plan(tight)
    (result,) = planner(trained, beam=4).solve_batch([tight])
    assert (result.plan, result.status) == (None, "stopped")


def inside(trained: Trained) -> StagedProblem:
    """A problem in the middle of all ranges."""
    ranges = Policy(trained.file).ranges
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


def test_a_file_is_opened_once_a_process_until_it_changes(trained: Trained, tmp_path: Path) -> None:
    file = tmp_path / "policy.onnx"
    file.write_bytes(trained.file.read_bytes())
    first = policy_of(file)
    assert policy_of(file) is first and PolicyPlanner(PolicyConfig(policy=file)).policy is first
    file.write_bytes(b"another")
    with pytest.raises(BadInput, match="cannot be read"):
        policy_of(file)


# --- what is shipped -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topo", ["A", "B", "C"])
@pytest.mark.parametrize("schedule", [None, "1f1b"])
def test_the_shipped_policy_plans_real_profiles(topo: str, schedule: str | None) -> None:
    cluster = read_cluster(topo)
    for name in ("bert48_v100", "vgg19_v100"):
        problem = StagedProblem(read_profile(ROOT / "examples" / f"{name}.npz"), cluster, 4, 16, schedule=schedule)
        assert PolicyPlanner().out_of_range(problem) is None
        plan = PolicyPlanner().plan(problem)
        assert plan.check_valid(problem) == (True, "") and plan.planner == "policy"
        if schedule is None:
            of_nodes = replace(problem, stages=cluster.nodes)
            costs = [plan_cost(of_nodes, p) for p in (PolicyPlanner().plan(of_nodes), exact_search(of_nodes))]
            assert costs[0].length_s == pytest.approx(costs[1].length_s)


def test_the_shipped_policy_is_for_every_size_that_people_have() -> None:
    policy = Policy(zoo_dir() / SHIPPED)
    assert (policy.points, policy.max_stages, policy.max_devices) == (128, 16, 512)
    assert (policy.ranges["stages"], policy.ranges["micro_batches"]) == ((2, 16), (1, 256))


def test_planning_by_policy_imports_no_torch() -> None:
    profile = sorted((ROOT / "examples").glob("*.npz"))[0]
    code = f"""
import sys
from automap_models.infer.app import infer as main
assert main({[str(profile), "--topo", "A", "--planner", "policy", "--json"]!r}) == 0
assert "onnxruntime" in sys.modules
print(sorted({{"torch", "lightning", "onnx", "hydra"}} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert json.loads(done.stdout)["planner"] == "policy"
