"""The programs of a step compiled by XLA, each for the sub-mesh of its stage and with the plan's shardings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.sharding import Collectives
from automap_models.errors import BadInput
from automap_models.hlo.dimension_classes import NO_CLASS, sharding_classes
from automap_models.hlo.graph import rules_of
from automap_models.hlo.jax_function import array_dtype, program_function
from automap_models.hlo.module import MlirModule
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.hlo.sharded_step import communication
from automap_models.hlo.step_classes import StepClasses
from automap_models.hlo.step_cut import Program, ProgramKey, StepCut
from automap_models.run.jax_local_sums import LocalSumFinder, LocalSums
from automap_models.run.layout import DATA, MODEL, Layout, StageLayout

_RULES = "shardy"
_NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "gradients of inputs",
    "W": "gradients of weights",
    "U": "update",
}
_WIDE = {"bfloat16": "float32", "float16": "float32"}
"""What sums over micro-batches are kept in."""


class StepShardings:
    """How each value of a step lies on a stage's devices.

    A plan says which dimension of some arguments an axis partitions. By propagation the dimensions of one class are
    partitioned together (hlo/sharding_classes.py), so it says so of every value. Where an axis does not divide a
    dimension, the value goes from stage to stage whole, and XLA pads it inside the program.
    """

    def __init__(self, module: MlirModule, graph: InstructionGraph, layout: Layout, devices: Sequence[Any]) -> None:
        self.graph, self.layout = graph, layout
        self.tensors = module.types
        self.classes: StepClasses | None = None
        if any(len(stage.devices) > 1 for stage in layout.stages):
            of_dims = sharding_classes(module, rules_of(module), read_rule_set(_RULES))
            self.classes = StepClasses(module, of_dims, graph)
        self.meshes = [_mesh(stage, devices) for stage in layout.stages]
        self._sharded = [self._axes(stage) for stage in layout.stages]

    def _axes(self, stage: StageLayout) -> dict[str, frozenset[int]]:
        """The classes that each axis of a stage shards."""
        if self.classes is None:
            return {}
        along_data = stage.data_dims
        if along_data is None:  # the first dimension of every input that has the batch's
            size = self.graph.meta.get("microbatch_size")
            arguments = zip(self.graph.arguments, self.graph.shapes, strict=False)
            along_data = {a.name: 0 for a, shape in arguments if a.kind == "input" and shape[:1] == (size,)}
        axes = {DATA: (stage.data, along_data), MODEL: (stage.model, stage.dims)}
        return {axis: self._classes_of(dims) for axis, (size, dims) in axes.items() if size > 1}

    def _classes_of(self, dims: Mapping[str, int]) -> frozenset[int]:
        assert self.classes is not None
        variables = self.classes.sharding.classes.variables
        of_dims = self.classes.of_dims
        names = {variable.name for variable in variables}
        unknown = sorted(set(dims) - names)
        if unknown:
            what = f"the plan partitions {unknown[0]}, which the model does not have"
            raise BadInput(what, where=self.layout.where, do="give the model that the plan was made for")
        chosen = {of_dims[v][dims[var.name]] for v, var in enumerate(variables) if var.name in dims}
        return frozenset(chosen - {NO_CLASS})

    def of_classes(self, stage: int) -> Mapping[str, frozenset[int]]:
        """Axis of a stage's mesh → the classes that it shards."""
        return self._sharded[stage]

    def spec(self, v: int, stage: int, *, uneven: bool = False) -> PartitionSpec:
        """How a value lies on the devices of a stage.

        Args:
            uneven: also along dimensions that the axis does not divide.
        """
        if self.classes is None:
            return PartitionSpec()  # type: ignore[no-untyped-call]
        axes: list[str | None] = []
        sizes = dict(self.meshes[stage].shape)
        dims = self.classes.of_dims[v]
        for size, dim in zip(self.graph.shapes[v], dims, strict=False):
            axis = next((a for a, chosen in self._sharded[stage].items() if dim in chosen and a not in axes), None)
            divides = axis is not None and (size % sizes[axis] == 0 or (uneven and size > 1))
            axes.append(axis if divides else None)
        return PartitionSpec(*axes)  # type: ignore[no-untyped-call]

    def sharding(self, v: int, stage: int, *, uneven: bool = False) -> NamedSharding:
        """`spec` on the stage's devices."""
        return NamedSharding(self.meshes[stage], self.spec(v, stage, uneven=uneven))

    def samples(self, stage: int) -> frozenset[int]:
        """The classes along which the replicas of a stage share samples."""
        if self.layout.stages[stage].data_dims is not None:
            return frozenset()  # a sharding plan's step is one batch, and its axes need not partition samples
        return self._sharded[stage].get(DATA, frozenset())

    def part(self, v: int, stage: int) -> tuple[PartitionSpec, tuple[int, ...]] | None:
        """Where a value lies by replicas, and the shape of a replica's part; None where parts would not be equal."""
        if self.spec(v, stage) != self.spec(v, stage, uneven=True):
            return None
        axes = [DATA if axis == DATA else None for axis in self.spec(v, stage)]
        axes += [None] * (len(self.tensors[v].shape) - len(axes))
        sizes = zip(self.tensors[v].shape, axes, strict=True)
        shape = tuple(size // self.layout.stages[stage].data if axis else size for size, axis in sizes)
        return PartitionSpec(*axes), shape  # type: ignore[no-untyped-call]

    def moved(self, array: Any, v: int, stage: int) -> Any:
        """The array of a value on a stage's devices."""
        return jax.device_put(array, self.sharding(v, stage))

    def shape(self, v: int, stage: int, dtype: str | None = None) -> jax.ShapeDtypeStruct:
        """The array of a value on a stage."""
        tensor = self.tensors[v]
        element_type = jnp.dtype(dtype or array_dtype(tensor))
        sharding = self.sharding(v, stage)
        return jax.ShapeDtypeStruct(tensor.shape, element_type, sharding=sharding)  # type: ignore[no-untyped-call]

    def sum_dtype(self, v: int) -> str:
        """What sums of a value over micro-batches are kept in."""
        dtype = array_dtype(self.tensors[v])
        return _WIDE.get(dtype, dtype)


def _mesh(stage: StageLayout, devices: Sequence[Any]) -> Mesh:
    grid = np.array([devices[i] for i in stage.devices]).reshape(stage.data, stage.model)
    return Mesh(grid, (DATA, MODEL))


@dataclass(frozen=True)
class CompiledProgram:
    """A program compiled for its stage.

    Attributes:
        program: what it is.
        passed: its outputs that other programs of the micro-batch read, or that it passes on to the next one; for an
            update all outputs.
        summed: its outputs that are added to sums over micro-batches.
        local: what of these each replica adds up for itself; None for nothing.
        call: the compiled function of its inputs and these sums, which returns what is passed and the new sums.
        communication: XLA's word for a collective → how many are in it, and their bytes.
    """

    program: Program
    passed: tuple[int, ...]
    summed: tuple[int, ...]
    call: Callable[..., Sequence[Any]]
    communication: Mapping[str, Collectives]
    local: LocalSums | None = None


@dataclass(frozen=True)
class Reduction:
    """What sums the totals of a stage's replicas, once a step.

    Attributes:
        values: that it sums.
        call: the compiled function of the replicas' totals, which returns those of the stage.
        communication: see `CompiledProgram`.
    """

    values: tuple[int, ...]
    call: Callable[..., Sequence[Any]]
    communication: Mapping[str, Collectives]


class StepPrograms:
    """All programs of a step, compiled; each distinct one once.

    Args:
        module: the step, traced as a whole.
        cut: its programs.
        shardings: where values lie.
        micro_batches: M, over which sums are averaged.
    """

    def __init__(self, module: MlirModule, cut: StepCut, shardings: StepShardings, micro_batches: int) -> None:
        self.module, self.cut, self.shardings, self.micro_batches = module, cut, shardings, micro_batches
        self.averaged = frozenset(cut.averaged())
        self._compiled: dict[ProgramKey, CompiledProgram] = {}
        self._reductions: dict[int, Reduction] = {}
        self._local: set[int] = set()
        self._finder = LocalSumFinder(module, shardings.classes) if shardings.classes is not None else None
        self._passed = {v for program in cut.of_kind("FBIW") for v in program.inputs} | set(cut.threaded.values())
        for v in self.averaged:
            if array_dtype(shardings.tensors[v]) == "bool":
                what = "the step returns or updates by a truth value of a micro-batch"
                raise BadInput(what, where=module.name, do="return numbers, which can be averaged")

    @property
    def arguments(self) -> int:
        """How many arguments the step has; they are the first values."""
        return len(self.module.arguments)

    @property
    def compiled(self) -> dict[ProgramKey, CompiledProgram]:
        """Each program, in the order of `StepCut.programs`."""
        self.compile()
        return self._compiled

    def compile(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Compile what is not compiled yet.

        Args:
            say: is told which program is being compiled.
        """
        for i, (key, program) in enumerate(self.cut.programs.items()):
            if key not in self._compiled:
                say(f"compiling program {i + 1} of {len(self.cut.programs)}: {_NAMES[key.kind]} of stage {key.stage}")
                self._compiled[key] = self._compile(program)
        values: dict[int, list[int]] = defaultdict(list)
        for key, compiled in self._compiled.items():
            values[key.stage] += compiled.local.totals if compiled.local is not None else ()
        for stage, stage_values in values.items():
            if stage_values and stage not in self._reductions:
                say(f"compiling the sum of gradients of stage {stage}")
                self._reductions[stage] = self._reduction(stage, tuple(stage_values))

    @property
    def reductions(self) -> dict[int, Reduction]:
        """Of each stage whose replicas add up gradients for themselves."""
        self.compile()
        return self._reductions

    def _reduction(self, stage: int, values: tuple[int, ...]) -> Reduction:
        jitted = jax.jit(
            lambda *totals: [total.sum(0) for total in totals],
            out_shardings=[self.shardings.sharding(v, stage) for v in values],
        )
        compiled = jitted.lower(*(self.sum_of(v, stage) for v in values)).compile()
        return Reduction(values, compiled, communication(compiled.as_text() or ""))

    def sum_of(self, v: int, stage: int) -> jax.ShapeDtypeStruct:
        """The array in which a value is summed over micro-batches; one a replica where these do it for themselves."""
        value_shape = self.shardings.shape(v, stage, self.shardings.sum_dtype(v))
        if v not in self._local:
            return value_shape
        spec = PartitionSpec(DATA, *self.shardings.spec(v, stage))  # type: ignore[no-untyped-call]
        sharding = NamedSharding(self.shardings.meshes[stage], spec)
        shape = (self.shardings.layout.stages[stage].data, *value_shape.shape)
        return jax.ShapeDtypeStruct(shape, value_shape.dtype, sharding=sharding)  # type: ignore[no-untyped-call]

    def _local_sums(self, program: Program, summed: tuple[int, ...]) -> LocalSums | None:
        """What each replica adds up for itself; only of equal parts of a micro-batch."""
        stage = program.key.stage
        samples = self.shardings.samples(stage)
        if self._finder is None or not samples or not summed:
            return None
        local = self._finder.split(program, summed, self._passed.intersection(program.outputs), samples)
        if local is None or any(self.shardings.part(v, stage) is None for v in local.tail.inputs):
            return None
        return local

    def _compile(self, program: Program) -> CompiledProgram:
        stage, updates = program.key.stage, program.key.kind == "U"
        summed = () if updates else tuple(v for v in program.outputs if v in self.averaged)
        local = self._local_sums(program, summed)
        self._local.update(local.totals if local is not None else ())
        totals = [self.sum_of(v, stage) for v in summed]
        sums = self.averaged if updates else frozenset()
        types = {v: self.shardings.sum_dtype(v) for v in program.inputs if v in sums}
        given = [self.shardings.shape(v, stage, types.get(v)) for v in program.inputs] + totals
        passed = tuple(v for v in program.outputs if updates or v in self._passed)
        returned = [self.shardings.sharding(v, stage) for v in passed] + [total.sharding for total in totals]
        jitted = jax.jit(
            self._function(program, passed, summed, local),
            out_shardings=returned,
            donate_argnums=tuple(range(len(program.inputs), len(given))),
            keep_unused=True,
        )
        compiled = jitted.lower(*given).compile()
        return CompiledProgram(program, passed, summed, compiled, communication(compiled.as_text() or ""), local)

    def _function(
        self, program: Program, passed: tuple[int, ...], summed: tuple[int, ...], local: LocalSums | None
    ) -> Callable[..., list[Any]]:
        stage, body = program.key.stage, program if local is None else local.head
        call = program_function(self.module, body)
        add_up = (lambda _: {}) if local is None else self._tail(local, stage)
        shardings, updates = self.shardings, program.key.kind == "U"
        inputs = len(program.inputs)

        def run(*arrays: Any) -> list[Any]:
            values = list(arrays[:inputs])
            for i, v in enumerate(program.inputs):
                if updates and v in self.averaged:
                    values[i] = self.average(v, values[i])
                if shardings.spec(v, stage) != shardings.spec(v, stage, uneven=True):
                    uneven = shardings.sharding(v, stage, uneven=True)
                    values[i] = jax.lax.with_sharding_constraint(values[i], uneven)  # type: ignore[no-untyped-call]
            environment = dict(zip(program.inputs, values, strict=True))
            results = dict(zip(body.outputs, call(*values), strict=True))
            results |= add_up(environment | results)
            sums = zip(summed, arrays[inputs:], strict=True)
            return [results[v] for v in passed] + [total + results[v].astype(total.dtype) for v, total in sums]

        return run

    def _tail(self, local: LocalSums, stage: int) -> Callable[[Mapping[int, Any]], dict[int, Any]]:
        """The function of a tail: values by number → one total a replica, stacked."""
        parts = {v: part for v in local.tail.inputs if (part := self.shardings.part(v, stage)) is not None}
        call = program_function(self.module, local.tail, {v: shape for v, (_, shape) in parts.items()})
        mapped = jax.shard_map(
            lambda *arrays: [total[None] for total in call(*arrays)],
            mesh=self.shardings.meshes[stage],
            in_specs=tuple(parts[v][0] for v in local.tail.inputs),
            out_specs=[PartitionSpec(DATA)] * len(local.totals),  # type: ignore[no-untyped-call]
            axis_names={DATA},
            check_vma=False,
        )

        def run(values: Mapping[int, Any]) -> dict[int, Any]:
            totals = mapped(*(values[v] for v in local.tail.inputs))  # type: ignore[no-untyped-call]
            return dict(zip(local.totals, totals, strict=True))

        return run

    def average(self, v: int, total: Any) -> Any:
        """The mean of a value over micro-batches, given its sum; the sum of a whole number stays."""
        if not jnp.issubdtype(total.dtype, jnp.inexact):
            return total
        return (total / self.micro_batches).astype(jnp.dtype(array_dtype(self.shardings.tensors[v])))
