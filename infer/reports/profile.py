"""A profile as people and as programs read it: totals, heaviest parts, cheapest cuts, or every instruction."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from automap_models import workloads
from automap_models.core.layers import loop_notes
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.units import counted, percent, seconds, shortened, size
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.formats.npz import shared_document, write_npz
from automap_models.plots.profile import draw_profile
from automap_models.requests import ProfileRequest

from ..runner import Report
from .text import Column, Table, fact_table, plain, print_parts

MOST_ROWS = 10
_DIGITS = re.compile(r"\d+")


def report(request: ProfileRequest, answer: Profile | None) -> Report:
    """Tables on standard output, warnings and the summary on standard error; or the models that are known."""
    if answer is None:
        return Report(print_known, known_document)

    def show() -> None:
        if request.show:
            print_profile(answer)
        if request.instructions:
            print(*every_instruction(answer), sep="\n")

    return Report(
        show,
        partial(summary_document, answer),
        {"profile": lambda path: write_npz(path, answer)},
        partial(draw_profile, answer),
        warnings=tuple(warnings(answer)),
        remarks=(summary_line(answer),),
    )


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


def heaviest_instructions(profile: Profile, count: int = MOST_ROWS) -> list[int]:
    """Indices of the instructions that take longest, forward and backward, longest first."""
    order = np.argsort(-profile.C, kind="stable")[:count]
    return [int(i) for i in order if profile.C[i] > 0]


def cheapest_cuts(profile: Profile, parts: int = MOST_ROWS) -> list[int]:
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
    for least in (0.1, 0.0):
        cuts = np.flatnonzero((share > least) & (share < 1.0 - least))
        if cuts.size:
            return int(cuts[profile.A[cuts].argmin()])
    return None


def layer_groups(profile: Profile) -> list[LayerGroup]:
    """The profile's layers, alike ones together, longest first; empty where it has none.

    Paths are cut off where no group takes more than half of the time, so `block_7/attention/query` may be part of
    `block_*/attention`.
    """
    separator = "." if profile.meta.get("framework") == "torch" else "/"  # descriptions of a graph.txt are no paths
    paths = [tuple(layer.split(separator)) for layer in profile.layers]
    groups: list[LayerGroup] = []
    for depth in range(1, max(map(len, paths), default=0) + 1):
        groups = _merged(profile, ["/".join(path[:depth]) for path in paths])
        if groups[0].time_s <= profile.C.sum() / 2:
            break
    return groups


def _merged(profile: Profile, layers: Sequence[str]) -> list[LayerGroup]:
    names, of_instruction = np.unique(np.array(layers), return_inverse=True)

    def totals(values: FloatArray) -> FloatArray:
        return np.bincount(of_instruction, values, minlength=len(names)).astype(np.float64)

    time_s, parameters, saved = totals(profile.C), totals(profile.W), totals(profile.stash)
    kinds: dict[tuple[str, float], list[int]] = {}
    for i in np.argsort(time_s, kind="stable").tolist():
        kinds.setdefault((_DIGITS.sub("*", names[i]), float(parameters[i])), []).append(i)
    groups = [
        LayerGroup(
            _pattern([str(names[i]) for i in alike]),
            len(alike),
            float(time_s[alike].sum()),
            float(parameters[alike].sum()),
            float(saved[alike].sum()),
        )
        for members in kinds.values()
        for alike in _alike(members, time_s)
    ]
    return sorted(groups, key=lambda group: (-group.time_s, group.pattern))


def _alike(members: Sequence[int], time_s: NDArray[np.float64]) -> Iterator[list[int]]:
    """Split members in ascending order of time wherever one takes a tenth longer than the one before."""
    part: list[int] = []
    for i in members:
        if part and time_s[i] > 1.1 * time_s[part[-1]]:
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
    unsteady = profile.meta.get("unsteady")
    if isinstance(unsteady, float) and unsteady > 0.2:
        what = "its runs" if unsteady == 1 else f"{percent(unsteady)} of what was run"
        yield f"{what} took another time each time: the machine is busy; measure again when it is idle"
    yield from loop_notes(profile)
    unpriced = profile.meta.get("not_priced")
    yield from map(str, unpriced if isinstance(unpriced, list) else ())
    missing = profile.meta.get("not_measured")
    if isinstance(missing, Mapping) and missing:
        listed = ", ".join(f"{opcode} ({count}×)" for opcode, count in missing.items())
        yield f"could not be measured on this machine, so their times are guesses: {listed}"


def notes(profile: Profile) -> Iterator[str]:
    """Everything else that was reported: time without a place, shared parameters, values that live long."""
    if str(profile.meta.get("constants", "")).startswith("mean"):
        yield f"{profile.device} is unfitted: its data sheet, and the mean constants of devices that have a fit"
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
    for parameter in profile.shared_parameters:
        ends = profile.layer(parameter.instructions[0]), profile.layer(parameter.instructions[-1])
        where = f" is shared by {ends[0]} and {ends[1]}" if all(ends) else " is shared"
        what = f"{parameter.name} ({size(parameter.nbytes)}){where}"
        yield f"{what}: a cut in between needs a copy on both sides, with its state, kept in step"
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


def _listed(names: Sequence[object], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest


LEAST_LAYER = 12


def print_profile(profile: Profile) -> None:
    """Print totals, the heaviest instructions and layers, the cheapest cuts and what was reported."""
    groups, cuts, reported = layer_groups(profile), cheapest_cuts(profile), [*warnings(profile), *notes(profile)]
    layers, places = "[bold]heaviest layers[/bold], alike ones together", "[bold]cheapest cuts[/bold]"
    print_parts(
        [f"[bold]{plain(profile.model)}[/bold]: {plain(origin(profile))}"],
        [fact_table(totals(profile))],
        [layers, layer_table(profile, groups)] if any(group.pattern for group in groups) else [],
        ["[bold]heaviest instructions[/bold]", instruction_table(profile)],
        [f"{places}, one about every tenth of the time", cut_table(profile, cuts)] if cuts else [],
        [fact_table((), reported)] if reported else [],
    )


def origin(profile: Profile) -> str:
    """`10,528 instructions, times by the clock of v100, from jax, float32, micro-batch of 16`."""
    meta = profile.meta
    parts = [f"{len(profile):,} instructions"]
    if "device" in meta:
        origin = f"{meta.get('times', '')} {meta.get('source', '')}"
        computed = next((word for word in ("roofline", "clock") if word in origin), "")
        how = "measured on" if "measured per" in origin else f"by the {computed} of" if computed else "of"
        parts.append(f"times {how} {meta['device']}")
    source = str(meta.get("source", ""))
    source = str(meta.get("framework", "")) if "roofline" in source else source or str(meta.get("framework", ""))
    parts += [f"from {source}"] if source else []
    parts += [str(meta["dtype"])] if meta.get("dtype") else []
    if "microbatch_size" in meta:
        parts.append(f"micro-batch of {meta['microbatch_size']}")
    return ", ".join(parts)


def totals(profile: Profile) -> Iterator[tuple[str, str]]:
    """Label and sentence: time, parameters, kept activations, what crosses a cut."""
    total_s, forward_s = float(profile.C.sum()), float(profile.C_fwd.sum())
    passes = f"{seconds(forward_s)} forward, {seconds(total_s - forward_s)} backward"
    yield "time", f"{seconds(total_s)} a micro-batch: {passes}"
    update_s = profile.meta.get("update_per_step_s")
    if isinstance(update_s, float) and update_s > 0:
        yield "update", f"{seconds(update_s)} once a step, in addition"
    users = counted(int((profile.W > 0).sum()), "instruction")
    yield "parameters", f"{size(float(profile.W.sum()))}, first used by {users}"
    if profile.frozen.sum() > 1e3:  # 4.00 B of a constant read like parameters
        yield "not trained", f"{size(float(profile.frozen.sum()))} of parameters, buffers and constants, held once"
    yield "saved", f"{size(float(profile.stash.sum()))} of activations a micro-batch, for the backward pass"
    cut = smallest_cut(profile)
    if cut is not None:
        where = f" in {profile.layer(cut)}" if profile.layer(cut) not in profile.name(cut) else ""
        smallest = f"{size(float(profile.A[cut]))} at the smallest cut, {cut_name(profile, cut)}{where}"
        yield "crossing", f"{smallest}; at most {size(float(profile.A.max()))} elsewhere"


def layer_table(profile: Profile, groups: list[LayerGroup]) -> Table:
    """One row a group of layers, the heaviest first; what is left in one row."""
    top, rest = groups[:MOST_ROWS], groups[MOST_ROWS:]
    if len(rest) > 1:
        others = [sum(getattr(g, key) for g in rest) for key in ("count", "time_s", "parameter_bytes", "stash_bytes")]
        top = [*top, LayerGroup("others", *others)]
    else:
        top = groups
    total_s = float(profile.C.sum())
    layout = (
        Column("layer", lambda room: [_layer(group.pattern or "(no layer)", room) for group in top], 18, text=True),
        Column("count", [f"{group.count:,}" for group in top]),
        Column("time", [seconds(group.time_s) for group in top]),
        Column("share", [percent(group.time_s / total_s) for group in top]),
        Column("parameters", [size(group.parameter_bytes) for group in top]),
        Column("saved", [size(group.stash_bytes) for group in top]),
    )
    return Table(layout)


def instruction_table(profile: Profile) -> Table:
    """One row an instruction, the heaviest first."""
    total_s, heaviest = float(profile.C.sum()), heaviest_instructions(profile)
    layout = (
        Column("instruction", _names([profile.name(i) for i in heaviest]), text=True),
        Column("layer", lambda room: [_layer(profile.layer(i), room) for i in heaviest], LEAST_LAYER, text=True),
        Column("forward", [seconds(float(profile.C_fwd[i])) for i in heaviest]),
        Column("backward", [seconds(float(profile.C[i] - profile.C_fwd[i])) for i in heaviest]),
        Column("share", [percent(float(profile.C[i]) / total_s) for i in heaviest]),
        Column("parameters", [size(float(profile.W[i])) for i in heaviest]),
    )
    return Table(layout)


def cut_table(profile: Profile, cuts: list[int]) -> Table:
    """One row a cut, in execution order."""
    done = profile.C.cumsum() / profile.C.sum()
    layout = (
        Column("cut", _names([cut_name(profile, cut) for cut in cuts]), text=True),
        Column("layer", lambda room: [_layer(profile.layer(cut), room) for cut in cuts], LEAST_LAYER, text=True),
        Column("bytes", [size(float(profile.A[cut])) for cut in cuts]),
        Column("time before", [percent(float(done[cut])) for cut in cuts]),
    )
    return Table(layout)


def cut_name(profile: Profile, cut: int) -> str:
    """`after dot.7`; a PyTorch profile's names may begin with `before` themselves, as split points do."""
    name = profile.name(cut)
    return name if name.startswith("before ") else f"after {name}"


