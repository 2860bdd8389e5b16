"""Training of the learned placer by PPO, on random graphs (pre-training) or on one (fine-tuning).

`python train/run.py experiment=gdp_pretrain`, then `experiment=gdp_finetune placement.graph=FILE`. Every draw follows
from the seed and the number of the step, so that a run that is gone on with draws what it would have drawn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import onnx
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from automap_models.core.placement import PlacementProblem
from automap_models.envs.placement.features import PlacerInputs
from automap_models.envs.placement.generator import random_problem
from automap_models.errors import AutomapError, BadInput
from automap_models.formats.atomic import write_text
from automap_models.onnx_runtime import OnnxFile
from automap_models.planners.base import NEVER
from automap_models.planners.placement.learned import KIND, OUTPUT, VERSION
from automap_models.planners.placement.placer_state import PlacerState
from automap_models.rl.networks.placement import PlacerNetwork, PlacerSize
from automap_models.rl.ppo import PpoConfig, advantages, ppo_loss

from .build import AtomicCheckpoints
from .console import say

SEE = "see conf/experiment/gdp_pretrain.yaml"
COMPARED = 8
"""Random problems on which an exported policy is compared with torch."""
TOLERANCE = 1e-3
"""Largest difference of two logits."""
VALIDATION_SEED = 7919
"""Offset of the seeds of held-out random problems."""


@dataclass
class PlacerConfig:
    """Settings of a training of the placer.

    Attributes:
        graph: a device-placement JSON to fine-tune on; null draws random graphs.
        devices: accelerators for that graph; null: its own.
        steps: updates.
        problems: of an update.
        learning_rate: of Adam.
        validate: updates between validations and checkpoints.
        held_out: random problems of a validation.
        tries: placements drawn for a held-out problem, besides the likeliest.
        size: of the network.
        ppo: of the learner.
    """

    graph: str | None = None
    devices: int | None = None
    steps: int = 3000
    problems: int = 4
    learning_rate: float = 5e-4
    validate: int = 100
    held_out: int = 16
    tries: int = 8
    size: dict[str, Any] = field(default_factory=lambda: asdict(PlacerSize()))
    ppo: dict[str, Any] = field(default_factory=lambda: asdict(PpoConfig()))


class PlacerModule(L.LightningModule):
    """One update: draw problems, draw placements, simulate them, PPO."""

    def __init__(self, config: dict[str, Any], seed: int, problem: PlacementProblem | None = None) -> None:
        super().__init__()
        self.save_hyperparameters({"placement": config, "seed": seed})
        self.config, self.seed, self.problem = config, seed, problem
        self.network = PlacerNetwork(PlacerSize(**config["size"]))
        self.ppo = PpoConfig(**config["ppo"])
        self.automatic_optimization = False

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.network.parameters(), lr=self.config["learning_rate"])

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        """Update number `batch`."""
        states = [self._state(int(batch), i) for i in range(self.config["problems"])]
        feed = stacked([state.inputs for state in states])
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(batch))
        with torch.no_grad():
            old = torch.log_softmax(self.network(**feed), dim=-1)
        actions, gains, rewards = [], [], []
        for i, state in enumerate(states):
            drawn = torch.multinomial(old[i].exp(), self.ppo.samples, replacement=True, generator=generator).T
            reward = torch.from_numpy(state.rewards(drawn.numpy())).float()
            actions.append(drawn)
            gains.append(advantages(reward))
            rewards.append(reward)
        optimizer: Any = self.optimizers()
        for _ in range(self.ppo.epochs):
            log_probs = torch.log_softmax(self.network(**feed), dim=-1)
            loss = torch.zeros(())
            for i, drawn in enumerate(actions):
                mask = feed["group_mask"][i]
                entropy = -(log_probs[i].exp() * log_probs[i].clamp(min=-30.0)).sum(dim=-1)
                now, before = (of[i].gather(1, drawn.T).T for of in (log_probs, old))
                loss = loss + ppo_loss(now, before, gains[i], entropy, mask, self.ppo)
            optimizer.zero_grad()
            self.manual_backward(loss / len(actions))
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            optimizer.step()
        self.log("train/reward", torch.stack(rewards).mean())
        self.log("train/best", torch.stack([reward.max() for reward in rewards]).mean())

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Step over the best baseline's, of the likeliest placement and of the best of some, on a held-out problem."""
        state = _random_state(self.seed + VALIDATION_SEED, int(batch)) if self.problem is None else self._state(0, 0)
        base_s = state.scores[state.best].value_s
        with torch.no_grad():
            logits = self.network(**stacked([state.inputs]))[0]
        generator = torch.Generator().manual_seed(int(batch))
        probabilities = torch.softmax(logits, dim=-1)
        drawn = torch.multinomial(probabilities, self.config["tries"], replacement=True, generator=generator).T
        devices = torch.cat([logits.argmax(dim=-1)[None], drawn]).numpy()
        values, excess = state.values(devices)
        values = np.where(excess > 0, np.inf, values) / base_s
        self.log("val/likeliest", min(float(values[0]), 10.0), batch_size=1)
        self.log("val/best", min(float(values.min()), 10.0), batch_size=1)
        self.log("val/expert", min(state.expert.value_s / base_s, 10.0), batch_size=1)

    def _state(self, step: int, i: int) -> PlacerState:
        if self.problem is not None:
            return _fixed_state(self.problem)
        return PlacerState.of(random_problem(np.random.default_rng([self.seed, step, i])), self.seed, NEVER)


