"""A profile at another micro-batch size than the profiled one, or on another kind of device.

Bytes, A and stash, grow with the samples; W does not. Times grow by less than that: kernels saturate, weights are read
whatever the samples, and launches stay. A profile by the clock says how long a micro-batch of other sizes takes,
`clock_s`, and each instruction's times change as their sum does:

    samples    1     2     4    …    256         t(s) between two of these is on the straight line through them, below
    seconds    t1    t2    t4   …    t256        the first and beyond the last one in proportion to it

Of a profile that does not say, times are taken in proportion, but no instruction takes less than its launches: one
kernel forward, two backward.

The replicas of a stage share a micro-batch in proportion (cost-model.md, "Stage, transfer and all-reduce times").

A mixed cluster has a speed for each kind of device (`Cluster.relative_to`). A uniform one of another kind than the
profile's has none: the profile itself is scaled, by the time that both take for a micro-batch by the clock. So both
kinds of clusters agree:

    V100's profile     on A100, A100            times of A100
                       on A100, A100, V100      times of V100, and A100 as much faster
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.device import USUAL
from automap_models.core.profile import FloatArray, Profile, require_magnitudes
from automap_models.core.units import counted
from automap_models.errors import BadInput

MAX_SAMPLES = 1_000_000_000
"""Beyond it a batch size is a mistake."""
_ORIGIN = "rescaled_from"
CLOCK_S = "clock_s"
"""Key of meta: [[samples, forward seconds, backward seconds], …] of a micro-batch by the clock, ascending."""

SAMPLE_TOKENS = "sample_tokens"
"""Key of meta: tokens in a sample of a person's own model whose inputs are tokens."""


def require_samples(samples: int, where: str) -> int:
    """The number itself.

    Raises:
        BadInput: no batch has so many samples.
    """
    if not 1 <= samples <= MAX_SAMPLES:
        raise BadInput(f"{samples} samples", where=where, do=f"give 1 to {MAX_SAMPLES:,}")
    return samples


def microbatch_size(profile: Profile) -> int | None:
    """Samples in the micro-batch that the profile describes; None where it does not say."""
    size = profile.meta.get("microbatch_size")
    is_count = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_SAMPLES
    return size if is_count else None  # type: ignore[return-value]


def required_size(profile: Profile) -> int:
    """Samples in the micro-batch that the profile describes.

    Raises:
        BadInput: it does not say.
    """
    size = microbatch_size(profile)
    if size is None:
        what = f"does not say how many samples a micro-batch of {profile.model} has"
        raise BadInput(what, where="profile", do="give `microbatch_size`")
    return size


def usual_samples(parameters: float, tokens: int, devices: int) -> int:
    """Samples of so many tokens in a step where nobody says: a power of two for each device, or for each of a part.

    They have about the tokens of GPT-3's models of that size: 0.5 M below 1 B parameters, 1 M below 5 B, 2 M below
    50 B, and 3.2 M (arXiv 2005.14165, Table 2.1).
    """
    most, samples = 2**19 << sum(parameters > size for size in (1e9, 5e9, 5e10)), devices
    while 2 * samples * tokens <= most:
        samples *= 2
    while samples * tokens > most and samples % 2 == 0:
        samples //= 2
    return samples


def with_microbatch_size(profile: Profile, samples: int) -> Profile:
    """The profile, saying that its micro-batch has so many samples."""
    return replace(profile, meta={**profile.meta, "microbatch_size": require_samples(samples, "`microbatch_size`")})


def sized(profile: Profile, samples: int | None) -> Profile:
    """The profile with the micro-batch size that its user gives it; None where none is given.

    Raises:
        BadInput: the profile says another size itself, or no micro-batch has this one.
    """
    if samples is None:
        return profile
    profile_size = microbatch_size(profile)
    if profile_size not in (None, samples):
        raise BadInput(f"the profile says {profile_size} samples itself", where="`microbatch_size`", do="leave it out")
    return with_microbatch_size(profile, samples)