def _names(names: list[str]) -> list[str]:
    """The names of a table's rows, as wide as the widest, which is not too wide."""
    width = min(max(map(len, names)), 34)
    return [shortened(name, width) for name in names]


def _layer(text: str, width: int) -> str:
    """A path keeps its end; a description such as `Conv2d(3, 64, …)` its beginning."""
    text = " ".join(text.split())
    return f"{text[: width - 1]}…" if "(" in text and len(text) > width else shortened(text, width)


def every_instruction(profile: Profile) -> Iterator[str]:
    """A heading and one line an instruction: index, the five arrays, name and layer."""
    yield f"{'':>6} {'forward s':>12} {'backward s':>12} {'cut bytes':>14} {'parameters':>14} {'saved':>14}  name"
    for i in range(len(profile)):
        yield (
            f"{i:>6} {profile.C_fwd[i]:>12.6g} {profile.C[i] - profile.C_fwd[i]:>12.6g} {profile.A[i]:>14.10g} "
            f"{profile.W[i]:>14.10g} {profile.stash[i]:>14.10g}  {profile.name(i)}  "
            f"{' '.join(profile.layer(i).split())}".rstrip()
        )


def summary_line(profile: Profile) -> str:
    """Everything in one line."""
    cut = smallest_cut(profile)
    smallest = (
        "all work in one instruction"
        if cut is None
        else f"smallest cut {profile.A[cut] / 1e6:.4g} MB {cut_name(profile, cut)}"
    )
    return (
        f"{profile.model}: {len(profile)} instructions, {profile.C.sum():.4g} s a micro-batch, "
        f"{profile.W.sum() / 1e6:.4g} MB of parameters, {smallest}"
    )


