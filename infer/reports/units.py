"""Seconds, bytes and ranges as people read them."""

from __future__ import annotations

from collections.abc import Sequence

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
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


def percent(fraction: float) -> str:
    """`0.0123` → `1.2 %`, with a second digit where there would only be zeros."""
    return f"{100 * fraction:.1f} %" if abs(fraction) >= 0.001 or not fraction else f"{100 * fraction:.2g} %"


def span(first_last: Sequence[int]) -> str:
    """`(0, 7)` → `0–7`, `(5, 5)` → `5`."""
    first, last = first_last
    return str(first) if first == last else f"{first}–{last}"


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
