"""Attention and feed-forward layers of transformers, in the operations of workloads.layer."""

from __future__ import annotations

from dataclasses import replace

from automap_models.core.model_work import Mark
from automap_models.core.sublayer_sizes import Indexer, Window
from automap_models.workloads.layer import FIXED, FLOAT32, FORWARD, INPUT, PER_TOKEN, Layer, Value
from automap_models.workloads.sizes import Activation, DecoderConfig, capacity

TENSOR, EXPERTS = Mark.TENSOR, Mark.EXPERTS
DIVIDED = PER_TOKEN | TENSOR


def windowed(c: DecoderConfig) -> DecoderConfig:
    """The sizes of a decoder whose attention is that within its window."""
    window = c.window
    assert window is not None
    names = ("heads", "kv_heads", "head_width", "value_width")
    changes = {name: size for name in names if (size := getattr(window, name)) is not None}
    return replace(c, **changes, sinks=window.sinks, keys_as_values=window.keys_as_values)


def attention(
    layer: Layer, x: Value, c: DecoderConfig, read: float | None = None, source: Value | None = None
) -> Value:
    """Of a decoder, whose heads of keys and values several of queries may share.

    Args:
        read: keys of a query, see `keys_read`; None: as many as rows of what keys are made of.
        source: what keys and values are made of; None: x.
    """
    source = source or x
    width = c.head_width or c.width // c.heads
    mark = FIXED if c.query_norm == "heads" else TENSOR  # a norm of all heads together has no share of them
    shared = c.kv_heads or c.heads
    key_bias = c.attention_bias if c.key_bias is None else c.key_bias
    q = layer.dense(x, c.heads * width, mark, bias=c.attention_bias, name="q")
    k = layer.dense(source, shared * width, mark, bias=key_bias, name="k")
    if c.keys_as_values:
        v = turned(layer, k)
    else:
        v = layer.dense(source, shared * (c.value_width or width), mark, bias=c.attention_bias, name="v")
    for _ in range(c.sinks):
        layer.hold(c.heads, TENSOR)
    turn, parts = c.rotary is not None, (q, k)
    if c.query_norm is not None:
        of_head = 0 if c.query_norm == "heads" else width
        q, k = (layer.norm(x, layer_norm=False, width=of_head, fused=turn) for x in (q, k))
    q, k = turned(layer, q, turn or c.score_scale != 1.0, scaled=not turn), turned(layer, k, turn)
    for part in parts if c.operations.joined and q is not parts[0] else ():
        layer.save_eagerly(part, layer.item_bytes)
    gates = [c.heads * width] * c.gated_attention + [c.heads] * c.gated_heads
    gate = [layer.dense(x, n, mark, bias=c.attention_bias and c.gated_attention) for n in gates]
    capped = c.score_cap is not None
    read = read or min(source.shape[1], float(layer.document))
    mixed = core(layer, q, k, v, c.heads, shared, reach=read, capped=capped, dropout=c.attention_dropout)
    if c.operations.mixed_copy:
        in_order(layer, mixed)
    return layer.dense(layer.gated(gate[0], mixed) if gate else mixed, c.width, bias=c.output_bias, name="o")


def in_order(layer: Layer, mixed: Value) -> None:
    """Save what the last product of attention reads, where it is a copy of what attention gives."""
    if layer.training.saves("o"):
        layer.save_eagerly(mixed, layer.item_bytes)


def turned(layer: Layer, x: Value, changes: bool = True, *, scaled: bool = False) -> Value:
    """Queries or keys that are `scaled`, or turned by their positions, unless they stay as they are.

    Eagerly they are times a cosine, and their halves, which change places and sign, times a sine; both are added. Back
    each half is filled up to a whole, and these are added, too.
    """
    if changes:
        y = layer.like(x)
        layer.memory(FORWARD, y, x)
        layer.memory(INPUT, x, y)
        for of_pass in (FORWARD,) * 4 + (INPUT,) * 6 if not scaled else ():
            layer.unfused(of_pass, y, x)
        return y
    layer.memory(INPUT, x, x, core=True)  # its gradient's heads are side by side again, which the kernel above does too
    return x


