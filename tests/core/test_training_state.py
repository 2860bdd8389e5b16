"""Bytes of training state a parameter, against the table of ZeRO (arXiv 1910.02054, section 3.1) and Adam's own."""

from __future__ import annotations

import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.staged import StagedProblem
from automap_models.core.training_state import default_state_factor, state_in_words
from automap_models.errors import BadInput
from automap_models.planners.portfolio.space import PlanningSpace

CLUSTER = Cluster(nodes=1, devices_per_node=4, intra=1e11, inter=1e10, memory=1e10)


def profile_of(dtype: object) -> Profile:
    meta = {} if dtype is None else {"parameter_dtype": dtype}
    return Profile.create([1.0, 1.0], [1.0, 0.0], [4.0, 4.0], meta=meta)


@pytest.mark.parametrize(
    ("dtype", "element", "bytes_a_parameter"),
    [("float32", 4, 16), ("bfloat16", 2, 16), ("float16", 2, 16), ("float64", 8, 32), ("float8_e4m3fn", 1, 14)],
)
def test_the_state_of_adam_follows_from_the_precision(dtype: str, element: int, bytes_a_parameter: int) -> None:
    profile = profile_of(dtype)
    assert profile.element_bytes == element
    assert default_state_factor(profile) * element == bytes_a_parameter
    assert StagedProblem(profile, CLUSTER, 1).state_factor == default_state_factor(profile)
    assert PlanningSpace(ProfiledModel(profile), CLUSTER).base.state_factor == default_state_factor(profile)


def test_a_profile_that_does_not_say_keeps_four_and_a_given_factor_holds() -> None:
    assert StagedProblem(profile_of(None), CLUSTER, 1).state_factor == 4.0
    assert StagedProblem(profile_of("bfloat16"), CLUSTER, 1, state_factor=2.0).state_factor == 2.0


def test_the_report_says_what_is_unusual() -> None:
    in_bf16 = profile_of("bfloat16")
    assert state_in_words(in_bf16, 8.0) == (
        "16 bytes a parameter (bf16 weights and gradients, fp32 master weights and Adam's moments)"
    )
    assert state_in_words(in_bf16, 4.0) == "8 bytes a parameter (bf16), 4 times its weights"
    assert state_in_words(profile_of("float32"), 4.0) is state_in_words(profile_of(None), 4.0) is None
    assert (
        state_in_words(profile_of("float64"), 4.0)
        == "32 bytes a parameter (fp64 weights, gradients and Adam's moments)"
    )


@pytest.mark.parametrize("dtype", ["int8", "float", 16, ["float32"], "float32; rm"])
def test_an_element_type_that_parameters_cannot_have_is_refused(dtype: object) -> None:
    with pytest.raises(BadInput, match=r"profile: meta says that parameters are .*; write float32, bfloat16 or"):
        profile_of(dtype)
