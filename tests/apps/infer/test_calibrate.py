"""automap calibrate: what is priced with known constants gives a device with them, and mistakes are one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from automap_models.core.device import StepConstants
from automap_models.core.profile import Profile
from automap_models.cost.measured_step import DescribedModel, MeasuredStep
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.formats.npz import write_npz
from automap_models.infer import app
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.observations import measured_estimate, passes_estimate
from automap_models.workloads.measured import measured_passes, passes_work, step_work

pytest.importorskip("flax")

TRUE = StepConstants(0.5, 60.0, 0.3, 0.65, 6e-6, 0.3, 0.4, 0.3)
SIZES = {"layers": 4, "hidden": 1024, "ffn": 4096, "heads": 8, "kv_heads": 8, "seq": 128, "vocab": 1024}


def row(name: str, source: str, **values: Any) -> dict[str, Any]:
    return {
        "id": name,
        "source": source,
        "system": "Megatron-LM 2021",
        "model": {"name": "small", "arch": "gpt", **SIZES},
        "gpus": 8,
        "gpu_type": "A100-80GB SXM",
        "tp": 1,
        "pp": 1,
        "micro_batch": 16,
        "global_batch": 256,
        "precision": "bf16",
        "measured": {"iteration_s": 1.0},
        **values,
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Twelve rows of two sources, priced with TRUE, which has slower products and links than are usual.

    Beside them are one of another device and one that cannot be priced.
    """
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AUTOMAP_CACHE", str(folder / "cache"))
        yield _priced_rows(folder)


def _priced_rows(folder: Path) -> Path:
    plans = [(tp, size, recompute) for tp in (1, 4, 8) for size in (4, 16) for recompute in ("none", "full")]
    documents = [
        row(f"row-{i}", ("one", "two")[i % 2], tp=tp, micro_batch=size, recompute=recompute)
        for i, (tp, size, recompute) in enumerate(plans)
    ]
    documents += [row("other", "one", gpu_type="H100"), row("odd", "one", gpu_type="Abacus")]
    path = folder / "rows.json"
    path.write_text(json.dumps({"rows": documents}))
    device = replace(read_device("a100"), step=TRUE)
    for document, step in zip(documents, read_measured_steps(path), strict=True):
        if isinstance(step, MeasuredStep):
            document["measured"] = {"iteration_s": measured_estimate(step, step_work(step), device).step_s}
    path.write_text(json.dumps({"rows": documents}))
    return path


