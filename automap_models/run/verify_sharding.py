"""A plan held against XLA: the step runs on devices made of this host; its results and collectives are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from automap_models.core.mesh import Mesh
from automap_models.core.sharding import Collectives, ShardingProblem
from automap_models.cost.sharding import ShardingPrice, plan_price, replicated_price
from automap_models.formats.sharding_json import ShardingReport
from automap_models.planners.sharding.traced import data_parallel_plan
from automap_models.run.host_memory import shortage
from automap_models.run.jax_backend import answered, environment
from automap_models.workloads.source import Source

TOLERANCE = 1e-4
"""Largest relative difference between the sharded step's results and one device's."""
_SEED = 0

Plan = tuple[Mesh, Sequence[Sequence[int]]]
"""A mesh and, for each of its axes, the partitioned dimension of each argument of a step, -1 for none."""


@dataclass(frozen=True)
class ShardedRequest:
    """What the process that compiles and runs a sharded step is told.

    Attributes:
        source: the model.
        plans: name → what is compiled.
        runs: name of the plan that runs, too; None for none.
        seed: of the arguments.
    """

    source: Source
    plans: Mapping[str, Plan]
    runs: str | None
    seed: int


@dataclass(frozen=True)
class ShardedAnswer:
    """What came of it.

    Attributes:
        communication: plan → XLA's word for a collective → number and bytes.
        loss, arrays: largest relative difference to one device; None where nothing ran.
    """

    communication: Mapping[str, Mapping[str, Collectives]]
    loss: float | None
    arrays: float | None


@dataclass(frozen=True)
class Verified:
    """What XLA made of a plan.

    Attributes:
        communication: plan ("plan", "data-parallel") → XLA's word for a collective → number and bytes.
        estimates: plan → bytes that XLA for CPUs is expected to all-reduce.
        loss, arrays: largest relative difference to one device among scalars and among arrays (updated parameters and
            the optimiser's moments, the first of which shows the gradient); None where the step was only compiled.
        reason_not_run: a sentence where it was only compiled.
    """

    communication: Mapping[str, Mapping[str, Collectives]]
    estimates: Mapping[str, float]
    loss: float | None
    arrays: float | None
    reason_not_run: str = ""

    @property
    def equal(self) -> bool:
        """Whether the results are one device's; also true where nothing was run."""
        return max(self.loss or 0.0, self.arrays or 0.0) <= TOLERANCE

    def nbytes(self, plan: str) -> float:
        """Bytes that a plan's collectives result in on one device."""
        return sum(collectives.nbytes for collectives in self.communication[plan].values())


def verify_beside_data_parallelism(
    source: Source, report: ShardingReport, problem: ShardingProblem, say: Callable[[str], None]
) -> Verified:
    """What XLA makes of a plan, and of data parallelism on the same devices.

    Args:
        source: which step.
        report: of the plan.
        problem: the plan's, with every all-reduce priced on its own, as XLA for CPUs has it.
        say: is told what is being done.

    Raises:
        BadInput, UserCodeError, RunFailed: see `verify`.
    """
    plans = {"plan": report.plan}
    if parallel := data_parallel_plan(problem):
        plans["data-parallel"] = parallel
    devices = math.prod(axis.size for axis in report.plan.mesh)
    return verify(
        source,
        {name: (plan.mesh, plan.dims) for name, plan in plans.items()},
        {name: _reduced_bytes(plan_price(problem, plan)) for name, plan in plans.items()},
        devices * report.result.cost.memory_bytes + 2 * replicated_price(problem).memory_bytes,
        say,
    )


def _reduced_bytes(price: ShardingPrice) -> float:
    return sum(price.activation_bytes) + sum(price.gradient_bytes)


def verify(
    source: Source,
    plans: Mapping[str, Plan],
    estimates: Mapping[str, float],
    needed_bytes: float,
    say: Callable[[str], None],
) -> Verified:
    """Compile and run the step with the shardings of the plan named "plan"; of the others only compile it.

    Args:
        source: which step.
        plans: by name.
        estimates: name → bytes that are expected to be all-reduced.
        needed_bytes: what running it takes on all devices together.
        say: is told what is being done.

    Raises:
        BadInput: the step cannot be compiled or run.
        UserCodeError: the user's own code raised.
        RunFailed: the process that ran it ended.
    """
    reason = shortage(needed_bytes)
    whole = {name: (mesh, [list(map(int, along)) for along in dims]) for name, (mesh, dims) in plans.items()}
    request = ShardedRequest(source, whole, None if reason else "plan", _SEED)
    place = environment(math.prod(axis.size for axis in plans["plan"][0]), "cpu")
    written = answered("automap_models.run.jax_sharding", request, place, source.what, say)
    answer = msgspec.convert(written, ShardedAnswer)
    return Verified(answer.communication, estimates, answer.loss, answer.arrays, reason)
