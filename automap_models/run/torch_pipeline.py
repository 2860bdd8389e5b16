"""A model that trains as a plan says: one object a process, in the user's own training loop.

dist.init_process_group("gloo")                          # torchrun starts the processes
pipeline = Pipeline(model, "plan.json", example)         # example: the inputs of one micro-batch
optimizer = torch.optim.AdamW(pipeline.parameters())
for batch, target in data:
    loss = pipeline.step(batch, target)                  # every process is given the whole batch
    optimizer.step()
torch.save(pipeline.state_dict(), "model.pt")            # names and shapes are those of the whole model
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from automap_models.core.plan import Plan
from automap_models.errors import BadInput
from automap_models.formats.plan import written_plan
from automap_models.formats.staged_plan import StagedDocument
from automap_models.run.base import Executor, run_schedule
from automap_models.run.layout import Layout, sampled_layout
from automap_models.run.torch_clock import Clock
from automap_models.run.torch_executor import Crossing, StageExecutor
from automap_models.run.torch_schedules import ScheduleExecutor, why_not
from automap_models.run.torch_sharding import assign, full_tensor, local_of, require_zero
from automap_models.run.torch_stages import (
    CutModel,
    Loss,
    Sampled,
    Seeds,
    Value,
    cut_model,
    flat_inputs,
    in_modules,
    in_operators,
    named_tensors,
    rows,
    sampled,
)
from automap_models.torch_export.capture import first_dimension

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
"""A model's inputs: one tensor, positional arguments, or keyword arguments."""


