"""Training by imitation: the exact plans of the problems that a run visits, and the module that learns from them.

The plans are found once and kept in a file. The network and the training are those of train.rainbow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from automap_models.envs.pipeline.encoding import EncodedProblems, decode
from automap_models.envs.pipeline.env import Problems
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.planners.staged.search import exact_search
from automap_models.rl.offline import as_episodes, imitation_loss, transitions
from automap_models.rl.replay import Items

from .console import narrated, say
from .rainbow import RainbowModule

CHUNK = 256
"""Plans between two writings of the file: what a killed run may have to find again."""


@dataclass(frozen=True, eq=False)
class ExactPlans:
    """Exact plans of some of a training set's problems.

    Attributes:
        table: int64 [K, 1 + 2B] the problem's number, its cuts as grid points and its device cuts; -1 where it has
            fewer, everywhere where no plan fits the memory.
    """

    table: NDArray[np.int64]

    def of(self, problems: NDArray[np.int64], max_stages: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cuts and device cuts of some problems, [n, max_stages - 1] each, filled up with -1.

        Raises:
            KeyError: one has not been planned.
        """
        by_number = np.argsort(self.table[:, 0])
        place = np.searchsorted(self.table[:, 0], problems, sorter=by_number)
        rows = self.table[by_number[np.minimum(place, len(by_number) - 1)]]
        if (rows[:, 0] != problems).any():
            raise KeyError("a problem has no exact plan yet")
        count = self.table.shape[1] // 2
        filled = np.full((2, len(problems), max_stages - 1), -1)
        filled[0, :, :count], filled[1, :, :count] = rows[:, 1 : 1 + count], rows[:, 1 + count :]
        return filled[0], filled[1]


def find_exact_plans(file: Path, training: EncodedProblems, visited: NDArray[np.int64]) -> ExactPlans:
    """The exact plans of the problems that a run visits, those found before taken from the file.

    Args:
        file: where they are kept, for this training set and this order of visits only; a longer run goes on with it.
        training: the training set.
        visited: int64 [K] numbers of problems in it, in the order of their first visit.

    Raises:
        BadInput: the file cannot be written, or no problem has a plan that fits the memory.
    """
    boundaries = int(training.stages.max()) - 1
    table = _read(file, visited, 1 + 2 * boundaries)
    if len(table) < len(visited):
        _make_folder(file.parent)
        say(f"{file}: finding the exact plans of {len(visited) - len(table):,} problems, once")
        waiting = np.array_split(visited[len(table) :], -(-(len(visited) - len(table)) // CHUNK))
        for some in narrated(waiting, "exact plans, in chunks"):
            table = np.concatenate([table, [exact_row(training, int(i), boundaries) for i in some]])
            _write(file, table)
    if (table[:, 1] < 0).all():
        raise BadInput("no problem has a plan that fits the memory", where=str(file), do="make another data set")
    return ExactPlans(table[: len(visited)])


def exact_row(training: EncodedProblems, number: int, boundaries: int) -> NDArray[np.int64]:
    """[1 + 2·boundaries] a problem's row in the table."""
    row = np.full((2, boundaries), -1)
    plan = exact_search(replace(decode(training, number), schedule=None))
    if plan is not None and plan.coarse_cuts is not None:
        count = len(plan.cuts)
        row[0, :count], row[1, :count] = plan.coarse_cuts, plan.device_cuts
    return np.array([number, *row.ravel()])


def _read(file: Path, visited: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """The plans found before; none where there is no such file or it is damaged: they can be found again."""
    none = np.empty((0, width), dtype=np.int64)
    try:
        table = np.load(file, mmap_mode="r", allow_pickle=False)  # mapped: a header that lies allocates nothing
    except Exception:  # numpy's reader of headers raises a dozen kinds on what is none
        return none
    if table.ndim != 2 or table.shape[1] != width or table.dtype != np.int64:
        return none
    known = min(len(table), len(visited))
    return np.array(table) if (table[:known, 0] == visited[:known]).all() else none


def _write(file: Path, table: NDArray[np.int64]) -> None:
    write_atomically(file, lambda opened: np.save(opened, table, allow_pickle=False))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot be made ({error.strerror})", where=str(folder), do="set another imitation.plans="
        ) from error


@dataclass(frozen=True)
class ImitationConfig:
    """How plans are imitated.

    Attributes:
        plans: folder in which exact plans are kept between runs (find_exact_plans).
        temperature: differences of action values that count (rl.offline).

    Raises:
        BadInput: the temperature is not positive.
    """

    plans: str = "runs/exact_plans"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise BadInput(f"is {self.temperature}", where="imitation.temperature", do="give more than 0")


class ImitationModule(RainbowModule):
    """RainbowModule whose replay holds the decisions of exact plans, and whose loss is their cross-entropy.

    What has to do with exploring and with returns (the agent's ε, γ, n, the target network) does nothing here.

    Args:
        imitation: a plain mapping of ImitationConfig.
        rainbow: arguments of RainbowModule; an episode a problem is all there is (branches 1).
    """

    plans: ExactPlans

    def __init__(self, *, imitation: dict[str, Any], **rainbow: Any) -> None:
        super().__init__(**rainbow)
        self.imitation = ImitationConfig(**imitation)
        if self.settings.branches != 1:
            raise BadInput(
                f"is {self.settings.branches}", where="agent.learner.branches", do="set 1: there is one exact plan"
            )

    def _episodes(self, index: Tensor, problems: Problems, epsilon: float) -> tuple[Items, Tensor]:
        """The exact plan of each problem as an episode."""
        cuts, device_cuts = (
            torch.from_numpy(table).long().to(self.device)
            for table in self.plans.of(index.numpy(), self.size.max_stages)
        )
        episodes = as_episodes(self.agent, problems, cuts, device_cuts)
        return transitions(index, episodes, skip_last=self.exact_decisions), episodes.reward

    def _loss(self, problems: Problems, items: Items, importance: Tensor) -> tuple[Tensor, Tensor]:
        return imitation_loss(self.agent, problems, items, importance, self.imitation.temperature)
