"""Pictures of schedules show every pass in the colour of its kind, and every link."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.passes import build_schedule
from automap_models.core.schedules import SCHEDULES
from automap_models.formats.chrome_trace import trace_document
from automap_models.simulate.engine import Timeline, simulate

pytest.importorskip("matplotlib")

from automap_models.plots.pipeline import COLOURS, LABELS, draw_timelines


def _timeline(name: str, virtual: int | None = None) -> Timeline:
    built = build_schedule(name, 3, 6, virtual)
    one = np.ones(built.stages)
    return simulate(one, 2 * one, 0.25 * one[1:], 0 * one, built, weight_s=one)


def test_every_schedule_is_drawn_with_its_passes_in_their_colours() -> None:
    from matplotlib.colors import to_hex

    names = sorted(SCHEDULES)
    figure = draw_timelines([_timeline(name) for name in names])
    for axes, name in zip(figure.axes, names, strict=True):
        timeline = _timeline(name)
        assert axes.get_title(loc="left").startswith(f"{name}: ")
        drawn = {to_hex(colour).upper() for bars in axes.collections for colour in bars.get_facecolor()}
        firsts = {COLOURS[i.kind] for i in timeline.intervals if i.end_s > i.start_s and not i.chunk}
        assert firsts <= drawn
        assert sum(len(bars.get_paths()) for bars in axes.collections) == sum(
            i.end_s > i.start_s for i in timeline.intervals
        )


def test_the_legend_names_the_kinds_that_take_time() -> None:
    (legend,) = draw_timelines([_timeline("zb-h1")]).legends
    sends = ("send-forward", "send-backward")
    expected = {LABELS[kind] for kind in ("forward", "input-gradient", "weight-gradient", *sends)}
    assert {text.get_text() for text in legend.get_texts()} == expected


def test_a_loop_has_a_row_for_its_link_back_and_a_v_has_none() -> None:
    loop, v = draw_timelines([_timeline("interleaved", 2), _timeline("zb-v")]).axes
    assert "link 2 ↔ 0" in [label.get_text() for label in loop.get_yticklabels()]
    assert "link 2 ↔ 0" not in [label.get_text() for label in v.get_yticklabels()]


def test_a_trace_names_the_link_back_and_says_which_virtual_stage_a_pass_is_of() -> None:
    events = trace_document(_timeline("interleaved", 2))["traceEvents"]
    assert {"name": "2 → 0"} in [event["args"] for event in events if event["name"] == "thread_name"]
    assert {event["args"].get("chunk", 0) for event in events if event["ph"] == "X"} == {0, 1}