class Pipeline:
    """The stages of one process, their parameters, and a step of all processes.

    All processes of the group make one, with the same model (same values: seed alike) and the same arguments.

    Args:
        model: the whole model, on any device; its tensors become those of the stages.
        plan: a plan.json, or the plan in one.
        inputs: of one micro-batch, the first dimension of tensors being samples; only shapes count.
        loss: of the model's output and the target, a mean over samples. None takes the loss that the model returns.
        target: what `loss` is given for one micro-batch; only shapes count. None: tensors whose first dimension is that
            of a whole batch are samples.
        schedule, virtual: see `base.run_schedule`; None is the plan's own.
        executor: who runs the passes. None: torch's classes where they can run the plan without splitting the
            backward pass, else automap's.
        zero: stage of ZeRO inside stages: 0 for DDP, 2 or 3 for FSDP2 (see `torch_sharding`). Parameters are then parts
            of the whole ones; without a reference to `model` the rest of its memory is free.
        device: of this process; the CPU by default.
        seeds: is called before each forward pass with the stage and the micro-batch, to seed what is random.
        name: of the model, in messages.

    Raises:
        BadInput: the plan is not this model's, needs another number of processes or more samples, or torch cannot
            export or run the model.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: str | os.PathLike[str] | Plan,
        inputs: Inputs,
        *,
        loss: Loss | None = None,
        target: Any = None,
        schedule: str | None = None,
        virtual: int | None = None,
        executor: Executor | None = None,
        zero: int = 0,
        device: torch.device | None = None,
        seeds: Seeds | None = None,
        name: str | None = None,
    ) -> None:
        require_zero(zero)
        self.plan = plan if isinstance(plan, Plan) else written_plan(plan, StagedDocument)
        self.name, self.device = name or type(model).__name__, device or torch.device("cpu")
        self.schedule = run_schedule(self.plan, schedule, virtual)
        args, kwargs = arguments_of(inputs)
        if not in_modules(self.plan, model):
            self.plan = in_operators(self.plan, model, args, kwargs, name=self.name)
        samples = self.plan.microbatch_size or first_dimension(args, kwargs)
        self.layout = sampled_layout(self.plan, self.schedule, samples)
        self.process = _require_processes(self.layout)
        self._own_size = first_dimension(args, kwargs)
        self._of_inputs = sampled((args, kwargs), self._own_size)
        self._of_target = None if target is None else sampled(target, self._own_size)
        model.to(self.device)
        self._names, self._shapes, self._persistent = _names_of(model)
        self._state = list(model.state_dict())
        self.cut = self._exported(model, args, kwargs, self._own_samples())
        self.executor = self._choose_executor(executor)
        self._tensors = self._held_tensors()
        named = model.named_parameters(remove_duplicate=False)
        self._unused = {name: tensor for name, tensor in named_tensors(model) if not self._stages_of.get(name)}
        self.trainable = {name for name, parameter in named if parameter.requires_grad}
        self._groups = self._make_groups()
        self._synchronise()
        seeds = seeds if self.cut.random else None
        self._executor: StageExecutor | ScheduleExecutor
        if self.executor == "torch":
            self._executor = ScheduleExecutor(self.cut, self.layout, self.process, loss, self.device, seeds, zero)
        else:
            crossings = self._crossings(model, args, kwargs)
            entire = {alias for name in self._catalogue if not self._is_divisible(name) for alias in self._names[name]}
            self._executor = StageExecutor(
                self.cut, self.layout, self.process, crossings, loss, self.device, seeds, zero, entire
            )
        self._tensors = self._held_tensors()  # those that the replicas of a stage share are others now

    # ---- use ---------------------------------------------------------------------------------------------------------

    def step(self, batch: Inputs, target: Any = None, *, clock: Clock | None = None) -> float:
        """Forward and backward passes of a whole batch; afterwards `grad` of the parameters holds its gradients.

        Args:
            batch: the model's inputs for all micro-batches, the same in every process.
            target: what the loss is given; tensors of samples are split as the inputs are.
            clock: is told of every pass.

        Returns:
            The loss, a mean over all samples, in every process.

        Raises:
            BadInput: the samples do not make the plan's micro-batches.
        """
        args, kwargs = arguments_of(batch)
        inputs = flat_inputs(self.cut, args, kwargs)
        self._require_whole(inputs)
        of_target = sampled(target, self._batch_size) if self._of_target is None else self._of_target
        clock = clock or Clock(self.device, self.layout.replica(self.process))
        for parameter in self.parameters():
            parameter.grad = None
        last = self.layout.schedule.stages - 1
        part = self._executor.run(
            lambda s, m: self._rows(inputs, self._of_inputs, s, m),
            lambda m: self._rows(target, of_target, last, m),
            clock,
        )
        with clock.timing("G", self.layout.stages_of(self.process)[0]):
            self._reduce()
        part = part.to(torch.float64)  # of another type where another process has none of the loss
        dist.all_reduce(part)
        return float(part)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trainable parameters of this process's stages, each once, by the whole model's names."""
        for name, tensor in self._tensors.items():
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                yield name, tensor

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trainable parameters of this process's stages."""
        return (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """The whole model's state, in every process; all of them must call it."""
        used = self.gather(lambda tensor: tensor, self._persistent)
        return {name: used.get(name, self._unused.get(name)) for name in self._state}  # type: ignore[misc]

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take this process's part of a whole model's state.

        Raises:
            BadInput: a tensor is missing or has another shape.
        """
        for name, tensor in self._tensors.items():
            if name in self._persistent:
                given = next((state[alias] for alias in self._names[name] if alias in state), None)
                if given is None or given.shape != tensor.shape:
                    what = f"has no {name} of shape {list(tensor.shape)}"
                    raise BadInput(what, where="the state", do="give the state of the same model")
                assign(tensor, given)

    def gather(self, value: Callable[[Tensor], Tensor | None], names: set[str] | None = None) -> dict[str, Tensor]:
        """A value of every parameter and buffer of the model, from the first process that holds it, in every process.

        Args:
            value: of a parameter or buffer that is held here; None stands for zeros.
            names: only these; of tied tensors all names get the value.
        """
        gathered: dict[str, Tensor] = {}
        for name, (shape, dtype, owner) in self._catalogue.items():
            if names is not None and name not in names:
                continue
            replicas = self.layout.processes[self._stages_of[name][0]]
            local = value(self._tensors[name]) if self.process in replicas else None
            full = None if local is None else full_tensor(local).detach()
            tensor = torch.zeros(shape, dtype=dtype, device=self.device) if full is None else full.clone()
            dist.broadcast(tensor, owner)
            gathered.update(dict.fromkeys(self._names[name], tensor))
        return gathered

    # ---- construction ------------------------------------------------------------------------------------------------

    def _own_samples(self) -> int:
        begin, end = self.layout.parts[self.layout.stages_of(self.process)[0]][self.layout.replica(self.process)]
        return end - begin

    def _exported(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> CutModel:
        def sized(tensor: Tensor) -> Tensor:
            """That many samples on this process's device."""
            tensor = tensor.to(self.device) if not tensor.is_meta else torch.ones_like(tensor, device=self.device)
            if not tensor.dim() or tensor.shape[0] != self._own_size:
                return tensor
            return tensor[torch.arange(samples, device=self.device) % self._own_size]

        args, kwargs = pytree.tree_map_only(Tensor, sized, (args, dict(kwargs)))
        return cut_model(model, args, kwargs, self.plan.cut_names, name=self.name)

    def _choose_executor(self, executor: Executor | None) -> Executor:
        """Who runs the passes."""
        obstacle = why_not(self.layout, self.cut.holders())
        if executor == "torch" and obstacle is not None:
            what = f"torch's schedule classes cannot run it: {obstacle}"
            raise BadInput(what, where=self.plan.where, do="leave `executor` to automap")
        if executor == "torch" or (executor is None and obstacle is None):
            return "torch"
        return "automap"

    def _is_divisible(self, name: str) -> bool:
        """Whether the stages that hold a tensor could each divide it among as many replicas of their own."""
        replicas = [self.layout.processes[s] for s in self._stages_of[name]]
        return len({*replicas}) == len(replicas) and len({*map(len, replicas)}) == 1

    def _crossings(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[list[Crossing]]:
        """What crosses each boundary; where parts differ in size, by exporting for another number of samples."""
        sent = [stage.sent for stage in self.cut.stages[:-1]]
        if self.layout.is_even:
            return [[_same_for_all(value) for value in values] for values in sent]
        samples = self._own_samples()
        other = next(size for size in self.layout.part_sizes if size != samples)
        again = [stage.sent for stage in self._exported(model, args, kwargs, other).stages[:-1]]
        return [
            [_crossing(*pair, samples, other, self.name) for pair in zip(values, others, strict=True)]
            for values, others in zip(sent, again, strict=True)
        ]

    def _held_tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers of this process's stages under the first of their names, and a catalogue of all."""
        canonical = {alias: name for name, aliases in self._names.items() for alias in aliases}
        read = [
            {canonical[name] for name, _ in named_tensors(stage.module) if name in canonical}
            for stage in self.cut.stages
        ]
        stages = {name: tuple(s for s, names in enumerate(read) if name in names) for name in self._names}
        named = {
            canonical[name]: tensor
            for s in self.layout.stages_of(self.process)
            for name, tensor in named_tensors(self.cut.stages[s].module)
            if name in canonical
        }
        self._catalogue = {
            name: (shape, dtype, self.layout.processes[stages[name][0]][0])
            for name, (shape, dtype) in self._shapes.items()
            if stages[name]
        }
        self._stages_of = stages
        return named

    def _processes_of(self, name: str) -> tuple[int, ...]:
        """That hold a tensor."""
        return tuple(sorted({process for s in self._stages_of[name] for process in self.layout.processes[s]}))

    def _summed(self, name: str) -> tuple[int, ...]:
        """Processes over which a gradient is still to be summed after a step, as this process sees it."""
        if self.executor == "automap" and not isinstance(self._tensors[name], DTensor):
            return self._processes_of(name)
        replica = self.layout.replica(self.process)  # DDP or FSDP has reduced over replicas
        return tuple(sorted({self.layout.processes[s][replica] for s in self._stages_of[name]}))

    def _make_groups(self) -> dict[tuple[int, ...], dist.ProcessGroup]:
        """A group for each set of processes that hold a tensor; all processes make all groups, in the same order."""
        sets = {self._processes_of(name) for name in self._catalogue}
        for name in filter(self._is_divisible, self._catalogue):
            sets |= {
                tuple(sorted(alike))
                for alike in zip(*map(self.layout.processes.__getitem__, self._stages_of[name]), strict=True)
            }
        groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(sets) if len(ranks) > 1}
        return cast(dict[tuple[int, ...], dist.ProcessGroup], groups)

    def _synchronise(self) -> None:
        """Copies of a tensor begin with the values of the first process that holds it."""
        for name in self._catalogue:
            ranks = self._processes_of(name)
            if self.process in ranks and len(ranks) > 1:
                dist.broadcast(self._tensors[name].detach(), ranks[0], self._groups[ranks])

    # ---- a step ------------------------------------------------------------------------------------------------------

    @property
    def _batch_size(self) -> int:
        """Samples of a whole batch."""
        return self.layout.samples * self.schedule.micro_batches

    def _require_whole(self, inputs: dict[str, Any]) -> None:
        """Refuse inputs of other samples than the plan's batch has."""
        needed = self._batch_size
        for leaf, has_samples in zip(inputs.values(), self._of_inputs, strict=True):
            size = len(leaf) if isinstance(leaf, Tensor) and leaf.dim() else 0
            if has_samples and size != needed:
                what = f"a batch of {size} samples is not {self.schedule.micro_batches} micro-batches"
                do = f"give {needed} samples in the first dimension, or plan with another global batch"
                raise BadInput(f"{what} of {self.layout.samples}", where=self.plan.where, do=do)

    def _rows(self, tree: Any, sampling: Sampled, s: int, m: int) -> Any:
        """A micro-batch's samples of this replica in stage s, on its device; what is no batch is given whole."""
        begin, end = self.layout.parts[s][self.layout.replica(self.process)]
        first = m * self.layout.samples
        part = rows(tree, sampling, slice(first + begin, first + end))
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(self.device), part)

    def _reduce(self) -> None:
        """Sum gradients over the processes that hold their parameters, those of one group in one message."""
        together: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for name, parameter in sorted(self.named_parameters()):
            if len(self._summed(name)) > 1:
                together.setdefault(self._summed(name), []).append(parameter)
        for ranks, parameters in sorted(together.items()):
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [local_of(parameter.grad) for parameter in parameters if parameter.grad is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat, group=self._groups[ranks])
            for gradient, total in zip(gradients, torch.split(flat, [one.numel() for one in gradients]), strict=True):
                gradient.copy_(total.view_as(gradient))


