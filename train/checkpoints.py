"""Checkpoint files: written whole or not at all, read without unpickling, refused in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from omegaconf import DictConfig

from automap_models.errors import BadInput
from automap_models.formats.files import write_atomically
from automap_models.resources import is_file
from automap_models.rl.networks.pipeline import NetworkSize
from automap_models.train.data import PipelineData
from automap_models.train.imitation import ImitationModule
from automap_models.train.module import RainbowModule, require_processes

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

    Args:
        path: the file.
        key: the setting that named it.

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
    if ("imitation" in checkpoint["hyper_parameters"]) != isinstance(module, ImitationModule):
        raise BadInput(
            "was learned another way: one from episodes, the other from exact plans",
            where=str(path),
            do="go on as it began (experiment=imitation or not), or take the weights only with init_from=",
        )
    for name in ("replay", "branches"):
        saved, wanted = checkpoint["hyper_parameters"]["learner"].get(name), getattr(module.settings, name)
        if saved != wanted:
            raise BadInput(
                f"was written with {name} {saved}, not {wanted}",
                where=str(path),
                do=f"set agent.learner.{name}={saved}, or take the weights only with init_from=",
            )
    if checkpoint.get(type(data).__qualname__, data.state_dict()) != data.state_dict():
        raise BadInput(
            "was trained on other groups than this run's",
            where=str(path),
            do="give the same data settings, or init_from= to take the weights only",
        )
    require_processes(checkpoint["rainbow"], processes, str(path))
    return checkpoint


def load_weights(module: RainbowModule, path: Path, key: str = "init_from") -> None:
    """Take over the networks of a checkpoint, nothing else.

    A network shared over candidates has the same weights for every number of stages and devices.

    Raises:
        BadInput: the file is no checkpoint of such a network.
    """
    checkpoint = read_checkpoint(path, key)
    shared = checkpoint["hyper_parameters"].get("network") == "look_ahead"
    _require_same_network(checkpoint, module, path, but_for=("max_stages", "max_devices") if shared else ())
    _require_weights(checkpoint, module, path)
    module.load_state_dict(checkpoint["state_dict"])


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
        if key not in but_for and saved.get(key) != value
    ]
    if differences:
        raise BadInput(
            f"holds another network than this run's ({'; '.join(differences)})",
            where=str(path),
            do="give a checkpoint trained with the same agent and env",
        )


def _architecture(parameters: Any) -> dict[str, Any]:
    """Every setting that decides the shapes and the meaning of a network's weights, and of the replay."""
    return {"network": parameters["network"], **asdict(NetworkSize(**parameters["size"]))}
