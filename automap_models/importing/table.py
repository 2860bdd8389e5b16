"""A configuration, read by the table of its program in tables.yaml: which keys say which field, in which words.

fields:                                   field of a strategy
  micro_batch: {micro_batch_size: number}     a key that holds it
  zero:                                       or keys, the first of which decides that has one of these words
    fsdp_config.reshard_after_forward: {true: 3, false: 2}
    fsdp_config: {"*": 3}                     whatever it holds
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path as File
from typing import Any

from automap_models.core.framework import any_sequence
from automap_models.core.strategy import Strategy
from automap_models.core.tuning import Training
from automap_models.errors import BadInput
from automap_models.export.accelerate import LIMITS as ACCELERATE
from automap_models.export.deepspeed import LIMITS as DEEPSPEED
from automap_models.export.megatron import LIMITS as MEGATRON
from automap_models.export.megatron_bridge import images_over_cp
from automap_models.importing import config_arguments, verl
from automap_models.importing.documents import FALSE, Document, Path, count_at, parse, tables, text_of, unread, value_at
from automap_models.importing.setting import Setting, contradiction
from automap_models.resources import is_file
from automap_models.workloads.catalogue import canonical

Keys = Mapping[str, Any]
"""Key → `number`, or words → what they say."""
FSDP = replace(ACCELERATE, name="fsdp", undivided=("ep",), sharded_context=False, sequence=any_sequence)
"""Of programs that run PyTorch's FSDP; some share sequences as Ulysses does, which asks for no halves."""
LIMITS = {
    "fsdp": FSDP,
    "deepspeed": DEEPSPEED,
    "megatron": replace(MEGATRON, any_training=True),
    "megatron-bridge": replace(MEGATRON, any_training=True, images_apart=images_over_cp),
}
BATCHES = ("global_batch", "micro_batch", "micro_batches")
DEGREES = ("tp", "cp", "pp", "ep", "zero")
"""Fields that a better setting changes only where the file has a key of theirs."""
FIXED = ("precision", "offload", "global_batch")
"""Fields that no better setting changes."""
APART = "the documents of a sample are priced as if attention read all of it; `packed` says how long they are"
OF_DOCUMENTS: Mapping[str, tuple[str, ...]] = {"apart": (APART,), "together": ()}
"""Setting.documents → notes, in place of those of padding."""


def table_of(document: Document) -> str | None:
    """The program that a document is of; None where no table knows it."""
    for target, table in tables().items():
        if any(_words(_raw(document, key)) & _keys(words) for key, words in table.get("marks", {}).items()):
            return target
    return None


def read(document: Document, target: str, file: File | None = None, vocabulary: int | None = None) -> Setting:
    """What a configuration says.

    Args:
        target: of tables.yaml.
        file: where it is from; beside it, or a folder above, DeepSpeed's JSON is looked for that it names.
        vocabulary: of the tokenizer, where the text does not say it.

    Raises:
        BadInput: it contradicts itself, or a value is no number.
    """
    table = tables()[target]
    fields, keys = answers(document, table.get("fields", {}))
    training, more = answers(document, table.get("training", {}))
    fields = batches(table, {**table.get("usual", {}), **fields} | data_parallel(document, table))
    single = [key for name in ("model", "dp") for key in table.get(name, ())] + [*table.get("devices", {}).values()]
    understood = [*keys, *more, *single, *table.get("sequence", {})]
    left_out, notes = unread(document, target, understood, fields.get("precision", ""))
    documents = training.get("documents", "one" if "documents" in table.get("training", {}) else "")
    nodes, per_node = _devices(document, table)
    setting = Setting(
        limits=LIMITS[table["limits"]],
        runtime=table["runtime"],
        fields=fields,
        searched=frozenset(_searched(document, table)),
        text=document.text,
        rewrite=str,
        lacking=("the model",),
    )
    if "arguments" in table:
        setting = config_arguments.read(document, target, vocabulary)
        left_out = {name: line for name, line in left_out.items() if not config_arguments.is_argument(name, table)}
    setting = replace(
        setting,
        limits=replace(LIMITS[table["limits"]], name=table.get("name", target)),
        runtime=table["runtime"],
        fields={**setting.fields, **fields},
        searched=setting.searched,
        training=_narrowed(tuned({**table.get("tuned", {}), **training}), document, table, fields),
        name="" if setting.model else _name(document, table),
        sequence=setting.sequence or _sequence(document, table),
        unread={**setting.unread, **left_out},
        documents=documents,
        notes=(*setting.notes, *notes, *OF_DOCUMENTS.get(documents, table.get("notes", ()))),
        nodes=nodes if per_node else setting.nodes,
        per_node=per_node or setting.per_node,
    )
    if target.startswith("verl"):
        setting = verl.adjusted(setting, document)
    setting = _with_deepspeed(setting, document, table, file)

    def rewrite(strategy: Strategy) -> str:
        new = dict(words(document, table, setting, strategy))
        if "arguments" in table:
            new |= config_arguments.words(document, target, setting, strategy)
        return document.edited(verl.words(document, setting, strategy, new) if target.startswith("verl") else new)

    return replace(setting, rewrite=rewrite)


