"""datagen and train, whose arguments are overrides for Hydra."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

from . import samples
from .call_mutations import change_call, change_overrides
from .cases import Call, Target
from .commands import entries, in_folder, judge
from .shortcuts import ReachedError, reached

LONGEST_GROUPS = 50
"""Groups of a data set that a case may make; of a larger one only the settings are checked."""


def call_with_overrides(program: str, body: Callable[[], object]) -> None:
    """Run the body of datagen or train as its program does.

    Raises:
        AutomapError, AssertionError: as `call`.
    """
    from automap_models.core.streams import one_line_errors

    code = 0
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with one_line_errors(program, "again"), contextlib.suppress(ReachedError):
                body()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    judge(code, err, {path for path in entries() if path.name.endswith(".tmp")})


def _generate(arguments: Sequence[str]) -> None:
    from hydra_programs import quickly_composed

    from automap_models.datagen.command import job_from, make

    config = quickly_composed("datagen", *arguments)
    if isinstance(config.get("groups"), int) and config.groups > LONGEST_GROUPS:
        job_from(config)
    else:
        make(config)


def _train(arguments: Sequence[str]) -> None:
    """Everything up to where the training begins."""
    import lightning
    from hydra_programs import quickly_composed

    from automap_models.train.main import train

    # A trainer asks every package of the environment for plug-ins: the same ones for every case.
    plug_ins = mock.patch("lightning.fabric.utilities.registry.entry_points", _plug_ins)
    with mock.patch.object(lightning.Trainer, "fit", reached), plug_ins:
        train(quickly_composed("train", *arguments))


_plug_ins = functools.cache(importlib.metadata.entry_points)


def _whole_datagen(arguments: Sequence[str]) -> None:
    """The program with Hydra's own main, at most LONGEST_GROUPS groups."""
    from automap_models.datagen import command

    sys.argv = ["datagen/run.py", *arguments, f"groups={LONGEST_GROUPS}"]
    command.task()


def _keys(config: Any, prefix: str = "") -> list[str]:
    """Every setting of a config, by its whole name."""
    keys = []
    for key in config:
        keys.append(prefix + key)
        if isinstance(config._get_node(key), type(config)) and key != "hydra":
            keys += _keys(config[key], f"{prefix}{key}.")
    return keys


def programs() -> dict[str, Target]:
    """datagen and train."""
    from hydra_programs import GROUPS_OF_CONFIGS, composed

    keys = {name: [*_keys(composed(name)), *groups] for name, groups in GROUPS_OF_CONFIGS.items()}
    generated = [[*samples.DATA, "out=new"], ["dist=cnn", "groups=3", "granularity=8", "out=new"]]
    generated += [["dist=mixed", "sizes=all", "groups=5", "shard_size=2", "granularity=8", "out=new", "parts=2"]]
    training = [*samples.TRAINING, "out=run"]
    trained = [training, [*training, "ckpt_path=last.ckpt"], [*training, "init_from=last.ckpt"]]
    files = samples.training()

    def target(
        name: str,
        body: Callable[[Sequence[str]], None],
        calls: list[list[str]],
        files: Mapping[str, bytes],
        share: float,
    ) -> Target:
        def run(case: Call) -> object:
            with in_folder({**files, **case.files}):
                return call_with_overrides(name, lambda: body(case.arguments))

        change = change_call(files, change_overrides(keys[name]))
        return Target([Call(arguments) for arguments in calls], run, change, share)

    return {
        "datagen": target("datagen", _generate, generated, {}, 1.0),
        "datagen with Hydra's main": target("datagen", _whole_datagen, generated, {}, 0.02),
        "train": target("train", _train, trained, files, 1.0),
    }
