"""Which problems a training visits and how often, and what it measures itself against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig

from automap_models.envs.pipeline.encoding import EncodedProblems, decode
from automap_models.envs.pipeline.env import DEVICES, IDEAL, Problems
from automap_models.errors import BadInput
from automap_models.formats.dataset import read_dataset
from automap_models.planners.staged.search import ExactPlanner
from automap_models.train.build import build_data, epochs_of, require_fitting_problems
from automap_models.train.data import DataSettings, PipelineData, VisitSampler

MakeConfig = Callable[..., DictConfig]


def visits(groups: int, batch: int, steps: int, epochs: int, world: int = 1, seed: int = 7) -> NDArray[np.int64]:
    """Problems visited, int64 [epochs, steps, world, batch]."""
    order = np.empty((epochs, steps, world, batch), dtype=np.int64)
    for rank in range(world):
        sampler = VisitSampler(groups, batch, steps, seed, rank, world)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            order[epoch, :, rank] = list(sampler)
    return order


@pytest.mark.parametrize(
    ("groups", "batch", "steps", "epochs", "world"), [(30, 4, 5, 7, 1), (7, 10, 3, 4, 2), (50, 3, 4, 2, 3)]
)
def test_every_problem_is_visited_once_before_any_is_visited_again(
    groups: int, batch: int, steps: int, epochs: int, world: int
) -> None:
    order = visits(groups, batch, steps, epochs, world).ravel()
    whole = len(order) // groups
    passes = order[: whole * groups].reshape(whole, groups)
    assert (np.sort(passes, axis=1) == np.arange(groups)).all()
    assert np.bincount(order).max() == -(-len(order) // groups)
    assert all((one != other).any() for one, other in pairwise(passes))


def test_processes_visit_disjoint_problems_within_a_pass() -> None:
    order = visits(groups=48, batch=4, steps=3, epochs=2, world=2)
    one_pass = order.transpose(2, 0, 1, 3).reshape(2, -1)
    assert not set(one_pass[0]) & set(one_pass[1])


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    sampler = VisitSampler(30, 4, 5, seed=7)
    later = VisitSampler(30, 4, 5, seed=7)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected = list(sampler)
    later.set_epoch(2)
    assert list(later) == expected == list(later)
    assert (visits(30, 4, 5, 3, seed=8) != visits(30, 4, 5, 3, seed=7)).any()


@pytest.mark.parametrize(
    ("overrides", "epochs"),
    [
        (["episodes=64"], 1),
        (["episodes=65"], 2),
        (["episodes=128", "trainer=ddp"], 1),
        (["episodes=256", "trainer.num_nodes=4"], 1),
        (["episodes=193", "agent.learner.branches=3"], 2),
        (["episodes=9344", "visits=50"], 146),  # 146 · 64 = 9,344 = 50 · 186.88
    ],
)
def test_the_length_of_a_run_is_whole_epochs_of_all_processes(
    tiny: MakeConfig, overrides: list[str], epochs: int
) -> None:
    assert epochs_of(tiny(*overrides), groups=187) == epochs


@pytest.mark.parametrize(("problems", "fits"), [(64, True), (63, False)])
def test_too_many_visits_are_refused(tiny: MakeConfig, problems: int, fits: bool) -> None:
    config = tiny("episodes=192", "visits=3")  # 3 epochs of 64
    if fits:
        assert epochs_of(config, problems) == 3
        return
    with pytest.raises(BadInput, match="192 episodes on 63 groups visit some more than 3 times"):
        epochs_of(config, problems)


@pytest.fixture
def data(groups: Path) -> PipelineData:
    return data_of(groups)


def data_of(groups: Path, **changes: Any) -> PipelineData:
    data = unread(groups, **changes)
    data.setup()
    return data


def unread(groups: Path, **changes: Any) -> PipelineData:
    settings = DataSettings(str(groups), None, 12, None, min_stages=2, batch=16, steps_per_epoch=4)
    return PipelineData(replace(settings, **changes), seed=1)


def in_maxima(problems: Problems) -> NDArray[np.floating]:
    """[B, 4, P] times in units of the problem's joint MAX again, as data sets have them."""
    return problems.arrays[:, :4] * problems.numbers[:, IDEAL, None, None]


def test_the_last_groups_are_held_out_and_never_visited(data: PipelineData, groups: Path) -> None:
    arrays = read_dataset(groups)["arrays"]
    np.testing.assert_allclose(in_maxima(data.problems), arrays[:-12, :4], rtol=1e-6)
    batches = list(data.train_dataloader())
    assert [len(batch) for batch in batches] == [16] * 4
    assert max(int(batch.max()) for batch in batches) < 188
    np.testing.assert_allclose(in_maxima(data.validation), arrays[-12:, :4], rtol=1e-6)


