"""Where no equal stages fit, unequal ones were looked for in the largest micro-batches only, and a plan was missed."""

from __future__ import annotations

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.framework import StageLimits
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.planners.portfolio.auto import AutoPlanner
from automap_models.planners.portfolio.space import PlanningSpace

LAYERS = 12
PROFILE = Profile.create(
    C=np.full(LAYERS, 0.1),
    A=np.full(LAYERS, 4e6),
    W=np.full(LAYERS, 100e6),
    stash=np.full(LAYERS, 10e6),
    meta={"model": "even", "microbatch_size": 16},
)


def test_three_stages_on_sixteen_devices_are_found() -> None:
    """State of 4 × 1.2 GB: two stages hold 2.4 GB each, three 1.6 GB, and 16 devices make no three equal shares."""
    cluster = Cluster(2, 8, 130e9, 3.125e9, 2.1e9, "pair")
    space = PlanningSpace(
        ProfiledModel(PROFILE), cluster, global_batch=256, stages=(1, 2, 3), state_factor=4.0, schedule="1f1b"
    )
    result = AutoPlanner().solve(space)
    assert result.plan is not None
    assert result.plan.stages == 3


def test_a_framework_s_rules_are_about_stages_samples_and_shared_weights() -> None:
    limits = StageLimits(("1f1b",), filled=("1f1b",), ties=False, whole_samples=True, power_of_two=True)
    assert limits.allows(4, 4, "1f1b", tied=False)
    assert limits.allows(1, 1, "1f1b", tied=True)
    assert not limits.allows(4, 2, "1f1b", tied=False)
    assert limits.allows(4, 2, "gpipe", tied=False)
    assert not limits.allows(2, 8, "1f1b", tied=True)
    assert not limits.allows(3, 8, "1f1b", tied=False)
    assert limits.divides(16, 8)
    assert limits.divides(None, 8)
    assert not limits.divides(8, 16)
