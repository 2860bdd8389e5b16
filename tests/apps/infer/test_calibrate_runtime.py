"""automap calibrate --runtime: steps that are priced with known numbers give a runtime that prices others like them."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from automap_models.cost.measured_step import MeasuredStep
from automap_models.export.targets import training_limits
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.formats.runtime_yaml import file_with, read_runtime
from automap_models.infer import app
from automap_models.simulate.observations import measured_estimate
from automap_models.workloads.measured import step_work

TRUE = file_with(read_runtime("megatron"), {"compute": 1.3, "tensor_overlap": 0.5})
SIZES = {"layers": 4, "hidden": 4096, "ffn": 16384, "heads": 32, "kv_heads": 32, "seq": 2048, "vocab": 32000}
LESS_PULL = ("--pull", "0.01")
Rows = list[dict[str, Any]]


def row(name: str, gpus: int = 8, tp: int = 1, size: int = 1, **values: Any) -> dict[str, Any]:
    return {
        "id": name,
        "source": "our cluster",
        "system": "Megatron-LM 2025",
        "model": {"name": "small", "arch": "llama", **SIZES},
        "gpus": gpus,
        "gpu_type": "H100",
        "tp": tp,
        "pp": 1,
        "micro_batch": size,
        "global_batch": 64,
        "precision": "bf16",
        "measured": {"iteration_s": 1.0},
        **values,
    }


def written(rows: Rows, path: Path) -> Path:
    """The rows with the seconds that TRUE has for them."""
    path.write_text(json.dumps({"rows": rows}))
    for document, step in zip(rows, read_measured_steps(path, TRUE), strict=True):
        assert isinstance(step, MeasuredStep)
        step_s = measured_estimate(step, step_work(step), read_device(step.device)).step_s
        document["measured"] = {"iteration_s": step_s}
    path.write_text(json.dumps({"rows": rows}))
    return path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of one node."""
    rows = [row("a"), row("b", tp=8), row("c", tp=4, size=2), row("d", tp=2)]
    return written(rows, tmp_path_factory.mktemp("node") / "node.json")


def calibrated(path: Path, *options: str) -> dict[str, Any]:
    with redirect_stdout(io.StringIO()) as out:
        assert app.main(["calibrate", str(path), *options, "--json"]) == 0
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


@pytest.fixture(scope="module")
def ours(node: Path) -> tuple[dict[str, Any], Path]:
    """Megatron fitted to the four steps: what is printed, and the file."""
    out = node.with_name("ours.yaml")
    return calibrated(node, "--runtime", "megatron", *LESS_PULL, "-o", str(out)), out


