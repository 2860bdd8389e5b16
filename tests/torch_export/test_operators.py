"""The factor mappings of ATen operators, held against the operators themselves, run on slices of their arguments.

For every class of dimensions that a mapping leaves to be sharded, the arguments are cut in two along it and the
operator runs on each half. Results with a dimension of the class must be the halves of the whole result. Results
without one must be equal on both devices, or, where the class is summed over, their sum (or maximum) the whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from automap_models.core.instruction_graph import Argument
from automap_models.hlo.dimension_classes import ModuleSharding, sharding_classes
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.hlo.sharding_rules import Role, RuledModule
from automap_models.torch_export.factors import flat
from automap_models.torch_export.recorder import StepRecorder
from automap_models.torch_export.step import module_rules, operation_of

aten = torch.ops.aten
Function = Callable[..., Any]


class Ran(NamedTuple):
    """A function that ran under the recorder."""

    recorder: StepRecorder
    sharding: ModuleSharding
    outputs: list[Tensor]

    @classmethod
    def from_function(cls, function: Function, inputs: Sequence[Tensor]) -> Ran:
        """Record a function of these inputs, all of them parameters."""
        recorder = StepRecorder()
        for tensor in inputs:
            recorder.argument(tensor)
        with recorder:
            outputs = tensors_of(function(*inputs))
        recorded = recorder.instructions
        module = RuledModule(
            name="test",
            arguments=tuple(Argument(f"x{i}", "parameter") for i in range(len(inputs))),
            argument_types=tuple(value.tensor for value in recorder.arguments),
            operations=tuple(operation_of(i, one, "", "test") for i, one in enumerate(recorded)),
            outputs=(),
            meta={},
            derived_rules=lambda: module_rules(recorded, recorder.arguments),
            layers=("",) * len(recorded),
            flop=np.zeros(len(recorded)),
            bytes_accessed=np.zeros(len(recorded)),
            unknown=recorder.unknown,
        )
        return cls(recorder, sharding_classes(module, module.rules, read_rule_set("shardy")), outputs)

    @property
    def live(self) -> list[int]:
        """The classes that two devices can share."""
        return np.flatnonzero(self.sharding.classes.divisors % 2 == 0).tolist()

    def is_summed(self, number: int) -> bool:
        """Whether any operator sums over a class."""
        roles = self.sharding.rules.factor_roles[self.sharding.factor_classes == number]
        return bool((roles & Role.REDUCTION > 0).any())

    def sharded_part(self, output: Tensor, number: int) -> int | None:
        """Which of an output's parts is in a class."""
        value = self.recorder.value_of(output)
        for one, use in zip(self.recorder.instructions, self.sharding.rules.uses, strict=True):
            if value in one.results:
                at = use.values[len(one.operands) + one.results.index(value)]
                first, end = self.sharding.rules.dim_offsets[at : at + 2]
                (parts,) = np.nonzero(self.sharding.dim_classes[first:end] == number)
                assert parts.size <= 1
                return int(parts[0]) if parts.size else None
        raise AssertionError("an output that no operator made")


def tensors_of(returned: Any) -> list[Tensor]:
    """The tensors in what a function returned."""
    every = returned if isinstance(returned, (tuple, list)) else [returned]
    return [item for item in every if isinstance(item, Tensor)]


def check(function: Function, inputs: Sequence[Tensor], combine: Function = torch.add) -> int:
    """Hold a function's mapping against the function on halves of its inputs; the number of live classes.

    Args:
        combine: two devices' results where a class is summed over.
    """
    ran = Ran.from_function(function, inputs)
    assert not ran.recorder.unknown
    for number in ran.live:
        dims = ran.sharding.classes.dims([number])
        halves = [
            [
                tensor.chunk(2, dim)[half].clone() if dim >= 0 else tensor
                for tensor, dim in zip(inputs, dims, strict=True)
            ]
            for half in (0, 1)
        ]
        outputs = [tensors_of(function(*half)) for half in halves]
        for whole, first, second in zip(ran.outputs, *outputs, strict=True):
            part = ran.sharded_part(whole, number)
            if part is not None:
                parts = list(flat(ran.recorder.value_of(whole).parts))
                expected = whole.reshape(parts).chunk(2, part)
                parts[part] //= 2
                for own, half in zip((first, second), expected, strict=True):
                    torch.testing.assert_close(own.reshape(parts), half)
            elif ran.is_summed(number):
                torch.testing.assert_close(combine(first, second), whole, rtol=1e-4, atol=1e-4)
            else:
                torch.testing.assert_close(first, whole)
                torch.testing.assert_close(second, whole)
    return len(ran.live)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def whole_numbers(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(sum(shape)))


