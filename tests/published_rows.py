"""Rows of measured steps as their sources publish them, and steps read from a file of one row."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from automap_models.cost.measured_step import MeasuredStep, SkippedStep
from automap_models.formats.measured_rows import read_measured_steps

GPT3 = {
    "name": "GPT-3 175B",
    "arch": "gpt",
    "layers": 96,
    "hidden": 12288,
    "ffn": 49152,
    "heads": 96,
    "kv_heads": 96,
    "seq": 2048,
    "vocab": 51200,
}
LLAMA_8B = {
    "name": "Llama 3.1 8B",
    "arch": "llama",
    "layers": 32,
    "hidden": 4096,
    "ffn": 14336,
    "heads": 32,
    "kv_heads": 8,
    "seq": 8192,
    "vocab": 128256,
}
ROW: dict[str, Any] = {
    "id": "row-1",
    "source": "somebody",
    "system": "Megatron-LM 2021",
    "model": GPT3,
    "gpus": 384,
    "gpu_type": "A100-80GB SXM",
    "gpus_per_node": 8,
    "tp": 8,
    "pp": 12,
    "dp": 4,
    "vp": None,
    "micro_batch": 1,
    "global_batch": 1536,
    "schedule": None,
    "recompute": "full",
    "zero": 0,
    "precision": "fp16",
    "measured": {"tflops_per_gpu": 153, "flop_formula": "narayanan2021 eq.3"},
    "note": None,
}


def gpt(layers: int, hidden: int, heads: int, sequence: int, vocabulary: int) -> dict[str, Any]:
    sizes = {"layers": layers, "hidden": hidden, "ffn": 4 * hidden, "heads": heads, "kv_heads": heads}
    return {"name": "GPT", "arch": "gpt", **sizes, "seq": sequence, "vocab": vocabulary}


def converted(tmp_path: Path, words: str = "", **values: Any) -> MeasuredStep | SkippedStep:
    path = tmp_path / "rows.json"
    sources = {"somebody": {"what": "trials", "note": words}}
    path.write_text(json.dumps({"sources": sources, "rows": [{**copy.deepcopy(ROW), **values}]}))
    (step,) = read_measured_steps(path)
    return step


def measured(tmp_path: Path, words: str = "", **values: Any) -> MeasuredStep:
    step = converted(tmp_path, words, **values)
    assert isinstance(step, MeasuredStep), step
    return step


def reason(tmp_path: Path, **values: Any) -> str:
    step = converted(tmp_path, **values)
    assert isinstance(step, SkippedStep)
    return step.reason


def bloom(**values: Any) -> dict[str, Any]:
    return {
        "system": "Megatron-DeepSpeed 2022",
        "model": gpt(70, 14336, 64, 2048, 250880),
        "tp": 4,
        "dp": 8,
        "micro_batch": 2,
        "global_batch": 2048,
        "zero": 1,
        "precision": "bf16",
        "measured": {"iteration_s": 102.03, "tflops_per_gpu": 153.68, "memory_gb": 59},
        **values,
    }


def torchtitan(**values: Any) -> dict[str, Any]:
    return {
        "system": "torchtitan 2024-12",
        "model": LLAMA_8B,
        "gpus": 8,
        "gpu_type": "H100-96GB HBM2e (500 W)",
        "tp": 1,
        "pp": 1,
        "dp": 8,
        "micro_batch": 2,
        "global_batch": 16,
        "recompute": "selective",
        "zero": 3,
        "precision": "bf16",
        "measured": {"tokens_per_s_per_gpu": 5762, "memory_gib": 82.4},
        **values,
    }
