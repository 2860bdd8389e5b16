"""Layers as paths of modules: what lies in what, which modules repeat, and where they end.

The path of an instruction's layer names the modules that hold it, outermost first. Its *scopes* are these modules:

    encoder/block_3/attention   →   encoder   encoder/block_3   encoder/block_3/attention

A path without a slash is divided at its dots: `model.layers.17.mlp.down_proj`.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from automap_models.core.profile import Profile
from automap_models.core.units import percent
from automap_models.errors import BadInput

Scopes = tuple[str, ...]
_INDEX = re.compile(r"\d+$")
MOST_LAYERS = 256
"""A model of more layers than that is cut between blocks only."""


def scopes(layer: str) -> Scopes:
    """The modules that hold a layer, and itself: `a`, `a/b` and `a/b/c`; none for no name."""
    mark = "/" if "/" in layer else "."
    parts = layer.split(mark)
    return tuple(mark.join(parts[:count]) for count in range(1, len(parts) + 1) if layer)


def matches(scope: str, pattern: str) -> bool:
    """Whether a module's path is this one, or matches this pattern (fnmatch)."""
    return scope == pattern or fnmatchcase(scope, pattern)


def scopes_of_instructions(profile: Profile, where: str) -> list[Scopes]:
    """[n] the scopes of each instruction's layer; in a profile without layers, the instruction's name alone.

    Raises:
        BadInput: the profile tells neither; `where` names the option that needs them.
    """
    if not profile.layers and not profile.names:
        what = f"the profile of {profile.model} names neither layers nor instructions"
        raise BadInput(what, where=where, do="drop it")
    if not profile.layers:
        return [(name,) for name in profile.names]
    of_layer = {layer: scopes(layer) for layer in set(profile.layers)}
    return [of_layer[layer] for layer in profile.layers]


def no_such_layer(pattern: str, all_scopes: Iterable[Scopes], where: str) -> BadInput:
    """The sentence for a pattern that matches none of these scopes."""
    names = sorted({scope for layer_scopes in set(all_scopes) for scope in layer_scopes})
    near = difflib.get_close_matches(pattern, names, cutoff=0.3) or names[:3]
    return BadInput(f"{pattern!r} matches no layer", where=where, do=f"the nearest names are {', '.join(near)}")


def boundaries(profile: Profile, pattern: str, where: str = "`cut_at`") -> tuple[int, ...]:
    """The instructions after which a module ends that matches a pattern, ascending; the model's end is none of them.

    An instruction belongs to the outermost of its scopes that matches, so that `model.layers.*` means the layers and
    not what is in them. A module ends with the last of its instructions.

    Args:
        profile: with layers, or at least with instructions' names.
        pattern: path of a module, or a pattern (fnmatch) of paths.
        where: the option that asks, for messages.

    Raises:
        BadInput: no module matches, or none ends before the model does.
    """
    of_instructions = scopes_of_instructions(profile, where)
    module_of = {
        layer_scopes: next((scope for scope in layer_scopes if matches(scope, pattern)), None)
        for layer_scopes in set(of_instructions)
    }
    last = {module_of[layer_scopes]: i for i, layer_scopes in enumerate(of_instructions)}
    last.pop(None, None)
    if not last:
        raise no_such_layer(pattern, of_instructions, where)
    ends = tuple(sorted(set(last.values()) - {len(profile) - 1}))
    if not ends:
        what = f"{pattern!r} matches only {', '.join(map(str, last))}, which ends with the model"
        raise BadInput(what, where=where, do="give the pattern of several layers, such as 'model.layers.*'")
    return ends


@dataclass(frozen=True)
class Block:
    """A module that repeats: its path, its first and its last instruction."""

    path: str
    first: int
    last: int

    @property
    def series(self) -> str:
        """The path with a star for the index, which blocks of one series share."""
        return _INDEX.sub("*", self.path)


