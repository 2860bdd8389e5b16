"""Devices by name and from files; what YAML files in general can do wrong is tested with clusters."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from automap_models.core.device import Device
from automap_models.errors import BadInput
from automap_models.formats.device_yaml import DEVICE_KEYS, DeviceDocument, known_devices, read_device
from automap_models.formats.schema import convert
from automap_models.resources import conf_dir

GOOD = {
    "name": "mine",
    "matrix": {"float32": 15.7e12, "float16": 125e12},
    "vector": 15.7e12,
    "bandwidth": 900e9,
    "compute_efficiency": 0.6,
    "bandwidth_efficiency": 0.75,
    "winograd": True,
    "launch_s": 1e-6,
}


def device(document: object) -> Device:
    return convert(document, DeviceDocument, where="here", do=DEVICE_KEYS).device("here")


def without(*keys: str) -> dict[str, object]:
    return {key: value for key, value in GOOD.items() if key not in keys}


def test_the_promised_devices_are_shipped() -> None:
    assert {"v100", "a100", "h100", "h200", "cpu"} <= set(known_devices())
    assert known_devices() == sorted(path.stem for path in (conf_dir() / "device").iterdir())


def test_every_key_is_read() -> None:
    assert device(GOOD) == Device(
        "mine", {"float32": 15.7e12, "float16": 125e12}, 15.7e12, 900e9, 0.6, 0.75, True, 1e-6
    )


def test_what_is_left_out_is_off_and_the_name_is_the_files(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(without("name", "winograd", "launch_s")))
    read = read_device(tmp_path / "lab.yaml")
    assert (read.name, read.winograd, read.launch_s) == ("lab", False, 0.0)


def test_numbers_that_yaml_takes_for_text_are_numbers(tmp_path: Path) -> None:
    text = "{matrix: {float32: 15e12}, vector: 15e12, bandwidth: 9e11, compute_efficiency: 1, bandwidth_efficiency: 1}"
    assert isinstance(yaml.safe_load(text)["matrix"]["float32"], str)
    (tmp_path / "d.yaml").write_text(text)
    assert read_device(tmp_path / "d.yaml") == Device("d", {"float32": 15e12}, 15e12, 9e11, 1.0, 1.0)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match="'k80' is neither a known device nor a file; choose from a100, cpu, h100"):
        read_device("k80")


@pytest.mark.parametrize("key", ["matrix", "vector", "bandwidth", "compute_efficiency", "bandwidth_efficiency"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(BadInput, match=f"here: [$][.]{key} is missing; it needs matrix"):
        device(without(key))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "matrix",
            15.7e12,
            r"here: \$\.matrix is 157\d+\.0, not a mapping of keys to values; it needs matrix \(the peak",
        ),
        ("matrix", {"float32": "fast"}, r"here: \$\.matrix\.float32 is 'fast', not a number"),
        ("matrix", {"float32": 1e12, 16: 1e12}, r"here: a key of \$\.matrix is not a text"),
        ("matrix", {}, "here: matrix has no float32"),
        ("matrix", {"float32": 0}, "here: matrix float32 is 0.0; give a positive number"),
        ("bandwidth", None, r"here: \$\.bandwidth is None, not a number"),
        ("bandwidth", -1, "here: bandwidth is -1.0; give a positive number"),
        ("compute_efficiency", 60, r"here: compute_efficiency is 60.0; give a share in \(0, 1\]"),
        ("winograd", "maybe", r"here: \$\.winograd is 'maybe', not true or false"),
        ("launch_s", float("inf"), "here: launch_s is inf; give seconds"),
        ("name", "", r"here: \$\.name is '', not a text"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(key: str, value: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        device({**GOOD, key: value})


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(BadInput, match="here: the document has the unknown key 'memory'; it needs matrix"):
        device({**GOOD, "memory": 1})
