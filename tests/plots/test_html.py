"""A result in a notebook: one piece of HTML that says what the plan says, whatever its layers are called."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import automap_models as am
from automap_models.core.estimate import DeviceMemory, Estimate, StepParts
from automap_models.core.framework import UNKNOWN
from automap_models.core.result import PlanReport, Result
from automap_models.core.units import seconds, size
from automap_models.plots.html import plan_html, strategy_html, strategy_timeline
from automap_models.simulate.plan_step import step_cost

STRANGE = '<script>alert("1")</script> & co'
PROFILE = am.Profile(
    C=np.array([3.0, 3.0, 6.0, 6.0]),
    A=np.array([8.0, 8.0, 8.0, 8.0]),
    W=np.array([4.0, 4.0, 4.0, 4.0]),
    C_fwd=np.array([1.0, 1.0, 2.0, 2.0]),
    stash=np.zeros(4),
    layers=("embed", STRANGE, "block", "head"),
    meta={"model": "a<b"},
)
CLUSTER = am.Cluster(2, 1, 1e12, 1e12, 1e9, name="x & y")


@pytest.fixture
def report() -> PlanReport:
    """Two stages of two instructions, one device each: 2 s and 4 s forward, 4 s and 8 s backward a micro-batch."""
    problem = am.StagedProblem(PROFILE, CLUSTER, 2, 3, schedule="gpipe")
    plan = am.StagedPlan(cuts=(1,), device_cuts=(1,), micro_batches=3, planner="uniform", coarse_cuts=None)
    result = Result(problem, plan, step_cost(problem, plan), "feasible")
    return PlanReport(**vars(result), single_device_s=54.0)


class Reader(HTMLParser):
    """Checks that elements are closed in their order, and keeps what they hold."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.boxes: list[dict[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"div", "p", "b", "table", "tr", "th", "td", "svg", "rect", "span"}
        if tag == "tr":
            self.rows.append([])
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "rect"
        self.boxes.append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] in (["td"], ["th"]):
            self.rows[-1].append(data)


def test_a_row_of_the_table_is_a_stage(report: PlanReport) -> None:
    read = Reader(plan_html(report))
    assert read.rows[0] == ["stage", "from", "to", "devices", "forward", "backward", "memory"]
    assert [row[:4] for row in read.rows[1:]] == [["0", "embed", STRANGE, "0"], ["1", "block", "head", "1"]]
    assert [row[4:6] for row in read.rows[1:]] == [[seconds(2.0), seconds(4.0)], [seconds(4.0), seconds(8.0)]]
    held = [f"{size(float(nbytes))} of {size(1e9)}" for nbytes in report.cost.memory_bytes]
    assert [row[6] for row in read.rows[1:]] == held


def test_the_boxes_are_the_passes_of_gpipe(report: PlanReport) -> None:
    """Links are so fast that they take no time on the picture, and so is the update.

    rank 0  F F F                  B B B        all three forward passes first, 2 s each
    rank 1    FF FF FF BBBB BBBB BBBB           backward from the last stage on, 8 s each
    """
    forward, backward = "#0072B2", "#E69F00"
    step_s = 2 + 3 * 4 + 3 * 8 + 4
    x = 720 / step_s
    read = Reader(plan_html(report))
    boxes = [(box["y"], box["fill"], float(box["x"] or ""), float(box["width"] or "")) for box in read.boxes]
    passes = [box for box in boxes if box[1] in (forward, backward)]
    first = [("0", forward, 2.0 * m, 2.0) for m in range(3)] + [("0", backward, 22.0 + 8 * m, 4.0) for m in range(3)]
    second = [("18", forward, 2.0 + 4 * m, 4.0) for m in range(3)] + [
        ("18", backward, 14.0 + 8 * m, 8.0) for m in range(3)
    ]
    expected = [(y, fill, start * x, width * x) for y, fill, start, width in first + second]
    for box, right in zip(sorted(passes), sorted(expected), strict=True):
        assert box[:2] == right[:2]
        assert box[2:] == pytest.approx(right[2:], abs=0.1)