def test_rows_are_priced_as_they_were_with_the_constants_that_are_fitted_to_them(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    assert app.main(["calibrate", str(rows), "--device", "a100", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["steps"], printed["other_rows"]) == (12, 1)
    assert printed["skipped"] == [{"id": "odd", "reason": "`gpu_type`: no device is shipped for 'Abacus'"}]
    assert printed["constants"]["intra_efficiency"] < 0.95 * USUAL.intra_efficiency
    assert printed["constants"]["product_efficiency"] < 0.95 * USUAL.product_efficiency
    assert [errors["source"] for errors in printed["left_out"]] == ["one", "two"]
    assert all(errors["median"] < 0.05 for errors in [*printed["fitted"], *printed["left_out"]])
    written = read_device(out)
    assert written.step is not None
    assert asdict(written.step) == printed["constants"]
    assert written == replace(read_device("a100"), step=written.step, fitted_to=("one", "two"))
    assert out.read_text().startswith("# step: fitted by automap calibrate")


def test_constants_and_errors_are_printed_for_people(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.json"
    few.write_text(json.dumps({"rows": json.loads(rows.read_text())["rows"][-4:]}))
    assert app.main(["calibrate", str(few), "--device", "a100", "--also", "h100"]) == 0
    printed = capsys.readouterr().out
    assert "3 steps on a100" in printed
    assert "product efficiency" in printed
    assert "1 row(s) left out: `gpu_type`: no device is shipped for 'Abacus'" in printed


@pytest.mark.parametrize(
    ("device", "sentence"),
    [("k80", "'k80' is neither a known device nor a file"), ("t4", "device t4: no measured step is of this kind")],
)
def test_a_device_that_is_unknown_or_in_no_row_is_one_line(
    rows: Path, tmp_path: Path, device: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    assert app.main(["calibrate", str(rows), "--device", device, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_rows_that_lack_a_field_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    document = row("row", "one")
    del document["gpus"]
    path.write_text(json.dumps({"rows": [document]}))
    assert app.main(["calibrate", str(path), "--device", "a100"]) == 2
    assert "rows.json: $.rows[0].gpus is missing" in capsys.readouterr().err


CONFIG = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 64, "n_layer": 4, "n_head": 4}


def _profile(path: Path, samples: int, **meta: Any) -> Path:
    """A profile of CONFIG with the times that TRUE gives it on an A100, unless `meta` says otherwise."""
    about = {
        "times": "measured per module",
        "device": "mine",
        "dtype": "bfloat16",
        "microbatch_size": samples,
        "transformer": {"config": json.dumps(CONFIG), "sequence": 128, "dropout": False, "flash": True},
        **meta,
    }
    passes = measured_passes(_timed(1.0, 2.0, about), path.stem, DescribedModel(config=json.dumps(CONFIG)), 128)
    work = passes_work(passes)
    forward_s, backward_s, _ = passes_estimate(passes, work, replace(read_device("a100"), step=TRUE))
    write_npz(path, _timed(forward_s, backward_s, about))
    return path


def _timed(forward_s: float, backward_s: float, meta: dict[str, Any]) -> Profile:
    halves = [0.5, 0.5]
    times = {"C": [(forward_s + backward_s) * x for x in halves], "C_fwd": [forward_s * x for x in halves]}
    return Profile.create(**times, A=[1.0, 0.0], W=[1.0, 1.0], meta={"times": "measured", **meta})


@pytest.fixture(scope="module")
def profiles(rows: Path) -> list[str]:
    """Two profiles; `rows` keeps a cache of traced models meanwhile."""
    return [str(_profile(rows.parent / f"of-{samples}.npz", samples)) for samples in (1, 64)]


def test_profiles_are_priced_as_they_were_with_the_constants_that_are_fitted_to_them(
    profiles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    assert app.main(["calibrate", *profiles, "--device", "a100", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [errors["source"] for errors in printed["fitted"]] == profiles
    assert all(errors["median"] < 0.05 for errors in printed["fitted"])
    shipped, fitted = read_device("a100").step, read_device(out).step
    assert shipped is not None
    assert fitted is not None
    for name in ("intra_efficiency", "inter_efficiency", "overlap"):
        assert getattr(fitted, name) == pytest.approx(getattr(shipped, name), rel=1e-3), name
    assert app.main(["calibrate", *profiles, "--device", "a100"]) == 0
    assert "a step over two nodes: inter efficiency" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("meta", "options", "sentence"),
    [
        ({"times": "roofline"}, (), "its times are not measured"),
        ({"transformer": None}, (), "does not say which transformer it is of"),
        ({"transformer": None}, ("--model", "gpt2"), "does not say how many tokens a sample has"),
        ({"dtype": "float64"}, (), "computes in float64"),
        ({}, ("--model", "vgg19"), "has no layers that a strategy can divide"),
    ],
)
def test_a_profile_that_says_too_little_is_one_line(
    tmp_path: Path, meta: dict[str, Any], options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, described = tmp_path / "one.npz", {"config": json.dumps(CONFIG), "sequence": 128}
    about = {"times": "measured", "microbatch_size": 2, "transformer": described, **meta}
    write_npz(path, _timed(1.0, 2.0, about))
    assert app.main(["calibrate", str(path), "--device", "a100", *options]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_profiles_of_two_devices_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name in ("one", "two"):
        described = {"config": json.dumps(CONFIG), "sequence": 128}
        write_npz(
            tmp_path / f"{name}.npz", _timed(1.0, 2.0, {"device": name, "microbatch_size": 2, "transformer": described})
        )
        paths.append(str(tmp_path / f"{name}.npz"))
    assert app.main(["calibrate", *paths, "--device", "a100"]) == 2
    assert "two.npz: was measured on 'two'" in capsys.readouterr().err
