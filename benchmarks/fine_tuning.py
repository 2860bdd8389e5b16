"""How far is the memory of fine-tuning, with adapters and in 4 bits, off what others measured?

Peaks on one A100, as published:

    LitGPT   tutorials/resource-tables.md (bf16-true, AdamW in bf16, adapters of rank 8 beside q and v, no
             recomputation, longest sample of Alpaca: 1,304 tokens), the most that torch allocates
    Qwen     README of QwenLM/Qwen (flash attention, gradient checkpointing, adapters of rank 64 beside all matrices,
             GPTQ in 4 bits), whole GB of the device

The models of the second are written as Qwen2's, whose blocks they have, with the sizes of their config.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import automap_models as am
from automap_models.core.units import size

TOKENS = (256, 512, 1024, 2048, 4096, 8192)
"""Of a sample, of the columns of QWEN."""
QWEN: dict[tuple[str, bool], tuple[float, ...]] = {
    ("1.8B", False): (6.7, 7.4, 8.4, 11.0, 16.2, 21.8),
    ("1.8B", True): (5.8, 6.0, 6.6, 7.8, 10.2, 15.8),
    ("7B", False): (20.1, 20.4, 21.5, 23.8, 29.7, 36.6),
    ("7B", True): (11.5, 11.5, 12.3, 13.9, 16.9, 23.5),
    ("14B", False): (34.6, 35.1, 35.3, 37.4, 42.5, 55.2),
    ("14B", True): (18.7, 18.4, 18.9, 19.9, 23.0, 27.9),
    ("72B", True): (61.4, 61.4, 62.9, 64.1, 68.0, 75.6),
}
"""Model and whether it is in 4 bits → GB measured."""
SIZES = {
    "1.8B": (2048, 24, 16, 5504, 151936),
    "7B": (4096, 32, 32, 11008, 151936),
    "14B": (5120, 40, 40, 13696, 152064),
    "72B": (8192, 80, 64, 24576, 152064),
}
"""Model → width, layers, heads, width of the perceptron, vocabulary."""
LITGPT = (
    ("llama2-7b", False, 1, 21.30),
    ("llama2-7b", True, 1, 13.84),
    ("llama2-7b", False, 2, 29.07),
    ("llama2-13b", False, 1, 38.12),
    ("llama2-13b", True, 1, 22.55),
)
"""Model, whether it is in 4 bits, samples of a micro-batch, GB measured."""


class Peak(NamedTuple):
    """A measured peak, and what it is estimated to be."""

    source: str
    name: str
    measured_bytes: float
    estimated_bytes: float

    @property
    def error(self) -> float:
        """Of the estimate, relative to what was measured."""
        return self.estimated_bytes / self.measured_bytes - 1.0


def of_litgpt() -> Iterator[Peak]:
    """Llama 2 in LitGPT."""
    for model, quantized, samples, measured in LITGPT:
        options: dict[str, Any] = {"lora": "8:q,v", "quantize": quantized, "states": "bf16", "micro_batch": samples}
        options["runtime"] = "fsdp"  # an eager program
        price = am.price(model, gpus="1xa100", sequence=1304, global_batch=128, **options)
        name, tensors = f"{model}, {samples} × 1,304{in_words(quantized)}", price.peak_memory - price.memory[0].runtime
        yield Peak("LitGPT", name, measured * 1e9, tensors)


def of_qwen() -> Iterator[Peak]:
    """Qwen 1 in its own scripts."""
    for (name, quantized), peaks in QWEN.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"qwen-{name}.json"
            path.write_text(json.dumps(config(*SIZES[name])))
            for tokens, measured in zip(TOKENS, peaks, strict=True):
                options: dict[str, Any] = {"lora": 64, "quantize": quantized, "recompute": "full"}
                price = am.price(path, gpus="1xa100", sequence=tokens, global_batch=8, **options)
                yield Peak("Qwen", f"{name}, {tokens:,}{in_words(quantized)}", measured * 1e9, price.peak_memory)


def in_words(quantized: bool) -> str:
    """What a row's name ends with."""
    return ", 4 bits" if quantized else ""


def config(width: int, layers: int, heads: int, inner: int, vocabulary: int) -> dict[str, Any]:
    """A config.json of Qwen2's kind, with as many heads of keys and values as of queries."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": inner, "vocab_size": vocabulary}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": heads}
    others = {"torch_dtype": "bfloat16", "max_position_embeddings": 8192, "tie_word_embeddings": False}
    return {"model_type": "qwen2", **sizes, **heads_of, **others}


def main() -> None:
    """Print a row a peak, and the median error by source."""
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    peaks = [*of_litgpt(), *of_qwen()]
    print("| source | model and tokens | measured | estimated | error |\n|---|---|---|---|---|")
    for peak in peaks:
        numbers = f"{size(peak.measured_bytes)} | {size(peak.estimated_bytes)} | {peak.error:+.1%}"
        print(f"| {peak.source} | {peak.name} | {numbers} |")
    for source in ("LitGPT", "Qwen"):
        errors = [peak.error for peak in peaks if peak.source == source]
        print(f"\n{source}: {median(map(abs, errors)):.1%} off in the median, bias {median(errors):+.1%}")
    print(f"\nall {len(peaks)}: {median(abs(peak.error) for peak in peaks):.1%} off in the median")


if __name__ == "__main__":
    main()
