"""Every shipped training config composes and builds what it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra_programs import composed, quickly_composed
from omegaconf import DictConfig, OmegaConf

from automap_models.errors import BadInput
from automap_models.resources import conf_dir

pytest.importorskip("lightning")

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from automap_models.rl.episodes import REWARDS
from automap_models.rl.networks.pipeline import ChoiceNetwork, FlatNetwork
from automap_models.train.build import build_data, build_loggers, build_module, build_trainer, require_settings
from automap_models.train.rainbow import RainbowModule

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")


def shipped(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def compose(*overrides: str) -> DictConfig:
    return composed("train", *overrides)


def build(config: DictConfig) -> RainbowModule:
    require_settings(config)
    build_data(config)
    return build_module(config)


@pytest.mark.parametrize("name", shipped("agent"))
def test_every_agent_builds_its_module(name: str) -> None:
    config = compose(f"agent={name}")
    module = build(config)
    assert isinstance(module.online, FlatNetwork if name == "paper" else ChoiceNetwork)
    for part, settings in (("agent", module.agent.config), ("learner", module.settings)):
        for key, value in OmegaConf.to_container(config.agent[part]).items():  # type: ignore[union-attr]
            assert getattr(settings, str(key)) == value
    assert module.size.points == config.env.points


def test_the_agents_are_those_that_the_documentation_names() -> None:
    assert shipped("agent") == ["default", "paper"]


def test_the_paper_s_agent_has_the_paper_s_numbers() -> None:
    """Auto-MAP, section 5.1, pipeline tasks."""
    module = build(compose("agent=paper"))
    agent, learner = module.agent.config, module.settings
    assert agent.gamma == 0.6
    assert (learner.batch, learner.learning_rate, learner.replay, learner.target_every) == (64, 1e-3, 2000, 100)
    assert (learner.alpha, learner.beta) == (0.2, 0.6)
    assert [agent.epsilon(step) for step in (0, 10_000, 20_000)] == pytest.approx([1.0, 0.1, 0.1])
    assert compose("agent=paper").visits == 50


@pytest.mark.parametrize("name", shipped("env"))
def test_every_environment_builds_a_module_of_its_size(name: str) -> None:
    config = compose(f"env={name}")
    module = build(config)
    size = {"reward": module.reward, **vars(module.size)}
    assert {key: size[str(key)] for key in config.env} == dict(config.env)


@pytest.mark.parametrize("reward", REWARDS)
def test_the_reward_is_a_setting_of_the_environment_that_its_agent_plays_in(reward: str) -> None:
    module = build(compose(f"env.reward={reward}"))
    assert (module.reward, module.agent.reward) == (reward, reward)
    assert build(compose()).agent.reward == "ideal_over_length"


def test_the_paper_s_recipe_is_its_agent_on_arrays_alone_paid_by_one_over_the_length() -> None:
    """Then the same network is fine-tuned on arrays of CNNs, from where it ended."""
    config, tuned = compose("experiment=paper"), compose("experiment=paper_cnn")
    for one in (config, tuned):
        module = build(one)
        assert isinstance(module.online, FlatNetwork)
        assert (module.reward, module.agent.config.gamma, module.settings.branches) == ("inverse_length", 0.6, 1)
        assert one.data.min_stages == 2
        assert one.visits == 50
    assert tuned.init_from == f"{config.out}/checkpoints/last.ckpt"
    assert tuned.data.path == "data/cnn"
    assert (tuned.agent.agent.epsilon_start, config.agent.agent.epsilon_start) == (0.2, 1.0)


@pytest.mark.parametrize("name", shipped("trainer"))
def test_every_trainer_is_built_with_what_it_says(name: str, tmp_path: Path) -> None:
    config = compose(f"trainer={name}", f"out={tmp_path / 'run'}", "trainer.threads=1")
    if name == "gpu" and not torch.cuda.is_available():
        with pytest.raises(BadInput, match=r"trainer: .*gpu"):
            build_trainer(config, epochs=3)
        return
    trainer = build_trainer(config, epochs=3)
    assert trainer.num_devices == config.trainer.devices
    assert trainer.num_nodes == config.trainer.num_nodes
    assert trainer.max_epochs == 3
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", shipped("logger"))
def test_every_logger_config_switches_its_loggers(name: str, tmp_path: Path) -> None:
    config = compose(f"logger={name}", f"out={tmp_path}")
    kinds = [type(logger).__name__ for logger in build_loggers(config)]
    wanted = [("csv", "CSVLogger"), ("tensorboard", "TensorBoardLogger")]
    assert kinds == [kind for key, kind in wanted if config.logger[key]]


@pytest.mark.parametrize("name", shipped("experiment"))
def test_every_experiment_composes_and_builds(name: str, tmp_path: Path) -> None:
    config = compose(f"experiment={name}", f"out={tmp_path / 'run'}", "trainer.threads=1")
    assert config.run_name == name
    build(config)
    checkpoints = [c for c in build_trainer(config, epochs=1).callbacks if isinstance(c, ModelCheckpoint)]  # type: ignore[attr-defined]
    assert [c.monitor for c in checkpoints] == ["val/gap_mean", None]


def test_fine_tuning_starts_where_the_default_run_ends() -> None:
    fine_tuning = compose("experiment=finetune_cnn")
    assert fine_tuning.init_from == f"{compose().out}/checkpoints/best.ckpt"
    assert fine_tuning.data.path == "data/cnn"
    assert fine_tuning.out != compose().out


def test_all_sizes_are_those_of_the_environment_and_measured_on_what_can_be_solved() -> None:
    config = compose("experiment=all_sizes")
    assert config.out != compose().out
    assert config.env == compose().env
    assert build_data(config).settings.validation_devices == 24
    assert build_data(compose()).settings.validation_devices is None


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("agent.network=deep", "agent.network: is 'deep'; choose from choices, flat"),
        ("+agent.size.layers=3", "agent.size.layers"),
        ("agent.size.hidden=0", "agent.size.hidden: is 0"),
        ("+agent.agent.momentum=0.5", "agent.agent.momentum: .*not in"),
        ("agent.agent.gamma=high", "agent.agent.gamma: is 'high'"),
        ("agent.agent.gamma=0.9", "log_values with gamma 0.9"),
        ("agent.agent.epsilon_start=1.5", "agent.agent.epsilon_start: is 1.5"),
        ("agent.agent.log_values=perhaps", "agent.agent.log_values"),
        ("agent.learner.batch=many", "agent.learner.batch: .*'many'"),
        ("agent.learner.iterations=0", "agent.learner.iterations: is 0"),
        ("agent.learner.learning_rate=-1", "agent.learner.learning_rate: is -1"),
        ("data.batch=0", "data.batch: is 0"),
        ("data.groups=all", "data.groups: .*'all'"),
        ("data.path=null", "data.path"),
        ("+data.shuffle=true", "data.shuffle"),
        ("episodes=1e6", "episodes: is 1000000.0; give a whole number"),
        ("trainer.devices=auto", "trainer.devices: is 'auto'"),
        ("env.max_devices=1", "env.max_devices"),
        ("seed=-1", "seed: is -1"),
        ("env.reward=length", "env.reward: is 'length'; choose from ideal_over_length, inverse_length"),
    ],
)
def test_a_wrong_setting_is_named(override: str, named: str) -> None:
    with pytest.raises(BadInput, match=named):
        build(quickly_composed("train", override))


@pytest.mark.parametrize(
    "override", ["+trainer.speed=1", "trainer.precision=7", "trainer.strategy=psychic", "trainer.accelerator=abacus"]
)
def test_a_wrong_trainer_option_is_refused(override: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="trainer: "):
        build_trainer(compose(override, f"out={tmp_path}"), epochs=1)
