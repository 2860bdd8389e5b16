"""Processes that torchrun starts and that cannot make a run say so in one sentence, before they wait for anybody."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import pipelines

from automap_models.errors import BadInput
from automap_models.run.base import RunProblem, run_schedule
from automap_models.run.torch_backend import run_process
from automap_models.workloads.source import Source, SourceKind


def problem(devices: list[int]) -> RunProblem:
    plan = pipelines.plan(["layers.2"][: len(devices) - 1], devices, 2)
    source = Source("pipelines:decoder", SourceKind.FACTORY)
    return RunProblem(plan=plan, source=source, schedule=run_schedule(plan, None, None), device="cpu")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port of this machine that somebody listens to, in the environment that torchrun makes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = int(taken.getsockname()[1])
        settings = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(number)}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield number


def test_another_number_of_processes_than_the_plans_is_refused(port: int) -> None:
    with pytest.raises(BadInput, match=r"runs on 3 process\(es\), of which torchrun has started 1; have it start 3"):
        run_process(0, problem([1, 2]), None)


def test_a_port_that_is_taken_is_named(port: int) -> None:
    with pytest.raises(BadInput, match=f"127.0.0.1, port {port}: processes cannot meet there: .*in use"):
        run_process(0, problem([1]), None)


@pytest.mark.parametrize("missing", ["WORLD_SIZE", "MASTER_PORT"])
def test_half_of_torchruns_environment_is_not_a_traceback(
    missing: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(BadInput):
        run_process(0, problem([1]), None)
