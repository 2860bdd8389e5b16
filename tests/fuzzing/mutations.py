"""Changes at random of files: each takes a content and returns another one; what is drawn decides it alone."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

FileChange = Callable[[random.Random, bytes], bytes]

TOKENS = (
    *("NaN", "Infinity", "-1", "0", "1e400", "1e308", "1e-320", "-0.0", "true", "null", "4.5", "9" * 40, "9" * 5000),
    *("{}", "[]", "[[", "{", "}", '"', "'", ":", ",", "\\ud800", "\ufeff", "\x00", "\n", "\t", "- ", "? ", "| ", "> "),
    *('!!int ""', "!!bool maybe", "!!timestamp foo", "!!float x", "!!python/name:os.system", "&a [*a]", "*a", "<<: {}"),
    *("é", "\U0001f600", "x" * 300, "%s", "../x", "-- ", "--- ", "[1; 2]", " -- stage_id=1", "_time=", "# ", "\r\n"),
)
NUMBERS = TOKENS[:13]
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 4.5, 1e18, 1e60, 1e200, 1e308, 1e-320, -1e308, float("nan"), float("inf")),
    *(2**31, 2**53, 2**63, 2**64, 10**30, 10**400, "", " ", "x", "7", "1e9", "auto", "x" * 300, "\ud800", "é\x00"),
    *([], {}, [[]], [1, 2], [None], {"x": 1}, {"from": 1e-320, "to": 1e308, "steps": 3}, {"from": 1, "to": 10**9}),
)


# --- contents of files ---------------------------------------------------------------------------------------------


def change_text(random_: random.Random, content: bytes) -> bytes:
    """Bytes flipped, cut out, doubled, swapped or put in."""
    data = bytearray(content)
    for _ in range(random_.choice((1, 1, 1, 2, 3, 8))):
        at, span = random_.randrange(len(data) + 1), random_.choice((1, 1, 2, 4, 16, 64, 256))
        kind = random_.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << random_.randrange(8)
        elif kind == 1:
            del data[at : at + span]
        elif kind == 2:
            data[at:at] = data[at : at + span] * random_.choice((1, 2, 50))
        elif kind == 3:
            data[at:at] = random_.choice(TOKENS).encode("utf-8", errors="surrogatepass")
        elif kind == 4:
            del data[at:]
        else:
            _change_number(random_, data)
    return bytes(data)


def _change_number(random_: random.Random, data: bytearray) -> None:
    numbers = list(re.finditer(rb"[0-9][0-9.eE+-]*", bytes(data)))
    if numbers:
        match = random_.choice(numbers)
        data[match.start() : match.end()] = random_.choice(NUMBERS).encode()


def change_lines(random_: random.Random, content: bytes) -> bytes:
    """Text of a language, whose lines mean something: lines left out, doubled or moved, names and numbers swapped."""
    if random_.random() < 0.2:
        return change_text(random_, content)
    text = content.decode()
    for _ in range(random_.choice((1, 1, 2, 3))):
        lines = text.splitlines()
        if not lines:
            break
        at, to, kind = random_.randrange(len(lines)), random_.randrange(len(lines)), random_.randrange(6)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(to, lines[at])
        elif kind == 2:
            lines.insert(to, lines.pop(at))
        else:
            pattern = (r"-?\d+", r"[%@][\w.]+", r"\w+")[kind - 3]
            words = re.findall(pattern, lines[at])
            others = re.findall(pattern, lines[to]) or ["0"]
            other = random_.choice((*others, "-1", "0", "7", "99999999999", str(-(2**63))) if kind == 3 else others)
            if words:
                lines[at] = lines[at].replace(random_.choice(words), other, 1)
        text = "\n".join(lines) + "\n"
    return text.encode()


def change_tree(random_: random.Random, document: Any) -> Any:
    """The document with some of its values replaced, removed, doubled, renamed or nested."""
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        spots = list(_spots(document))
        if not spots:
            return copy.deepcopy(random_.choice(VALUES))
        owner, key = random_.choice(spots)
        kind = random_.randrange(6)
        if kind == 0:
            del owner[key]
        elif kind == 1 and isinstance(owner, list):
            owner.insert(random_.randrange(len(owner) + 1), owner[key])
        elif kind == 1:
            owner[random_.choice(("x", "", "schema", "kind", "nodes", "é", "x" * 300))] = owner.pop(key)
        elif kind == 2:
            other, other_key = random_.choice(spots)
            if not _within(owner[key], other):
                other[other_key] = owner[key]
        elif kind == 3:
            for _ in range(random_.choice((1, 2, 2, 5, 5, 50, 50, 900))):
                owner[key] = [owner[key]]
        else:
            owner[key] = copy.deepcopy(random_.choice(VALUES))  # else a later change of it would change VALUES
    return document


def _spots(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and dictionary of a document with each of its indices and keys."""
    stack = [document]
    while stack:
        owner = stack.pop()
        if isinstance(owner, dict | list):
            items = list(owner.items() if isinstance(owner, dict) else enumerate(owner))
            yield from ((owner, key) for key, _ in items)
            stack += [value for _, value in items]


