"""A profile at another micro-batch size than the profiled one: everything but the parameters in proportion.

The cost model splits a micro-batch over the replicas of a stage into equal parts, each of which takes its share of the
time (cost-model.md, "Stage, transfer and all-reduce times"). Another micro-batch size is the same assumption once more:
C, C_fwd, A and stash grow with the samples, W does not. What kernels cost whatever their size is not in a profile, so
that small micro-batches look better than they run: profile the model at the size that was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from automap_models.core.profile import Profile, require_magnitudes
from automap_models.core.units import counted
from automap_models.errors import BadInput

MAX_SAMPLES = 1_000_000_000
"""Beyond it a batch size is a mistake."""
_ORIGIN = "rescaled_from"


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
    whole = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_SAMPLES
    return size if whole else None  # type: ignore[return-value]


def required_size(profile: Profile) -> int:
    """Samples in the micro-batch that the profile describes.

    Raises:
        BadInput: it does not say.
    """
    size = microbatch_size(profile)
    if size is None:
        raise BadInput(
            f"does not say how many samples a micro-batch of {profile.model} has",
            where="profile",
            do="give `microbatch_size`",
        )
    return size


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
    own = microbatch_size(profile)
    if own not in (None, samples):
        raise BadInput(f"the profile says {own} samples itself", where="`microbatch_size`", do="leave it out")
    return with_microbatch_size(profile, samples)


def rescaled(profile: Profile, samples: int) -> Profile:
    """The profile of a micro-batch of so many samples, all but W in proportion; see this module.

    Raises:
        BadInput: the profile does not say how many samples it describes, or a figure of it gets larger or smaller than
            any model's (core.profile).
    """
    own = required_size(profile)
    require_samples(samples, "micro-batch size")
    if samples == own:
        return profile
    arrays = {name: (samples / own) * getattr(profile, name) for name in ("C", "C_fwd", "A", "stash")}
    require_magnitudes(arrays, f"the profile at {samples:,} samples")
    for array in arrays.values():
        array.setflags(write=False)
    origin = {"microbatch_size": profiled_size(profile), "fingerprint": profiled_fingerprint(profile)}
    return replace(profile, **arrays, meta={**profile.meta, "microbatch_size": samples, _ORIGIN: origin})


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
        stages = [str(s) for s, held in enumerate(replicas) if held == count]
        where = f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}"
        most = math.ceil(samples / count)
        idle = count - math.ceil(samples / most)
        yield f"{where}: {count} replicas of {samples} samples: {most} each{f', {idle} of them none' if idle else ''}"


def rescaling_notes(profile: Profile, replicas: int, *, whole: bool = False) -> Iterator[str]:
    """What the cost model takes for granted about the micro-batches of a plan whose size was not that profiled.

    Args:
        profile: as planned.
        replicas: of the stage that has the most.
        whole: whether replicas get whole samples.
    """
    samples, profiled = microbatch_size(profile), profiled_size(profile)
    if samples is None or samples == profiled:
        return
    yield (
        f"times of {counted(samples, 'sample')} are taken in proportion from the {profiled} profiled, "
        "though small micro-batches run less efficiently: profile the model at the size chosen"
    )
    if samples < replicas and not whole:
        few = counted(samples, "sample")
        yield f"{few} leave some of {replicas} replicas idle, and the length takes them for evenly split"
