"""Public command lines and configurations are read as people read them: public.yaml has their facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from automap_models.errors import BadInput
from automap_models.importing.reader import read_setting
from automap_models.importing.setting import Setting

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("public.yaml").read_text("utf-8"))


def read_case(case: dict[str, Any], folder: Path) -> Setting:
    path = folder / f"case{case.get('ending', '.sh')}"
    path.write_text(case["text"], encoding="utf-8")
    for name, text in case.get("beside", {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    return read_setting(str(path), {})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["source"])
def test_what_is_public_is_read_as_people_read_it(case: dict[str, Any], tmp_path: Path) -> None:
    if "wrong" in case:
        with pytest.raises(BadInput, match=case["wrong"]):
            read_case(case, tmp_path)
        return
    setting = read_case(case, tmp_path)
    assert {name: setting.fields.get(name) for name in case["read"]} == case["read"]
    assert [*setting.unread] == case.get("asked", [])
    assert [setting.nodes, setting.per_node] == case.get("devices", [setting.nodes, setting.per_node])
    assert setting.name == case.get("name", "")
    assert str(setting.training) == case.get("training", str(setting.training))
    assert setting.sequence == case.get("sequence", setting.sequence)
    for wanted in ("refused", "noted"):
        sentences = setting.refusals if wanted == "refused" else setting.notes
        for name in case.get(wanted, []):
            assert any(f"`{name}`" in sentence for sentence in sentences), name
    assert all(any(words in note for note in setting.notes) for words in case.get("said", []))
    if "refused" not in case:
        assert not setting.refusals
    if "model" in case:
        assert setting.model is not None
        parts = {**vars(setting.model.shape), **vars(setting.model)}
        assert {name: parts[name] for name in case["model"]} == case["model"]


def test_most_of_what_is_public_is_read() -> None:
    """All but a tenth of at least 80 are read; of those, settings that matter and are not known are named."""
    assert len(CASES) >= 80
    assert sum("wrong" in case for case in CASES) <= len(CASES) / 10


def test_arguments_that_nothing_sets_are_noted() -> None:
    """Of a value that cannot matter nobody asks."""
    setting = read_setting("train.py --bf16 --data-path $DATA ${MORE[@]} --sequence-parallel $OTHER", {})
    assert [note for note in setting.notes if "set by nothing" in note] == [
        "`$OTHER` is set by nothing, and taken as empty",
        "`${MORE[@]}` is set by nothing, and taken as empty",
    ]