def merged(x: Tensor) -> Tensor:
    """[a, b, …] → [a·b, …]."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def convolution_gradient(gradient: Tensor, images: Tensor, kernel: Tensor, which: int) -> Tensor:
    """One of the gradients of a convolution with stride 1 and padding 1."""
    wanted = [i == which for i in range(3)]
    return aten.convolution_backward(gradient, images, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, wanted)[
        which
    ]


def _written(x: Tensor, y: Tensor) -> Tensor:
    """A part of a copy of x overwritten."""
    copy = x.clone()
    copy[:, 1:4] = y
    return copy * 2


def _written_row(x: Tensor, y: Tensor) -> Tensor:
    """The same where a row of each sample is written."""
    copy = x.clone()
    copy[:, 2] = y
    return copy * 2


CASES: dict[str, tuple[Function, list[Tensor], int]] = {
    "add": (torch.add, [normal(4, 6), normal(4, 6)], 2),
    "add, broadcast": (torch.add, [normal(4, 6, 8), normal(6, 1)], 3),
    "multiply": (torch.mul, [normal(4, 6), normal(6)], 2),
    "where": (torch.where, [normal(4, 6) > 0, normal(4, 1), normal(6)], 2),
    "gelu": (F.gelu, [normal(4, 6)], 2),
    "clamp": (lambda x: x.clamp(-1, 1), [normal(4, 6)], 2),
    "convert": (lambda x: x.double(), [normal(4, 6)], 2),
    "masked fill": (lambda x, m: x.masked_fill(m, 0.0), [normal(4, 6), normal(4, 6) > 0], 2),
    "view, merged": (merged, [normal(4, 6, 8)], 3),
    "view, split": (lambda x: x.view(x.shape[0], x.shape[1] // 3, 3), [normal(4, 12)], 2),
    "view, merged and split again": (lambda x: merged(x).view(*x.shape) * 2, [normal(4, 6, 8)], 3),
    "view, split across": (lambda x: x.reshape(x.shape[0] * 3, x.shape[1] // 3), [normal(4, 6)], 1),
    "permute": (lambda x: x.permute(2, 0, 1), [normal(4, 6, 8)], 3),
    "transpose": (lambda x: x.transpose(-1, 0), [normal(4, 6, 8)], 3),
    "t": (lambda x: x.t(), [normal(4, 6)], 2),
    "unsqueeze": (lambda x: x.unsqueeze(1), [normal(4, 6)], 2),
    "squeeze": (lambda x: x.squeeze(1), [normal(4, 1, 6)], 2),
    "expand": (lambda x: x.expand(3, *x.shape[:1], 5), [normal(4, 1)], 1),
    "pairs as complex numbers": (torch.view_as_complex, [normal(4, 6, 2)], 2),
    "complex numbers as pairs": (torch.view_as_real, [torch.complex(normal(4, 6), normal(4, 6))], 2),
    "slice": (lambda x: x[:, 1:3], [normal(4, 6)], 1),
    "select": (lambda x: x[:, 1], [normal(4, 6, 8)], 2),
    "split": (lambda x: x.split(2, -1), [normal(4, 6)], 1),
    "unbind": (lambda x: x.unbind(0), [normal(4, 6)], 1),
    "cat": (lambda x, y: torch.cat([x, y], 1), [normal(4, 6), normal(4, 2)], 1),
    "stack": (lambda x, y: torch.stack([x, y], 1), [normal(4, 6), normal(4, 6)], 2),
    "pad": (lambda x: F.pad(x, (1, 2)), [normal(4, 6)], 1),
    "flip": (lambda x: x.flip(0), [normal(4, 6)], 1),
    "roll": (lambda x: x.roll(1, 1), [normal(4, 6)], 1),
    "cumsum": (lambda x: x.cumsum(-1), [normal(4, 6)], 1),
    "sort": (lambda x: x.sort(-1), [normal(4, 6)], 1),
    "topk": (lambda x: x.topk(2, -1), [normal(4, 6)], 1),
    "tril": (torch.tril, [normal(4, 6, 6)], 1),
    "sum": (torch.sum, [normal(4, 6)], 2),
    "sum of a dimension": (lambda x: x.sum(1), [normal(4, 6, 8)], 3),
    "sum of two, kept": (lambda x: x.sum((0, 2), keepdim=True), [normal(4, 6, 8)], 3),
    "argmax": (lambda x: x.argmax(1), [normal(4, 6)], 1),
    "max with its index": (lambda x: x.max(0), [normal(4, 6)], 1),
    "mm": (torch.mm, [normal(4, 6), normal(6, 8)], 3),
    "bmm": (torch.bmm, [normal(2, 4, 6), normal(2, 6, 8)], 4),
    "matmul of stacks": (torch.matmul, [normal(2, 4, 6, 8), normal(2, 4, 8, 10)], 5),
    "linear": (F.linear, [normal(2, 4, 6), normal(8, 6)], 4),
    "einsum": (lambda x, y: torch.einsum("bqhd,bkhd->bhqk", x, y), [normal(2, 4, 6, 8), normal(2, 10, 6, 8)], 5),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), [normal(2, 4, 8, 8), normal(6, 4, 3, 3)], 3),
    "convolution in one dimension": (F.conv1d, [normal(2, 4, 8), normal(6, 4, 3)], 3),
    "depthwise convolution": (
        lambda x, w: F.conv2d(x, w, groups=x.shape[1]),
        [normal(2, 4, 8, 8), normal(4, 1, 3, 3)],
        2,
    ),
    "grouped convolution": (lambda x, w: F.conv2d(x, w, groups=2), [normal(2, 4, 8, 8), normal(6, 2, 3, 3)], 1),
    "transposed convolution": (F.conv_transpose2d, [normal(2, 4, 8, 8), normal(4, 6, 3, 3)], 3),
    "max pool": (lambda x: F.max_pool2d(x, 2), [normal(2, 4, 8, 8)], 2),
    "average pool": (lambda x: F.avg_pool2d(x, 2), [normal(2, 4, 8, 8)], 2),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, 4), [normal(2, 4, 8, 8)], 2),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2), [normal(2, 4, 8, 8)], 2),
    "embedding by samples": (F.embedding, [whole_numbers(9, 4, 6), normal(9, 8)], 3),
    "gather by samples": (lambda x, i: x.gather(1, i), [normal(4, 7), whole_numbers(7, 4, 6)], 2),
    "index by one": (lambda x, i: x[:, i], [normal(4, 7), whole_numbers(7, 6)], 2),
    "index by two": (lambda x, i, j: x[i, j], [normal(5, 7, 4), whole_numbers(5, 6), whole_numbers(7, 6)], 1),
    "index_select": (lambda x, i: x.index_select(1, i), [normal(4, 7), whole_numbers(7, 6)], 2),
    "scatter by samples": (lambda x, i, s: x.scatter(1, i, s), [normal(4, 7), whole_numbers(7, 4, 2), normal(4, 2)], 1),
    "gradient of a convolution's images": (
        lambda g, w: convolution_gradient(g, torch.empty(g.shape[0], w.shape[1], 8, 8), w, 0),
        [normal(2, 6, 8, 8), normal(6, 4, 3, 3)],
        3,
    ),
    "gradient of a convolution's kernel": (
        lambda g, x: convolution_gradient(g, x, torch.empty(g.shape[1], x.shape[1], 3, 3), 1),
        [normal(2, 6, 8, 8), normal(2, 4, 8, 8)],
        3,
    ),
    "gradient of an embedding by samples": (
        lambda g, i: aten.embedding_dense_backward(g, i, 9, -1, False),
        [normal(4, 6, 8), whole_numbers(9, 4, 6)],
        3,
    ),
    "gradient of a slice": (lambda g: aten.slice_backward(g, [g.shape[0], 8], 1, 2, 6, 1), [normal(4, 4)], 1),
    "gradient of a select": (lambda g: aten.select_backward(g, [g.shape[0], 5], 1, 2), [normal(4)], 1),
    "gradient of a maximum pool": (
        lambda g, x: aten.max_pool2d_with_indices_backward(
            g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, F.max_pool2d(x, 2, return_indices=True)[1]
        ),
        [normal(2, 4, 4, 4), normal(2, 4, 8, 8)],
        2,
    ),
    "attention": (
        lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[0],
        [torch.empty(2, 4, 6, 8, device="meta") for _ in range(3)],
        2,
    ),
    "in place": (lambda x, y: (x + 0).add_(y), [normal(4, 6), normal(6)], 2),
    "written through a slice": (_written, [normal(4, 6), normal(4, 3)], 1),
    "written through a select": (_written_row, [normal(4, 6, 8), normal(4, 8)], 2),
}
"""Name → function, arguments, how many classes two devices can share, told from what the operator is."""


@pytest.mark.parametrize("name", CASES)
def test_an_operator_on_halves_gives_halves_or_parts_of_a_sum(name: str) -> None:
    function, inputs, live = CASES[name]
    if any(tensor.is_meta for tensor in inputs):
        assert len(Ran.from_function(function, inputs).live) == live
    else:
        assert check(function, inputs) == live


# Of a table that is cut by rows, each device looks up, or writes, the rows that it has.
def looked_up(index: Tensor, rows: Tensor, lookup: Function, half: int) -> Tensor:
    """What one of two devices looks up: zeros where the row is the other's."""
    first = half * rows.shape[0]
    own = (index >= first) & (index < first + rows.shape[0])
    rows_of_index = lookup(rows, torch.where(own, index - first, 0))
    return torch.where(own.reshape(own.shape + (1,) * (rows_of_index.dim() - own.dim())), rows_of_index, 0)


