"""What there is to say about a profile: the heaviest instructions and layers, the cheapest cuts, what was reported."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray, Profile

from .units import counted, percent, seconds, size

SHOWN = 10
ALIKE = 1.1  # layers whose names differ in numbers only are not alike across a larger step between their times
SMALLEST_SIDE = 0.1  # of the time: a smaller part of the model is no stage
OVERWHELMING = 0.5  # of the time: a group of layers that takes more is taken apart
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class LayerGroup:
    """Layers that do the same thing: equal names but for numbers, equal parameters, about equal times.

    Attributes:
        pattern: their name, numbers that differ replaced by `*`; "" for instructions of no layer.
        count: how many there are.
        time_s, parameter_bytes, stash_bytes: of all of them together.
    """

    pattern: str
    count: int
    time_s: float
    parameter_bytes: float
    stash_bytes: float


def heaviest_instructions(profile: Profile, count: int = SHOWN) -> list[int]:
    """Indices of the instructions that take longest, forward and backward, longest first."""
    order = np.argsort(-profile.C, kind="stable")[:count]
    return [int(i) for i in order if profile.C[i] > 0]


def cheapest_cuts(profile: Profile, parts: int = SHOWN) -> list[int]:
    """For each k in 1 … parts - 1 the cut with the fewest bytes about k/parts of the time into the model.

    About means nearer to it than to the next one; where there is no cut, there is none in the answer.
    """
    share = np.cumsum(profile.C) / profile.C.sum()
    nearest = np.rint(share * parts)
    windows = (np.flatnonzero(nearest[:-1] == k) for k in range(1, parts))
    return [int(window[profile.A[window].argmin()]) for window in windows if window.size]


def smallest_cut(profile: Profile) -> int | None:
    """The cut with the fewest bytes that leaves a tenth of the time on either side, or any where none does."""
    share = np.cumsum(profile.C) / profile.C.sum()
    for least in (SMALLEST_SIDE, 0.0):
        cuts = np.flatnonzero((share > least) & (share < 1.0 - least))
        if cuts.size:
            return int(cuts[profile.A[cuts].argmin()])
    return None


def layer_groups(profile: Profile) -> list[LayerGroup]:
    """The profile's layers, alike ones together, longest first; empty where it has none.

    Paths are cut off where no group takes more than half of the time, so `block_7/attention/query` may be part of
    `block_*/attention`.
    """
    paths = [tuple(layer.split(_separator(profile))) for layer in profile.layers]
    groups: list[LayerGroup] = []
    for depth in range(1, max(map(len, paths), default=0) + 1):
        groups = _merged(profile, ["/".join(path[:depth]) for path in paths])
        if groups[0].time_s <= OVERWHELMING * profile.C.sum():
            break
    return groups


def _separator(profile: Profile) -> str:
    """Between the parts of a module's path; PyTorch's has dots, and a graph.txt's descriptions are no paths."""
    return "." if profile.meta.get("framework") == "torch" else "/"


def _merged(profile: Profile, layers: Sequence[str]) -> list[LayerGroup]:
    names, of_instruction = np.unique(np.array(layers), return_inverse=True)

    def totals(values: FloatArray) -> FloatArray:
        return np.bincount(of_instruction, values, minlength=len(names)).astype(np.float64)

    time_s, parameters, stash = totals(profile.C), totals(profile.W), totals(profile.stash)
    kinds: dict[tuple[str, float], list[int]] = {}
    for i in np.argsort(time_s, kind="stable").tolist():
        kinds.setdefault((_DIGITS.sub("*", names[i]), float(parameters[i])), []).append(i)
    groups = [
        LayerGroup(
            _pattern([str(names[i]) for i in alike]),
            len(alike),
            float(time_s[alike].sum()),
            float(parameters[alike].sum()),
            float(stash[alike].sum()),
        )
        for members in kinds.values()
        for alike in _alike(members, time_s)
    ]
    return sorted(groups, key=lambda group: (-group.time_s, group.pattern))


