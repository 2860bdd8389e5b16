"""A torch model cut into the stages of a plan: what each receives, computes and hands on.

The model is exported as one graph of operators (torch_export.capture) and cut after the operators that the plan's
cuts name, as torch.distributed.pipelining cuts where its split_spec says:

    inputs ──┬──────────────┬──────────────┐                 every stage gets the model's inputs that it reads
             ▼              ▼              ▼
          stage 0 ──a──► stage 1 ──a,b──► stage 2 ──► outputs, loss
             b is made by stage 1; a, which stage 2 reads, too, is handed on by stage 1

A stage is a module whose parameters and buffers are the model's own and have its names. What crosses a boundary goes
from stage to stage, as the profile's A counts it, and keeps its layout in memory: a stage gets it as the operators
before made it, on which kernels and the masks of dropout depend. Shapes are those of the samples that were exported; a
stage whose replicas have fewer is exported with as many.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from automap_models.core.plan import Plan
from automap_models.core.profile import Profile
from automap_models.cost.kernel_traffic import VIEW_OPCODES
from automap_models.errors import BadInput
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.profile import profile_from_graph
from automap_models.torch_export.capture import Captured, capture, module_path, training_outputs
from automap_models.torch_export.operators import CONSTANT
from automap_models.torch_export.step import traced_step
from automap_models.torch_export.structure import BEFORE, LAST, cut_options, module_frames
from automap_models.user_code import user_code

Loss = Callable[[Any, Any], Tensor]
Seeds = Callable[[int, int], None]
"""Is called before a forward pass with the stage and the micro-batch, to seed what is random."""
Sampled = tuple[bool, ...]
"""Of each leaf of a tree, whether it is a tensor of samples."""
AFTER = "after "
"""Prefix of the name of a cut after an operator of the exported graph, where no module begins or ends."""
WITHOUT_GRADIENT = {torch.ops.aten.detach.default, torch.ops.aten.detach_.default}
MIXING = {"batch_norm", "native_batch_norm", "_native_batch_norm_legit"}
"""Operators that compute with several samples at once."""


@dataclass(frozen=True)
class Value:
    """A tensor that crosses a boundary between stages.

    Attributes:
        name: of its node in the graph.
        shape: for the samples that were exported, dimensions in the order of memory.
        dtype: of its elements.
        differentiable: whether a gradient comes back for it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool


@dataclass(frozen=True)
class Stage:
    """One stage of a cut model.

    Attributes:
        module: called with the received values in order and the inputs by name; returns the sent values, or the last
            stage the model's flat outputs.
        received, sent: what crosses the boundaries before and after it.
        inputs: names of the model's inputs that it reads.
        parameters: names of the trainable ones that it reads.
    """

    module: fx.GraphModule
    received: tuple[Value, ...]
    sent: tuple[Value, ...]
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class CutModel:
    """A model cut into stages, for a number of samples.

    Attributes:
        stages: in order.
        out_spec: how flat outputs make up what the model returns.
        inputs: names of all inputs in the order of the flattened arguments.
        random: modules that draw random numbers.
        mixing: modules that compute with several samples at once, with the stage of each.
    """

    stages: tuple[Stage, ...]
    out_spec: Any
    inputs: tuple[str, ...]
    random: tuple[str, ...]
    mixing: tuple[tuple[str, int], ...]

    def holders(self) -> dict[str, tuple[int, ...]]:
        """A name of each trainable parameter → the stages that read it, tied ones being the same."""
        names: dict[int, str] = {}
        stages: dict[str, list[int]] = {}
        for s, stage in enumerate(self.stages):
            for name, parameter in stage.module.named_parameters():
                if parameter.requires_grad:
                    stages.setdefault(names.setdefault(id(parameter), name), []).append(s)
        return {name: tuple(holding) for name, holding in stages.items()}