def repeated_blocks(profile: Profile, where: str = "`cut_at`") -> tuple[Block, ...]:
    """The repeated blocks of the model in the order in which they end; none where nothing repeats.

    Blocks are modules whose paths differ in one number, their index, such as `model.layers.0` … `model.layers.31`.
    At least two of them have the same parts and as many bytes of parameters, and together they take 2 % of the
    model's time; less, such as two normalisations, is no block, nor is what repeats inside one, such as its experts.

        embed   layers/0   layers/1   layers/2   norm   head
                block 0    block 1    block 2

    Raises:
        BadInput: the profile tells neither layers nor names; `where` names the option that needs them.
    """
    series: dict[str, list[_Module]] = defaultdict(list)
    for module in _modules(scopes_of_instructions(profile, where)).values():
        if _INDEX.search(module.path):
            series[_INDEX.sub("*", module.path)].append(module)
    blocks: dict[str, _Module] = {}
    for members in sorted(series.values(), key=lambda members: len(members[0].scopes)):
        outermost = [module for module in members if blocks.keys().isdisjoint(module.scopes)]
        kinds = {(frozenset(module.parts), float(profile.W[module.instructions].sum())) for module in outermost}
        time_s = sum(float(profile.C[module.instructions].sum()) for module in outermost)
        if len(kinds) < len(outermost) and time_s >= 0.02 * profile.C.sum():
            blocks |= {module.path: module for module in outermost}
    ordered = sorted(blocks.values(), key=lambda module: module.instructions[-1])
    return tuple(Block(module.path, module.instructions[0], module.instructions[-1]) for module in ordered)


def block_boundaries(profile: Profile, one_series: str = "") -> tuple[int, ...]:
    """The instructions after which a repeated block of the model ends, ascending; the model's end is none of them.

        embed   layers/0   layers/1   layers/2   norm   head
                        |          |          |                 cuts at the bars

    Args:
        one_series: name of a framework that takes blocks of one series, as those of a decoder are; empty for none.

    Raises:
        BadInput: nothing repeats (see `repeated_blocks`), or blocks of several series do.
    """
    blocks = repeated_blocks(profile)
    series = sorted({block.series for block in blocks})
    if one_series and len(series) > 1:
        what = f"{one_series} takes blocks of one series, and {profile.model} has {' and '.join(series)}"
        raise BadInput(what, where="`target`", do="leave it out, or take galvatron or deepspeed")
    ends = tuple(sorted({block.last for block in blocks} - {len(profile) - 1}))
    if not ends:
        do = "give a pattern of the layers to cut after, such as 'model.layers.*', or leave it out"
        raise BadInput(f"no blocks repeat among the layers of {profile.model}", where="`cut_at`", do=do)
    return ends


def block_ends(profile: Profile) -> tuple[int, ...]:
    """The last instruction of each block, ascending, but for one that ends with the model; of layers without blocks.

    There are none in a profile without names, or of more than MOST_LAYERS layers that repeat no block.
    """
    try:
        return block_boundaries(profile)
    except BadInput:
        return layer_ends(profile)


def layer_ends(profile: Profile) -> tuple[int, ...]:
    """The last instruction of each layer but the model's last; none of more than MOST_LAYERS."""
    labels = profile.layers or profile.names
    ends = tuple(i for i in range(len(labels) - 1) if labels[i] != labels[i + 1])
    return ends if len(ends) < MOST_LAYERS else ()


def loop_notes(profile: Profile) -> Iterator[str]:
    """Which loops are one instruction although they take long, and which of them count too little."""
    listed = (profile.meta.get(key) for key in ("loops", "loops_of_unknown_length"))
    loops, unknown = (set(map(str, names)) if isinstance(names, list) else set() for names in listed)
    total_s = float(profile.C.sum())
    for i, name in enumerate(profile.names):
        where = f"the loop {name}" + (f" in layer {profile.layer(i)}" if profile.layer(i) else "")
        if name in unknown:
            unknown.remove(name)
            yield f"{where} runs until its data say so: it counts as one round, and no cut divides it"
        elif name in loops and profile.C[i] > 0.1 * total_s:  # worth a warning
            share = percent(float(profile.C[i]) / total_s)
            yield f"{where} takes {share} of the time and is one instruction: no cut divides it"
    if unknown:
        yield f"loops that run until their data say so count as one round: {', '.join(sorted(unknown))}"


@dataclass
class _Module:
    """A module: its own scopes, its instructions in order, and the paths of its parts relative to it."""

    scopes: Scopes
    instructions: list[int] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)

    @property
    def path(self) -> str:
        return self.scopes[-1]


def _modules(of_instructions: Iterable[Scopes]) -> dict[str, _Module]:
    """All modules by path; descriptions such as `Conv2d(3, 64)` name none."""
    modules: dict[str, _Module] = {}
    for i, layer_scopes in enumerate(of_instructions):
        for depth, scope in enumerate(layer_scopes, start=1):
            if "(" in layer_scopes[-1]:
                continue
            module = modules.setdefault(scope, _Module(layer_scopes[:depth]))
            module.instructions.append(i)
            module.parts.add(layer_scopes[-1][len(scope) :])
    return modules
