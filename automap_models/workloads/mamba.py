"""Mamba-2 in the operations of workloads.layer, as the kernels of mamba_ssm compute it.

    x ─ product ─→ gate, (inner, B, C), steps ─ convolution ─→ chunks of Q tokens ─ gate, norm ─→ product ─→ change

A chunk's tokens see each other as in attention without a softmax, and those before through one state of P × N numbers
for each head (arXiv 2405.21060, section 6 and listing 1):

    scores       C · Bᵀ                       Q × Q for each group, depth N
    states       Bᵀ · inner                   P × N for each head, depth Q; then passed from chunk to chunk
    outputs      scores · inner + C · state   Q × P for each head, depth Q + N

FLOP are those of section 6.3, and of gradients twice as many. The kernels (`mamba_split_conv1d_scan_combined`) save the
first product's result and what they give before the gate, and make the rest again in the backward pass, which is bound
by its bytes and counts as such.
"""

from __future__ import annotations

from automap_models.core.model_work import Mark
from automap_models.core.sublayer_sizes import Mamba
from automap_models.workloads.layer import FIXED, FLOAT32, FORWARD, INPUT, PER_TOKEN, Layer, Value

TENSOR = Mark.TENSOR
DIVIDED = PER_TOKEN | TENSOR


def mamba(layer: Layer, x: Value, c: Mamba) -> Value:
    """What a Mamba-2 layer makes of [tokens, width], in the same shape."""
    inner, shared = layer.value(c.heads * c.head_width, DIVIDED), layer.value(c.groups * c.state, DIVIDED)
    projected = layer.dense(x, 2 * inner.width + 2 * shared.width + c.heads, TENSOR)
    mixed = layer.value(inner.width + 2 * shared.width, DIVIDED)
    convolution(layer, mixed, c.kernel, bias=c.convolution_bias)
    layer.memory(INPUT, mixed, mixed)  # it is made again
    layer.hold(3 * c.heads, TENSOR)  # A, D and the bias of steps
    gated = _scan(layer, inner, shared, c)
    layer.save(projected, inner)
    return layer.dense(layer.norm(gated, layer_norm=False) if c.normed else gated, x.width)


def convolution(layer: Layer, x: Value, kernel: int, *, bias: bool) -> None:
    """A causal convolution of each column of x on its own, and an activation, one kernel a pass.

    Args:
        kernel: tokens that it reads.
        bias: whether one is added.
    """
    layer.memory(FORWARD, x, x)
    layer.memory(INPUT, x, x, x)
    for elements in [kernel * x.width] + [x.width] * bias:
        layer.hold(elements, TENSOR)


def _scan(layer: Layer, inner: Value, shared: Value, c: Mamba) -> Value:
    """The gated outputs of all chunks; `shared` is of the size of B, and of C."""
    size = min(c.chunk, layer.tokens)
    chunks = layer.tokens / size
    states = Value((c.heads * chunks, c.head_width, c.state), DIVIDED, FLOAT32)
    scores = Value((c.groups * chunks, size, size), DIVIDED, FLOAT32)
    narrow, outputs = layer.like(states, layer.item_bytes), layer.like(inner)
    heads, groups = (c.heads * chunks, DIVIDED), (c.groups * chunks, DIVIDED)
    rows, wide, deep = (size, FIXED), (c.head_width, FIXED), (c.state, FIXED)
    both = (size + c.state, FIXED)
    layer.product(FORWARD, (heads, wide, deep, rows), states, inner, shared)
    layer.memory(FORWARD, narrow, states)
    layer.product(FORWARD, (groups, rows, rows, deep), scores, shared, shared)
    layer.product(FORWARD, (heads, rows, wide, both), outputs, outputs, scores, inner, shared, narrow, inner)

    layer.memory(INPUT, states, inner, shared)  # states and scores again
    layer.memory(INPUT, narrow, states)
    layer.memory(INPUT, scores, shared, shared)
    layer.memory(INPUT, *[outputs] * 5)  # of the gate, and of what it gates
    layer.product(INPUT, (heads, wide, deep, rows), states, outputs, shared)
    layer.memory(INPUT, narrow, states, narrow)
    layer.product(INPUT, (heads, rows, wide, both), inner, scores, outputs, shared, narrow, inner)
    layer.product(INPUT, (heads, rows, deep, wide), shared, inner, narrow, shared)  # of B
    layer.product(INPUT, (heads, rows, deep, wide), shared, outputs, narrow, shared)  # of C
    layer.product(INPUT, (heads, rows, rows, wide), scores, outputs, inner)
    layer.memory(INPUT, inner, outputs, scores)  # of steps
    layer.product(INPUT, (groups, rows, deep, rows), shared, scores, shared, shared)
    layer.product(INPUT, (groups, rows, deep, rows), shared, scores, shared, shared)
    layer.context.append(Value((c.heads, c.head_width, c.state), Mark.SAMPLES | TENSOR, FLOAT32))
    return outputs
