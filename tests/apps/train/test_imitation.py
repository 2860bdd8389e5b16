"""The same training taught by the exact planner: its labels, the file that keeps them, and a run from end to end."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from numpy.typing import NDArray
from omegaconf import DictConfig

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import EncodedProblems, encode
from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems, terminal_reward
from automap_models.errors import BadInput
from automap_models.train import imitation
from automap_models.train.build import build_data, build_module, load_weights
from automap_models.train.data import VisitSampler
from automap_models.train.imitation import ExactPlans, ImitationModule, find_exact_plans
from automap_models.train.main import main, train

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")

MakeConfig = Callable[..., DictConfig]
MAX_STAGES, MAX_DEVICES = 4, 18


def every_plan(record: StagedProblem) -> Partial:
    """All plans, legal by construction."""
    boundaries = record.stages - 1
    cuts = combinations(record.grid.cut_points.tolist(), boundaries)
    plans = list(product(cuts, combinations(range(1, record.cluster.devices), boundaries)))
    unused = [-1] * (MAX_STAGES - 1 - boundaries)
    parts = [torch.tensor([[*plan[part], *unused] for plan in plans]) for part in (0, 1)]
    return Partial(parts[0], parts[1], torch.full((len(plans),), 2 * boundaries))


def test_the_labels_are_the_best_of_all_plans_and_legal(
    random_problems: Callable[..., list[StagedProblem]], tmp_path: Path
) -> None:
    """Some problems have fewer instructions than points, and in some nothing fits."""
    records = random_problems(5, 24, 10, stages=(2, 3), instructions=(4, 30), memory=(0.1, 5.0))
    encoded, env = encode(records), PipelineEnv(MAX_STAGES, MAX_DEVICES)
    problems, index = Problems.from_encoded(encoded), np.arange(len(records))
    plans = find_exact_plans(tmp_path / "plans.npy", encoded, index[::-1].copy())
    cuts, device_cuts = (torch.from_numpy(parts) for parts in plans.of(index, MAX_STAGES))
    fitting = 0
    for i, record in enumerate(records):
        problem, all_of_them = problems.take(torch.tensor([i])), every_plan(record)
        everywhere = problem.take(torch.zeros(len(all_of_them.step), dtype=torch.int64))
        best = float(terminal_reward(everywhere, all_of_them).max())
        if best < 0:
            assert (cuts[i] == -1).all()
            assert (device_cuts[i] == -1).all()
            continue
        fitting += 1
        partial = env.reset(problem)
        for cut, device in zip(cuts[i, : record.stages - 1], device_cuts[i, : record.stages - 1], strict=True):
            for action in (cut, device + problems.points - 1):
                assert env.legal(problem, partial)[0, action]
                partial, reward, _ = env.step(problem, partial, action.view(1))
        assert float(reward) == pytest.approx(best, rel=1e-5)
    assert 0 < fitting < len(records)


@pytest.fixture
def encoded(random_problems: Callable[..., list[StagedProblem]]) -> EncodedProblems:
    return encode(random_problems(6, 12, 8, stages=(2, 3)))


def counted(monkeypatch: pytest.MonkeyPatch, fail_after: int | None = None) -> list[int]:
    """The numbers of the problems that are planned from here on; a power cut after so many."""
    planned: list[int] = []
    plan = imitation.exact_row

    def count(training: EncodedProblems, number: int, boundaries: int) -> NDArray[np.int64]:
        if len(planned) == fail_after:
            raise RuntimeError("power cut")
        planned.append(number)
        return plan(training, number, boundaries)

    monkeypatch.setattr(imitation, "exact_row", count)
    return planned


def test_a_killed_search_goes_on_and_a_longer_run_finds_only_what_is_new(
    encoded: EncodedProblems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imitation, "CHUNK", 3)
    order, file = np.random.default_rng(1).permutation(12), tmp_path / "new" / "plans.npy"
    with monkeypatch.context() as patch:
        counted(patch, fail_after=5)
        with pytest.raises(RuntimeError, match="power cut"):
            find_exact_plans(file, encoded, order[:8])
    assert [path.name for path in file.parent.iterdir()] == ["plans.npy"]
    rest = counted(monkeypatch)
    plans_of_eight = find_exact_plans(file, encoded, order[:8])
    assert rest == order[3:8].tolist()
    longer = find_exact_plans(file, encoded, order)
    assert rest == order[3:].tolist()
    assert find_exact_plans(file, encoded, order[:8]).table.tolist() == plans_of_eight.table.tolist()
    assert len(rest) == 9
    whole = find_exact_plans(tmp_path / "unbroken.npy", encoded, order)
    assert longer.table.tolist() == whole.table.tolist()
    assert plans_of_eight.table.tolist() == whole.table[:8].tolist()


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "other order", "other width", "huge", "pickle"])
def test_a_file_that_holds_no_such_plans_is_made_again(
    damage: str, encoded: EncodedProblems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, file = np.arange(12), tmp_path / "plans.npy"
    before = find_exact_plans(file, encoded, order).table
    content = file.read_bytes()
    if damage == "other order":
        np.save(file, before[::-1])
    elif damage == "other width":
        np.save(file, before[:, :3])
    elif damage == "pickle":
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    else:
        huge = content.replace(b"(12, 5)", b"(9" + b"9" * 9 + b", 5)")
        damaged = {"truncated": content[:-8], "text": b"plans", "empty": b"", "huge": huge}
        assert damaged[damage] != content
        file.write_bytes(damaged[damage])
    planned = counted(monkeypatch)
    assert find_exact_plans(file, encoded, order).table.tolist() == before.tolist()
    assert len(planned) == 12
    assert file.read_bytes() == content


def test_a_folder_for_plans_that_cannot_be_made_is_a_mistake_of_the_user(
    encoded: EncodedProblems, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot be made .*; set another imitation\.plans="):
        find_exact_plans(tmp_path / "file" / "plans.npy", encoded, np.arange(2))


def test_problems_none_of_which_has_a_plan_cannot_be_imitated(
    random_problems: Callable[..., list[StagedProblem]], tmp_path: Path
) -> None:
    hopeless = encode(random_problems(1, 3, 8, memory=(1e-3, 1e-3)))
    with pytest.raises(BadInput, match="no problem has a plan that fits"):
        find_exact_plans(tmp_path / "plans.npy", hopeless, np.arange(3))


def test_a_problem_that_was_not_planned_is_not_given_another_s_plan() -> None:
    plans = ExactPlans(np.array([[4, 1, 2], [2, 3, 4]]))
    cuts, device_cuts = plans.of(np.array([2, 4, 2]), max_stages=3)
    assert cuts.tolist() == [[3, -1], [1, -1], [3, -1]]
    assert device_cuts.tolist() == [[4, -1], [2, -1], [4, -1]]
    for missing in (0, 3, 9):
        with pytest.raises(KeyError):
            plans.of(np.array([4, missing]), max_stages=3)


@pytest.mark.parametrize(("epochs", "world"), [(1, 1), (3, 1), (2, 2), (9, 1)])
def test_every_problem_that_a_run_visits_is_planned(epochs: int, world: int) -> None:
    samplers = [VisitSampler(60, 4, 5, seed=3, rank=rank, world=world) for rank in range(world)]
    visited: set[int] = set()
    for sampler in samplers:
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            visited.update(*map(set, sampler))
    first = samplers[0].first_visits(epochs).tolist()
    assert len(set(first)) == len(first)
    assert set(first) == visited


# --- whole runs --------------------------------------------------------------------------------------------------

IMITATION = ("experiment=imitation", "agent.size.residual=none", "imitation.temperature=0.1")


@pytest.fixture
def imitating(tiny: MakeConfig, tmp_path: Path) -> MakeConfig:
    """Compose a tiny run of conf/experiment/imitation.yaml."""
    return lambda *overrides, **out: tiny(*IMITATION, f"imitation.plans={tmp_path / 'plans'}", *overrides, **out)


@pytest.mark.slow
def test_one_command_imitates_the_exact_planner_and_leaves_what_every_training_leaves(
    tiny_arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cross-entropy falls, and held-out plans come nearer to the optimum."""
    monkeypatch.chdir(tmp_path)
    learner = ("agent.learner.iterations=8", "agent.learner.learning_rate=0.003", "episodes=512")
    monkeypatch.setattr(sys, "argv", ["run.py", *tiny_arguments, *IMITATION, *learner])
    GlobalHydra.instance().clear()
    main()
    GlobalHydra.instance().clear()
    output = capsys.readouterr().out
    assert "finding the exact plans of 188 problems, once" in output
    assert (tmp_path / "runs" / "imitation" / "checkpoints" / "best.ckpt").is_file()
    (plans,) = (tmp_path / "runs" / "exact_plans").iterdir()
    assert plans.name.endswith("-seed-1.npy")
    rows = list(csv.DictReader((tmp_path / "runs" / "imitation" / "csv" / "version_0" / "metrics.csv").open()))
    losses, gaps = ([float(row[key]) for row in rows if row[key]] for key in ("train/loss", "val/gap_mean"))
    assert losses[-1] < 0.8 * losses[0]
    assert gaps[-1] < gaps[0]
    monkeypatch.setattr(sys, "argv", [*sys.argv, "ckpt_path=last"])
    main()
    GlobalHydra.instance().clear()
    assert "exact plans of" not in capsys.readouterr().out


