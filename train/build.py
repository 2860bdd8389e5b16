"""From a composed config to a module, its data and a trainer; every setting is checked here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from automap_models.envs.pipeline.env import REWARDS
from automap_models.errors import BadInput
from automap_models.rl.agent import AgentConfig
from automap_models.rl.networks.pipeline import NetworkSize
from automap_models.train.checkpoints import BEST, FOLDER, LAST, AtomicCheckpoints
from automap_models.train.console import progress
from automap_models.train.data import PipelineData
from automap_models.train.imitation import ImitationConfig, ImitationModule
from automap_models.train.module import NETWORKS, OfflineLearnerConfig, RainbowModule


@dataclass(frozen=True)
class LoggerSettings:
    """conf/logger: which loggers write."""

    csv: bool
    tensorboard: bool


LEAST = {
    "seed": 0,
    "episodes": 1,
    "visits": 1,
    "data.validation_groups": 1,
    "data.min_stages": 2,
    "data.batch": 1,
    "agent.learner.branches": 1,
    "data.steps_per_epoch": 1,
    "env.points": 2,
    "env.max_stages": 2,
    "env.max_devices": 2,
    "agent.size.hidden": 1,
    "agent.size.atoms": 1,
    "agent.agent.n_steps": 1,
    "trainer.devices": 1,
    "trainer.num_nodes": 1,
    "trainer.threads": 0,
}
"""The smallest value of every whole number in the config."""
MOST = 2**31 - 1
"""Of them all."""
GROUPS = ("data", "env", "agent", "agent.size", "agent.agent", "agent.learner", "trainer", "logger")
"""Groups of settings."""
FILES = {"out": False, "ckpt_path": True, "init_from": True}
"""Setting that names a file or a folder → whether it may be null."""


SHARES = tuple(f"agent.agent.{name}" for name in ("gamma", "epsilon_start", "epsilon_end", "local_share"))
"""Every number from 0 to 1 in the config."""


RESIDUALS = ("none", "linear", "log")


def require_settings(config: DictConfig) -> None:
    """Check what is a group of settings, names a file, counts something or is a share.

    Raises:
        BadInput: one is of another kind or out of its range.
    """
    for key in GROUPS:
        value = OmegaConf.select(config, key)
        if not isinstance(value, DictConfig):
            raise BadInput(f"is {value!r}, not a group of settings", where=key, do="see conf/train.yaml")
    for key, optional in FILES.items():
        value = OmegaConf.select(config, key)
        if not (value is None and optional) and not (isinstance(value, str) and value and "\0" not in value):
            raise BadInput(f"is {value!r}", where=key, do=f"give a path{' or null' if optional else ''}")
    for key, least in LEAST.items():
        value = OmegaConf.select(config, key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise BadInput(f"is {value!r}", where=key, do=f"give a whole number from {least} to {MOST:,}")
    for key in SHARES:
        value = OmegaConf.select(config, key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise BadInput(f"is {value!r}", where=key, do="give a number from 0 to 1")


def build_module(config: DictConfig) -> RainbowModule:
    """The LightningModule that a config describes.

    Raises:
        BadInput: a setting is unknown or holds what cannot be meant.
    """
    network = config.agent.network
    if network not in NETWORKS:
        raise BadInput(f"is {network!r}", where="agent.network", do=f"choose from {', '.join(NETWORKS)}")
    size = _checked(NetworkSize, "agent.size", config.agent.size, config.env)
    if size["residual"] not in RESIDUALS:
        raise BadInput(
            f"is {size['residual']!r}", where="agent.size.residual", do=f"choose from {', '.join(RESIDUALS)}"
        )
    if size["reward"] not in REWARDS:
        raise BadInput(f"is {size['reward']!r}", where="env.reward", do=f"choose from {', '.join(REWARDS)}")
    agent = _checked(AgentConfig, "agent.agent", config.agent.agent)
    learner = _checked(OfflineLearnerConfig, "agent.learner", config.agent.learner)
    if config.imitation is not None and not isinstance(config.imitation, DictConfig):
        raise BadInput(f"is {config.imitation!r}", where="imitation", do="set null, or take experiment=imitation")
    with _enough_memory():
        if config.imitation is None:
            return RainbowModule(network, size, agent, learner, config.seed)
        imitation = _checked(ImitationConfig, "imitation", config.imitation)
        return ImitationModule(network, size, agent, learner, config.seed, imitation)


@contextmanager
def _enough_memory() -> Iterator[None]:
    """Around what takes memory for the network and the replay.

    Raises:
        BadInput: there is not enough.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's allocator raises a RuntimeError
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        do = "lower agent.size.hidden, agent.size.atoms, agent.learner.replay or agent.learner.branches"
        raise BadInput("needs more memory than there is", where="agent", do=do) from error