@pytest.mark.parametrize(
    ("lookup", "index"),
    [
        (lambda table, index: F.embedding(index, table), whole_numbers(8, 4, 6)),
        (lambda table, index: table.index_select(0, index), whole_numbers(8, 6)),
        (lambda table, index: table[index], whole_numbers(8, 5, 3)),
        (lambda table, index: table.gather(0, index), whole_numbers(8, 3, 10)),
    ],
)
def test_rows_of_a_table_that_is_cut_are_looked_up_where_they_are_and_summed(lookup: Function, index: Tensor) -> None:
    table = normal(8, 10)
    ran = Ran.from_function(lookup, [table, index])
    rows = int(ran.sharding.classes.dim_classes[0])
    assert rows in ran.live
    assert ran.is_summed(rows)
    assert ran.sharded_part(ran.outputs[0], rows) is None
    parts = [looked_up(index, half, lookup, i) for i, half in enumerate(table.chunk(2))]
    torch.testing.assert_close(parts[0] + parts[1], lookup(table, index))


@pytest.mark.parametrize(
    "write",
    [
        lambda rows, index, values: aten.embedding_dense_backward(values, index, rows, -1, False),
        lambda rows, index, values: torch.zeros(rows, 6).index_put([index], values, accumulate=True),
    ],
)
def test_rows_are_added_where_they_are_and_over_samples_the_tables_are_summed(write: Function) -> None:
    index, values = whole_numbers(8, 4), normal(4, 6)
    ran = Ran.from_function(lambda index, values: write(8, index, values), [index, values])
    samples, width = (int(number) for number in ran.sharding.classes.dim_classes[1:])
    assert set(ran.live) == {samples, width}
    assert ran.is_summed(samples)
    assert not ran.is_summed(width)
    halves = [write(8, i, v) for i, v in zip(index.chunk(2), values.chunk(2), strict=True)]
    torch.testing.assert_close(halves[0] + halves[1], write(8, index, values))
    table = ran.recorder.instructions[-1]
    row_links = [link for link in table.rule.links if link[:2] == (len(table.operands), 0)]
    assert [table.rule.roles[factor] for _, _, factor in row_links] == [0]  # rows can be cut, too


