"""The training of the placer: one command, a resumed run, a fine-tuned one, and settings that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import DictConfig

from automap_models.errors import BadInput
from automap_models.resources import conf_dir
from automap_models.train.main import train

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")

TINY = (
    "export=false",
    *(f"placement.{name}=1" for name in ("validate", "problems", "held_out", "tries", "size.sage_layers")),
    *("placement.size.attention_layers=1", "placement.size.heads=1", "placement.size.hidden=8"),
    *("placement.ppo.samples=2", "placement.ppo.epochs=1"),
)
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


def test_a_resumed_training_ends_with_the_weights_of_an_unbroken_one_and_is_fine_tuned(tmp_path: Path) -> None:
    def run(out: str, steps: int, *more: str, kind: str = "pretrain") -> Path:
        folder = tmp_path / out
        train(compose(f"experiment=gdp_{kind}", *TINY, f"placement.steps={steps}", f"out={folder}", *more))
        return folder

    run("broken", 2)
    broken, unbroken = weights(run("broken", 4, "ckpt_path=last")), weights(run("unbroken", 4))
    assert broken.keys() == unbroken.keys()
    assert all(torch.equal(broken[name], unbroken[name]) for name in broken)
    (tmp_path / "line.json").write_text(json.dumps(LINE), encoding="utf-8")
    best = tmp_path / "unbroken" / "checkpoints" / "last.ckpt"
    graph = f"placement.graph={tmp_path / 'line.json'}"
    tuned = weights(run("tuned", 2, graph, f"init_from={best}", kind="finetune"))
    assert any(not torch.equal(tuned[name], unbroken[name]) for name in tuned)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("placement=3", "placement: is not a group of settings"),
        ("placement.steps=0", "placement.steps: is 0"),
        ("+placement.size.width=3", "placement.size.width: is no setting"),
        ("placement.graph=missing.json", "missing.json"),
    ],
)
def test_what_cannot_be_meant_is_refused(override: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=says):
        train(compose("experiment=gdp_pretrain", *TINY, f"out={tmp_path / 'out'}", override))
    assert not (tmp_path / "out").exists()