def _name(document: Document, table: Mapping[str, Any]) -> str:
    """Of the built-in model that the file names, or a folder of which."""
    folders = (str(_raw(document, key)).rstrip("/").rpartition("/")[2] for key in table.get("model", ()))
    return next(filter(None, map(canonical, folders)), "")


def _devices(document: Document, table: Mapping[str, Any]) -> tuple[int, int | None]:
    """Nodes, and devices of each where the file says it."""
    counts = {name: count_at(document.values, *key.split(".")) for name, key in table.get("devices", {}).items()}
    nodes, processes = counts.get("nodes") or 1, counts.get("processes")
    return nodes, processes // nodes if processes else counts.get("per_node")


def _raw(document: Document, key: str) -> Any:
    """What stands at a key, `auto` too."""
    *above, last = key.split(".")
    group = value_at(document.values, *above) if above else document.values
    return group.get(last) if isinstance(group, Mapping) else None


def _words(value: Any) -> set[str]:
    """The words of a value in small letters, and `*` where there is any."""
    if value in (None, "", [], {}):
        return set()
    parts = value if isinstance(value, list) else re.split(r"[,\s]+", str(value)) if isinstance(value, str) else [value]
    return {"*", *(str(part).lower() for part in parts)}


def _keys(words: Any) -> set[str]:
    return {str(word).lower() for word in (words if isinstance(words, (dict, list)) else [words])}


def answers(document: Document, fields: Mapping[str, Keys]) -> tuple[dict[str, Any], list[str]]:
    """Fields that are stated, and the keys that were understood.

    Raises:
        BadInput: two keys say different precisions, or a number is none.
    """
    stated, understood = dict[str, Any](), list[str]()
    for name, keys in fields.items():
        explicit = dict[str, Any]()
        for key, table in keys.items():
            value = _raw(document, key)
            if table == "number":
                answer = count_at(document.values, *key.split("."))
            else:
                meanings = {str(word).lower(): meaning for word, meaning in table.items()}
                answer = _meaning(_words(value), meanings, several=name == "targets")
            if answer is not None:
                understood.append(key)
                stated.setdefault(name, answer)
                explicit |= {key: answer} if value is True else {}
        if name == "precision" and len(set(explicit.values())) > 1:
            first, second = [*explicit][:2]
            raise contradiction(first, second, *(document.line(tuple(key.split("."))) for key in (first, second)))
    return stated, understood


def _meaning(words: set[str], meanings: Mapping[str, Any], several: bool) -> Any:
    """What words mean together; None where one of them is not known."""
    if "*" in meanings and words:
        return meanings["*"]
    meant = [meanings.get(word, "unknown") for word in sorted(words - {"*"})]
    if not meant or "unknown" in meant:
        return None
    if several:
        return tuple(dict.fromkeys(target for targets in meant for target in targets.split(",")))
    return next((meaning for meaning in meant if meaning is not None), None)


def tuned(stated: Mapping[str, Any]) -> Training:
    """What is trained: adapters only where the file says so."""
    adapters = stated.get("lora", True) and stated.get("rank")
    if stated.get("loss") == "dpo":
        stated = {**stated, "loss": stated.get("preference", "dpo")}
    names = ("optimizer", "states", "loss", *(("rank", "targets", "quantize") if adapters else ()))
    given: dict[str, Any] = {name: stated[name] for name in names if name in stated}
    given |= {"targets": tuple(given["targets"])} if "targets" in given else {}
    return Training(**given)


def _narrowed(training: Training, document: Document, table: Mapping[str, Any], fields: Mapping[str, Any]) -> Training:
    """The same with states in bf16, where a program trains weights in bf16 that nothing keeps in fp32."""
    keys = table.get("narrow", ())
    if not keys or fields["precision"] != "bf16" or training.rank or any(_raw(document, k) not in FALSE for k in keys):
        return training
    return replace(training, states="bf16")