def summary_document(profile: Profile) -> dict[str, object]:
    """The same as `print_profile` shows, for machines: plain JSON types, seconds and bytes."""
    done = profile.C.cumsum() / profile.C.sum()
    total_s = float(profile.C.sum())
    return {
        "model": profile.model,
        "instructions": len(profile),
        "time_s": total_s,
        "forward_s": float(profile.C_fwd.sum()),
        "parameter_bytes": float(profile.W.sum()),
        "stash_bytes": float(profile.stash.sum()),
        "frozen_bytes": float(profile.frozen.sum()),
        "fingerprint": profile.fingerprint,
        "heaviest_layers": [
            {**vars(group), "share": group.time_s / total_s} for group in layer_groups(profile)[:MOST_ROWS]
        ],
        "heaviest_instructions": [
            {
                **_place(profile, i),
                "forward_s": float(profile.C_fwd[i]),
                "backward_s": float(profile.C[i] - profile.C_fwd[i]),
                "share": float(profile.C[i]) / total_s,
                "parameter_bytes": float(profile.W[i]),
            }
            for i in heaviest_instructions(profile)
        ],
        "cheapest_cuts": [
            {**_place(profile, i), "bytes": float(profile.A[i]), "share_before": float(done[i])}
            for i in cheapest_cuts(profile)
        ],
        "shared_parameters": shared_document(profile.shared_parameters),
        "warnings": list(warnings(profile)),
        "notes": list(notes(profile)),
        "meta": dict(profile.meta),
    }


