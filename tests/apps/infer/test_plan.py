"""automap plan: plans of every kind from a model or a profile, the cache, and failures in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

pytest.importorskip("jax")

from automap_models.core.constraints import Technique
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.formats.atomic import Cache, decode_record
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.formats.npz import read_npz, write_npz
from automap_models.formats.staged_plan import read_plan
from automap_models.infer.app import plan as main
from automap_models.infer.commands.plan import FORBIDDABLE

MODEL = '''
import jax
import jax.numpy as jnp


def make_step(batch=8, layers=6, width=64):
    """So many hidden layers with a residual sum, one after the other."""
    def step(params, x):
        def loss(params):
            y = x
            for i in range(layers):
                with jax.named_scope(f"layer_{i}"):
                    y = y + jax.nn.relu(y @ params[f"wi_{i}"]) @ params[f"wo_{i}"]
            with jax.named_scope("loss"):
                return jnp.square(y).mean()

        gradients = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
    params = {f"wi_{i}": f32(width, 4 * width) for i in range(layers)}
    params |= {f"wo_{i}": f32(4 * width, width) for i in range(layers)}
    return step, (params, f32(batch, width))
'''
CLUSTER = "{nodes: 2, devices_per_node: 2, intra: 1e12, inter: 1e8, memory: %s, name: pair}"
Run = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, which does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("AUTOMAP_CACHE", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a factory in a module of its own."""
    name = f"model_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return f"{name}:make_step"


@pytest.fixture
def topo(tmp_path: Path) -> str:
    """Two nodes of two devices, a slow network between them."""
    path = tmp_path / "pair.yaml"
    path.write_text(CLUSTER % "1e9")
    return str(path)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """Eight instructions of micro-batches of 4 samples, in layers of two."""
    rng = np.random.default_rng(0)
    eight_instructions = Profile.create(
        C=rng.uniform(0.5, 1.5, 8),
        A=rng.uniform(1e5, 1e6, 8),
        W=rng.uniform(1e6, 1e7, 8),
        stash=rng.uniform(1e6, 1e7, 8),
        layers=[f"layer_{i // 2}" for i in range(8)],
        meta={"model": "eight", "microbatch_size": 4},
    )
    write_npz(tmp_path / "eight.npz", eight_instructions)
    return str(tmp_path / "eight.npz")


