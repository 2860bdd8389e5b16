"""automap-calibrate: rows that are priced with known constants give a device with them, and mistakes are one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from automap_models.core.device import StepConstants
from automap_models.core.measured import MeasuredStep
from automap_models.formats.atomic import Cache, cache_folder
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.infer import app
from automap_models.simulate.calibration import USUAL
from automap_models.simulate.measured import measured_estimate
from automap_models.workloads.measured import MeasuredWorks

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
    works = MeasuredWorks(Cache(cache_folder()))
    device = replace(read_device("a100"), step=TRUE)
    for document, step in zip(documents, read_measured_steps(path), strict=True):
        if isinstance(step, MeasuredStep):
            document["measured"] = {"iteration_s": measured_estimate(step, works.of(step), device).step_s}
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
    assert replace(written, step=None) == replace(read_device("a100"), step=None)
    assert out.read_text().startswith("# step: fitted by automap-calibrate")


def test_constants_and_errors_are_printed_for_people(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["calibrate", str(rows), "--device", "a100"]) == 0
    printed = capsys.readouterr().out
    assert "12 steps on a100" in printed
    assert "product efficiency" in printed
    assert app.main(["calibrate", str(rows), "--device", "a100", "--also", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 13
    assert "1 row(s) left out: `gpu_type`: no device is shipped for 'Abacus'" in printed


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("k80", "'k80' is neither a known device nor a file"),
        ("t4", "device t4: no measured step is of this kind"),
    ],
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
