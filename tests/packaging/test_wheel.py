"""The built wheel, installed away from the checkout, plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import msgspec
import pytest

from automap_models.infer.app import SUMMARIES
from automap_models.version import __version__

pytestmark = pytest.mark.slow


def run(*command: str | Path, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV", "PYTEST"))}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files git knows or would take, in a copy: a build leaves its traces beside the sources."""
    work = tmp_path_factory.mktemp("wheel")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", folder=root)
    for name in filter(None, listed.split("\0")):
        source, target = root / name, work / "source" / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", work / "dist", folder=work / "source")
    (built,) = (work / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands' folder of a fresh environment: the wheel, borrowed dependencies, nothing of the checkout."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel),
        folder=home,
    )
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=home).strip())
    # Where the dependencies are: not always this environment's own folder, which may itself only name another one.
    # A path line only adds to sys.path: the editable finder there stays asleep.
    borrowed = Path(msgspec.__file__).resolve().parents[1]
    (own / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
    return home / "bin"


def test_the_wheel_holds_one_top_level_name_and_everything_that_belongs_to_it(wheel: Path, root: Path) -> None:
    names = ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"automap_models", f"automap_models-{__version__}.dist-info"}
    expected = {"automap_models/py.typed"}
    for folder, package in (
        ("conf", "conf"),
        ("automap_models/zoo", "zoo"),
        ("automap_models/workloads/published", "workloads/published"),
        ("automap_models/serve/page", "serve/page"),
    ):
        for path in (root / folder).rglob("*"):
            if path.suffix in {".css", ".html", ".js", ".json", ".md", ".onnx", ".yaml"}:
                expected.add(f"automap_models/{package}/{path.relative_to(root / folder).as_posix()}")
    assert expected - set(names) == set()
    (about,) = {name.split("/")[0] for name in names if ".dist-info" in name}
    for licensed in ("LICENSE", "automap_models/serve/page/uplot/LICENSE"):
        assert f"{about}/licenses/{licensed}" in names


def test_the_installed_library_is_the_wheels_and_not_the_checkouts(installed: Path, root: Path, tmp_path: Path) -> None:
    where = run(
        installed / "python",
        "-c",
        "import sys, automap_models.infer; print(sys.modules['automap_models.infer'].__file__)",
        folder=tmp_path,
    )
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert not Path(where.strip()).is_relative_to(root)


def test_every_installed_command_explains_itself(installed: Path, tmp_path: Path) -> None:
    commands = {path.name for path in installed.glob("automap*")}
    assert commands == {"automap", *(f"automap-{name}" for name in SUMMARIES)}
    for command in commands:
        assert "usage: " + command.replace("-", " ", 1) in run(installed / command, "--help", folder=tmp_path)


def test_the_installed_command_plans_with_its_own_configs_and_policy(
    installed: Path, root: Path, tmp_path: Path
) -> None:
    """By what compiles least: an installation begins without machine code."""
    profile = sorted((root / "examples").glob("*.npz"))[0]
    arguments = (
        "--topo",
        "C",
        "--stages",
        "2",
        "--planner",
        "uniform",
        "--certify-budget",
        "0",
        "--out",
        "plan.json",
        "--json",
    )
    printed = run(installed / "automap-infer", profile, *arguments, folder=tmp_path)
    assert json.loads(printed) == json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert json.loads(printed)["cluster"]["name"] == "C"
    program = (
        "from automap_models.planners.registry import make_planner\n"
        "from automap_models.resources import conf_dir, zoo_dir\n"
        "print(make_planner('policy').policy.file.path, conf_dir(), zoo_dir(), sep='\\n')"
    )
    for path in run(installed / "python", "-c", program, folder=tmp_path).split():
        assert Path(path).is_relative_to(installed.parent)