def test_names_are_text_and_nothing_is_fetched_or_run(report: PlanReport) -> None:
    html = plan_html(report)
    assert "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; co" in html
    assert "<b>a&lt;b on x &amp; y</b>" in html
    assert not re.search(r"<script|<style|\son\w+=|javascript:|url\(|href|src=", html)
    assert re.findall(r"https?://[^\"]*", html) == ["http://www.w3.org/2000/svg"]


def test_colours_are_not_those_of_a_page(report: PlanReport) -> None:
    """White, black and near to them are lost on one of the two kinds of pages; text has no colour of its own."""
    colours = set(re.findall(r"#[0-9A-Fa-f]{6}", plan_html(report)))
    levels = [max(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in colours]
    assert levels and min(levels) > 0x80
    assert not colours & {"#FFFFFF", "#ffffff"}


def test_more_passes_than_a_page_can_hold_are_not_drawn(report: PlanReport) -> None:
    problem = replace(report.problem, micro_batches=600)
    plan = replace(report.plan, micro_batches=600)
    html = plan_html(replace(report, problem=problem, plan=plan, cost=step_cost(problem, plan)))
    assert "passes are too many for a page" in html
    assert "<svg" not in html
    assert len(html) < 3_000


def test_a_strategy_has_its_parts_and_its_ranks() -> None:
    """Numbers of an estimate that is made up."""
    parts = StepParts(3.0, 0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.5)
    held = DeviceMemory(weights=2e9, gradients=2e9, optimizer=4e9, gathered=0.0, activations=1e9, runtime=1e9)
    estimate = Estimate(
        strategy=am.Strategy(micro_batch=1, global_batch=8, pp=2),
        stage_layers=(4, 4),
        model="<x>",
        cluster="pair",
        device="h100",
        step_s=6.5,
        tokens_per_s_per_device=1.0,
        mfu=0.4,
        parts=parts,
        parts_rank=0,
        bubble_rate=0.3,
        memory=(held, held._replace(activations=0.0)),
        memory_bytes=(80e9, 80e9),
        facts=UNKNOWN,
        passes_s=((1.0, 1.0), (2.0, 2.0), (0.0, 0.0)),
        transfers_s=(0.0,),
        reduced_s=(0.0, 0.0),
    )
    html = strategy_html(estimate)
    read = Reader(html)
    rows = read.rows
    passes = [box for box in read.boxes if box["fill"] != "currentColor"]
    assert [(box["fill"], box["y"]) for box in passes].count(("#E69F00", "18")) == 8
    end = max(float(box["x"] or "") + float(box["width"] or "") for box in passes)
    assert end == pytest.approx(720 * 27 / 27.5, abs=0.2)  # nine rounds of 3 s, and the update
    of_step = [["compute", 3.0], ["tensor parallel", 1.0], ["bubble", 2.0], ["optimizer", 0.5]]
    assert rows[:5] == [["part", "time"], *([part, seconds(time_s)] for part, time_s in of_step)]
    assert rows[5:] == [
        ["rank", "state", "activations", "memory"],
        ["0", size(8e9), size(1e9), f"{size(10e9)} of {size(80e9)}"],
        ["1", size(8e9), size(0.0), f"{size(9e9)} of {size(80e9)}"],
    ]
    assert "<b>&lt;x&gt; on pair</b>" in html


def test_a_notebook_asks_a_result_for_it() -> None:
    result = am.infer(PROFILE, CLUSTER, stages=2, micro_batches=3, certify_budget=0)
    assert result._repr_html_() == plan_html(result)


@pytest.mark.parametrize("fields", [{"tp": 2}, {"vp": 3}, {"zero": 3}, {"schedule": "zb-v"}])
def test_the_passes_of_a_strategy_take_as_long_as_its_step(fields: dict[str, object]) -> None:
    estimate = am.price("gpt2", gpus="8xh100", global_batch=64, pp=2, **fields)
    assert strategy_timeline(estimate).length_s == pytest.approx(estimate.step_s, rel=1e-9)
