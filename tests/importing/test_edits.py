"""Other values are written where the former ones stand: all other lines of a file stay as they are."""

from __future__ import annotations

import json

import yaml

from automap_models.importing.documents import parse

TEXT = """\
# mine
model:
  tp: 4  # of a node
  layout:
  sizes: [1, 2]

train: {batch: 8}
"""


def test_yaml_keeps_its_comments_and_takes_new_keys_beside_those_of_their_mapping() -> None:
    new = {
        ("model", "tp"): 2,
        ("model", "pp"): 8,
        ("model", "layout"): "Et|tL",
        ("train", "micro"): 1,
        ("ddp", "late"): True,
    }
    text = parse(TEXT, ".yaml", "here").edited(new)
    changed = (
        TEXT.replace("tp: 4", "tp: 2").replace("layout:", "layout: Et|tL").replace("[1, 2]\n", "[1, 2]\n  pp: 8\n")
    )
    assert text == changed.replace("8}\n", '8, "micro": 1}\nddp:\n  late: true\n')
    assert yaml.safe_load(text)["ddp"] == {"late": True}


def test_json_stays_json() -> None:
    text = '{\n  "a": 1,\n  "b": {"c": true}\n}\n'
    edited = parse(text, ".json", "here").edited({("a",): None, ("b", "d"): 2, ("e",): 3})
    assert edited == '{\n  "a": null,\n  "b": {"c": true, "d": 2},\n  "e": 3\n}\n'
    assert json.loads(edited)["b"] == {"c": True, "d": 2}


def test_values_that_stand_for_others_are_those() -> None:
    text = 'a: {b: 3, c: "${.b}", d: "${multiply:4, ${a.b}}", e: "${oc.select:a.x,7}", f: "${env:HOME}"}\n'
    values = parse(text, ".yaml", "here").values["a"]
    assert values == {"b": 3, "c": 3, "d": 12, "e": 7, "f": "${env:HOME}"}
