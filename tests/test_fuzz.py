"""Some thousand damaged files and random arguments for every reader and every command; see tests/fuzz.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", Path(__file__).with_name("fuzz.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


FUZZ = _program()
COMMANDS = [name for name in FUZZ.NAMES if name.startswith("automap-")]
READERS = [names for names in FUZZ.GROUPS.values() if not set(names) & set(COMMANDS)]
"""Names of the readers that one child prepares together."""


def _no_failure(names: list[str], cases: int, folder: Path) -> None:
    outcomes = FUZZ.fuzz(names, cases, 0, folder)
    assert [failure for outcome in outcomes.values() for failure in outcome.failures] == []
    for name, outcome in outcomes.items():
        assert 0 < outcome.refused <= cases + len(FUZZ.kept_cases(name)), name  # else the cases test nothing
        assert outcome.cases == cases


def test_cases_that_once_failed_and_some_new_ones_end_in_a_result_or_one_sentence(tmp_path: Path) -> None:
    _no_failure([name for names in READERS for name in names], 60, tmp_path)


def test_commands_with_random_arguments_end_in_a_result_or_one_sentence(tmp_path: Path) -> None:
    _no_failure(COMMANDS, 40, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("names", READERS, ids=", ".join)
def test_two_thousand_damaged_files_end_in_a_result_or_one_sentence(names: tuple[str, ...], tmp_path: Path) -> None:
    _no_failure([*names], 2_000, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_two_thousand_random_arguments_end_in_a_result_or_one_sentence(name: str, tmp_path: Path) -> None:
    _no_failure([name], 2_000, tmp_path)


def test_a_reader_that_raises_hangs_or_fills_the_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner itself: what it lets through would be no test."""

    def raises(content: bytes) -> object:
        raise KeyError(content)

    target = FUZZ.Target([b"x"], raises, FUZZ.change_text)
    with pytest.raises(KeyError):
        FUZZ.run_case(target, b"x")


def test_a_case_depends_on_its_target_seed_and_number_alone() -> None:
    target = FUZZ.Target([b"a: 1", b"b: 2"], bytes, FUZZ.change_text)
    cases = [FUZZ.case(target, "cluster", 3, number) for number in range(50)]
    assert cases == [FUZZ.case(target, "cluster", 3, number) for number in range(50)]
    assert len({bytes(content) for content in cases}) > 25
