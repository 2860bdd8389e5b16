"""A training step that runs by a plan on JAX's devices: one controller plays the passes of a schedule.

    batch ── micro-batches ──→ F and B of each stage, in the schedule's order ──→ sums ──→ U of each stage ──→ arguments

Values that cross stages move with `jax.device_put` to the next stage's sub-mesh. Gradients and the loss are averaged
over the micro-batches; with a loss that is a mean over samples they are then those of the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.run_record import Pass
from automap_models.errors import BadInput
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.module import MlirModule
from automap_models.hlo.random_keys import is_typed_key, physical
from automap_models.hlo.step import TrainingStep
from automap_models.hlo.step_cut import cut_step, gradients
from automap_models.run.jax_passes import StepPasses, StoredValues
from automap_models.run.jax_programs import StepPrograms, StepShardings
from automap_models.run.jax_step import StepResults, drawn_arguments, micro_batches, step_results
from automap_models.run.layout import Layout


class TracedStep:
    """A step with its module and what its results are, traced once for any number of plans.

    Attributes:
        step: of one micro-batch.
        module, graph: its instructions.
        results: which of them is what.
        returned: argument → the value that the step returns in its place.
        gradients: parameter → the value that is its gradient.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.step = step
        self.results: StepResults = step_results(step)
        self.module: MlirModule = trace(step)
        self.graph: InstructionGraph = instruction_graph(self.module)
        self.returned = {a: self.module.outputs[k] for a, k in self.results.replaces.items()}
        self.gradients = gradients(self.graph, self.returned)


