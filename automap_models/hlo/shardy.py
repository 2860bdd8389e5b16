"""Shardy's passes on a copy of a flat module: its factor mappings, and its own propagation of a finished plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import sdy

from automap_models.hlo.adapter import MlirModule
from automap_models.hlo.flat_module import nested_operations, opcode_of
from automap_models.hlo.mlir_walk import tensor_of
from automap_models.hlo.module import Tensor
from automap_models.hlo.sharding_rules import Role, Rule, ShardingRules, Use, flat_rules, same_everywhere

_SPLIT = "sdy-constant-or-scalar-splitter"
_RULES = "func.func(sdy-populate-op-sharding-rules)"
_INDEX = "automap.operation"
_RULE = "sdy.sharding_rule"
_SHARDING = "sdy.sharding"
_PROPAGATE = [
    _SPLIT,
    "sdy-add-data-flow-edges",
    "sdy-user-priority-propagate",
    "func.func(sdy-sink-data-flow-edges)",
    "sdy-close-shardings",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
]
_AXIS, _MESH = "axis", "mesh"
_DATA_FLOW = {"stablehlo.while", "stablehlo.case", "stablehlo.if", "stablehlo.optimization_barrier"}


class Collective(NamedTuple):
    """A collective operation that Shardy inserts.

    Attributes:
        kind: Shardy's word for it: `all_reduce`, `reshard`, …
        nbytes: of its result, over all devices.
    """

    kind: str
    nbytes: float


def sharding_rules(module: MlirModule) -> ShardingRules:
    """The factor mapping of every operation, read once; the module stays as it is."""
    with module.mlir.context:
        copy = _marked_copy(module)
        _run(copy, [_SPLIT, _RULES])
        reader = _Reader()
        uses = list(reader.uses(_entry(copy)))
        return flat_rules(reader.tensors, uses)


def collectives(module: MlirModule, along: Sequence[tuple[Sequence[int], int]]) -> tuple[Collective, ...]:
    """What Shardy's own pipeline inserts when the module's arguments are sharded so; the module stays as it is.

    Shardy resolves conflicts by communication: a plan without one has all-reduces, where a reduction is over a sharded
    dimension, and no reshard.

    Args:
        along: for every mesh axis, the partitioned dimension of each argument, -1 for none, and the axis's devices.
    """
    with module.mlir.context, ir.Location.unknown():
        copy = module.mlir.operation.clone()
        _annotate(copy, module.argument_types, along)
        _run(copy, _PROPAGATE)
        inserted = (op for op in nested_operations(copy) if op.name.startswith("sdy.") and len(op.operands))
        return tuple(
            Collective(opcode_of(op), tensor_of(op.results[0].type).nbytes) for op in inserted if len(op.results)
        )


def _annotate(mlir: Any, tensors: Sequence[Tensor], along: Sequence[tuple[Sequence[int], int]]) -> None:
    """Add a mesh, and a closed sharding to every argument of the entry."""
    block = mlir.regions[0].blocks[0]
    axes = [sdy.MeshAxisAttr.get(f"{_AXIS}_{i}", size) for i, (_, size) in enumerate(along)]
    with ir.InsertionPoint.at_block_begin(block):
        sdy.MeshOp(_MESH, sdy.MeshAttr.get(axes))
    function = _entry(mlir).owner.operation
    of_argument = zip(*(dims for dims, _ in along), strict=True)
    shardings = [_sharding(len(tensor.shape), dims) for tensor, dims in zip(tensors, of_argument, strict=True)]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [ir.DictAttr.get({_SHARDING: sharding}) for sharding in shardings]
    )


def _sharding(rank: int, sharded: Sequence[int]) -> Any:
    """A value's sharding; `sharded` is the dimension that each axis partitions."""
    axes = [[sdy.AxisRefAttr.get(f"{_AXIS}_{i}") for i, d in enumerate(sharded) if d == dim] for dim in range(rank)]
    return sdy.TensorShardingAttr.get(_MESH, [sdy.DimensionShardingAttr.get(axis, True) for axis in axes])


def _run(mlir: Any, passes: Sequence[str]) -> None:
    passmanager.PassManager.parse(f"builtin.module({','.join(passes)})").run(mlir)