def test_only_decisions_of_exact_plans_are_learned_from(imitating: MakeConfig) -> None:
    config = imitating("episodes=128")
    module = train(config).lightning_module
    assert isinstance(module, ImitationModule)
    data = build_data(config)
    data.setup()
    items = {name: column[: len(module.replay)] for name, column in module.replay.items.items()}
    cuts, device_cuts = module.plans.of(items["problem"], module.size.max_stages)
    np.testing.assert_array_equal(items["cuts"], cuts)
    np.testing.assert_array_equal(items["device_cuts"], device_cuts)
    steps = 2 * (data.problems.stages[torch.from_numpy(items["problem"])].numpy() - 1)
    assert (items["step"] < steps).all()
    assert set(items["step"].tolist()) == {0, 1, 2, 3, 4, 5}
    best = terminal_reward(
        data.problems.take(torch.from_numpy(items["problem"])),
        Partial(torch.from_numpy(cuts), torch.from_numpy(device_cuts), torch.from_numpy(steps).long()),
    )
    np.testing.assert_allclose(items["reward"], best, rtol=1e-6)


def test_a_run_goes_on_the_way_it_began_but_its_weights_serve_either(tiny: MakeConfig, imitating: MakeConfig) -> None:
    """Learning from episodes after imitation, and the other way round."""
    plain = ("agent.size.residual=none", "episodes=64")
    last = {}
    for name, config in (("ours", tiny(*plain, out="ours")), ("taught", imitating("episodes=64", out="taught"))):
        train(config)
        last[name] = Path(config.out) / "checkpoints" / "last.ckpt"
    replay = "agent.learner.alpha=0"
    for path, config in ((last["taught"], tiny(*plain, replay)), (last["ours"], imitating())):
        config.ckpt_path = str(path)
        with pytest.raises(BadInput, match="learned another way"):
            train(config)
    for name, module in (("taught", build_module(tiny(*plain))), ("ours", build_module(imitating()))):
        load_weights(module, last[name])
        weights = torch.load(last[name], weights_only=True)["state_dict"]
        assert all(torch.equal(module.state_dict()[key], weight) for key, weight in weights.items())


def test_a_checkpoint_of_another_reward_is_refused(tiny: MakeConfig) -> None:
    """Its values mean something else."""
    config = tiny("episodes=64")
    train(config)
    last = Path(config.out) / "checkpoints" / "last.ckpt"
    for key in ("ckpt_path", "init_from"):
        with pytest.raises(BadInput, match="reward ideal_over_length, not inverse_length"):
            train(tiny(f"{key}={last}", "env.reward=inverse_length", out="other"))


def test_a_setting_may_refer_to_another_one(imitating: MakeConfig, tmp_path: Path) -> None:
    """`imitation.plans=${out}/plans` made a folder of that very name, braces and all."""
    module = build_module(imitating("imitation.plans=${out}/plans"))
    assert module.imitation.plans == f"{tmp_path / 'run'}/plans"
