"""From a PyTorch model to the module of its training step: ATen operators with their factor mappings.

    nn.Module ── torch.export ──→ forward graph ── run on the meta device, recorded ──→ forward │ backward │ Adam

The backward pass is what autograd runs, and the update is Adam's; nothing is allocated or computed. What comes out is
what the JAX route makes of a traced step (hlo/), with the same words, so that everything behind it is the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from automap_models.core.instruction_graph import Argument, ArgumentKind, FloatArray, Phase
from automap_models.hlo.module import Operation
from automap_models.hlo.module import Tensor as TensorType
from automap_models.hlo.order import execution_order, renumbered
from automap_models.hlo.sharding_rules import RuledModule, ShardingRules, Use, flat_rules
from automap_models.torch_export.capture import Captured, capture, first_dimension, module_path
from automap_models.torch_export.factors import flat
from automap_models.torch_export.recorder import Recorded, StepRecorder, Value
from automap_models.torch_export.trace import ForwardRun, gradients_of
from automap_models.version import __version__

FRAMEWORK = "torch"
"""What a profile's meta says under `framework`."""
OPTIMIZER, LOSS = "optimizer", "loss"
_LOSSES = re.compile(r"_loss(_|\.|$)")
_ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def step_module(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
) -> RuledModule:
    """The training step of `model(*args, **kwargs)` in training mode: loss, gradients, Adam's update.

    The user's model is left as it is. Arguments are the trainable parameters under their names in the model, Adam's
    state as torch.distributed.checkpoint names it (`state.NAME.exp_avg`), frozen parameters and buffers, and the
    inputs as forward names them. The backward pass starts from the loss that the model returns (see
    `capture.training_outputs`). What operators without a rule read and make is taken to stay whole; `unknown` counts
    their calls.

    Args:
        args, kwargs: example inputs; only shapes and element types count.
        name: of the model; its class by default.

    Raises:
        BadInput: a model without parameters, inputs that do not fit, control flow or shapes that depend on data, an
            operator that cannot run without data, or no output that depends on a parameter.
    """
    return traced_step(model, args, kwargs, name=name or type(model).__name__).module


@dataclass(frozen=True, eq=False)
class TracedStep:
    """The training step of a model with what its forward pass keeps, by the m operators of this (`captured.calls`).

    Attributes:
        module: the whole step, n operations.
        captured: its forward pass.
        calls: [n] the operator that each operation is part of, or a gradient of.
        saved_bytes: [m] bytes that each keeps for the backward pass; what two keep counts for the first.
        crossing: [m] bytes of the values made up to that operator and read after it.
    """

    module: RuledModule
    captured: Captured
    calls: tuple[int, ...]
    saved_bytes: FloatArray
    crossing: FloatArray


def traced_step(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, *, name: str) -> TracedStep:
    """The training step of `step_module`, and its forward pass."""
    kwargs = kwargs or {}
    captured = capture(model, args, kwargs, name=name)
    step = _Step(captured, name)
    run = step.run()
    meta: dict[str, object] = {
        "source": "torch.export",
        "framework": FRAMEWORK,
        "torch": torch.__version__.split("+")[0],
        "automap_version": __version__,
        "microbatch_size": first_dimension(args, kwargs, name),
        "dtype": _dtype_of(model),
    }
    module, calls = _module(name, step, meta)
    return TracedStep(module, captured, calls, run.saved_bytes, run.crossing_bytes())


def _dtype_of(model: nn.Module) -> str:
    """The element type of most of the trainable bytes."""
    sizes: dict[str, int] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            dtype = str(parameter.dtype).removeprefix("torch.")
            sizes[dtype] = sizes.get(dtype, 0) + parameter.numel() * parameter.element_size()
    return max(sizes, key=lambda dtype: sizes[dtype])


