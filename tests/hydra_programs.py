"""What Hydra starts, datagen and train: their configs, and how they refuse in this process."""

from __future__ import annotations

import functools
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, open_dict

from automap_models.resources import conf_dir

GROUPS_OF_CONFIGS: Mapping[str, Mapping[str, str]] = {
    "datagen": {"dist": "mixed", "sizes": "paper"},
    "train": {"env": "pipeline", "agent": "default", "trainer": "cpu", "logger": "csv_tensorboard", "experiment": ""},
}
"""Program → its groups of configs, each with its default."""


def composed(program: str, *overrides: str, **options: Any) -> DictConfig:
    """The config that Hydra composes of a program's overrides."""
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose(program, overrides=list(overrides), **options)


def quickly_composed(program: str, *arguments: str) -> DictConfig:
    """The same in a tenth of the time: known parts are composed once.

    Hydra's own parser reads the overrides, and its own loader applies them to the composed config. Only which files
    are composed is found out here.

    Raises:
        HydraException: as Hydra does for overrides that it cannot read or apply.
    """
    chosen, rest = dict(GROUPS_OF_CONFIGS[program]), []
    for override in map(_parsed, arguments):
        choice = override.get_value_element_as_str() if override.value() is not None else ""
        if override.key_or_group in chosen and re.fullmatch(r"[a-z_]+", choice):
            chosen[override.key_or_group] = choice
        else:
            rest.append(override)
    config: DictConfig = pickle.loads(_pickled(program, *(f"{group}={name}" for group, name in chosen.items() if name)))
    with open_dict(config):
        config.hydra = {}
    ConfigLoaderImpl._apply_overrides_to_config(rest, config)
    return config


@functools.lru_cache(4096)
def _parsed(argument: str) -> Any:
    """An override as Hydra's parser reads it; most overrides of a case are those of the call that it was made of."""
    return _overrides_parser().parse_overrides([argument])[0]


_overrides_parser = functools.cache(OverridesParser.create)


@functools.cache
def _pickled(program: str, *overrides: str) -> bytes:
    """A composed config pickled: this process alone reads it, in a seventh of the time that `copy.deepcopy` takes."""
    return pickle.dumps(composed(program, *overrides))


def refusal(
    main: Callable[[], object],
    arguments: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """The one line in which a program refuses these arguments in this folder, where it leaves nothing."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    before = sorted(folder.rglob("*"))
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as ending:
        main()
    GlobalHydra.instance().clear()
    error = capsys.readouterr().err
    assert ending.value.code == 2
    assert error.count("\n") == 1
    assert sorted(folder.rglob("*")) == before
    return error
