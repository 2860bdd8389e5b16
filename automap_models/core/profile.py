"""A profiled training step: per instruction, how long it takes and how many bytes it makes and holds."""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from automap_models.core.units import seconds, size
from automap_models.errors import BadInput

# The largest and smallest numbers that a profile or a cluster may hold (docs/reference/files.md). They are far beyond
# every model and every machine, and far enough from the range of a float that no sum, product or ratio overflows.
LARGEST_S = 1e9
"""Of an instruction's time, and of a whole micro-batch's: thirty years."""
LARGEST_BYTES = 1e18
"""Of an instruction's bytes, of a model's parameters, stash or frozen bytes in all, of a device's memory, and of a
bandwidth per second."""
MAX_INSTRUCTIONS = 1_000_000
"""Of a profile: the arrays and the names of so many take some hundred megabytes."""


FloatArray = NDArray[np.float64]

_UNIT = {"C": "s", "A": "bytes", "W": "bytes", "C_fwd": "s", "stash": "bytes", "frozen": "bytes"}
_LARGEST = {name: LARGEST_S if unit == "s" else LARGEST_BYTES for name, unit in _UNIT.items()}
_DTYPE = re.compile(r"b?float(8|16|32|64)(?:_\w+)?$")
_MAGNITUDE = "times are seconds and sizes are bytes: check the units"


@dataclass(frozen=True)
class SharedParameter:
    """A parameter that several instructions use, such as a token embedding that is also the output layer.

    A cut between two of them puts a copy on both sides: each stage holds the parameter, and if it is trained with its
    training state, and once a step the gradients of all copies are summed.

    Attributes:
        name: of the parameter; of the tied ones that are one array, the first name.
        nbytes: its size.
        instructions: those that use it, ascending, at least two; W, or frozen, counts the parameter at the
            first.
    """

    name: str
    nbytes: float
    instructions: tuple[int, ...]

    def copied_at(self, begin: int, stop: int) -> int | None:
        """The first of the instructions begin … stop-1 that uses it, where an instruction before them does too.

        A stage of these instructions holds a copy, which W does not count there. None where it holds none.
        """
        k = bisect_left(self.instructions, begin)
        copied = 0 < k < len(self.instructions) and self.instructions[k] < stop
        return self.instructions[k] if copied else None


