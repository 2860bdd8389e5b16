"""A model profiled once, with everything that any kind of plan is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from automap_models.core.profile import Profile
from automap_models.core.sharded_profile import ShardedProfile


@dataclass(frozen=True, eq=False)
class ProfiledModel:
    """A profile, and in which ways the operators behind it can be partitioned.

    Attributes:
        profile: of one micro-batch.
        shardings: of that profile, of every degree that a stage, or the model as a whole, may run in; empty for a
            profile without operators.
        launch_s: of a kernel.
        batch_dims: the dimension of each input of the step that data parallelism partitions, by propagation; None
            where nothing was propagated.
        notes: sentences for people.
    """

    profile: Profile
    shardings: tuple[ShardedProfile, ...] = ()
    launch_s: float = 0.0
    batch_dims: Mapping[str, int] | None = None
    notes: tuple[str, ...] = field(default=())
