"""What a file of another program will do, as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.units import percent, seconds
from automap_models.errors import Infeasible
from automap_models.formats.strategy_plan import estimate_document
from automap_models.requests import DoctorRequest
from automap_models.requests.doctor import DoctorResult
from automap_models.requests.strategies import shorter_documents
from automap_models.workloads.source import notes_of

from ..commands.parsing import in_options
from ..runner import Report
from .fit import memory_table
from .pipeline import heading
from .strategies import PARTS, facts, parts_table, shorter, title_of
from .text import TYPED, console, fact_table, next_facts, print_parts


def report(request: DoctorRequest, answer: DoctorResult) -> Report:
    """What is refused, the price, and the lines that a better setting changes."""
    hopeless = answer.plan is None and (answer.current is None or not answer.current.fits)
    return Report(
        lambda: _print(answer),
        lambda: doctor_document(answer),
        warnings=notes_of(answer.request.source, traced=False) if answer.request.source.model is None else (),
        exit_code=Infeasible.exit_code if hopeless else 0,
    )


def _print(answer: DoctorResult) -> None:
    current, model = answer.current, answer.problem.work.shape.name
    title = heading(model, answer.request.cluster) if current is None else title_of(answer.request, current)
    read = [] if current is None else [f"{answer.setting.limits.name} is told: {strategy_in_words(current)}"]
    refused = [("refused", in_options(sentence)) for sentence in answer.refusals]
    print_parts(
        [title, *read],
        [fact_table(refused)] if refused else [],
        [parts_table(current)] if current is not None else [],
        [memory_table(current)] if current is not None else [],
        [fact_table(_facts(answer), map(in_options, answer.setting.notes))],
    )
    for line in ("", *answer.changes) if answer.changes else ():
        console().print(line, markup=False, soft_wrap=True)  # to be copied, and so not broken


def _facts(answer: DoctorResult) -> Iterator[tuple[str, str]]:
    if answer.current is not None:
        yield from facts(answer.current)
        yield "bound by", bound_by(answer.current)
    if answer.setting.unread:
        yield "not known", f"priced without {', '.join(answer.setting.unread)}"
    if answer.plan is None:
        yield "better", "no setting was found that is worth a change; automap plan proves how near the best one is"
    else:
        yield "better", f"{strategy_in_words(answer.cost)}: {seconds(answer.cost.step_s)} a step"
        gain = "that it trains" if answer.gain is None else f"{percent(answer.gain)} of the step"
        yield "it buys", f"{gain}; {answer.cost.verdict}"
    best = answer.current if answer.plan is None else answer.cost
    if answer.shorter and best is not None:
        yield from shorter(best, answer.shorter)
        yield from next_facts([f"{TYPED.get()[0]} --min-gain 0   # the lines of the shortest"])


def bound_by(estimate: Estimate) -> str:
    """The parts of a step that take most of it, each with its share, until they are three quarters."""
    parts = sorted(estimate.parts._asdict().items(), key=lambda part: -part[1])
    words, share = list[str](), 0.0
    for name, part_s in parts:
        words.append(f"{PARTS[name]} ({percent(part_s / estimate.step_s)})")
        share += part_s / estimate.step_s
        if share >= 0.75:
            break
    return ", then ".join(words)


def doctor_document(answer: DoctorResult) -> dict[str, Any]:
    """The same as plain JSON types."""
    setting, current = answer.setting, answer.current
    return {
        "schema": 1,
        "kind": "doctor",
        "program": setting.limits.name,
        "fields": {**setting.fields},
        "refusals": list(answer.refusals),
        "notes": [*map(in_options, setting.notes)],
        "unread": {**setting.unread},
        "verdict": answer.verdict,
        "current": None if current is None else estimate_document(current),
        "better": None if answer.plan is None else estimate_document(answer.cost),
        "gain": answer.gain,
        "changes": list(answer.changes),
        "shorter": shorter_documents(answer.shorter),
        "search_s": answer.taken_s,
    }