def rescaled(profile: Profile, samples: int) -> Profile:
    """The profile of a micro-batch of so many samples; see this module.

    Raises:
        BadInput: the profile does not say how many samples it describes, or a figure of it gets larger or smaller than
            any model's (core.profile).
    """
    profile_size = required_size(profile)
    require_samples(samples, "micro-batch size")
    if samples == profile_size:
        return profile
    forward, backward = time_factors(profile, samples)
    C_fwd = forward * profile.C_fwd
    arrays = {"C": C_fwd + backward * (profile.C - profile.C_fwd), "C_fwd": C_fwd}
    arrays |= {name: (samples / profile_size) * getattr(profile, name) for name in ("A", "stash")}
    return _scaled(profile, arrays, f"the profile at {samples:,} samples", microbatch_size=samples)


def _scaled(profile: Profile, arrays: Mapping[str, Any], where: str, **meta: object) -> Profile:
    """The profile with these arrays in place of its own, which says what it was scaled from."""
    require_magnitudes(arrays, where)
    for array in arrays.values():
        array.setflags(write=False)
    origin = {_ORIGIN: {"microbatch_size": profiled_size(profile), "fingerprint": profiled_fingerprint(profile)}}
    return replace(profile, **arrays, meta={**profile.meta, **origin, **meta})


def time_factors(profile: Profile, samples: int) -> tuple[FloatArray, FloatArray]:
    """[n] forward and [n] backward times of each instruction with so many samples, over those that the profile has.

    Raises:
        BadInput: the profile does not say how many samples it describes.
    """
    factors = _clock_factors(profile, samples)
    if factors is not None:
        return np.full(len(profile), factors[0]), np.full(len(profile), factors[1])
    C_fwd, C_bwd = profile.C_fwd, profile.C - profile.C_fwd
    factor = samples / required_size(profile)
    return _in_proportion(C_fwd, factor, 1), _in_proportion(C_bwd, factor, 2)


def clock_table(samples: int, passes_s: Callable[[float], tuple[float, float]]) -> list[list[float]]:
    """What a profile's meta says under CLOCK_S, in powers of two from one sample to 64 times those profiled.

    Args:
        samples: of the profiled micro-batch.
        passes_s: function of the samples over those profiled → seconds forward and backward.
    """
    largest = (64 * samples).bit_length()
    return [[float(size), *passes_s(size / samples)] for size in (1 << power for power in range(largest))]


def clocked_s(profile: Profile, samples: int) -> float | None:
    """Seconds of all instructions with so many samples; None where the profile has no clock, and times in proportion.

    Raises:
        BadInput: the profile does not say how many samples it describes.
    """
    factors = _clock_factors(profile, samples)
    if factors is None:
        return None
    forward_s = float(profile.C_fwd.sum())
    return factors[0] * forward_s + factors[1] * (float(profile.C.sum()) - forward_s)


def _clock_factors(profile: Profile, samples: int) -> tuple[float, float] | None:
    """Forward and backward time with so many samples over those that the profile has; None without a clock."""
    base, table = required_size(profile), _clock_table(profile)
    if table is None:
        return None
    sizes, passes_s = table[:, 0], table[:, 1:].T
    forward, backward = (_seconds_of(sizes, of_s, samples) / _seconds_of(sizes, of_s, base) for of_s in passes_s)
    return forward, backward


def has_clock(profile: Profile) -> bool:
    """Whether the profile says how long micro-batches of other sizes take; else their times are in proportion."""
    return _clock_table(profile) is not None


