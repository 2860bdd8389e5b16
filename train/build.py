"""From a composed config to a module, its data, a trainer and its checkpoints; every setting is checked here.

Checkpoint files are written whole or not at all, read without unpickling, and refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from automap_models.envs.pipeline.env import DEVICES, Problems
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically, write_text
from automap_models.resources import is_file
from automap_models.rl.agent import AgentConfig
from automap_models.rl.episodes import REWARDS
from automap_models.rl.networks.pipeline import NETWORKS, ChoiceNetwork, NetworkSize

from .console import progress
from .data import DataSettings, PipelineData
from .rainbow import OfflineLearnerConfig, RainbowModule

FOLDER, BEST, LAST = "checkpoints", "best", "last"
WRITTEN_BY_US = "give a checkpoint written by train/run.py"


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes beside the file and renames; Lightning's own detour over /tmp is a copy where that is another disk."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Raises:
            BadInput: the file cannot be written.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: torch.save(checkpoint, file))


def read_checkpoint(path: Path, key: str) -> dict[str, Any]:
    """The content of a checkpoint file.

    Raises:
        BadInput: it is missing, truncated or no checkpoint of a training run.
    """
    if not is_file(path):
        raise BadInput("no such checkpoint", where=str(path), do=f"give an existing file as {key}=")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile, pickle and torch raise a dozen kinds on what is no checkpoint
        raise BadInput("is no checkpoint or a truncated one", where=str(path), do=WRITTEN_BY_US) from error
    parts = ("state_dict", "hyper_parameters", "rainbow")
    if not isinstance(content, dict) or not all(isinstance(content.get(part), dict) for part in parts):
        raise _foreign(path)
    learner, rainbow = content["hyper_parameters"].get("learner"), content["rainbow"]
    counted = type(rainbow.get("episodes")) is int and isinstance(rainbow.get("processes"), list)
    if not counted or not isinstance(learner, dict):
        raise _foreign(path)
    return content


def _foreign(path: Path) -> BadInput:
    return BadInput("is no checkpoint of a training run", where=str(path), do=WRITTEN_BY_US)


def resume_from(config: DictConfig) -> Path | None:
    """The checkpoint file that a config says to go on with."""
    if config.ckpt_path is None:
        return None
    last = Path(config.out) / FOLDER / f"{LAST}.ckpt"
    return last if config.ckpt_path == "last" else Path(config.ckpt_path)


def require_resumable(path: Path, module: RainbowModule, data: PipelineData, processes: int) -> dict[str, Any]:
    """The content of a checkpoint that this run can go on with.

    Raises:
        BadInput: it cannot: another network, replay, data set or number of processes.
    """
    checkpoint = read_checkpoint(path, "ckpt_path")
    _require_same_network(checkpoint, module, path)
    _require_weights(checkpoint, module, path)
    for name in ("replay", "branches"):
        saved, wanted = checkpoint["hyper_parameters"]["learner"].get(name), getattr(module.settings, name)
        if _differs(saved, wanted):
            do = f"set agent.learner.{name}={saved}, or take the weights only with init_from="
            raise BadInput(f"was written with {name} {saved}, not {wanted}", where=str(path), do=do)
    if _differs(checkpoint.get(type(data).__qualname__, data.state_dict()), data.state_dict()):
        do = "give the same data settings, or init_from= to take the weights only"
        raise BadInput("was trained on other groups than this run's", where=str(path), do=do)
    before = len(checkpoint["rainbow"]["processes"])  # each goes on with its own replay and random states
    if before != processes:
        do = f"go on with trainer.devices × trainer.num_nodes = {before}, or take the weights only with init_from="
        raise BadInput(f"was written by {before} process(es), this run has {processes}", where=str(path), do=do)
    return checkpoint


def load_weights(module: RainbowModule, path: Path, key: str = "init_from") -> None:
    """Take over the networks of a checkpoint, nothing else.

    A network shared over choices has the same weights for every number of stages and devices.

    Raises:
        BadInput: the file is no checkpoint of such a network.
    """
    checkpoint = read_checkpoint(path, key)
    shared = isinstance(module.online, ChoiceNetwork)
    _require_same_network(checkpoint, module, path, but_for=("max_stages", "max_devices") if shared else ())
    _require_weights(checkpoint, module, path)
    module.load_state_dict(checkpoint["state_dict"])


def _differs(saved: object, wanted: object) -> bool:
    """Whether a value of a checkpoint is another one; a damaged file may hold tensors, whose comparison is no truth."""
    try:
        return bool(saved != wanted)
    except (RuntimeError, ValueError):
        return True


def _require_weights(checkpoint: dict[str, Any], module: RainbowModule, path: Path) -> None:
    """Every weight of the network is there, of its shape, and none else.

    Raises:
        BadInput: the checkpoint is damaged.
    """
    saved, wanted = checkpoint["state_dict"], module.state_dict()
    same = saved.keys() == wanted.keys() and all(
        isinstance(saved[name], torch.Tensor) and saved[name].shape == weight.shape for name, weight in wanted.items()
    )
    if not same:
        raise BadInput("holds other weights than its network has: it is damaged", where=str(path), do=WRITTEN_BY_US)


def _require_same_network(
    checkpoint: dict[str, Any], module: RainbowModule, path: Path, but_for: Sequence[str] = ()
) -> None:
    try:
        saved = _architecture(checkpoint["hyper_parameters"])
    except (KeyError, TypeError):
        raise _foreign(path) from None
    wanted = _architecture(module.hparams)
    differences = [
        f"{key} {saved.get(key)}, not {value}"
        for key, value in wanted.items()
        if key not in but_for and _differs(saved.get(key), value)
    ]
    if differences:
        what = f"holds another network than this run's ({'; '.join(differences)})"
        raise BadInput(what, where=str(path), do="give a checkpoint trained with the same agent and env")


def _architecture(parameters: Any) -> dict[str, Any]:
    """Every setting that decides the shapes and the meaning of a network's weights, and of the replay."""
    return {"network": parameters["network"], **asdict(NetworkSize(**parameters["size"]))}


