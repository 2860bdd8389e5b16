"""What people read about a plan: numbers in units, words for the pivot, tables that fit, charts that stay readable."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from automap_models.core.cluster import Cluster
from automap_models.core.passes import build_schedule
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.result import Bound, Result
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.formats.staged_plan import PlanReport
from automap_models.infer.reports.pipeline import (
    bottleneck_in_words,
    facts,
    optimality_in_words,
    search_log_table,
    stage_table,
    tied_facts,
    times_in_words,
)
from automap_models.plots.pipeline import windows as shown_windows
from automap_models.simulate.engine import simulate


def report(activations: float = 1.0, micro_batches: int = 4, layers: tuple[str, ...] = ()) -> PlanReport:
    """Two stages of four seconds on a device each, 1 byte/s between them."""
    profile = Profile.create(C=np.full(8, 1.0), A=np.full(8, activations), W=np.ones(8), layers=layers)
    problem = StagedProblem(profile, Cluster(2, 1, 10.0, 1.0, 1e6), stages=2, micro_batches=micro_batches)
    plan = StagedPlan((3,), (1,), micro_batches, "policy", coarse_cuts=problem.grid.to_points((3,)))
    cost = plan_cost(problem, plan)
    result = Result(problem, plan, cost, "feasible", taken_s=0.01)
    simulated, alone_s = {"1f1b": cost.length_s * 1.1}, 8.0 * micro_batches
    return PlanReport(**vars(result), simulated_length_s=simulated, single_device_s=alone_s, uniform_s=100.0)


def test_a_stage_that_sets_the_pace_is_named_with_its_rounds() -> None:
    # u = 4, 2, 4: the first maximum of 4·4, 4 + 4·2, 6 + 4·4 is the last stage's, 22.
    assert (
        bottleneck_in_words(report())
        == "stage 1 sets the pace: 4 × 4.00 s for forward and backward are 72.7 % of the span"
    )


def test_a_transfer_that_sets_the_pace_is_named_with_its_ends() -> None:
    # u = 4, 20, 4: 4 + 4·20 = 84 beats 24 + 16.
    words = bottleneck_in_words(report(activations=10.0))
    assert words.startswith("the transfer between stages 0 and 1 sets the pace: 4 × 20.0 s")
    assert "95.2 %" in words


@pytest.mark.parametrize(
    ("proof", "factor", "words"),
    [
        ("relaxation", 1.25, "at most 25.0 %"),
        ("exact", 1.0, "proven: this is the shortest"),
        ("exact", 1.25, "25.0 % above"),
        ("exact", 0.8, "20.0 % shorter than every plan with 2 stages on the 128 grid"),
        ("relaxation", 0.8, "20.0 % shorter than every plan"),
        ("relaxation", float("inf"), "nothing is proven"),  # a bound of zero was a ZeroDivisionError
    ],
)
def test_the_gap_says_what_kind_of_proof_it_has(proof: str, factor: float, words: str) -> None:
    shown = report()
    proven = Bound(shown.cost.length_s / factor, proof)  # type: ignore[arg-type]
    assert words in optimality_in_words(replace(shown, bound=proven))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ("clock, not measured", "are computed"),
        ("clock per operator, not measured", "are computed"),
        ("roofline, not measured", "are computed"),
        ("measured per module", "times of mine are the profile's"),
    ],
)
def test_computed_times_are_never_passed_off_as_the_profile_s(times: str, words: str) -> None:
    """Of profiles by the clock it was said that their times are the profile's: only a roofline's were known."""
    shown = report()
    profile = replace(shown.problem.profile, meta={"times": times, "device": "mine"})
    problem = replace(shown.problem, profile=profile)
    assert words in times_in_words(replace(shown, problem=problem))


def test_a_baseline_that_does_not_fit_is_said_to_and_the_others_are_ratios() -> None:
    speed_up = dict(facts(report()))["speed-up"]
    length_s = report().cost.length_s
    assert "data parallelism does not fit the memory" in speed_up
    assert f"{100 / length_s:.2f}× over uniform cuts" in speed_up
    assert f"{32 / length_s:.2f}× over one device" in speed_up


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_of_stages_fits_and_keeps_every_number_whole(width: int) -> None:
    shown = report(layers=tuple(f"a/very/long/path/of/modules/that/goes/on/and/on/layer_{i}" for i in range(8)))
    console = Console(file=io.StringIO(), width=width)
    console.print(stage_table(shown).drawn(width))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for number in ("1.33 s", "2.67 s", "1.00 s", "16.0 B", "instr.", "all-reduce", "of 1.00 MB"):
        assert number in text
    assert "layer_0" in text


def test_what_was_tried_is_whole_at_80_columns() -> None:
    """Steps were cut to `1.0…` and outcomes to `longer, proven by a bou…`."""
    entries = [
        SearchLogEntry(1, 256, 1, None, None, None, "does not fit", False, "1f1b"),
        SearchLogEntry(16, 128, 2, "data-parallel", 12.34e-3, 10.1e-3, "discarded", False, "gpipe"),
        SearchLogEntry(16, 64, 4, "policy", 1.23e-3, 120e-6, "proven", True, "1f1b-deep"),
        SearchLogEntry(16, 64, 4, "policy", 1.22e-3, 120e-6, "proven", False, "1f1b"),
    ]
    cells = ("12.3 ms", "does not fit the memory", "proven longer by bound", "chosen", "256", "gpipe", "1f1b-deep")
    for width, more in ((80, ()), (120, ("data-parallel",))):
        console = Console(file=io.StringIO(), width=width)
        console.print(search_log_table(entries, 1.23e-3).drawn(width))
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert "…" not in text
        for cell in (*cells, *more, "shorter, but harder to run"):
            assert cell in text


def test_tied_parameters_are_named_with_their_copies_and_what_their_sum_takes() -> None:
    """400 MB in two stages on nodes of their own: 2·½·400e6 bytes over 10 GB/s are 40 ms."""
    profile = Profile.create(C=[1.0, 1.0], A=[0.0, 0.0], W=[4e8, 0.0])
    tied = replace(profile, shared_parameters=(SharedParameter("embedding", 4e8, (0, 1)),))
    problem = StagedProblem(tied, Cluster(2, 4, 100e9, 10e9, 32e9), 2, 4, schedule="1f1b")
    plan = StagedPlan((0,), (4,), 4, "policy")
    (fact,) = tied_facts(problem, plan)
    words = "embedding, 400 MB, has copies in stages 0 and 1: summing their gradients takes 160 ms a step"
    assert fact == ("tied", words)
    assert not list(tied_facts(replace(problem, profile=profile), plan))


def test_layer_names_are_text_and_never_markup() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(stage_table(report(layers=("[red]a[/red]", *"bcdefgh"))).drawn(120))
    assert isinstance(console.file, io.StringIO)
    assert "[red]a[/red]" in console.file.getvalue()


@pytest.mark.parametrize(("micro_batches", "parts"), [(4, 1), (16, 1), (500, 2)])
def test_a_long_steady_phase_is_shown_by_its_two_ends(micro_batches: int, parts: int) -> None:
    shown = report(micro_batches=micro_batches)
    timeline = simulate(*shown.cost.as_tuple(), build_schedule("1f1b", shown.plan.stages, micro_batches))
    windows = shown_windows(shown, timeline)
    assert len(windows) == parts
    assert windows[0][0] == 0.0
    assert windows[-1][1] == timeline.length_s
    assert all(start < end for start, end in windows)
    assert sum(end - start for start, end in windows) <= timeline.length_s * (1 + 1e-12)
