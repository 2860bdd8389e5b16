"""automap profile on models: factories of both frameworks, HLO files, everything that can be wrong with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from automap_models.formats.npz import read_npz
from automap_models.infer.app import infer as plan
from automap_models.infer.app import profile as main
from automap_models.user_code import call_factory

WIDTH, LAYERS = 16, 3
PARAMETER_BYTES = 4.0 * LAYERS * (WIDTH * WIDTH + WIDTH)

JAX_MODEL = """
import jax
import jax.numpy as jnp

print("hello from the user's module")


def make_step(batch=8, dtype="float32"):
    def loss(params, data):
        x = data["x"]
        for name, layer in params.items():
            with jax.named_scope(name):
                x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
        return ((x - data["y"]) ** 2).mean()

    def step(params, data):
        value, gradients = jax.value_and_grad(loss)(params, data)
        with jax.named_scope("optimizer"):
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    of = jax.ShapeDtypeStruct
    layer = {"kernel": of((16, 16), dtype), "bias": of((16,), dtype)}
    return step, ({f"dense_{i}": layer for i in range(3)}, {name: of((batch, 16), dtype) for name in "xy"})


def make_strange_step():
    step, arguments = make_step()

    def strange(params, data):
        x = jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct((8, 16), jnp.float32))(jax.lax.stop_gradient(data["x"]))
        return step(params, {"x": x, "y": data["y"]})

    return strange, arguments


def make_broken_step():
    def broken(params, data):
        return params["dense_0"]["kernel"] @ data["x"]

    return broken, make_step()[1]
"""
TORCH_MODEL = """
import torch
from torch import nn


def make_model(batch=8):
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))), torch.empty(batch, 16)


def make_other():
    return nn.Linear(2, 2)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a user's modules in it."""
    modules = {"their_jax": JAX_MODEL, "their_torch": TORCH_MODEL, "their_broken": "import no_such_dependency\n"}
    for name, source in modules.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in modules:
        sys.modules.pop(name, None)


def _hlo(folder: Path, *, dialect: str = "hlo", optimised: bool = False) -> Path:
    """The factory's step as a file."""
    import jax

    step, arguments = call_factory("their_jax:make_step")
    lowered = jax.jit(step).lower(*arguments)
    text = lowered.compile().as_text() if optimised else lowered.as_text(dialect=dialect, debug_info=True)
    path = folder / f"step.{dialect}"
    path.write_text(text)
    return path