def _within(document: Any, owner: Any) -> bool:
    """Whether a list or dictionary is a part of the document, which it must not hold then."""
    return document is owner or any(part[key] is owner for part, key in _spots(document))


def change_json(random_: random.Random, content: bytes) -> bytes:
    """JSON, or the JSON that YAML includes: the tree or the text changed."""
    if random_.random() < 0.4:
        return change_text(random_, content)
    try:
        return json.dumps(change_tree(random_, json.loads(content))).encode()
    except RecursionError:
        return b"[" * 100_000
    except ValueError:  # YAML of the kind that is no JSON
        return change_text(random_, content)


def change_npz(random_: random.Random, content: bytes) -> bytes:
    """An archive with other arrays, or other bytes."""
    if random_.random() < 0.3:
        return change_text(random_, content)
    with np.load(io.BytesIO(content)) as archive:
        arrays: dict[str, Any] = dict(archive)
    for _ in range(random_.choice((1, 1, 2))):
        name = random_.choice(list(arrays))
        array, kind = arrays[name], random_.randrange(9)
        if kind == 0:
            del arrays[name]
        elif kind == 1:
            arrays[name] = np.array(
                random_.choice(("{}", "[1", '{"microbatch_size": 1e400}', "\ud800", "x" * 999, "[" * 9999))
            )
        elif kind == 2:
            arrays[name] = (
                np.asarray(array).astype(random_.choice(("f4", "i8", "U5", "S3", "c16", "?", "f2")), copy=True)
                if array.dtype.kind in "fi"
                else array[..., None]
            )
        elif kind == 3:
            arrays[name] = np.resize(array, random_.choice(((0,), (1,), (3,), (2, 6), (), (40,))))
        elif kind == 4:
            arrays[name] = _other_entry(random_, array)
        elif kind == 5:
            arrays[name] = array * 0 if array.dtype.kind == "f" else array
        elif kind == 6:
            arrays[random_.choice(("C", "x", "meta", "0/C"))] = array
        elif kind == 7 and array.ndim == 0 and array.dtype.kind == "U":
            arrays[name] = _other_document(random_, array)
        else:
            return _lying_archive(random_, arrays)
        if not arrays:
            break
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _other_entry(random_: random.Random, array: Any) -> Any:
    """One entry of an array replaced by what its type can hold at the worst."""
    if array.dtype.kind not in "fi" or not array.size:
        return array
    changed = array.copy()
    worst: tuple[float, ...] = (np.nan, np.inf, -1.0, 1e200, 1e60, 1e18, 1e-320, 0.0, 1e9)
    if array.dtype.kind == "i":
        worst = (0, -1, 1, 2, 40, np.iinfo(array.dtype).max, np.iinfo(array.dtype).min)
    with np.errstate(over="ignore"):
        changed.flat[random_.randrange(array.size)] = random_.choice(worst)
    return changed


