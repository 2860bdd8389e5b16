"""Whatever a test of a command has it print as JSON is as its schema under docs/reference says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from json_schemas import DOCUMENTS, FOLDER
from jsonschema import Draft202012Validator

from automap_models.infer import runner

Printed = list[str]


@cache
def validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((FOLDER / f"{command}.json").read_text("utf-8")))


@pytest.fixture(autouse=True)
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Printed]:
    """The commands that printed JSON."""
    commands: Printed = []
    execute, print_json = runner.Command.execute, runner.print_json
    running: list[str] = []

    def remember(self: runner.Command[Any], prog: str, argv: Sequence[str]) -> int:
        running.append(prog.replace("-", " ").split()[1])
        return execute(self, prog, argv)

    def check(document: Mapping[str, Any]) -> None:
        if running[-1] in DOCUMENTS:  # else a command of a test's own
            validator(running[-1]).validate(json.loads(json.dumps(document)))
            commands.append(running[-1])
        print_json(document)

    monkeypatch.setattr(runner.Command, "execute", remember)
    monkeypatch.setattr(runner, "print_json", check)
    yield commands