def cut_model(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], cut_names: Sequence[str], *, name: str
) -> CutModel:
    """Export a model for these inputs and cut it; it is put into training mode and its tensors are used as they are.

    Args:
        cut_names: [S-1] names of the cuts, as in a profile of the model, or as `in_operators` gives them.

    Raises:
        BadInput: torch.export refuses the model, or it has no such cuts in that order.
    """
    captured = capture(model, args, kwargs, name=name, in_place=True)
    calls = captured.calls
    after = _cut_calls(calls, cut_names, name)
    stage_of = _stages_of_nodes(captured.graph_module.graph, calls, after)
    crossing = _crossing(captured.graph_module.graph, stage_of, len(after) + 1)
    depends = _differentiable(captured)
    values = {
        node: Value(
            node.name,
            tuple(node.meta["val"].shape[dim] for dim in _memory_order(node)),
            node.meta["val"].dtype,
            node in depends,
        )
        for nodes in crossing
        for node in nodes
    }
    stages = tuple(_stage(captured, stage_of, crossing, values, s) for s in range(len(after) + 1))
    return CutModel(
        stages=stages,
        out_spec=captured.out_spec,
        inputs=tuple(str(node.target) for node in captured.graph_module.graph.nodes if node.op == "placeholder"),
        random=tuple(dict.fromkeys(module_path(node) for node in calls if _draws(node))),
        mixing=tuple(dict.fromkeys((module_path(node), stage_of[node]) for node in calls if _base(node) in MIXING)),
    )


def in_modules(plan: Plan, model: nn.Module) -> bool:
    """Whether the cuts of a plan have names that `cut_model` understands, as those of automap profile's models do."""
    if not plan.cut_names:
        return plan.stages[-1].last_name == LAST
    modules = {name for name, _ in model.named_modules()}
    return all(cut.startswith(AFTER) or cut.removeprefix(BEFORE) in modules for cut in plan.cut_names)


def in_operators(plan: Plan, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, name: str) -> Plan:
    """A plan that automap plan made of the traced step, with its cuts at the model's operators.

        operations of the plan   view  mm  add │ gelu │ view  mm  add      a cut may lie where │ is: an operator
        operators of the model      linear       gelu      linear_1        runs in one stage

    What takes no time, such as views and constants, may lie on either side. A cut has the name of the module that ends
    or begins there, if one does.

    Raises:
        BadInput: the plan was made for another model, or cuts one of its operators in two.
    """
    traced = traced_step(model, args, kwargs, name=name)
    graph, captured = instruction_graph(traced.module), traced.captured
    profile, options = profile_from_graph(graph, np.ones(len(graph))), cut_options(captured.calls, captured.model)
    require_model(plan, profile, name)
    call_of = {
        operation: call
        for operation, call, opcode in zip(graph.names, traced.calls, graph.opcodes, strict=True)
        if opcode not in {*VIEW_OPCODES, CONSTANT}
    }
    computing = [(i, call_of[operation]) for i, operation in enumerate(profile.names) if operation in call_of]
    stages = [*plan.stages[:-1], replace(plan.stages[-1], last_name=LAST)]
    for s, stage in enumerate(plan.stages[:-1]):
        last = max((call for i, call in computing if i <= stage.last), default=0)
        node = captured.calls[last]
        if any(call == last for i, call in computing if i > stage.last):
            what = (
                f"stage {s} ends at {stage.last_name}, inside {node.name} of {module_path(node) or name}, which torch"
            )
            do = "plan again with `cut_at='blocks'`, or make a profile with automap profile and plan that"
            raise BadInput(f"{what} runs as one operator", where=plan.where, do=do)
        stages[s] = replace(stage, last_name=next(iter(options.get(last, ())), AFTER + node.name))
    return replace(plan, stages=tuple(stages))


def require_model(plan: Plan, profile: Profile, name: str) -> None:
    """Refuse a plan of another model than the profiled one.

    Raises:
        BadInput: its instructions or parameters are others.
    """
    same = plan.model_fingerprint in (None, profile.model_fingerprint) and len(profile) == plan.instructions
    if not same or not {*plan.cut_names} <= {*profile.names}:
        what = f"was made for another model than {name} ({plan.model}, {plan.instructions} instructions)"
        do = f"plan {name} with automap plan, or profile it with automap profile; or give the plan's own model"
        raise BadInput(what, where=plan.where, do=do)


