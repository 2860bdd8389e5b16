"""A file of another program, or a command line, told by what it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.formats.schema import located
from automap_models.importing import deepspeed, documents, galvatron, megatron, overrides, table, torchtitan
from automap_models.importing.setting import Setting
from automap_models.resources import is_file

DOCUMENTS = (".toml", ".json", ".yaml", ".yml", ".py")


def read_setting(what: str, variables: Mapping[str, str], vocabulary: int | None = None) -> Setting:
    """What a file says, or the text itself where it is a command.

    Args:
        what: the path of a file; or a command, which has a space.
        variables, vocabulary: see `megatron.read`.

    Raises:
        BadInput: it cannot be read, contradicts itself, or is of no program that is known.
    """
    path = Path(what)
    if not is_file(path):
        if not what.strip() or not any(space in what.strip() for space in " \n"):
            do = "give a command line in quotes, or a script, TOML, JSON or YAML"
            raise BadInput("is neither a file nor a command line", where=what[:60], do=do)
        with located("the command line"):
            return _command(what, variables, vocabulary)
    text, ending = documents.text_of(path), path.suffix.lower()
    try:
        return _read(path, text, ending, variables, vocabulary)
    except BadInput as error:
        where = what if error.where in (None, what) else f"{what}, {error.where}"
        raise BadInput(error.what, where=where, do=error.do) from None


def _read(path: Path, text: str, ending: str, variables: Mapping[str, str], vocabulary: int | None) -> Setting:
    if ending not in DOCUMENTS:
        return _command(text, variables, vocabulary)
    document = documents.parse(text, ending, str(path))
    if ending == ".toml" or "parallelism" in document.values:
        return torchtitan.read(document, ending, path)
    if "tp_sizes_enc" in document.values:
        return galvatron.read(document)
    if ending == ".py":
        return deepspeed.read(document.values, str(path))
    target = table.table_of(document)
    if target is None and ending != ".json" and (script := documents.script(text)) is not None:
        envs = document.values.get("envs")
        inside = {name: str(value) for name, value in envs.items()} if isinstance(envs, dict) else {}
        return _task(text, script, {**inside, **variables}, vocabulary)
    if target is None:
        do = "give a configuration of a program that the help of `automap doctor` lists, or a script of Megatron"
        raise BadInput("is of no program that is known", do=do)
    return table.read(document, target, path, vocabulary)


def _task(text: str, script: documents.Span, variables: Mapping[str, str], vocabulary: int | None) -> Setting:
    """What the script in a task of SkyPilot or a job of Kubernetes says, whose lines stay where they are."""
    begin, end = script
    before, after = (re.sub(r"\S", " ", part) for part in (text[:begin], text[end:]))
    setting = _command(before + text[begin:end] + after, variables, vocabulary)

    def rewrite(strategy: Strategy) -> str:
        written = setting.rewrite(strategy)
        return text[:begin] + written[begin : len(written) - len(after)] + text[end:]

    return replace(setting, text=text, rewrite=rewrite)


def _command(text: str, variables: Mapping[str, str], vocabulary: int | None) -> Setting:
    """A command line or a script: of a program that takes overrides of its configuration, or of Megatron."""
    document = overrides.parse(text, variables)
    target = table.table_of(document) if document else None
    if document is None or target is None:
        return megatron.read(text, variables, vocabulary)
    return table.read(document, target, None, vocabulary)
