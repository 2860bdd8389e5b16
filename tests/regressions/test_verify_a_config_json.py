"""`automap search opp path/to/config.json --verify` took the path for the name of a factory and ended in an error.

The process that runs the plan builds the step with this function.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

from automap_models.workloads.source import Source, source_kind, training_step_of

GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 4}


@pytest.mark.parametrize("dropout", [False, True])
def test_the_step_of_a_config_json_is_built_from_its_path(dropout: bool, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2), encoding="utf-8")
    step = training_step_of(Source(str(path), source_kind(str(path)), batch=8, dropout=dropout))
    assert step.arguments[-1]["ids"].shape == (8, 16)
    assert ("key" in step.arguments[-1]) == dropout
