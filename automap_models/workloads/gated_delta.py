"""Gated delta networks in the operations of workloads.layer, as the kernels of flash-linear-attention compute them.

    x ─ product ─→ (q, k, v), gate, decays ─ convolution ─→ norms of q, k ─→ chunks of C tokens ─ norm, gate ─→ product

Each head of values has a state of K × V numbers, of which a token first takes out what its key reads and then writes
its value (arXiv 2412.06464, section 3.3, with the chunks of 2406.06484):

    system       k · kᵀ, its triangle inverted        C × C, depth K
    w, u         inverse · k, inverse · v             C × K and C × V, depth C
    states       v' = u - w · state; kᵀ · v'          C × V, depth K, and K × V, depth C, chunk after chunk
    outputs      q · state + (q · kᵀ) · v'            C × V, depth K; C × C, depth K; C × V, depth C

All of these are for each head of values. Gradients take twice the FLOP. The kernels (`chunk_gated_delta_rule`) save q,
k, v and the inverse, and make w, u, v' and the states again in the backward pass, which counts by its bytes.
"""

from __future__ import annotations

from automap_models.core.model_work import Mark
from automap_models.core.sublayer_sizes import GatedDelta
from automap_models.workloads.layer import FIXED, FLOAT32, FORWARD, INPUT, Layer, Value
from automap_models.workloads.mamba import DIVIDED, TENSOR, convolution


def gated_delta(layer: Layer, x: Value, c: GatedDelta) -> Value:
    """What a gated delta network makes of [tokens, width], in the same shape."""
    k, v = (layer.value(n, DIVIDED) for n in (c.key_heads * c.key_width, c.heads * c.value_width))
    projected = layer.dense(x, 2 * k.width + 2 * v.width + 2 * c.heads, TENSOR)
    convolution(layer, layer.value(2 * k.width + v.width, DIVIDED), c.kernel, bias=False)
    layer.hold(2 * c.heads, TENSOR)  # A, and the bias of decays
    q = layer.like(k)
    for normed in (q, k):  # to length 1
        layer.memory(FORWARD, normed, normed)
        layer.memory(INPUT, normed, normed, normed)
    outputs = _delta_rule(layer, q, k, v, c)
    layer.save(projected)
    normed = layer.norm(outputs, layer_norm=False, width=c.value_width)
    layer.memory(FORWARD, v)  # the gate, which the norm reads
    layer.memory(INPUT, v, v)
    return layer.dense(normed, x.width)


def _delta_rule(layer: Layer, q: Value, k: Value, v: Value, c: GatedDelta) -> Value:
    """The outputs of all chunks, as large as v."""
    size = min(c.chunk, layer.tokens)
    chunks, key, value = c.heads * layer.tokens / size, c.key_width, c.value_width
    system = Value((chunks, size, size), DIVIDED, FLOAT32)
    inverse, states = layer.like(system, layer.item_bytes), Value((chunks, key, value), DIVIDED, layer.item_bytes)
    w, u, updates, outputs = layer.value(c.heads * key, DIVIDED), layer.like(v), layer.like(v), layer.like(v)

    def chunk(multiply_adds: float, *moved: Value, backward: bool = False) -> None:
        """One kernel of C × V results for each chunk, of as much depth as its arithmetic has."""
        depth = multiply_adds / (size * value)
        sides = ((chunks, DIVIDED), (size, FIXED), (value, FIXED), (depth, FIXED))
        layer.product(INPUT if backward else FORWARD, sides, *moved)

    scores, weighted, state = size * size * key, size * size * value, size * key * value
    chunk(scores, system, k)
    layer.memory(FORWARD, inverse, system)
    chunk(scores + weighted, w, u, inverse, k, v)
    chunk(2 * state, states, updates, k, w, u)
    chunk(scores + weighted + state, outputs, q, k, updates, states)

    layer.memory(INPUT, w, u, inverse, k, v)  # again, as are states
    layer.memory(INPUT, states, updates, k, w, u)
    chunk(weighted, updates, q, k, outputs, backward=True)
    chunk(3 * state, states, updates, q, k, w, outputs, updates, backward=True)
    chunk(
        2 * scores + weighted + 3 * state, q, k, w, *(q, k, w, updates, states, updates, outputs, states), backward=True
    )
    chunk(4 * scores + 2 * weighted, k, v, k, v, inverse, w, u, backward=True)
    layer.save(q, k, v, inverse)
    layer.context.append(Value((c.heads, key, value), Mark.SAMPLES | TENSOR, FLOAT32))
    return outputs
