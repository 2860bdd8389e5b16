"""A result as a notebook shows it: HTML with the table of its stages or ranks, and the schedule as a picture in it.

Everything is in the text: no script, no file beside it. Colours of text and lines are the notebook's own, so that it
reads on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.result import PlanReport
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.units import counted, rounds, seconds, size, span
from automap_models.plots.pipeline import COLOURS, LABELS
from automap_models.simulate.engine import PassKind, Timeline, simulate
from automap_models.simulate.plan_step import timeline

DRAWN: dict[PassKind, str] = {**COLOURS, "update": "currentColor"}
"""Kind of box → its colour, of which none is lost on a white or on a black page."""


def plan_html(report: PlanReport) -> str:
    """A plan of stages: what it is, a row a stage, and its passes over the time of a step."""
    problem, plan, cost = report.problem, report.plan, report.cost
    schedule = problem.schedule or DEFAULT_SCHEDULE
    title = f"{problem.profile.model} on {problem.cluster.name}"
    what = f"{counted(plan.stages, 'stage')}, {rounds(plan.micro_batches)}, {seconds(cost.step_s)} a step"
    rows = [
        (
            str(s),
            problem.profile.layer(first) or problem.profile.name(first),
            problem.profile.layer(last) or problem.profile.name(last),
            span(devices),
            seconds(float(cost.forward_s[s])),
            seconds(float(cost.backward_s[s])),
            f"{size(float(cost.memory_bytes[s]))} of {size(float(cost.limit_bytes[s]))}",
        )
        for s, ((first, last), devices) in enumerate(
            zip(plan.stage_instructions(len(problem.profile)), plan.stage_devices(problem.cluster.devices), strict=True)
        )
    ]
    table = _table(("stage", "from", "to", "devices", "forward", "backward", "memory"), rows)
    return _page(title, what, table, _picture(timeline(cost, plan.micro_batches, schedule)))


def strategy_html(estimate: Estimate) -> str:
    """A strategy: what it is, what its step consists of, and a row a rank of the pipeline."""
    what = f"{strategy_in_words(estimate)}: {seconds(estimate.step_s)} a step"
    parts = [(name.replace("_", " "), seconds(value)) for name, value in estimate.parts._asdict().items() if value > 0]
    memory = [
        (str(rank), size(part.state), size(part.activations), f"{size(part.total)} of {size(nbytes)}")
        for rank, (part, nbytes) in enumerate(zip(estimate.memory, estimate.memory_bytes, strict=True))
    ]
    tables = _table(("part", "time"), parts) + _table(("rank", "state", "activations", "memory"), memory)
    picture = _picture(strategy_timeline(estimate)) if estimate.passes_s else ""
    return _page(f"{estimate.model} on {estimate.cluster}", what, tables, picture)


def strategy_timeline(estimate: Estimate) -> Timeline:
    """The step of a strategy: its passes, then the sums and the update of each rank, after its first virtual stage."""
    schedule = estimate.strategy.build_schedule()
    forward, backward, weight = map(np.array, estimate.passes_s)
    reduced, update = np.zeros((2, forward.size))
    reduced[: schedule.ranks], update[: schedule.ranks] = estimate.reduced_s, estimate.parts.optimizer
    return simulate(
        forward, backward, np.array(estimate.transfers_s), reduced, schedule, update_s=update, weight_s=weight
    )


def _page(title: str, what: str, *parts: str) -> str:
    return f"<div><p><b>{escape(title)}</b>: {escape(what)}</p>{''.join(parts)}</div>"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, whatever is in them."""
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in headings)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _picture(drawn: Timeline, width: int = 720, row: int = 18) -> str:
    """A row of boxes a rank, one for whatever takes its time; a sentence where these are too many for a page."""
    boxes = [i for i in drawn.intervals if not i.is_send and i.end_s > i.start_s]
    if len(boxes) > 2_000:
        return f"<p>{len(boxes):,} passes are too many for a page.</p>"
    x, ranks = width / drawn.length_s, 1 + max(i.resource for i in boxes)
    boxed = "".join(
        f'<rect x="{i.start_s * x:.1f}" y="{i.resource * row}" width="{(i.end_s - i.start_s) * x:.1f}" '
        f'height="{row - 2}" fill="{DRAWN[i.kind]}"/>'
        for i in boxes
    )
    kinds = [kind for kind in DRAWN if any(i.kind == kind for i in boxes)]
    legend = ", ".join(f'<span style="color:{DRAWN[kind]}">&#9632;</span> {escape(LABELS[kind])}' for kind in kinds)
    where = f'viewBox="0 0 {width} {ranks * row}" width="{width}" style="max-width:100%"'
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" {where}>{boxed}</svg>'
    return f"{picture}<p>{escape(drawn.schedule)}, {seconds(drawn.length_s)}, a row a rank: {legend}</p>"