@dataclass(frozen=True, eq=False)
class Profile:
    """One micro-batch of a training step, n instructions in execution order of the forward graph.

    Use `Profile.create`, which validates; the arrays are read-only float64 of shape [n].

    No time is more than LARGEST_S and no size more than LARGEST_BYTES, those of the whole model neither; a step takes
    at least a picosecond.

    Attributes:
        C: forward + backward time of instruction i on one reference device, seconds.
        A: bytes that cross the boundary when the model is cut right after i, one direction.
        W: bytes of trainable parameters first used by i.
        C_fwd: forward part of C, seconds.
        stash: bytes that i keeps for its backward pass.
        names: instruction names; empty when the profile has none.
        layers: module path of each instruction; empty when the profile has none.
        meta: where the profile comes from (model, device, microbatch_size, …), and the element type of most of the
            parameters' bytes (parameter_dtype: `float32`, `bfloat16`, …).
        shared_parameters: trained ones that more than one instruction uses; W counts each at its first use only.
        frozen: bytes of parameters that are not trained, buffers and constants first used by i: a device holds them
            once, without gradients or moments.
        shared_frozen: those of them that more than one instruction uses; frozen counts each at its first use only.
    """

    C: FloatArray
    A: FloatArray
    W: FloatArray
    C_fwd: FloatArray
    stash: FloatArray
    names: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    meta: Mapping[str, object] = field(default_factory=dict)
    shared_parameters: tuple[SharedParameter, ...] = ()
    frozen: FloatArray = None  # type: ignore[assignment]  # never None after __post_init__
    shared_frozen: tuple[SharedParameter, ...] = ()

    def __post_init__(self) -> None:
        if self.frozen is None:
            object.__setattr__(self, "frozen", np.zeros_like(self.C))

    @classmethod
    def create(
        cls,
        C: object,
        A: object,
        W: object,
        C_fwd: object | None = None,
        stash: object | None = None,
        names: Sequence[str] = (),
        layers: Sequence[str] = (),
        meta: Mapping[str, object] | None = None,
        shared_parameters: Sequence[SharedParameter] = (),
        frozen: object | None = None,
        shared_frozen: Sequence[SharedParameter] = (),
        *,
        source: str = "profile",
    ) -> Profile:
        """Build a profile from anything array-like, filling in C/3 and zeros for what is missing.

        Raises:
            BadInput: naming the array and the index at fault; `source` says which file it came from.
        """
        compute = _checked("C", C, source)
        n = compute.size
        if n < 2:
            what = f"array C has {n} instruction(s), a pipeline needs at least 2"
            raise BadInput(what, where=source, do="profile the model at a finer granularity")
        if n > MAX_INSTRUCTIONS:
            what = f"array C has {n:,} instructions, more than {MAX_INSTRUCTIONS:,}"
            raise BadInput(what, where=source, do="profile the model at a coarser granularity")
        forward = compute / 3.0 if C_fwd is None else _checked("C_fwd", C_fwd, source)
        saved_bytes = np.zeros(n) if stash is None else _checked("stash", stash, source)
        arrays = {
            "C": compute,
            "A": _checked("A", A, source),
            "W": _checked("W", W, source),
            "C_fwd": forward,
            "stash": saved_bytes,
            "frozen": np.zeros(n) if frozen is None else _checked("frozen", frozen, source),
        }
        for name, array in arrays.items():
            _require_length(name, array.size, n, source)
        for name, labels in (("names", names), ("layers", layers)):
            if len(labels):
                _require_length(name, len(labels), n, source)
        over = np.flatnonzero(forward > compute)
        if over.size:
            i = int(over[0])
            what = f"C_fwd[{i}] = {forward[i]:g} s is more than C[{i}] = {compute[i]:g} s"
            raise BadInput(what, where=source, do="C is forward plus backward time; check which array is which")
        if not compute.any():
            raise BadInput("the times in C are all zero", where=source, do="measure the model again")
        require_magnitudes(arrays, source)
        _require_dtype(meta or {}, source)
        for key, uses, shared in (
            ("shared_parameters", "W", shared_parameters),
            ("shared_frozen", "frozen", shared_frozen),
        ):
            for k, parameter in enumerate(shared):
                _require_shared(f"{key}[{k}]", parameter, uses, arrays[uses], source)
        for array in arrays.values():
            array.setflags(write=False)
        return cls(
            **arrays,
            names=tuple(map(str, names)),
            layers=tuple(map(str, layers)),
            meta=dict(meta or {}),
            shared_parameters=tuple(shared_parameters),
            shared_frozen=tuple(shared_frozen),
        )

    def __repr__(self) -> str:
        step, parameters = seconds(float(self.C.sum())), size(float(self.W.sum()))
        return f"Profile({self.model}: {len(self):,} instructions, {step} a micro-batch, {parameters} of parameters)"

    def __len__(self) -> int:
        return int(self.C.size)

    @property
    def model(self) -> str:
        """The model's name as the profile tells it."""
        return str(self.meta.get("model", "unnamed model"))

    @property
    def device(self) -> str:
        """Name of the device whose times these are; empty where the profile does not say."""
        return str(self.meta.get("device", ""))

    @property
    def own_code(self) -> bool:
        """Whether it is of a PyTorch module or of a factory, `module:function`, and not of a model with a name."""
        return self.meta.get("framework") == "torch" or ":" in self.model

    @property
    def dtype(self) -> str:
        """Element type of the step as the profile tells it; float32 where it does not."""
        return str(self.meta.get("dtype", self.meta.get("parameter_dtype", "float32")))

    @property
    def roofline_s(self) -> Mapping[str, float]:
        """Kinds of devices with their time of a micro-batch by the roofline; empty where the profile does not say."""
        kind_s = self.meta.get("roofline_s")
        if not isinstance(kind_s, Mapping):
            return {}
        return kind_s if all(isinstance(time_s, float) and 0 < time_s < math.inf for time_s in kind_s.values()) else {}

    @property
    def element_bytes(self) -> float | None:
        """Bytes of one parameter, by `meta["parameter_dtype"]`; None where the profile does not say."""
        return _element_bytes(self.meta.get("parameter_dtype"))

    @property
    def gradient_share(self) -> float:
        """Bytes of gradients that replicas reduce over those of parameters.

        Parameters in float32 of a step that computes in 16 bits are cast where a product takes them: what its replicas
        add up is the product's result, before the cast back.
        """
        computed, counted_bytes = _element_bytes(self.meta.get("dtype")), self.element_bytes
        return 1.0 if computed is None or counted_bytes is None else min(1.0, computed / counted_bytes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the arrays, `frozen` only where there is any: a plan belongs to exactly these numbers."""
        digest = hashlib.sha256()
        for array in (self.C, self.A, self.W, self.C_fwd, self.stash, *([self.frozen] if self.frozen.any() else ())):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @cached_property
    def model_fingerprint(self) -> str:
        """SHA-256 over the instructions' names and parameters: the model, at whatever batch, on whatever device."""
        digest = hashlib.sha256(json.dumps([len(self), *self.names]).encode())
        digest.update(np.ascontiguousarray(self.W).tobytes())
        return digest.hexdigest()

    def name(self, i: int) -> str:
        """The name of instruction i, or its index where the profile has no names."""
        return self.names[i] if self.names else f"instruction {i}"

    def layer(self, i: int) -> str:
        """The module path of instruction i; empty where the profile has none."""
        return self.layers[i] if self.layers else ""


def require_magnitudes(arrays: Mapping[str, FloatArray], where: str) -> None:
    """Refuse times and sizes that no model has, so that nothing computed from them overflows.

    Args:
        arrays: name → [n] finite and nowhere negative; a profile's, or some of them.
        where: where they come from, for messages.

    Raises:
        BadInput: naming the array, and the index if it is a single entry.
    """
    for name, array in arrays.items():
        unit, largest = _UNIT[name], _LARGEST[name]
        i = int(array.argmax())
        if array[i] > largest:
            raise BadInput(f"{name}[{i}] = {array[i]:g} {unit} is more than {largest:g}", where=where, do=_MAGNITUDE)
        if name in ("C", "W", "stash", "frozen") and array.sum() > largest:
            what = f"{name} adds up to {array.sum():g} {unit}, more than {largest:g}"
            raise BadInput(what, where=where, do=_MAGNITUDE)
        if name == "C" and array.sum() < 1e-12:
            what = f"C adds up to {array.sum():g} s, less than 1e-12"
            raise BadInput(what, where=where, do=_MAGNITUDE)


def _checked(name: str, value: object, source: str) -> FloatArray:
    """A float64 copy of `value`: one-dimensional, finite and nowhere negative, or BadInput."""
    raw = np.asarray(value)
    if raw.dtype.kind not in "fiu":
        what = f"array {name} has dtype {raw.dtype}, not a number per instruction"
        raise BadInput(what, where=source, do="save it as float64")
    if raw.ndim != 1:
        what = f"array {name} has shape {raw.shape}, expected one dimension"
        raise BadInput(what, where=source, do="give one value per instruction")
    array = raw.astype(np.float64)
    for what, wrong in (("NaN", np.isnan(array)), ("infinite", np.isinf(array)), ("negative", array < 0)):
        bad = np.flatnonzero(wrong)
        if bad.size:
            i = int(bad[0])
            do = "every entry must be a finite number ≥ 0"
            raise BadInput(f"{name}[{i}] = {array[i]:g} is {what}", where=source, do=do)
    return array


def _element_bytes(dtype: object) -> float | None:
    """Bytes of an element type; None of what is none."""
    match = _DTYPE.match(str(dtype))
    return int(match[1]) / 8 if match else None


def _require_dtype(meta: Mapping[str, object], source: str) -> None:
    """Refuse an element type of the parameters that no parameters have."""
    dtype = meta.get("parameter_dtype")
    if dtype is not None and not (isinstance(dtype, str) and _DTYPE.match(dtype)):
        what = f"meta says that parameters are {str(dtype)[:40]!r}"
        raise BadInput(what, where=source, do="write float32, bfloat16 or float16 as parameter_dtype, or leave it out")


def _require_shared(key: str, parameter: SharedParameter, array: str, sizes: FloatArray, source: str) -> None:
    """Refuse a shared parameter that is not one of those that an array of the profile counts."""
    instructions, n = parameter.instructions, sizes.size
    if len(instructions) < 2 or any(a >= b for a, b in pairwise(instructions)):
        what = f"{key} ({parameter.name}) is used by instructions {list(instructions)[:8]}"
        raise BadInput(what, where=source, do="give at least two, in ascending order, each once")
    if not 0 <= instructions[0] < instructions[-1] < n:
        raise BadInput(
            f"{key} ({parameter.name}) is used by instructions {instructions[0]} to {instructions[-1]}, but C has {n}",
            where=source,
            do="count instructions from 0",
        )
    nbytes = float(sizes[instructions[0]])
    if not 0 <= parameter.nbytes <= nbytes * (1 + 1e-9):  # files round
        raise BadInput(
            f"{key} ({parameter.name}) takes {parameter.nbytes:g} bytes, but {array}[{instructions[0]}] is {nbytes:g}",
            where=source,
            do=f"{array} counts a parameter at its first use",
        )


def _require_length(name: str, length: int, n: int, source: str) -> None:
    if length != n:
        what = f"array {name} has {length} entries but C has {n}"
        raise BadInput(what, where=source, do="all arrays describe the same instructions")
