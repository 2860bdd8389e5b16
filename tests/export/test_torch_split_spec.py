"""The generated program trains the model's stages, and its loss is the whole model's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from drawn_plans import staged_source

from automap_models.core.cluster import Cluster
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.export.torch_split_spec import TARGET
from automap_models.formats.hardware_yaml import read_device
from automap_models.torch_export.profile import profile_module

MODEL = """
import torch
from torch import nn


def make_model():
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(*layers), torch.randn(4, 16)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "replicas"), [("1f1b", 2), ("1f1b-deep", 1), ("gpipe", 1)])
def test_the_program_trains_two_stages(schedule: str, replicas: int, tmp_path: Path) -> None:
    """The loss of its second step is that of the whole model, which Adam has updated once: gradients agree, too."""
    (tmp_path / "small_model.py").write_text(MODEL, encoding="utf-8")
    names: dict[str, object] = {}
    exec(MODEL, names)
    model, inputs = names["make_model"]()  # type: ignore[operator]
    profile = profile_module(model, (inputs,), {}, device=read_device("v100"))
    cluster = Cluster(1, 2 * replicas, 1e11, 1e10, 1e12, "drawn")
    problem = StagedProblem(profile, cluster, stages=2, micro_batches=4, schedule=schedule)
    plan = StagedPlan((len(profile) // 2,), (replicas,), 4, "drawn")
    source, program = staged_source(problem, plan, tmp_path), tmp_path / "program.py"
    program.write_text(TARGET.write(source, program).text, encoding="utf-8")
    assert TARGET.check(source, program).startswith("torch ")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={2 * replicas}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run += ["program.py", "small_model:make_model", "2"]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
    own = 4 // replicas
    optimizer = torch.optim.Adam(model.parameters())
    model(inputs[:own]).mean().backward()
    optimizer.step()
    expected = model(inputs[:own]).mean().item()
    assert losses == pytest.approx([expected] * replicas, rel=1e-4, abs=1e-6)
