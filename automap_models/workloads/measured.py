"""The built-in model that a measured step trained, and its work."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models.core.measured import Family, MeasuredStep
from automap_models.core.strategy import TransformerShape
from automap_models.errors import BadInput
from automap_models.formats.atomic import Cache, fingerprint
from automap_models.formats.model_work_json import decode_model_work, encode_model_work

if TYPE_CHECKING:
    from automap_models.core.model_work import ModelWork
    from automap_models.workloads.training import Architecture

_TRACED = 4
"""Layers that are traced, whatever the model's number is."""
_TRACERS = ("core/model_work.py", "core/instruction_graph.py", "cost/kernels.py", "hlo", "workloads")
"""Modules and packages whose code makes a model's work."""
DROPOUT = 0.1
"""Of attention, residuals and embeddings, as in GPT-2's and BERT's published models; it changes no cost."""
LLAMA_BASE = 500_000.0
"""Of Llama 3's rotary positions, which changes no cost, either."""


def architecture_of(
    family: Family, shape: TransformerShape, tied: bool, dropout: bool, experts_per_token: int | None = None
) -> Architecture:
    """The model of a family with these sizes; as many positions as a sample has tokens, where it learns them."""
    if family == "bert":
        from automap_models.workloads.bert import BertConfig

        return BertConfig(
            width=shape.hidden,
            heads=shape.heads,
            layers=shape.layers,
            vocabulary=shape.vocabulary,
            positions=shape.sequence,
            feed_forward=shape.ffn,
            **_dropout(dropout),
        )
    from automap_models.workloads.decoder import DecoderConfig
    from automap_models.workloads.mixture import Mixture

    mixture = None
    if shape.experts and experts_per_token:
        mixture = Mixture(shape.experts, experts_per_token, shape.ffn)
    return DecoderConfig(
        width=shape.hidden,
        heads=shape.heads,
        layers=shape.layers,
        vocabulary=shape.vocabulary,
        feed_forward=shape.ffn,
        kv_heads=shape.kv_heads,
        tied=tied,
        mixture=mixture,
        **(_llama(shape) if family == "llama" else {"positions": shape.sequence, **_dropout(dropout)}),
    )


def _dropout(dropout: bool) -> dict[str, Any]:
    names = ("attention_dropout", "residual_dropout", "embedding_dropout")
    return dict.fromkeys(names, DROPOUT if dropout else 0.0)


def _llama(shape: TransformerShape) -> dict[str, Any]:
    from automap_models.workloads.blocks import Rotary

    return {
        "positions": None,
        "attention_bias": False,
        "output_bias": False,
        "feed_forward_bias": False,
        "activation": "silu",
        "gated": True,
        "root_mean_square": True,
        "rotary": Rotary(shape.hidden // shape.heads, LLAMA_BASE),
    }


class MeasuredWorks:
    """The work of measured steps' models: steps of one model share it, and it is traced once.

    Args:
        cache: keeps it between runs, by what its models and the code that traces them are.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._works: dict[str, ModelWork] = {}

    def of(self, step: MeasuredStep) -> ModelWork:
        """The work of a step's model.

        Raises:
            BadInput: jax is not installed.
        """
        sizes = asdict(replace(step.shape, name="-", layers=1))
        block = (step.family, sizes, step.tied, step.dropout, step.experts_per_token)
        key = f"work-{fingerprint({'model': block, 'code': _code()})}"
        if key not in self._works:
            self._works[key] = self._read(key) or self._traced(step, key)
        return with_layers(self._works[key], step.shape)

    def _read(self, key: str) -> ModelWork | None:
        entry = self.cache.read(key)
        if entry is not None:
            with contextlib.suppress(BadInput):
                return decode_model_work(entry)
        return None

    def _traced(self, step: MeasuredStep, key: str) -> ModelWork:
        from automap_models.workloads.registry import require_jax

        require_jax(step.shape.name)
        from automap_models.workloads.training import architecture_work

        shape = replace(step.shape, layers=_TRACED)
        architecture = architecture_of(step.family, shape, step.tied, step.dropout, step.experts_per_token)
        work = architecture_work(step.shape.name, architecture, step.shape.sequence, "bfloat16")
        self.cache.write(key, encode_model_work(work))
        return work


def with_layers(work: ModelWork, shape: TransformerShape) -> ModelWork:
    """The work of a model that has other layers of the same sizes, in any number.

    Its first blocks stay first and its last stay last; what is between them is as its middle.
    """
    blocks = work.order[1:-1]
    middle = len(blocks) // 2
    count = shape.layers - len(blocks)
    more = (*blocks[:middle], *[blocks[middle]] * count, *blocks[middle:])
    blocks = more if count >= 0 else blocks[: shape.layers]
    return replace(work, shape=shape, order=(work.order[0], *blocks, work.order[-1]))


@lru_cache
def _code() -> str:
    """Digest of the modules that make a model's work."""
    places = [Path(__file__).parents[1] / name for name in _TRACERS]
    files = [path for place in places for path in ([place] if place.suffix else sorted(place.rglob("*.py")))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