def _entry(mlir: Any) -> Any:
    """The entry function's block; a pass may have put other things beside the function."""
    (entry,) = [op for op in mlir.regions[0].blocks[0].operations if op.operation.name == "func.func"]
    return entry.operation.regions[0].blocks[0]


def _marked_copy(module: MlirModule) -> Any:
    """A copy of the module whose operations, and all copies that a pass makes of them, know their position."""
    copy = module.mlir.operation.clone()
    number = ir.IntegerType.get_signless(64)
    for i, op in enumerate(_entry(copy).operations):
        op.operation.attributes[_INDEX] = ir.IntegerAttr.get(number, i)
    return copy


class _Reader:
    """Numbers the values of a block, and those of its loops and branches, as it meets them."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._ids: dict[Any, int] = {}
        self._types: dict[Any, Tensor] = {}
        self._rules: dict[Any, Rule] = {}

    def uses(self, block: Any, operation: int = -1) -> Iterator[Use]:
        """The operations of a block that have dimensions and read something, in its order.

        Args:
            operation: the loop or branch that the block belongs to; -1 for the entry.
        """
        for argument in block.arguments:
            self._id(argument)
        for view in block.operations:
            op = view.operation
            attributes = op.attributes
            index = ir.IntegerAttr(attributes[_INDEX]).value if operation < 0 else operation
            values = tuple(map(self._id, (*op.operands, *op.results)))
            if op.name in _DATA_FLOW:
                yield from self._data_flow(op, index)
            elif _RULE in attributes:
                yield Use(index, opcode_of(op), values, self._rule(attributes[_RULE]), len(op.results))
            elif len(op.results) and len(op.operands) and any(self.tensors[v].shape for v in values):
                yield Use(index, opcode_of(op), values, None)

    def _data_flow(self, op: Any, index: int) -> Iterator[Use]:
        """What the operations in the regions of an operation say, and which of its values are one and the same."""
        blocks = [region.blocks[0] for region in op.regions]
        for block in blocks:
            yield from self.uses(block, index)
        returned = [list(block.operations)[-1].operation.operands for block in blocks]
        if op.name == "stablehlo.while":
            groups: Iterator[tuple[Any, ...]] = zip(
                op.operands, op.results, *(block.arguments for block in blocks), returned[1], strict=True
            )
        elif op.name == "stablehlo.optimization_barrier":
            groups = zip(op.operands, op.results, strict=True)
        else:
            groups = zip(op.results, *returned, strict=True)
        for group in groups:
            values = tuple(map(self._id, group))
            yield Use(index, opcode_of(op), values, same_everywhere(self.tensors[values[0]].shape, len(values)))

    def _id(self, value: Any) -> int:
        number = self._ids.get(value)
        if number is None:
            number = self._ids[value] = len(self._ids)
            kind = value.type
            if kind not in self._types:
                self._types[kind] = tensor_of(kind)
            self.tensors.append(self._types[kind])
        return number

    def _rule(self, attribute: Any) -> Rule:
        if attribute not in self._rules:
            self._rules[attribute] = _rule(sdy.OpShardingRuleAttr(attribute))
        return self._rules[attribute]


def _rule(attribute: Any) -> Rule:
    """A Shardy rule; factors along which it does not propagate are taken to stay whole."""
    sizes = tuple(attribute.factor_sizes)
    roles = [0] * len(sizes)
    for factor in attribute.reduction_factors:
        roles[factor] |= Role.REDUCTION
    other = (attribute.need_replication_factors, attribute.permutation_factors, attribute.blocked_propagation_factors)
    for factor in (factor for group in other for factor in group):
        roles[factor] |= Role.FIXED
    links: list[tuple[int, int, int]] = []
    unmapped: list[tuple[int, int]] = []
    for position, mapping in enumerate((*attribute.operand_mappings, *attribute.result_mappings)):
        for dim, of_dim in enumerate(sdy.TensorMappingAttr(mapping).dim_mappings):
            factors = list(sdy.DimMappingAttr(of_dim).factor_indices)
            if not factors:
                unmapped.append((position, dim))
                continue
            major = next((factor for factor in factors if sizes[factor] > 1), factors[0])
            links.append((position, dim, major))
            for minor in factors:
                roles[minor] |= 0 if minor == major else Role.FIXED
    return Rule(sizes, tuple(roles), tuple(links), tuple(unmapped))
