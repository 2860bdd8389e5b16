"""Automap's own executor: one process plays its rank's row of a schedule, whatever the numbers of replicas are.

torch.distributed.pipelining runs the same number of replicas in every stage; its classes are what clusters run, and
plans that they can express run by them (torch_schedules). This executor runs the others, such as one replica, two and
one. It also runs whatever the classes run, and tests hold the two against each other.

One stage of three, its two replicas, one micro-batch of four samples:

    stage 0 (1 replica)        samples 0-3 ─┬─ 0-1 ─► replica 0 ─┬─► samples 0-3   stage 2 (1 replica)
                                            └─ 2-3 ─► replica 1 ─┘

Every replica works on its part of a micro-batch alone; gradients are those of the loss summed over parts, each weighed
with its share of the batch's samples. When the last pass that adds to a gradient is over, it is summed over all
processes that hold the parameter: the replicas of its stage, and those of other stages that it is tied to.

Messages of a pair of processes in one direction, activations and gradients apart, go in the order in which their sender
makes them: the receiver posts them in that order, so that they need no tags (nccl has none) and never wait crosswise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils import _pytree as pytree

from automap_models.core.passes import Action, ActionKind
from automap_models.run.layout import Layout, Overlap
from automap_models.run.torch_clock import Clock
from automap_models.run.torch_sharding import keep_gradients, reduce_gradients, shard
from automap_models.run.torch_stages import CutModel, Loss, Seeds, Stage, loss_of

Inputs = Callable[[int, int], Mapping[str, Any]]
"""(stage, micro-batch) → the stage's inputs by name, the replica's samples."""


@dataclass(frozen=True)
class Crossing:
    """A value that crosses a boundary, as both sides see it.

    Attributes:
        shape: [sizes] for one sample in `samples_dim`, else as it is.
        samples_dim: the dimension along which samples lie; None where the value is the same for all.
        per_sample: elements of that dimension a sample.
        dtype: of its elements.
        differentiable: whether a gradient comes back.
    """

    shape: tuple[int, ...]
    samples_dim: int | None
    per_sample: int
    dtype: torch.dtype
    differentiable: bool

    def shape_for(self, samples: int) -> tuple[int, ...]:
        """For that many samples."""
        if self.samples_dim is None:
            return self.shape
        return tuple(size * samples if dim == self.samples_dim else size for dim, size in enumerate(self.shape))

    def part(self, tensor: Tensor, begin: int, end: int) -> Tensor:
        """Of a tensor that begins with sample 0, the samples `begin` … `end`-1."""
        if self.samples_dim is None:
            return tensor
        return tensor.narrow(self.samples_dim, begin * self.per_sample, (end - begin) * self.per_sample)


@dataclass
class _SavedPass:
    """What a stage keeps of a micro-batch until its backward pass: leaves, and what the pass starts from."""

    received: list[Tensor]
    outputs: list[Tensor]
    is_loss: bool
    groups: list[dict[str, Any]] | None = None
    gradients: list[Tensor | None] = field(default_factory=list)


class _Mail:
    """Messages of one direction: gradients, or activations, to higher processes or to lower ones.

    Attributes:
        group: that carries them; None is that of all processes.
        tag: that keeps directions apart where all go through one group.
    """

    def __init__(self, group: dist.ProcessGroup | None, tag: int) -> None:
        self.group, self.tag = group, tag
        self.order: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        self.posted: dict[int, int] = defaultdict(int)
        self.waiting: dict[tuple[Any, ...], list[tuple[Tensor, Any]]] = {}
        self.sent: list[tuple[Any, Tensor]] = []

    def send(self, tensor: Tensor, process: int) -> None:
        """Send without waiting."""
        message = tensor.detach().contiguous()
        self.sent.append((dist.isend(message, process, self.group, self.tag), message))

    def receive(
        self, process: int, key: tuple[Any, ...], buffers: Callable[[tuple[Any, ...]], list[Tensor]]
    ) -> list[Tensor]:
        """The tensors of one message; those that its sender sends before are posted first."""
        order = self.order[process]
        while key not in self.waiting:
            next_key = order[self.posted[process]]
            self.posted[process] += 1
            posted = [(buffer, dist.irecv(buffer, process, self.group, self.tag)) for buffer in buffers(next_key)]
            self.waiting[next_key] = posted
        tensors = []
        for buffer, work in self.waiting.pop(key):
            work.wait()
            tensors.append(buffer)
        return tensors

    def flush(self) -> None:
        """All that was sent has left."""
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()
        self.posted.clear()


class StageExecutor:
    """The rank of one process, for one step after the other.

    Args:
        cut: the model, exported for this process's samples; its tensors are on the device.
        layout: of all processes.
        process: this one.
        crossings: [S-1] what crosses each boundary.
        loss: of the model's output and the target; None takes what the model returns.
        device: of this process.
        seeds: see `Pipeline`.
        zero: 2 and 3 divide the parameters of a stage among its replicas.
        undivided: names of those that are not divided.
    """

    def __init__(
        self,
        cut: CutModel,
        layout: Layout,
        process: int,
        crossings: Sequence[Sequence[Crossing]],
        loss: Loss | None,
        device: torch.device,
        seeds: Seeds | None = None,
        zero: int = 0,
        undivided: Collection[str] = (),
    ) -> None:
        self.cut, self.layout, self.process, self.loss, self.device = cut, layout, process, loss, device
        self.crossings, self.seeds = crossings, seeds
        self.local_stages, self.replica = layout.stages_of(process), layout.replica(process)
        self.order = layout.schedule.orders[layout.schedule.rank_of[self.local_stages[0]]]
        self.splits = layout.schedule.splits_backward
        self.saved: dict[tuple[int, int], _SavedPass] = {}
        self.local: dict[tuple[str, int, int], list[Tensor | None]] = {}
        self.mail: dict[tuple[str, bool], _Mail] = {
            direction: _mail(i) for i, direction in enumerate(product("FB", (True, False)))
        }
        self.losses: list[Tensor] = []
        self.sharded: dict[int, FSDPModule] = self._sharded(zero, undivided) if zero else {}

    def _sharded(self, zero: int, undivided: Collection[str]) -> dict[int, FSDPModule]:
        """Modules of this process's stages whose replicas share parameters, by stage."""
        meshes = {
            processes: DeviceMesh(self.device.type, list(processes))
            for processes in dict.fromkeys(self.layout.processes)
            if len(processes) > 1
        }  # all processes make all of them, in the same order
        sharded = {}
        for s in self.local_stages:
            module, replicas = self.cut.stages[s].module, self.layout.processes[s]
            parameters = [parameter for name, parameter in module.named_parameters() if name in undivided]
            if len(replicas) > 1 and len(parameters) < len(list(module.parameters())):
                sharded[s] = shard(module, meshes[replicas], zero, parameters, summed=True)
        return sharded

    def run(self, inputs: Inputs, targets: Callable[[int], Any], clock: Clock) -> Tensor:
        """Play the row once; gradients are added to those of the parameters.

        Args:
            inputs: of a stage and a micro-batch, this replica's samples.
            targets: of a micro-batch, this replica's samples.
            clock: is told of every pass.

        Returns:
            The part of the step's loss that this process has computed; zero where it has no last stage.
        """
        self._expect()
        for module in self.sharded.values():
            keep_gradients(module)
        self.losses = [torch.zeros((), device=self.device)]
        passes = {"F": self._forward, "B": self._backward, "I": self._input_gradients, "W": self._weight_gradients}
        for action in self.order:
            if action.kind == "F":
                self._forward(action, inputs, targets, clock)
            else:
                passes[action.kind](action, clock)  # type: ignore[operator]
        for mail in self.mail.values():
            mail.flush()
        with clock.timing("G", self.local_stages[0]):
            for module in self.sharded.values():
                reduce_gradients(module)
        return torch.stack(self.losses).sum()

    # ---- passes ------------------------------------------------------------------------------------------------------

    def _forward(self, action: Action, inputs: Inputs, targets: Callable[[int], Any], clock: Clock) -> None:
        _, s, m = action
        stage = self.cut.stages[s]
        arrived = self._take("F", s, m)
        with clock.timing("F", s, m):
            if self.seeds is not None:
                self.seeds(s, m)
            received = [
                value.detach().requires_grad_(described.differentiable)
                for value, described in zip(arrived, stage.received, strict=True)
                if value is not None
            ]
            given = inputs(s, m)
            outputs = list(stage.module(*received, *(given[name] for name in stage.inputs)))
            is_last = s == self.layout.schedule.stages - 1
            if is_last:
                outputs = [self._weighed_loss(outputs, targets(m))]
                self.losses.append(outputs[0].detach())
            elif self.splits:  # torch detaches them in place, which none may be that is a view, a leaf or saved for W
                outputs = [out.clone() for out in outputs]
        self.saved[s, m] = _SavedPass(received, outputs, is_last)
        self._hand_on("F", s, m, outputs)

    def _weighed_loss(self, outputs: list[Any], target: Any) -> Tensor:
        """This replica's part of the loss: the mean over its samples, times its share of all samples."""
        begin, end = self.layout.parts[-1][self.replica]
        returned = pytree.tree_unflatten(outputs, self.cut.out_spec)
        batch = self.layout.samples * self.layout.schedule.micro_batches
        return loss_of(returned, self.loss, target, end - begin) * ((end - begin) / batch)

    def _backward(self, action: Action, clock: Clock) -> None:
        _, s, m = action
        saved = self.saved.pop((s, m))
        gradients = self._take("B", s, m)
        with clock.timing("B", s, m):
            _run_backward(saved, gradients)
        self._hand_on("B", s, m, [leaf.grad for leaf in saved.received])

    def _input_gradients(self, action: Action, clock: Clock) -> None:
        """The gradients of what was received; without any, all is left for W."""
        _, s, m = action
        saved = self.saved[s, m]
        saved.gradients = self._take("B", s, m)
        leaves = [leaf for leaf in saved.received if leaf.requires_grad]
        with clock.timing("I", s, m):
            self._gather_weights(s)
            if leaves:
                saved.groups = self._split_backward(self.cut.stages[s], saved, leaves)
        self._hand_on("B", s, m, [leaf.grad for leaf in saved.received])

    def _split_backward(self, stage: Stage, saved: _SavedPass, leaves: list[Tensor]) -> list[dict[str, Any]]:
        """What is left for W; nothing where a result does not depend on the inputs, which torch's split would lose."""
        back = saved.gradients
        chosen = [
            i for i, out in enumerate(saved.outputs) if out.requires_grad and (saved.is_loss or back[i] is not None)
        ]
        outputs = [saved.outputs[i] for i in chosen]
        if not all(_depends(out, leaves) for out in outputs):
            _run_backward(saved, back)
            return []
        given = None if saved.is_loss else [gradient for i in chosen if (gradient := back[i]) is not None]
        _, groups = stage_backward_input(outputs, given, leaves, iter(_weights(stage)))
        return groups

    def _weight_gradients(self, action: Action, clock: Clock) -> None:
        _, s, m = action
        saved = self.saved.pop((s, m))
        with clock.timing("W", s, m):
            self._gather_weights(s)
            if saved.groups is None:
                _run_backward(saved, saved.gradients)
            elif saved.groups:
                stage_backward_weight(iter(_weights(self.cut.stages[s])), saved.groups)

    def _gather_weights(self, s: int) -> None:
        """Torch's halves of a backward pass take the parameters that the forward pass has read, not their parts."""
        if s in self.sharded:
            self.sharded[s].unshard()

    # ---- messages ----------------------------------------------------------------------------------------------------

    def _is_local(self, boundary: int) -> bool:
        return boundary in self.local_stages and boundary + 1 in self.local_stages

    def _hand_on(self, kind: ActionKind, s: int, m: int, tensors: Sequence[Tensor | None]) -> None:
        """Give values to the next stage, or gradients to the one before, where there is one."""
        boundary, other = (s, s + 1) if kind == "F" else (s - 1, s - 1)
        if self._is_local(boundary):
            self.local[kind, other, m] = [None if tensor is None else tensor.detach() for tensor in tensors]
            return
        begin, _ = self.layout.parts[s][self.replica]
        for (*_, overlap), process in messages(self.layout, self.process, Action(kind, s, m)):
            mail, samples = self.mail[kind, process > self.process], overlap.end - overlap.begin
            for i, crossing in self._indices(kind, boundary, overlap):
                tensor = tensors[i]
                if tensor is None:
                    piece = torch.zeros(crossing.shape_for(samples), dtype=crossing.dtype, device=self.device)
                else:
                    piece = crossing.part(tensor, overlap.begin - begin, overlap.end - begin)
                mail.send(piece, process)

    def _take(self, kind: str, s: int, m: int) -> list[Tensor | None]:
        """What the neighbour hands on: values before a stage, or the gradients of what it sent; none for a loss."""
        boundary, other = (s - 1, s - 1) if kind == "F" else (s, s + 1)
        if other < 0:
            return []
        if other == self.layout.schedule.stages:
            return [None]
        if self._is_local(boundary):
            return self.local.pop((kind, s, m))
        crossings = self.crossings[boundary]
        begin, end = self.layout.parts[s][self.replica]
        tensors: list[Tensor | None] = [None] * len(crossings)
        for overlap in _overlaps(self.layout, boundary, s, self.replica):
            process = self.layout.processes[other][overlap.sender if kind == "F" else overlap.receiver]
            mail = self.mail[kind, process < self.process]
            arrived = iter(mail.receive(process, (kind, boundary, m, overlap), self._buffers))
            for i, crossing in self._indices(kind, boundary, overlap):
                _merge(tensors, i, crossing, next(arrived), overlap, begin, end)
        return tensors

    def _buffers(self, key: tuple[Any, ...]) -> list[Tensor]:
        kind, boundary, _, overlap = key
        samples = overlap.end - overlap.begin
        return [
            torch.empty(crossing.shape_for(samples), dtype=crossing.dtype, device=self.device)
            for _, crossing in self._indices(kind, boundary, overlap)
        ]

    def _indices(self, kind: str, boundary: int, overlap: Overlap) -> list[tuple[int, Crossing]]:
        """Which values go with an overlap: what is the same for all samples, once to each receiver."""
        first = next(one for one in self.layout.overlaps[boundary] if one.receiver == overlap.receiver)
        return [
            (i, crossing)
            for i, crossing in enumerate(self.crossings[boundary])
            if (kind == "F" or crossing.differentiable) and (crossing.samples_dim is not None or overlap is first)
        ]

    def _expect(self) -> None:
        """Lay out in which order each neighbour sends what this process gets, from that one's own row."""
        for mail in self.mail.values():
            mail.order.clear()
        schedule = self.layout.schedule
        for other in range(self.layout.devices):
            if other == self.process:
                continue
            for action in schedule.orders[schedule.rank_of[self.layout.stages_of(other)[0]]]:
                for key, receiver in messages(self.layout, other, action):
                    if receiver == self.process:
                        self.mail[key[0], other < self.process].order[other].append(key)


