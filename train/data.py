"""The LightningDataModule: a data set of problems in memory, drawn a bounded number of times."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from automap_models.envs.pipeline.encoding import EncodedProblems, decode
from automap_models.envs.pipeline.env import IDEAL, Floats, Problems
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.dataset import read_dataset
from automap_models.planners.staged.search import ExactPlanner

from .console import narrated, say


class VisitSampler(Sampler[list[int]]):
    """Batches of problem indices: pass after pass over the data set, each pass in a new order.

    The order depends on (seed, pass) only and an epoch is a fixed stretch of it, so that a run resumed after epoch e
    goes on exactly as one never stopped; ranks take turns.

    Args:
        batch: problems per step and rank.
        rank, world: this process among all.
    """

    def __init__(self, groups: int, batch: int, steps: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.groups, self.batch, self.steps, self.seed = groups, batch, steps, seed
        self.rank, self.world, self.epoch = rank, world, 0
        self._order: tuple[int, np.ndarray] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Lightning says which epoch comes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        start = self.epoch * self.steps
        for step in range(start, start + self.steps):
            first = (step * self.world + self.rank) * self.batch
            places = (divmod(position, self.groups) for position in range(first, first + self.batch))
            yield [int(self._pass(visit)[place]) for visit, place in places]

    def _pass(self, visit: int) -> np.ndarray:
        """int64 [groups] the order of a pass."""
        if self._order is None or self._order[0] != visit:
            self._order = visit, np.random.default_rng([self.seed, visit]).permutation(self.groups)
        return self._order[1]


@dataclass(frozen=True)
class DataSettings:
    """Which problems are trained on, and which are held out.

    Attributes:
        path: folder of a data set (datagen/run.py).
        groups: problems to use, of which the last `validation_groups` are held out; None is all.
        validation_groups: held-out problems, never trained on.
        validation_devices: most devices of a held-out problem, whose exact optimum takes longer the more there are;
            None is no limit.
        min_stages: fewest stages of a problem to train on; validation has them all.
        batch: problems per training step and process.
        steps_per_epoch: training steps between validations and checkpoints.
    """

    path: str
    groups: int | None
    validation_groups: int
    validation_devices: int | None
    min_stages: int
    batch: int
    steps_per_epoch: int


class PipelineData(L.LightningDataModule):
    """Training problems and a fixed, held-out validation set with its exact optima."""

    def __init__(self, settings: DataSettings, seed: int) -> None:
        super().__init__()
        self.settings, self.path, self.seed = settings, Path(settings.path), seed
        self._loaded: tuple[EncodedProblems, EncodedProblems] | None = None

    def prepare_data(self) -> None:
        """Find the optima of the validation set once; the first process does."""
        if not hasattr(self, "problems"):
            self._optima(self._load()[1])

    def preview(self, count: int = 8) -> tuple[Problems, Floats]:
        """The smallest held-out problems, where a training starts, with their optima: kept, or found within seconds."""
        self._loaded = self._load()
        held_out = self._loaded[1]
        size = held_out.stages * held_out.nodes * held_out.devices_per_node
        size = np.where(held_out.stages >= self.settings.min_stages, size, size.max(initial=0) + size)
        numbers = np.argsort(size, kind="stable")[:count]
        smallest, stored = held_out.take(numbers), _read_optima(self._optima_file(held_out), len(held_out))
        optima = np.array([shortest(smallest, i) for i in range(len(smallest))]) if stored is None else stored[numbers]
        return _solvable(smallest, optima)

    def setup(self, stage: str | None = None) -> None:
        """Load everything into memory, once."""
        if hasattr(self, "problems"):
            return
        training, held_out = self._loaded or self._load()
        self._loaded = None
        training = training.take(training.stages >= self.settings.min_stages)
        if not len(training):
            what = f"has no problem of {self.settings.min_stages} stages or more to train on"
            raise BadInput(what, where=str(self.path), do="lower data.min_stages or make more groups")
        self.problems = Problems.from_encoded(training)
        self.validation, self.optima = _solvable(held_out, self._optima(held_out))
        self._trained_on = _digest(training)

    def state_dict(self) -> dict[str, str]:
        """What a checkpoint remembers: the problems that its replay refers to."""
        return {"trained_on": self._trained_on}

    def _load(self) -> tuple[EncodedProblems, EncodedProblems]:
        encoded = EncodedProblems.from_mapping(read_dataset(self.path, self.settings.groups), str(self.path))
        if len(encoded) <= self.settings.validation_groups:
            what = f"{len(encoded)} groups, {self.settings.validation_groups} of them for validation"
            raise BadInput(what, where=str(self.path), do="generate more groups or hold fewer out")
        split = len(encoded) - self.settings.validation_groups
        training, held_out = encoded.take(slice(None, split)), encoded.take(slice(split, None))
        held_out = held_out.take(held_out.stages > 1)  # one stage leaves nothing to decide
        if self.settings.validation_devices is not None:
            held_out = held_out.take(held_out.nodes * held_out.devices_per_node <= self.settings.validation_devices)
        return training, held_out

    def _optima_file(self, held_out: EncodedProblems) -> Path:
        return self.path / f"optima-{_digest(held_out)[:16]}.npy"

    def _optima(self, held_out: EncodedProblems) -> np.ndarray:
        """[V] of the held-out problems what `shortest` says; kept beside the data set."""
        cache = self._optima_file(held_out)
        optima = _read_optima(cache, len(held_out))
        if optima is None:
            say(f"{self.path}: finding the exact optima of {len(held_out)} held-out problems, once")
            optima = np.array([shortest(held_out, i) for i in narrated(range(len(held_out)), "exact optima")])
            content = optima
            write_atomically(cache, lambda file: np.save(file, content, allow_pickle=False))
        return optima

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Batches of problem indices, int64 [batch]."""
        rank, world = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        groups, settings = len(self.problems.stages), self.settings
        sampler = VisitSampler(groups, settings.batch, settings.steps_per_epoch, self.seed, rank, world)
        sampler.set_epoch(self.trainer.current_epoch if self.trainer else 0)
        return DataLoader(torch.arange(groups), batch_sampler=sampler)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Tensor]:
        """One pass over the indices of the validation set."""
        return DataLoader(torch.arange(len(self.optima)), batch_size=256)  # type: ignore[arg-type]


def _digest(problems: EncodedProblems) -> str:
    """SHA-256 of everything that problems are."""
    digest = hashlib.sha256()
    for array in problems.as_dict().values():
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read_optima(cache: Path, count: int) -> np.ndarray | None:
    """The optima found before; None where there are none or the file is damaged: they can be found again."""
    try:
        with cache.open("rb") as file:
            optima = np.lib.format.read_array(file, allow_pickle=False)
    except Exception:  # numpy's reader of headers raises a dozen kinds on what is none
        return None
    return optima if optima.shape == (count,) and optima.dtype == np.float64 else None


def _solvable(encoded: EncodedProblems, optima: Floats) -> tuple[Problems, Floats]:
    """The problems that have a plan, and [V] their optima in ideal lengths."""
    solvable = np.isfinite(optima)
    problems = Problems.from_encoded(encoded.take(solvable))
    return problems, optima[solvable] / problems.numbers[:, IDEAL]


def shortest(encoded: EncodedProblems, i: int) -> float:
    """The exact optimum L* of problem i in units of its MAX; NaN where nothing fits."""
    result = ExactPlanner().solve(decode(encoded, i))
    return result.cost.length_s if result.plan else float("nan")
