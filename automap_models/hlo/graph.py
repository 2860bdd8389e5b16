"""A flat module as an instruction graph with FLOP and bytes for every instruction, and its sharding rules.

Of a module of StableHLO, XLA's own cost analysis and Shardy say these; one of ATen operators brings them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from automap_models.collection import uncollected
from automap_models.core.instruction_graph import FloatArray, InstructionGraph
from automap_models.cost.kernel_traffic import PART_OPCODE, VIEW_OPCODES
from automap_models.hlo.locations import ATTENTION_CORE, is_backward, layers
from automap_models.hlo.module import UNKNOWN, MlirModule, Module, Operation, producing_operations
from automap_models.hlo.order import phases
from automap_models.hlo.sharding_rules import RuledModule, ShardingRules, offsets

KNOWN_CUSTOM_CALLS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
"""Custom calls that compute nothing."""


@uncollected()
def instruction_graph(module: Module) -> InstructionGraph:
    """The module's instructions in flat arrays, in execution order.

    FLOP and bytes of StableHLO come from XLA's cost analysis of each distinct operation on its own; a loop counts all
    its rounds where their number is known. `meta` reports `unknown_custom_calls` (name → how many), whose cost is their
    bytes alone, and `loops_of_unknown_length` (names), which are counted once.
    """
    operations = module.operations
    if isinstance(module, RuledModule):
        layer, flop, bytes_accessed = module.layers, module.flop, module.bytes_accessed
        opcodes = tuple(op.opcode for op in operations)
    else:
        opcodes = _opcodes(_of_mlir(module))
        layer = _filled(layers([op.path for op in operations]), operations, len(module.arguments))
        flop, bytes_accessed = instruction_costs(_of_mlir(module))
    return InstructionGraph(
        model=module.name,
        names=tuple(op.name for op in operations),
        opcodes=opcodes,
        layers=layer,
        phases=phases(operations, module.arguments),
        result_offsets=len(module.arguments) + offsets([len(op.results) for op in operations]),
        operand_offsets=offsets([len(op.operands) for op in operations]),
        operands=np.array([value for op in operations for value in op.operands], dtype=np.int64),
        shapes=tuple(tensor.shape for tensor in module.types),
        dtypes=tuple(tensor.dtype for tensor in module.types),
        value_bytes=np.array([tensor.nbytes for tensor in module.types]),
        arguments=module.arguments,
        outputs=np.array(module.outputs, dtype=np.int64),
        flop=flop,
        bytes_accessed=bytes_accessed,
        meta=dict(module.meta) | _reported(module),
        in_core=np.array([ATTENTION_CORE in op.path for op in operations], dtype=bool),
    )


def _opcodes(module: MlirModule) -> tuple[str, ...]:
    """[n] StableHLO's words, but two of the instruction graph's own.

    `part` is a slice of an argument, or of a view or a part of one, in one piece; `random_bits` a generator's loop.
    """
    from automap_models.hlo.stablehlo_values import is_in_one_piece, makes_random_bits

    opcodes = [op.opcode for op in module.operations]
    in_place = set(range(len(module.arguments)))
    result = len(module.arguments)
    with module.mlir.context:
        for i, op in enumerate(module.operations):
            if op.opcode == "while" and makes_random_bits(module.handles[i]):
                opcodes[i] = "random_bits"
            elif op.operands and op.operands[0] in in_place:
                if op.opcode == "slice" and is_in_one_piece(module.handles[i]):
                    opcodes[i] = PART_OPCODE
                if opcodes[i] in VIEW_OPCODES or opcodes[i] == PART_OPCODE:
                    in_place.add(result)
            result += len(op.results)
    return tuple(opcodes)


@uncollected()
def rules_of(module: Module) -> ShardingRules:
    """The factor mappings of a module's operations: its own, or Shardy's."""
    if isinstance(module, RuledModule):
        return module.rules
    from automap_models.hlo.shardy import sharding_rules

    return sharding_rules(_of_mlir(module))


def instruction_costs(module: MlirModule) -> tuple[FloatArray, FloatArray]:
    """FLOP and bytes accessed of every instruction, float64 [n] each; constants cost nothing."""
    from automap_models.hlo.adapter import costs_of, one_op_modules

    flop, bytes_accessed = np.zeros(len(module.operations)), np.zeros(len(module.operations))
    one_ops = one_op_modules(module)
    for one_op, cost in zip(one_ops, costs_of(one_ops), strict=True):
        flop[one_op.instructions], bytes_accessed[one_op.instructions] = cost
    return flop, bytes_accessed


def _of_mlir(module: Module) -> MlirModule:
    if not isinstance(module, MlirModule):
        raise TypeError(f"{type(module).__name__} has neither rules of its own nor MLIR to read them from")
    return module


def _reported(module: Module) -> dict[str, object]:
    targets = Counter(op.target for op in module.operations if op.target and op.target not in KNOWN_CUSTOM_CALLS)
    endless = [op.name for op in module.operations if op.rounds == UNKNOWN]
    reported = {
        "unknown_custom_calls": dict(sorted(targets.items())),
        "loops_of_unknown_length": endless,
        "loops_with_both_passes": _loops_with_both_passes(module),
    }
    return {key: what for key, what in reported.items() if what}


def _loops_with_both_passes(module: Module) -> list[str]:
    """Loops that run the backward pass, too, such as over micro-batches whose gradients are added up; by name."""
    loops = [i for i, op in enumerate(module.operations) if op.opcode == "while"]
    if not loops or not isinstance(module, MlirModule) or any(is_backward(op.path) for op in module.operations):
        return []
    with module.mlir.context:
        texts = [module.handles[i].get_asm(enable_debug_info=True, use_local_scope=True) for i in loops]
    located = [re.findall(r'loc\("([^"]*)"', text) for text in texts]
    return [module.operations[i].name for i, paths in zip(loops, located, strict=True) if any(map(is_backward, paths))]


def _filled(layer: Sequence[str], operations: Sequence[Operation], n_arguments: int) -> tuple[str, ...]:
    """Layers with those of operations without a location (constants, their broadcasts) taken from the first reader."""
    filled = list(layer)
    producers = producing_operations(operations, n_arguments)
    reader: dict[int, str] = {}
    for i in range(len(operations) - 1, -1, -1):
        if not operations[i].path:
            filled[i] = reader.get(i, "")
        for value in operations[i].operands:
            reader[producers[value]] = filled[i]
    return tuple(filled)