def _cut_calls(calls: Sequence[fx.Node], cut_names: Sequence[str], name: str) -> list[int]:
    """The operator after which each cut is.

    A module's end is the last of its operators, its beginning the operator before its first one.
    """
    operators = {AFTER + node.name: i for i, node in enumerate(calls)}
    frames = [[path for _, path in frame] for frame in module_frames(calls)]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, frame in enumerate(frames):
        for path in frame:
            first.setdefault(path, i)
            last[path] = i
    after: list[int] = []
    for cut in cut_names:
        path = cut.removeprefix(BEFORE)
        position = first.get(path, 0) - 1 if cut.startswith(BEFORE) else operators.get(cut, last.get(path, -1))
        previous = after[-1] if after else -1
        if not previous < position < len(calls) - 1:
            what = f"has no place to cut called {cut!r} after that of the stage before"
            raise BadInput(what, where=name, do="give the model that the plan was made for, or plan again")
        after.append(position)
    return after


def _stages_of_nodes(graph: fx.Graph, calls: Sequence[fx.Node], after: Sequence[int]) -> dict[fx.Node, int]:
    """The stage of each operator; what takes a part of a tuple goes with the operator that returns it."""
    stage_of: dict[fx.Node, int] = {}
    for i, node in enumerate(calls):
        stage = sum(cut < i for cut in after)
        picks = node.target is operator.getitem and isinstance(node.args[0], fx.Node)
        stage_of[node] = stage_of[node.args[0]] if picks else stage  # type: ignore[index]
    stage_of[next(node for node in graph.nodes if node.op == "output")] = len(after)
    return stage_of


def _crossing(graph: fx.Graph, stage_of: Mapping[fx.Node, int], stages: int) -> list[list[fx.Node]]:
    """[S-1] values made by a stage up to that boundary and read behind it, in the order of the graph."""
    crossing: list[list[fx.Node]] = [[] for _ in range(stages - 1)]
    for node in graph.nodes:
        if node in stage_of and node.op != "output":
            readers = [stage_of[user] for user in node.users]
            for boundary in range(stage_of[node], max(readers, default=0)):
                crossing[boundary].append(node)
    return crossing


def _differentiable(captured: Captured) -> set[fx.Node]:
    """Operators whose result may depend on a trainable parameter; a gradient that is none then comes as zeros."""
    trainable = {
        path for path, parameter in captured.model.named_parameters(remove_duplicate=False) if parameter.requires_grad
    }
    depends: set[fx.Node] = set()
    for node in captured.graph_module.graph.nodes:
        if node.op == "get_attr":
            if str(node.target) in trainable:
                depends.add(node)
        elif any(source in depends for source in node.all_input_nodes) and node.target not in WITHOUT_GRADIENT:
            value = node.meta.get("val")
            if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
                depends.add(node)
    return depends


def _stage(
    captured: Captured,
    stage_of: Mapping[fx.Node, int],
    crossing: Sequence[Sequence[fx.Node]],
    values: Mapping[fx.Node, Value],
    s: int,
) -> Stage:
    """Copy the operators of a stage into a graph of their own."""
    nodes = list(captured.graph_module.graph.nodes)
    stage_nodes = [node for node in nodes if stage_of.get(node) == s]
    read = {source for node in stage_nodes for source in node.all_input_nodes}
    received = list(crossing[s - 1]) if s else []
    sent = list(crossing[s]) if s < len(crossing) else []
    graph, copies = fx.Graph(), {}
    arriving = [graph.placeholder(node.name) for node in received]
    inputs = [node for node in nodes if node.op == "placeholder" and node in read]
    for node in inputs:
        # Inputs of the model, a mask for instance, reach a stage that reads them without a message.
        copies[node] = graph.placeholder(f"input_{node.name}")
    for node, arrived in zip(received, arriving, strict=True):
        # Messages are packed in the order of memory: the dimensions are put back as the operators were traced.
        order = _memory_order(node)
        copies[node] = _permuted(graph, arrived, tuple(sorted(range(len(order)), key=order.__getitem__)))
        # What was received is a leaf of autograd, which no operator may change in place.
        if any(_writes_to(user, node) for user in node.users if stage_of.get(user) == s):
            copies[node] = graph.call_function(torch.ops.aten.clone.default, (copies[node],))
    for node in nodes:
        if node.op == "get_attr" and node in read:
            copies[node] = graph.node_copy(node)
    for node in stage_nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    if s < len(crossing):
        graph.output(tuple(_packed(graph, copies[node], _memory_order(node)) for node in sent))
    else:
        output = next(node for node in stage_nodes if node.op == "output")
        flat = pytree.tree_leaves(output.args[0])
        graph.output(tuple(copies.get(leaf, leaf) if isinstance(leaf, fx.Node) else leaf for leaf in flat))
    module = fx.GraphModule(captured.graph_module, graph)
    trainable = [path for path, parameter in module.named_parameters() if parameter.requires_grad]
    return Stage(
        module,
        tuple(values[node] for node in received),
        tuple(values[node] for node in sent),
        tuple(str(node.target) for node in inputs),
        tuple(trainable),
    )