def _alike(members: Sequence[int], time_s: NDArray[np.float64]) -> Iterator[list[int]]:
    """Split members in ascending order of time wherever one takes a good deal longer than the one before."""
    part: list[int] = []
    for i in members:
        if part and time_s[i] > ALIKE * time_s[part[-1]]:
            yield part
            part = []
        part.append(i)
    yield part


def _pattern(names: Sequence[str]) -> str:
    """`conv4_2, conv4_3` → `conv4_*`: numbers in which the names differ become `*`."""
    numbers = [_DIGITS.findall(name) for name in names]
    same = iter([len(set(position)) == 1 for position in zip(*numbers, strict=True)])
    return _DIGITS.sub(lambda number: number[0] if next(same) else "*", names[0])


def warnings(profile: Profile) -> Iterator[str]:
    """What may make the profile wrong: costs that are not known."""
    calls = profile.meta.get("unknown_custom_calls")
    if isinstance(calls, Mapping) and calls:
        listed = ", ".join(f"{name} ({count}×)" for name, count in calls.items())
        yield f"nobody knows what these custom calls cost, so only their bytes count: {listed}"
    loops = profile.meta.get("loops_of_unknown_length")
    if isinstance(loops, list) and loops:
        yield f"loops of unknown length count as one round: {', '.join(map(str, loops))}"
    missing = profile.meta.get("not_measured")
    if isinstance(missing, Mapping) and missing:
        listed = ", ".join(f"{opcode} ({count}×)" for opcode, count in missing.items())
        yield f"could not be measured on this machine, so their times are guesses: {listed}"


def notes(profile: Profile) -> Iterator[str]:
    """Everything else that was reported: time without a place, shared parameters, values that live long."""
    share = profile.meta.get("unattributed_share")
    if isinstance(share, float) and share > 0:
        yield f"{percent(share)} of the time belongs to no instruction of the forward pass and is spread over all"
    orphans = profile.meta.get("backward_without_forward")
    if isinstance(orphans, Mapping):
        count, time_s = int(orphans["nodes"]), float(orphans["time_s"])
        yield (
            f"{counted(count, 'backward node')} without a forward partner ({seconds(time_s)}) "
            f"{'counts' if count == 1 else 'count'} with the nearest one"
        )
    for parameter in _items(profile, "shared_parameters"):
        yield f"{_shared(profile, parameter)}: a cut in between needs copies on both sides, kept in step"
    unused = profile.meta.get("unused_parameters")
    if isinstance(unused, list) and unused:
        yield f"unused parameters count with the first instruction: {_listed(unused)}"
    lives = Counter((str(v["first"]), str(v["last"]), str(v["bytes"])) for v in _items(profile, "long_lived_values"))
    for (first, last, size_bytes), count in lives.items():
        if first != last:
            what = f"a value of {size(float(size_bytes))} crosses" if count == 1 else f"{count} values cross"
            yield f"{what} every cut between {first or 'a place'} and {last or 'a later place'}"


def _items(profile: Profile, key: str) -> list[Mapping[str, object]]:
    entries = profile.meta.get(key)
    return [item for item in entries if isinstance(item, Mapping)] if isinstance(entries, list) else []


def _shared(profile: Profile, parameter: Mapping[str, object]) -> str:
    names = parameter.get("names", [parameter.get("name")])
    instructions = parameter.get("instructions")
    if isinstance(instructions, list) and instructions:
        ends = profile.layer(int(instructions[0])), profile.layer(int(instructions[-1]))
    else:
        ends = str(parameter.get("first")), str(parameter.get("last"))
    where = f" is shared by {ends[0]} and {ends[1]}" if all(ends) else " is shared"
    return f"{' = '.join(map(str, names)) if isinstance(names, list) else names}{where}"


def _listed(names: Sequence[object], shown: int = 5) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(str, names[:shown])) + rest
