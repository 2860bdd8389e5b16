"""`python datagen/run.py` as people run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra_programs import refusal

from automap_models.datagen.command import main
from automap_models.formats.dataset import read_dataset, read_manifest

RUN = Path(__file__).resolve().parents[3] / "datagen" / "run.py"


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(RUN), *arguments]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=cwd, capture_output=True, text=True, timeout=120)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_one_command_makes_a_data_set_with_its_picture_and_litters_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("dist=normal", "groups=300", "shard_size=200", "out=data/normal", "plot=true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 shard(s), 300 groups" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    folder = tmp_path / "data" / "normal"
    assert read_manifest(folder).distributions == ["normal"]
    assert len(read_dataset(folder)["arrays"]) == 300
    assert (folder / "summary.png").read_bytes().startswith(b"\x89PNG")


def test_a_killed_run_and_its_repetition_equal_an_unbroken_one(tmp_path: Path) -> None:
    settings = ("groups=6000", "shard_size=100", "seed=3")
    broken = subprocess.Popen(command(*settings, "out=broken"), cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "broken" / "shard-00003.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(broken.pid, signal.SIGKILL)
    assert broken.wait() == -signal.SIGKILL
    assert not (tmp_path / "broken" / "manifest.json").exists()
    untouched = (tmp_path / "broken" / "shard-00000.npz").stat().st_mtime_ns
    assert run(*settings, "out=broken", cwd=tmp_path).returncode == 0
    assert run(*settings, "out=unbroken", cwd=tmp_path).returncode == 0
    assert files(tmp_path / "broken") == files(tmp_path / "unbroken")
    assert (tmp_path / "broken" / "shard-00000.npz").stat().st_mtime_ns == untouched


def test_joblib_shards_a_data_set_over_processes(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    settings = ("groups=400", "shard_size=100")
    many = run("-m", "hydra/launcher=joblib", "parts=2", "part=0,1", *settings, "out=many", cwd=tmp_path)
    assert many.returncode == 0, many.stderr
    assert run(*settings, "out=one", cwd=tmp_path).returncode == 0
    assert files(tmp_path / "many") == files(tmp_path / "one")
    assert {path.name for path in tmp_path.iterdir()} == {"many", "one"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("groups=0",), "groups"),
        (("dist=nope",), "mixed normal transformer uniform"),
        (("speed=11",), "speed"),
        (("dist=normal", "dist.parameters.std=-1"), "dist.parameters.std"),
        (("out=file/data",), "file/data"),
        (("-m", "out=file/data", "part=0,1", "parts=2"), "file/data"),
        (("part=2", "parts=2"), "part"),
    ],
)
def test_a_mistake_costs_one_line_and_exit_code_2_and_writes_nothing(
    tmp_path: Path,
    arguments: tuple[str, ...],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert named in refusal(main, [*arguments], tmp_path, monkeypatch, capsys)
