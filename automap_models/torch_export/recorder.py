"""Every ATen operator of a training step, as it runs on the meta device, with what it reads, makes and ties together.

A value is what a tensor shows of its memory: autograd hands out other tensors that show the same. An operator that
overwrites a tensor makes a new value of it; what other tensors show of that memory is then unknown until it is made
anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from automap_models.core.instruction_graph import Phase
from automap_models.hlo import module
from automap_models.hlo.sharding_rules import Rule
from automap_models.torch_export.decompositions import DECOMPOSED
from automap_models.torch_export.factors import (
    REGROUPED,
    Call,
    Described,
    Mapped,
    Parts,
    Roles,
    mapped,
    of_constants,
    opaque,
    plain,
    regrouped,
)
from automap_models.torch_export.operators import (
    CONSTANT,
    FACTORIES,
    RANDOM,
    RESHAPE,
    describe,
    knows,
)
from automap_models.torch_export.trace import OperatorRecorder, storage_id

_NUMBERED_TYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.bool: "i1",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "ui8",
    torch.complex64: "complex<f32>", torch.complex128: "complex<f64>",
}  # fmt: skip
_View = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""A memory, where in it a tensor begins, its sizes, its strides, its type."""


class Value(NamedTuple):
    """A value of the step.

    Attributes:
        number: in order of making, the step's arguments first.
        tensor: its type.
        parts: of its dimensions, see factors.py.
        constant: whether it depends on no argument.
        zeros: whether it is known to hold zeros.
        counting: whether it is known to hold 0, 1, 2, ….
    """

    number: int
    tensor: module.Tensor
    parts: Parts
    constant: bool = False
    zeros: bool = False
    counting: bool = False


class Recorded(NamedTuple):
    """An instruction.

    Attributes:
        name: ATen's name of the operator that it is part of.
        word: see `factors.Described`.
        operands: the values whose dimensions it ties; None is a number.
        read: those that it reads. Random numbers have the shape of their operand, and read the generator's seed.
        results: those that it makes.
        rule: its factor mapping, over operands and results.
        flop, moved_bytes: its work.
        call: index of the operator of the forward graph that it belongs to.
        phase: of the step.
    """

    name: str
    word: str
    operands: tuple[Value | None, ...]
    read: tuple[Value, ...]
    results: tuple[Value, ...]
    rule: Rule
    flop: float
    moved_bytes: float
    call: int
    phase: Phase


