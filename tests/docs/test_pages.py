"""The documentation's pages do what they say (see pages.py); those that need minutes are slow tests."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automap_models.infer import app
from automap_models.planners.portfolio import model
from automap_models.planners.sharding import traced
from automap_models.workloads import source

PAGES_FILE = Path(__file__).with_name("pages.py")
spec = importlib.util.spec_from_file_location("pages", PAGES_FILE)
assert spec is not None
assert spec.loader is not None
pages = importlib.util.module_from_spec(spec)
sys.modules["pages"] = pages
spec.loader.exec_module(pages)

DOCS = pages.ROOT / "docs"
READING = ("read_sharding_plan",)
"""A fragment of a program: it goes on from names that the page does not define."""
LARGE = ("path/to", "llama3-405b")
"""A file of the reader's own, and models whose profiles tests/workloads makes."""
FEW_STEPS = {"automap run": ("--steps", "2", "--warmup", "1")}


@pytest.fixture(scope="module", autouse=True)
def traced_once() -> Iterator[None]:
    """A model that several pages trace is traced once: a module is not changed by those who read it."""
    trace, once = source.module_of, functools.lru_cache(maxsize=8)(source.module_of)

    def trace_once(of: source.Source, *, all_blocks: bool = False) -> Any:
        return once(of, all_blocks=all_blocks) if of.model is None else trace(of, all_blocks=all_blocks)

    with pytest.MonkeyPatch.context() as patch:
        for module in (source, model, traced):
            patch.setattr(module, "module_of", trace_once)
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the reader's own beside the examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AUTOMAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "examples").symlink_to(pages.ROOT / "examples")
    (tmp_path / "later.json").symlink_to("times.json")  # replan.md: the job is measured once more
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("page", "packages", "skip", "outputs"),
    [
        pytest.param("../README.md", ("flax",), ("my_module", "datagen"), 3, marks=pytest.mark.slow),
        pytest.param("tutorials/first-plan.md", (), (), 1, marks=pytest.mark.slow),
        ("tutorials/run-torch.md", ("torch",), (), 1),
        ("tutorials/run-on-jax.md", ("jax",), (), 4),
        ("how-to/plan.md", (), (), 0),
        ("how-to/what-if.md", ("matplotlib",), (), 1),
        ("how-to/replan.md", (), (), 1),
        ("how-to/export.md", (), (), 4),
        ("how-to/doctor.md", (), (), 2),
        ("how-to/fit.md", ("flax",), (), 3),
        ("how-to/strategies.md", ("flax",), (), 4),
        ("how-to/explore.md", ("flax", "matplotlib"), (), 5),
        ("explanation/schedules.md", ("matplotlib",), (), 1),
        ("explanation/partitioned-stages.md", ("flax",), (), 1),
        ("how-to/place.md", ("flax",), (), 3),
        ("how-to/profile.md", ("flax", "torch", "transformers"), LARGE, 2),
        ("how-to/python.md", (), (), 4),
        ("explanation/sharding-agent.md", ("flax", "torch"), (), 2),
        ("explanation/sharding-cost.md", ("flax",), READING, 3),
        ("how-to/shard.md", ("flax",), READING, 4),
    ],
)
def test_a_page_prints_what_it_says(
    page: str, packages: tuple[str, ...], skip: tuple[str, ...], outputs: int, folder: Path
) -> None:
    for package in packages:
        pytest.importorskip(package)
    ran = pages.run_page(DOCS / page, skip, FEW_STEPS)
    assert not ran.differences, "\n\n".join(ran.differences)
    assert ran.outputs == outputs


def test_the_lesson_on_one_s_own_model_prints_what_it_says_and_leaves_its_files(folder: Path) -> None:
    """It shows nothing of the rankings: the searches for them stop after a second instead of a minute."""
    for package in ("jax", "matplotlib", "torch"):
        pytest.importorskip(package)
    ran = pages.run_page(DOCS / "tutorials/own-model.md", sizes={"automap plan": ("--budget", "1 s")})
    assert not ran.differences, "\n\n".join(ran.differences)
    assert (ran.runs, ran.outputs) == (8, 2)
    files = ("plan.json", "my_torch_model.npz", "my_model.npz", "plans.png")
    assert [name for name in files if not Path(name).exists()] == []


def test_the_lesson_on_training_ends_with_a_plan_by_its_own_policy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs as it says but for its sizes: fewer problems and episodes, and a network that is exported sooner."""
    pytest.importorskip("lightning")
    from automap_models.train import main

    monkeypatch.setattr(main, "export_policy", functools.partial(main.export_policy, states=50))
    training = ("data.validation_groups=6", "data.batch=2", "data.steps_per_epoch=2", "episodes=16", "logger=csv")
    network = ("agent=paper", "agent.size.hidden=16", "data.min_stages=2", "data.validation_devices=16")
    learner = tuple(f"agent.learner.{name}" for name in ("batch=16", "iterations=1", "replay=500"))
    sizes = {"datagen/run.py": ("groups=40", "shard_size=20"), "train/run.py": (*training, *network, *learner)}
    ran = pages.run_page(DOCS / "tutorials/train-a-policy.md", sizes=sizes)
    assert not ran.differences, "\n\n".join(ran.differences)
    assert ran.runs == 3
    (policy,) = Path("runs").rglob("policy.onnx")
    assert policy == Path("runs/lesson/policy.onnx")


def test_every_option_that_a_page_lists_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables and lists of options begin with the option."""
    for command in app.SUMMARIES:
        assert app.main([command, "--help"]) == 0
    for search in ("opp", "adp", "pp"):
        assert app.main(["search", search, "--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    listed = {
        option
        for page in DOCS.rglob("*.md")
        for option in re.findall(r"^[|*-] `(--[a-z][a-z-]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(listed) > 10
    assert listed <= known


def test_a_difference_is_found() -> None:
    assert pages.missing("a\n\nplanned in 3 ms\nb\n", "0\na\nplanned in 5 s\nc\nb\n") is None
    assert pages.missing("a\nb\n", "b\na\n") == "b"
    assert list(
        pages.commands("pip install x\nautomap infer a \\\n  --json  # why\nautomap plan MODEL [--json]\n")
    ) == [["automap", "infer", "a", "--json"]]


NO_FILE = "examples/none.npz: cannot be read (No such file or directory); check the path and its permissions"


@pytest.mark.parametrize(
    ("shown", "differences"),
    [
        ("", 1),
        (f"```\nautomap profile: error: {NO_FILE}\n```\n", 0),
        (f"```text\nan example of another run\n```\n\n```\nautomap profile: error: {NO_FILE}\n```\n", 0),
        ("```\nother words\n```\n", 2),
        ("`a.json`:\n\n```json\n{}\n```\n", 1),
        ("```bash\nautomap --version\n```\n", 1),
    ],
)
def test_a_command_that_fails_is_a_difference_unless_the_page_shows_it(
    shown: str, differences: int, folder: Path
) -> None:
    """Commands whose output no page shows once failed unseen."""
    page = Path("page.md")
    page.write_text(f"```bash\nautomap profile examples/none.npz --show\n```\n\n{shown}", encoding="utf-8")
    assert len(pages.run_page(page).differences) == differences
