"""A PyTorch model's profile measured on this machine: the real step, forward, backward and update, by instruction."""

from __future__ import annotations

import platform
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from automap_models.core.profile import FloatArray, Profile
from automap_models.core.repeats import repeated
from automap_models.errors import BadInput
from automap_models.torch_export.capture import copy_model, training_outputs
from automap_models.torch_export.profile import build_profile, describe
from automap_models.torch_export.structure import BEFORE, Cut, analyse
from automap_models.user_code import user_code

NOBODY = -1
"""The slot of time that belongs to no instruction."""


def measure_module(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    microbatch_size: int | None = None,
    repeats: int = 10,
    warmup: int = 3,
    seed: int = 0,
) -> Profile:
    """The profile of one micro-batch of `model(*args, **kwargs)` with times read from a clock on this machine.

    Instructions, A, W and stash are those of `profile_module`. A copy of the model runs on CUDA if there is a device,
    else on the CPU. The clock is read where one instruction's forward pass ends and the next begins (hooks of the
    modules) and where autograd turns to a node of another instruction (hooks of its nodes), so that the parts make up
    the whole; on CUDA these are events of the stream, on the CPU with one thread (`torch.set_num_threads`) it is the
    thread's processor time, for which it does not matter what else the machine does, with several the wall time:
    `meta["clock"]` says so. An Adam update is measured as a whole and only told, see `profile_module`.
    `meta["forward_and_backward_s"]` is the least of steps without hooks, and `meta["parts_over_whole"]` how many
    times as long the sum of the instructions' least times is.

    Args:
        args, kwargs: example inputs. Tensors on the meta device, parameters too, are filled: floating-point ones with
            normal values of deviation 0.02, the others with ones, which are valid indices, labels and masks.
        name, microbatch_size: as for `profile_module`.
        repeats: steps that have to agree, of which the least times are taken (core.repeats).
        warmup: steps before them, not counted.
        seed: of what is random.

    Raises:
        BadInput: as `profile_module`; or fewer than one repeat, or a forward pass that takes another path on real data.
        UserCodeError: the step fails on this machine, for lack of memory perhaps; it carries the traceback.
    """
    kwargs, name = kwargs or {}, name or type(model).__name__
    if repeats < 1 or warmup < 0:
        raise BadInput(f"{repeats} repeats after {warmup} warm-up steps", where=name, do="repeat at least once")
    structure = analyse(model, args, kwargs, name=name)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with user_code(name), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        step = _Step.on(device, model, args, kwargs, name)
        for _ in range(warmup):
            step.total_s(), step.parts(structure.cuts)
        runs, steady = repeated(lambda: (step.total_s(), step.parts(structure.cuts)), _one_run_s, repeats)
        step_s = min(total_s for total_s, _ in runs)
        parts_s = np.min([parts for _, parts in runs], axis=0)
        update_s = min(step.updates(warmup + repeats)[warmup:])
    forward_s, backward_s = parts_s.reshape(2, len(structure))
    timings = {
        "times": "measured per module",
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "clock": _clock_name(device),
        "unsteady": float(not steady),
        "repeats": repeats,
        "warmup": warmup,
        "seed": seed,
        "forward_s": float(forward_s.sum()),
        "backward_s": float(backward_s.sum()),
        "update_per_step_s": update_s,
        "forward_and_backward_s": step_s,
        "parts_over_whole": float(parts_s.sum()) / step_s,
    }
    meta = {**describe(structure, microbatch_size), **timings}
    return build_profile(structure, forward_s, forward_s + backward_s, meta)


def _one_run_s(run: tuple[float, FloatArray]) -> float:
    """Seconds of a step without and with hooks, under one load."""
    return run[0] + float(run[1].sum())


