"""Overrides of a configuration in a command, as Hydra's programs take them: `trainer.nnodes=2 +model.new=true`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from automap_models.importing.documents import Document, Path, Values, changed, meaning, resolved, scalar
from automap_models.importing.megatron_rewrite import edited, separator
from automap_models.importing.shell import Script, Span, Word

_OVERRIDE = re.compile(r"(?:\+\+?)?([A-Za-z_]\w*(?:\.[\w-]+)+)=(.*)", re.DOTALL)
_CONFIG = re.compile(r"--config[-_]name=?(.*)")


def parse(text: str, variables: Mapping[str, str]) -> Document | None:
    """The overrides of the command that has most of them; None where it has fewer than two.

    Raises:
        BadInput: variables make the text too large.
    """
    statements = Script(text, variables).statements
    words = max(statements, key=lambda words: len([*filter(_matched, words)]), default=[])
    overrides = [(word, match) for word in words if (match := _matched(word))]
    if len(overrides) < 2:
        return None
    values: Values = {}
    places = dict[Path, Span]()
    for word, match in overrides:
        path = tuple(match[1].split("."))
        values = changed(values, {path: meaning(match[2])})
        places[path] = word.site
    for word, after in zip(words, [*words[1:], Word("", (0, 0), (0, 0))], strict=True):
        if config := _CONFIG.fullmatch(word.text):
            values["defaults"] = [(config[1] or after.text).removesuffix(".yaml")]
    place = overrides[0][0].site[1]

    def with_values(new: Mapping[Path, Any]) -> str:
        edits, added = list[tuple[Span, str]](), list[str]()
        for path, value in new.items():
            word = f"{'.'.join(path)}={scalar(value, False).replace(', ', ',')}"
            if path in places:
                begin, stop = places[path]
                plus = re.match(r"['\"]?\+*", text[begin:stop])
                edits.append(((begin, stop), (plus[0].strip("'\"") if plus else "") + word))
            elif value is not None:
                added.append(separator(text, place) + "++" + word)
        return edited(text, [*edits, ((place, place), "".join(added))])

    return Document(text, resolved(values), with_values, places)


def _matched(word: Word) -> re.Match[str] | None:
    return _OVERRIDE.fullmatch(word.text)
