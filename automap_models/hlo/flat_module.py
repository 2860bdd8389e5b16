"""From a traced step or a file's content to a flat StableHLO module: one function without calls.

    traced step ──┐
    StableHLO ────┼─ order marks ─→ HLO text ── name marks ─→ XLA ─→ StableHLO with calls ── inlining ─→ flat module
    HLO text ─────────────────────────┘

Everything goes through HLO text, so that higher-level dialects (chlo) are expanded; marks keep names, locations and
the order of the trace on the way (hlo_text.py).

This module needs jaxlib alone, not jax, so that a process that imports foreign files starts fast (foreign.py). Of
jaxlib it uses what is no public API; pyproject.toml pins the range of releases for which that is known to work.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from automap_models.errors import BadInput
from automap_models.hlo.hlo_text import Form, mark_names, order_mark

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as jax does: jaxlib reads it when it is imported
try:
    from jaxlib import _hlo, _jax  # type: ignore[attr-defined]  # _hlo has no stub
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, func, mhlo, sdy, stablehlo
except ImportError as error:
    raise BadInput(
        f"reading JAX models and HLO needs the jax extra ({error})", do="pip install 'automap-models[jax]'"
    ) from None


def hlo_text(mlir: Any) -> str:
    """The HLO text of a StableHLO module, with the position of each operation in its function as a mark, set in place.

    Raises:
        RuntimeError: XLA refuses the module.
    """
    with mlir.context:
        for function in _functions(mlir).values():
            _mark_order(function.regions[0].blocks[0])
    text: str = hlo_module(bytecode(mlir)).to_string(_hlo.HloPrintOptions())
    return text


def _mark_order(block: Any) -> None:
    """Mark the operations of a block, and those of the loops in it, with their positions."""
    for position, op in enumerate(op.operation for op in block.operations):
        if op.name == "stablehlo.while":
            _mark_order(op.regions[1].blocks[0])
        op.location = ir.Location.name(order_mark(position) + name_of(op))


def flat_module(text: str) -> Any:
    """The flat StableHLO module of HLO text.

    Raises:
        ir.MLIRError, RuntimeError, ValueError: XLA cannot read the text, or calls nothing can inline.
    """
    proto = _hlo.hlo_module_from_text(mark_names(text)).as_serialized_hlo_module_proto()
    mlir = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(proto), context())
    with mlir.context:
        _flatten(mlir)
    return mlir


def flat_module_of_file(content: bytes, form: Form) -> Any:
    """The flat StableHLO module of a file's content, see `flat_module`. Malformed content can end the process."""
    if form == "hlo":
        return flat_module(content.decode("utf-8"))
    return flat_module(hlo_text(_parsed(content, form)))


def bytecode(mlir: Any) -> bytes:
    """A module as MLIR bytecode."""
    written = io.BytesIO()
    mlir.operation.write_bytecode(written)
    return written.getvalue()


def from_bytecode(content: bytes) -> Any:
    """The module in bytecode that `bytecode` wrote."""
    return ir.Module.parse(content, context())


def hlo_module(content: bytes) -> Any:
    """XLA's module of a StableHLO module in bytecode."""
    computation = _jax.mlir.mlir_module_to_xla_computation(content, use_tuple_args=False, return_tuple=False)
    return computation.get_hlo_module()


def hlo_modules(contents: Sequence[bytes]) -> list[Any]:
    """XLA's modules of StableHLO modules of one function each, in bytecode.

    XLA converts one module in milliseconds whatever is in it. So all functions are converted in one module, which calls
    each of them; its text is then taken apart.

        op_0 ─┐                            ┌─ ENTRY op_0 and what it applies (the sum in a reduction, a loop's body)
        op_1 ─┼─ main ── XLA ── HLO text ──┼─ ENTRY op_1 …
        …    ─┘                            └─ …
    """
    options = _hlo.HloPrintOptions()
    options.print_metadata = False
    text = hlo_module(bytecode(_calling(contents))).to_string(options)
    computations = {match[1]: match[0] for match in _COMPUTATION.finditer(text)}
    entries = {int(match[1]): name for name in computations if (match := _ENTRY.fullmatch(name))}
    return [_hlo.hlo_module_from_text(_text_of(entries[i], computations)) for i in range(len(contents))]


_COMPUTATION = re.compile(r"^(?:ENTRY )?%([\w.-]+) [^\n]*\{\n.*?^\}", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"op_(\d+)\.\d+")


def _calling(contents: Sequence[bytes]) -> Any:
    """A module with the functions of several as op_0, op_1, …, and an entry that calls each."""
    with context(), ir.Location.unknown():
        flat, kinds = ir.Module.create(), list[Any]()
        for i, content in enumerate(contents):
            module = ir.Module.parse(content)  # which lives as long as it is named
            (function,) = module.body.operations
            copy = function.operation.clone(ir.InsertionPoint(flat.body))
            copy.attributes["sym_name"] = ir.StringAttr.get(f"op_{i}")
            copy.attributes["sym_visibility"] = ir.StringAttr.get("private")
            kinds.append(ir.TypeAttr(copy.attributes["function_type"]).value)
        with ir.InsertionPoint(flat.body):
            entry: Any = func.FuncOp("main", ([read for kind in kinds for read in kind.inputs], []))
        with ir.InsertionPoint(entry.add_entry_block()):
            arguments = iter(entry.arguments)
            for i, kind in enumerate(kinds):
                read = [next(arguments) for _ in kind.inputs]
                func.CallOp(list(kind.results), ir.FlatSymbolRefAttr.get(f"op_{i}"), read)
            func.ReturnOp([])
        return flat


