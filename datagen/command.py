"""The command behind run.py: a config composed by Hydra → a data set, with one line for a mistake."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import hydra
import msgspec
from msgspec import Meta
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from automap_models.core.staged import MAX_GRANULARITY
from automap_models.core.streams import one_line_errors
from automap_models.errors import BadInput
from automap_models.formats.dataset import MANIFEST, MAX_GROUPS, MAX_SHARDS
from automap_models.resources import conf_dir
from automap_models.version import __version__

from .distributions import build_mixture
from .generate import Recipe
from .plots import write_summary
from .settings import ProblemSettings, parse
from .shards import Job, produce

IDENTITY = ("seed", "groups", "shard_size", "granularity", "bins_per_point", "problem", "dist")
"""The settings that decide what a data set holds."""
MAX_WIDTH = 16_384
"""Columns of the arrays in which models are drawn, a thousand of them at a time."""
_one_line_errors = partial(one_line_errors, "datagen", "the same command makes what is missing")


GroupCount = Annotated[int, Meta(ge=1, le=MAX_GROUPS)]


class DataSetSettings(msgspec.Struct):
    """What conf/datagen.yaml says, but for `dist`, whose families `build_mixture` tells apart."""

    out: Annotated[str, Meta(min_length=1)]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    groups: GroupCount
    shard_size: GroupCount
    parts: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
    part: Annotated[int, Meta(ge=0)]
    plot: bool
    granularity: Annotated[int, Meta(ge=2, le=MAX_GRANULARITY)]
    bins_per_point: Annotated[int, Meta(ge=1, le=MAX_WIDTH)]
    problem: ProblemSettings
    dist: dict[str, Any]


def job_from(config: DictConfig) -> Job:
    """The data set that a composed config describes.

    Raises:
        BadInput: a setting that cannot be used, by name.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True)
    settings = parse(DataSetSettings, plain)
    if settings.part >= settings.parts:
        raise BadInput(f"is {settings.part}", where="part", do=f"give 0 … {settings.parts - 1}, below parts")
    if settings.granularity * settings.bins_per_point > MAX_WIDTH:
        do = f"give at most {MAX_WIDTH:,} for granularity times bins_per_point"
        raise BadInput(f"is {settings.granularity:,}", where="granularity", do=do)
    most = 1 << 25  # points of all groups in a shard, which take twenty bytes each
    if settings.shard_size * settings.granularity > most:
        do = f"give at most {most:,} for shard_size times granularity"
        raise BadInput(f"is {settings.shard_size:,}", where="shard_size", do=do)
    if settings.groups > settings.shard_size * MAX_SHARDS:
        do = f"give at most {MAX_SHARDS:,} times shard_size"
        raise BadInput(f"is {settings.groups:,}", where="groups", do=do)
    if settings.problem.instructions.low < 2:
        raise BadInput("starts below 2", where="problem.instructions", do="a model of one instruction cannot be cut")
    mixture = build_mixture(settings.dist)
    recipe = Recipe(mixture, settings.problem, settings.granularity, settings.bins_per_point)
    identity = {"automap_version": __version__} | {key: plain[key] for key in IDENTITY}
    _require_writable(identity)
    return Job(Path(settings.out), recipe, identity, settings.seed, settings.groups, settings.shard_size)


def _require_writable(identity: dict[str, Any]) -> None:
    """The settings can be kept beside the data set, those that nothing reads among them.

    Raises:
        BadInput: one is no finite number, or a text that no file holds.
    """
    for key, value in identity.items():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except ValueError:
            what = "holds a number that is not finite, or a text that is no Unicode"
            raise BadInput(what, where=key, do="give another value") from None


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="datagen")
def task(config: DictConfig) -> None:
    """Make the data set, or one part of it; a mistake of the user's costs one line and exit code 2."""
    with _one_line_errors():
        make(config)


def make(config: DictConfig) -> None:
    """Make the data set, or one part of it, with a progress bar on a terminal.

    Raises:
        BadInput: see `job_from` and `produce`.
    """
    job = job_from(config)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    indices = range(config.part, job.shards, config.parts)
    started, drawn = time.perf_counter(), 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(str(job.folder), total=sum(map(job.shard_count, indices)))
        for count, new in produce(job, config.part, config.parts):
            progress.advance(bar, count)
            drawn += new * count
    rate = drawn / (time.perf_counter() - started)
    print(f"{job.folder}: {len(indices)} shard(s), {drawn:,} groups made at {rate:,.0f}/s")
    if config.plot and (job.folder / MANIFEST).exists():  # the part that finishes last draws
        print(f"picture: {write_summary(job.folder)}")


def main() -> None:
    """Run the command."""
    with _one_line_errors():
        task()