def _memory_order(node: fx.Node) -> tuple[int, ...]:
    """Its dimensions from the one with the largest stride to the one whose elements are neighbours."""
    strides = node.meta["val"].stride()
    return tuple(sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim)))


def _permuted(graph: fx.Graph, node: fx.Node, order: tuple[int, ...]) -> fx.Node:
    if order == tuple(range(len(order))):
        return node
    return graph.call_function(torch.ops.aten.permute.default, (node, list(order)))


def _packed(graph: fx.Graph, node: fx.Node, order: tuple[int, ...]) -> fx.Node:
    """In the order of memory and without gaps, as messages are."""
    return graph.call_function(torch.ops.aten.contiguous.default, (_permuted(graph, node, order),))


def _writes_to(user: fx.Node, value: fx.Node) -> bool:
    """Whether an operator changes the value in place: one that was received is a leaf of autograd, which it cannot."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return False
    return any(
        argument.alias_info is not None and argument.alias_info.is_write and given is value
        for argument, given in zip(schema.arguments, user.args, strict=False)
    )


def _base(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]


def _draws(node: fx.Node) -> bool:
    """Whether an operator draws random numbers: by torch's tag, unless it is told to drop nothing or not to train."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = getattr(node.target, "_schema").arguments  # noqa: B009  # of an operator, which has tags
    given = {argument.name: argument.default_value for argument in arguments}
    given |= {argument.name: value for argument, value in zip(arguments, node.args, strict=False)} | dict(node.kwargs)
    trains = all(given.get(name) is not False for name in ("train", "training"))
    return trains and all(given.get(name) != 0 for name in ("p", "dropout", "dropout_p"))


def flat_inputs(cut: CutModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The model's inputs by the names that stages know them by."""
    return dict(zip(cut.inputs, pytree.tree_leaves((args, dict(kwargs))), strict=True))


def sampled(tree: Any, samples: int) -> Sampled:
    """Which leaves of a tree with so many samples are tensors of them.

    The example of one micro-batch tells: a tensor whose first dimension is the number of its samples holds samples, as
    it does in a whole batch; all others, such as a mask of [tokens, tokens], are given whole.
    """
    return tuple(
        isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == samples for leaf in pytree.tree_leaves(tree)
    )


def rows(tree: Any, sampling: Sampled, picked: slice | Tensor) -> Any:
    """The tree with some samples of its tensors of samples, and whatever else it has."""
    leaves, spec = pytree.tree_flatten(tree)
    some = [leaf[picked] if has_samples else leaf for leaf, has_samples in zip(leaves, sampling, strict=True)]
    return pytree.tree_unflatten(some, spec)


def loss_of(returned: Any, loss: Loss | None, target: Any, samples: int) -> Tensor:
    """The loss of a forward pass as a mean over its samples.

    Without a loss of the user's it is the one that the model returns (`training_outputs`): a scalar as it is; of
    several outputs the sum of all their elements over the number of samples.

    Raises:
        BadInput: the user's loss is no tensor of one element that depends on the model's output.
        UserCodeError: it raises.
    """
    if loss is not None:
        with user_code("the loss of the factory"):
            value = loss(returned, target)
        return _required_loss(value)
    outputs = training_outputs(returned)
    if len(outputs) == 1 and outputs[0].numel() == 1:
        return outputs[0].reshape(())
    return torch.stack([output.sum() for output in outputs]).sum() / samples


def _required_loss(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        wrong = f"is of type {type(value).__name__}"
    elif value.numel() != 1:
        wrong = f"is a tensor of shape {list(value.shape)}"
    elif torch.is_grad_enabled() and not value.requires_grad:
        wrong = "does not depend on the model's output"
    else:
        return value.reshape(())
    raise BadInput(wrong, where="the loss of the factory", do="return its mean over samples, a tensor of one element")


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers under all their names, tied ones included."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