class StepRecorder(OperatorRecorder):  # type: ignore[no-untyped-call]
    """Records what runs under it.

    Attributes:
        arguments: the step's, in the order of their numbers.
        instructions: what ran, in order.
        unknown: operators without a rule → number of calls.
        written: values that operators made in place of others.
        phase: of what runs now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arguments: list[Value] = []
        self.instructions: list[Recorded] = []
        self.unknown: Counter[str] = Counter()
        self.written: list[Value] = []
        self.phase = Phase.FORWARD
        self._count = 0
        self._seed: tuple[Value, ...] = ()
        self._values: dict[_View, Value] = {}
        self._of_memory: dict[int, list[_View]] = {}
        self._written_since: dict[_View, list[tuple[_View, Value]]] = {}

    def argument(self, tensor: Tensor, *, is_seed: bool = False) -> Value:
        """Declare an argument of the step; one that random numbers are made from is the seed."""
        value = self._new(tensor, plain(tensor.shape))
        self.arguments.append(value)
        if is_seed:
            self._seed = (value,)
        return value

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Record a later phase."""
        before, self.phase = self.phase, phase
        try:
            with self:
                yield
        finally:
            self.phase = before

    def value_of(self, tensor: Tensor) -> Value:
        """The value that a tensor shows."""
        view = _view_of(tensor)
        for written, new in self._written_since.pop(view, ()):
            self._update(tensor, written, new)
        value = self._values.get(view)
        return value if value is not None else self._new_view(tensor)

    def _update(self, tensor: Tensor, written: _View, value: Value) -> None:
        """Record that a part of what a tensor shows was overwritten through another one of the same memory.

        Dimensions with the same stride and size are one; others stay whole.
        """
        before = self._values[_view_of(tensor)]
        strides = list(zip(tensor.stride(), tensor.shape, strict=True))
        labels = tuple(range(tensor.dim()))
        placed: list[Any] = []
        for dim, (size, stride) in enumerate(zip(written[2], written[3], strict=True)):
            same = [label for label in labels if strides[label] == (stride, size) and size > 1]
            placed.append(same[0] if len(same) == 1 and same[0] not in placed else ("part", dim))
        fixed = frozenset({*labels, *placed} - {label for label in placed if label in labels})
        mapping = mapped(
            [(before.parts, labels), (value.parts, tuple(placed))], [(tensor.shape, labels)], Roles(fixed=fixed)
        )
        one = Described("dynamic_update_slice", (), ())
        self._add("copy", one, [before, value], [tensor], mapping)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator on its shapes and record it, or what it comes to."""
        kwargs = kwargs or {}
        if func.namespace == "prim":  # asks for a device or the like
            return func(*args, **kwargs)
        name = _name(func)
        comes_to = None
        if not knows(name, func) and name not in FACTORIES:
            comes_to = DECOMPOSED.get(func) or (func.decompose if _is_composite(func) else None)
        if comes_to is not None:
            with self:
                return comes_to(*args, **kwargs)
        out = func(*args, **kwargs)
        self._record(name, func, _bound(func, args, kwargs), out)
        return out

    def _record(self, name: str, func: Any, arguments: dict[str, Any], out: Any) -> None:
        results = tuple(leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor))
        written = [arguments[a.name] for a in func._schema.arguments if a.is_write]
        call = Call(arguments, results)
        operands = call.tensors()
        if not results:  # an assertion
            return
        self.alive += [tensor.untyped_storage() for tensor in (*operands, *results)]
        if name in FACTORIES:
            self._factory(name, call, written)
            return
        read = {storage_id(tensor) for tensor in operands}
        if not written and all(_view_of(result) in self._values and storage_id(result) in read for result in results):
            return  # views that were shown before
        if name == "copy":
            call = Call({"src": arguments["src"]}, results)
        if isinstance(arguments.get("indices"), (list, tuple)):
            indices = [index for index in arguments["indices"] if index is not None]
            arguments["counting"] = [self.value_of(index).counting for index in indices]
            arguments["onto_zeros"] = self.value_of(arguments["self"]).zeros
        if not self._describe(name, func, call):
            self._opaque(name, operands, results)
        overwritten = [tensor for tensor in pytree.tree_leaves(written) if isinstance(tensor, Tensor)]
        for tensor, result in zip(overwritten, results, strict=False):
            self._values[_view_of(tensor)] = self.value_of(result)  # on the meta device, copy_ returns another tensor
            self._overwrite(tensor)

    def _describe(self, name: str, func: Any, call: Call) -> bool:
        """Record an operator as what it is described to be, if it is and all of its results are."""
        try:
            described = describe(name, func, call) if _has_numbers(call) else None
            for one in described or ():
                self._described(name, one)
        except (IndexError, KeyError, ValueError):  # called in a way that its description does not foresee
            return False
        described_ids = {id(result) for one in described or () for result, _ in one.results}
        return bool(described) and all(id(result) in described_ids or result.dim() == 0 for result in call.results)

    def _described(self, name: str, one: Described) -> None:
        """Record an instruction that is described."""
        operands = [None if tensor is None else self.value_of(tensor) for tensor, _ in one.operands]
        result, labels = one.results[0]
        if labels == REGROUPED:
            assert operands[0] is not None and result is not None
            mapping = regrouped(operands[0].parts, result.shape)
        else:
            labelled = [
                (() if value is None else value.parts, labels)
                for value, (_, labels) in zip(operands, one.operands, strict=True)
            ]
            results = [(result.shape, labels) for result, labels in one.results if result is not None]
            mapping = mapped(labelled, results, one.roles)
        tensors = [result for result, _ in one.results if result is not None]
        self._add(name, one, operands, tensors, mapping)

    def _opaque(self, name: str, operands: list[Tensor], results: tuple[Tensor, ...]) -> None:
        """Record an operator of which nothing is known."""
        self.unknown[name] += 1
        values = [self.value_of(tensor) for tensor in operands]
        mapping = opaque([value.parts for value in values], [result.shape for result in results])
        self._add(name, Described(name, (), ()), list(values), list(results), mapping)

    def _add(
        self, name: str, one: Described, operands: list[Value | None], tensors: list[Tensor], mapping: Mapped
    ) -> None:
        constant = all(value is None or value.constant for value in operands)
        counting = one.word in (RESHAPE, "convert") and operands[0] is not None and operands[0].counting
        results = tuple(
            self._new(tensor, parts, constant=constant, counting=counting)
            for tensor, parts in zip(tensors, mapping.results, strict=True)
        )
        moved = one.moved_bytes
        if moved is None:
            moved = sum(value.tensor.nbytes for value in (*operands, *results) if value is not None)
        rule = of_constants(mapping.rule) if constant else mapping.rule
        read = tuple(value for value in operands if value is not None) if one.word != RANDOM else self._seed
        self.instructions.append(
            Recorded(name, one.word, tuple(operands), read, results, rule, one.flop, moved, self.call, self.phase)
        )

    def _factory(self, name: str, call: Call, written: list[Any]) -> None:
        """Record a constant; memory that is not filled yet is one, too."""
        counting = name == "arange" and not call.arguments.get("start") and call.arguments.get("step", 1) == 1
        for result in call.results:
            self._constant(name, result, counting=counting)
        for tensor in pytree.tree_leaves(written):
            self._overwrite(tensor)

    def _constant(self, name: str, tensor: Tensor, *, counting: bool = False) -> Value:
        zeros = name in ("zeros", "zeros_like", "new_zeros", "zero")
        value = self._new(tensor, plain(tensor.shape), constant=True, zeros=zeros, counting=counting)
        rule = mapped([], [(tensor.shape, tuple(range(tensor.dim())))], Roles()).rule
        word = "iota" if name == "arange" else CONSTANT
        self.instructions.append(Recorded(name, word, (), (), (value,), rule, 0.0, 0.0, self.call, self.phase))
        return value

    def _new(self, tensor: Tensor, parts: Parts, **facts: bool) -> Value:
        """The value of a tensor that was made; facts are the further fields of `Value`."""
        kind = module.Tensor(tuple(int(size) for size in tensor.shape), _NUMBERED_TYPES.get(tensor.dtype, "ui8"))
        value = Value(self._count, kind, parts, **facts)
        self._count += 1
        self.alive.append(tensor.untyped_storage())
        self._values[_view_of(tensor)] = value
        self._written_since.pop(_view_of(tensor), None)
        self._of_memory.setdefault(storage_id(tensor), []).append(_view_of(tensor))
        return value

    def _overwrite(self, tensor: Tensor) -> None:
        """Note that what other tensors show of a memory has been overwritten by one."""
        view = _view_of(tensor)
        self.written.append(self._values[view])
        self._written_since.pop(view, None)
        for other in self._of_memory.get(storage_id(tensor), []):
            if other != view:
                self._written_since.setdefault(other, []).append((view, self._values[view]))

    def _new_view(self, tensor: Tensor) -> Value:
        """The value of a tensor that no operator made: part of a memory that holds another value, or a constant."""
        of_memory = self._of_memory.get(storage_id(tensor))
        if not of_memory:
            return self._constant(CONSTANT, tensor)
        base = self._values[of_memory[-1]]
        self.unknown["a view that no operator made"] += 1
        mapping = opaque([base.parts], [tensor.shape])
        self._add("alias", Described("alias", (), ()), [base], [tensor], mapping)
        return self._values[_view_of(tensor)]


def _view_of(tensor: Tensor) -> _View:
    return (
        storage_id(tensor),
        int(tensor.storage_offset()),
        tuple(map(int, tensor.shape)),
        tuple(map(int, tensor.stride())),
        tensor.dtype,
    )


def _name(func: Any) -> str:
    """ATen's name of an operator, without overload; that of the functional one for one that works in place."""
    name = str(func._overloadpacket.__name__)
    if func.namespace == "prims" and name in ("transpose", "broadcast_in_dim"):  # as ATen's, with other arguments
        return f"prims.{name}"
    return name.removesuffix("_") if func._schema.is_mutable and not name.endswith("__") else name


def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _bound(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, with their defaults."""
    schema = func._schema.arguments
    names = [argument.name for argument in schema]
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    bound = defaults | dict(kwargs) | dict(zip(names, args, strict=False))
    return {name: bound[name] for name in names if name in bound}


def _has_numbers(call: Call) -> bool:
    """Whether no tensor is empty; of empty ones there is nothing to divide."""
    return all(tensor.numel() for tensor in (*call.tensors(), *call.results[:1]))
