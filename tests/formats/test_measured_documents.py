"""What a file of measured steps has to look like: mistakes are refused in one sentence, by their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published_rows import GPT3, ROW, converted

from automap_models.errors import BadInput
from automap_models.formats.measured_rows import read_measured_steps


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tp": "eight"}, "$.rows[0].tp is 'eight', not a whole number or null"),
        ({"gpus": 0}, "$.rows[0].gpus is 0, not a whole number ≥ 1"),
        ({"measured": {"iteration_s": -1.0}}, "$.rows[0].measured.iteration_s is -1.0, not a number > 0"),
        ({"id": " "}, "$.rows[0].id is ' ', not a text that is not blank"),
        ({"model": {**GPT3, "layers": 1.5}}, "$.rows[0].model.layers is 1.5, not a whole number or null"),
    ],
)
def test_a_value_of_another_kind_is_bad_input(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        converted(tmp_path, **change)
    assert sentence in str(caught.value)
    assert "give a file of measured steps" in str(caught.value)


OPTIONAL = {"gpus_per_node", "dp", "vp", "micro_batch", "schedule", "recompute", "zero", "note"}


@pytest.mark.parametrize("key", sorted(set(ROW) - OPTIONAL))
def test_a_missing_field_is_named(tmp_path: Path, key: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [{name: value for name, value in ROW.items() if name != key}]}))
    with pytest.raises(BadInput, match=rf"rows\.json: \$\.rows\[0\]\.{key} is missing; give a file of measured"):
        read_measured_steps(path)


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [ROW, ROW]}))
    with pytest.raises(BadInput, match="'row-1' first"):
        read_measured_steps(path)


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"rows": 3}', "{}"])
def test_what_is_no_file_of_rows_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content)
    with pytest.raises(BadInput):
        read_measured_steps(path)
