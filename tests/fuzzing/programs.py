"""datagen and train, whose arguments are overrides for Hydra."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import io
import pickle
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

from . import samples
from .cases import Call, Target
from .commands import entries, in_folder, judge
from .mutations import change_call, change_overrides
from .shortcuts import ReachedError, reached

GROUPS_OF_CONFIGS: Mapping[str, Mapping[str, str]] = {
    "datagen": {"dist": "normal", "sizes": "paper"},
    "train": {"env": "pipeline", "agent": "default", "trainer": "cpu", "logger": "csv", "experiment": ""},
}
"""Program → its groups of configs, each with the one that is composed unless an override names another."""
LONGEST_GROUPS = 50
"""Groups of a data set that a case may make; of a larger one only the settings are checked."""


def composed_with(program: str, arguments: Sequence[str]) -> Any:
    """The config that Hydra composes of overrides, which takes a third of a second; here known parts are composed once.

    Hydra's own parser reads the overrides, and its own loader applies them to the composed config. Only which files
    are composed is found out here.

    Raises:
        HydraException: as Hydra does for overrides that it cannot read or apply.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import open_dict

    chosen, rest = dict(GROUPS_OF_CONFIGS[program]), []
    for override in map(_parsed, arguments):
        choice = override.get_value_element_as_str() if override.value() is not None else ""
        if override.key_or_group in chosen and re.fullmatch(r"[a-z_]+", choice):
            chosen[override.key_or_group] = choice
        else:
            rest.append(override)
    config = pickle.loads(_composed(program, tuple(f"{group}={name}" for group, name in chosen.items() if name)))
    with open_dict(config):
        config.hydra = {}
    ConfigLoaderImpl._apply_overrides_to_config(rest, config)
    return config


@functools.lru_cache(4096)
def _parsed(argument: str) -> Any:
    """An override as Hydra's parser reads it; most overrides of a case are those of the call that it was made of."""
    return _overrides_parser().parse_overrides([argument])[0]


@functools.cache
def _overrides_parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


@functools.cache
def _composed(program: str, overrides: tuple[str, ...]) -> bytes:
    """A composed config pickled: this process alone reads it, in a seventh of the time that `copy.deepcopy` takes."""
    return pickle.dumps(samples.composed(program, overrides))


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
    from automap_models.datagen.command import job_from, make

    config = composed_with("datagen", arguments)
    if isinstance(config.get("groups"), int) and config.groups > LONGEST_GROUPS:
        job_from(config)
    else:
        make(config)


def _train(arguments: Sequence[str]) -> None:
    """Everything up to where the training begins."""
    import lightning

    from automap_models.train.main import train

    # A trainer asks every package of the environment for plug-ins: the same ones for every case.
    plug_ins = mock.patch("lightning.fabric.utilities.registry.entry_points", _plug_ins)
    with mock.patch.object(lightning.Trainer, "fit", reached), plug_ins:
        train(composed_with("train", arguments))


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
    keys = {name: [*_keys(samples.composed(name, ())), *groups] for name, groups in GROUPS_OF_CONFIGS.items()}
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