class JaxPipeline:
    """A step that trains by a plan.

    Args:
        step: of one micro-batch, perhaps traced already.
        layout: the plan.
        arguments: first values, a tree for each of the step's arguments that is no input (None for inputs); left out,
            they are drawn with the seed.
        devices: JAX's; the plan's devices are the first of them.

    Attributes:
        passes: of the last measured step: its processor times as each pass ran alone, its lanes as passes overlapped.
        length_s: of the last step.
        clock: what the passes' busy times are: processor time of CPUs, else wall time.

    Raises:
        BadInput: the plan is another model's, there are too few devices, or the step's results cannot be told apart.
    """

    def __init__(
        self,
        step: TrainingStep | TracedStep,
        layout: Layout,
        arguments: Sequence[Any] | None = None,
        *,
        seed: int = 0,
        devices: Sequence[Any] | None = None,
    ) -> None:
        devices = jax.devices() if devices is None else devices
        if layout.devices > len(devices):
            what = f"the plan is for {layout.devices} devices, JAX has {len(devices)}"
            raise BadInput(what, where=layout.where, do="start with as many, or plan for a smaller cluster")
        traced = step if isinstance(step, TracedStep) else TracedStep(step)
        self._traced, self._step, self.layout = traced, traced.step, layout
        self.cut = cut_step(
            traced.graph,
            layout.cuts,
            traced.returned,
            wanted=tuple(traced.gradients.values()),
            split_backward=layout.schedule.splits_backward,
        )
        self.shardings = StepShardings(traced.module, traced.graph, layout, devices)
        self.programs = StepPrograms(traced.module, self.cut, self.shardings, layout.schedule.micro_batches)
        self.passes: tuple[Pass, ...] = ()
        self.length_s = 0.0
        on_cpu = devices[0].platform == "cpu"
        self.clock = "processor time" if on_cpu else "wall time"
        self._clock = time.process_time if on_cpu else time.perf_counter
        self._stored: StoredValues = {}
        self._totals: dict[int, Any] = {}
        self._updated: dict[int, Any] = {}
        self._holders = {v: self.cut.holders(v) or (0,) for v in range(self.programs.arguments)}
        self.load(drawn_arguments(self._step, seed) if arguments is None else arguments)

    # ---- arguments -------------------------------------------------------------------------------------------------

    def load(self, arguments: Sequence[Any]) -> None:
        """Go on from these parameters and this state.

        Args:
            arguments: a tree for each argument of the step; those of inputs are not looked at.

        Raises:
            BadInput: other arrays than the step's.
        """
        v = 0
        for position, argument in enumerate(self._step.arguments):
            leaves = jax.tree.leaves(argument)
            if position not in self._step.inputs:
                given = jax.tree.leaves(arguments[position])
                if [np.shape(leaf) for leaf in given] != [leaf.shape for leaf in leaves]:
                    what = f"argument {position} has other arrays than the step's"
                    raise BadInput(what, where=self._step.name, do="give the arguments of the same model")
                for k, leaf in enumerate(given):
                    self._hold(v + k, physical(leaf))
            v += len(leaves)

    def arguments(self) -> list[Any]:
        """A tree of NumPy arrays for each argument of the step, None for inputs: the whole model, whatever the plan."""
        trees: list[Any] = []
        v = 0
        for position, argument in enumerate(self._step.arguments):
            leaves, structure = jax.tree.flatten(argument)
            is_state = position not in self._step.inputs
            values = [self._value(v + k, leaf) for k, leaf in enumerate(leaves)] if is_state else []
            trees.append(jax.tree.unflatten(structure, values) if is_state else None)
            v += len(leaves)
        return trees

    def _value(self, v: int, leaf: Any) -> Any:
        array = np.asarray(self._stored[v, self._holders[v][0]])
        if is_typed_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
        return array

    def _hold(self, v: int, value: Any) -> None:
        for stage in self._holders[v]:
            self._stored[v, stage] = self.shardings.moved(value, v, stage)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def step(self, *batch: Any, measure: bool = False) -> float:
        """Train on a global batch; returns the loss, averaged over its micro-batches.

        Args:
            batch: the step's inputs, M times as many samples as it was traced with.
            measure: note in `passes` what each took. The step is then played twice from the same state: each pass
                alone, for its processor time, and with a thread for each rank, for its lane; the second one counts.

        Raises:
            BadInput: other arrays than the step reads, or another number of samples.
        """
        parts = self._parts(batch)
        alone: tuple[Pass, ...] = ()
        if measure:
            rehearsal = StepPasses(self.programs, self.layout.schedule, dict(self._stored), parts, self._clock)
            rehearsal.in_order(measured=True)
            alone = tuple(rehearsal.passes)
        began = time.perf_counter()
        run = StepPasses(self.programs, self.layout.schedule, self._stored, parts)
        self._updated = run.overlapped() if measure else run.in_order()
        self._totals = run.totals
        for argument, v in self.cut.returned.items():
            if v != argument and argument not in self.cut.threaded:
                self._hold(argument, self._result(v))
        loss = float(self._result(self._traced.module.outputs[self._traced.results.loss]))
        self.length_s = time.perf_counter() - began
        self.passes = _with_busy(run.passes, alone)
        return loss

    def _parts(self, batch: Sequence[Any]) -> list[dict[int, Any]]:
        """[M] the inputs of each micro-batch, by argument."""
        inputs = [v for v, argument in enumerate(self._traced.graph.arguments) if argument.kind == "input"]
        parts = micro_batches(self._step, batch, self.layout.schedule.micro_batches)
        return [dict(zip(inputs, part, strict=True)) for part in parts]

    def is_finite(self, *batch: Any) -> bool:
        """Whether a step on this batch would give a finite loss and finite gradients; trains nothing."""
        run = StepPasses(self.programs, self.layout.schedule, dict(self._stored), self._parts(batch))
        run.in_order()
        return all(bool(jnp.isfinite(total).all()) for total in run.totals.values())

    def gradients(self) -> dict[str, np.ndarray]:
        """Name of a parameter → its gradient in the last step, averaged over micro-batches."""
        names = self._traced.graph.arguments
        return {names[a].name: np.asarray(self._result(v)) for a, v in self._traced.gradients.items()}

    def _result(self, v: int) -> Any:
        """A value that the step returns: of an update, or the average of those of micro-batches."""
        if v in self._updated:
            return self._updated[v]
        if v in self._totals:
            return self.programs.average(v, self._totals[v])
        return self._stored[v, self._holders[v][0]]


def _with_busy(overlapped: Sequence[Pass], alone: Sequence[Pass]) -> tuple[Pass, ...]:
    """The lanes of passes that overlapped, with what each took of the processor when it ran alone."""
    busy_s: dict[tuple[str, int, int], float] = {}
    for one in alone:
        key = (one.kind, one.stage, one.micro_batch)
        busy_s[key] = busy_s.get(key, 0.0) + one.busy_s
    return tuple(replace(one, busy_s=busy_s.pop((one.kind, one.stage, one.micro_batch), 0.0)) for one in overlapped)
