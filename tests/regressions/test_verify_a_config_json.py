"""`automap-search opp path/to/config.json --verify` took the file's path for the name of a factory and ended with exit 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

from automap_models.infer.app import search as main

GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 4}


@pytest.mark.slow
def test_the_plan_of_a_config_json_with_dropout_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2), encoding="utf-8")
    step = ["--batch", "8", "--sequence", "16", "--dropout"]
    assert main(["opp", str(path), *step, "--topo", "A", "--mesh", "4", "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"]["equal"]
