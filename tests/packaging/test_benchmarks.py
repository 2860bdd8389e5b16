"""Every benchmark has its result and its line in the index, and starts or says what it lacks."""

from __future__ import annotations

import argparse
import re
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest

from automap_models.planners.online import planner

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
PARTS = ("common", "joint_fit", "sailor")
"""What scripts import."""
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem not in PARTS)
PAGE = ROOT / "docs" / "reference" / "accuracy.md"
"""The result of a benchmark that users read."""
NEEDS = {"placement": "graphs", "roofline_accuracy": "profiles"}
"""Script → what it cannot run without, and the repository does not have."""
SMALL = {"online_search": "--models vgg19 --seeds 1", "replanning": "--models vgg19_v100 --seeds 1 --windows 2"}
"""Script → arguments with which it measures little, quickly."""


def test_every_benchmark_has_a_result_and_every_result_its_benchmark() -> None:
    pages = [PAGE, *(BENCHMARKS / "results").glob("*.md")]
    assert sorted(path.stem for path in pages if path.exists()) == SCRIPTS


def test_the_index_names_every_benchmark_once() -> None:
    index = (BENCHMARKS / "README.md").read_text("utf-8")
    assert sorted(re.findall(r"\[(\w+)\.py\]\(\1\.py\) · \[result\]\(\S+/\1\.md\)", index)) == SCRIPTS


@pytest.mark.parametrize("script", sorted({*SCRIPTS} - {PAGE.stem}))
def test_a_script_reads_the_commands_that_printed_its_result(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sharding_tables.py` ended with a TypeError without a model's name, which is how its page had run it."""
    page = (BENCHMARKS / "results" / f"{script}.md").read_text("utf-8").replace("\\\n", "")
    commands = re.findall(rf"^    .*python (benchmarks/{script}\.py.*)", page, re.MULTILINE)
    assert commands
    read = argparse.ArgumentParser.parse_args

    def read_and_end(parser: argparse.ArgumentParser) -> None:
        read(parser)
        raise SystemExit(0)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", read_and_end)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for command in commands:
        monkeypatch.setattr(sys, "argv", command.split())
        with pytest.raises(SystemExit) as ending:
            runpy.run_path(str(ROOT / command.split()[0]), run_name="__main__")
        assert ending.value.code == 0, command


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_starts_and_explains_itself(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, so that what most of them import is imported once."""
    file = BENCHMARKS / f"{script}.py"
    monkeypatch.setattr(sys, "argv", [str(file), "--help"])
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with pytest.raises(SystemExit) as ending:
        runpy.run_path(str(file), run_name="__main__")
    assert ending.value.code == 0
    assert "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("script", SMALL)
def test_a_benchmark_prints_its_table(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script started and explained itself, but read a length that plans no longer had."""
    pytest.importorskip("torch")
    file = BENCHMARKS / f"{script}.py"
    monkeypatch.setattr(sys, "argv", [str(file), *SMALL[script].split()])
    monkeypatch.setattr(planner, "OnlineConfig", partial(planner.OnlineConfig, episodes=64))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    runpy.run_path(str(file), run_name="__main__")
    assert re.search(r"\d", capsys.readouterr().out)


@pytest.mark.parametrize("script", NEEDS)
def test_a_benchmark_that_needs_more_than_the_repository_has_says_so_in_one_sentence(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """roofline_accuracy ended with 0 without its profiles, as if it had measured; the others printed their usage."""
    file = BENCHMARKS / f"{script}.py"
    monkeypatch.setattr(sys, "argv", [str(file)])
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with pytest.raises(SystemExit) as ending:
        runpy.run_path(str(file), run_name="__main__")
    assert ending.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(rf"{script}\.py: this needs .*{NEEDS[script]}.*\n", printed.err)


@pytest.mark.parametrize("script", ("online_search --models", "replanning --models", "jax_plans", "sharding_agent"))
def test_a_model_that_a_benchmark_does_not_know_ends_it_with_one_sentence(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They ended with tracebacks, and the agent of sharding plans with 0 and nothing printed."""
    pytest.importorskip("jax")
    name, *options = script.split()
    file = BENCHMARKS / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(file), *options, "nix"])
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with pytest.raises(SystemExit) as ending:
        runpy.run_path(str(file), run_name="__main__")
    assert ending.value.code == 2
    assert re.fullmatch(rf"{name}\.py: .*nix.*", capsys.readouterr().err.splitlines()[-1])
