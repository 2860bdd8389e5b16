"""The training program: compose the config, fit, export."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import numpy as np
from omegaconf import DictConfig, OmegaConf

from automap_models.core.streams import one_line_errors
from automap_models.core.units import percent
from automap_models.resources import conf_dir

from .build import (
    build_data,
    build_module,
    build_trainer,
    episodes_per_epoch,
    epochs_of,
    load_weights,
    require_fitting_problems,
    require_resumable,
    require_settings,
    resume_from,
    write_config,
)
from .console import quiet, say
from .data import PipelineData
from .export import STATES, export_policy
from .interrupts import fit
from .rainbow import RainbowModule

_one_line_errors = partial(one_line_errors, "train", "go on with ckpt_path=last")


def train(config: DictConfig) -> L.Trainer:
    """Run one training and export its best policy.

    Returns:
        The finished trainer.

    Raises:
        BadInput: a setting or a file cannot be used; nothing is written then, except the optima beside the data set.
    """
    if config.placement is not None:
        from .placer import train_placer

        return train_placer(config)
    require_settings(config)
    L.seed_everything(config.seed, verbose=False)
    data, module = build_data(config), build_module(config)
    newest, gap = resume_from(config), None
    if newest is None:
        if config.init_from is not None:
            load_weights(module, Path(config.init_from))
            say(f"starting with the weights of {config.init_from}")
        gap = _say_gap(config, data, module)
    data.setup()
    require_fitting_problems(config, data.problems, data.path)
    epochs = epochs_of(config, len(data.problems.stages))
    if newest is not None:
        saved = require_resumable(newest, module, data, config.trainer.devices * config.trainer.num_nodes)
        say(f"going on with {newest} after {saved['rainbow']['episodes']:,} episodes")
        module.load_state_dict(saved["state_dict"])
        gap = _say_gap(config, data, module)
    trainer: L.Trainer = build_trainer(config, epochs, gap)
    write_config(config)
    groups, episodes = len(data.problems.stages), epochs * episodes_per_epoch(config)
    say(f"{data.path}: {groups:,} problems to train on, {len(data.optima):,} held out that have a plan")
    say(f"{episodes:,} episodes in {epochs} epochs, at most {-(-episodes // groups)} on one problem")
    fit(trainer, module, data, newest)
    if trainer.is_global_zero:
        _finish(config, trainer, module, data)
    return trainer


def _say_gap(config: DictConfig, data: PipelineData, module: RainbowModule) -> float | None:
    """Where the training starts, on a few held-out problems: the others' optima may take minutes to find."""
    problems, optima = data.preview()
    if not len(optima):
        return None
    require_fitting_problems(config, problems, data.path)
    gaps = module.gaps(problems, optima)
    fits = gaps[np.isfinite(gaps)]
    gap = float(fits.mean()) - 1.0 if len(fits) else None
    words = "no plan fits the memory" if gap is None else f"gap to the optimum {percent(gap)}"
    say(f"before this training: {words} (the {len(gaps)} smallest held-out problems)")
    return gap


def _finish(config: DictConfig, trainer: L.Trainer, module: RainbowModule, data: PipelineData) -> None:
    """Export the best policy and say where everything is."""
    best: Any = trainer.checkpoint_callback
    path, score = Path(best.best_model_path), best.best_model_score
    if score is None:  # a finished run in a folder that was moved: Lightning forgets the score and keeps the old path
        path = Path(best.dirpath) / path.name
    if config.export:
        load_weights(module, path, "checkpoint")
        policy = Path(config.out) / "policy.onnx"
        say(f"{policy}: exporting the best policy and comparing it with torch on {STATES:,} states (minutes)")
        report = export_policy(module, data, policy, OmegaConf.to_container(config, resolve=True))
        say(
            f"{policy}: agrees with torch on {report['states']:,.0f} states, "
            f"largest difference {report['largest_difference']:.1e}, {percent(report['equal_actions'])} equal actions"
        )
    for logger in trainer.loggers:
        say(f"curves: {logger.log_dir}")
    gap = "" if score is None else f" val/gap_mean {float(score):.4f} (mean L/L* of held-out problems)"
    say(f"best{gap}: {path}")


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")
def _task(config: DictConfig) -> None:
    with _one_line_errors():
        train(config)


def main() -> None:
    """Entry point of `python train/run.py`."""
    quiet()
    with _one_line_errors():
        _task()