@dataclass(frozen=True)
class LoggerSettings:
    """conf/logger: which loggers write."""

    csv: bool
    tensorboard: bool


MOST = 2**31 - 1
"""Of every whole number in the config."""
GROUPS = ("data", "env", "agent", "agent.size", "agent.agent", "agent.learner", "trainer", "logger")
"""Groups of settings."""


def _path(value: object) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _integer_rules(least: int, *keys: str) -> dict[str, tuple[Callable[[Any], bool], str]]:
    do = f"give a whole number from {least} to {MOST:,}"
    return {key: (lambda value: type(value) is int and least <= value <= MOST, do) for key in keys}


def _choice(key: str, names: Iterable[str]) -> dict[str, tuple[Callable[[Any], bool], str]]:
    return {key: (lambda value: value in [*names], f"choose from {', '.join(names)}")}


def _share(*keys: str) -> dict[str, tuple[Callable[[Any], bool], str]]:
    return {
        key: (lambda value: type(value) in (int, float) and 0 <= value <= 1, "give a number from 0 to 1")
        for key in keys
    }


SETTINGS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "out": (_path, "give a path"),
    **{key: (lambda value: value is None or _path(value), "give a path or null") for key in ("ckpt_path", "init_from")},
    **_integer_rules(0, "seed", "trainer.threads"),
    **_integer_rules(1, "episodes", "visits", "data.validation_groups", "data.batch", "data.steps_per_epoch"),
    **_integer_rules(1, "agent.learner.branches", "agent.size.hidden"),
    **_integer_rules(1, "trainer.devices", "trainer.num_nodes"),
    **_integer_rules(2, "data.min_stages", "env.points", "env.max_stages", "env.max_devices"),
    "export": (lambda value: isinstance(value, bool), "give true or false"),
    **_share(*(f"agent.agent.{name}" for name in ("gamma", "epsilon_start", "epsilon_end", "local_share"))),
    **_choice("agent.network", NETWORKS),
    **_choice("env.reward", REWARDS),
}
"""Setting → whether a value is one of its own, and what to give."""


def require_settings(config: DictConfig) -> None:
    """Check what is a group of settings, and what SETTINGS holds.

    Raises:
        BadInput: one is of another kind or out of its range.
    """
    for key in GROUPS:
        value = OmegaConf.select(config, key)
        if not isinstance(value, DictConfig):
            raise BadInput(f"is {value!r}, not a group of settings", where=key, do="see conf/train.yaml")
    for key, (right, do) in SETTINGS.items():
        value = OmegaConf.select(config, key)
        if not right(value):
            raise BadInput(f"is {value!r}", where=key, do=do)


def build_module(config: DictConfig) -> RainbowModule:
    """The LightningModule that a config describes.

    Raises:
        BadInput: a setting is unknown or holds what cannot be meant, or there is not enough memory for the replay.
    """
    env = {key: value for key, value in config.env.items() if key != "reward"}
    size = checked(NetworkSize, "agent.size", config.agent.size, OmegaConf.create(env))
    agent = checked(AgentConfig, "agent.agent", config.agent.agent)
    learner = checked(OfflineLearnerConfig, "agent.learner", config.agent.learner)
    try:
        return RainbowModule(config.agent.network, config.env.reward, size, agent, learner, config.seed)
    except (MemoryError, RuntimeError) as error:  # torch's allocator raises a RuntimeError
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        do = "lower agent.size.hidden, agent.learner.replay or agent.learner.branches"
        raise BadInput("needs more memory than there is", where="agent", do=do) from error


