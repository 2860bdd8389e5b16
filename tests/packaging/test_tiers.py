"""Which tests run when."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers import FAST_S, SLOW_S, durations, measured, tiers

QUICK, LONG, LONGER = 0.9 * FAST_S, 1.1 * FAST_S, 1.1 * SLOW_S


@pytest.mark.parametrize(
    ("seconds", "tier"),
    [
        ({"t[a]": QUICK, "t[b]": LONG}, {"t[b]": "thorough"}),
        ({"t[a]": LONG, "t[b]": 2 * LONG, "u": LONG}, {"t[a]": "slow", "t[b]": "thorough", "u": "slow"}),
        ({"t": LONGER, "u[a]": LONGER, "u[b]": LONG}, {"t": "thorough", "u[a]": "thorough", "u[b]": "slow"}),
    ],
)
def test_of_a_function_without_a_fast_case_the_quickest_is_slow_and_all_others_are_thorough(
    seconds: dict[str, float], tier: dict[str, str]
) -> None:
    assert tiers(seconds, seconds) == tier


def test_what_was_not_measured_is_fast_and_the_others_of_its_function_are_thorough() -> None:
    assert tiers(["t[new]", "t[old]", "u"], {"t[old]": LONG}) == {"t[old]": "thorough"}


def test_every_test_that_has_a_duration_is_there(root: Path) -> None:
    """One that is renamed would run with the fast ones, whatever it takes."""
    gone = {test.split("::")[0] for test in durations()} - {
        str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py")
    }
    assert not gone
    names = {test.split("[")[0] for test in durations()}
    assert not [
        name for name in names if f"def {name.split('::')[-1]}(" not in (root / name.split("::")[0]).read_text()
    ]


def test_reports_of_pytest_are_read(tmp_path: Path) -> None:
    report = tmp_path / "durations.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.cost.test_play.TestRing" name="test_a[x::y]" time="1.25"/>'
        '<testcase classname="tests.test_api" name="test_b" time="0.1"/></testsuite></testsuites>'
    )
    assert measured(report) == {
        "tests/cost/test_play.py::TestRing::test_a[x::y]": 1.25,
        "tests/test_api.py::test_b": 0.1,
    }