@lru_cache(maxsize=1)
def _fixed_state(problem: PlacementProblem) -> PlacerState:
    return PlacerState.of(problem, 0, NEVER)


@lru_cache(maxsize=256)
def _random_state(seed: int, number: int) -> PlacerState:
    return PlacerState.of(random_problem(np.random.default_rng([seed, number])), seed, NEVER)


def stacked(inputs: list[PlacerInputs]) -> dict[str, Tensor]:
    """Name → the arrays of several problems with a batch dimension."""
    feeds = [one.feed() for one in inputs]
    return {name: torch.from_numpy(np.concatenate([feed[name] for feed in feeds])) for name in feeds[0]}


class StepNumbers(L.LightningDataModule):
    """Numbers of updates, and of held-out problems: all that a step has to know."""

    def __init__(self, per_epoch: int, held_out: int) -> None:
        super().__init__()
        self.per_epoch, self.held_out = per_epoch, held_out

    def train_dataloader(self) -> Any:
        """The next updates, counted through all epochs."""
        trainer: Any = self.trainer
        first = trainer.current_epoch * self.per_epoch
        return torch.utils.data.DataLoader(range(first, first + self.per_epoch), batch_size=None)  # type: ignore[arg-type]

    def val_dataloader(self) -> Any:
        """The held-out problems."""
        return torch.utils.data.DataLoader(range(self.held_out), batch_size=None)  # type: ignore[arg-type]


def placer_config(config: DictConfig) -> dict[str, Any]:
    """The settings of a training of the placer.

    Raises:
        BadInput: one is unknown or of another kind.
    """
    if not isinstance(config.get("placement"), DictConfig):
        raise BadInput("is not a group of settings", where="placement", do=SEE)
    try:
        merged: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(PlacerConfig), config.placement))
    except OmegaConfBaseException as error:
        key = f"placement.{error.full_key}" if error.full_key else "placement"
        raise BadInput(str(error).splitlines()[0], where=key, do=SEE) from None
    for key, record in (("size", PlacerSize), ("ppo", PpoConfig)):
        unknown = sorted(set(merged[key]) - set(asdict(record())))
        if unknown:
            raise BadInput(
                "is no setting", where=f"placement.{key}.{unknown[0]}", do="see conf/experiment/gdp_pretrain"
            )
    for key in ("steps", "problems", "validate", "held_out", "tries"):
        if merged[key] < 1:
            raise BadInput(f"is {merged[key]}", where=f"placement.{key}", do="give a whole number of at least 1")
    return dict(merged)


