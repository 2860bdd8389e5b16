"""A plan held against XLA: the step runs on devices made of this host; its results and collectives are compared."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from automap_models.core.mesh import Mesh
from automap_models.core.sharding import Collectives, ShardingProblem
from automap_models.cost.sharding import ShardingPrice, plan_price, replicated_price
from automap_models.errors import AutomapError, BadInput
from automap_models.formats.sharding_json import ShardingReport
from automap_models.planners.sharding.traced import data_parallel_plan
from automap_models.workloads.source import Source, source_kind, training_step_of

TOLERANCE = 1e-4
"""Largest relative difference between the sharded step's results and one device's."""
_SEED = 0
_SHARE = 0.6
"""Of the memory that is free: so much the run may take."""


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


def verify_beside_data_parallelism(source: Source, report: ShardingReport, problem: ShardingProblem) -> Verified:
    """What XLA makes of a plan, and of data parallelism on the same devices.

    Args:
        source: which step.
        report: of the plan.
        problem: the plan's, with every all-reduce priced on its own, as XLA for CPUs has it.

    Raises:
        BadInput: the step cannot be compiled or run.
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
    )


def _reduced_bytes(price: ShardingPrice) -> float:
    return sum(price.activation_bytes) + sum(price.gradient_bytes)


def verify(
    source: Source,
    plans: Mapping[str, tuple[Mesh, Sequence[Sequence[int]]]],
    estimates: Mapping[str, float],
    needed_bytes: float,
) -> Verified:
    """Compile and run the step with the shardings of the plan named "plan"; of the others only compile it.

    It takes a process of its own, because the number of a host's devices is fixed when jax starts.

    Args:
        source: which step.
        plans: name → mesh and, for each of its axes, the partitioned dimension of each argument of the step.
        estimates: name → bytes that are expected to be all-reduced.
        needed_bytes: what running it takes on all devices together.

    Raises:
        BadInput: the step cannot be compiled or run.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    reason = f"running it on this host takes {needed_bytes / 1e9:.1f} GB" if needed_bytes > _SHARE * free else ""
    request = {
        "what": source.what,
        "sizes": {**source.sizes, "dropout": source.dropout},
        "plans": {
            name: {"sizes": {axis.name: axis.size for axis in mesh}, "dims": [list(map(int, along)) for along in dims]}
            for name, (mesh, dims) in plans.items()
        },
        "run": not reason,
        "seed": _SEED,
    }
    devices = math.prod(axis.size for axis in plans["plan"][0])
    answer = _answered(request, devices, source.what)
    communication = {
        name: {kind: Collectives(*numbers) for kind, numbers in kinds.items()}
        for name, kinds in answer["communication"].items()
    }
    return Verified(communication, estimates, answer.get("loss"), answer.get("arrays"), reason)


def _answered(request: Mapping[str, Any], devices: int, where: str) -> Mapping[str, Any]:
    """What the process that does it answers."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "automap_models.planners.sharding.verify"]
    done = subprocess.run(
        command, input=json.dumps(request), env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stderr.strip().splitlines()
    if done.returncode:
        last = lines[-1][:300] if lines else f"exit code {done.returncode}"
        raise BadInput(f"XLA could not run the plan ({last})", where=where, do="leave out `verify`")
    answer: Mapping[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise BadInput(f"the plan could not be run ({answer['error']})", where=where, do="leave out `verify`")
    return answer


def main() -> int:
    """The process in which XLA verifies a plan: compile, run and compare.

    What to run comes in on stdin as JSON, what came of it goes out on stdout, an error of ours as `error`.
    """
    request = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer = _answer(request)
        except AutomapError as error:
            answer = {"error": str(error)}
    print(json.dumps(answer))
    return 0


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from automap_models.hlo.sharded_step import Along, compile_step, differences, on_one_device, run

    step = training_step_of(Source(request["what"], source_kind(request["what"]), **request["sizes"]))
    answer: dict[str, Any] = {"communication": {}}
    compiled = {name: compile_step(step, Along(plan["sizes"], plan["dims"])) for name, plan in request["plans"].items()}
    for name, step_by_plan in compiled.items():
        answer["communication"][name] = {kind: tuple(numbers) for kind, numbers in step_by_plan.communication.items()}
    if request["run"]:
        values, expected = on_one_device(step, request["seed"])
        answer["loss"], answer["arrays"] = differences(run(compiled["plan"], step, values), expected)
    return answer


if __name__ == "__main__":
    raise SystemExit(main())
