"""JSON schemas of what `--json` prints; `python tests/json_schemas.py` writes docs/reference/schemas/COMMAND.json.

Documents that are read back have a type in the library (msgspec), from which the schema follows. What is only printed
is described in json_documents, and at the end here, in the same notation.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
from json_documents import (
    Calibrated,
    Candidate,
    Doctor,
    Explored,
    Exported,
    Fit,
    Known,
    LinkageGroup,
    Observed,
    Priced,
    ProfileSummary,
    Searched,
    Sweep,
    VerifiedSharding,
)

from automap_models.formats.placement_plan import PlacementDocument
from automap_models.formats.sharding_plan import AxisDocument, TwoAxesDocument
from automap_models.formats.staged_plan import StagedDocument

FOLDER = Path(__file__).parents[1] / "docs" / "reference" / "schemas"


class NamedModel(TypedDict):
    name: str
    model_type: str
    parameters: int
    published: str
    active: str
    layers: int | None
    hidden: int | None
    source: str


class Models(TypedDict):
    """`automap models`: the models that have a name."""

    schema: Literal[1]
    kind: Literal["models"]
    models: list[NamedModel]


class Served(TypedDict):
    """`automap serve`: the address of the page."""

    schema: Literal[1]
    kind: Literal["serve"]
    address: str


class PageFiles(TypedDict):
    """`automap serve --static`: the folder, how many strategies it answers for, and bytes of all files."""

    schema: Literal[1]
    kind: Literal["page"]
    folder: str
    strategies: int
    bytes: int


class AgentTool(TypedDict):
    """A tool, what it does, and the JSON schema of its arguments."""

    name: str
    description: str
    input: dict[str, Any]


class Tools(TypedDict):
    """`automap mcp`: what an agent can ask."""

    schema: Literal[1]
    kind: Literal["mcp"]
    tools: list[AgentTool]


class Families(TypedDict):
    """`automap models --families`: the values of model_type that a config.json may have."""

    schema: Literal[1]
    kind: Literal["families"]
    families: list[str]


DOCUMENTS: Mapping[str, tuple[type, ...]] = {
    "infer": (StagedDocument, Sweep),
    "profile": (ProfileSummary, Known),
    "plan": (Explored, Candidate, Priced, Searched),
    "fit": (Fit,),
    "doctor": (Doctor,),
    "place": (PlacementDocument,),
    "search": (AxisDocument, TwoAxesDocument, StagedDocument),
    "run": (Observed,),
    "export": (Exported,),
    "models": (Models, Families),
    "serve": (Served, PageFiles),
    "mcp": (Tools,),
    "calibrate": (Calibrated,),
}
"""Command → what its `--json` prints, one of them."""
FURTHER: Mapping[str, Mapping[str, Any]] = {
    "AxisDocument": {"linkage_groups": list[LinkageGroup], "verified": VerifiedSharding},
    "TwoAxesDocument": {"verified": VerifiedSharding},
}
"""Document that is read back → what `automap search` prints beside that."""
OPEN = ("AdjustmentDocument",)
"""Parts of which more is printed than is read back, for people."""


def schema_of(command: str) -> dict[str, Any]:
    """The JSON schema, draft 2020-12, of what a command's `--json` prints."""
    documents, further = DOCUMENTS[command], [(name, key) for name in FURTHER for key in FURTHER[name]]
    kinds = [*documents, *(FURTHER[name][key] for name, key in further)]
    references, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for (name, key), reference in zip(further, references[len(documents) :], strict=True):
        if name in parts:
            parts[name]["properties"][key] = reference
    for name, part in parts.items():
        if "description" in part:
            part["description"] = inspect.cleandoc(part["description"])  # Python 3.13 takes the indent out
        if "properties" in part and name not in OPEN:
            part["additionalProperties"] = False
    alternatives = list(references[: len(documents)])
    used: set[str] = set()
    while more := {name for name in parts if f'/{name}"' in json.dumps([alternatives, *map(parts.get, used)])} - used:
        used |= more
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"automap {command} --json",
        "anyOf": alternatives,
        "$defs": {name: parts[name] for name in sorted(used)},
    }


def text_of(command: str) -> str:
    """The file: a line a key of a document."""
    schema = schema_of(command)
    parts = []
    for name, part in schema.pop("$defs").items():
        keys = ",\n".join(
            f"   {json.dumps(key)}: {json.dumps(kind)}" for key, kind in part.pop("properties", {}).items()
        )
        parts.append(f'  {json.dumps(name)}: {json.dumps(part)[:-1]}, "properties": {{\n{keys}\n  }}}}')
    head = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in schema.items())
    return f'{{\n{head},\n "$defs": {{\n' + ",\n".join(parts) + "\n }\n}\n"


if __name__ == "__main__":
    for name in DOCUMENTS:
        (FOLDER / f"{name}.json").write_text(text_of(name), encoding="utf-8")