def arguments_of(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments; a pair of a tuple and a dict is both."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if len(inputs) == 2 and isinstance(inputs[0], tuple) and isinstance(inputs[1], Mapping):
        return inputs[0], dict(inputs[1])
    return tuple(inputs), {}


def _require_processes(layout: Layout) -> int:
    """This process's number."""
    if not dist.is_initialized():
        do = "call torch.distributed.init_process_group first; torchrun or automap run start the processes"
        raise BadInput("is not initialised", where="torch.distributed", do=do)
    world = dist.get_world_size()
    if world != layout.devices:
        what = f"the plan runs on {layout.devices} process(es), of which there are {world}"
        raise BadInput(what, where=layout.where, do=f"start {layout.devices}, one a device")
    return dist.get_rank()


def _same_for_all(value: Value) -> Crossing:
    """A value that is exchanged as a whole: all parts are equal and meet one to one."""
    return Crossing(value.shape, None, 1, value.dtype, value.differentiable)


def _crossing(value: Value, again: Value, samples: int, others: int, name: str) -> Crossing:
    """Where the samples are in a value: in the dimension that changes when their number does."""
    changed = [dim for dim, sizes in enumerate(zip(value.shape, again.shape, strict=True)) if len(set(sizes)) > 1]
    if not changed:
        return _same_for_all(value)
    dim = changed[0]
    per_sample, rest = divmod(value.shape[dim], samples)
    if len(changed) > 1 or rest or again.shape[dim] != per_sample * others:
        what = f"{value.name}, which crosses a cut, has no dimension of samples: {list(value.shape)} for {samples}"
        raise BadInput(what, where=name, do="cut elsewhere, or plan with `equal_replicas`")
    shape = tuple(per_sample if position == dim else size for position, size in enumerate(value.shape))
    return Crossing(shape, dim, per_sample, value.dtype, value.differentiable)


def _names_of(model: nn.Module) -> tuple[dict[str, list[str]], dict[str, tuple[torch.Size, torch.dtype]], set[str]]:
    """Parameters and buffers by their first name: all names, shape and type, and which are part of the state."""
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    shapes: dict[str, tuple[torch.Size, torch.dtype]] = {}
    for name, tensor in named_tensors(model):
        first_name = first.setdefault(id(tensor), name)
        names.setdefault(first_name, []).append(name)
        shapes[first_name] = tensor.shape, tensor.dtype
    state = set(model.state_dict(keep_vars=True))
    return names, shapes, {first_name for first_name, aliases in names.items() if state & set(aliases)}
