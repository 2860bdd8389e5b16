"""`import automap_models as am`: the same plans as the commands', by functions whose errors name their arguments."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import automap_models as am
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import TransformerShape
from automap_models.formats.atomic import write_json
from automap_models.formats.strategy_plan import estimate_document
from automap_models.infer.app import export, infer

PROFILE = Path(__file__).parents[1] / "examples" / "vgg19_v100.npz"
QUICK = {"stages": 4, "planner": "policy", "certify_budget": 0.0}
SMALL = {"layers": 4, "hidden": 8, "heads": 2, "kv_heads": 2, "ffn": 32, "sequence": 16, "vocabulary": 64}
WORK = ModelWork(TransformerShape(name="small", **SMALL), (), (), "bfloat16")
FLAGS = ("--stages", "4", "--planner", "policy", "--certify-budget", "0")


@pytest.fixture(scope="module")
def result() -> am.PlannedResult:
    return am.infer(PROFILE, "C", **QUICK)


@pytest.fixture
def mlp():
    """Four linear layers and four samples for them."""
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4))), torch.zeros(4, 16)


def test_a_plan_is_the_command_s(result: am.PlannedResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result.save(tmp_path / "plan.json")
    assert infer([str(PROFILE), "--topo", "C", *FLAGS, "--json"]) == 0
    ours, theirs = json.loads((tmp_path / "plan.json").read_text()), json.loads(capsys.readouterr().out)
    assert ours.pop("planning_s") > 0 < theirs.pop("planning_s")
    assert ours == theirs


def test_a_profile_and_a_cluster_are_files_names_or_records(result: am.PlannedResult) -> None:
    same = am.infer(am.read_profile(PROFILE), am.read_cluster("C"), **QUICK)
    assert (same.plan, same.cost.length_s) == (result.plan, result.cost.length_s)


def test_a_saved_plan_is_read_with_its_profile(result: am.PlannedResult, tmp_path: Path) -> None:
    result.save(tmp_path / "plan.json")
    again = am.read_plan(tmp_path / "plan.json", PROFILE)
    assert (again.plan.cuts, again.cost.length_s) == (result.plan.cuts, result.cost.length_s)
    with pytest.raises(am.BadInput, match="belongs to another profile"):
        am.read_plan(tmp_path / "plan.json", PROFILE.with_name("bert48_v100.npz"))


def test_a_strategy_s_file_is_read_and_priced_again_and_runs_by_an_export(tmp_path: Path) -> None:
    """`read_plan` said that its kind is not pipeline, and `run` that a result is of the wrong type."""
    priced = am.price("gpt2", gpus="8xa100", dp=8, global_batch=64)
    write_json(tmp_path / "strategy.json", estimate_document(priced))
    again = am.read_plan(tmp_path / "strategy.json", "gpt2", "8xa100")
    assert (again.strategy.dp, again.step_s) == (8, priced.step_s)
    assert "<svg" in again._repr_html_()
    with pytest.raises(am.BadInput, match="no cluster is given"):
        am.read_plan(tmp_path / "strategy.json", "gpt2")
    with pytest.raises(am.BadInput, match=r"is a strategy, and runs are of plans of stages; .*automap export"):
        am.run(priced, "gpt2")


def test_a_profile_is_one_already() -> None:
    profile = am.read_profile(PROFILE)
    assert am.profile(profile).fingerprint == profile.fingerprint
    assert am.profile(PROFILE).fingerprint == profile.fingerprint


def test_a_result_draws_itself(result: am.PlannedResult, tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    assert isinstance(result.plot(), figure.Figure)
    result.plot(tmp_path / "plan.png", schedule="gpipe")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(am.BadInput, match=r"^`schedule`: unknown schedule 'zb'; choose from 1f1b"):
        result.plot(schedule="zb")
    with pytest.raises(am.BadInput, match=r"no kind of picture ends in '\.gif'"):
        result.plot(tmp_path / "plan.gif")


def test_a_result_is_exported_as_its_file_is(
    result: am.PlannedResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file alone says the schedule; of a cut in the model only the profile tells, which a result has."""
    plan, program = tmp_path / "plan.json", tmp_path / "pipeline.py"
    result.save(plan)
    assert export([str(plan), "--to", "torch-csv"]) == 0
    assert am.export(result, "torch-csv").written.text == capsys.readouterr().out
    assert am.export(plan, "torch-csv").written.text == am.export(result, "torch-csv", out=program).written.text
    assert program.read_text() == am.export(result, "torch-csv").written.text
    bert = Path(PROFILE).with_name("bert48_v100.npz")  # whose blocks are alike
    even = am.infer(bert, "C", stages=4, planner="uniform")
    even.save(plan)
    by_file = am.export(plan, "galvatron", am.read_profile(bert), snap=True, out=tmp_path / "a.json")
    assert by_file.written.text == am.export(even, "galvatron", snap=True, out=tmp_path / "b.json").written.text