def checked(record: type[Any], where: str, *settings: DictConfig, do: str = "see conf/train.yaml") -> dict[str, Any]:
    """Settings as a plain mapping with the keys and types of a record.

    Args:
        record: whose fields the settings are.
        settings: values, the last ones of a key first.

    Raises:
        BadInput: one is unknown, or of another kind than the field.
    """
    try:
        resolved = [
            OmegaConf.to_container(groups, resolve=True) for groups in settings
        ]  # `${out}/…` is known above them only
        merged: Any = OmegaConf.to_container(
            OmegaConf.merge(_schema(record), *resolved),  # type: ignore[arg-type]
            throw_on_missing=True,
        )
    except OmegaConfBaseException as error:
        key = f"{where}.{error.full_key}" if error.full_key else where
        raise BadInput(str(error).splitlines()[0], where=key, do=do) from None
    record(**merged)
    return dict(merged)


@cache
def _schema(record: type[Any]) -> Any:
    """The keys and types of a record as OmegaConf checks them; `merge` copies it."""
    return OmegaConf.structured(record)


def build_data(config: DictConfig) -> PipelineData:
    """The LightningDataModule that a config describes.

    Raises:
        BadInput: a setting is unknown or of another kind.
    """
    return PipelineData(DataSettings(**checked(DataSettings, "data", config.data)), config.seed)


def build_loggers(config: DictConfig) -> list[Logger]:
    """The loggers that a config switches on; each run under `out` gets the next version_N and keeps older curves."""
    loggers: list[Logger] = []
    wanted = checked(LoggerSettings, "logger", config.logger)
    if wanted["csv"]:
        loggers.append(CSVLogger(config.out, name="csv"))
    if wanted["tensorboard"]:
        loggers.append(TensorBoardLogger(config.out, name="tensorboard"))
    return loggers


def checkpoints(config: DictConfig, monitor: str, mode: str = "min") -> list[Callback]:
    """Best by what is logged under that name first, then the newest, after every epoch; the newest remembers both."""
    common: dict[str, Any] = {"dirpath": Path(config.out) / FOLDER, "enable_version_counter": False}
    return [
        ModelCheckpoint(**common, filename=BEST, monitor=monitor, mode=mode),
        ModelCheckpoint(**common, filename=LAST),
    ]


def trainer_of(config: DictConfig, epochs: int, logger: Any, callbacks: list[Callback], **options: Any) -> L.Trainer:
    """A Trainer as all runs of this program have it: no more checks and no other files than they make themselves."""
    return L.Trainer(
        **options,
        max_epochs=epochs,
        logger=logger,
        callbacks=callbacks,
        plugins=[AtomicCheckpoints()],
        default_root_dir=config.out,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
        enable_model_summary=False,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
    )


def write_config(config: DictConfig) -> None:
    """Keep what was composed beside its results.

    Raises:
        BadInput: `out` cannot be written.
    """
    out = Path(config.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot be made ({error.strerror})", where=str(out), do="set another out=") from error
    write_text(out / "config.yaml", OmegaConf.to_yaml(config, resolve=True))


def build_trainer(config: DictConfig, epochs: int, gap: float | None = None) -> L.Trainer:
    """The Trainer that a config describes.

    Args:
        gap: to the optimum before it, which people see until there is another.

    Raises:
        BadInput: the trainer settings name what this machine does not have or Lightning does not know.
    """
    options: Any = OmegaConf.to_container(config.trainer, resolve=True)
    threads = options.pop("threads")
    if threads:
        torch.set_num_threads(threads)
    if options.get("accelerator") in ("gpu", "cuda") and torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")  # TF32
    loggers, watchers = build_loggers(config), progress(epochs * episodes_per_epoch(config), gap)
    rates = [LearningRateMonitor()] if loggers else []
    try:
        return trainer_of(config, epochs, loggers, [*checkpoints(config, "val/gap_mean"), *watchers, *rates], **options)
    except (MisconfigurationException, TypeError, ValueError) as error:
        raise BadInput(str(error), where="trainer", do="see conf/trainer") from error


def require_fitting_problems(config: DictConfig, problems: Problems, path: Path) -> None:
    """The data set's problems can be expressed in the environment.

    Raises:
        BadInput: they are on another grid, or larger.
    """
    points = problems.arrays.shape[2]
    if points != config.env.points:
        what = f"its problems have {points} points, the environment {config.env.points}"
        do = f"set env.points={points} or make the data set with granularity={config.env.points}"
        raise BadInput(what, where=str(path), do=do)
    sizes = {"stages": problems.stages, "devices": problems.numbers[:, DEVICES]}
    for name, most in (("stages", config.env.max_stages), ("devices", config.env.max_devices)):
        largest = int(sizes[name].max())
        if largest > most:
            what = f"has problems of {largest} {name}, the environment at most {most}"
            raise BadInput(what, where=str(path), do=f"set env.max_{name}={largest}")


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
        what = f"{epochs * per_epoch} episodes on {groups} groups visit some more than {config.visits} times"
        do = "generate more groups, or lower episodes or raise visits"
        raise BadInput(what, where=str(config.data.path), do=do)
    return int(epochs)
