"""Runs a plan on JAX: this process, or one of its own where it has too few devices, plays all stages."""

from __future__ import annotations

import msgspec

from automap_models.core.run_record import RunRecord
from automap_models.errors import BadInput
from automap_models.run.base import RunProblem, Say
from automap_models.run.jax_process import answered, as_array, environment
from automap_models.run.layout import layout_of


def run(problem: RunProblem, say: Say) -> RunRecord:
    """Run a plan of any kind on JAX's devices; see run.base."""
    if problem.executor is not None:
        what = f"the executor {problem.executor} is torch's"
        raise BadInput(what, where="`executor`", do="leave it out: on JAX XLA runs the passes")
    if problem.zero:
        what = f"ZeRO-{problem.zero} is what torch's replicas share"
        do = "leave it out, or give a sharding plan: on JAX the plan says how arrays are divided"
        raise BadInput(what, where="`zero`", do=do)
    if problem.source.model is not None:
        from automap_models.run.jax_run import run_plan

        return run_plan(problem, say)
    place = environment(layout_of(problem.plan, problem.schedule).devices, problem.device)
    answer = answered("automap_models.run.jax_run", problem, place, problem.plan.where, say)
    return msgspec.convert(answer, RunRecord, dec_hook=as_array)
