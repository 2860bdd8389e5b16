"""From the command's arguments to the problems among which the default planner chooses."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import (
    microbatch_size,
    require_samples,
    required_size,
    rescaled,
    with_microbatch_size,
)
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import known_clusters, read_cluster
from automap_models.formats.files import read_profile
from automap_models.planners.portfolio.auto import default_stages
from automap_models.planners.portfolio.candidates import Candidates, OutOfRange, candidates, stage_numbers

AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Asked:
    """What the arguments ask for.

    Attributes:
        problem: the one that a named planner plans, and whose uniform cuts a plan is held against: with the number of
            stages asked for, or one a node.
        stages: every S that may be chosen.
        global_batch: samples of which M micro-batches are to be made; None where M is known.
    """

    problem: StagedProblem
    stages: tuple[int, ...]
    global_batch: int | None

    def candidates(self, out_of_range: OutOfRange) -> Candidates:
        """The problems that compete."""
        several = len(self.stages) > 2 or self.global_batch is not None  # else a planner outside its ranges is replaced
        return candidates(self.problem, self.stages, self.global_batch, out_of_range if several else None)


def asked_for(arguments: argparse.Namespace) -> Asked:
    """Read the profile and the cluster, and what is to be chosen.

    Raises:
        BadInput: an argument or a file cannot be used.
    """
    profile, global_batch = sized_profile(arguments), arguments.global_batch
    if global_batch is not None:
        require_samples(global_batch, "--global-batch")
    if arguments.topo is None:
        raise BadInput(
            "no cluster is given", where="--topo", do=f"choose from {', '.join(known_clusters())} or give a YAML file"
        )
    cluster = read_cluster(arguments.topo)
    given = {name: getattr(arguments, name) for name in ("state_factor", "granularity")}
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.micro_batches == AUTO:
        if global_batch is None:
            raise BadInput(
                "needs to know how many samples a batch has", where="--micro-batches auto", do="give --global-batch"
            )
        required_size(profile)
    elif global_batch is not None:
        given["micro_batches"], profile = _split(profile, global_batch, arguments.micro_batches)
        global_batch = None
    elif arguments.micro_batches is not None:
        given["micro_batches"] = arguments.micro_batches
    one_stage = StagedProblem(profile, cluster, stages=1, **given)
    number, stages = _stages(arguments.stages, profile, cluster, one_stage)
    return Asked(replace(one_stage, stages=number), stages, global_batch)


def _stages(
    asked: int | str | None, profile: Profile, cluster: Cluster, one_stage: StagedProblem
) -> tuple[int, tuple[int, ...]]:
    """S of the reference problem, and every S that may be chosen."""
    default = default_stages(profile, cluster, one_stage.granularity)
    if asked is None:
        return default, tuple(sorted({1, default}))
    if isinstance(asked, str):
        return default, tuple(stage_numbers(one_stage))
    return asked, (asked,)


def sized_profile(arguments: argparse.Namespace) -> Profile:
    """The profile, with the micro-batch size that the arguments give it.

    Raises:
        BadInput: it cannot be read, or says another size itself.
    """
    if not arguments.profile.exists():
        from ..sources import require_no_model

        require_no_model(arguments.profile)
    profile = read_profile(arguments.profile)
    if arguments.microbatch_size is None:
        return profile
    own = microbatch_size(profile)
    if own not in (None, arguments.microbatch_size):
        raise BadInput(f"the profile says {own} samples itself", where="--microbatch-size", do="leave it out")
    return with_microbatch_size(profile, arguments.microbatch_size)


def _split(profile: Profile, global_batch: int, micro_batches: int | None) -> tuple[int, Profile]:
    """M and the profile of B / M samples; without M that of the profiled micro-batch."""
    if micro_batches is None:
        size = required_size(profile)
        if global_batch % size:
            raise BadInput(
                f"{global_batch} samples are no multiple of the {size} of the profiled micro-batch",
                where="--global-batch",
                do="give a multiple, or choose --micro-batches",
            )
        return global_batch // size, profile
    if micro_batches < 1 or global_batch % micro_batches:
        raise BadInput(
            f"{global_batch} samples do not make {micro_batches} equal micro-batches",
            where="--micro-batches",
            do="give a divisor of the global batch, or auto",
        )
    return micro_batches, rescaled(profile, global_batch // micro_batches)


def batch_notes(problem: StagedProblem, replicas: int, profiled: int | None) -> Iterator[str]:
    """What the cost model takes for granted about the micro-batches of a plan whose size was not that profiled.

    Args:
        replicas: of the stage that has the most.
        profiled: samples in the micro-batch that was profiled.
    """
    samples = microbatch_size(problem.profile)
    if samples is None or samples == profiled:
        return
    yield (
        f"times of {samples} sample(s) are taken in proportion from the {profiled} profiled, "
        "though small micro-batches run less efficiently: profile the model at the size chosen"
    )
    if samples < replicas:
        yield f"{samples} sample(s) leave some of {replicas} replicas idle, and the length takes them for evenly split"
