"""Files that a configuration names are strangers' files, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from automap_models.errors import BadInput
from automap_models.importing.reader import read_setting

AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 1\ndeepspeed: {}\n"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("z3.json", b"\x7fELF\xd0\xff", "is no text"),
        ("z3.json", b"root:x:0:0", "is not valid JSON"),
        ("z3.json", b"[3]", "not a mapping"),
        ("z3", b"{}", None),
        (".", None, "names ., which is not there"),
        ("[1, 2]", None, "which is not there"),
        ("x" * 5000, None, "which is not there"),
        ("/dev/zero", None, "which is not there"),
    ],
)
def test_a_deepspeed_file_that_is_none_is_refused_by_name(
    name: str, content: bytes | None, sentence: str | None, tmp_path: Path
) -> None:
    """A program in place of the JSON, and a name that no file can have, came with their tracebacks."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL.format(name))
    if content is not None:
        (tmp_path / name).write_bytes(content)
    if sentence is None:
        assert read_setting(str(path), {}).runtime == "deepspeed"
        return
    with pytest.raises(BadInput) as error:
        read_setting(str(path), {})
    assert sentence in error.value.what and "axolotl.yaml" in str(error.value.where)