def test_a_plan_of_a_profile_is_of_every_kind() -> None:
    """As of `automap plan`, which knows --max-stages, where `am.infer` is `automap infer`, which knows --stages."""
    explored = am.plan(PROFILE, "A", max_stages=2, budget=0.2)
    assert isinstance(explored, am.ExploredResult)
    assert {candidate.kind for candidate in explored.exploration.candidates} == {"data", "pipeline"}
    assert explored.plan.stages <= 2
    with pytest.raises(am.BadInput, match="plan: has no option 'stages'; it has "):
        am.plan(PROFILE, "A", max_stages=2, stages=2)


def test_a_strategy_is_the_answer_where_no_plan_of_stages_fits() -> None:
    """A block has 22 GB of weights, 88 GB with Adam's state in fp32: 80 GB hold it where ZeRO divides the state."""
    arrays = {"C": [0.3] * 4, "A": [1e6] * 4, "W": [1e8, 22e9, 22e9, 1e8], "stash": [1e6] * 4}
    meta = {"model": "wide", "microbatch_size": 8, "device": "v100", "parameter_dtype": "float32"}
    layers = ("embed", "blocks.0", "blocks.1", "head")
    profile = am.Profile.create(**{key: np.array(of) for key, of in arrays.items()}, layers=layers, meta=meta)
    cluster = am.Cluster(1, 8, 1e11, 1e11, 80e9, name="eight")
    with pytest.raises(am.Infeasible, match="no plan fits the 80 GB of cluster eight"):
        am.infer(profile, cluster, certify_budget=0.0)
    result = am.plan(profile, cluster, budget="200 ms")
    assert isinstance(result, am.StrategyResult)
    assert result.plan.zero > 0 and result.cost.fits
    assert "<b>wide on eight</b>" in result._repr_html_()


def test_reprs_are_one_line(result: am.PlannedResult) -> None:
    assert repr(result) == "PlannedResult(vgg19 on C: 4 stage(s), 16 micro-batches, by policy, feasible)"
    assert repr(result.problem.profile).startswith("Profile(vgg19: 282 instructions, ")
    assert "\n" not in repr(result.problem.profile)


def test_a_module_of_torch_is_profiled_and_planned_for_its_own_pipelining(mlp) -> None:
    module, samples = mlp
    profile = am.profile(module, samples, name="mlp")
    assert (profile.model, len(profile), profile.meta["microbatch_size"]) == ("mlp", 4, 4)
    assert profile.W.tolist() == [(16 * 16 + 16) * 4.0] * 4
    (cut,) = am.infer(profile, "A", stages=2, planner="uniform", certify_budget=0).plan.cuts
    spec = am.infer(profile, "A", stages=2, planner="uniform", certify_budget=0).to_split_spec()
    assert list(spec) == [str(cut)]


def test_a_module_takes_keyword_arguments(mlp) -> None:
    module, samples = mlp
    by_name, by_position = am.profile(module, {"input": samples}), am.profile(module, (samples,))
    assert np.array_equal(by_name.C, by_position.C)


