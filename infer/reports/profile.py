"""A profile as people and as programs read it: totals, heaviest parts, cheapest cuts, or every instruction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from automap_models import workloads
from automap_models.core.profile import Profile
from automap_models.formats.device_yaml import known_devices, read_device

from .profile_facts import SHOWN, LayerGroup, cheapest_cuts, heaviest_instructions, layer_groups, notes, warnings
from .profile_facts import smallest_cut as smallest_cut_of
from .tables import columns, console, fact_table, plain, shortened
from .units import counted, percent, seconds, size

if TYPE_CHECKING:
    from rich.table import Table

NAME_WIDTH = 34  # at most
NO_LAYER = "(no layer)"


def print_profile(profile: Profile) -> None:
    """Print totals, the heaviest instructions and layers, the cheapest cuts and what was reported."""
    screen = console()
    screen.print(f"[bold]{plain(profile.model)}[/bold]: {plain(origin(profile))}\n")
    screen.print(fact_table(totals(profile)))
    groups = layer_groups(profile)
    if any(group.pattern for group in groups):
        screen.print("\n[bold]heaviest layers[/bold], alike ones together")
        screen.print(layer_table(profile, groups, screen.width - 48))
    screen.print("\n[bold]heaviest instructions[/bold]")
    screen.print(instruction_table(profile, screen.width - 43))
    cuts = cheapest_cuts(profile)
    if cuts:
        screen.print("\n[bold]cheapest cuts[/bold], one about every tenth of the time")
        screen.print(cut_table(profile, cuts, screen.width - 27))
    reported = [*warnings(profile), *notes(profile)]
    if reported:
        screen.print()
        screen.print(fact_table((), reported))


def origin(profile: Profile) -> str:
    """`10,528 instructions, times by the roofline of v100, from jax, float32, micro-batch of 16`."""
    meta = profile.meta
    parts = [f"{len(profile):,} instructions"]
    if "device" in meta:
        origin = f"{meta.get('times', '')} {meta.get('source', '')}"
        how = "measured on" if "measured per" in origin else "by the roofline of" if "roofline" in origin else "of"
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
    yield (
        "time",
        f"{seconds(total_s)} a micro-batch: {seconds(forward_s)} forward, {seconds(total_s - forward_s)} backward",
    )
    update_s = profile.meta.get("update_per_step_s")
    if isinstance(update_s, float) and update_s > 0:
        yield "update", f"{seconds(update_s)} once a step, in addition"
    yield (
        "parameters",
        f"{size(float(profile.W.sum()))}, first used by {counted(int((profile.W > 0).sum()), 'instruction')}",
    )
    yield "kept", f"{size(float(profile.stash.sum()))} of activations a micro-batch, for the backward pass"
    cut = smallest_cut_of(profile)
    if cut is not None:
        where = f" in {profile.layer(cut)}" if profile.layer(cut) not in profile.name(cut) else ""
        smallest = f"{size(float(profile.A[cut]))} at the smallest cut, {cut_name(profile, cut)}{where}"
        yield "crossing", f"{smallest}; at most {size(float(profile.A.max()))} elsewhere"


def layer_table(profile: Profile, groups: list[LayerGroup], room: int) -> Table:
    """One row a group of layers, the heaviest first; what is left in one row."""
    table = columns()
    table.add_column("layer", no_wrap=True)
    for heading in ("count", "time", "share", "parameters", "kept"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown, rest = groups[:SHOWN], groups[SHOWN:]
    if len(rest) > 1:
        others = [sum(getattr(g, key) for g in rest) for key in ("count", "time_s", "parameter_bytes", "stash_bytes")]
        shown = [*shown, LayerGroup("others", *others)]
    else:
        shown = groups
    total_s = float(profile.C.sum())
    for group in shown:
        table.add_row(
            plain(_layer(group.pattern or NO_LAYER, room)),
            f"{group.count:,}",
            seconds(group.time_s),
            percent(group.time_s / total_s),
            size(group.parameter_bytes),
            size(group.stash_bytes),
        )
    return table


def instruction_table(profile: Profile, room: int) -> Table:
    """One row an instruction, the heaviest first."""
    table = columns()
    table.add_column("instruction", no_wrap=True)
    table.add_column("layer", no_wrap=True)
    for heading in ("forward", "backward", "share", "parameters"):
        table.add_column(heading, justify="right", no_wrap=True)
    total_s = float(profile.C.sum())
    heaviest = heaviest_instructions(profile)
    for i, name in zip(heaviest, _names([profile.name(i) for i in heaviest]), strict=True):
        table.add_row(
            plain(name),
            plain(_layer(profile.layer(i), room - len(name))),
            seconds(float(profile.C_fwd[i])),
            seconds(float(profile.C[i] - profile.C_fwd[i])),
            percent(float(profile.C[i]) / total_s),
            size(float(profile.W[i])),
        )
    return table


def cut_table(profile: Profile, cuts: list[int], room: int) -> Table:
    """One row a cut, in execution order."""
    table = columns()
    table.add_column("cut", no_wrap=True)
    table.add_column("layer", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("time before", justify="right", no_wrap=True)
    done = profile.C.cumsum() / profile.C.sum()
    for cut, name in zip(cuts, _names([cut_name(profile, cut) for cut in cuts]), strict=True):
        table.add_row(
            plain(name),
            plain(_layer(profile.layer(cut), room - len(name))),
            size(float(profile.A[cut])),
            percent(float(done[cut])),
        )
    return table


def cut_name(profile: Profile, cut: int) -> str:
    """`after dot.7`; a PyTorch profile's names may begin with `before` themselves, as split points do."""
    name = profile.name(cut)
    return name if name.startswith("before ") else f"after {name}"


