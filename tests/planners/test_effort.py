"""What searches compute is counted, so that neither the machine nor its load changes what they come to."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from automap_models.core.staged import StagedPlan
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.options import PlanOptions
from automap_models.planners.portfolio.planning import planned

EXAMPLE = Path(__file__).parents[2] / "examples" / "vgg19_v100.npz"
FASTER = 30
"""So many times as fast as usual run the clocks of a machine that is as many times as slow."""


def test_a_count_adds_its_call_and_its_units() -> None:
    before_s = effort.counted_s()
    effort.count(effort.MOVES, 1000)
    added_s = effort.MOVES.call_s + 1000 * effort.MOVES.unit_s
    assert effort.counted_s() - before_s == pytest.approx(added_s)


def test_a_deadline_by_counted_seconds_passes_when_enough_is_counted() -> None:
    deadline = Deadline(1e-3, effort.counted_s)
    effort.count(effort.Work(9e-4, 0.0))
    assert not deadline.passed
    assert deadline.remaining_s == pytest.approx(1e-4)
    effort.count(effort.Work(0.0, 1e-6), 101)
    assert deadline.passed


def test_threads_count_their_own() -> None:
    before_s = effort.counted_s()
    thread = threading.Thread(target=effort.count, args=(effort.Work(100.0, 0.0),))
    thread.start()
    thread.join()
    assert effort.counted_s() == before_s


def answer(certify_s: float) -> tuple[StagedPlan, float, tuple[str, ...]]:
    """Plan, bound and notes of a problem whose searches are stopped."""
    options = PlanOptions(certify_s=certify_s)
    report = planned(read_profile(EXAMPLE), read_cluster("C"), options)
    assert report.bound is not None
    assert report.bound.proof == "relaxation"
    return report.plan, report.bound.value, report.notes


def test_a_stopped_search_gives_the_same_answer_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = answer(0.1)
    assert answer(0.1 / FASTER) != usual  # less work comes to something else
    for name in ("monotonic", "perf_counter", "process_time"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: FASTER * clock())
    assert answer(0.1) == usual
