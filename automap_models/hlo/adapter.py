"""The one module that touches jaxlib's private parts: from a JAX function or a file to a flat StableHLO module.

Everything comes in by one door, HLO text: a traced function and StableHLO are converted to it, and XLA itself turns it
into StableHLO again. On the way higher-level dialects (chlo) are expanded, and names, locations and the order of the
trace are kept by marks (hlo_text.py). Calls are inlined here; what remains is one function without calls, whose
operations stand in execution order.

jaxlib.mlir, jaxlib._hlo and jaxlib._jax are no public API. pyproject.toml pins the range of jax that this was written
for; nothing outside this module imports them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import Argument
from automap_models.errors import BadInput
from automap_models.hlo.arguments import file_arguments, step_arguments
from automap_models.hlo.hlo_text import dynamic_shapes, mark_names, order_mark, recognise
from automap_models.hlo.loops import rounds
from automap_models.hlo.module import Module, OneOp
from automap_models.hlo.operation import Operation, Tensor
from automap_models.hlo.order import execution_order, renumbered
from automap_models.hlo.step import TrainingStep

try:
    import jax
    from jax.extend.backend import get_backend
    from jax.extend.mlir import deserialize_portable_artifact, hlo_to_stablehlo, ir
    from jax.extend.mlir.dialects import chlo, sdy, stablehlo
    from jaxlib import _hlo, _jax  # type: ignore[attr-defined]  # _hlo has no stub
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import mhlo

    from automap_models.hlo.mlir_walk import EntryReader, inner_loops, isolated, nested_operations
except ImportError as error:
    raise BadInput(
        f"reading JAX models and HLO needs the jax extra ({error})", do="pip install 'automap-models[jax]'"
    ) from None


__all__ = ["Module", "OneOp", "compiled", "cost_of", "one_op_modules", "read_module", "trace"]

_FORMS = {"hlo": "HLO text", "stablehlo": "StableHLO text", "bytecode": "StableHLO bytecode"}


def trace(step: TrainingStep) -> Module:
    """Trace a training step without allocating anything; whatever the function itself raises passes through.

    Raises:
        BadInput: XLA refuses the step, as it does one whose arrays have more elements than it can count.
    """
    lowered = jax.jit(step.function, keep_unused=True).lower(*step.arguments)
    mlir = _with_order(lowered.compiler_ir("stablehlo"))
    try:
        text = _hlo_text(mlir)
    except RuntimeError as error:
        reason = str(error).removeprefix("Bad StatusOr access: ").rstrip(".")
        do = "check the sizes, --batch and --sequence among them"
        raise BadInput(f"is refused by XLA ({reason})", where=step.name, do=do) from error
    meta: dict[str, object] = {"source": "jax", "microbatch_size": step.microbatch_size, "dtype": step.dtype}
    sizes = [len(jax.tree.leaves(argument)) for argument in step.arguments]
    return _module(
        step.name, text, meta, lambda names, _types, _ops, _outputs: step_arguments(step, sizes, names), step.name
    )


def read_module(path: str | os.PathLike[str], *, trainable: Sequence[str] = ()) -> Module:
    """The module in a file of HLO text from before optimisation, StableHLO text or StableHLO bytecode.

    Args:
        path: the file.
        trainable: patterns of the names of trainable parameters (`params/*`); without any they are recognised as
            arguments.py says.

    Raises:
        BadInput: the file is something else, was optimised already, has dynamic shapes or no trainable parameters.
    """
    source = str(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror or error})", where=source, do="check the path and its permissions"
        ) from None
    form = recognise(content, source)
    try:
        text = content.decode("utf-8") if form == "hlo" else _hlo_text(_with_order(_parse(content, form)))
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise _unreadable(error, _FORMS[form], source) from None
    meta: dict[str, object] = {"source": _FORMS[form]}
    name = Path(path).stem.removesuffix(".before_optimizations")
    return _module(
        name,
        text,
        meta,
        lambda names, types, operations, outputs: file_arguments(
            names, types, operations, outputs, trainable, source=source
        ),
        source,
    )


def one_op_modules(module: Module) -> tuple[OneOp, ...]:
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
        opcode=op.name.rpartition(".")[2],
        instructions=instructions,
        operands=operands,
        results=results,
        bytecode=_bytecode(mlir),
        rounds=rounds(op),
        inner_loops=tuple(_one_op(inner, instructions) for inner in inner_loops(op)),
    )


def cost_of(one_op: OneOp) -> tuple[float, float]:
    """FLOP and bytes accessed of an operation by XLA's own cost analysis, for all rounds of a loop.

    XLA counts one round of every loop; where the number of rounds is not known, so does this. It knows nothing of a
    custom call, whose cost is that it reads its operands and writes its results.
    """
    if one_op.opcode == "custom_call":
        return 0.0, sum(tensor.nbytes for tensor in (*one_op.operands, *one_op.results))
    flop, bytes_accessed = _one_round(one_op)
    for inner in one_op.inner_loops:
        once, all_rounds = _one_round(inner), cost_of(inner)
        flop += all_rounds[0] - once[0]
        bytes_accessed += all_rounds[1] - once[1]
    return max(1, one_op.rounds) * flop, max(1, one_op.rounds) * bytes_accessed


def _one_round(one_op: OneOp) -> tuple[float, float]:
    found = _jax.hlo_module_cost_analysis(get_backend("cpu"), _hlo_module(one_op.bytecode))
    return max(0.0, found.get("flops", 0.0)), max(0.0, found.get("bytes accessed", 0.0))


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


_Classify = Callable[[list[str], list[Tensor], list[Operation], list[int]], tuple[Argument, ...]]


def _module(name: str, text: str, meta: dict[str, object], classify: _Classify, source: str) -> Module:
    """Everything after the door: import, inline, read, order."""
    try:
        mlir = _from_hlo_text(text)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise _unreadable(error, "HLO text", source) from None
    with mlir.context:
        block = _flattened(mlir)
        entry = EntryReader(block, source)
        arguments = classify(entry.argument_names, entry.argument_types, entry.operations, entry.outputs)
        order = execution_order(entry.operations, arguments, entry.outputs)
        entry.move(order)
    operations, outputs = renumbered(entry.operations, entry.outputs, order, len(arguments))
    return Module(
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


def _unreadable(error: Exception, form: str, source: str) -> BadInput:
    """XLA's or MLIR's own words for what it did not understand, cut to the first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("error:")), lines[0] if lines else type(error).__name__)
    if "dynamic" in str(error):
        return dynamic_shapes(source)
    return BadInput(f"is no {form} that XLA can read ({said[:200]})", where=source, do="check that the file is whole")


