"""Plans of small torch models under many schedules; worker processes import this module and share what they export.

A model is exported once a process for each size of a replica's part, whatever the plan: only cutting is done again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pipelines
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from automap_models.core.plan import Plan
from automap_models.core.schedules import SCHEDULES
from automap_models.run import Pipeline, torch_stages
from automap_models.torch_export.capture import Captured, capture

STEPS, RATE = 2, 0.1


class Case(NamedTuple):
    """One way to run a plan; `executor` None leaves it to the pipeline."""

    plan: Plan
    schedule: str
    executor: str | None
    zero: int = 0


class Trained(NamedTuple):
    """What training came to: losses of both steps, gradients of the first by name, and who ran the passes.

    `local_share` is the share of its stages' parameters that the first process has between steps.
    """

    losses: list[float]
    gradients: dict[str, Any]
    executor: str = ""
    local_share: float = 1.0


class Example(NamedTuple):
    """A model with its first values, a batch of all micro-batches, and its loss where that is outside."""

    model: nn.Module
    first: dict[str, Tensor]
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    loss: Any
    target: Any


@cache
def example(name: str) -> Example:
    """One a process; its values change."""
    torch.manual_seed(0)
    model, inputs, *rest = pipelines.WITHOUT_DRAWS[name]()
    given = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    _, loss, target = rest or ({}, None, None)
    first = {key: value.clone() for key, value in model.state_dict().items()}
    return Example(model, first, given, loss, target)


def repeated(tree: Any, micro_batches: int) -> Any:
    """Other samples in every micro-batch: those of the example, shifted."""
    return pytree.tree_map_only(Tensor, lambda one: torch.cat([one.roll(m, 0) for m in range(micro_batches)]), tree)


def on_one_process(name: str, micro_batches: int) -> Trained:
    """The whole batch at once, by torch's own autograd."""
    model, first, inputs, loss_of, target = example(name)
    model.load_state_dict(first)
    args, kwargs = repeated(inputs, micro_batches)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses, gradients = [], {}
    for _ in range(STEPS):
        optimizer.zero_grad()
        returned = model(*args, **kwargs)
        if loss_of is not None:
            loss = loss_of(returned, repeated(target, micro_batches))
        else:
            loss = returned["loss"] if isinstance(returned, dict) else returned[0]
        loss.backward()
        losses.append(float(loss.detach()))
        gradients = gradients or {key: one.grad.numpy().copy() for key, one in model.named_parameters()}
        optimizer.step()
    return Trained(losses, gradients)


def run_cases(rank: int, name: str, cases: list[Case], world: int, rendezvous: str) -> list[Trained]:
    """All cases one after another in one group of processes; the first process returns what they came to."""
    torch_stages.capture = _captured_once
    gc.freeze()  # what torch itself is made of is not looked through after every case
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
    try:
        return [_run(name, case) for case in cases]
    finally:
        torch_stages.capture = capture  # later duties of this process have models of their own
        dist.destroy_process_group()


def _run(name: str, case: Case) -> Trained:
    model, first, inputs, loss, target = example(name)
    model.load_state_dict(first)
    how: dict[str, Any] = {"schedule": case.schedule, "executor": case.executor, "zero": case.zero}
    pipeline = Pipeline(model, case.plan, inputs, loss=loss, name=name, **how)
    optimizer = torch.optim.SGD([{"params": list(pipeline.parameters())}], RATE)
    batch, labels = (repeated(tree, case.plan.micro_batches) for tree in (inputs, target))
    losses: list[float] = []
    gradients: dict[str, Any] = {}
    for _ in range(STEPS):
        losses.append(pipeline.step(batch, labels))
        if not gradients:
            whole = pipeline.gather(lambda tensor: tensor.grad, pipeline.trainable)
            gradients = {key: gradient.numpy().copy() for key, gradient in whole.items()}
        optimizer.step()
    executor, parameters = pipeline.executor, list(pipeline.parameters())
    local = [one.to_local() if isinstance(one, DTensor) else one for one in parameters]
    kept = sum(one.numel() for one in local) / max(1, sum(one.numel() for one in parameters))
    del pipeline, parameters, local, optimizer
    gc.collect()  # DDP's hooks on the parameters go with it
    return Trained(losses, gradients, executor, kept)


_CAPTURED: dict[tuple[str, int], Captured] = {}


def _captured_once(model: nn.Module, args: Any, kwargs: Any, *, name: str, in_place: bool) -> Captured:
    samples = pytree.tree_leaves((args, kwargs))[0].shape[0]
    if (name, samples) not in _CAPTURED:
        _CAPTURED[name, samples] = capture(model, args, kwargs, name=name, in_place=in_place)
    return _CAPTURED[name, samples]


def virtual_stages(schedule: str) -> int:
    """Stages that share a rank."""
    return SCHEDULES[schedule].virtual or (2 if schedule == "interleaved" else 1)


def errors(trained: Trained, right: Trained) -> tuple[float, float]:
    """Largest relative errors of a loss and of a gradient; one far smaller than the largest is held to its scale."""
    loss = max(abs(own - other) / abs(other) for own, other in zip(trained.losses, right.losses, strict=True))
    return loss, max(_gradient_errors(trained, right))


def _gradient_errors(trained: Trained, right: Trained) -> Iterator[float]:
    norms = {key: float((gradient**2).sum() ** 0.5) for key, gradient in right.gradients.items()}
    least = 1e-3 * max(norms.values())
    for key, gradient in right.gradients.items():
        yield float(((trained.gradients[key] - gradient) ** 2).sum() ** 0.5) / max(norms[key], least)
