"""A profile at another micro-batch size: what grows with the samples, what does not, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.microbatch import (
    microbatch_size,
    profiled_fingerprint,
    profiled_size,
    rescaled,
    rescaling_notes,
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


def test_times_that_no_model_has_are_refused() -> None:
    profile = Profile.create(C=[4e8, 4e8], A=[0.0, 0.0], W=[0.0, 0.0], meta={"microbatch_size": 1})
    with pytest.raises(BadInput, match=r"C(.0.)? (adds up to|=).*check the units"):
        rescaled(profile, 1000)


def test_one_sample_does_not_cost_a_64th_of_64_but_what_the_clock_says() -> None:
    """A tutorial recommended 256 micro-batches of one sample, "96.6x": its own profile of one said 27 times more."""
    table = [[1.0, 1.0, 4.0], [2.0, 1.5, 5.0], [64.0, 16.0, 32.0]]
    profile = Profile.create(C=[30.0, 18.0], C_fwd=[12.0, 4.0], A=[8.0, 0.0], W=[1.0, 1.0],
                             meta={"microbatch_size": 64, "clock_s": table})  # fmt: skip
    one = rescaled(profile, 1)
    np.testing.assert_allclose(one.C_fwd, profile.C_fwd / 16)
    np.testing.assert_allclose(one.C - one.C_fwd, (profile.C - profile.C_fwd) / 8)
    assert one.A[0] == 8.0 / 64
    np.testing.assert_allclose(rescaled(profile, 33).C_fwd.sum(), (1.5 + 16.0) / 2)  # half way from 2 to 64
    np.testing.assert_allclose(rescaled(profile, 128).C_fwd.sum(), 32.0)  # beyond the table in proportion
    np.testing.assert_allclose(rescaled(one, 64).C, profile.C)
    assert any("are those of the clock" in note for note in rescaling_notes(one, 1))


def test_no_measured_instruction_takes_less_than_its_launches() -> None:
    """6 µs forward and twice that backward; one that took less before takes what it took."""
    profile = Profile.create(
        C=[64e-3, 100e-6, 3e-6], C_fwd=[32e-3, 40e-6, 1e-6], A=[0.0] * 3, W=[0.0] * 3, meta={"microbatch_size": 64}
    )
    one = rescaled(profile, 1)
    np.testing.assert_allclose(one.C_fwd, [0.5e-3, 6e-6, 1e-6])
    np.testing.assert_allclose(one.C, [1e-3, 18e-6, 3e-6])
    assert any("64 profiled, far from it" in note for note in rescaling_notes(one, 1))
    assert not any("far" in note for note in rescaling_notes(rescaled(profile, 16), 1))


def test_replicas_that_cannot_share_whole_samples_evenly_are_named() -> None:
    assert list(whole_sample_notes(32, [8, 23])) == ["stage 1: 23 replicas of 32 samples: 2 each, 7 of them none"]
    assert list(whole_sample_notes(32, [6, 16, 6])) == ["stages 0, 2: 6 replicas of 32 samples: 6 each"]
    assert list(whole_sample_notes(32, [1, 2, 32])) == []
    assert list(whole_sample_notes(None, [1, 1])) == []
    (note,) = whole_sample_notes(None, [4, 1])
    assert "taken to share them evenly" in note
