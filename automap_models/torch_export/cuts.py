"""Where torch.distributed.pipelining can cut a forward pass, and what its split_spec calls these places.

A split_spec names a module and one of SplitPoint.BEGINNING and END: the cut is before or after its call. So a place
between two operators has a name if a module that is called once starts or ends there. (One that is called twice would
be cut twice.) A split_spec holds a module once, so every module names one cut only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import fx, nn

from automap_models.core.profile import FloatArray, Profile
from automap_models.errors import BadInput

FRAMEWORK = "torch"
"""What a profile's meta says under `framework`."""
BEFORE = "before "
"""Prefix of the name of a cut at the beginning of a module; the others are at the end of one."""
Frame = list[tuple[str, str]]
"""The calls of modules that an operator is in, outermost first: a key that tells the call, and the module's name."""


@dataclass(frozen=True)
class Cut:
    """A place to cut: after operator `call`, called `name`."""

    call: int
    name: str


def choose_cuts(
    calls: Sequence[fx.Node], model: nn.Module, computes: NDArray[np.bool_], crossing: FloatArray
) -> list[Cut]:
    """All the cuts of a forward pass worth having, in order, under names that can be used together.

    Of the places that have no kernel between them only the one with the fewest bytes is left. The place with the fewest
    bytes of all chooses its name first; in a tie, one at the end of a module does. One that finds no name is no cut.

    Args:
        calls: the m operators of the forward pass.
        model: the model whose modules they are of.
        computes: [m] whether an operator launches a kernel.
        crossing: [m] bytes that cross a cut after each operator.
    """
    options = _names(calls, model)
    kernels_before = np.cumsum(computes)

    def rank(call: int) -> tuple[float, bool, int]:
        return float(crossing[call]), options[call][0].startswith(BEFORE), call

    best: dict[int, int] = {}
    for call in sorted(options, key=rank):
        if 0 < kernels_before[call] < kernels_before[-1]:
            best.setdefault(int(kernels_before[call]), call)
    used: set[int] = set()
    cuts = []
    for call in sorted(best.values(), key=rank):
        for name in options[call]:
            module = id(model.get_submodule(name.removeprefix(BEFORE)))
            if module not in used:
                used.add(module)
                cuts.append(Cut(call, name))
                break
    return sorted(cuts, key=lambda cut: cut.call)


def _names(calls: Sequence[fx.Node], model: nn.Module) -> dict[int, list[str]]:
    """Operator → names of the cut after it: the modules that end there, then those that begin, outermost first."""
    frames = module_frames(calls)
    shared = [_common(here, there) for here, there in pairwise([[], *frames])]
    started = [frame[same:] for frame, same in zip(frames, shared, strict=True)]
    times = Counter(id(model.get_submodule(path)) for frame in started for _, path in frame)

    def once(frame: Frame, prefix: str = "") -> list[str]:
        return [prefix + path for _, path in frame if times[id(model.get_submodule(path))] == 1]

    names = {i: once(frames[i][shared[i + 1] :]) + once(started[i + 1], BEFORE) for i in range(len(frames) - 1)}
    return {i: options for i, options in names.items() if options}


def module_frames(calls: Sequence[fx.Node]) -> list[Frame]:
    """[m] the frame of each operator."""
    frames: list[Frame] = []
    for node in calls:
        stack = node.meta.get("nn_module_stack")
        if stack is None:  # put in by torch.export itself
            frames.append(frames[-1] if frames else [])
        else:
            frames.append([(key, path) for key, (path, _) in stack.items() if path])
    return frames


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def split_spec(profile: Profile, cuts: Sequence[int]) -> dict[str, Any]:
    """What `torch.distributed.pipelining.pipeline(model, mb_args, split_spec=…)` takes: module → SplitPoint.

    Args:
        profile: of a torch model, made by automap-profile.
        cuts: last instruction of each stage but the last, as in plan.json.

    Raises:
        BadInput: a profile that was not made from a torch model, or a cut out of range.
    """
    from torch.distributed.pipelining import SplitPoint

    if profile.meta.get("framework") != FRAMEWORK:
        raise BadInput("its instructions are no modules of torch", where=profile.model, do="profile a torch model")
    spec = {}
    for cut in cuts:
        if not 0 <= cut < len(profile) - 1:
            raise BadInput(f"there is no cut after instruction {cut}", where=profile.model, do="plan it again")
        name = profile.name(cut)
        spec[name.removeprefix(BEFORE)] = SplitPoint.BEGINNING if name.startswith(BEFORE) else SplitPoint.END
    return spec