def test_a_function_of_jax_is_a_training_step() -> None:
    jax = pytest.importorskip("jax")

    def step(weights, batch):
        def loss(weights):
            for w in weights:
                batch_out = batch @ w
            return (batch_out**2).mean()

        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    weights = [jax.ShapeDtypeStruct((8, 8), "float32")] * 2
    profile = am.profile(step, (weights, jax.ShapeDtypeStruct((4, 8), "float32")))
    assert (profile.model, profile.meta["microbatch_size"], profile.W.sum()) == ("step", 4, 2 * 8 * 8 * 4)


def test_every_kind_of_plan_is_explored(mlp) -> None:
    module, samples = mlp
    explored = am.plan(module, "A", samples, global_batch=64, budget=1.0, max_stages=2)
    best = explored.exploration.best
    assert (explored.plan, explored.cost.step_s) == (best.plan, best.step_s)
    assert explored.problem.micro_batches * explored.problem.profile.meta["microbatch_size"] == 64
    assert {candidate.kind for candidate in explored.exploration.candidates} >= {"data", "operator", "pipeline"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: am.infer(PROFILE, "C", stages=40), "`stages`: 40 stages on the 32 device(s) of cluster C"),
        (lambda: am.infer(PROFILE, "C", stage=4), "infer: has no option 'stage'; it has global_batch, state_factor, "),
        (lambda: am.plan(PROFILE, "D"), "cluster: 'D' is neither a known cluster nor a file; choose from A, B, C"),
        (
            lambda: am.infer(PROFILE, "C", global_batch=7, objective="length"),
            "`global_batch`: 7 samples are no multiple of the ",
        ),
        (lambda: am.plan("gpt2"), "`gpus`: no cluster is given; give a cluster, or devices such as gpus='8xh100'"),
        (lambda: am.plan("gpt2", "C", gpus="8xh100"), "`gpus`: is given beside a cluster"),
        (lambda: am.plan("gpt2", gpus="8xh100", for_="jax"), "`for_=jax`: is not for a transformer: it takes no"),
        (lambda: am.plan("gpt2", gpus="8xh100", memory="1 TB"), "`memory`: 1e+12 bytes are more than the 8e+10 of"),
        (lambda: am.plan(3, "C"), "`model`: is of type int; give a Profile, a PyTorch module, a JAX"),
        (
            lambda: am.profile(3),
            "`model`: is of type int; give a Profile, a PyTorch module, a JAX",
        ),
        (lambda: am.profile(print), "`inputs`: is None; give the tuple of the step's arguments"),
        (lambda: am.profile("vgg19", 3), "`inputs`: vgg19 brings its own; leave it out"),
        (lambda: am.profile("vgg19", repeats=3), "`repeats`: nothing is measured; give `measure=True`, too"),
        (
            lambda: am.profile(print, (1, 2), batch=3),
            "`batch`: is for the name of a model; leave it out: the model has its own",
        ),
        (lambda: am.plan(PROFILE, "C", min_gain="5 %"), "`min_gain`: is of type str; give a share from 0 to 1"),
        (lambda: am.plan(PROFILE, "C", state_factor="4"), "`state_factor`: is of type str; give a number"),
        (lambda: am.infer(PROFILE, "C", certify_budget="1 GB"), "`certify_budget`: '1 GB' is no time such as"),
        (lambda: am.plan(PROFILE, "C", equal_replicas=3), "`equal_replicas`: is of type int; give True or False"),
        (lambda: am.plan(PROFILE, "C", cut_at=3), "`cut_at`: is of type int; give a pattern of layers, or 'blocks'"),
        (lambda: am.infer(PROFILE, "C", policy=3), "`policy`: is of type int; give the path of a file"),
        (lambda: am.plan(PROFILE, "C", forbid=3), "`forbid`: is of type int; give a text or several"),
        (lambda: am.plan(PROFILE, "C", budget_s=1), "plan: has no option 'budget_s'; it is called budget"),
        (lambda: am.plan(PROFILE, "C", pin="head"), "`pin`: 'head' is not LAYER=STAGE"),
        (lambda: am.plan(PROFILE, "C", device="a100"), f"`device`: does not apply: {PROFILE} is a profile"),
        (lambda: am.plan(am.read_profile(PROFILE), "C", 3), "`inputs`: Profile(vgg19: 282 instructions"),
        (lambda: am.plan(WORK, "C", pin="head=0"), "`pin`: is not for a transformer: strategies have stages of whole"),
        (lambda: am.profile(WORK), "`model`: is the work of a model, of which strategies"),
        (lambda: am.price(WORK, "C", tp=2, sequence=8), "`sequence`: is for the name of a model; leave it out"),
        (lambda: am.plan(PROFILE, "C", microbatch_size=3), "`microbatch_size`: the profile says "),
        (
            lambda: am.plan(PROFILE, "C", tp=2, global_batch=8),
            "`tp`: strategies of such a model are of its profile, which has no operations that",
        ),
        (
            lambda: am.price(PROFILE, "C", schedule="zb-h1"),
            "`schedule`: strategies of such a model are of its profile, which has no times of",
        ),
        (lambda: am.plan(PROFILE, "C", precision="bf16"), "`precision`: strategies of such a model are of its profile"),
        (lambda: am.plan("gpt2", "p4d-4", tp=2, min_stage=0.1), "`min_stage`: is not for a strategy, which `tp` gives"),
        (lambda: am.plan("gpt2", "p4d-4", tensor=2), "plan: has no option 'tensor'; it has "),
        (
            lambda: am.plan("gpt2", "p4d-4", tp=2, global_batch=8, devices=3),
            "`devices`: is 3; give the least and the most",
        ),
        (
            lambda: am.price(PROFILE, "C", recompute="selective"),
            "`recompute`: strategies of such a model are of its profile",
        ),
        (
            lambda: am.price("gpt2", "p4d-4", tp=2, global_batch=8, budget=3),
            "`budget`: is for a search, and `price`",
        ),
        (
            lambda: am.run("plan.json", print),
            "`model`: is of type builtin_function_or_method; give the name of a model",
        ),
        (
            lambda: am.run(3, "gpt2"),
            "`plan`: is of type int; give a plan of stages that `am.plan` made, or the file of",
        ),
        (lambda: am.read_plan(3, PROFILE), "`path`: is of type int; give the path of a file"),
        (
            lambda: am.run("plan.json", PROFILE),
            f"{PROFILE}: is a profile, with times and sizes of its own; give a model",
        ),
        (lambda: am.run("plan.json", "gpt2", steps=0), "`steps`: is 0; give a whole number ≥ 1"),
        (lambda: am.run("plan.json", "gpt2", zero=1), "`zero`: is 1; choose from 0, 2, 3"),
        (lambda: am.run("plan.json", "gpt2", step=3), "run: has no option 'step'; it has "),
        (
            lambda: am.export(3, "megatron"),
            "`plan`: is of type int; give a result of `am.plan`, a price, or the file of",
        ),
        (
            lambda: am.export("plan.json", "tensorflow"),
            "`to`: unknown target 'tensorflow'; choose from torch-csv, ",
        ),
    ],
)
def test_errors_name_arguments(call, message: str) -> None:
    with pytest.raises(am.BadInput) as refused:
        call()
    assert str(refused.value).startswith(message)


def test_a_module_s_inputs_are_tensors(mlp) -> None:
    with pytest.raises(am.BadInput, match=r"^`inputs`: is of type int; give a tensor, a tuple of positional or a dict"):
        am.profile(mlp[0], 3)


def test_what_does_not_fit_is_raised() -> None:
    tiny = am.Cluster(1, 2, 1e9, 1e9, 1e6, name="tiny")
    with pytest.raises(am.Infeasible, match="tiny"):
        am.infer(PROFILE, tiny, stages=2, planner="exact")
