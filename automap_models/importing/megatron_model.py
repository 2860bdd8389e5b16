"""The model that sizes in Megatron's arguments make."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from automap_models.core.strategy import TransformerShape
from automap_models.core.sublayer_sizes import Latent, Mixture, Rotary
from automap_models.cost.measured_step import MeasuredModel
from automap_models.errors import BadInput
from automap_models.export.megatron import SIZES
from automap_models.importing.megatron_arguments import Arguments

LAYERS = "--num-layers"
LATENT: Mapping[str, tuple[str, int | None]] = {
    "query_rank": ("--q-lora-rank", None),
    "rank": ("--kv-lora-rank", 32),
    "plain_width": ("--qk-head-dim", 128),
    "rotary": ("--qk-pos-emb-head-dim", 64),
    "value_width": ("--v-head-dim", 128),
}
"""Field of Latent → its argument and what it is without: queries have no latent of their own."""
VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "BertWordPieceLowerCase": 30522}
TOKENIZERS = {"pretrain_gpt": "GPT2BPETokenizer", "--": "GPT2BPETokenizer", "pretrain_bert": "BertWordPieceLowerCase"}
"""Beginning of a program's name → the tokenizer that a vocabulary's file is of."""
OTHERS = ("t5", "retro", "mamba", "hybrid", "vlm", "vision", "ict", "bridge")
"""In names of programs whose models other arguments describe."""


def model_of(
    given: Arguments, layers: int | None, vocabulary: int | None, program: str
) -> tuple[MeasuredModel | None, tuple[str, ...]]:
    """The model that the sizes make, or what is not said of it."""
    hidden, heads, tokens = (given.count(SIZES[name]) for name in ("hidden", "heads", "sequence"))
    gated = "--swiglu" in given or "--quick-geglu" in given
    rotary = given.value("--position-embedding-type") or "learned_absolute"
    is_llama = gated or rotary == "rope" or "--use-rotary-position-embeddings" in given or "--squared-relu" in given
    vocabulary = given.count("--vocab-size") or given.count("--padded-vocab-size") or vocabulary
    if vocabulary is None and "--tokenizer-type" in given:
        vocabulary = VOCABULARIES.get(given.value("--tokenizer-type") or "")
    elif vocabulary is None and "--vocab-file" in given:
        vocabulary = VOCABULARIES.get(next((kind for name, kind in TOKENIZERS.items() if program.startswith(name)), ""))
    sizes = {LAYERS: layers, SIZES["hidden"]: hidden, SIZES["heads"]: heads, SIZES["sequence"]: tokens}
    lacking = tuple(name for name, size in {**sizes, "--vocab-size": vocabulary}.items() if not size)
    if any(other in program for other in OTHERS):
        return None, (f"what {program} trains",)
    if not (layers and hidden and heads and tokens and vocabulary):
        return None, lacking
    # As Megatron does it where --ffn-hidden-size is not given: gated widths are two thirds, in multiples of 64.
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if "--swiglu" in given else 4 * hidden
    width, experts = given.count(SIZES["ffn"]) or usual, given.count(SIZES["experts"])
    # Megatron's --num-query-groups is 1 unless given, and counts beside --group-query-attention alone.
    kv_heads = (given.count(SIZES["kv_heads"]) or 1) if "--group-query-attention" in given else heads
    mixture = None
    if experts:
        top, shared = given.count("--moe-router-topk") or 2, given.count("--moe-shared-expert-intermediate-size") or 0
        mixture = Mixture(experts, top, given.count("--moe-ffn-hidden-size") or width, shared)
    shape = TransformerShape(
        name="the model of the command",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=mixture.width if mixture else width,
        sequence=tokens,
        vocabulary=vocabulary,
        experts=experts,
        mtp_layers=given.count("--mtp-num-layers"),
    )
    return (
        MeasuredModel(
            family="bert" if "bert" in program else "llama" if is_llama else "gpt",
            shape=shape,
            tied="--untie-embeddings-and-output-weights" not in given,
            dropout=not is_llama and given.value("--hidden-dropout") not in ("0", "0.0"),
            head_width=given.count("--kv-channels"),
            gated=gated,
            mixture=mixture,
            dense_width=width if mixture else None,
            latent=_latent(given) if "--multi-latent-attention" in given else None,
            predicting_layers=given.count("--mtp-num-layers") or 0,
            blocks=_blocks(given.value("--moe-layer-freq"), layers) if mixture else None,
        ),
        (),
    )


def _latent(given: Arguments) -> Latent:
    sizes: dict[str, Any] = {name: given.count(argument) or usual for name, (argument, usual) in LATENT.items()}
    sizes["rotary"] = Rotary(sizes["rotary"])
    return Latent(**sizes)


def _blocks(pattern: str | None, layers: int) -> tuple[str, ...] | None:
    """Sublayers of each block of `--moe-layer-freq`: every so many blocks have experts, or those with 1 in a list."""
    if pattern is None or pattern == "1":
        return None

    def listed_at(node: ast.expr) -> list[int]:
        match node:
            case ast.BinOp(left=first, op=ast.Add(), right=second):
                return listed_at(first) + listed_at(second)
            case ast.BinOp(left=first, op=ast.Mult(), right=ast.Constant(value=int(times))) if times <= layers:
                return listed_at(first) * times
            case ast.List(elts=values):
                return [int(ast.literal_eval(value)) for value in values]
        raise ValueError

    try:
        sparse = [int(i % int(pattern) == 0) for i in range(layers)] if pattern.isdigit() else None
        sparse = sparse or listed_at(ast.parse(pattern.strip("'\""), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, ZeroDivisionError):
        sparse = []
    if len(sparse) != layers:
        what = f"`--moe-layer-freq` is {pattern[:40]!r}, which does not say which of {layers} layers have experts"
        raise BadInput(what, do="write a number, or a list such as ([0]*3+[1]*58)")
    return tuple("*E" if has else "*-" for has in sparse)