def _text_of(entry: str, computations: Mapping[str, str]) -> str:
    """HLO text with one of the computations as its entry, behind those that it needs."""
    needed: dict[str, None] = {}

    def add(name: str) -> None:
        for other in re.findall(r"%([\w.-]+)", computations[name]):
            if other in computations and other != name and other not in needed:
                add(other)
        needed[name] = None

    add(entry)
    *others, last = (computations[name] for name in needed)
    return "\n\n".join([f"HloModule {entry}", *others, f"ENTRY {last}\n"])


def entry_block(mlir: Any) -> Any:
    """The block of a flat module's function."""
    return _functions(mlir)["main"].regions[0].blocks[0]


def context() -> Any:
    """A fresh context that knows every dialect in which a training step may come."""
    fresh = ir.Context()
    fresh.append_dialect_registry(_registry())
    fresh.load_all_available_dialects()
    stablehlo.register_dialect(fresh)
    chlo.register_dialect(fresh)
    sdy.register_dialect(fresh)
    mhlo.register_mhlo_dialect(fresh)
    return fresh


@cache
def _registry() -> Any:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    return registry


def _parsed(content: bytes, form: Form) -> Any:
    """A StableHLO module of either form; a portable artifact (VHLO bytecode) is converted first."""
    if form == "stablehlo":
        return ir.Module.parse(content.decode("utf-8"), context())
    try:
        return ir.Module.parse(_jax.mlir.deserialize_portable_artifact(content), context())
    except (ir.MLIRError, ValueError, RuntimeError):
        return ir.Module.parse(content, context())


def name_of(located: Any) -> str:
    """The scopes that the location of an operation or an argument names; "" where it is only a place in a file."""
    return str(getattr(located.location, "name_str", ""))


def opcode_of(op: Any) -> str:
    """The operation's name without its dialect."""
    return str(op.name).rpartition(".")[2]


def _functions(mlir: Any) -> dict[str, Any]:
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in (view.operation for view in mlir.body.operations)
        if op.name == "func.func"
    }


def _flatten(mlir: Any) -> None:
    """Replace every call, in nested regions too, by what it calls; only the entry is left."""
    functions = _functions(mlir)
    done: set[str] = set()

    def inline(name: str) -> Any:
        block = functions[name].regions[0].blocks[0]
        if name not in done:
            done.add(name)
            _inline_calls(block, inline)
        return block

    inline("main")
    _untuple_calls(functions["main"])
    _erase_hints(functions["main"])
    for name, function in functions.items():
        if name != "main":
            function.erase()


def _inline_calls(block: Any, callee_block: Callable[[str], Any]) -> None:
    for op in [op.operation for op in block.operations]:
        for region in op.regions:
            for nested in region.blocks:
                _inline_calls(nested, callee_block)
        if op.name == "func.call":
            callee = callee_block(ir.FlatSymbolRefAttr(op.attributes["callee"]).value).owner.operation
            # The location as context, not as argument: then JAX joins the caller's and the callee's scopes.
            with ir.InsertionPoint(op), op.location:
                results = inlined(callee, list(op.operands))
            for result, value in zip(op.results, results, strict=True):
                result.replace_all_uses_with(value)
            op.erase()


def inlined(function: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Copy the operations of a function to where operations are being inserted; returns its results there."""
    results: Sequence[Any] = _jax_mlir_ext.inlined_func_call(function, list(operands))
    return results


def _untuple_calls(entry: Any) -> None:
    """Give custom calls that HLO lets return a tuple one result for each element."""
    for op in [op for op in nested_operations(entry) if op.name == "stablehlo.custom_call" and len(op.results)]:
        if isinstance(op.results[0].type, ir.TupleType):
            _untuple(op)


def _untuple(op: Any) -> None:
    tuple_type = op.results[0].type
    attributes = {name: op.attributes[name] for name in op.attributes}
    flat = ir.Operation.create(
        op.name,
        results=[tuple_type.get_type(i) for i in range(tuple_type.num_types)],
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


def _erase_hints(entry: Any) -> None:
    """Erase the calls that only say how a value may lie on devices, as `jax.random.split` makes one for its key.

    They compute nothing, and no sharding rule or partitioner knows more of them than of the value itself.
    """
    for op in [op for op in nested_operations(entry) if op.name == "stablehlo.custom_call"]:
        if ir.StringAttr(op.attributes["call_target_name"]).value != "Sharding":
            continue
        if len(op.operands) == len(op.results) == 1 and op.operands[0].type == op.results[0].type:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def nested_operations(op: Any, ids: dict[Any, int] | None = None) -> Any:
    """The operations in the regions of an operation, at any depth; block arguments are numbered on the way."""
    for region in op.regions:
        for block in region.blocks:
            if ids is not None:
                for argument in block.arguments:
                    ids[argument] = len(ids)
            for inner in block.operations:
                yield inner.operation
                yield from nested_operations(inner.operation, ids)