def train_placer(config: DictConfig) -> L.Trainer:
    """Run one training of the placer and export its policy.

    Raises:
        BadInput: a setting or a file cannot be used.
    """
    settings = placer_config(config)
    L.seed_everything(config.seed, verbose=False)
    torch.set_num_threads(max(int(config.trainer.threads), 1))
    problem = None
    if settings["graph"] is not None:
        from automap_models.formats.placement_json import read_placement

        more = {} if settings["devices"] is None else {"accelerators": settings["devices"], "cpus": 0}
        problem = PlacementProblem.of(read_placement(settings["graph"]), objective="step", **more)
    module = PlacerModule(settings, config.seed, problem)
    if config.init_from is not None and config.ckpt_path is None:
        load_placer(module, Path(config.init_from))
        say(f"starting with the weights of {config.init_from}")
    out = Path(config.out)
    folder = out / "checkpoints"
    last = folder / "last.ckpt" if config.ckpt_path == "last" else config.ckpt_path and Path(config.ckpt_path)
    if last and not last.is_file():
        raise BadInput("no such checkpoint", where=str(last), do="give an existing file as ckpt_path=")
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
    common: dict[str, Any] = {"dirpath": folder, "enable_version_counter": False}
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-(-settings["steps"] // settings["validate"]),
        logger=CSVLogger(config.out, name="csv"),
        callbacks=[
            ModelCheckpoint(**common, filename="best", monitor="val/best"),
            ModelCheckpoint(**common, filename="last"),
        ],
        plugins=[AtomicCheckpoints()],
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=1,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=20,
    )
    held_out = settings["held_out"] if problem is None else 1
    trainer.fit(module, StepNumbers(settings["validate"], held_out), ckpt_path=last or None, weights_only=True)
    if config.export:
        best: Any = trainer.checkpoint_callback
        load_placer(module, Path(best.best_model_path or folder / "last.ckpt"))
        difference = export_placer(module, out / "policy.onnx")
        say(f"{out / 'policy.onnx'}: agrees with torch, largest difference {difference:.1e}")
    return trainer


def load_placer(module: PlacerModule, path: Path) -> None:
    """Take over the weights of a checkpoint.

    Raises:
        BadInput: the file is no checkpoint of such a network.
    """
    if not path.is_file():
        raise BadInput("no such checkpoint", where=str(path), do="give an existing file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(content["state_dict"])
    except Exception as error:  # zipfile, pickle and torch raise a dozen kinds on what is no checkpoint
        raise BadInput(
            "is no checkpoint of such a placer", where=str(path), do="train one with gdp_pretrain"
        ) from error


def export_placer(module: PlacerModule, path: Path) -> float:
    """Write the policy; the largest difference of a logit to torch's.

    Raises:
        AutomapError: it differs from torch by more than the tolerance.
    """
    network = module.network.eval()
    states = [
        PlacerState.of(random_problem(np.random.default_rng([module.seed, 31, i])), 0, NEVER) for i in range(COMPARED)
    ]
    example = stacked([states[0].inputs])
    torch.onnx.export(
        network, kwargs=example, f=str(path), dynamo=True, external_data=False, output_names=[OUTPUT], verbose=False
    )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"kind": KIND, "version": str(VERSION), "seed": str(module.seed)})
    onnx.save(model, str(path))
    policy, largest = OnnxFile(path), 0.0
    for state in states:
        (logits,) = policy.run(state.inputs.feed(), [OUTPUT], 60.0)
        with torch.no_grad():
            expected = network(**stacked([state.inputs])).numpy()
        there = expected > -1e8
        largest = max(largest, float(np.abs(logits - expected)[there].max()))
    if largest > TOLERANCE:
        raise AutomapError(f"the exported policy differs from torch by {largest:.1e}", where=str(path))
    return largest
