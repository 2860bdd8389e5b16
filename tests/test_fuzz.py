"""Damaged files and random arguments for every reader and every command; see tests/fuzz.py."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from draw_counts import counts
from fuzzing import runner
from fuzzing.call_mutations import change_call, change_options
from fuzzing.cases import Call, Target
from fuzzing.commands import COMMANDS, commands
from fuzzing.mutations import change_json, change_text, change_tree
from fuzzing.programs import programs
from fuzzing.questions import questions
from fuzzing.targets import CALLED, NAMES, TARGETS, descriptions, documents, profiles

from automap_models.infer import app

for extra in ("jax", "lightning", "onnx"):
    pytest.importorskip(extra)

READERS = [tuple(names) for make, names in TARGETS.items() if make not in (commands, programs, questions)]
"""Names of the readers that one child prepares together."""
MANY = [*READERS, *((name,) for name in CALLED)]


def _no_failure(names: list[str], cases: int, folder: Path) -> None:
    outcomes = runner.fuzz(names, cases, 0, folder)
    assert [failure for outcome in outcomes.values() for failure in outcome.failures] == []
    for name, outcome in outcomes.items():
        assert 0 < outcome.cases <= cases + len(runner.kept_cases(name)), name
        assert outcome.refused > 0 or outcome.cases < 10, name  # else the cases test nothing


def test_files_that_once_failed_and_some_new_ones_end_in_a_result_or_one_sentence(tmp_path: Path) -> None:
    """The readers that need no heavy import; the others and the commands have the slow test below."""
    _no_failure([name for make in (profiles, descriptions, documents) for name in TARGETS[make]], 25, tmp_path)


@pytest.mark.parametrize("cases", counts(None, 50, 2_000))
@pytest.mark.parametrize("names", MANY, ids=", ".join)
def test_many_cases_end_in_a_result_or_one_sentence(names: tuple[str, ...], cases: int, tmp_path: Path) -> None:
    _no_failure([*names], cases, tmp_path)


@pytest.mark.parametrize("cases", counts(None, 500, 100_000))
def test_questions_to_the_page_and_of_agents_are_answered_or_refused(cases: int, tmp_path: Path) -> None:
    """A schedule of 2,000,000 passes took seconds and gigabytes, and a thousand of them were remembered."""
    _no_failure([*TARGETS[questions]], cases, tmp_path)


def test_a_reader_that_raises_is_a_failure() -> None:
    """The runner itself: what it lets through would be no test."""

    def raises(content: bytes) -> object:
        raise KeyError(content)

    target = Target([b"x"], raises, change_text)
    with pytest.raises(KeyError):
        runner.run_case(target, b"x")


def test_a_case_that_waits_ends_its_child_with_the_place_where_it_waits() -> None:
    """Also in code that runs no handler of Python's, such as a lock that nobody releases."""
    waits = (
        "import threading, pathlib, sys; from fuzzing import cases, runner, mutations; runner.LONGEST_WAIT_S = 0.2;"
        "lock = threading.Lock(); lock.acquire();"
        "target = cases.Target([b'x'], lambda content: lock.acquire(),"
        " mutations.change_text);"
        "runner.prepared = lambda names: {'x': target};"
        "runner.child(['x'], 0, 0, 1, pathlib.Path(sys.argv[1]))"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", waits, folder], cwd=Path(__file__).parent, capture_output=True)
    assert done.returncode == -signal.SIGALRM
    assert b"in child" in done.stderr


def test_a_case_depends_on_its_target_seed_and_number_alone() -> None:
    """Changes once drew values that earlier changes had changed: a case came out otherwise when it was run alone."""
    target = Target([b'{"a": [], "b": {}}', b'{"c": [1, 2]}'], bytes, change_json)
    alone = [runner.case(target, "cluster", 3, number) for number in range(300, 600)]
    for number in range(300):
        runner.case(target, "cluster", 3, number)
    assert alone == [runner.case(target, "cluster", 3, number) for number in range(300, 600)]
    assert len(set(alone)) > 150


def test_a_call_has_other_arguments_or_another_file_that_it_names(tmp_path: Path) -> None:
    files = {"a.json": b'{"a": 1}', "b.json": b'{"b": 2}'}
    change = change_call(files, change_options(["--json"], ["--out"]))
    calls = [runner.case(Target([Call(["a.json"])], bytes, change), "x", 1, number) for number in range(1, 200)]
    assert {name for call in calls for name in call.files} == {"a.json"}  # type: ignore[union-attr]
    assert len({tuple(call.arguments) for call in calls}) > 50  # type: ignore[union-attr]
    assert {bool(call.files) for call in calls} == {True, False}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["npz", "automap-infer"])
def test_a_kept_case_is_the_case_that_failed(name: str, tmp_path: Path) -> None:
    case = Call(["a", "\udcff"], {"f": bytes(range(256))}) if name in CALLED else bytes(range(256))
    runner.keep(tmp_path / "case", case)
    assert runner.read_case(tmp_path / "case", name) == case


def test_kept_cases_are_of_known_targets() -> None:
    folders = {path.name for path in runner.CASE_FOLDER.iterdir()}
    assert folders <= {name.replace(" ", "_") for name in NAMES}
    for name in CALLED:
        for path in (runner.CASE_FOLDER / name).glob("*"):
            assert set(json.loads(path.read_bytes())) == {"arguments", "files"}


def test_every_command_that_reads_files_is_a_target() -> None:
    assert set(COMMANDS) == set(app.SUMMARIES) - {"serve", "mcp"}


def test_a_document_never_holds_itself() -> None:
    """Such a one is no JSON; it ended the fuzzer."""
    for number in range(2_000):
        with suppress(RecursionError):  # nested too deeply; a document in itself is a ValueError
            json.dumps(change_tree(random.Random(number), {"a": [1, {"b": [2]}], "c": {"d": []}}))
