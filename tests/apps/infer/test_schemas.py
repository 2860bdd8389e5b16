"""What `--json` of every command prints has a schema, whose file is what the types of the documents say.

That the other tests' documents are as their schemas say is checked in conftest.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from json_schemas import DOCUMENTS, FOLDER, text_of
from jsonschema import Draft202012Validator, ValidationError

from automap_models.infer.app import SUMMARIES, main

PROFILE = str(Path(__file__).parents[3] / "examples" / "vgg19_v100.npz")
SWEEP = "{clusters: [A, C], stages: [1, 2], micro_batches: [4, 8]}"
GRAPH = {
    "maxSizePerFPGA": 1e9,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 1, "isBackwardNode": 0, "size": 1e6}
        for i in range(3)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 1} for i in range(2)],
}


def test_every_command_has_a_schema_and_every_schema_a_command() -> None:
    assert {*DOCUMENTS} == {*SUMMARIES} == {path.stem for path in FOLDER.glob("*.json")}


@pytest.mark.parametrize("command", DOCUMENTS)
def test_a_schema_s_file_is_what_the_types_say(command: str) -> None:
    text = (FOLDER / f"{command}.json").read_text("utf-8")
    assert text == text_of(command), "run python tests/json_schemas.py"
    Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize(
    "arguments",
    [
        ("infer", PROFILE, "--topo", "A", "--planner", "uniform"),
        ("infer", PROFILE, "--sweep", "sweep.yaml"),
        ("plan", PROFILE, "--topo", "A", "--max-stages", "2", "--budget", "0.1"),
        ("plan", PROFILE, "--topo", "A", "--plan", "plan.json"),
        ("profile", PROFILE),
        ("profile", "--list"),
        ("place", "graph.json"),
        ("export", "plan.json", "--to", "torch-csv"),
    ],
)
def test_what_is_printed_is_as_the_schema_says(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    printed: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(SWEEP)
    Path("graph.json").write_text(json.dumps(GRAPH))
    assert main(["infer", PROFILE, "--topo", "A", "--planner", "uniform", "--out", "plan.json"]) == 0
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    assert printed == [arguments[0]]
    document = json.loads(capsys.readouterr().out)
    Draft202012Validator(json.loads((FOLDER / f"{arguments[0]}.json").read_text("utf-8"))).validate(document)


@pytest.mark.parametrize(
    "damage", [{"model": 3}, {"stages": []}, {"step": 1.0}, {"cuts": None}, {"kind": "sweep"}, {"schema": 2}]
)
def test_another_document_is_not(damage: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", PROFILE, "--topo", "A", "--planner", "uniform", "--json"]) == 0
    document = {**json.loads(capsys.readouterr().out), **damage}
    with pytest.raises(ValidationError):
        Draft202012Validator(json.loads((FOLDER / "infer.json").read_text("utf-8"))).validate(document)
