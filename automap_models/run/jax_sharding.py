"""A training step that runs with the shardings of a plan, on JAX, beside one device."""

from __future__ import annotations

from automap_models.hlo.sharded_step import Along, compile_step, differences, on_one_device, run
from automap_models.run.jax_process import Say, serve
from automap_models.run.verify_sharding import Plan, ShardedAnswer, ShardedRequest
from automap_models.user_code import user_code
from automap_models.workloads.source import training_step_of


def run_sharded(request: ShardedRequest, say: Say) -> ShardedAnswer:
    """Compile a step with each plan for the devices of this process, and run it with one of them.

    Raises:
        BadInput: the step cannot be compiled or run.
        UserCodeError: the user's own code raised.
    """
    say(f"tracing {request.source.what}")
    with user_code(request.source.what):
        step = training_step_of(request.source)
    say(f"compiling {step.name} for the plan's devices")
    compiled = {name: compile_step(step, _along(plan)) for name, plan in request.plans.items()}
    communication = {name: of_plan.communication for name, of_plan in compiled.items()}
    if request.runs is None:
        return ShardedAnswer(communication, None, None)
    say("running it on one device and on the plan's")
    values, expected = on_one_device(step, request.seed)
    return ShardedAnswer(communication, *differences(run(compiled[request.runs], step, values), expected))


def _along(plan: Plan) -> Along:
    mesh, dims = plan
    return Along({axis.name: axis.size for axis in mesh}, dims)


if __name__ == "__main__":
    raise SystemExit(serve(ShardedRequest, run_sharded))
