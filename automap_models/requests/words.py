"""The words of options: what people type, in commands and in Python, for fields of requests that are called otherwise.

automap plan --keep-together PATTERN      am.plan(…, keep_together=[PATTERN])      PlanOptions.together
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from automap_models.core.units import BYTES, SECONDS, Unit
from automap_models.errors import BadInput, Infeasible, UserCodeError

FIELD_OF: Mapping[str, str] = {
    "budget": "budget_s",
    "certify_budget": "certify_s",
    "finetune": "finetune_s",
    "for": "target",
    "forbid": "forbidden",
    "keep_together": "together",
    "link": "link_bytes_per_s",
    "memory": "memory_bytes",
    "pin": "pins",
    "refine_budget": "refine_s",
    "restart": "restart_s",
    "time_limit": "time_limit_s",
}
"""Word → field, where the two differ."""
_WORD_OF = {field: "for_" if word == "for" else word for word, field in FIELD_OF.items()} | {"virtual": "vp"}
"""Field → its word in Python, where `for` is a keyword; a run has `vp` for what a strategy calls so, too."""
_UNITS: Mapping[str, Unit] = {"budget_s": SECONDS, "certify_s": SECONDS, "refine_s": SECONDS, "memory_bytes": BYTES}


def fields_of(function: str, names: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of the fields of a request.

    Raises:
        BadInput: the function has no such option, or a text is no quantity.
    """
    field_of = {_WORD_OF.get(name, name): name for name in dict.fromkeys(names)}
    given: dict[str, Any] = {}
    for word, value in options.items():
        if word not in field_of:
            do = f"it is called {_WORD_OF[word]}" if _WORD_OF.get(word) in field_of else f"it has {', '.join(field_of)}"
            raise BadInput(f"has no option {word!r}", where=function, do=do)
        unit = _UNITS.get(field_of[word])
        try:
            given[field_of[word]] = unit.parse(value) if unit is not None and isinstance(value, str) else value
        except ValueError as error:
            raise BadInput(str(error), where=f"`{word}`") from None
    return given


@contextmanager
def in_words(**others: str) -> Iterator[None]:
    """What is refused names options as the commands do, between backticks and perhaps with a value.

    Args:
        others: words of this command alone.
    """

    def reworded(text: str | None) -> str | None:
        words = {**_WORD_OF, **others}
        return text and re.sub(r"`(\w+)(?=[`=])", lambda mention: f"`{words.get(mention[1], mention[1])}", text)

    try:
        yield
    except UserCodeError:
        raise
    except (BadInput, Infeasible) as error:
        raise type(error)(
            reworded(error.what) or "", where=reworded(error.where), do=reworded(error.do)
        ) from error.__cause__