def _clock_table(profile: Profile) -> FloatArray | None:
    table = profile.meta.get(CLOCK_S)
    try:
        array = np.asarray(table, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    usable = array.ndim == 2 and array.shape[1:] == (3,) and np.isfinite(array).all() and (array > 0).all()
    return array if usable and (np.diff(array[:, 0]) > 0).all() else None


def _seconds_of(sizes: FloatArray, of_s: FloatArray, samples: float) -> float:
    """On the line through the sizes; see this module."""
    if samples > sizes[-1]:
        return float(of_s[-1] * samples / sizes[-1])
    return float(np.interp(samples, sizes, of_s) * min(1.0, samples / sizes[0]))


def _in_proportion(times_s: FloatArray, factor: float, launches: int) -> FloatArray:
    """[n] factors of times, none of which gets shorter than launches, or than it is."""
    least_s = np.minimum(times_s, launches * USUAL.launch_s)
    return np.maximum(factor, np.divide(least_s, times_s, out=np.zeros_like(times_s), where=times_s > 0))


def profiled_size(profile: Profile) -> int | None:
    """Samples in the micro-batch that was profiled, whatever the profile was rescaled to; None where nothing says."""
    origin = profile.meta.get(_ORIGIN)
    return origin["microbatch_size"] if isinstance(origin, Mapping) else microbatch_size(profile)


def profiled_fingerprint(profile: Profile) -> str:
    """Fingerprint of the profile before it was rescaled."""
    origin = profile.meta.get(_ORIGIN)
    return origin["fingerprint"] if isinstance(origin, Mapping) else profile.fingerprint


def whole_sample_notes(samples: int | None, replicas: Sequence[int]) -> Iterator[str]:
    """How many samples the replicas of a plan's stages get, where they get whole ones and cannot get equally many.

    Args:
        samples: of a micro-batch; None where the profile does not say.
        replicas: [S] of each stage.
    """
    if samples is None:
        if max(replicas) > 1:
            yield (
                "the profile does not say how many samples a micro-batch has: replicas are taken to share them evenly "
                "(give `microbatch_size`)"
            )
        return
    for count in dict.fromkeys(count for count in replicas if samples % count):
        stages = [str(s) for s, replica_count in enumerate(replicas) if replica_count == count]
        where = f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}"
        most = math.ceil(samples / count)
        idle = count - math.ceil(samples / most)
        yield f"{where}: {count} replicas of {samples} samples: {most} each{f', {idle} of them none' if idle else ''}"


def rescaling_notes(profile: Profile, replicas: int, *, whole_samples: bool = False) -> Iterator[str]:
    """What the cost model takes for granted about the micro-batches of a plan whose size was not that profiled.

    Args:
        profile: as planned.
        replicas: of the stage that has the most.
        whole_samples: whether replicas get whole samples.
    """
    samples, profiled = microbatch_size(profile), profiled_size(profile)
    if samples is None or samples == profiled:
        return
    few = counted(samples, "sample")
    if has_clock(profile):
        yield f"times of {few} are those of the clock, as the model was profiled with {profiled}"
    else:
        is_far = profiled and max(samples / profiled, profiled / samples) > 4  # beyond that proportion says little
        remark = ", far from it" if is_far else ""
        yield (
            f"times of {few} are taken in proportion from the {profiled} profiled{remark}, "
            "though small micro-batches run less efficiently: profile the model at the size chosen"
        )
    if samples < replicas and not whole_samples:
        yield f"{few} leave some of {replicas} replicas idle, and the length takes them for evenly split"


def clock_factor(profile: Profile, cluster: Cluster) -> float:
    """Time of the devices of a uniform cluster over that of the profile's; 1 where either kind is not known."""
    of_kinds = profile.roofline_s
    if cluster.groups or not {cluster.device, profile.device} <= set(of_kinds):
        return 1.0
    return of_kinds[cluster.device] / of_kinds[profile.device]


def on_device(profile: Profile, device: str, factor: float) -> Profile:
    """The profile on another kind of device, which takes so many times its times.

    Raises:
        BadInput: times get larger or smaller than any model's.
    """
    arrays = {"C": factor * profile.C, "C_fwd": factor * profile.C_fwd}
    return _scaled(profile, arrays, f"the profile on {device}", device=device, scaled_from=[profile.device, factor])
