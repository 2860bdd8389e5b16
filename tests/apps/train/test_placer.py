"""The training of the placer: one command, a resumed run, and settings that cannot be."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import DictConfig

from automap_models.errors import BadInput
from automap_models.planners.placement.learned import read_placer
from automap_models.resources import conf_dir
from automap_models.train.main import train
from automap_models.train.placer import PlacerModule, export_placer

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")

TINY = (
    "export=false",
    *(f"placement.{name}=1" for name in ("validate", "held_out", "batch", "size.sage_layers")),
    *("placement.size.attention_layers=1", "placement.size.heads=1", "placement.size.hidden=32"),
    *("placement.moves=60", "placement.decay=0"),
)
PRETRAIN = ("experiment=gdp_pretrain", *TINY, "placement.graphs=[]", "placement.random_problems=2")
LINE = {
    "maxSizePerFPGA": 6e9,
    "maxFPGAs": 2,
    "maxCPUs": 0,
    "nodes": [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 1, "isBackwardNode": 0, "size": 1}
        for i in range(4)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 1} for i in range(3)],
}


def compose(*overrides: str) -> DictConfig:
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose("train", overrides=list(overrides))


def weights(out: Path) -> dict[str, torch.Tensor]:
    content = torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)
    return dict(content["state_dict"])


def test_a_resumed_training_ends_with_the_weights_of_an_unbroken_one(tmp_path: Path) -> None:
    """Four updates, broken after three."""

    def run(out: str, steps: int, *options: str) -> Path:
        folder = tmp_path / out
        train(compose(*options, f"placement.steps={steps}", f"out={folder}"))
        return folder

    (tmp_path / "line.json").write_text(json.dumps(LINE), encoding="utf-8")
    graphs = (f"placement.graphs=[{tmp_path / 'line.json'}]", "placement.graph_problems=1")
    pretrain = (*PRETRAIN, *graphs)
    run("broken", 3, *pretrain)
    broken = weights(run("broken", 4, *pretrain, "ckpt_path=last"))
    unbroken = weights(run("unbroken", 4, *pretrain))
    assert broken.keys() == unbroken.keys()
    assert all(torch.equal(broken[name], unbroken[name]) for name in broken)
    curves = (tmp_path / "unbroken" / "csv" / "version_0" / "metrics.csv").read_text(encoding="utf-8")
    assert {"val/graphs", "val/random", "val/top"} <= set(curves.splitlines()[0].split(","))


def test_ctrl_c_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning ends with the code of one; commands end with 130 where KeyboardInterrupt arrives."""
    monkeypatch.setattr(PlacerModule, "training_step", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(compose(*PRETRAIN, "placement.steps=2", f"out={tmp_path}"))


def test_an_exported_policy_agrees_with_torch_and_says_nothing_of_this_machine(tmp_path: Path) -> None:
    size = {"hidden": 32, "sage_layers": 1, "attention_layers": 1, "heads": 1, "superposition": True}
    module = PlacerModule({"size": size}, 1, tmp_path)
    assert export_placer(module, tmp_path / "policy.onnx") < 1e-4
    assert read_placer(tmp_path / "policy.onnx").metadata["seed"] == "1"
    assert b".py" not in (tmp_path / "policy.onnx").read_bytes()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("placement=3", "placement: is not a group of settings"),
        ("placement.steps=0", "placement.steps: is 0"),
        ("+placement.size.width=3", "placement.size.width: is no setting"),
    ],
)
def test_what_cannot_be_meant_is_refused(override: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=sentence):
        train(compose(*PRETRAIN, f"out={tmp_path / 'out'}", override))
    assert not (tmp_path / "out").exists()