def data_parallel(document: Document, table: Mapping[str, Any]) -> dict[str, int]:
    """`dp` where both of its parts, or the shards, are said; of several shards there may be copies."""
    copies, shards = (count_at(document.values, *key.split(".")) for key in table.get("dp", ("", "")))
    if shards is None or shards < 1:
        return {}
    return {"dp": (copies or 1) * shards, "dp_replicate": (copies or 1) if shards > 1 else 1}


def batches(table: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of batches of which one follows from the others: all three say the ranks of data parallelism."""
    given = dict(fields)
    if given.keys() >= {*BATCHES}:
        dp, rest = divmod(given["global_batch"], given["micro_batch"] * given["micro_batches"])
        if rest:
            total, *parts = (next(iter(table["fields"][name])) for name in BATCHES)
            numbers = f"{given['micro_batch']} × {given['micro_batches']}"
            what = f"{given['global_batch']} is no multiple of {' × '.join(parts)}, {numbers}"
            raise BadInput(what, where=total, do="leave one of the three out")
        given["dp"] = dp
        del given["micro_batches"]
    return given


def _sequence(document: Document, table: Mapping[str, Any]) -> int | None:
    """Tokens of a sample, of several parts where there are; what is usual where the file says nothing."""
    parts = [count_at(document.values, *key.split(".")) or usual for key, usual in table.get("sequence", {}).items()]
    return sum(parts) or None


def _searched(document: Document, table: Mapping[str, Any]) -> Iterator[str]:
    yield from ("dp", "micro_batch", *(("dp_replicate",) if "dp" in table else ()))
    for name, keys in table.get("fields", {}).items():
        is_there = any(_raw(document, key) is not None and _is_scalar(_raw(document, key)) for key in keys)
        if name not in table.get("fixed", FIXED) and (
            is_there or name not in DEGREES or name in table.get("added", ())
        ):
            yield name


def words(
    document: Document, table: Mapping[str, Any], setting: Setting, strategy: Strategy
) -> Iterator[tuple[Path, Any]]:
    """The values that say another strategy: of keys that are there, or of the first where none is."""
    usual = {"micro_batches": 1, "recompute": "none", **table.get("usual", {})}
    for name, keys in table.get("fields", {}).items():
        value = getattr(strategy, name)
        there = {key: raw for key in keys if (raw := _raw(document, key)) is not None and _is_scalar(raw)}
        is_same = value == setting.fields.get(name, usual.get(name, 1))
        if is_same or name not in setting.searched or "auto" in there.values():
            continue
        for number, key in enumerate(there or [next(iter(keys))]):
            word = value if keys[key] == "number" else _word(keys[key], value, there.get(key))
            if word != there.get(key) and (number == 0 or word is False):
                yield tuple(key.split(".")), word
    copies, shards = table.get("dp", ("", ""))
    if shards and _raw(document, shards) is not None:
        of_shards = strategy.dp // strategy.dp_replicate if strategy.zero else 1
        yield tuple(copies.split(".")), strategy.dp // of_shards
        yield tuple(shards.split(".")), of_shards


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, (list, dict))


def _word(meanings: Mapping[Any, Any], value: Any, former: Any) -> Any:
    """How a key says a value; false where it has no word for it."""
    word = next((word for word, meaning in meanings.items() if meaning == value), False)
    return word.upper() if isinstance(word, str) and str(former).isupper() else word


def _with_deepspeed(setting: Setting, document: Document, table: Mapping[str, Any], file: File | None) -> Setting:
    """The same with what the DeepSpeed configuration says that the file holds, or names."""
    key = table.get("deepspeed")
    value = _raw(document, key) if key else None
    if value in FALSE:
        return setting
    place = f"in {value}"
    if isinstance(value, dict):
        inner, place = Document(document.text, value, document.edited), document.line((str(key),))
    else:
        folders = [] if file is None else [File(), *file.absolute().parents]
        path = next((folder / str(value) for folder in folders if is_file(folder / str(value))), None)
        if path is None:
            do = "put that file there, or beside this one"
            raise BadInput(f"names {value}, which is not there", where=str(key), do=do)
        inner = parse(text_of(path), ".json", str(path))
    other = read(inner, "deepspeed", None)
    fields = {name: other.fields[name] for name in ("zero", "tp", "offload") if name in other.fields}
    unknown = {name: line for name, line in setting.unread.items() if not name.startswith(str(key))}
    return replace(
        setting,
        limits=replace(DEEPSPEED, name=setting.limits.name, undivided=("ep",)),
        runtime="deepspeed",
        fields={**setting.fields, **fields},
        searched=setting.searched - {"zero", "tp"},
        unread={**unknown, **{f"{key}.{name}": place for name in other.unread}},
        notes=(*setting.notes, *other.notes),
    )
