"""Every shipped device can be asked for by name, has its data sheet's figures and says where they are from."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from automap_models.formats.hardware_yaml import known_devices, read_cluster, read_device
from automap_models.resources import conf_dir

DATA_SHEETS = {
    "a100": {"float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12, "bandwidth": 2039e9},
    "h100": {"float32": 67e12, "tf32": 989.4e12 / 2, "bfloat16": 1978.9e12 / 2, "float8": 3957.8e12 / 2},
    "h200": {"float32": 67e12, "tf32": 989.4e12 / 2, "bfloat16": 1978.9e12 / 2, "bandwidth": 4.8e12},
    "v100": {"float32": 15.7e12, "float16": 125e12, "bandwidth": 900e9},
    "a100-40": {"tf32": 156e12, "bfloat16": 312e12, "bandwidth": 1555e9},
    "h100-96": {"bfloat16": 1978.9e12 / 2, "float8": 3957.8e12 / 2, "bandwidth": 2.4e12},
    "b200": {"float32": 600e12 / 8, "bfloat16": 36e15 / 8 / 2, "float8": 72e15 / 8 / 2, "bandwidth": 64e12 / 8},
    "gb200": {"float32": 160e12 / 2, "bfloat16": 10e15 / 2 / 2, "float8": 20e15 / 2 / 2, "bandwidth": 16e12 / 2},
    "b300": {"bfloat16": 36e15 / 8 / 2, "float8": 72e15 / 8 / 2, "float4": 108e15 / 8, "bandwidth": 64e12 / 8},
    "gb300": {"bfloat16": 360e15 / 72 / 2, "float8": 720e15 / 72 / 2, "float4": 1080e15 / 72, "bandwidth": 576e12 / 72},
    "h20": {"bfloat16": 148e12, "float8": 296e12, "bandwidth": 4e12},
    "mi300x": {"tf32": 653.7e12, "bfloat16": 1307.4e12, "float8": 2614.9e12, "bandwidth": 5.3e12},
    "mi325x": {"bfloat16": 1307.4e12, "float8": 2614.9e12, "bandwidth": 6e12},
    "mi355x": {"bfloat16": 2.5166e15, "float8": 5.0332e15, "float4": 10.0663e15, "bandwidth": 8e12},
    "mi250x": {"bfloat16": 383e12 / 2, "float32": 95.7e12 / 2, "bandwidth": 3.2e12 / 2},
    "gaudi3": {"bfloat16": 1835e12, "float8": 1835e12, "bandwidth": 3.7e12},
    "trainium2": {"float32": 181e12, "bfloat16": 667e12, "float8": 1299e12, "bandwidth": 2.9e12},
    "a100-pcie": {"tf32": 156e12, "bfloat16": 312e12, "bandwidth": 1935e9},
    "rtx5090": {"float32": 104.8e12, "bfloat16": 838.4e12 / 4, "float4": 3352e12 / 2, "bandwidth": 1792e9},
    "rtx-pro-6000": {"bfloat16": 1007.6e12 / 2, "float8": 2015.2e12 / 2, "float4": 4030.4e12 / 2, "bandwidth": 1792e9},
    "l4": {"float32": 30.3e12, "bfloat16": 242e12 / 2, "float8": 485e12 / 2, "bandwidth": 300e9},
    "a10g": {"float32": 35e12, "bfloat16": 140e12 / 2, "bandwidth": 600e9},
    "rtx4090": {"float32": 82.6e12, "bfloat16": 165.2e12, "float8": 330.3e12, "bandwidth": 1008e9},
    "tpu-v5e": {"bfloat16": 197e12, "bandwidth": 819e9},
    "tpu-v5p": {"bfloat16": 459e12, "bandwidth": 2765e9},
    "tpu-v6e": {"bfloat16": 918e12, "bandwidth": 1640e9},
    "tpu7x": {"bfloat16": 2307e12, "float8": 4614e12, "bandwidth": 7380e9},
    "t4": {"float32": 8.1e12, "float16": 65e12, "bandwidth": 256 / 8 * 10e9},
    "cpu": {"float32": 40 * 2.3e9 * 2 * 16 * 2, "float64": 40 * 2.3e9 * 2 * 8 * 2, "bandwidth": 8 * 3200e6 * 8},
}


@pytest.mark.parametrize("name", known_devices())
def test_a_shipped_device_loads_under_its_own_name_and_has_the_usual_types(name: str) -> None:
    device = read_device(name)
    assert device.name == name
    assert {"float32", "bfloat16"} <= set(device.matrix)
    assert device.cluster is None or read_cluster(device.cluster).kind == name


@pytest.mark.parametrize("name", sorted(DATA_SHEETS))
def test_its_peaks_are_the_data_sheets(name: str) -> None:
    device = read_device(name)
    read = {**device.matrix, "bandwidth": device.bandwidth}
    assert {key: read[key] for key in DATA_SHEETS[name]} == pytest.approx(DATA_SHEETS[name], rel=2e-3)


ACCURACY = Path(__file__).resolve().parents[2] / "docs" / "reference" / "accuracy.md"
ALIKE = {"a100-40": ("a100", "a100-40"), "a100": ("a100", "a100-40")}
"""Kinds that have their constants in common."""


def unseen(kinds: tuple[str, ...]) -> list[float]:
    """Shares by which sources of three steps or more are off that are left out of the fit, or in none."""
    off: dict[str, list[float]] = {}
    for title, fitted in (("Left out of the fit", "device"), ("By source", "never seen")):
        section = ACCURACY.read_text("utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
        for line in (line for line in section.splitlines() if line.startswith("| ")):
            source, device, _, kind, steps, median, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            if device in kinds and kind == fitted and int(steps) >= 3:
                off.setdefault(source, []).append(float(median.removesuffix(" %")) / 100)
    return [statistics.median(shares) for shares in off.values()]


@pytest.mark.parametrize("name", [name for name in known_devices() if read_device(name).left_out])
def test_how_far_its_clock_is_off_is_what_the_page_on_accuracy_says(name: str) -> None:
    shares = unseen(ALIKE.get(name, (name,)))
    assert len(shares) > 1
    assert read_device(name).left_out == pytest.approx((min(shares), max(shares)), abs=6e-4)


@pytest.mark.parametrize("name", known_devices())
def test_its_file_says_where_peaks_and_constants_are_from(name: str) -> None:
    comment = [line for line in (conf_dir() / "device" / f"{name}.yaml").read_text().splitlines() if line[:1] == "#"]
    sources = ("data sheet", "product specifications", "white paper", "documentation", "documents")
    assert any(source in " ".join(comment) for source in sources)
    assert "onstants of training steps" in " ".join(comment)
