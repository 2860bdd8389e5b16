"""A PyTorch model's profile for a device that need not be there: the clock over its traced training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from automap_models.core.device import Device
from automap_models.core.instruction_graph import Phase
from automap_models.core.microbatch import CLOCK_S, clock_table
from automap_models.core.profile import FloatArray, Profile, SharedParameter
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.hlo.clock import clock_seconds, clock_times
from automap_models.torch_export.structure import Parameter, Structure, analyse, first_used, product_flop


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

    - C: times of the traced step's kernels by the clock that prices every graph (hlo.clock), as automap plan prices the
      same model. A backward operation is charged to the instruction whose gradient it computes. Scaled dot-product
      attention runs as the fused kernel that CUDA has for it. The update is no part of it: it comes once a step, not
      with every micro-batch.
    - A: bytes of the values made before the cut and read after it, each once: what the stages of
      torch.distributed.pipelining send. The model's inputs are not counted.
    - W: bytes of each trainable parameter that is used, at its first use; frozen: the same of parameters that are not
      trained, buffers and constants; stash: what autograd keeps.

    The backward pass starts from the loss that the model returns; without one, from all its floating-point outputs (see
    `capture.training_outputs`). Added to meta: `forward_flop`, `backward_flop`; `forward_s`, `backward_s`;
    `update_per_step_s`, an Adam update of all parameters as memory traffic; `parameter_dtype`, the element type of most
    of their bytes; `unused_parameters`, which get no gradient and no place in W; `clock_s`, what micro-batches of other
    sizes take (core.microbatch).

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
    precise = torch.get_float32_matmul_precision() == "highest"
    if not precise and "tf32" in device.matrix:
        device = replace(device, matrix={**device.matrix, "float32": device.matrix["tf32"]})

    def passes_s(factor: float) -> tuple[FloatArray, FloatArray]:
        times_s = clock_times(structure.graph, device, factor)
        return structure.totals(times_s, Phase.FORWARD), structure.totals(times_s, Phase.BACKWARD)

    def sums_s(factor: float) -> tuple[float, float]:
        forward_s, backward_s = passes_s(factor)
        return float(forward_s.sum()), float(backward_s.sum())

    forward_s, backward_s = passes_s(1.0)
    adam_accesses = 7  # it reads a parameter, its gradient and two moments, and writes back all but the gradient
    timings: dict[str, object] = {
        "times": "clock, not measured",
        "constants": device.origin,
        "device": device.name,
        "roofline_s": clock_seconds(structure.graph, [*map(read_device, known_devices()), device]),
        "forward_s": float(forward_s.sum()),
        "backward_s": float(backward_s.sum()),
        "update_per_step_s": float(device.seconds(0.0, adam_accesses * structure.W.sum())),
    }
    meta = describe(structure, microbatch_size) | timings
    meta[CLOCK_S] = clock_table(int(str(meta["microbatch_size"])), sums_s)
    return build_profile(structure, forward_s, forward_s + backward_s, meta)


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


def describe(structure: Structure, microbatch_size: int | None) -> dict[str, object]:
    """What a profile's meta says of the model, whatever its times come from."""
    graph, flop = structure.graph, product_flop(structure.graph)
    return {
        "model": graph.model,
        **graph.meta,
        **({} if microbatch_size is None else {"microbatch_size": microbatch_size}),
        "parameter_dtype": graph.meta["dtype"],
        "forward_flop": float(structure.totals(flop, Phase.FORWARD).sum()),
        "backward_flop": float(structure.totals(flop, Phase.BACKWARD).sum()),
        "unused_parameters": list(structure.unused),
    }
