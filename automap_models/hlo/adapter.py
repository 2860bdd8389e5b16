"""From a JAX function or a file to a `MlirModule`, and from a module to its operations one by one.

flat_module.py makes one function without calls of either; a file's content is read by another process (foreign.py).
Here the operations are read out of it and put into execution order.

Cost analysis and compilation of single operations use parts of jaxlib that are no public API, as flat_module.py does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import Argument
from automap_models.errors import BadInput
from automap_models.hlo.arguments import file_arguments, step_arguments
from automap_models.hlo.flat_module import (
    bytecode,
    entry_block,
    flat_module,
    from_bytecode,
    hlo_modules,
    hlo_text,
    opcode_of,
)
from automap_models.hlo.foreign import FORMS, import_file
from automap_models.hlo.module import MlirModule, OneOp
from automap_models.hlo.order import execution_order, renumbered
from automap_models.hlo.step import TrainingStep

try:
    import jax
    from jax.extend.backend import get_backend
    from jaxlib import _jax

    from automap_models.hlo.mlir_walk import EntryReader, isolated
    from automap_models.hlo.stablehlo_values import drop_unused, inner_loops, rounds
    from automap_models.hlo.unroll import unroll
except ImportError as error:
    raise BadInput(
        f"reading JAX models and HLO needs the jax extra ({error})", do="pip install 'automap-models[jax]'"
    ) from None


__all__ = ["MlirModule", "OneOp", "compiled", "costs_of", "one_op_modules", "read_module", "trace"]


def trace(step: TrainingStep) -> MlirModule:
    """Trace a training step without allocating anything; whatever the function itself raises passes through.

    Raises:
        BadInput: XLA refuses the step, as it does one whose arrays have more elements than it can count.
    """
    lowered = jax.jit(step.function, keep_unused=True).lower(*step.arguments)
    try:
        mlir = flat_module(hlo_text(lowered.compiler_ir("stablehlo")))
    except RuntimeError as error:
        reason = str(error).removeprefix("Bad StatusOr access: ").rstrip(".")
        do = "check the sizes, `batch` and `sequence` among them"
        raise BadInput(f"is refused by XLA ({reason})", where=step.name, do=do) from error
    meta: dict[str, object] = {"source": "jax", "microbatch_size": step.microbatch_size, "dtype": step.dtype}
    sizes = [len(jax.tree.leaves(argument)) for argument in step.arguments]
    if not step.unread:
        with mlir.context:
            drop_unused(entry_block(mlir))  # differentiation leaves what nothing reads: it has no place in the order
    return _module(step.name, mlir, meta, lambda entry: step_arguments(step, sizes, entry.argument_names), step.name)


def read_module(path: str | os.PathLike[str], *, trainable: Sequence[str] = ()) -> MlirModule:
    """The module in a file of HLO text from before optimisation, StableHLO text or StableHLO bytecode.

    Args:
        path: the file.
        trainable: patterns of the names of trainable parameters (`params/*`); without any they are recognised as
            arguments.py says.

    Raises:
        BadInput: the file is something else, was optimised already, has dynamic shapes or no trainable parameters.
    """
    source = str(path)
    content, form = import_file(path)
    meta: dict[str, object] = {"source": FORMS[form]}
    name = Path(path).stem.removesuffix(".before_optimizations")
    return _module(name, from_bytecode(content), meta, lambda entry: file_arguments(entry, trainable, source), source)


def one_op_modules(module: MlirModule) -> tuple[OneOp, ...]:
    """Each distinct operation of a module on its own, constants left out, in order of first occurrence.

    Loops keep the constants that they start from, so that they make as many rounds as in the step.
    """
    _, firsts, inverse = np.unique(module.signatures, return_index=True, return_inverse=True)
    where = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    with module.mlir.context:
        return tuple(
            _one_op(module.handles[firsts[i]], where[i])
            for i in np.argsort(firsts)
            if module.operations[firsts[i]].opcode != "constant"
        )


def _one_op(op: Any, instructions: NDArray[np.int64]) -> OneOp:
    mlir, operands, results = isolated(op)
    return OneOp(
        opcode=opcode_of(op),
        instructions=instructions,
        operands=operands,
        results=results,
        bytecode=bytecode(mlir),
        rounds=rounds(op),
        inner_loops=tuple(_one_op(inner, instructions) for inner in inner_loops(op)),
    )


def costs_of(one_ops: Sequence[OneOp]) -> list[tuple[float, float]]:
    """FLOP and bytes accessed of each operation by XLA's own cost analysis, for all rounds of a loop.

    XLA counts one round of every loop; where the number of rounds is not known, so does this. It knows nothing of a
    custom call, whose cost is that it reads its operands and writes its results.
    """
    counted = [one_op for one_op in _with_inner_loops(one_ops) if one_op.opcode != "custom_call"]
    modules = hlo_modules([one_op.bytecode for one_op in counted])
    one_round = {id(one_op): _analysed(module) for one_op, module in zip(counted, modules, strict=True)}
    return [_all_rounds(one_op, one_round) for one_op in one_ops]


def _with_inner_loops(one_ops: Sequence[OneOp]) -> Iterator[OneOp]:
    for one_op in one_ops:
        yield one_op
        yield from _with_inner_loops(one_op.inner_loops)


def _analysed(module: Any) -> tuple[float, float]:
    analysis = _jax.hlo_module_cost_analysis(get_backend("cpu"), module)
    return max(0.0, analysis.get("flops", 0.0)), max(0.0, analysis.get("bytes accessed", 0.0))


def _all_rounds(one_op: OneOp, one_round: Mapping[int, tuple[float, float]]) -> tuple[float, float]:
    """FLOP and bytes of all rounds, given those of one round of each operation by its identity."""
    if one_op.opcode == "custom_call":
        return 0.0, sum(tensor.nbytes for tensor in (*one_op.operands, *one_op.results))
    flop, bytes_accessed = one_round[id(one_op)]
    for inner in one_op.inner_loops:
        once, all_rounds = one_round[id(inner)], _all_rounds(inner, one_round)
        flop += all_rounds[0] - once[0]
        bytes_accessed += all_rounds[1] - once[1]
    return max(1, one_op.rounds) * flop, max(1, one_op.rounds) * bytes_accessed


def compiled(one_op: OneOp) -> Callable[[Sequence[Any]], list[Any]]:
    """The operation compiled for this machine's default device: a function of a list of jax arrays.

    Calls return before the work is done; wait with `jax.block_until_ready` on the result.
    """
    backend = get_backend()
    devices = _jax.DeviceList(tuple(backend.local_devices()[:1]))
    executable = backend.compile_and_load(one_op.bytecode, devices, _jax.CompileOptions())

    def run(operands: Sequence[Any]) -> list[Any]:
        shards = executable.execute_sharded(list(operands)).disassemble_into_single_device_arrays()
        return [parts[0] for parts in shards]

    return run


def _module(
    name: str, mlir: Any, meta: dict[str, object], classify: Callable[[EntryReader], tuple[Argument, ...]], source: str
) -> MlirModule:
    """The records of a flat module, in execution order."""
    with mlir.context:
        entry = EntryReader(entry_block(mlir), source)
        arguments = classify(entry)
        if unroll(entry_block(mlir), arguments):
            entry = EntryReader(entry_block(mlir), source)
        order = execution_order(entry.operations, arguments, entry.outputs)
        entry.move(order)
    operations, outputs = renumbered(entry.operations, entry.outputs, order, len(arguments))
    return MlirModule(
        name=name,
        arguments=arguments,
        argument_types=tuple(entry.argument_types),
        operations=tuple(operations),
        outputs=tuple(outputs),
        signatures=np.array([entry.signatures[i] for i in order], dtype=np.int64),
        meta=meta,
        mlir=mlir,
        handles=tuple(entry.handles[i] for i in order),
    )
