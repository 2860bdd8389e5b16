"""A script of Megatron with the arguments of another strategy, each changed where it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from automap_models.core.framework import ModelFacts
from automap_models.core.strategy import Strategy
from automap_models.export.megatron import COUNTS, arguments
from automap_models.export.model_blocks import BlockPlan
from automap_models.importing.megatron_arguments import Arguments, listed
from automap_models.importing.setting import Rewrite
from automap_models.importing.shell import Span, Word

LAYOUT = "--pipeline-model-parallel-layout"
CHUNK, CHUNKS = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
ENDS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
COUNTED_ENDS = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
STAGES = (LAYOUT, CHUNK, CHUNKS, *ENDS, *COUNTED_ENDS)
OVERLAP = "--overlap-grad-reduce"
MODULES_GIVEN, HOSTED = "--recompute-modules", "--cpu-offloading-num-layers"
RECOMPUTE = (
    *("--recompute-granularity", MODULES_GIVEN, "--recompute-method", "--recompute-num-layers"),
    *("--recompute-activations", HOSTED),
)
CHANGED: Mapping[str, tuple[str, ...]] = {
    **{argument: (name,) for name, argument in COUNTS.items()},
    **dict.fromkeys(STAGES, ("pp", "vp", "layers")),
    **dict.fromkeys(RECOMPUTE, ("recompute", "recompute_blocks")),
    "--use-distributed-optimizer": ("zero",),
    OVERLAP: ("tp", "pp", "cp", "zero"),
    "--overlap-param-gather": ("zero",),
    "--sequence-parallel": ("sequence_parallel",),
}
"""Argument → fields of a strategy that it says; one that says none of them anew stays as it is."""
SEARCHED = frozenset(name for names in CHANGED.values() for name in names) | {"dp", "schedule"} - {"global_batch"}


def rewriting(given: Arguments, fields: Mapping[str, Any], layers: int | None) -> Rewrite:
    """The text with the arguments of another strategy in place of those that say otherwise."""

    def text_of(strategy: Strategy) -> str:
        wanted = {word[0]: list(word[1:]) for word in arguments(block_plan(strategy, layers or 1))}
        # Equal stages need no layout, and a reader knows the shorter arguments.
        if strategy.stages == 1 or len(set(strategy.layers or ())) <= 1:
            wanted.pop(LAYOUT, None)
            if strategy.vp > 1:
                wanted[CHUNK] = [str((layers or 1) // strategy.stages)]
        changed = {name for name in vars(strategy) if _differs(name, fields, strategy)}
        edits, added = list[tuple[Span, str]](), list[str]()
        for name, names in CHANGED.items():
            if not changed & {*names} or (name not in given and name not in wanted):
                continue
            entry = given.words.get(name, ())
            if name in wanted and entry:
                places = [_span(entry[1:])] if name == MODULES_GIVEN else [_place(given, old) for old in entry[1:2]]
                edits += [(place, " ".join(wanted[name])) for place in places]
            elif entry:
                # What asks for an argument that goes is refused at start-up, and goes with it.
                gone = [name, *(other for other, need in listed()["needs"].items() if need == name and other in given)]
                edits += [(_with_space(given.text, _span(_words(given, one))), "") for one in gone]
            else:
                added.append(" ".join([name, *wanted[name]]))
        # New arguments come behind the first degree that is there: in scripts that is where people look for them.
        anchor = next((entry for name, entry in given.words.items() if name in COUNTS.values()), None)
        end = _span(anchor[:2])[1] if anchor else len(given.text.rstrip())
        edits.append(((end, end), "".join(separator(given.text, end) + text for text in added)))
        return edited(given.text, edits)

    return text_of


def block_plan(strategy: Strategy, layers: int) -> BlockPlan:
    """A strategy as exports take it; stages of equally many layers where it has none."""
    counts = strategy.layers or (layers // strategy.stages,) * strategy.stages
    return BlockPlan("", replace(strategy, layers=counts), (strategy.tp,) * strategy.pp, ModelFacts())


def _differs(name: str, fields: Mapping[str, Any], strategy: Strategy) -> bool:
    """Whether a strategy says another value; stages that are equal are no other than those that nobody says."""
    usual = {"etp": fields.get("tp", 1)}.get(name, Strategy.__dataclass_fields__[name].default)
    if name == "layers":
        uneven = [counts for counts in (fields.get(name), strategy.layers) if counts and len(set(counts)) > 1]
        return bool(uneven) and fields.get(name) != strategy.layers
    before, after = fields.get(name, usual), strategy.expert_tensor if name == "etp" else getattr(strategy, name)
    if name == "etp":
        return "etp" in fields and before != after
    return bool(before != after)


def _place(given: Arguments, word: Word) -> Span:
    """Where a value is changed: in its assignment, unless another argument has that, too."""
    others = [other for entry in given.words.values() for other in entry if other.origin == word.origin]
    return word.origin if len(others) == 1 and word.origin != (0, 0) else word.site


def _words(given: Arguments, name: str) -> Sequence[Word]:
    """An argument with its value, or with several modules."""
    return given.words[name] if name == MODULES_GIVEN else given.words[name][:2]


def _span(words: Sequence[Word]) -> Span:
    return words[0].site[0], max(word.site[1] for word in words)


def separator(text: str, place: int) -> str:
    """What stands between two arguments here: a new line as the last one, or a space."""
    begin, stop = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    line = text[begin : len(text) if stop < 0 else stop]
    indent = line[: len(line) - len(line.lstrip())]
    if not re.match(r"\s*(--|\+*[\w.]+=)", line) or "\n" not in text:
        return " "
    return f" \\\n{indent}" if line.rstrip().endswith("\\") else f"\n{indent}"


def _with_space(text: str, span: Span) -> Span:
    """A place with the spaces before it, and the line's end where nothing else is on the line."""
    begin, stop = span
    while begin and text[begin - 1] in " \t":
        begin -= 1
    while stop < len(text) and text[stop] in " \t\\":
        stop += 1
    alone = (not begin or text[begin - 1] == "\n") and text[stop : stop + 1] in ("\n", "")
    return (begin, stop + 1) if alone else (begin, span[1])


def edited(text: str, edits: Sequence[tuple[Span, str]]) -> str:
    """A text with other words at some places."""
    for (begin, stop), new in sorted(set(edits), reverse=True):
        text = text[:begin] + new + text[stop:]
    return text
