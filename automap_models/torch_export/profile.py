"""A PyTorch model's profile for a device that need not be there: the clock over the kernels of its training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from automap_models.core.device import Device
from automap_models.core.microbatch import CLOCK_S, clock_table
from automap_models.core.profile import FloatArray, Profile, SharedParameter
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.torch_export.capture import capture, first_dimension
from automap_models.torch_export.kernels import Kernel, grown, kernel_times
from automap_models.torch_export.structure import FRAMEWORK, Parameter, Structure, analyse, first_used
from automap_models.torch_export.trace import trace
from automap_models.version import __version__


def profile_module(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: Device,
    name: str | None = None,
    microbatch_size: int | None = None,
) -> Profile:
    """The profile of one micro-batch of `model(*args, **kwargs)` in training mode, on a device.

    The model is captured by torch.export on the meta device, which allocates nothing and computes nothing; the user's
    model is left as it is. An instruction is what runs between two neighbouring places at which a split_spec of
    torch.distributed.pipelining can cut, and `names[i]` is the place after instruction i: see `pipelining.split_spec`.

    - C: times of the ATen operators by the clock (core.device), each a kernel of its own as in
      eager mode. A backward operator is charged
      to the instruction whose gradient it computes. Scaled dot-product attention and dropout run as the fused
      kernels that CUDA has for them. The update is no part of it: it comes once a step, not with every micro-batch.
    - A: bytes of the values made before the cut and read after it, each once: what the stages of
      torch.distributed.pipelining send. The model's inputs are not counted.
    - W: bytes of each trainable parameter that is used, at its first use; frozen: the same of parameters that are not
      trained, buffers and constants; stash: what autograd keeps.

    The backward pass starts from the loss that the model returns; without one, from all its floating-point outputs (see
    `capture.training_outputs`). Added to meta: `forward_flop`, `backward_flop`; `forward_s`, `backward_s`;
    `update_per_step_s`, an Adam update of all parameters as memory traffic; `parameter_dtype`, the element type of most
    of their bytes; `unused_parameters`, which get no gradient and no place in W; `clock_s`, what micro-batches of other
    sizes take (core.microbatch), from a second capture with twice as many samples, of models that take so many.

    Args:
        args, kwargs: example inputs; only shapes and element types count.
        name: of the model; its class by default.
        microbatch_size: samples in the inputs; by default the first dimension of the first tensor.

    Raises:
        BadInput: a model without parameters, inputs that do not fit, control flow or shapes that depend on data, an
            operator that cannot run without data, no place to cut, or a device without a rate for an element type.
    """
    kwargs, name = kwargs or {}, name or type(model).__name__
    structure = analyse(model, args, kwargs, name=name)
    times_s = kernel_times(structure.kernels, device)
    forward_s, backward_s = (structure.totals(times_s, backward=backward) for backward in (False, True))
    adam_accesses = 7  # it reads a parameter, its gradient and two moments, and writes back all but the gradient
    timings: dict[str, object] = {
        "times": "clock per operator, not measured",
        "constants": device.origin,
        "device": device.name,
        "roofline_s": _kinds_seconds(structure, device),
        "forward_s": float(forward_s.sum()),
        "backward_s": float(backward_s.sum()),
        "update_per_step_s": float(device.seconds(0.0, adam_accesses * structure.W.sum())),
    }
    meta = describe(structure, model, args, kwargs, name=name, microbatch_size=microbatch_size) | timings
    twice = _twice_the_samples(structure, model, args, kwargs, name)
    if twice is not None:
        pairs = list(zip(structure.kernels, twice, strict=True))

        def passes_s(factor: float) -> tuple[float, float]:
            times_s = kernel_times([grown(*pair, factor) for pair in pairs], device)
            forward, backward = (float(structure.totals(times_s, backward=back).sum()) for back in (False, True))
            return forward, backward

        meta[CLOCK_S] = clock_table(int(str(meta["microbatch_size"])), passes_s)
    return build_profile(structure, forward_s, forward_s + backward_s, meta)


def _twice_the_samples(
    structure: Structure, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str
) -> list[Kernel] | None:
    """The kernels of a step with twice as many samples; None where the model takes no other number, or runs otherwise.

    Inputs have samples whose first dimension is as long as that of the first one.
    """
    samples = first_dimension(args, kwargs, name)

    def doubled(tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != samples:
            return tensor
        return torch.empty(
            (2 * samples, *tensor.shape[1:]), dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad
        )

    try:
        captured = capture(model, *pytree.tree_map_only(Tensor, doubled, (args, dict(kwargs))), name=name)
        kernels = trace(captured, name=name).kernels
    except BadInput:
        return None
    same = [[(kernel.call, kernel.is_backward) for kernel in run] for run in (kernels, structure.kernels)]
    return kernels if same[0] == same[1] else None


def _kinds_seconds(structure: Structure, device: Device) -> dict[str, float]:
    """Kinds of devices with their time of a micro-batch by the clock; those without a rate for it are left out."""
    seconds = {}
    for kind in (*map(read_device, known_devices()), device):
        with suppress(BadInput):
            seconds[kind.name] = float(kernel_times(structure.kernels, kind).sum())
    return seconds


def build_profile(
    structure: Structure, forward_s: FloatArray, total_s: FloatArray, meta: Mapping[str, object]
) -> Profile:
    """The profile of a structure with its times, [n] seconds each."""
    return Profile.create(
        C=total_s,
        A=structure.A,
        W=structure.W,
        C_fwd=forward_s,
        stash=structure.saved_bytes,
        names=structure.names,
        layers=structure.layers,
        meta=meta,
        shared_parameters=_shared(structure.parameters),
        frozen=first_used(structure.frozen, len(structure)),
        shared_frozen=_shared(structure.frozen),
        source=str(meta["model"]),
    )


def _shared(parameters: Sequence[Parameter]) -> list[SharedParameter]:
    """Those that several instructions read."""
    return [
        SharedParameter(parameter.names[0], parameter.size_bytes, parameter.instructions)
        for parameter in parameters
        if len(parameter.instructions) > 1
    ]


def describe(
    structure: Structure,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    microbatch_size: int | None,
) -> dict[str, object]:
    """What a profile's meta says of the model, whatever its times come from."""
    flop = np.array([float(kernel.flop) for kernel in structure.kernels])
    return {
        "model": name,
        "framework": FRAMEWORK,
        "source": "torch.export",
        "torch": torch.__version__.split("+")[0],
        "automap_version": __version__,
        "microbatch_size": first_dimension(args, kwargs, name) if microbatch_size is None else microbatch_size,
        "dtype": dtype_of(model),
        "parameter_dtype": dtype_of(model),
        "forward_flop": float(structure.totals(flop, backward=False).sum()),
        "backward_flop": float(structure.totals(flop, backward=True).sum()),
        "unused_parameters": list(structure.unused),
    }


def dtype_of(model: nn.Module) -> str:
    """The element type of most of the trainable bytes."""
    sizes: dict[str, int] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            dtype = str(parameter.dtype).removeprefix("torch.")
            sizes[dtype] = sizes.get(dtype, 0) + parameter.numel() * parameter.element_size()
    return max(sizes, key=lambda dtype: sizes[dtype])
