"""Loops over layers become their iterations, so that a model written with `jax.lax.scan` can be cut between them.

`lax.scan` over stacked parameters is one `while` in the forward pass and one in the backward pass. A round of the first
reads the parameters at its counter and stacks what the backward pass needs; a round of the second reads both at the
mirrored counter and stacks gradients (`lax.fori_loop` over an index adds them to zeros at that place instead):

    while i < L:   w_i = W[i]   x = f(x, w_i)   R[i] = x          while i < L:   j = L-1-i   dx, dw = df(dx, W[j], R[j])
                                                                                 G[j] = dw

They become L copies of their bodies in the entry function, in which the counter is a number. A slice at that number of
an array that the rounds themselves stacked is what was stacked there; of another array it is a slice with constant
bounds, and one for all its readers. Slices are followed through reshapes, concatenations and other slices: with several
layers a round, stacks are joined with those of the layers that are left over, and cut again. A stack that something
else reads as a whole, such as the gradients G, is put together by one concatenation. The module computes what it
computed before.

A loop is over layers if it runs a constant number of rounds and reads, at its counter, an array made of parameters and
of no input, or one that an unrolled loop stacked. All others stay: a recurrent network's loop over time, a loop over
chunks of the batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from automap_models.core.instruction_graph import Argument
from automap_models.hlo.flat_module import name_of, nested_operations, opcode_of
from automap_models.hlo.hlo_text import order_mark, read_marks, with_label
from automap_models.hlo.locations import scopes
from automap_models.hlo.stablehlo_values import (
    LOOP,
    are_numbers,
    before_reshape,
    clamped,
    constant_integer,
    divided,
    drop_unused,
    folded,
    integers_of,
    is_argument,
    is_index,
    is_zero,
    loop_counter,
    number_constant,
    operand_of_slice,
    read_from_outside,
    replace_operands,
    reshaped_slice,
    shape_of,
    slices_twice,
)

_BODY = "/body"
_PARAMETER, _INPUT = 1, 2
_THROUGH = frozenset({"convert", "negate", "multiply", "add", "subtract", "divide"})
"""Elementwise: a slice of their result is what they make of slices."""
_LAYOUT = frozenset({"result_layout", "xla_shape"})
"""Attributes that tell how XLA lays out a result of one shape."""

_Key = tuple[tuple[str, ...], int]
"""A loop: the scopes that it stands in, and how many other forward loops stood there before it."""


@dataclass(frozen=True)
class _Stack:
    """An array into which rounds have written slices, all of one size along one dimension.

    Attributes:
        base: what it was before.
        dim, size: the dimension, and how much of it a slice takes.
        written: where a slice starts → the slice, with all of the array's dimensions, or the number that is all of it.
        loop: that writes it.
    """

    base: Any
    dim: int
    size: int
    written: Mapping[int, Any]
    loop: _Key


_Term = Any
"""What a value of the body is in one round: an `ir.Value`, an int or a `_Stack`."""


def unroll(block: Any, arguments: Sequence[Argument]) -> bool:
    """Unroll the loops over layers of a flat module's entry, in place; without any, nothing is changed.

    `lax.scan(…, unroll=True)` leaves no loop. But both passes take the same slices of the parameters: these become one.

    Args:
        block: of the entry function.
        arguments: what its arguments are.

    Returns:
        Whether anything was changed.
    """
    operations = [op.operation for op in block.operations]
    unrolled = slices_twice(operations)
    if not unrolled and not any(op.name == LOOP for op in operations):
        return False
    unroller = _Unroller(block, arguments, follows=unrolled)
    with ir.Location.unknown():
        for op in operations:
            unroller.visit(op)
        return unroller.finish()


class _Unroller:
    """The entry, operation by operation.

    Attributes:
        depends: value → whether parameters and inputs made it, _PARAMETER | _INPUT.
        stacks: results of unrolled loops → what rounds wrote into them.
        follows: whether slices are followed to what made their sources; they are from the first unrolled loop on.
    """

    def __init__(self, block: Any, arguments: Sequence[Argument], *, follows: bool) -> None:
        self.block, self.follows = block, follows
        kinds = {"parameter": _PARAMETER, "input": _INPUT, "state": 0}
        self.depends = {value: kinds[a.kind] for value, a in zip(block.arguments, arguments, strict=True)}
        self.stacks: dict[Any, _Stack] = {}
        self._unrolled: list[tuple[Any, list[_Term]]] = []
        self._same: list[tuple[Any, Any]] = []
        self._slices: dict[tuple[Any, tuple[int, ...], tuple[int, ...]], Any] = {}
        self._loops: Counter[tuple[str, ...]] = Counter()
        self._loop_of: dict[Any, _Key] = {}

    def visit(self, op: Any) -> list[_Term] | None:
        """Unroll a loop over layers and tell what its results are; of any other operation note what it depends on."""
        if op.name == LOOP:
            sources = [op.operands[i] for i in _sliced_arguments(op)]
            if any(map(self._is_layered, sources)) and _is_small(op):
                return self._unroll(op, sources)
        self.note(op)
        if opcode_of(op) == "slice" and set(integers_of(op, "strides")) == {1}:
            key = op.operands[0], integers_of(op, "start_indices"), shape_of(op.results[0])
            followed = self._followed(*key, op) if self.follows else None
            if followed is None or isinstance(followed, int):
                followed = self._slices.setdefault(key, op.results[0])
            if followed != op.results[0]:
                self._same.append((op.results[0], followed))
        return None

    def note(self, op: Any) -> None:
        """Note what an operation's results depend on."""
        depends = 0
        for value in read_from_outside(op):
            depends |= self.depends.get(value, 0)
        for result in op.results:
            self.depends[result] = depends

    def finish(self) -> bool:
        """Put together the stacks that are still read, and drop the loops and what only they read."""
        for loop, terms in self._unrolled:
            with ir.InsertionPoint(loop), loop.location:
                for result, term in zip(loop.results, terms, strict=True):
                    if any(True for _ in result.uses):
                        result.replace_all_uses_with(self.value(term, result.type))
        if not self.follows:
            return False
        for value, other in self._same:
            value.replace_all_uses_with(other)
        self._flatten()
        for loop, _ in reversed(self._unrolled):
            loop.erase()
        drop_unused(self.block)
        return True

    def _flatten(self) -> None:
        """Let a concatenation of concatenations along the first dimension be one of their rows."""
        for op in [op.operation for op in self.block.operations]:
            if opcode_of(op) != "concatenate" or ir.IntegerAttr(op.attributes["dimension"]).value:
                continue
            rows, *rest = shape_of(op.results[0])
            if rows > 4096 or len(op.operands) == rows:  # too many, or done
                continue
            nothing, size = (0,) * len(rest), (1, *rest)
            followed = (self._followed(op.results[0], (row, *nothing), size, op, new=False) for row in range(rows))
            pieces = [piece for piece in followed if isinstance(piece, ir.Value)]
            if len(pieces) == rows:
                with ir.InsertionPoint(op), op.location:
                    flat = stablehlo.ConcatenateOp(pieces, 0)
                self.note(flat.operation)
                op.results[0].replace_all_uses_with(flat.result)

    def _is_layered(self, value: Any) -> bool:
        return value in self.stacks or self.depends.get(value, 0) == _PARAMETER

    def _unroll(self, loop: Any, sources: Sequence[Any]) -> list[_Term]:
        counter, body = loop_counter(loop), loop.regions[1].blocks[0]
        assert counter is not None  # _is_small
        *operations, returned = [op.operation for op in body.operations]
        terms: list[_Term] = [self._beginning(value) for value in loop.operands]
        key = self._key(loop, sources)
        for number in range(counter.rounds):
            terms[counter.position] = counter.start + number * counter.step
            one_round = _Round(self, loop, dict(zip(body.arguments, terms, strict=True)), key, number)
            terms = one_round.run(operations, list(returned.operands))
        self._unrolled.append((loop, terms))
        self.follows = True
        for result, term in zip(loop.results, terms, strict=True):
            if isinstance(term, _Stack):
                self.stacks[result] = term
            elif not isinstance(term, int):
                result.replace_all_uses_with(term)
        return terms

    def _beginning(self, value: Any) -> _Term:
        """What an argument of a loop is before its first round."""
        if value in self.stacks:
            return self.stacks[value]
        number = constant_integer(value) if is_index(value.type) else None
        return value if number is None else number

    def _key(self, loop: Any, sources: Sequence[Any]) -> _Key:
        """A backward loop is its forward loop, whose stacks or whose arrays it reads."""
        loops = [stack.loop for value in sources if (stack := self.stacks.get(value))]
        loops += [self._loop_of[value] for value in sources if value in self._loop_of]
        if loops:
            return loops[0]
        where = scopes(read_marks(name_of(loop))[2])
        key = where, self._loops[where]
        self._loops[where] += 1
        self._loop_of |= dict.fromkeys(filter(self._is_layered, sources), key)
        return key

    def sliced(self, source: _Term, starts: tuple[int, ...], sizes: tuple[int, ...], loop: Any) -> Any | None:
        """A slice with constant bounds, made in front of the loop; None where rounds wrote into it in another way."""
        if isinstance(source, _Stack):
            return self._of_stack(source, starts, sizes, loop, new=True)
        key = source, starts, sizes
        if key not in self._slices:
            followed = self._followed(source, starts, sizes, loop)
            self._slices[key] = self._slice(source, starts, sizes, loop) if followed is None else followed
        return self._slices[key]

    def _of_stack(
        self, stack: _Stack, starts: tuple[int, ...], sizes: tuple[int, ...], loop: Any, *, new: bool
    ) -> _Term | None:
        """A slice of a stack that lies in one of the slices that were written into it, or in none."""
        dim, first = stack.dim, starts[stack.dim] // stack.size * stack.size
        if starts[dim] + sizes[dim] > first + stack.size:
            return None
        inside = (*starts[:dim], starts[dim] - first, *starts[dim + 1 :])
        written = stack.written.get(first)
        if written is None:
            return self._from_operand(stack.base, starts, sizes, loop, new=new)
        if isinstance(written, int):
            return written
        if shape_of(written) == sizes:
            return written
        return self._from_operand(written, inside, sizes, loop, new=new)

    def _followed(
        self, source: Any, starts: tuple[int, ...], sizes: tuple[int, ...], loop: Any, *, new: bool = True
    ) -> _Term | None:
        """What a slice is, by the operations that made its source; None where it is a slice of that source only.

        Args:
            source, starts, sizes: the slice.
            loop: in front of which a reshape may be put, or a slice of what the source is made from.
            new: whether there may be a slice that there was not.
        """
        if shape_of(source) == sizes:
            return source
        if source in self.stacks:
            return self._of_stack(self.stacks[source], starts, sizes, loop, new=new)
        if is_argument(source):
            return None
        maker = source.owner.operation
        opcode = opcode_of(maker)
        if opcode == "slice" and set(integers_of(maker, "strides")) == {1}:
            starts = tuple(map(sum, zip(starts, integers_of(maker, "start_indices"), strict=True)))
            return self._from_operand(maker.operands[0], starts, sizes, loop, new=new)
        if opcode == "concatenate":
            piece = operand_of_slice(maker, starts, sizes)
            return None if piece is None else self._from_operand(*piece, sizes, loop, new=new)
        is_view = opcode in {"reshape", "broadcast_in_dim"}
        return self._through_view(source, maker.operands[0], starts, sizes, loop, new=new) if is_view else None

    def _through_view(
        self, view: Any, source: Any, starts: tuple[int, ...], sizes: tuple[int, ...], loop: Any, *, new: bool
    ) -> _Term | None:
        """A slice of the same elements in another shape, as a slice of their source in the view's shape."""
        alike = math.prod(shape_of(view)) == math.prod(shape_of(source))
        box = reshaped_slice(starts, sizes, shape_of(view), shape_of(source)) if alike else None
        piece = None if box is None else self._from_operand(source, *box, loop, new=new)
        if piece is None or isinstance(piece, int):
            return piece
        kind = ir.RankedTensorType.get(list(sizes), view.type.element_type)
        before = piece if piece.type == kind else before_reshape(piece, kind)
        if before is not None:
            return before
        with ir.InsertionPoint(loop), ir.Location.unknown():
            op = stablehlo.ReshapeOp(kind, piece).operation
        self.note(op)
        return op.results[0]

    def _from_operand(
        self, value: Any, starts: tuple[int, ...], sizes: tuple[int, ...], loop: Any, *, new: bool
    ) -> _Term | None:
        followed = self._followed(value, starts, sizes, loop, new=new)
        return self.sliced(value, starts, sizes, loop) if followed is None and new else followed

    def _slice(self, source: Any, starts: tuple[int, ...], sizes: tuple[int, ...], loop: Any) -> Any:
        """A new slice; where the source is an elementwise function of parameters, that function of their slices."""
        maker = None if is_argument(source) else source.owner.operation
        kind = ir.RankedTensorType.get(list(sizes), source.type.element_type)
        parts: list[Any] | None = None
        if maker is not None and not self.depends.get(source, 0) & _INPUT:
            if opcode_of(maker) in _THROUGH:
                parts = [self.sliced(value, starts, sizes, loop) for value in maker.operands]
            elif opcode_of(maker) == "broadcast_in_dim" and not shape_of(maker.operands[0]):
                parts = list(maker.operands)
        with ir.InsertionPoint(loop):
            if maker is not None and parts is not None:
                attributes = {name: maker.attributes[name] for name in maker.attributes if name not in _LAYOUT}
                op = ir.Operation.create(maker.name, results=[kind], operands=parts, attributes=attributes)
            else:
                limits = [start + size for start, size in zip(starts, sizes, strict=True)]
                op = stablehlo.SliceOp(source, list(starts), limits, [1] * len(starts)).operation
        self.note(op)
        return op.results[0]

    def value(self, term: _Term, kind: Any) -> Any:
        """A term as a value of that type, made at the current insertion point where it is none yet."""
        if isinstance(term, int):
            return number_constant(term, kind)
        if not isinstance(term, _Stack):
            return term
        shape = shape_of(term.base)
        sizes = [*shape[: term.dim], term.size, *shape[term.dim + 1 :]]
        one = ir.RankedTensorType.get(sizes, term.base.type.element_type)
        slices = sorted(term.written.items())
        written = {start: number_constant(part, one) if isinstance(part, int) else part for start, part in slices}
        parts = list(written.values())
        if len(parts) * term.size == shape[term.dim]:
            joined = stablehlo.ConcatenateOp(parts, term.dim)
            self.note(joined.operation)
            return joined.result
        value, index = term.base, ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        for start, part in written.items():
            starts = [number_constant(start if dim == term.dim else 0, index) for dim in range(len(shape))]
            updated = stablehlo.DynamicUpdateSliceOp(value, part, starts)
            self.note(updated.operation)
            value = updated.result
        return value