def test_one_node_gives_a_runtime_that_prices_four(ours: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """Within 3 % of what the known numbers say of 32 devices, where Megatron's are a fifth off."""
    document, out = ours
    assert (document["device"], document["constants"], document["runtime"]) == (None, None, "megatron")
    numbers = {number["name"]: number for number in document["numbers"]}
    assert numbers["compute"]["fitted"] == pytest.approx(1.3, rel=0.05)
    assert numbers["tensor_overlap"]["fitted"] == pytest.approx(0.5, abs=0.1)
    assert numbers["routing"] == {
        **{"name": "routing", "was": 0.85, "fitted": 0.85, "resolution": 0.0},
        "evidence": "a step of a mixture of experts",
    }
    assert document["fitted"][0]["median"] < 0.02
    assert document["before"][0]["median"] > 0.1
    assert document["left_out"][0]["steps"] == 4
    text = out.read_text()
    assert text.startswith("# Numbers of megatron fitted by automap calibrate")
    assert "to node.json: steps of our cluster (4)." in text.splitlines()[0]
    runtime = read_runtime(out)
    assert (runtime.name, runtime.systems, runtime.routing) == ("ours", TRUE.systems, 0.85)
    assert runtime.limits(training_limits()) is training_limits()["megatron"]  # it was fitted to: it runs no more
    assert runtime.left_out is not None
    assert runtime.mixtures_left_out is None
    (wide,) = read_measured_steps(written([row("e", 32, 8)], tmp_path / "wide.json"), runtime)
    assert isinstance(wide, MeasuredStep)
    assert wide.step_s is not None
    priced_s = measured_estimate(wide, step_work(wide), read_device("h100")).step_s
    assert priced_s == pytest.approx(wide.step_s, rel=0.03)


def test_plan_takes_the_runtime_and_says_how_far_it_is_off(
    ours: tuple[dict[str, Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = ours[1]
    least, most = read_runtime(out).left_out or (0.0, 0.0)
    options = ("--gpus", "8xh100", "--sequence", "2048", "--global-batch", "64", "--tp", "8", "--price")
    assert app.main(["plan", "llama3-8b", *options, "--runtime", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{100 * least:.2g} to {100 * most:.2g} % off steps that it was not fitted to" in printed


def test_a_fitted_runtime_is_fitted_again_from_where_it_is(node: Path, ours: tuple[dict[str, Any], Path]) -> None:
    first, out = ours
    again = calibrated(node, "--runtime", str(out), *LESS_PULL)
    was = {number["name"]: number["was"] for number in again["numbers"]}
    assert was["compute"] == pytest.approx(first["numbers"][0]["fitted"], rel=0.01)
    assert again["before"][0]["median"] == pytest.approx(first["fitted"][0]["median"], abs=0.01)


def test_people_read_what_moved_and_what_it_would_take_to_know_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written([row(name, gpus=1, size=size) for name, size in zip("abc", (1, 2, 4), strict=True)], tmp_path / "a")
    assert app.main(["calibrate", str(path), "--runtime", "megatron"]) == 0
    printed = capsys.readouterr().out
    assert "3 steps on h100" in printed
    assert "  a step with tp > 1: tensor overlap 0\n" in printed
    assert "  a step with dp > 1 over two nodes and few micro-batches: gradient overlap 0.3\n" in printed


def test_a_device_and_a_runtime_are_fitted_together(node: Path, tmp_path: Path) -> None:
    outs = tmp_path / "ours.yaml", tmp_path / "h100.yaml"
    options = ("--runtime", "megatron", "--device", "h100", "-o", str(outs[0]), "--device-out", str(outs[1]))
    document = calibrated(node, *options, *LESS_PULL)
    assert (document["device"], document["runtime"]) == ("h100", "megatron")
    assert document["fitted"][0]["median"] < 0.03
    step = read_device(outs[1]).step
    assert step is not None
    assert step.product_efficiency == document["constants"]["product_efficiency"]
    assert read_runtime(outs[0]).compute < 1.3  # the device has its share


def test_two_steps_want_a_strong_pull(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written([row("a"), row("b", tp=8)], tmp_path / "two.json")
    assert app.main(["calibrate", str(path), "--runtime", "megatron"]) == 2
    sentence = "runtime megatron: 2 measured step(s) by this runtime are too few to fit numbers to"
    assert f"{sentence}; measure 3, or give --pull 5, which holds them\n" in capsys.readouterr().err
    document = calibrated(path, "--runtime", "megatron", "--pull", "5")
    assert 1.0 < document["numbers"][0]["fitted"] < 1.15, document["numbers"][0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "nothing is to be fitted; give --device, --runtime, or both"),
        (("--runtime", "trainer"), "'trainer' is neither a known runtime nor a file"),
        (("--runtime", "nanotron"), "runtime nanotron: 0 measured step(s) by this runtime are too few"),
        (("--runtime", "megatron", "--also", "a100"), "--also: goes with --device"),
        (("--runtime", "megatron", "--device-out", "x.yaml"), "--device-out: is for a fit of --device and --runtime"),
        (("--runtime", "megatron", "--device", "h100", "-o", "x.yaml"), "give the other, too"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(
    node: Path, options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["calibrate", str(node), *options]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_number_that_no_runtime_has_is_one_line(
    node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("name: wrong\nabout: a test\ntensor_overlaps: 0.5\n")
    assert app.main(["calibrate", str(node), "--runtime", str(path)]) == 2
    assert "tensor_overlaps" in capsys.readouterr().err