@pytest.mark.parametrize(("reduction", "combine"), [(torch.amax, torch.maximum), (torch.amin, torch.minimum)])
def test_a_maximum_over_slices_is_that_of_their_maxima(reduction: Function, combine: Function) -> None:
    assert check(lambda x: reduction(x, 1), [normal(4, 6)], combine) == 2


@st.composite
def reshapes(draw: st.DrawFn) -> list[list[int]]:
    """A shape, and others of as many elements."""
    primes = draw(st.lists(st.sampled_from([2, 2, 3]), min_size=2, max_size=6))
    shapes = []
    for _ in range(draw(st.integers(2, 4))):
        ends = sorted({0, len(primes), *draw(st.lists(st.integers(0, len(primes)), max_size=4))})
        dims = [int(np.prod(primes[a:b])) for a, b in pairwise(ends)]
        shapes.append([*dims, *[1] * draw(st.integers(0, 1))])
        if draw(st.booleans()):
            primes = draw(st.permutations(primes))
    return shapes


@given(reshapes())
def test_whatever_is_reshaped_again_and_again_halves_stay_halves(shapes: list[list[int]]) -> None:
    x = torch.arange(float(np.prod(shapes[0]))).reshape(shapes[0])

    def reshaped(tensor: Tensor, targets: Sequence[Sequence[int]]) -> list[Tensor]:
        every = []
        for shape in targets:
            tensor = tensor.reshape(list(shape)) * 1.0
            every.append(tensor)
        return every

    ran = Ran.from_function(lambda tensor: reshaped(tensor, shapes[1:]), [x])
    for number in ran.live:
        (dim,) = ran.sharding.classes.dims([number])
        targets, at = [], []
        for output in ran.outputs:
            of_dims = [list(parts) for parts in ran.recorder.value_of(output).parts]
            part = ran.sharded_part(output, number)
            assert part is not None
            at.append(part)
            for parts in of_dims:
                if 0 <= part < len(parts):
                    parts[part] //= 2
                part -= len(parts)
            targets.append(of_dims)
        for half in (0, 1):
            local = reshaped(x.chunk(2, dim)[half], [[int(np.prod(parts)) for parts in of_dims] for of_dims in targets])
            for whole, own, of_dims, part in zip(ran.outputs, local, targets, at, strict=True):
                expected = whole.reshape(flat(ran.recorder.value_of(whole).parts)).chunk(2, part)[half]
                torch.testing.assert_close(own.reshape([size for parts in of_dims for size in parts]), expected)


