"""A plan held against XLA: the step runs on devices made of this host; its results and collectives are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from automap_models.core.mesh import Mesh
from automap_models.core.sharding import Collectives, ShardingProblem
from automap_models.cost.sharding import plan_price, replicated_price
from automap_models.formats.sharding_plan import ShardingReport
from automap_models.planners.sharding.traced import data_parallel_plan
from automap_models.run.base import Say
from automap_models.run.jax_process import answered, environment, serve, shortage
from automap_models.user_code import user_code
from automap_models.workloads.source import Source, training_step_of

TOLERANCE = 1e-4
"""Largest relative difference between the sharded step's results and one device's."""

Plan = tuple[Mesh, Sequence[Sequence[int]]]
"""A mesh and, for each of its axes, the partitioned dimension of each argument of a step, -1 for none."""


@dataclass(frozen=True)
class ShardedRequest:
    """What the process that compiles and runs a sharded step is told.

    Attributes:
        source: the model.
        plans: name → what is compiled.
        runs: name of the plan that runs, too; None for none.
    """

    source: Source
    plans: Mapping[str, Plan]
    runs: str | None


@dataclass(frozen=True)
class Verified:
    """What XLA made of a plan.

    Attributes:
        communication: plan ("plan", "data-parallel") → XLA's word for a collective → number and bytes.
        loss, arrays: largest relative difference to one device among scalars and among arrays (updated parameters and
            the optimiser's moments, the first of which shows the gradient); None where the step was only compiled.
        estimates: plan → bytes that XLA for CPUs is expected to all-reduce.
        reason_not_run: a sentence where it was only compiled.
    """

    communication: Mapping[str, Mapping[str, Collectives]]
    loss: float | None = None
    arrays: float | None = None
    estimates: Mapping[str, float] = field(default_factory=dict)
    reason_not_run: str = ""

    @property
    def equal(self) -> bool:
        """Whether the results are one device's; also true where nothing was run."""
        return max(self.loss or 0.0, self.arrays or 0.0) <= TOLERANCE

    def nbytes(self, plan: str) -> float:
        """Bytes that a plan's collectives result in on one device."""
        return sum(collectives.nbytes for collectives in self.communication[plan].values())


def verify_beside_data_parallelism(
    source: Source, report: ShardingReport, problem: ShardingProblem, say: Say
) -> Verified:
    """What XLA makes of a plan, and of data parallelism on the same devices; the plan's step runs, too.

    Args:
        source: which step.
        report: of the plan.
        problem: the plan's, with every all-reduce priced on its own, as XLA for CPUs has it.
        say: is told what is being done.

    Raises:
        BadInput: the step cannot be compiled or run.
        UserCodeError: the user's own code raised.
        RunFailed: the process that ran it ended.
    """
    plans = {"plan": report.plan}
    if parallel := data_parallel_plan(problem):
        plans["data-parallel"] = parallel
    devices = math.prod(axis.size for axis in report.plan.mesh)
    reason = shortage(devices * report.cost.memory_bytes + 2 * replicated_price(problem).memory_bytes)
    numbers = {name: (plan.mesh, [list(map(int, along)) for along in plan.dims]) for name, plan in plans.items()}
    request = ShardedRequest(source, numbers, None if reason else "plan")
    answer = answered("automap_models.run.verify_sharding", request, environment(devices, "cpu"), source.what, say)
    prices = {name: plan_price(problem, plan) for name, plan in plans.items()}
    estimates = {name: sum(price.activation_bytes) + sum(price.gradient_bytes) for name, price in prices.items()}
    return replace(msgspec.convert(answer, Verified), estimates=estimates, reason_not_run=reason)


def run_sharded(request: ShardedRequest, say: Say) -> Verified:
    """Compile a step with each plan for the devices of this process, and run it with one of them.

    Raises:
        BadInput: the step cannot be compiled or run.
        UserCodeError: the user's own code raised.
    """
    from automap_models.hlo.sharded_step import compile_step, differences, on_one_device, run

    say(f"tracing {request.source.what}")
    with user_code(request.source.what):
        step = training_step_of(request.source)
    say(f"compiling {step.name} for the plan's devices")
    compiled = {
        name: compile_step(step, {axis.name: axis.size for axis in mesh}, dims)
        for name, (mesh, dims) in request.plans.items()
    }
    communication = {name: of_plan.communication for name, of_plan in compiled.items()}
    if request.runs is None:
        return Verified(communication)
    say("running it on one device and on the plan's")
    values, expected = on_one_device(step, seed=0)
    return Verified(communication, *differences(run(compiled[request.runs], step, values), expected))


if __name__ == "__main__":
    raise SystemExit(serve(ShardedRequest, run_sharded))