def test_a_jax_factory_becomes_a_profile_that_can_be_planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    assert main(["their_jax:make_step", "-o", "p.npz", "--batch", "32", "--model", "mine"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "hello from the user's module\n" in err
    profile = read_npz("p.npz")
    assert profile.W.sum() == PARAMETER_BYTES
    assert (profile.model, profile.meta["microbatch_size"], profile.meta["device"]) == ("mine", 32, "v100")
    assert {"dense_0", "dense_1", "dense_2"} <= set(profile.layers)
    assert plan(["p.npz", "--topo", "A", "--stages", "2", "--planner", "exact", "--json"]) == 0


def test_a_torch_factory_becomes_a_profile_whose_cuts_are_modules(folder: Path) -> None:
    pytest.importorskip("torch")
    options = ["their_torch:make_model", "--batch", "4"]
    assert main([*options, "-o", "p.npz", "--device", "a100"]) == 0
    profile = read_npz("p.npz")
    assert profile.W.sum() == PARAMETER_BYTES
    assert profile.names[:2] == ("0", "1")
    assert (profile.meta["microbatch_size"], profile.meta["device"]) == (4, "a100")
    np.testing.assert_array_equal(profile.A, [4 * 16 * 4, 4 * 16 * 4, 0])
    assert main([*options, "-o", "m.npz", "--measure", "--repeats", "2", "--warmup", "1", "--seed", "3"]) == 0
    measured = read_npz("m.npz")
    assert (measured.meta["times"], measured.meta["repeats"]) == ("measured per module", 2)
    np.testing.assert_array_equal(measured.A, profile.A)


def test_a_jax_step_is_measured_on_this_machine(folder: Path) -> None:
    pytest.importorskip("jax")
    measure = ["--measure", "--repeats", "2", "--warmup", "1"]
    assert main(["their_jax:make_step", "-o", "p.npz", *measure]) == 0
    meta = read_npz("p.npz").meta
    assert (meta["times"], meta["repeats"], meta["warmup"]) == ("measured per instruction", 2, 1)


def test_a_built_in_model_takes_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flax")
    assert main(["vgg19", "--batch", "2", "--device", "h100", "--json", "-o", str(tmp_path / "p.npz")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parameter_bytes"] == 4 * 143_667_240  # torchvision's count, too
    assert document["meta"]["microbatch_size"] == 2
    assert document["heaviest_layers"][0]["share"] < 1
    assert read_npz(tmp_path / "p.npz").fingerprint == document["fingerprint"]


CONFIG = {"model_type": "gpt2", "vocab_size": 40, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}


def test_a_config_json_takes_the_options_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flax")
    config = tmp_path / "tiny" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(CONFIG))
    profile = tmp_path / "p.npz"
    options = ["--batch", "2", "--sequence", "4", "--dtype", "bfloat16", "--json"]
    assert main([str(config), *options, "-o", str(profile)]) == 0
    document = json.loads(capsys.readouterr().out)
    # words and positions; q, k, v, o with biases; two matrices four times as wide with biases; three norms
    assert document["parameter_bytes"] == 4 * (56 * 8 + 4 * 72 + (8 * 32 + 32 + 32 * 8 + 8) + 3 * 16)
    meta = document["meta"]
    assert (meta["model"], meta["microbatch_size"], meta["dtype"]) == ("tiny", 2, "bfloat16")
    assert plan([str(config), "--topo", "C"]) == 2
    assert "is a model, not a profile; run automap profile" in capsys.readouterr().err
    assert plan([str(profile), "--topo", "C", "--stages", "2", "--refine-budget", "0"]) == 0


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        (
            {"model_type": "mamba9", "state_size": 16},
            [],
            "$.model_type is 'mamba9', not one of arcee, bamba, bart, bert, blenderbot, bloom",
        ),
        ({"n_layer": None}, [], "$.n_layer is None, not a whole number"),
        ({"n_head": 3}, [], "$.n_head is 3, which does not divide $.n_embd, 8; check both numbers"),
        ({}, ["--sequence", "17"], "tiny has 16 positions, 17 were asked for"),
        ({}, ["--trainable", "x"], "is a Hugging Face config, built as a JAX model"),
    ],
)
def test_a_config_json_that_cannot_be_used_costs_one_line(
    changes: dict[str, object], arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flax")
    config = tmp_path / "tiny" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps({**CONFIG, **changes}))
    assert main([str(config), *arguments, "-o", str(tmp_path / "p.npz")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "p.npz").exists()


@pytest.mark.parametrize("dialect", ["hlo", "stablehlo"])
def test_an_hlo_file_gives_what_the_function_does(
    folder: Path, dialect: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax")
    assert main(["their_jax:make_step", "--json"]) == 0
    traced = json.loads(capsys.readouterr().out)
    assert main([str(_hlo(folder, dialect=dialect)), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    for key in ("instructions", "parameter_bytes", "stash_bytes"):
        assert read[key] == traced[key]
    assert read["time_s"] == pytest.approx(traced["time_s"])


def test_the_trainable_parameters_of_a_file_can_be_told(folder: Path) -> None:
    pytest.importorskip("jax")
    assert main([str(_hlo(folder)), "--trainable", "params/*/kernel", "-o", "p.npz"]) == 0
    assert read_npz("p.npz").W.sum() == 4 * LAYERS * WIDTH * WIDTH


def test_an_unknown_custom_call_is_named_and_costs_its_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    assert main(["their_jax:make_strange_step", "--show"]) == 0
    out, err = capsys.readouterr()
    warning = "nobody knows what these custom calls cost, so only their bytes count: my_kernel (1×)"
    assert f"automap profile: warning: {warning}\n" in err
    assert "my_kernel" in out


BAD_FILES = {
    "text": ("hello\n", "text: is no profile in a known format; a profile is an .npz file"),
    "broken.hlo": ("HloModule broken\n\nENTRY main {\n  this is no HLO\n", "broken.hlo: "),
    "no_parameters.hlo": (
        "HloModule constant, entry_computation_layout={()->f32[]}\n\nENTRY main {\n  ROOT c = f32[] constant(1)\n}\n",
        "no_parameters: has no backward pass that can be told from the forward pass; give a whole training step",
    ),
    "dynamic.mlir": (
        "module @m {\n  func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> {\n"
        "    %0 = stablehlo.add %a, %a : tensor<?xf32>\n    return %0 : tensor<?xf32>\n  }\n}\n",
        "dynamic.mlir: has dynamic shapes",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_training_step_is_refused_in_one_line(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax")
    content, message = BAD_FILES[name]
    (folder / name).write_text(content)
    assert main([f"./{name}", "-o", "p.npz"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("automap profile: error: ")
    assert message in err
    assert not Path("p.npz").exists()


def test_hlo_after_optimisation_is_told_which_dump_to_give(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    assert main([str(_hlo(folder, optimised=True)), "--show"]) == 2
    err = capsys.readouterr().err
    assert "is HLO after optimisation" in err
    assert "before_optimizations.txt" in err


@pytest.mark.parametrize(
    ("arguments", "last_line_of_theirs", "message"),
    [
        (["their_broken:make"], "ModuleNotFoundError: No module named 'no_such_dependency'", "their_broken:make: "),
        (["their_jax:make_broken_step"], "TypeError: dot_general requires", "their_jax:make_broken_step: TypeError"),
    ],
)
def test_what_the_user_s_code_raises_is_shown_as_they_would_see_it(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], last_line_of_theirs: str, message: str
) -> None:
    pytest.importorskip("jax")
    assert main([*arguments, "-o", "p.npz"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback (most recent call last):" in lines
    assert any(line.startswith(last_line_of_theirs) for line in lines)
    assert any(f'File "{folder}' in line for line in lines)
    assert lines[-1].startswith(f"automap profile: error: {message}")
    assert not Path("p.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["their_jax:nothing"], "their_jax:nothing: their_jax ("),
        (["their_jax:make_step", "--sequence", "7"], "their_jax:make_step: takes no argument 'sequence'"),
        (["no_such_module:make"], "no_such_module:make: no module no_such_module in "),
        (["their_torch:make_other"], "their_torch:make_other: returned a Linear, not a model with"),
    ],
)
def test_a_factory_that_cannot_be_used_costs_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    pytest.importorskip("torch" if "torch" in arguments[0] else "jax")
    assert main([*arguments, "--show"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(f"automap profile: error: {message}")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("blocked", "arguments", "extra"),
    [
        ("jax", ["vgg19"], "jax"),
        ("flax", ["vgg19"], "jax"),
        ("jax", ["their_jax:make_step"], "jax"),
        ("jax", ["step.hlo"], "jax"),
        ("torch", ["their_torch:make_model"], "torch"),
        ("matplotlib", ["net.txt", "--plot", "p.png"], "plot"),
    ],
)
def test_a_missing_extra_is_named_with_its_pip_command(
    folder: Path, blocked: str, arguments: list[str], extra: str
) -> None:
    (folder / "step.hlo").write_text("HloModule step\n")
    (folder / "net.txt").touch()
    program = (
        f"import sys; sys.modules[{blocked!r}] = None\n"
        "from automap_models.infer.app import profile as main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments, "--show"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"pip install 'automap-models[{extra}]'" in done.stderr
