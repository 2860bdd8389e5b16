"""Configurations whose keys are fields of Megatron-Core's: NeMo, Megatron-Bridge, and verl's actor on Megatron.

    model.num_moe_experts: 8       --num-experts 8, which megatron.py reads; tables.yaml has keys of other names,
    model.gated_linear_unit: true  --swiglu         and the sections whose keys are arguments

A better setting is written in the words of `export.megatron_bridge`, each in the section where the file has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export.megatron_bridge import overrides
from automap_models.importing.documents import FALSE, Document, Path, leaves, tables
from automap_models.importing.megatron import setting_of
from automap_models.importing.megatron_arguments import Arguments
from automap_models.importing.megatron_model import LAYERS
from automap_models.importing.megatron_rewrite import block_plan
from automap_models.importing.setting import Setting
from automap_models.importing.shell import Word

LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Of a layout that is a list of stages."""


def read(document: Document, target: str, vocabulary: int | None) -> Setting:
    """What the sections of a configuration say that Megatron-Core reads.

    Args:
        target: of tables.yaml.
        vocabulary: of the tokenizer, where the text does not say it.

    Raises:
        BadInput: it contradicts itself, or a value is no number.
    """
    table = tables()[target]
    setting = setting_of(arguments_of(document, table["arguments"]), vocabulary)
    passed = (*table["cannot matter"], *table.get("noted", ()))
    unread = {
        name: line
        for name, line in setting.unread.items()
        if not any(fnmatchcase(name.partition(" ")[0], pattern) for pattern in passed)
    }
    return replace(setting, searched=setting.searched - {*table["arguments"]["fixed"]}, unread=unread)


def words(document: Document, target: str, setting: Setting, strategy: Strategy) -> dict[Path, Any]:
    """The values that say another strategy: those that differ from what the file says."""
    table = tables()[target]["arguments"]
    given = arguments_of(document, table)
    layers = given.count(LAYERS, 1000) or 1
    after = overrides(block_plan(strategy, layers))
    try:
        before = overrides(block_plan(setting.strategy(strategy.devices), layers))
    except BadInput:  # what the file says is refused
        before = {}
    keys = {name: key for key, name in table["renames"].items()}
    new: dict[Path, Any] = {}
    for path, value in after.items():
        name = argument(path[-1], table)
        section = table["written"].get(".".join(path), table["written"].get(".".join(path[:-1])))
        is_dense = name == "--expert-tensor-parallel-size" and "etp" not in setting.fields
        if is_dense or before.get(path, "") == value:
            continue
        key = (given.keys or {}).get(name)
        if key is None and section is not None:
            key = f"{section}.{keys.get(name, path[-1])}".lstrip(".")
        if key is not None:
            new[tuple(key.split("."))] = value
    return new


def is_argument(name: str, table: Mapping[str, Any]) -> bool:
    """Whether a key, with dots, is in one of the sections."""
    return name.rpartition(".")[0] in table["arguments"]["sections"]


def argument(key: str, table: Mapping[str, Any]) -> str:
    """Megatron's argument of a key."""
    return str(table["renames"].get(key, f"--{key.replace('_', '-')}"))


def arguments_of(document: Document, table: Mapping[str, Any]) -> Arguments:
    """The arguments that the sections make, with those that are so unless the file says otherwise."""
    words, keys = dict[str, list[Word]](), dict[str, str]()
    usual = {name: [name, *values] for name, *values in table["usual"]}
    for section in table["sections"]:
        for path, value in leaves(document.values):
            if path[:-1] != tuple(filter(None, section.split("."))):
                continue
            span = document.places.get(path, (0, 0))
            for name, *values in _spelled(path[-1], value, table):
                words[name] = [Word(text, span, span) for text in (name, *values)]
                keys[name] = ".".join(path)
            if path[-1] in table["decides"]:
                usual = {name: values for name, values in usual.items() if name not in table["decides"][path[-1]]}
    for name, texts in usual.items():
        words.setdefault(name, [Word(text, (0, 0), (0, 0)) for text in texts])
    if "--num-query-groups" in words:
        words["--group-query-attention"] = words["--num-query-groups"][:1]
    return Arguments(document.text, words, keys)


def _spelled(key: str, value: Any, table: Mapping[str, Any]) -> Iterator[list[str]]:
    """The arguments, each with its values, that a key makes."""
    others = table["values"].get(key, {})
    if str(value).lower() in others:
        yield from others[str(value).lower()]
    elif value not in FALSE and not (others and value is True):
        name = argument(key, table)
        if isinstance(value, list) and value and isinstance(value[0], list):
            value = "|".join("".join(LETTERS.get(str(layer), "?") for layer in stage) for stage in value)
        texts = [] if value is True else value if isinstance(value, list) and isinstance(value[0], str) else [value]
        yield [name, *map(str, texts)]