def messages(layout: Layout, process: int, action: Action) -> list[tuple[tuple[str, int, int, Overlap], int]]:
    """What a process sends after one of its passes: kind, boundary, micro-batch and samples, and who gets it."""
    kind, s, m = action
    forward = kind == "F"
    boundary, other = (s, s + 1) if forward else (s - 1, s - 1)
    if kind == "W" or not 0 <= other < layout.schedule.stages or other in layout.stages_of(process):
        return []
    receivers = layout.processes[other]
    return [
        (("F" if forward else "B", boundary, m, one), receivers[one.receiver if forward else one.sender])
        for one in _overlaps(layout, boundary, s, layout.replica(process))
    ]


def _overlaps(layout: Layout, boundary: int, stage: int, replica: int) -> list[Overlap]:
    """Those of a replica of the stage on one side of a boundary, in the order of the samples."""
    sends = stage == boundary
    return [one for one in layout.overlaps[boundary] if (one.sender if sends else one.receiver) == replica]


def _mail(index: int) -> _Mail:
    """Gloo tells messages apart by tags; nccl needs a group of its own for each direction."""
    if dist.get_backend() == "gloo":
        return _Mail(None, index)
    return _Mail(cast(dist.ProcessGroup, dist.new_group()), 0)


def _merge(
    tensors: list[Tensor | None], i: int, crossing: Crossing, tensor: Tensor, overlap: Overlap, begin: int, end: int
) -> None:
    """Put what arrived for an overlap to the rest: samples in their place; what is the same for all is summed up."""
    before = tensors[i]
    if crossing.samples_dim is None:
        tensors[i] = tensor if before is None else before + tensor
    elif (overlap.begin, overlap.end) == (begin, end):
        tensors[i] = tensor
    else:
        if before is None:
            before = tensors[i] = tensor.new_empty(crossing.shape_for(end - begin))
        crossing.part(before, overlap.begin - begin, overlap.end - begin).copy_(tensor)


def _run_backward(saved: _SavedPass, gradients: Sequence[Tensor | None]) -> None:
    pairs = [
        (out, gradient)
        for out, gradient in zip(saved.outputs, gradients, strict=True)
        if out.requires_grad and (saved.is_loss or gradient is not None)
    ]
    if pairs:
        outputs, given = zip(*pairs, strict=True)
        torch.autograd.backward(outputs, given)


def _weights(stage: Stage) -> list[nn.Parameter]:
    return [parameter for parameter in stage.module.parameters() if parameter.requires_grad]


def _depends(out: Tensor, leaves: Sequence[Tensor]) -> bool:
    """Whether a result has been computed from one of the leaves."""
    views: list[Any] = [leaf.view_as(leaf) for leaf in leaves]
    wanted = {view.grad_fn.next_functions[0][0] for view in views}  # the nodes that add to the leaves' gradients
    pending, visited = [out.grad_fn], set()
    while pending:
        node = pending.pop()
        if node in wanted:
            return True
        if node is not None and node not in visited:
            visited.add(node)
            pending += [below for below, _ in node.next_functions]
    return False