@pytest.fixture
def planned(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command with --json and read what it prints."""

    def run(*arguments: str) -> dict[str, Any]:
        assert main([*arguments, "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return run


def test_every_kind_of_plan_of_a_model_is_ranked(model: str, topo: str, planned: Run) -> None:
    document = planned(model, "--topo", topo, "--global-batch", "64", "--budget", "1", "--max-stages", "2")
    assert (document["schema"], document["kind"], document["global_batch"]) == (1, "explored", 64)
    assert {candidate["kind"] for candidate in document["candidates"]} >= {"data", "operator", "pipeline"}
    lengths = [candidate["step_s"] for candidate in document["candidates"] if candidate["fits"]]
    assert lengths == sorted(lengths)
    assert document["best"]["step_s"] == lengths[0]
    assert document["candidates"][0]["why"] == ""
    assert all(candidate["why"] for candidate in document["candidates"][1:])
    assert list(document["batch_dims"].values()) == [0]
    for candidate in document["candidates"]:
        parts = candidate["breakdown"]
        assert sum(value for name, value in parts.items() if name.endswith("_s")) == pytest.approx(candidate["step_s"])
        assert parts["state_bytes"] + parts["activation_bytes"] == pytest.approx(candidate["memory_bytes"])
    assert document["optimality"]["bound_s"] <= lengths[0]


def test_every_kind_of_plan_of_a_model_is_ranked_on_nodes_of_two_kinds(
    model: str, tmp_path: Path, planned: Run
) -> None:
    """Kinds are as fast as their rooflines say of the model; plans that partition operators are read back as well."""
    group = "{nodes: 1, devices_per_node: 2, device: %s, intra: 1e12, inter: 1e7, memory: %s}"
    (tmp_path / "two.yaml").write_text(f"groups: [{group % ('v100', '1e9')}, {group % ('t4', '5e8')}]")
    arguments = (model, "--topo", "two.yaml", "--global-batch", "64", "--budget", "0.3", "--max-stages", "2")
    document = planned(*arguments, "--forbid", "data", "--out", "plan.json")
    fast, slow = (entry["speed"] for entry in document["cluster"]["groups"])
    assert (fast, slow < fast) == (1.0, True)  # by default times are those of a v100
    assert slow > 320 / 900 - 1e-9  # of which a t4 has this share of the bandwidth, and more of the rest
    kinds = {candidate["kind"]: candidate for candidate in document["candidates"]}
    assert kinds.keys() >= {"operator", "pipeline"} or kinds.keys() >= {"operator", "hybrid"}
    assert document["optimality"]["bound_s"] <= document["best"]["step_s"]
    again = planned(model, "--topo", "two.yaml", "--plan", "plan.json")
    assert again["step_s"] == pytest.approx(document["best"]["step_s"])


def test_the_best_plan_is_written_and_read_back(
    model: str, topo: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without pipelines and replicas, operators are partitioned over all devices."""
    out, picture = tmp_path / "plan.json", tmp_path / "plans.png"
    arguments = [model, "--topo", topo, "--global-batch", "64", "--out", str(out), "--plot", str(picture)]
    arguments += ["--forbid", "pipeline", "--forbid", "data"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert f"plan: {out}" in printed.replace("\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    document = json.loads(out.read_text())
    assert document["kind"] == "pipeline"
    assert all(stage["tensor"] > 1 for stage in document["stages"])
    (kept,) = cache.glob("model-*")
    archive = Cache(cache).read(kept.name)
    assert archive is not None
    result = read_plan(out, decode_record(archive, ProfiledModel), read_cluster(topo))
    cost = result.cost
    assert cost.feasible
    assert cost.step_s == pytest.approx(document["step_s"])


def test_a_profile_is_planned_without_its_operations(profile: str, topo: str, tmp_path: Path, planned: Run) -> None:
    out = tmp_path / "plan.json"
    document = planned(profile, "--topo", topo, "--global-batch", "128", "--out", str(out))
    assert {candidate["kind"] for candidate in document["candidates"]} <= {"data", "pipeline"}
    assert {absence["kind"]: absence["why"] for absence in document["absent"]}["operator"] == (
        "a profile has no operations to partition"
    )
    result = read_plan(out, read_npz(profile), read_cluster(topo))
    problem, plan = result.problem, result.required_plan()
    assert plan.stages == document["candidates"][0]["stages"]
    assert problem.micro_batches == document["candidates"][0]["micro_batches"]


def test_people_read_a_ranking_the_best_plan_and_how_far_it_is_proven(
    profile: str, topo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([profile, "--topo", topo]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("eight on pair: 2 nodes", "64 samples", "why not", "best: ", "optimum", "a profile has no operations"):
        assert part in printed


@pytest.mark.parametrize(
    "limits", [("--max-stages", "2", "--budget", "0.5"), ("--forbid", "pipeline", "--forbid", "data")]
)
def test_a_plan_made_before_is_shown(
    limits: tuple[str, ...], model: str, topo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], planned: Run
) -> None:
    out = tmp_path / "plan.json"
    best = planned(model, "--topo", topo, "--out", str(out), *limits)["candidates"][0]
    shown = planned(model, "--topo", topo, "--plan", str(out))
    for key in ("kind", "length_s", "memory_bytes", "breakdown", "shardings", "degrees"):
        assert shown[key] == best[key]
    assert main([model, "--topo", topo, "--plan", str(out)]) == 0
    assert best["name"] in capsys.readouterr().out
    assert main([model, "--topo", "A", "--plan", str(out)]) == 2
    assert "but cluster A has" in capsys.readouterr().err


def test_thorough_goes_to_the_end_and_trains_an_agent_too(profile: str, topo: str, planned: Run) -> None:
    pytest.importorskip("torch")
    quick, thorough = planned(profile, "--topo", topo), planned(profile, "--topo", topo, "--thorough")
    assert thorough["optimality"]["proof"] == "exact"
    assert thorough["best"]["step_s"] <= quick["best"]["step_s"] * (1 + 1e-9)


# --- constraints -------------------------------------------------------------------------------------------------


def test_constraints_are_honoured(profile: str, topo: str, planned: Run) -> None:
    arguments = (profile, "--topo", topo, "--pin", "layer_3=1", "--keep-together", "layer_1", "--max-stages", "2")
    document = planned(*arguments, "--memory", "900 MB")
    assert document["cluster"]["memory"] == 9e8
    (cut,) = document["best"]["cuts"]
    assert cut in (1, 3, 4, 5)
    forbidden = planned(profile, "--topo", topo, "--forbid", "pipeline")
    assert [candidate["kind"] for candidate in forbidden["candidates"]] == ["data"]


def test_equal_stages_and_cuts_at_layers_are_honoured_and_no_shorter_than_free_ones(
    profile: str, topo: str, planned: Run
) -> None:
    document = planned(profile, "--topo", topo, "--equal-replicas", "--cut-at", "layer_*", "--min-gain", "0")
    assert (document["objective"], document["schedule"]) == ("step", "1f1b")
    for candidate in document["candidates"]:
        devices = [degree["data"] * degree["tensor"] for degree in candidate["degrees"]]
        assert len(set(devices)) == 1
    free = planned(profile, "--topo", topo, "--min-gain", "0 %")
    assert free["best"]["step_s"] <= document["best"]["step_s"] * (1 + 1e-9)


def test_the_length_ranks_as_before_there_were_schedules(profile: str, topo: str, planned: Run) -> None:
    document = planned(profile, "--topo", topo, "--objective", "length")
    assert (document["objective"], document["schedule"]) == ("length", None)
    for candidate in document["candidates"]:
        assert candidate["step_s"] == candidate["length_s"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--schedule", "zigzag"), "--schedule: invalid choice: 'zigzag'"),
        (("--schedule", "gpipe", "--objective", "length"), "--schedule: is not that of a length"),
        (("--min-gain", "2"), "--min-gain: a gain of 2; give a share from 0 to 1"),
        (("--min-gain", "5 cm"), "--min-gain: '5 cm' is no share such as 0.005 or 0.5 %"),
        (("--cut-at", "lyer_*"), "--cut-at: 'lyer_*' matches no layer; the nearest names are layer_"),
    ],
)
def test_a_wrong_option_of_the_step_costs_one_line(
    arguments: tuple[str, ...], sentence: str, profile: str, topo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([profile, "--topo", topo, *arguments]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_what_can_be_forbidden_is_what_constraints_know() -> None:
    assert get_args(Technique) == FORBIDDABLE


def test_the_operators_of_a_model_may_be_left_whole(model: str, topo: str, planned: Run) -> None:
    document = planned(model, "--topo", topo, "--forbid", "operator")
    assert {candidate["kind"] for candidate in document["candidates"]} <= {"data", "pipeline"}
    assert {absence["why"] for absence in document["absent"]} == {"ruled out by --forbid operator"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pin", "layer_3"], "not LAYER=STAGE"),
        (["--pin", "layer_9=1"], "matches no layer"),
        (["--pin", "layer_0=1"], "--pin layer_0=1"),
        (["--pin", "layer_2=2", "--pin", "layer_3=1"], "--pin layer_2=2"),
        (["--pin", "layer_1=0", "--pin", "layer_2=1", "--keep-together", "layer_[12]"], "--keep-together"),
        (["--pin", "layer_3=2", "--max-stages", "2"], "--max-stages 2"),
        (["--pin", "layer_3=1", "--forbid", "pipeline"], "--forbid pipeline"),
        (["--forbid", "data", "--forbid", "operator", "--forbid", "pipeline"], "nothing is left by which"),
        (["--max-stages", "0"], "no whole number"),
        (["--forbid", "magic"], "invalid choice"),
        (["--memory", "none"], "--memory: 'none' is no size such as 32 GB, 80 GiB or 32e9 (bytes)"),
        (["--memory", "16 Gb"], "--memory: '16 Gb' is no size such as"),
        (["--memory", "16 GB/s"], "--memory: '16 GB/s' is no size such as"),
        (["--memory", "1e30"], "more than"),
        (["--memory", "-1"], "no positive size"),
        (["--budget", "0"], "no positive time such as"),
        (["--budget", "2 moons"], "--budget: '2 moons' is no time such as 5 us, 300 ms, 20 s or 2 min (seconds)"),
        (["--global-batch", "0"], "no whole number"),
        (["--global-batch", "2000000000"], "give 1 to"),
        (["--state-factor", "-1"], "state factor"),
        (["--device", "a100"], "is a profile, with times"),
        (["--batch", "3"], "is a profile, with times"),
        (["--microbatch-size", "3"], "says 4 samples itself"),
        (["--out", "no/such/folder/plan.json"], "no folder"),
        (["--plot", "plan.txt"], "no kind of picture"),
        (["--plan", "no_such.json"], "cannot be read"),
        (["--plan", "plan.json", "--global-batch", "3"], "--global-batch: the plan read has its own"),
        (["--plan", "plan.json", "--thorough"], "--thorough: the plan read has its own"),
    ],
)
def test_a_mistake_costs_one_line(
    arguments: list[str], message: str, profile: str, refuses: Callable[..., Callable[..., str]]
) -> None:
    assert message in refuses(main, "automap plan")(profile, "--topo", "A", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["t5_11b"], "--topo"),
        (["t5_12b", "--topo", "A"], "did you mean t5_11b"),
        (["vgg19", "--topo", "Z"], "neither a known cluster"),
        (["vgg19", "--topo", "A", "--device", "v10"], "v100"),
        (["no_such.npz", "--topo", "A"], "cannot be read"),
        (["no_such_module:make", "--topo", "A"], "no_such_module"),
    ],
)
def test_a_wrong_model_or_cluster_costs_one_line(
    arguments: list[str], message: str, refuses: Callable[..., Callable[..., str]]
) -> None:
    assert message in refuses(main, "automap plan")(*arguments)


def test_what_fits_nowhere_is_infeasible_and_says_what_would(
    profile: str, tmp_path: Path, refuses: Callable[..., Callable[..., str]]
) -> None:
    message = refuses(main, "automap plan")(profile, "--topo", "A", "--memory", "2e6", "--no-cache", code=3)
    assert "no plan fits the 0.002 GB" in message
    assert "GB would fit (pipeline)" in message


def test_the_input_is_not_overwritten(profile: str, topo: str, refuses: Callable[..., Callable[..., str]]) -> None:
    assert "is an input" in refuses(main, "automap plan")(profile, "--topo", topo, "--out", profile)
    assert "is an input" in refuses(main, "automap plan")(profile, "--topo", topo, "--out", topo)


# --- the cache ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [None, b"", b"not an entry", b"truncated"])
def test_what_was_traced_is_kept_and_a_damaged_entry_is_written_again(
    damage: bytes | None, model: str, topo: str, planned: Run, cache: Path
) -> None:
    arguments = [model, "--topo", topo, "--max-stages", "1"]
    first = planned(*arguments)
    (entry,) = cache.glob("model-*")
    whole = entry.read_bytes()
    if damage is not None:
        entry.write_bytes(whole[: len(whole) // 2] if damage == b"truncated" else damage)
    second = planned(*arguments)
    for document in (first, second):
        document["best"].pop("planning_s")
        document.pop("exploring_s")
    assert first == second
    assert entry.read_bytes() == whole


def test_no_cache_neither_reads_nor_writes(model: str, topo: str, planned: Run, cache: Path) -> None:
    planned(model, "--topo", topo, "--max-stages", "1", "--no-cache")
    assert not cache.exists()


def test_a_factory_is_known_by_what_it_makes(model: str, topo: str, planned: Run, cache: Path) -> None:
    """The module is traced again; its profile is not made again unless its operations are others."""
    arguments = [model, "--topo", topo, "--max-stages", "1"]
    for more, entries in (((), 1), ((), 1), (("--batch", "16"), 2)):
        planned(*arguments, *more)
        assert len([*cache.glob("model-*")]) == entries