# What comes out of several operators: classes that nothing is summed over.
COMPOSED: dict[str, tuple[Function, list[Tensor], int]] = {
    "softmax": (lambda x: x.softmax(-1), [normal(4, 6, 8)], 2),
    "log softmax": (lambda x: x.log_softmax(-1), [normal(4, 6, 8)], 2),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), [normal(4, 6, 8)], 2),
    "group norm": (lambda x: F.group_norm(x, x.shape[1] // 3), [normal(4, 6, 8)], 2),
    "variance": (lambda x: x.var(-1), [normal(4, 8)], 1),
    "losses": (lambda x, y: F.cross_entropy(x, y, reduction="none"), [normal(4, 10), whole_numbers(10, 4)], 1),
    "attention, written out": (
        lambda q, k, v: (q @ k.transpose(-1, -2)).softmax(-1) @ v,
        [normal(2, 4, 6, 8), normal(2, 4, 10, 8), normal(2, 4, 10, 12)],
        4,
    ),
    "heads that a view splits off": (
        lambda x: (x.view(*x.shape[:2], -1, 8).transpose(1, 2) * 2).transpose(1, 2).flatten(2),
        [normal(2, 6, 32)],
        3,
    ),
    "repeated heads": (
        lambda k: k[:, :, None].expand(*k.shape[:2], 3, *k.shape[2:]).reshape(k.shape[0], -1, *k.shape[2:]),
        [normal(2, 4, 6, 8)],
        4,
    ),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_what_several_operators_make_of_halves_are_halves(name: str) -> None:
    function, inputs, expected = COMPOSED[name]
    ran = Ran.from_function(function, inputs)
    apart = [number for number in ran.live if not ran.is_summed(number)]
    assert len(apart) == expected
    for number in apart:
        dims = ran.sharding.classes.dims([number])
        for half in (0, 1):
            own = [t.chunk(2, dim)[half] if dim >= 0 else t for t, dim in zip(inputs, dims, strict=True)]
            (whole,), (part,) = ran.outputs, tensors_of(function(*own))
            of_class = ran.sharded_part(whole, number)
            assert of_class is not None
            parts = list(flat(ran.recorder.value_of(whole).parts))
            halves = whole.reshape(parts).chunk(2, of_class)
            parts[of_class] //= 2
            torch.testing.assert_close(part.reshape(parts), halves[half], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def two_devices() -> Iterator[Any]:
    """A mesh of two devices that are not there: what DTensor decides needs none."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


BY_DTENSOR = ["add", "multiply", "permute", "transpose", "unsqueeze", "view, merged", "sum of a dimension", "sum"]
BY_DTENSOR += ["mm", "bmm", "gelu", "softmax", "log softmax", "layer norm", "embedding by samples"]


@pytest.mark.parametrize("name", BY_DTENSOR)
def test_dtensor_partitions_an_operator_the_same_way_without_communication(name: str, two_devices: Any) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    function, inputs, _ = {**CASES, **COMPOSED}[name]
    ran = Ran.from_function(function, inputs)
    (whole,) = ran.outputs
    parts = ran.recorder.value_of(whole).parts
    firsts = np.cumsum([0, *map(len, parts)]).tolist()
    for number in ran.live:
        if name in COMPOSED and ran.is_summed(number):
            continue
        dims = ran.sharding.classes.dims([number])
        placed = [
            distribute_tensor(tensor, two_devices, [Shard(dim) if dim >= 0 else Replicate()])
            for tensor, dim in zip(inputs, dims, strict=True)
        ]
        with CommDebugMode() as communication:
            result = function(*placed)
        assert communication.get_total_counts() == 0
        part = ran.sharded_part(whole, number)
        if part is None:
            assert isinstance(result.placements[0], Partial)
        elif part in firsts:
            assert result.placements == (Shard(firsts.index(part)),)
