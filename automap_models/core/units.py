"""Quantities with units as people write and read them: `130 GB/s`, `12.3 ms`; and words that come with numbers.

Reading has to refuse what is not meant and convert to base units. Libraries of quantities were tried: quantiphy 2.23
reads "2 min" as two milli-inches and "1.5e1 kB" as 15 of an unknown unit, knows neither that a bit is an eighth of a
byte nor which units belong to what is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

LARGEST = 2**31 - 1
"""Whole number that people give."""
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


@dataclass(frozen=True)
class Unit:
    """What a number measures.

    Attributes:
        what: "size", "bandwidth", …, for messages.
        base: the unit of a number without one.
        examples: how people write it.
        symbols: unit → how many base units it is. `b` and `bit` are bits, `B` is bytes, and case counts.
    """

    what: str
    base: str
    examples: str
    symbols: Mapping[str, float]

    def parse(self, text: str) -> float:
        """`32 GB` → 32e9: a number in the base unit.

        Raises:
            ValueError: it is none; the message says what was expected.
        """
        try:
            return float(text)
        except ValueError:
            pass
        match = _QUANTITY.fullmatch(text.strip()) if len(text) <= 60 else None  # longer: no quantity
        if match is None or match[2] not in self.symbols:
            raise ValueError(f"{text[:60]!r} is no {self.what} such as {self.examples} ({self.base})")
        return float(Decimal(match[1]) * Decimal(repr(self.symbols[match[2]])))  # 5 us is 5e-6 to the last bit


_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([^\s\d](?:.*\S)?)")


def _with_prefixes(symbol: str, size: float, prefixes: Mapping[str, float]) -> dict[str, float]:
    return {prefix + symbol: size * factor for prefix, factor in prefixes.items()}


BYTES = Unit("size", "bytes", "32 GB, 80 GiB or 32e9", _with_prefixes("B", 1.0, _DECIMAL | _BINARY))
BYTES_PER_S = Unit(
    "bandwidth",
    "bytes per second",
    "130 GB/s, 25 Gbit/s or 130e9",
    _with_prefixes("B/s", 1.0, _DECIMAL | _BINARY)
    | _with_prefixes("bit/s", 0.125, _DECIMAL)
    | _with_prefixes("b/s", 0.125, _DECIMAL)
    | _with_prefixes("bps", 0.125, _DECIMAL),
)
FLOP_PER_S = Unit(
    "rate",
    "FLOP/s",
    "312 TFLOP/s or 312e12",
    _with_prefixes("FLOP/s", 1.0, _DECIMAL) | _with_prefixes("FLOPS", 1.0, _DECIMAL),
)
SECONDS = Unit(
    "time",
    "seconds",
    "5 us, 300 ms, 20 s or 2 min",
    {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    | dict.fromkeys(("day", "days"), 86400.0)
    | dict.fromkeys(("year", "years"), 365.25 * 86400.0),
)
TOKENS = Unit("number of tokens", "tokens", "1T, 300B or 15e9", {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12})
SHARE = Unit("share", "a part of one", "0.005 or 0.5 %", {"%": 0.01})

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def time_unit(largest_s: float) -> tuple[float, str]:
    """The unit in which a time, or the largest of several, reads best: how many seconds it has, and its name."""
    return next(((size, name) for size, name in _TIMES if largest_s >= size), _TIMES[-1]) if largest_s else (1.0, "s")


def seconds(value_s: float) -> str:
    """`0.01234` → `12.3 ms`."""
    size, name = time_unit(value_s)
    return f"{_three_digits(value_s / size)} {name}"


def size_unit(largest_bytes: float) -> tuple[float, str]:
    """The unit in which a size, or the largest of several, reads best: how many bytes it has, and its name."""
    return next(((unit, name) for unit, name in _SIZES if largest_bytes >= unit), (1.0, "B"))


def size(value_bytes: float) -> str:
    """`32e9` → `32.0 GB` (decimal, as vendors and link speeds count)."""
    unit, name = size_unit(value_bytes)
    return f"{_three_digits(value_bytes / unit)} {name}"


def rounded_up(value: float) -> float:
    """The value to three digits, none of it lost: what is printed of a need has to be enough."""
    if value <= 0:
        return value
    digit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / digit * (1.0 - 1e-12)) * digit


def token_count(value: float) -> str:
    """`1.2e12` → `1.2T`, as people say how much a model is trained on."""
    unit, name = next(((size, name) for size, name in _COUNTS if value >= size), (1.0, ""))
    return f"{value / unit:.4g}{name}"


def percent(fraction: float) -> str:
    """`0.0123` → `1.2 %`, with a second digit where there would only be zeros; rounding is `0.0 %`."""
    if abs(fraction) < 1e-9:
        return "0.0 %"
    return f"{100 * fraction:.1f} %" if abs(fraction) >= 0.001 else f"{100 * fraction:.2g} %"


def span(first_last: Sequence[int]) -> str:
    """`(0, 7)` → `0–7`, `(5, 5)` → `5`."""
    first, last = first_last
    return str(first) if first == last else f"{first}–{last}"


def listed(words: Iterable[object]) -> str:
    """`0 and 3`, `0, 1 and 3`."""
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


def counted(number: int, noun: str) -> str:
    """`1 stage`, `4 stages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rounds(micro_batches: int) -> str:
    """`1 micro-batch`, `16 micro-batches`."""
    return f"{micro_batches} micro-batch{'es' if micro_batches > 1 else ''}"


def _three_digits(value: float) -> str:
    if not value:
        return "0"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def shortened(text: str, width: int) -> str:
    """A path in at most so many characters, the middle left out; the index of its block and its end stay.

    >>> shortened("model.layers.17.self_attn_block.mlp.down_proj", 30)
    'model.layers.17…mlp.down_proj'

    The index is the first number, or `*` for all of them, that ends a part of the path. Where little room is left, the
    index is what stays.
    """
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    index = _INDEX.search(text)
    if index is None:
        head = max(0, (width - 1) // 3)
        return f"{text[:head]}…{_end(text, width - 1 - head)}"
    stop, rest = index.end(), text[index.end() :]
    end = rest if len(rest) <= width // 2 else f"…{_end(rest, width // 2 - 1)}"
    if stop + len(end) <= width:
        return f"{text[:stop]}…{_end(rest, width - 1 - stop)}"
    room = max(width - len(end) - 1, len(index[0]))
    return f"…{_end(text[:stop], room)}{end[: max(0, width - 1 - room)]}"


_INDEX = re.compile(r"(?:\d+|\*)(?=[/.]|$)")


def _end(text: str, width: int) -> str:
    """The end of a path in at most so many characters, whole parts where they are not much shorter."""
    cut = text[len(text) - width :] if width > 0 else ""
    mark = re.search(r"[/._]", cut)
    parts = cut[mark.end() :] if mark else ""
    return parts if 2 * len(parts) > width else cut
