"""A profile at another micro-batch size: what grows with the samples, what does not, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.microbatch import (
    microbatch_size,
    profiled_fingerprint,
    profiled_size,
    rescaled,
    sized,
    whole_sample_notes,
    with_microbatch_size,
)
from automap_models.core.profile import Profile
from automap_models.errors import BadInput

PROFILE = Profile.create(
    C=[3.0, 6.0], A=[8.0, 2.0], W=[5.0, 7.0], C_fwd=[1.0, 2.0], stash=[4.0, 16.0], meta={"microbatch_size": 8}
)


def test_all_but_the_parameters_grow_with_the_samples() -> None:
    half = rescaled(PROFILE, 4)
    for name in ("C", "A", "C_fwd", "stash"):
        np.testing.assert_array_equal(2 * getattr(half, name), getattr(PROFILE, name))
        assert not getattr(half, name).flags.writeable
    np.testing.assert_array_equal(half.W, PROFILE.W)
    assert microbatch_size(half) == 4


def test_the_profiled_size_is_remembered_over_several_steps() -> None:
    there = rescaled(rescaled(PROFILE, 3), 12)
    assert (microbatch_size(there), profiled_size(there)) == (12, 8)
    assert profiled_fingerprint(there) == PROFILE.fingerprint != there.fingerprint
    np.testing.assert_allclose(there.C, 1.5 * PROFILE.C, rtol=1e-15)


def test_the_same_size_is_the_same_profile() -> None:
    assert rescaled(PROFILE, 8) is PROFILE


@pytest.mark.parametrize("size", [None, 0, -1, 2.0, True, "16", 10**10])
def test_a_profile_without_a_usable_size_is_refused_until_it_is_told(size: object) -> None:
    silent = Profile.create(C=[1.0, 1.0], A=[0.0, 0.0], W=[0.0, 0.0], meta={"microbatch_size": size})
    assert microbatch_size(silent) is None
    with pytest.raises(BadInput, match="`microbatch_size`"):
        rescaled(silent, 4)
    assert rescaled(with_microbatch_size(silent, 2), 4).C.tolist() == [2.0, 2.0]


def test_a_size_is_for_a_profile_that_says_none() -> None:
    silent = Profile.create(C=[1.0, 1.0], A=[0.0, 0.0], W=[0.0, 0.0])
    assert microbatch_size(sized(silent, 4)) == 4
    assert sized(silent, None) is silent
    assert microbatch_size(sized(PROFILE, 8)) == 8
    with pytest.raises(BadInput, match="the profile says 8 samples itself"):
        sized(PROFILE, 4)


@pytest.mark.parametrize("samples", [0, -3, 10**12])
def test_sizes_that_no_batch_has_are_refused(samples: int) -> None:
    with pytest.raises(BadInput, match="samples"):
        rescaled(PROFILE, samples)


@pytest.mark.parametrize(("C", "size", "samples"), [(4e8, 1, 1000), (1e-12, 1000, 1)])
def test_times_that_no_model_has_are_refused(C: float, size: int, samples: int) -> None:
    profile = Profile.create(C=[C, C], A=[0.0, 0.0], W=[0.0, 0.0], meta={"microbatch_size": size})
    with pytest.raises(BadInput, match=r"C(.0.)? (adds up to|=).*check the units"):
        rescaled(profile, samples)


def test_replicas_that_cannot_share_whole_samples_evenly_are_named() -> None:
    assert list(whole_sample_notes(32, [8, 23])) == ["stage 1: 23 replicas of 32 samples: 2 each, 7 of them none"]
    assert list(whole_sample_notes(32, [6, 16, 6])) == ["stages 0, 2: 6 replicas of 32 samples: 6 each"]
    assert list(whole_sample_notes(32, [1, 2, 32])) == []
    assert list(whole_sample_notes(None, [1, 1])) == []
    (note,) = whole_sample_notes(None, [4, 1])
    assert "taken to share them evenly" in note