def keys_read(tokens: int, part: Window | Indexer, causal: bool = True) -> float:
    """Keys of a causal core such that half of them are what a query reads in the mean, as it is of all `tokens`.

    The first queries read 1, 2, … keys, and those after them all of the window, or as many as are chosen. Of chunks
    every query reads those of its own before it. Of a core that is not causal, half of the window is on either side.
    """
    window = part.tokens
    if not causal and isinstance(part, Window) and not part.chunked:
        side = min(window // 2, tokens - 1)
        return 2 * side + 1 - side * (side + 1) / tokens
    if window >= tokens or (isinstance(part, Window) and part.chunked):
        return float(min(tokens, window))
    return 2 * window - window**2 / tokens


def indexed(layer: Layer, x: Value, c: Indexer, queries: Value, keys: Value | None = None) -> None:
    """The scores of all tokens before by which a query chooses some; their gradients are of the chosen ones.

    Tensor parallelism does not divide it. It learns from the weights of attention (arXiv 2512.02556, equations 1 to 4):
    gradients of what it reads are counted here, though they are not taken, as a bound.

    Args:
        queries: what its queries are made of.
        keys: that they choose from; None: one of each token is made of x.
    """
    tokens = layer.tokens
    q = turned(layer, layer.dense(queries, c.heads * c.width))
    k = turned(layer, layer.norm(layer.dense(x, c.width), layer_norm=True)) if keys is None else keys
    count = int(layer.document * k.shape[1] / tokens)
    all_keys, chosen = (float(count), FIXED), (keys_read(count, c), FIXED)
    weights = [layer.dense(x, c.heads) for _ in range(c.weighted)]
    scores = Value((1, tokens, count), PER_TOKEN, FLOAT32, scores=True)
    times, rows, deep = (1.0, Mark.SAMPLES), (c.heads * tokens, Mark.TOKENS), (c.width, FIXED)
    layer.product(FORWARD, (times, rows, all_keys, deep), scores, q, k, *weights, core=True)
    layer.memory(FORWARD, scores, scores, core=True)
    layer.product(INPUT, (times, rows, deep, chosen), q, k, scores, core=True)
    layer.product(INPUT, (times, chosen, deep, rows), k, q, scores, core=True)
    layer.save(q, k)
    layer.context.append(k)


def core(
    layer: Layer,
    q: Value,
    k: Value,
    v: Value,
    heads: int,
    shared: int = 0,
    *,
    reach: float | None = None,
    capped: bool = False,
    biased: bool = False,
    dropout: float = 0.0,
) -> Value:
    """Scores, softmax, and its product with values (arXiv 1706.03762, equation 1).

    Args:
        shared: heads of keys and values, if they are fewer.
        reach: keys of a query, see `keys_read`; None: as many as tokens.
        capped: whether scores have a limit.
        biased: whether a bias that is the same for all samples is added to the scores, and trained.
        dropout: share of the weights that are left out.
    """
    shared, tokens = shared or heads, layer.tokens
    tensor = q.mark & TENSOR
    reach = reach or float(tokens)
    scores = Value((heads, tokens, reach), PER_TOKEN | tensor, layer.item_bytes, scores=True)
    mixed = layer.value(v.width * heads / shared, PER_TOKEN | tensor)
    times, keys, all_keys = (shared, Mark.SAMPLES | tensor), (reach, Mark.TOKENS), (reach, FIXED)
    queries, all_queries = (heads // shared * tokens, Mark.TOKENS), (heads // shared * tokens, FIXED)
    wide, deep = (q.width / heads, FIXED), (v.width / shared, FIXED)

    def product(of_pass: int, sizes: tuple[tuple[float, int], ...], *values: Value) -> None:
        layer.product(of_pass, (times, *sizes), *values, core=True)

    product(FORWARD, (keys, all_queries, wide), scores, k, q)
    product(FORWARD, (deep, queries, all_keys), mixed, v, scores)
    product(INPUT, (queries, all_keys, deep), scores, mixed, v)
    product(INPUT, (deep, keys, all_queries), v, mixed, scores)
    product(INPUT, (queries, wide, all_keys), q, scores, k)
    product(INPUT, (keys, wide, all_queries), k, scores, q)
    bias = Value((heads, tokens, reach), Mark.TOKENS | tensor, layer.item_bytes, scores=True)
    more = [scores] * (capped + (layer.item_bytes == FLOAT32)) + [bias] * biased
    mask = [layer.like(scores, 1)] if dropout else []
    layer.memory(FORWARD, scores, scores, *more, core=True)
    layer.memory(INPUT, scores, scores, scores, *mask, *[bias] * (2 * biased), core=True)
    layer.saved_core.extend([*[scores] * (1 + capped + len(mask)), *mask])
    if mask:
        layer.memory(FORWARD, *mask, core=True)
        layer.memory(FORWARD, scores, scores, *mask, core=True)
    layer.memory(FORWARD, mixed, mixed, core=True)  # heads of a token side by side again
    layer.memory(INPUT, mixed, mixed, core=True)
    layer.memory(INPUT, v, v, core=True)
    layer.save(q, k, v, mixed)  # its result, too: gradients of flash kernels read it
    layer.context.extend((k, v))
    return mixed


def latent_attention(layer: Layer, x: Value, c: DecoderConfig, indexer: Indexer | None = None) -> Value:
    """Queries, keys and values through latents (arXiv 2405.04434, equations 37 to 47), of tokens that are chosen."""
    latent = c.latent
    assert latent is not None
    plain, rotary, bias = latent.plain_width, latent.rotary.width, c.attention_bias
    narrow_q = None if latent.query_rank is None else layer.dense(x, latent.query_rank, bias=bias)
    with layer.module("mla_up_proj"):  # before `down`, as programs have it: selective recomputation goes by turns
        queries = x if narrow_q is None else layer.norm(narrow_q, layer_norm=False)
        q = layer.dense(queries, c.heads * (plain + rotary), TENSOR, name="q")
    down = layer.dense(x, latent.rank + rotary, bias=bias)
    narrow, of_keys = layer.value(latent.rank), layer.value(rotary)
    layer.memory(FORWARD, narrow, narrow)
    layer.memory(INPUT, down, narrow, of_keys)
    with layer.module("mla_up_proj"):
        up = layer.dense(layer.norm(narrow, layer_norm=False), c.heads * (plain + latent.value_width), TENSOR)
        turned_q, turned_k = turned(layer, layer.value(c.heads * rotary, DIVIDED)), turned(layer, of_keys)
        plain_q, plain_k, v = (layer.value(c.heads * n, DIVIDED) for n in (plain, plain, latent.value_width))
        for part in (plain_q, plain_k, v):
            layer.memory(FORWARD, part, part)
    layer.memory(INPUT, q, plain_q, turned_q)
    layer.memory(INPUT, up, plain_k, v)
    layer.sums_backward.append(of_keys)
    reach = float(layer.document) if indexer is None else keys_read(layer.document, indexer)
    if indexer is not None:
        indexed(layer, x, indexer, queries)
    mixed = core(layer, plain_q, plain_k, v, c.heads, reach=reach)
    turned_core(layer, turned_q, turned_k, c.heads, reach)
    for part in (plain_k, turned_q):  # values are a part of what has these keys, too; all heads have the turned keys
        layer.save_eagerly(part, layer.item_bytes)
    in_order(layer, mixed)
    return layer.dense(mixed, c.width, bias=bias, name="o")


def turned_core(layer: Layer, q: Value, k: Value, heads: int, reach: float) -> None:
    """The scores of queries and keys with positions, the keys the same for all heads, which are added to the others.

    Args:
        reach: keys of a query, see `keys_read`.
    """
    tokens = layer.tokens
    scores = Value((heads, tokens, reach), DIVIDED, layer.item_bytes, scores=True)
    once, rows, wide = (1, Mark.SAMPLES), (tokens, Mark.TOKENS), (q.width / heads, FIXED)
    every = (heads * reach, TENSOR)
    layer.product(FORWARD, (once, rows, every, wide), scores, k, q, core=True)
    layer.product(INPUT, (once, (heads * tokens, Mark.TOKENS | TENSOR), wide, (reach, FIXED)), q, scores, k, core=True)
    layer.product(INPUT, (once, rows, wide, every), k, scores, q, core=True)
    layer.memory(FORWARD, scores, core=True)
    layer.memory(INPUT, scores, scores, core=True)
    layer.save(q, k)
    layer.context.append(k)


def feed_forward(
    layer: Layer,
    x: Value,
    width: int,
    gated: bool,
    activation: Activation,
    bias: bool = False,
    experts: int = FIXED,
) -> Value:
    """Two matrices with an activation between them, or three, where the activation of one gates another."""
    back = int(x.width)
    inner = layer.dense(x, width, TENSOR, bias=bias, experts=experts, name="up")
    gate = layer.dense(x, width, TENSOR, bias=bias, experts=experts, name="gate") if gated else None
    with layer.module("moe_act" if experts else "none"):
        inner = layer.activation(inner, relu=activation == "relu") if gate is None else layer.gated(gate, inner)
    return layer.dense(inner, back, bias=bias, experts=experts, name="down")


def routed(layer: Layer, x: Value, config: DecoderConfig) -> Value:
    """Experts of each token (arXiv 2401.04088), their shares of it gathered and scattered, and a shared expert.

    Tokens may be narrower there, by a product before the experts and one after them (arXiv 2512.20856).
    """
    c, gated, activation = config.mixture, config.gated, config.activation
    assert c is not None
    places = capacity(layer.tokens, c.experts, c.per_token)
    logits = layer.dense(x, c.experts, float32=True, bias=c.bias, name="router")
    layer.save_eagerly(x, FLOAT32 * (config.operations.wide_router and layer.training.trains("router")))
    sent = x if c.latent is None else layer.dense(x, c.latent)
    if c.normed:
        sent = layer.norm(sent, layer_norm=False)
        layer.hold(x.width + c.experts, FIXED)  # scales of what the router reads, and of its weights
    chosen = layer.value(1, rows=places, count=c.experts, item_bytes=FLOAT32)
    layer.memory(FORWARD, logits, logits, logits)  # scores
    layer.memory(FORWARD, logits, logits, logits, logits)  # the highest of them
    layer.memory(INPUT, logits, logits, logits)
    tokens = layer.value(sent.width, rows=places, count=c.experts)
    for of_pass in (FORWARD, INPUT):
        layer.memory(of_pass, tokens, tokens, chosen, routing=True)  # their rows, or those of their gradients
        layer.memory(of_pass, tokens, tokens, routing=True)  # to where their expert is, or back
        weighted = [tokens] * (of_pass == FORWARD)
        layer.memory(of_pass, tokens, tokens, *weighted, chosen, routing=True)  # what an expert makes, times its weight
        layer.memory(of_pass, tokens, tokens, tokens, chosen, routing=True)  # each row added to its token
    done = feed_forward(layer, tokens, c.width, gated, activation, c.bias, experts=EXPERTS)
    layer.save(logits, chosen, layer.like(chosen, layer.item_bytes), done)
    layer.exchanged.append(done)
    layer.reads(sent)
    total = layer.like(x) if c.latent is None else layer.dense(layer.like(sent), int(x.width))
    if c.shared_width:
        with layer.module("shared_experts"):
            shared = feed_forward(layer, x, c.shared_width, gated, activation)
            if c.shared_gate:
                layer.gated(layer.dense(x, 1), shared)
        layer.memory(FORWARD, total, x)
        for value in (total, shared) * c.normed:
            layer.norm(value, layer_norm=False)
    return total


def switched(layer: Layer, x: Value, experts: int, width: int) -> Value:
    """One expert a token (arXiv 2101.03961), to and from which tokens go by products with a one-hot tensor."""
    places, count = capacity(layer.tokens, experts), layer.tokens
    logits = layer.dense(x, experts, float32=True, name="router")
    table = layer.value(experts * places)
    tokens = layer.value(x.width, rows=places, count=experts)
    slots, rows, wide = (experts * places, FIXED), (count, Mark.TOKENS), (x.width, FIXED)
    once = (1, Mark.SAMPLES)
    layer.memory(FORWARD, logits, logits, logits, table)
    layer.memory(INPUT, logits, logits, logits, x)
    layer.product(FORWARD, (once, wide, slots, rows), tokens, x, table)
    done = feed_forward(layer, tokens, width, False, "relu", experts=EXPERTS)
    layer.product(FORWARD, (once, rows, wide, slots), x, table, done)
    layer.product(INPUT, (once, wide, slots, rows), done, x, table)
    layer.product(INPUT, (once, wide, rows, slots), x, tokens, table)
    for of_pass in (FORWARD, INPUT, INPUT):
        layer.memory(of_pass, tokens, tokens)
    layer.memory(INPUT, x, x)
    layer.save(logits, table, done)
    layer.exchanged.append(done)
    layer.reads(x)
    return layer.like(x)