class _Step:
    """A captured step that is run under a recorder."""

    def __init__(self, captured: Captured, name: str) -> None:
        self.captured, self.name, self.recorder = captured, name, StepRecorder()
        self.arguments: list[Argument] = []
        self.outputs: list[Value] = []

    def run(self) -> ForwardRun:
        """Forward, backward, update; what the forward pass keeps."""
        graph_module = self.captured.graph_module
        trained = {name: p for name, p in graph_module.named_parameters() if p.requires_grad}
        moments = {name: (torch.empty_like(p), torch.empty_like(p)) for name, p in trained.items()}
        count = torch.empty((), device="meta")
        inputs = self._declare(trained, moments, count)
        forward_run = ForwardRun(self.captured, self.recorder)
        losses = forward_run.forward(inputs, self.name)
        self.outputs += [self.recorder.value_of(loss) for loss in losses]
        with self.recorder.during(Phase.BACKWARD):
            seeds = [torch.ones_like(loss) for loss in losses]
            gradients = gradients_of(losses, seeds, list(trained.values()), self.name)
        with torch.no_grad(), self.recorder.during(Phase.UPDATE):
            updated = count + 1
            corrections = 1 - _ADAM["beta1"] ** updated, (1 - _ADAM["beta2"] ** updated).sqrt()
            results = [updated]
            for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
                if gradient is not None:
                    results += _adam(parameter.detach(), gradient, *moments[name], corrections)
            self.outputs += [self.recorder.value_of(result) for result in results]
        return forward_run

    def path(self, recorded: Recorded) -> str:
        """The layer of an instruction, dots between its modules' names."""
        if recorded.phase is Phase.UPDATE:
            return OPTIMIZER
        node = self.captured.calls[max(recorded.call, 0)]
        return module_path(node) or (LOSS if _LOSSES.search(str(node.target)) else "")

    def _declare(
        self, trained: Mapping[str, Tensor], moments: Mapping[str, tuple[Tensor, Tensor]], count: Tensor
    ) -> list[Any]:
        """Make the step's arguments known to the recorder, and the meta tensors that forward is called with."""
        graph_module = self.captured.graph_module
        for name, tensor in trained.items():
            self._argument(name, "parameter", tensor)
        self._argument("state.step", "state", count, is_seed=True)
        for word, i in (("exp_avg", 0), ("exp_avg_sq", 1)):
            for name, pair in moments.items():
                self._argument(f"state.{name}.{word}", "state", pair[i])
        frozen = [(name, p) for name, p in graph_module.named_parameters() if not p.requires_grad]
        for name, tensor in (*frozen, *graph_module.named_buffers()):
            self._argument(name, "state", tensor)
        inputs = []
        for node in graph_module.graph.nodes:
            if node.op == "placeholder":
                value = node.meta["val"]
                if isinstance(value, Tensor):
                    value = torch.empty_like(value, device="meta")
                    self._argument(str(node.name), "input", value)
                inputs.append(value)
        return inputs

    def _argument(self, name: str, kind: ArgumentKind, tensor: Tensor, *, is_seed: bool = False) -> None:
        self.recorder.argument(tensor, is_seed=is_seed)
        self.arguments.append(Argument(name, kind))


