"""The first Mamba, and gated short convolutions, in the operations of workloads.layer.

    x ─ product ─→ u, gate;  u ─ convolution ─→ u ─ product ─→ (steps, B, C);  steps ─ product ─→ one for each column
    u, steps, B, C ─ scan, gate ─→ product ─→ change

The scan (arXiv 2312.00752, section 3.3.2) is one kernel of each pass, without products of matrices. It counts by its
bytes; the exponentials of its states, which vector units take, are left out. `mamba_inner_fn` of mamba_ssm keeps the
first product's result, steps before their product, B, C, outputs, and states every 2048 tokens, and makes the
convolution and steps again; with norms, which it has not, the kernels keep these, too. Devices that share columns sum
what makes steps, B and C (arXiv 2406.07887, section 3.3).
"""

from __future__ import annotations

import math

from automap_models.core.model_work import Mark
from automap_models.core.sublayer_sizes import SelectiveScan, ShortConvolution
from automap_models.workloads.layer import FLOAT32, FORWARD, INPUT, Layer, Value
from automap_models.workloads.mamba import DIVIDED, TENSOR, convolution

SCANNED = 2048
"""Tokens between two states that are kept (selective_scan_fwd_kernel.cuh)."""


def selective_scan(layer: Layer, x: Value, c: SelectiveScan) -> Value:
    """What a layer of the first Mamba makes of [tokens, width], in the same shape."""
    u, outputs = layer.value(c.inner, DIVIDED), layer.value(c.inner, DIVIDED)
    projected = layer.dense(x, 2 * c.inner, TENSOR, bias=c.bias)
    convolution(layer, u, c.kernel, bias=c.convolution_bias)
    small = layer.dense(u, c.rank + 2 * c.state)
    narrow, b, c_read = (layer.value(n) for n in (c.rank, c.state, c.state))
    if c.normed:
        narrow, b, c_read = (layer.norm(part, layer_norm=False) for part in (narrow, b, c_read))
    steps = layer.dense(narrow, c.inner, TENSOR, bias=True)
    layer.hold(c.inner * c.state, TENSOR)  # A
    layer.hold(c.inner, TENSOR)  # D
    layer.memory(FORWARD, outputs, outputs, u, steps, outputs, b, c_read)
    layer.memory(INPUT, *[outputs] * 10, *[b, c_read] * 2)
    layer.sums_backward.extend((b, c_read))
    states = Value((c.inner, 1, 2 * c.state), Mark.SAMPLES | TENSOR, FLOAT32)
    layer.save(
        projected,
        small,
        b,
        c_read,
        Value((math.ceil(layer.tokens / SCANNED), c.inner, 2 * c.state), states.mark, FLOAT32),
    )
    layer.context.append(states)
    if c.normed:
        layer.save(steps, outputs)
    else:
        layer.make_again(u, narrow)
        layer.memory(INPUT, u, u)
        layer.memory(INPUT, steps, small)
    return layer.dense(layer.like(outputs), x.width, bias=c.bias)


def short_convolution(layer: Layer, x: Value, c: ShortConvolution) -> Value:
    """What a gated short convolution makes of [tokens, width], in the same shape."""
    projected, u = layer.dense(x, 3 * x.width, TENSOR), layer.value(x.width, DIVIDED)
    mixed, gated = layer.like(u), layer.like(u)
    layer.memory(FORWARD, u, u, u)
    convolution(layer, u, c.kernel, bias=False)
    layer.memory(FORWARD, gated, mixed, u)
    layer.memory(INPUT, *[u] * 5)  # of the gate after the convolution, and of what it gates
    layer.memory(INPUT, *[u] * 5)
    layer.save(projected, u, mixed)
    layer.context.append(Value((1, c.kernel, x.width), Mark.SAMPLES | TENSOR, layer.item_bytes))
    return layer.dense(gated, x.width)