def _other_document(random_: random.Random, array: Any) -> Any:
    """JSON in an archive, changed."""
    try:
        return np.array(json.dumps(change_tree(random_, json.loads(str(array)))))
    except (ValueError, RecursionError):
        return np.array("[1")


def _lying_archive(random_: random.Random, arrays: Mapping[str, Any]) -> bytes:
    """An archive one of whose headers declares what is not there."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        lying = random_.choice(list(arrays))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                if name != lying:
                    np.lib.format.write_array(member, array, allow_pickle=False)
                    continue
                shape = random_.choice(((10**12,), (60_000_000,), (0,), (2**62, 4), (-1,), ()))
                descr = random_.choice(("<f8", "|O", "<U100000000", "|V8", "<f16"))
                np.lib.format.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": shape})
                member.write(bytes(random_.randrange(64)))
    return buffer.getvalue()


def change_onnx(random_: random.Random, content: bytes) -> bytes:
    """A model whose metadata, nodes, constants or bytes are others."""
    if random_.random() < 0.3:
        return change_text(random_, content)
    import onnx

    model = onnx.load_model_from_string(content)
    for _ in range(random_.choice((1, 1, 2, 4))):
        kind = random_.randrange(5)
        if kind == 0:
            _change_metadata(random_, model)
        else:
            _change_graph(random_, random_.choice(_graphs(model.graph)), kind)
    return bytes(model.SerializeToString())


def _change_metadata(random_: random.Random, model: Any) -> None:
    entry = random_.choice(model.metadata_props)
    if random_.random() < 0.3:
        entry.value = random_.choice(("", "x", *NUMBERS, "[" * 100_000))
    else:
        entry.value = change_json(random_, entry.value.encode()).decode("utf-8", "replace")


def _graphs(graph: Any) -> list[Any]:
    """The graph with the bodies of its loops and branches."""
    return [
        graph,
        *(inner for node in graph.node for part in node.attribute if part.HasField("g") for inner in _graphs(part.g)),
    ]


def _change_graph(random_: random.Random, graph: Any, kind: int) -> None:
    """A node left out or with other inputs, attributes or sizes; or another constant."""
    if kind == 1 and graph.initializer:
        tensor = random_.choice(graph.initializer)
        if tensor.raw_data and random_.random() < 0.7:
            tensor.raw_data = change_text(random_, tensor.raw_data)[: len(tensor.raw_data)].ljust(len(tensor.raw_data))
        elif tensor.dims:
            tensor.dims[random_.randrange(len(tensor.dims))] = random_.choice((0, 1, -1, 2**40))
        return
    if not graph.node:
        return
    at = random_.randrange(len(graph.node))
    node = graph.node[at]
    if kind == 2:
        del graph.node[at]
    elif kind == 3 and node.input:
        names = [name for other in graph.node for name in (*other.input, *other.output)]
        node.input[random_.randrange(len(node.input))] = random_.choice((*names, ""))
    elif kind == 4 and node.attribute:
        part = random_.choice(node.attribute)
        for value in (part.ints, part.t.dims):
            if value:
                value[random_.randrange(len(value))] = random_.choice((0, -1, 1, 7, 2**31, 2**62))
        part.i, part.f = random_.choice((0, -1, 1, 7, 2**31, 2**62)), random_.choice((0.0, -1.0, 1e38))
    else:
        node.op_type = random_.choice([other.op_type for other in graph.node])


def change_checkpoint(random_: random.Random, content: bytes) -> bytes:
    """A torch file with other bytes, or with other values in it."""
    if random_.random() < 0.3:
        return change_text(random_, content)
    import torch

    document = torch.load(io.BytesIO(content), weights_only=True)
    buffer = io.BytesIO()
    try:
        torch.save(change_tree(random_, document), buffer)
    except RecursionError:
        return b"PK"
    return buffer.getvalue()


CHANGES: Mapping[str, FileChange] = {
    ".npz": change_npz,
    ".json": change_json,
    ".yaml": change_json,
    ".onnx": change_onnx,
    ".ckpt": change_checkpoint,
    ".hlo": change_lines,
    ".mlir": change_lines,
}
"""Ending → how such a file is changed; others as text."""