def test_problems_with_few_stages_can_be_left_out_of_training_but_not_of_validation(groups: Path) -> None:
    stages = read_dataset(groups)["stages"]
    data = data_of(groups, min_stages=3)
    assert data.problems.stages.tolist() == [s for s in stages[:-12] if s >= 3]
    assert data.validation.stages.tolist() == stages[-12:].tolist()


def test_large_problems_can_be_left_out_of_validation_but_not_of_training(groups: Path) -> None:
    """Some problems have 8 devices, the others 12; the exact optima are those of the ones that stay."""
    content = read_dataset(groups)
    devices = content["nodes"] * content["devices_per_node"]
    data, whole = data_of(groups, validation_devices=8), data_of(groups)
    kept = devices[-12:] <= 8
    assert 0 < kept.sum() < 12
    assert data.problems.numbers[:, DEVICES].tolist() == devices[:-12].tolist()
    assert data.validation.numbers[:, DEVICES].tolist() == [8] * kept.sum()
    assert data.optima.tolist() == whole.optima[kept].tolist()


def test_the_validation_set_comes_with_its_exact_optima(data: PipelineData, groups: Path) -> None:
    held_out = EncodedProblems.from_mapping(read_dataset(groups)).take(slice(188, None))
    optima = []
    for i in range(12):
        bound = ExactPlanner().solve(decode(held_out, i)).bound
        assert bound is not None
        optima.append(bound.value)
    assert data.optima * data.validation.numbers[:, IDEAL] == pytest.approx(optima, rel=1e-6)
    assert torch.cat(list(data.val_dataloader())).tolist() == list(range(12))


def test_problems_without_a_plan_are_no_measure(groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = iter([1.0, float("nan"), 3.0])
    monkeypatch.setattr("automap_models.train.data.shortest", lambda *_: next(lengths))
    data = data_of(copy_of(groups, tmp_path), validation_groups=3)
    assert data.optima * data.validation.numbers[:, IDEAL] == pytest.approx([1.0, 3.0])
    np.testing.assert_allclose(in_maxima(data.validation), read_dataset(groups)["arrays"][[197, 199], :4], rtol=1e-6)


def copy_of(groups: Path, folder: Path) -> Path:
    """The data set without any optima."""
    copy = folder / "copy"
    copy.mkdir()
    for path in groups.iterdir():
        if path.suffix != ".npy":
            (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.mark.parametrize(
    "damage", [b"", b"\x93NUMPY", b"no array at all", b"PK\x03\x04", "short", "truncated", "pickle"]
)
def test_optima_are_found_once_and_again_when_the_file_is_damaged(
    damage: bytes | str, groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def optimum(*_: Any) -> float:
        calls.append(1)
        return float(len(calls))

    monkeypatch.setattr("automap_models.train.data.shortest", optimum)
    copy = copy_of(groups, tmp_path)
    unread(copy, validation_groups=5).setup()
    unread(copy, validation_groups=5).prepare_data()
    assert len(calls) == 5
    (file,) = copy.glob("optima-*.npy")
    if damage == "short":
        np.save(file, np.ones(4))
    elif damage == "pickle":
        np.save(file, np.array([None] * 5), allow_pickle=True)
    else:
        file.write_bytes(file.read_bytes()[:-3] if isinstance(damage, str) else damage)
    again = data_of(copy, validation_groups=5)
    assert again.optima * again.validation.numbers[:, IDEAL] == pytest.approx([6, 7, 8, 9, 10])
    assert np.load(file).tolist() == [6, 7, 8, 9, 10]


def test_other_problems_have_optima_of_their_own(groups: Path, tmp_path: Path) -> None:
    """Equal arrays with another number of micro-batches are other problems."""
    from automap_models.train import data as module

    problems = EncodedProblems.from_mapping(read_dataset(groups, 5))
    names = {module._digest(problems)}
    for field in problems.as_dict():
        changed = EncodedProblems(**{**problems.as_dict(), field: getattr(problems, field) + 1})
        names.add(module._digest(changed))
    assert len(names) == 1 + len(problems.as_dict())


def test_a_data_set_of_another_size_than_the_environment_is_refused(tiny: MakeConfig) -> None:
    for override, named in [("points=32", "16 points"), ("max_stages=2", "stages"), ("max_devices=8", "12 devices")]:
        config = tiny(f"env.{override}")
        data = build_data(config)
        data.setup()
        with pytest.raises(BadInput, match=named):
            require_fitting_problems(config, data.problems, data.path)