class _Round:
    """One round of a loop, copied in front of it.

    Attributes:
        terms: what each value of the body is in this round.
    """

    def __init__(self, unroller: _Unroller, loop: Any, terms: dict[Any, _Term], key: _Key, number: int) -> None:
        self._unroller, self._loop, self.terms, self._key, self._number = unroller, loop, terms, key, number
        _, order, path = read_marks(name_of(loop))
        self._prefix = path + _BODY
        self._marks = "".join(map(order_mark, (*order, number))) if order else ""

    def run(self, operations: Sequence[Any], returned: Sequence[Any]) -> list[_Term]:
        """Copy the operations of the body; what each value is that it returns."""
        index = self._index(operations)
        ordinal = self._key[1]
        label = f"scan{ordinal + 1 if ordinal else ''}_{self._number if index is None else index}"
        for op in operations:
            if not self._is_known(op):
                self._copy(op, label)
        return [self.terms.get(value, value) for value in returned]

    def _index(self, operations: Sequence[Any]) -> int | None:
        """Which slice of the stacked arrays this round reads."""
        numbers = dict(self.terms)
        for op in operations:
            terms = [numbers.get(value, value) for value in op.operands]
            if opcode_of(op) == "dynamic_slice" and _is_counted(op):
                sizes, shape = integers_of(op, "slice_sizes"), shape_of(op.operands[0])
                if not are_numbers(terms[1:]):
                    continue
                starts = clamped(terms[1:], sizes, shape)
                return next((starts[dim] // sizes[dim] for dim in divided(sizes, shape)), None)
            number = folded(op, terms)
            if number is not None:
                numbers[op.results[0]] = number
        return None

    def _is_known(self, op: Any) -> bool:
        """Whether a result needs no operation: it is a number, a slice that is known, or a stack with one more."""
        opcode = opcode_of(op)
        terms = [self.terms.get(value, value) for value in op.operands]
        if opcode == "dynamic_slice" and are_numbers(terms[1:]):
            sizes = integers_of(op, "slice_sizes")
            starts = clamped(terms[1:], sizes, shape_of(op.operands[0]))
            term: _Term | None = self._unroller.sliced(terms[0], starts, sizes, self._loop)
        elif opcode == "slice" and set(integers_of(op, "strides")) == {1}:
            starts, sizes = integers_of(op, "start_indices"), shape_of(op.results[0])
            term = self._unroller.sliced(terms[0], starts, sizes, self._loop)
        elif opcode == "dynamic_update_slice" and are_numbers(terms[2:]):
            term = self._stacked(op, terms)
        elif opcode == "reshape" and isinstance(terms[0], ir.Value):
            term = before_reshape(terms[0], op.results[0].type)
        elif opcode == "add" and any(isinstance(term, _Stack) for term in terms):
            term = _added(*terms)
        else:
            term = folded(op, terms)
        if term is not None:
            self.terms[op.results[0]] = term
        return term is not None

    def _stacked(self, op: Any, terms: Sequence[_Term]) -> _Term | None:
        """A stack with one slice more, or the slice that is all of it; None where that does not fit to the others."""
        shape, part = shape_of(op.operands[0]), shape_of(op.operands[1])
        cut = divided(part, shape)
        if not cut and not isinstance(terms[1], _Stack):
            return terms[1]
        if len(cut) != 1 or isinstance(terms[0], int) or isinstance(terms[1], _Stack):
            return None
        dim, size = cut[0], part[cut[0]]
        start = clamped(terms[2:], part, shape)[dim]
        before = terms[0] if isinstance(terms[0], _Stack) else _Stack(terms[0], dim, size, {}, self._key)
        if start % size or (before.dim, before.size) != (dim, size):
            return None
        return _Stack(before.base, dim, size, {**before.written, start: terms[1]}, self._key)

    def _copy(self, op: Any, label: str) -> None:
        with ir.InsertionPoint(self._loop), op.location:
            read = [value for value in read_from_outside(op) if value in self.terms]
            values = {value: self._unroller.value(self.terms[value], value.type) for value in read}
            copy = op.clone()
        replace_operands(copy, values)
        self._relocate(copy, label)
        results = self._unroller.visit(copy) or list(copy.results)
        self.terms |= dict(zip(op.results, results, strict=True))

    def _relocate(self, copy: Any, label: str) -> None:
        """Say in the locations of an operation and of what is in it which round it is of."""
        for op in nested_operations(copy):
            op.location = ir.Location.name(with_label(name_of(op), self._prefix, label))
        copy.location = ir.Location.name(self._marks + with_label(name_of(copy), self._prefix, label))


def _added(first: _Term, second: _Term) -> _Stack | None:
    """The sum of stacks that were zeros, or of one and zeros, where no two wrote in one place; None for other sums."""
    for stack, other in ((first, second), (second, first)):
        if not isinstance(stack, _Stack) or isinstance(other, int) or not is_zero(stack.base):
            continue
        if isinstance(other, _Stack):
            alike = (stack.dim, stack.size) == (other.dim, other.size)
            if alike and is_zero(other.base) and not stack.written.keys() & other.written.keys():
                return replace(stack, written={**stack.written, **other.written})
        elif is_zero(other):
            return stack
    return None


def _is_small(loop: Any) -> bool:
    """Whether a loop has a known number of rounds, and in all of them not more operations than may be unrolled."""
    counter = loop_counter(loop)
    return counter is not None and counter.rounds * sum(1 for _ in nested_operations(loop)) <= 200_000


def _sliced_arguments(loop: Any) -> list[int]:
    """The positions of the arrays that a loop only reads, and of which a round takes slices at no constant place."""
    body = loop.regions[1].blocks[0]
    *operations, returned = [op.operation for op in body.operations]
    constant = {i for i, value in enumerate(returned.operands) if value == body.arguments[i]}
    read = {op.operands[0] for op in operations if opcode_of(op) == "dynamic_slice" and _is_counted(op)}
    return [i for i in sorted(constant) if body.arguments[i] in read]


def _is_counted(op: Any) -> bool:
    """Whether a dynamic slice is taken at a place that is no constant of the body, though it may be a number by now."""
    return any(constant_integer(index) is None for index in list(op.operands)[1:])
