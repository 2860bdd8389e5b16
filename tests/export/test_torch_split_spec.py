"""The generated program trains the model's stages, and its loss is the whole model's."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from drawn_plans import staged_source
from torch.distributed.pipelining import pipeline

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


TIED = """
import torch
from torch import nn

WIDTH, WORDS = 16, 16


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mirror = nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.mirror.weight = self.out.weight = self.words.weight

    def forward(self, ids, mask):
        x = mask @ self.mirror(self.words(ids))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.out(x)


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def make_model():
    torch.manual_seed(0)
    ids, target = torch.randint(WORDS, (2, 4, 6))
    return Tied(), (ids, torch.ones(6, 6).tril() / 6), {}, loss, target
"""


def written_program(text: str, schedule: str, replicas: int, folder: Path) -> Path:
    """The program of a plan of two stages, cut in the middle."""
    (folder / "small_model.py").write_text(text, encoding="utf-8")
    model, args = model_of(text)[:2]
    profile = profile_module(model, args if isinstance(args, tuple) else (args,), {}, device=read_device("v100"))
    cluster = Cluster(1, 2 * replicas, 1e11, 1e10, 1e12, "drawn")
    problem = StagedProblem(profile, cluster, stages=2, micro_batches=4, schedule=schedule)
    plan = StagedPlan((len(profile) // 2,), (replicas,), 4, "drawn")
    source, program = staged_source(problem, plan, folder), folder / "program.py"
    program.write_text(TARGET.write(source, program).text, encoding="utf-8")
    assert TARGET.check(source, program).startswith("torch ")
    return program


def run_program(text: str, schedule: str, replicas: int, steps: int, folder: Path) -> list[float]:
    """The losses that the program prints."""
    written_program(text, schedule, replicas, folder)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={2 * replicas}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run += ["program.py", "small_model:make_model", str(steps)]
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]


def model_of(text: str) -> Any:
    """What the factory of a module returns."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["make_model"]()


@pytest.mark.parametrize(
    ("schedule", "replicas"),
    [
        *(pytest.param(name, count, marks=pytest.mark.thorough) for name, count in (("1f1b", 2), ("1f1b-deep", 1))),
        ("gpipe", 1),
    ],
)
def test_the_program_trains_two_stages(schedule: str, replicas: int, tmp_path: Path) -> None:
    """The loss of its second step is that of the whole model, which Adam has updated once: gradients agree, too."""
    losses = run_program(MODEL, schedule, replicas, 2, tmp_path)
    (model, inputs), own = model_of(MODEL), 4 // replicas
    optimizer = torch.optim.Adam(model.parameters())
    model(inputs[:own]).mean().backward()
    optimizer.step()
    expected = model(inputs[:own]).mean().item()
    assert losses == pytest.approx([expected] * replicas, rel=1e-4, abs=1e-6)


LATE = TIED.replace("torch.tanh(block(x))", "mask @ torch.tanh(block(x))")


def test_an_input_that_a_later_stage_reads_is_named(tmp_path: Path) -> None:
    """Of torch's own words, "expected non-root _RecvInfo but got root arg at index 1", nobody learns what to do."""
    for text, ends in ((TIED, False), (LATE, True)):
        program = runpy.run_path(str(written_program(text, "1f1b", 1, tmp_path)))
        model, args, *_ = model_of(text)
        cut = pipeline(model, args, split_spec=program["SPLIT_SPEC"])
        if ends:
            with pytest.raises(SystemExit, match="stage 1 reads the model's input mask"):
                program["require_early_inputs"](cut)
        else:
            program["require_early_inputs"](cut)


@pytest.mark.parametrize(
    ("schedule", "replicas"), [pytest.param("1f1b", 2, marks=pytest.mark.thorough), ("1f1b-deep", 1)]
)
def test_copies_of_a_tied_weight_stay_equal(schedule: str, replicas: int, tmp_path: Path) -> None:
    """Each stage updated its copy by its own gradient alone: after six steps the loss was another, and no note said so.

    The first stage holds the weight under two names, which torch makes two copies of. The factory returns a loss and
    its target, as automap run takes them, and a mask that is no batch.
    """
    losses = run_program(TIED, schedule, replicas, 4, tmp_path)
    (model, (ids, mask), _, loss, target), own = model_of(TIED), 4 // replicas
    optimizer, expected = torch.optim.Adam(model.parameters()), 0.0
    for _ in range(4):
        optimizer.zero_grad()
        whole = loss(model(ids[:own], mask), target[:own])
        whole.backward()
        optimizer.step()
        expected = whole.item()
    assert losses == pytest.approx([expected] * replicas, rel=1e-4)