@dataclass
class _Clock:
    """Shares the time that passes among slots; on CUDA, the time on the stream."""

    device: torch.device
    readings: list[tuple[int, Any]] = field(default_factory=list)

    def turn_to(self, slot: int) -> None:
        """From here on, time goes to this slot (or to NOBODY)."""
        if self.readings and self.readings[-1][0] == slot:
            return
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self.readings.append((slot, event))
        else:
            self.readings.append((slot, _now_s()))

    def shares(self, slots: int) -> FloatArray:
        """[slots] seconds; the last reading ends the measurement."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        passed = np.zeros(slots)
        for (slot, start), (_, end) in zip(self.readings, self.readings[1:], strict=False):
            if slot != NOBODY:
                passed[slot] += start.elapsed_time(end) / 1e3 if self.device.type == "cuda" else end - start
        return passed


@dataclass(frozen=True)
class _Step:
    """A model with parameters and inputs that have values, on the device to be measured."""

    name: str
    device: torch.device
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def on(
        cls, device: torch.device, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str
    ) -> _Step:
        """A copy of the model and its inputs on a device."""

        def fill(tensor: Tensor) -> Tensor:
            return with_values(tensor, device)

        args, kwargs = pytree.tree_map_only(Tensor, fill, (args, dict(kwargs)))
        return cls(name, device, copy_model(model, fill), args, kwargs)

    def total_s(self) -> float:
        """Seconds of one step without hooks, forward and backward."""
        self.model.zero_grad(set_to_none=True)
        clock = _Clock(self.device)
        clock.turn_to(0)
        outputs = training_outputs(self.model(*self.args, **self.kwargs))
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        clock.turn_to(NOBODY)
        return float(clock.shares(1)[0])

    def parts(self, cuts: Sequence[Cut]) -> FloatArray:
        """[2n] seconds of one step: the forward passes of the n instructions, then their backward passes."""
        n = len(cuts) + 1
        self.model.zero_grad(set_to_none=True)
        clock, passed, first_numbers = _Clock(self.device), [], [_next_number()]

        def cross(i: int) -> Callable[..., None]:
            def hook(*_: object) -> None:
                passed.append(i)
                first_numbers.append(_next_number())
                clock.turn_to(i + 1)

            return hook

        with ExitStack() as hooks:
            for i, cut in enumerate(cuts):
                module = self.model.get_submodule(cut.name.removeprefix(BEFORE))
                before = cut.name.startswith(BEFORE)
                handle = (module.register_forward_pre_hook if before else module.register_forward_hook)(cross(i))
                hooks.callback(handle.remove)
            clock.turn_to(0)
            outputs = training_outputs(self.model(*self.args, **self.kwargs))
            clock.turn_to(NOBODY)
        if passed != list(range(n - 1)):
            raise BadInput(
                "its forward pass takes another path on real data than torch.export saw",
                where=self.name,
                do="profile it without `measure`, or let the factory return real inputs",
            )
        for node, number in _autograd_nodes(outputs):
            slot = n + bisect_right(first_numbers, number) - 1
            node.register_prehook(lambda _, slot=slot: clock.turn_to(slot))
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        clock.turn_to(NOBODY)
        return clock.shares(2 * n)

    def updates(self, count: int) -> list[float]:
        """Seconds of that many Adam updates with the gradients of the step before."""
        optimizer = torch.optim.Adam(self.model.parameters())
        seconds = []
        for _ in range(count):
            clock = _Clock(self.device)
            clock.turn_to(0)
            optimizer.step()
            clock.turn_to(NOBODY)
            seconds.append(float(clock.shares(1)[0]))
        return seconds


def _now_s() -> float:
    """The thread's processor time if it does all the work, else the time on the wall."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _clock_name(device: torch.device) -> str:
    if device.type == "cuda":
        return "events of the CUDA stream"
    return "processor time" if torch.get_num_threads() == 1 else "wall time"


def with_values(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on a device; made up where the tensor is on the meta device (see `measure_module`)."""
    if not tensor.is_meta:
        return tensor.detach().to(device, copy=True)
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, dtype=tensor.dtype, device=device) * 0.02  # no overflow, no denormal
    return torch.ones(tensor.shape, dtype=tensor.dtype, device=device)


def _next_number() -> int:
    """The sequence number that autograd will give to the next node it makes."""
    return int(torch._C._autograd._get_sequence_nr())


def _autograd_nodes(outputs: Sequence[Tensor]) -> list[tuple[Any, int]]:
    """The nodes of the backward pass with their sequence numbers, but for those that only hand over gradients."""
    pending: list[Any] = [output.grad_fn for output in outputs]
    visited = dict.fromkeys(pending)
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is not None and node not in visited:
                visited[node] = None
                pending.append(node)
    return [(node, node._sequence_nr()) for node in visited if not hasattr(node, "variable")]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} thread(s)"
