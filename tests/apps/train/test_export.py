"""A policy file says what it is and does what the trained module does, or is not there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

import automap_models
from automap_models.envs.encoding import EncodedProblems
from automap_models.envs.pipeline import Partial, Problems, legal_actions
from automap_models.formats.dataset import read_dataset
from automap_models.planners.policy import KIND, Policy
from automap_models.rl import targets
from automap_models.train import export
from automap_models.train.build import build_data, build_module
from automap_models.train.module import RainbowModule

MakeConfig = Callable[..., DictConfig]


@dataclass(frozen=True)
class Exported:
    """A policy file with all that it was made from."""

    path: Path
    module: RainbowModule
    problems: Problems
    config: dict[str, Any]
    report: dict[str, float]


def export_with(config: DictConfig, path: Path) -> Exported:
    """Export a module with weights as large as trained ones."""
    module, data = build_module(config), build_data(config)
    torch.manual_seed(1)
    for weight in module.online.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    data.setup()
    module.episodes = 4321
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return Exported(path, module, data.problems, plain, export.export_policy(module, data, path, plain))


@pytest.fixture(scope="module")
def exported(groups: Path, tmp_path_factory: pytest.TempPathFactory, compose_tiny: MakeConfig) -> Exported:
    """The paper's network: its export takes seconds."""
    return export_with(
        compose_tiny("agent=paper", "agent.size.hidden=16"), tmp_path_factory.mktemp("p") / "policy.onnx"
    )


def assert_agrees(made: Exported) -> None:
    assert made.report["states"] >= 10_000
    assert made.report["largest_difference"] <= 1e-5
    assert made.report["equal_actions"] == 1.0
    assert [path.name for path in made.path.parent.iterdir()] == ["policy.onnx"]


def assert_batches_of_any_size(made: Exported) -> None:
    """Values of the file, read as inference reads it, against the module's, state for state."""
    policy = Policy(made.path)
    states = export.sample_states(made.module, made.problems, 600, seed=5)
    for batch in (1, 3, 17):
        for all_problems, all_partial in states:
            some = torch.arange(batch)
            problems, partial = all_problems.take(some), all_partial.take(some)
            feed = dict(zip(export.INPUTS, [t.numpy() for t in (*problems, *partial)], strict=True))
            legal = legal_actions(problems, partial, made.module.size.max_devices)
            with torch.no_grad():
                q = made.module.agent.q(made.module.online, problems, partial)
            expected = targets.masked(q, legal).numpy()
            values = policy.values(feed)
            assert values.shape == (batch, 16 + 12 - 1)
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5)


def test_the_file_agrees_with_torch_on_ten_thousand_states(exported: Exported) -> None:
    assert_agrees(exported)


def test_the_file_takes_batches_of_any_size(exported: Exported) -> None:
    assert_batches_of_any_size(exported)


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["default"])
def test_the_look_ahead_network_is_exported_as_well(agent: str, compose_tiny: MakeConfig, tmp_path: Path) -> None:
    made = export_with(compose_tiny(f"agent={agent}", "agent.size.hidden=16"), tmp_path / "policy.onnx")
    assert_agrees(made)
    assert_batches_of_any_size(made)


def test_the_sampled_states_are_of_every_step_and_only_legal_ones(exported: Exported) -> None:
    states = export.sample_states(exported.module, exported.problems, 1000, seed=2)
    assert {int(partial.step[0]) for _, partial in states} == set(range(6))
    for problems, partial in states:
        assert (partial.step == partial.step[0]).all()
        made = (partial.cuts >= 0).sum(1) + (partial.device_cuts >= 0).sum(1)
        assert torch.equal(made, partial.step)
        assert legal_actions(problems, partial, 12).any(1).all()


def test_the_file_says_what_it_is(exported: Exported, groups: Path) -> None:
    said = onnxruntime.InferenceSession(str(exported.path)).get_modelmeta().custom_metadata_map
    canonical = json.dumps(exported.config, sort_keys=True)
    assert said["automap_kind"] == KIND
    assert said["automap_version"] == automap_models.__version__
    assert said["config_sha256"] == hashlib.sha256(canonical.encode()).hexdigest()
    assert json.loads(said["config"]) == exported.config
    assert (said["points"], said["max_stages"], said["max_devices"], said["episodes"]) == ("16", "4", "12", "4321")
    opsets = {entry.domain: entry.version for entry in onnx.load(exported.path).opset_import}
    assert opsets[""] == int(said["opset"]) == export.OPSET


def test_the_file_holds_the_ranges_of_the_problems_trained_on(exported: Exported, groups: Path) -> None:
    said = onnxruntime.InferenceSession(str(exported.path)).get_modelmeta().custom_metadata_map
    trained_on = EncodedProblems.from_mapping(read_dataset(groups)).take(slice(None, 188))
    scalars = {name: array for name, array in trained_on.as_dict().items() if array.ndim == 1}
    scalars["devices"] = trained_on.nodes * trained_on.devices_per_node
    del scalars["instructions"]
    ranges = json.loads(said["ranges"])
    assert ranges.keys() == scalars.keys()
    for name, array in scalars.items():
        assert ranges[name] == pytest.approx([array.min(), array.max()], rel=1e-6)


def test_the_file_holds_nothing_about_the_machine_it_was_made_on(exported: Exported) -> None:
    graph = onnx.load(exported.path)
    graph.ClearField("metadata_props")
    assert b"site-packages" not in graph.SerializeToString()
    assert b".py" not in graph.SerializeToString()


@pytest.mark.parametrize("damage", ["weights", "mask"])
def test_a_file_that_decides_otherwise_is_refused_and_does_not_stay(
    damage: str, exported: Exported, compose_tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter hands over a graph of other weights, or one that masks otherwise."""
    wrong = onnx.load(exported.path)
    if damage == "weights":
        weight = max(wrong.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) * 1.01).astype(np.float32).tobytes()

    def wrongly(module: RainbowModule, example: tuple[Problems, Partial], metadata: Any, path: Path) -> None:
        onnx.save(wrong, path)

    monkeypatch.setattr(export, "to_onnx", wrongly)
    if damage == "mask":
        monkeypatch.setattr(export, "legal_actions", lambda *arguments: ~legal_actions(*arguments))
    (tmp_path / "policy.onnx").write_bytes(b"an older one")
    data = build_data(compose_tiny())
    data.setup()
    with pytest.raises(RuntimeError, match="differs from the trained one" if damage == "weights" else "legal"):
        export.export_policy(exported.module, data, tmp_path / "policy.onnx", exported.config)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]
    assert (tmp_path / "policy.onnx").read_bytes() == b"an older one"