def _place(profile: Profile, i: int) -> dict[str, object]:
    return {"index": i, "name": profile.name(i), "layer": profile.layer(i)}


def print_known() -> None:
    """Print a table of models and one of devices."""
    names = workloads.names()
    texts = [workloads.summary(name) for name in names]
    what = "what it is, parameters, defaults of a micro-batch"
    models = (
        Column("model", list(names), text=True),
        Column(what, lambda room: [textwrap.fill(text, room, break_on_hyphens=False) for text in texts], 36, text=True),
    )
    fitted = [read_device(name) for name in known_devices()]
    attained = [(one.constants.product_efficiency, one.constants.bandwidth_efficiency) for one in fitted]
    devices = (
        Column("--device", list(known_devices()), text=True),
        Column("float32", [_tflops(device.matrix["float32"]) for device in fitted]),
        Column("bfloat16", [_tflops(device.matrix.get("bfloat16")) for device in fitted]),
        Column("memory", [f"{size(device.bandwidth)}/s" for device in fitted]),
        Column("attained of both", [", ".join(map(percent, both)) for both in attained]),
    )
    print_parts([Table(models)], [Table(devices)])


def known_document() -> dict[str, Any]:
    """The same names as plain JSON types."""
    return {
        "models": {name: workloads.summary(name) for name in workloads.names()},
        "devices": list(known_devices()),
    }


def _tflops(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:,.4g} TFLOP/s"
