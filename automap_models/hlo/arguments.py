"""What the arguments of a step are: trainable parameters, state or inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from automap_models.core.instruction_graph import Argument
from automap_models.errors import BadInput
from automap_models.hlo.locations import is_backward
from automap_models.hlo.module import Operation, Tensor
from automap_models.hlo.step import TrainingStep

if TYPE_CHECKING:
    from automap_models.hlo.mlir_walk import EntryReader

_KEY = re.compile(r"\[\\?'([^\]]*?)\\?'\]|\[\\?\"([^\]]*?)\\?\"\]|\[([^\]]*)\]|\.?([^\[\].]+)")
_FLOATING = ("f", "bf", "tf")
_PARAMETER_WORDS = frozenset({"params", "param", "parameters", "weights", "trainable_variables"})
_STATE_WORDS = frozenset({"opt", "optimizer", "opt_state", "optimizer_state", "state_dict", "batch_stats", "mu", "nu"})


def argument_name(raw: str) -> str:
    """JAX's name of an argument as a path: `params['params']['enc']['kernel']` → `params/enc/kernel`.

    A key that repeats the one before it is left out: flax keeps a variable's collection in front of its path.
    """
    keys: list[str] = ["".join(groups) for groups in _KEY.findall(raw)]
    return "/".join(key for i, key in enumerate(keys) if not i or key != keys[i - 1])


def step_arguments(step: TrainingStep, sizes: Sequence[int], raw_names: Sequence[str]) -> tuple[Argument, ...]:
    """The arguments of a traced step: `sizes[i]` leaves belong to the i-th pytree."""
    arguments: list[Argument] = []
    for position, size in enumerate(sizes):
        kind = "parameter" if position == step.trainable else "input" if position in step.inputs else "state"
        for leaf in range(size):
            name = argument_name(raw_names[len(arguments)]) or f"arg{position}/{leaf}"
            arguments.append(Argument(name, kind))  # type: ignore[arg-type]
    return tuple(arguments)


def file_arguments(entry: EntryReader, trainable: Sequence[str], source: str) -> tuple[Argument, ...]:
    """The arguments of a module from a file, which nobody has explained.

    A floating-point argument is a trainable parameter
    1. if its name matches one of the patterns in `trainable`, where there are any; else
    2. if its name says so: `params/…`, `state/params/…`, but not `opt/0/mu/params/…`; else, where no name does,
    3. if the step returns an updated version of it (a result of its type that depends on it) and it takes part in the
       model, that is, results of other types depend on it, too; a moment of the optimiser does not.

    Whatever else has an updated version, or a name that says so, is state; the rest are inputs. A module without a
    backward pass may have no parameter: its weights are constants.

    Raises:
        BadInput: no parameter can be found.
    """
    types, operations = entry.argument_types, entry.operations
    names = [argument_name(raw) or f"arg{i}" for i, raw in enumerate(entry.argument_names)]
    names = [name if names.count(name) == 1 else f"{name}/{i}" for i, name in enumerate(names)]
    floating = [tensor.dtype.startswith(_FLOATING) for tensor in types]
    updated = _updated(types, operations, entry.outputs)
    if trainable:
        chosen = [any(fnmatchcase(name, pattern) for pattern in trainable) for name in names]
    else:
        chosen = [_role(name) == "parameter" for name in names]
        if not any(named and of_floats for named, of_floats in zip(chosen, floating, strict=True)):
            chosen = [partners > 1 for partners in updated]
    chosen = [is_chosen and of_floats for is_chosen, of_floats in zip(chosen, floating, strict=True)]
    if not any(chosen) and (trainable or any(is_backward(op.path) for op in operations)):
        raise _no_parameters(names, types, trainable, source)
    arguments: list[Argument] = []
    for name, is_parameter, partners in zip(names, chosen, updated, strict=True):
        is_state = partners > 0 or _role(name) in {"parameter", "state"}
        arguments.append(Argument(name, "parameter" if is_parameter else "state" if is_state else "input"))
    return tuple(arguments)


def _role(name: str) -> str | None:
    """What a name's first telling word says about an argument."""
    for key in name.lower().split("/")[:-1]:
        if key in _PARAMETER_WORDS:
            return "parameter"
        if key in _STATE_WORDS:
            return "state"
    return None


def _updated(types: Sequence[Tensor], operations: Sequence[Operation], outputs: Sequence[int]) -> list[int]:
    """For each argument 0 where no result is an updated version of it, else of how many types results depend on it."""
    reach = [1 << i for i in range(len(types))]
    kinds = list(types)
    for op in operations:
        sources = 0
        for value in op.operands:
            sources |= reach[value]
        reach += [sources] * len(op.results)
        kinds += op.results
    results: dict[Tensor, int] = {}
    for value in outputs:
        results[kinds[value]] = results.get(kinds[value], 0) | (reach[value] if value >= len(types) else 0)
    return [
        sum(sources >> i & 1 for sources in results.values()) if results.get(kind, 0) >> i & 1 else 0
        for i, kind in enumerate(types)
    ]


def _no_parameters(names: Sequence[str], types: Sequence[Tensor], trainable: Sequence[str], source: str) -> BadInput:
    if not names:
        return BadInput(
            "is a module without parameters", where=source, do="give a whole training step that takes its parameters"
        )
    described = [f"{name} {tensor.dtype}{list(tensor.shape)}" for name, tensor in zip(names, types, strict=True)]
    listed = ", ".join([*described[:8], *(["…"] if len(described) > 8 else [])])
    what = f"matches {' or '.join(trainable)}" if trainable else "can be told to be a trainable parameter"
    return BadInput(
        f"no floating-point argument {what}; there are {listed}",
        where=source,
        do="name them with `trainable=PATTERN`, or give a whole training step, update included",
    )
