"""Documents declared once: what fits is decoded, what does not is one sentence with the path to it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.errors import BadInput
from automap_models.formats.schema import (
    LARGEST_YAML_BYTES,
    Count,
    Document,
    Foreign,
    Index,
    Positive,
    Share,
    Text,
    convert,
    decode_json,
    read_bytes,
    read_json,
    read_yaml,
)


class Part(Document):
    devices: tuple[Index, Index]
    kind: Literal["first", "last"] = "first"


class Whole(Document):
    count: Count
    rate: Positive = 1.0
    share: Share = 0.5
    name: Text = "x"
    sizes: dict[str, float] = msgspec.field(default_factory=dict)
    parts: list[Part] = msgspec.field(default_factory=list)
    named: dict[str, Part] = msgspec.field(default_factory=dict)


class Theirs(Foreign):
    count: int


def refusal(text: str | bytes) -> str:
    content = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(BadInput) as refused:
        decode_json(content, Whole, where="f.json", do="write it again")
    message = str(refused.value)
    assert message.startswith("f.json: ")
    assert message.endswith("; write it again")
    assert "\n" not in message
    assert len(message) < 300
    return message.removeprefix("f.json: ").removesuffix("; write it again")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "$.count is missing"),
        ('{"count": 1, "parts": [{"kind": "last"}]}', "$.parts[0].devices is missing"),
        ('{"count": 1, "size": 3}', "the document has the unknown key 'size'"),
        ('{"count": 1, "parts": [{"devices": [0, 1], "x": 3}]}', "$.parts[0] has the unknown key 'x'"),
        ('{"count": 4.5}', "$.count is 4.5, not a whole number"),
        ('{"count": "4"}', "$.count is '4', not a whole number"),
        ('{"count": true}', "$.count is True, not a whole number"),
        ('{"count": 0}', "$.count is 0, not a whole number ≥ 1"),
        ('{"count": 1e400}', "$.count is not a number of a size that can be meant"),
        (f'{{"count": {10**30}}}', "$.count is 1000000000000000000000000000000, not a whole number ≤ 9007199254740992"),
        ('{"count": 1, "rate": 0}', "$.rate is 0, not a number > 0"),
        ('{"count": 1, "share": 1.5}', "$.share is 1.5, not a number ≤ 1"),
        ('{"count": 1, "name": " "}', "$.name is ' ', not a text that is not blank"),
        ('{"count": 1, "sizes": {"a": 1, "b": "c"}}', "$.sizes.b is 'c', not a number"),
        (
            '{"count": 1, "named": {"a/b": {"devices": [0, 1]}, "a.c": {"devices": [0, -1]}}}',
            "$.named.a.c.devices[1] is -1, not a whole number ≥ 0",
        ),
        ('{"count": 1, "named": {"a": {"devices": [0, 1]}, "b": {}}}', "$.named.b.devices is missing"),
        ('{"count": 1, "named": {"b": {"devices": [0, 1], "x": 3}}}', "$.named.b has the unknown key 'x'"),
        (
            '{"count": 1, "named": {"b": {"devices": [0, 1], "kind": "third"}}}',
            "$.named.b.kind is 'third', not first or last",
        ),
        ('{"count": 1, "parts": [{"devices": [0, "eight"]}]}', "$.parts[0].devices[1] is 'eight', not a whole number"),
        ('{"count": 1, "parts": [{"devices": [0]}]}', "$.parts[0].devices is [0], not a list of length 2"),
        ('{"count": 1, "parts": [{"devices": [0, 1], "kind": "mid"}]}', "$.parts[0].kind is 'mid', not first or last"),
        ("[]", "the document is [], not a mapping of keys to values"),
        ("null", "the document is None, not a mapping of keys to values"),
    ],
)
def test_a_document_that_does_not_fit_is_one_sentence_with_the_path(text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"count": NaN}', '{"count": Infinity}', '{"count": 1}}', b"\xff", '{"name": "\\ud800"}', "not JSON"],
)
def test_what_is_no_json_is_said_so(text: str | bytes) -> None:
    assert refusal(text).startswith("is not valid JSON (")


def test_deep_nesting_is_refused_where_it_is_read_and_where_it_is_skipped() -> None:
    assert "not a mapping" in refusal("[" * 1_000_000)
    with pytest.raises(BadInput, match="nested too deeply"):
        decode_json(b'{"count": 1, "other": ' + b"[" * 1_000_000, Theirs, where="f.json")


def test_another_tool_s_document_may_hold_more_than_we_read() -> None:
    assert decode_json(b'\xef\xbb\xbf{"count": 3, "other": [1, {}]}', Theirs, where="f.json") == Theirs(count=3)


def test_a_file_larger_than_its_reader_takes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_text(json.dumps({"count": 1, "name": "x" * 100}))
    with pytest.raises(BadInput, match="has more than 64 bytes; give a smaller file"):
        read_bytes(file, largest=64)
    assert read_json(file, Whole).count == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from([*Whole.__struct_fields__, "z"]), part),
    max_leaves=8,
)


@given(JSON)
def test_any_parsed_document_is_an_object_or_a_sentence(document: object) -> None:
    try:
        assert isinstance(convert(document, Whole, where="here"), Whole)
    except BadInput as error:
        assert str(error).startswith("here: ")


def read(folder: Path, text: str) -> Whole:
    (folder / "d.yaml").write_text(text, encoding="utf-8")
    return read_yaml(folder / "d.yaml", Whole, do="it needs count")


@pytest.mark.parametrize(
    ("text", "count", "rate"),
    [
        ("{count: 1e3, rate: 130e9}", 1000, 130e9),
        ("{count: 2_000, rate: 3.125e9}", 2000, 3.125e9),
        ("{count: 4.0, rate: 1.5E-9}", 4, 1.5e-9),
        ("{count: 0x1F, rate: .5e1}", 31, 5.0),
    ],
)
def test_numbers_of_yaml_are_numbers_in_every_notation(text: str, count: int, rate: float, tmp_path: Path) -> None:
    document = read(tmp_path, text)
    assert (document.count, document.rate) == (count, rate)


def test_a_date_is_a_text(tmp_path: Path) -> None:
    assert read(tmp_path, "{count: 1, name: 2026-01-01}").name == "2026-01-01"


@pytest.mark.parametrize("text", ["{count: .nan}", "{count: 1, rate: .inf}", "{count: 1, rate: 1e400}"])
def test_a_number_of_yaml_that_is_not_finite_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not valid YAML in line 1"):
        read(tmp_path, text)


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    for text in (laughs, "count: &a [*a]"):
        with pytest.raises(BadInput, match="aliases repeat too much"):
            read(tmp_path, text)


def test_merged_merges_do_not_multiply(tmp_path: Path) -> None:
    """Thirty lines of `<<: [*a, *a, *a]` kept PyYAML busy for hours; `<<` is a key like any other now."""
    lines = (f"- &a{i} {{<<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 30))
    began = time.monotonic()
    with pytest.raises(BadInput):
        read(tmp_path, "- &a0 {x: 1}\n" + "".join(lines))
    assert time.monotonic() - began < 5


def test_a_description_of_many_pages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"has more than {LARGEST_YAML_BYTES:,} bytes"):
        read(tmp_path, "#\n" * LARGEST_YAML_BYTES)
