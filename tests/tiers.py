"""Which tests are fast, slow or thorough: by what they took when all of them were last measured, and compiled.

    fast      up to FAST_S; what was never measured     make test
    slow      of a function without a fast case the quickest, up to SLOW_S     make test-slow
    thorough  all others     make test-thorough

What is marked slow or thorough is that, whatever it takes. The seconds are in tests/durations.txt, which

    pytest -m "not random" --junitxml=durations.xml
    python tests/tiers.py durations.xml

writes anew. Of several reports, such as that of the fast tests and that of the others, the last one counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

DURATIONS = Path(__file__).with_name("durations.txt")
FAST_S, SLOW_S = 0.3, 5.0


def durations() -> dict[str, float]:
    """Test → seconds with its fixtures, of those above FAST_S."""
    lines = (line.split(" ", 1) for line in DURATIONS.read_text(encoding="utf-8").splitlines())
    return {test: float(seconds) for seconds, test in lines}


def tiers(tests: Iterable[str], seconds: Mapping[str, float]) -> dict[str, str]:
    """Test → slow or thorough, of those that are not fast."""
    cases: dict[str, list[str]] = {}
    for test in tests:
        cases.setdefault(test.split("[")[0], []).append(test)
    tier = dict[str, str]()
    for alike in cases.values():
        quickest = min(alike, key=lambda test: seconds.get(test, 0.0))
        slow = FAST_S < seconds.get(quickest, 0.0) <= SLOW_S
        measured = (test for test in alike if seconds.get(test, 0.0) > FAST_S)
        tier |= {test: "slow" if slow and test == quickest else "thorough" for test in measured}
    return tier


def measured(report: Path) -> dict[str, float]:
    """Test → seconds, of a report in JUnit's XML."""
    cases = ElementTree.parse(report).iter("testcase")
    return {f"{_file(case.attrib['classname'])}::{case.attrib['name']}": float(case.attrib["time"]) for case in cases}


def _file(dotted: str) -> str:
    """`tests.cost.test_play.TestRing` → `tests/cost/test_play.py::TestRing`."""
    *folders, last = dotted.split(".")
    classes = [folders.pop(), last] if last[0].isupper() else [last]
    return "/".join([*folders, f"{classes[0]}.py"]) + "".join(f"::{name}" for name in classes[1:])


if __name__ == "__main__":
    seconds = {test: time_s for report in sys.argv[1:] for test, time_s in measured(Path(report)).items()}
    lines = [f"{time_s:.1f} {test}\n" for test, time_s in sorted(seconds.items()) if round(time_s, 1) > FAST_S]
    DURATIONS.write_text("".join(lines), encoding="utf-8")
    print(
        f"{len(lines)} of {len(seconds)} tests take more than {FAST_S} s, {sum(seconds.values()) / 60:.0f} min in all"
    )