def _checked(record: type[Any], where: str, *settings: DictConfig) -> dict[str, Any]:
    """Settings as a plain mapping with the keys and types of a record."""
    try:
        resolved = [
            OmegaConf.to_container(own, resolve=True) for own in settings
        ]  # `${out}/…` is known above them only
        merged: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(record), *resolved))
    except OmegaConfBaseException as error:
        key = f"{where}.{error.full_key}" if error.full_key else where
        raise BadInput(str(error).splitlines()[0], where=key, do="see conf/train.yaml") from None
    record(**merged)
    return dict(merged)


def build_data(config: DictConfig) -> PipelineData:
    """The LightningDataModule that a config describes; its settings are the arguments of PipelineData.

    Raises:
        BadInput: a setting is unknown or of another kind.
    """
    known = {
        name: kind for name, kind in get_type_hints(PipelineData.__init__).items() if name not in ("seed", "return")
    }
    settings = make_dataclass("DataSettings", known.items())
    return PipelineData(**_checked(settings, "data", config.data), seed=config.seed)


def build_loggers(config: DictConfig) -> list[Logger]:
    """The loggers that a config switches on; each run under `out` gets the next version_N and keeps older curves."""
    loggers: list[Logger] = []
    wanted = _checked(LoggerSettings, "logger", config.logger)
    if wanted["csv"]:
        loggers.append(CSVLogger(config.out, name="csv"))
    if wanted["tensorboard"]:
        loggers.append(TensorBoardLogger(config.out, name="tensorboard"))
    return loggers


def build_checkpoints(config: DictConfig) -> list[ModelCheckpoint]:
    """Best by mean L/L* first, then the newest, after every epoch; the newest remembers the best, too."""
    common: dict[str, Any] = {"dirpath": Path(config.out) / FOLDER, "enable_version_counter": False}
    return [
        ModelCheckpoint(**common, filename=BEST, monitor="val/gap_mean"),
        ModelCheckpoint(**common, filename=LAST),
    ]


def build_trainer(config: DictConfig, epochs: int) -> L.Trainer:
    """The Trainer that a config describes.

    Raises:
        BadInput: the trainer settings name what this machine does not have or Lightning does not know.
    """
    options: Any = OmegaConf.to_container(config.trainer, resolve=True)
    threads = options.pop("threads")
    if threads:
        torch.set_num_threads(threads)
    loggers, bar = build_loggers(config), progress()
    try:
        return L.Trainer(
            **options,
            max_epochs=epochs,
            logger=loggers,
            callbacks=[*build_checkpoints(config), *bar, *([LearningRateMonitor()] if loggers else [])],
            plugins=[AtomicCheckpoints()],
            default_root_dir=config.out,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            reload_dataloaders_every_n_epochs=1,
            enable_model_summary=False,
            enable_progress_bar=bool(bar),
        )
    except (MisconfigurationException, TypeError, ValueError) as error:
        raise BadInput(str(error), where="trainer", do="see conf/trainer") from error


def require_fitting_problems(config: DictConfig, data: PipelineData) -> None:
    """The data set's problems can be expressed in the environment.

    Raises:
        BadInput: they are on another grid, or larger.
    """
    problems = data.problems
    if problems.points != config.env.points:
        raise BadInput(
            f"its problems have {problems.points} points, the environment {config.env.points}",
            where=str(data.path),
            do=f"set env.points={problems.points} or make the data set with granularity={config.env.points}",
        )
    for name, most in (("stages", config.env.max_stages), ("devices", config.env.max_devices)):
        largest = int(getattr(problems, name).max())
        if largest > most:
            raise BadInput(
                f"has problems of {largest} {name}, the environment at most {most}",
                where=str(data.path),
                do=f"set env.max_{name}={largest}",
            )


def episodes_per_epoch(config: DictConfig) -> int:
    """Episodes that all processes play in an epoch."""
    per_step = config.data.batch * config.agent.learner.branches * config.trainer.devices * config.trainer.num_nodes
    return int(per_step * config.data.steps_per_epoch)


def epochs_of(config: DictConfig, groups: int) -> int:
    """Epochs that play the asked number of episodes, and on no environment more than allowed.

    Raises:
        BadInput: too few groups for that many episodes.
    """
    per_epoch = episodes_per_epoch(config)
    epochs = -(-config.episodes // per_epoch)
    if epochs * per_epoch > groups * config.visits:
        raise BadInput(
            f"{epochs * per_epoch} episodes on {groups} groups visit some more than {config.visits} times",
            where=str(config.data.path),
            do="generate more groups, or lower episodes or raise visits",
        )
    return int(epochs)
