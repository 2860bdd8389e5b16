"""What is not trained was held by no device: a frozen base of 137 GB "fitted" 24 GB, as only W counted.

Adapters on a frozen base, an encoder before a trained head, buffers, constants, and tied weights of which each stage
that uses them needs a copy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.npz import read_npz, write_npz
from automap_models.infer import app
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.bottleneck import stage_load
from automap_models.planners.staged.stage_arrays import stage_arrays
from automap_models.torch_export.profile import profile_module

WIDTH = 64
MATRIX = 4 * WIDTH * WIDTH


@pytest.fixture
def device() -> Device:
    return read_device("v100")


class Frozen(nn.Module):
    """Two frozen matrices, the first used twice; a buffer and a constant as large; a trained column."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False) for _ in range(2))
        self.again = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False))
        self.again[0].weight = self.first.weight
        self.head = nn.Linear(WIDTH, 1, bias=False)
        self.register_buffer("table", torch.ones(WIDTH, WIDTH))
        self.constant = torch.ones(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x)) @ self.table
        return self.head(self.again(x) @ self.constant).square().mean()


def test_a_module_s_frozen_parameters_buffers_and_constants_are_counted_once(device: Device) -> None:
    profile = profile_module(Frozen(), (torch.ones(4, WIDTH),), device=device)
    assert profile.W.sum() == 4 * WIDTH
    assert profile.frozen.sum() == 4 * MATRIX
    (shared,) = profile.shared_frozen
    assert (shared.name, shared.nbytes, len(shared.instructions)) == ("first.weight", MATRIX, 2)


def test_a_stage_holds_them_once_whatever_its_replicas_and_a_copy_of_what_stages_before_use() -> None:
    """By hand: σ = 4, stash 8 on two replicas with one micro-batch in flight."""
    profile = Profile.create(
        C=[1.0, 1.0, 1.0],
        A=[1.0, 1.0, 0.0],
        W=[10.0, 0.0, 1.0],
        stash=[8.0, 8.0, 8.0],
        frozen=[100.0, 20.0, 3.0],
        shared_frozen=[SharedParameter("tied", 50.0, (0, 2))],
    )
    problem = StagedProblem(profile, Cluster(1, 4, 1e9, 1e9, 1e3), 2, 1, state_factor=4.0)
    cost = plan_cost(problem, StagedPlan((0,), (2,), 1, "by hand"))
    np.testing.assert_allclose(cost.memory_bytes, [4 * 10 + 100 + 8 / 2, 4 * 1 + 20 + 3 + 50 + 16 / 2])
    whole = plan_cost(StagedProblem(profile, problem.cluster, 1, 1), StagedPlan((), (), 1, "by hand"))
    np.testing.assert_allclose(whole.memory_bytes, [4 * 11 + 123 + 24 / 4])


@pytest.mark.parametrize("planner", ["exact", "policy"])
def test_planners_make_the_shortest_plan_whose_stages_hold_them(planner: str) -> None:
    """Even stages would be shortest; the first of them does not fit, as the frozen bytes lie in front."""
    profile = Profile.create(C=np.ones(8), A=np.ones(8), W=np.ones(8), frozen=[60.0, 60.0, *[12.0] * 6])
    problem = StagedProblem(profile, Cluster(1, 4, 1e9, 1e9, 130.0), 2, 8, state_factor=1.0)
    plans = [StagedPlan((cut,), (device,), 8, "by hand") for cut in range(7) for device in (1, 2, 3)]
    costs = [plan_cost(problem, plan) for plan in plans]
    assert not plan_cost(problem, StagedPlan((3,), (2,), 8, "even")).feasible
    result = make_planner(planner).solve(problem)
    assert result.plan is not None
    assert result.cost.length_s == pytest.approx(min(cost.length_s for cost in costs if cost.feasible))


def test_the_bottleneck_s_stages_hold_them() -> None:
    """The first two instructions alone fill a device: a stage of four of them has no load, it does not fit."""
    profile = Profile.create(C=np.ones(8), A=np.ones(8), W=np.ones(8), frozen=[60.0, 60.0, *[12.0] * 6])
    problem = StagedProblem(profile, Cluster(1, 4, 1e9, 1e9, 130.0), 2, 8, state_factor=1.0)
    stages, work = stage_arrays(problem)[0], np.empty(2)
    for end, load_s in ((2, 8 * 2 / 2), (4, np.inf)):
        route = np.array([[0, end, 8], [0, 2, 4], [0, 0, 0]])
        assert stage_load(stages, route, 0, np.inf, 0.0, work) == pytest.approx(load_s)


def test_the_file_and_the_fingerprint_have_them(tmp_path: Path) -> None:
    arrays = {"C": [1.0, 1.0], "A": [1.0, 0.0], "W": [1.0, 1.0]}
    without, held = Profile.create(**arrays), Profile.create(**arrays, frozen=[5.0, 0.0])
    write_npz(tmp_path / "held.npz", held)
    assert read_npz(tmp_path / "held.npz").fingerprint == held.fingerprint != without.fingerprint
    write_npz(tmp_path / "none.npz", without)
    with np.load(tmp_path / "none.npz") as archive:
        assert "frozen" not in archive.files  # files of models that train everything are as they were


def test_infer_says_how_much_of_what_a_device_needs_is_not_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = Profile.create(C=[1.0, 1.0], A=[1.0, 0.0], W=[1e6, 1e6], frozen=[100e9, 37e9])
    write_npz(tmp_path / "p.npz", profile)
    (tmp_path / "one.yaml").write_text(
        "{name: one, nodes: 1, devices_per_node: 1, intra: 1 GB/s, inter: 1 GB/s, memory: 24 GB}"
    )
    arguments = [str(tmp_path / "p.npz"), "--topo", str(tmp_path / "one.yaml"), "--micro-batches", "1"]
    assert app.infer(arguments) == 3
    assert "137.0 GB of it for what is not trained" in capsys.readouterr().err
