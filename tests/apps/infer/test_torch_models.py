"""Every command that needs operations takes a factory of a PyTorch model, and says why it cannot take another one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from automap_models.infer.app import main
from automap_models.workloads.source import Source, SourceKind, module_of

pytest.importorskip("torch")

MODELS = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, width, blocks, classes):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, classes)

    def forward(self, x, labels):
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), labels)


def make_model(batch=4096, width=256):
    print("hello from the user's module")
    with torch.device("meta"):
        labels = torch.empty(batch, dtype=torch.int64)
        return Classifier(width, 2, 64), {"x": torch.empty(batch, width), "labels": labels}


class Changed(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.layer, self.change = nn.Linear(16, 16), change

    def forward(self, x):
        return self.change(self.layer(x)).sum()


def changed(change):
    return Changed(change), torch.empty(8, 16)


def make_branching():
    return changed(lambda y: y * 2 if y.sum() > 0 else y)


def make_selecting():
    return changed(lambda y: y[y[:, 0].nonzero()[:, 0]])


def make_detached():
    return changed(lambda y: y.detach())


def make_inverting():
    return changed(lambda y: torch.linalg.inv(y.T @ y))


def make_bare():
    return nn.Linear(2, 2)


def make_wrong_inputs():
    return nn.Linear(2, 2), {"y": torch.empty(2, 2)}


def make_nothing():
    return None
"""
Run = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a user's module in it and a cache of its own."""
    (tmp_path / "their_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("AUTOMAP_CACHE", str(tmp_path / "cache"))
    yield tmp_path
    sys.modules.pop("their_models", None)


@pytest.fixture
def answered(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with --json and read what it prints."""

    def run(*arguments: str) -> dict[str, Any]:
        assert main([*arguments, "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return run


def test_plans_of_every_kind_are_ranked_and_read_back(answered: Run) -> None:
    Path("pair.yaml").write_text("{nodes: 2, devices_per_node: 2, intra: 1e12, inter: 1e9, memory: 32e9, name: pair}")
    options = ("--topo", "pair.yaml", "--global-batch", "64", "--budget", "0.5", "--max-stages", "2")
    document = answered("plan", "their_models:make_model", *options, "--out", "plan.json")
    assert document["model"] == "their_models:make_model"
    assert {candidate["kind"] for candidate in document["candidates"]} >= {"data", "operator", "pipeline"}
    assert document["batch_dims"] == {"x": 0, "labels": 0}
    again = answered("plan", "their_models:make_model", "--topo", "pair.yaml", "--plan", "plan.json")
    assert again["length_s"] == pytest.approx(document["best"]["length_s"])


def test_operator_partitioning_divides_what_a_megatron_divides(answered: Run) -> None:
    """The inner width of every feed-forward part: the first matrix by rows of `weight`, the second by columns."""
    options = ("--topo", "A", "--mesh", "4", "--objective", "memory", "--out", "plan.json")
    document = answered("search", "opp", "their_models:make_model", *options)
    dims = {name: variable["dim"] for name, variable in document["variables"].items()}
    for i in range(2):
        assert (dims[f"blocks.{i}.up.weight"], dims[f"blocks.{i}.up.bias"]) == (0, 0)
        assert (dims[f"blocks.{i}.down.weight"], dims[f"blocks.{i}.down.bias"]) == (1, -1)
    priced = answered("search", "opp", "their_models:make_model", "--topo", "A", "--plan", "plan.json")
    assert {name: variable["dim"] for name, variable in priced["variables"].items()} == dims


def test_auto_data_parallelism_finds_the_batch(answered: Run) -> None:
    document = answered(
        "search", "adp", "their_models:make_model", "--topo", "A", "--mesh", "8", "--objective", "count"
    )
    dims = {name: v["dim"] for name, v in document["variables"].items() if name in ("x", "labels")}
    assert dims == {"x": 0, "labels": 0}


def test_its_operators_are_placed(answered: Run) -> None:
    document = answered("place", "their_models:make_model", "--devices", "2", "--nodes", "12", "--planner", "ideals")
    assert document["model"] == "their_models:make_model"
    assert len(document["assignment"]) > 2
    assert all(load_s > 0 for load_s in document["loads_s"])


def test_a_profile_needs_no_word_on_the_framework(answered: Run) -> None:
    document = answered("profile", "their_models:make_model")
    assert document["model"] == "Classifier"


def test_people_read_what_is_partitioned_by_the_modules_own_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["search", "opp", "their_models:make_model", "--topo", "A", "--mesh", "4", "--objective", "memory"]) == 0
    )
    out, err = capsys.readouterr()
    assert "blocks.*.up.weight" in out
    assert "Shardy" not in out
    assert "hello from the user's module" in err


def test_an_operator_without_a_rule_stays_whole_and_is_named(answered: Run) -> None:
    options = ("--topo", "A", "--budget", "0.2", "--max-stages", "2")
    document = answered("plan", "their_models:make_inverting", *options)
    assert any("no rule says how these operators can be partitioned" in note for note in document["notes"])
    assert any("linalg_inv_ex (1)" in note for note in document["notes"])


@pytest.mark.parametrize("command", [["plan"], ["search", "opp"], ["place"]])
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("make_branching", "torch.export refuses its forward pass in their_models.py:49: "),
        ("make_selecting", "the result of aten.nonzero.default in forward has a size that depends on data; make all "),
        ("make_detached", "no output depends on a trainable parameter; return the loss from forward"),
        ("make_bare", "returned a Linear, not a model with its inputs; return (model, tensor)"),
        ("make_wrong_inputs", "its forward does not take the example inputs: missing a required argument: 'input'"),
        ("make_nothing", "returned a NoneType; return a TrainingStep, or (function, arguments)"),
    ],
)
def test_a_model_that_cannot_be_traced_costs_one_line(
    command: list[str], factory: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--devices", "2"] if command == ["place"] else ["--topo", "A"]
    assert main([*command, f"their_models:{factory}", *where]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: their_models:{factory}: {message}" in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["search", "opp", "their_models:make_model", "--topo", "A", "--mesh", "4", "--verify"],
            "--verify: compiles the partitioned step with XLA, which has no PyTorch operators; how these are "
            "partitioned is tested operator by operator, on halves and against DTensor; leave it out, or give the "
            "same model in JAX",
        ),
    ],
)
def test_an_option_for_another_framework_costs_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("dtype", "tokens"), [("int64", 16), ("float32", None)])
def test_a_model_of_tokens_says_how_many_a_sample_has(dtype: str, tokens: int | None) -> None:
    """Samples of a step that nobody gives are then those of transformers of its size."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(32, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.embedding(x) if x.dtype == torch.int64 else x * self.embedding.weight[0]).mean()

    model = Net(), (torch.zeros(2, 16, dtype=getattr(torch, dtype)),)
    assert module_of(Source("net", SourceKind.FACTORY, model=model)).meta.get("sample_tokens") == tokens