def _names(names: list[str]) -> list[str]:
    """The names of a table's rows, as wide as the widest, which is not too wide."""
    width = min(max(map(len, names)), NAME_WIDTH)
    return [shortened(name, width).ljust(width) for name in names]


def _layer(text: str, width: int) -> str:
    """A path keeps its end; a description such as `Conv2d(3, 64, …)` its beginning."""
    width, text = max(width, 12), " ".join(text.split())
    return f"{text[: width - 1]}…" if "(" in text and len(text) > width else shortened(text, width)


def every_instruction(profile: Profile) -> Iterator[str]:
    """A heading and one line an instruction: index, the five arrays, name and layer."""
    yield f"{'':>6} {'forward s':>12} {'backward s':>12} {'cut bytes':>14} {'parameters':>14} {'stash':>14}  name"
    for i in range(len(profile)):
        yield (
            f"{i:>6} {profile.C_fwd[i]:>12.6g} {profile.C[i] - profile.C_fwd[i]:>12.6g} {profile.A[i]:>14.10g} "
            f"{profile.W[i]:>14.10g} {profile.stash[i]:>14.10g}  {profile.name(i)}  "
            f"{' '.join(profile.layer(i).split())}".rstrip()
        )


def summary_line(profile: Profile) -> str:
    """Everything in one line."""
    cut = smallest_cut_of(profile)
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
        "fingerprint": profile.fingerprint,
        "heaviest_layers": [
            {**vars(group), "share": group.time_s / total_s} for group in layer_groups(profile)[:SHOWN]
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
        "warnings": list(warnings(profile)),
        "notes": list(notes(profile)),
        "meta": dict(profile.meta),
    }


def _place(profile: Profile, i: int) -> dict[str, object]:
    return {"index": i, "name": profile.name(i), "layer": profile.layer(i)}


def print_known() -> None:
    """Print a table of models and one of devices."""
    screen = console()
    models = columns()
    models.add_column("model", no_wrap=True)
    models.add_column("what it is, parameters, defaults of a micro-batch")
    for name in workloads.names():
        models.add_row(name, plain(workloads.summary(name)))
    screen.print(models)
    screen.print()
    devices = columns()
    devices.add_column("--device", no_wrap=True)
    for heading in ("float32", "bfloat16", "memory", "attained of both"):
        devices.add_column(heading, justify="right", no_wrap=True)
    for name in known_devices():
        device = read_device(name)
        single = "tf32" if "tf32" in device.matrix else "float32"  # what float32 products run in there
        rates = [_tflops(device.matrix.get(dtype)) for dtype in (single, "bfloat16")]
        attained = f"{percent(device.compute_efficiency)}, {percent(device.bandwidth_efficiency)}"
        devices.add_row(name, *rates, f"{size(device.bandwidth)}/s", attained)
    screen.print(devices)


def known_document() -> dict[str, Any]:
    """The same names as plain JSON types."""
    return {
        "models": {name: workloads.summary(name) for name in workloads.names()},
        "devices": list(known_devices()),
    }


def _tflops(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:,.4g} TFLOP/s"