def _adam(
    parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, corrections: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """A parameter and its two moments after an update (Kingma and Ba, arXiv 1412.6980, section 2, last paragraph).

    Args:
        corrections: 1 - β₁ᵗ and √(1 - β₂ᵗ).
    """
    first = torch.lerp(first, gradient, 1 - _ADAM["beta1"])
    second = torch.addcmul(second * _ADAM["beta2"], gradient, gradient, value=1 - _ADAM["beta2"])
    step, spread = first / corrections[0], second.sqrt() / corrections[1] + _ADAM["eps"]
    return [torch.addcdiv(parameter, step, spread, value=-_ADAM["lr"]), first, second]


def _module(name: str, step: _Step, meta: Mapping[str, object]) -> tuple[RuledModule, tuple[int, ...]]:
    """The records of a step that was run, in execution order, and the operator that each is part of."""
    arguments, recorded = step.arguments, _needed(step)
    values = *step.recorder.arguments, *(value for one in recorded for value in one.results)
    numbers = {value.number: i for i, value in enumerate(values)}  # among those that are left
    paths = [step.path(one) for one in recorded]
    operations = [operation_of(i, one, path, name) for i, (one, path) in enumerate(zip(recorded, paths, strict=True))]
    operations = [op._replace(operands=tuple(numbers[v] for v in op.operands)) for op in operations]
    outputs = list(dict.fromkeys(numbers[value.number] for value in step.outputs))
    order = execution_order(operations, arguments, outputs)
    operations, outputs = renumbered(operations, outputs, order, len(arguments))
    ordered = [recorded[i] for i in order]
    module = RuledModule(
        name=name,
        arguments=tuple(arguments),
        argument_types=tuple(value.tensor for value in step.recorder.arguments),
        operations=tuple(operations),
        outputs=tuple(outputs),
        meta=meta,
        derived_rules=partial(module_rules, ordered, step.recorder.arguments),
        layers=tuple(paths[i] for i in order),
        flop=np.array([one.flop for one in ordered]),
        bytes_accessed=np.array([one.moved_bytes for one in ordered]),
        unknown=dict(sorted(step.recorder.unknown.items())),
    )
    return module, tuple(max(one.call, 0) for one in ordered)


def _needed(step: _Step) -> list[Recorded]:
    """The instructions that the step's results and what it overwrites (running averages) depend on.

    A compiler keeps these, and no view that nobody reads.
    """
    needed = {value.number for value in (*step.outputs, *step.recorder.written)}
    needed_ones: list[Recorded] = []
    for one in reversed(step.recorder.instructions):
        if not needed.isdisjoint(value.number for value in one.results):
            needed_ones.append(one)
            needed.update(value.number for value in (*one.operands, *one.read) if value is not None)
    return needed_ones[::-1]


def operation_of(i: int, recorded: Recorded, path: str, name: str) -> Operation:
    """The operation, its location in the form that hlo/locations.py reads."""
    operator = recorded.name
    constant = all(value.constant for value in recorded.results)
    scopes = "/".join([*path.split("."), operator]) if path else operator
    marks = {Phase.FORWARD: f"jvp({name})/", Phase.BACKWARD: f"transpose(jvp({name}))/", Phase.UPDATE: ""}
    return Operation(
        name=f"{operator}.{i}",
        opcode=recorded.word,
        path=scopes if constant else marks[recorded.phase] + scopes,
        trace_order=(i,),
        operands=tuple(value.number for value in recorded.read),
        results=tuple(value.tensor for value in recorded.results),
    )


def module_rules(recorded: Sequence[Recorded], arguments: Sequence[Value]) -> ShardingRules:
    """The rules of all operations. What is made of constants alone counts once for every reader.

    Random numbers may come before the tensor whose shape they have, as they only read the generator's seed.
    """
    tensors = [_divided(value) for value in arguments]
    ids = {value.number: i for i, value in enumerate(arguments)}
    taken: set[int] = set()

    def fresh(kind: TensorType) -> int:
        tensors.append(kind)
        return len(tensors) - 1

    def number(value: Value) -> int:
        if value.number not in ids:
            ids[value.number] = fresh(_divided(value))
        return ids[value.number]

    def read(value: Value | None) -> int:
        if value is None:
            return fresh(TensorType((), "f32"))
        if value.constant and value.number in taken:
            return fresh(_divided(value))
        taken.add(value.number)
        return number(value)

    uses = []
    for i, one in enumerate(recorded):
        values = [read(value) for value in one.operands]
        values += map(number, one.results)
        uses.append(Use(i, one.word, tuple(values), one.rule, len(one.results)))
    return flat_rules(tensors, uses)


def _divided(value: Value) -> TensorType:
    """The type of a value with one dimension for each part."""
    return TensorType(flat(value.parts), value.tensor.dtype)