# ---------------------------------------------------------------------------------------------------------------------
# MLIR in and out


@cache
def _registry() -> Any:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    return registry


def _context() -> Any:
    """A fresh context that knows every dialect in which a training step may come."""
    context = ir.Context()
    context.append_dialect_registry(_registry())
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    return context


def _parse(content: bytes, form: str) -> Any:
    """A StableHLO module of either form; a portable artifact (VHLO bytecode) is converted first."""
    if form == "stablehlo":
        return ir.Module.parse(content.decode("utf-8"), _context())
    try:
        return ir.Module.parse(deserialize_portable_artifact(content), _context())
    except (ir.MLIRError, ValueError, RuntimeError):
        return ir.Module.parse(content, _context())


def _with_order(mlir: Any) -> Any:
    """Put the position of each operation in its function into its location, in place."""
    with mlir.context:
        for function in _functions(mlir).values():
            for position, op in enumerate(function.regions[0].blocks[0].operations):
                op.operation.location = ir.Location.name(order_mark(position) + _scope(op.operation.location))
    return mlir


def _scope(location: Any) -> str:
    """The scopes that a location names; "" where it is only a place in a file."""
    return str(getattr(location, "name_str", ""))


def _hlo_text(mlir: Any) -> str:
    text: str = _hlo_module(_bytecode(mlir)).to_string(_hlo.HloPrintOptions())
    return text


def _bytecode(mlir: Any) -> bytes:
    written = io.BytesIO()
    mlir.operation.write_bytecode(written)
    return written.getvalue()


def _hlo_module(bytecode: bytes) -> Any:
    computation = _jax.mlir.mlir_module_to_xla_computation(bytecode, use_tuple_args=False, return_tuple=False)
    return computation.get_hlo_module()


def _from_hlo_text(text: str) -> Any:
    proto = _hlo.hlo_module_from_text(mark_names(text)).as_serialized_hlo_module_proto()
    return ir.Module.parse(hlo_to_stablehlo(proto), _context())


def _functions(mlir: Any) -> dict[str, Any]:
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in (view.operation for view in mlir.body.operations)
        if op.name == "func.func"
    }


def _flattened(mlir: Any) -> Any:
    """The entry's block after every call, in nested regions too, has been replaced by what it calls."""
    functions = _functions(mlir)
    done: set[str] = set()

    def inline(name: str) -> Any:
        block = functions[name].regions[0].blocks[0]
        if name not in done:
            done.add(name)
            _inline_calls(block, inline)
        return block

    block = inline("main")
    _untuple_calls(functions["main"])
    for name, function in functions.items():
        if name != "main":
            function.erase()
    return block


def _inline_calls(block: Any, callee_block: Callable[[str], Any]) -> None:
    for op in [op.operation for op in block.operations]:
        for region in op.regions:
            for nested in region.blocks:
                _inline_calls(nested, callee_block)
        if op.name == "func.call":
            callee = callee_block(ir.FlatSymbolRefAttr(op.attributes["callee"]).value).owner.operation
            # The location as context, not as argument: then JAX joins the caller's and the callee's scopes.
            with ir.InsertionPoint(op), op.location:
                made = _jax_mlir_ext.inlined_func_call(callee, list(op.operands))
            for result, value in zip(op.results, made, strict=True):
                result.replace_all_uses_with(value)
            op.erase()


def _untuple_calls(entry: Any) -> None:
    """Give custom calls that HLO lets return a tuple one result for each element."""
    for op in [op for op in nested_operations(entry) if op.name == "stablehlo.custom_call" and len(op.results)]:
        if isinstance(op.results[0].type, ir.TupleType):
            _untuple(op)


def _untuple(op: Any) -> None:
    kinds = op.results[0].type
    attributes = {name: op.attributes[name] for name in op.attributes}
    flat = ir.Operation.create(
        op.name,
        results=[kinds.get_type(i) for i in range(kinds.num_types)],
        operands=list(op.operands),
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for reader in [use.owner.operation for use in op.results[0].uses]:
        if reader.name == "stablehlo.get_tuple_element":
            index = ir.IntegerAttr(reader.attributes["index"]).value
            reader.results[0].replace_all_uses_with(flat.results[index])
            reader.erase()
    op.erase()
