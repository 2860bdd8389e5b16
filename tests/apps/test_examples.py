"""The example profiles hold what the commands in their README trace, and the models are the published ones."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from automap_models.core.profile import Profile
from automap_models.formats.npz import read_npz
from automap_models.infer.app import profile as main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^automap profile (\w+) --device v100 -o examples/(\w+\.npz)$", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)\.npz` \| .* \| (\d+) \S[^|]* \| ([\d,]+) \| ([\d,]+) \| ", re.MULTILINE)
PARAMETERS = {
    # Hidden size 1024, 48 layers: DAPPLE (arXiv 2007.01045) says 640 M.
    "bert48": (30522 + 512 + 2 + 2) * 1024
    + 48 * (4 * (1024 * 1024 + 1024) + 2 * (1024 * 4096) + 4096 + 1024 + 4 * 1024)
    + (1024 * 1024 + 1024 + 2 * 1024 + 30522),  # the masked language model's head; its matrix is the embedding
    # As Google released them: embedding, relative biases, layers of the encoder and the decoder, norms.
    "t5_base": 222_903_552,
    "t5_3b": 2_851_598_336,
    "t5_11b": 11_307_321_344,
    "vgg19": 143_667_240,  # torchvision's count, too
}


@pytest.fixture(params=list(PARAMETERS))
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def example(key: str) -> Profile:
    return read_npz(EXAMPLES / f"{key}_v100.npz")


def test_the_files_read_as_profiles_that_say_where_they_come_from(key: str) -> None:
    profile = example(key)
    described = {name: profile.meta[name] for name in ("model", "times", "device", "dtype")}
    assert described == {"model": key, "times": "roofline, not measured", "device": "v100", "dtype": "float32"}
    # The clock that came after the roofline; the README says so, and how far they are from one another.
    assert profile.roofline_s["v100"] == pytest.approx(profile.C.sum(), rel=0.3)
    assert profile.meta["fingerprint"] == profile.fingerprint
    assert len(set(profile.names)) == len(profile.layers) == len(profile)


def test_there_is_a_file_for_each_command_and_each_row_and_no_other() -> None:
    assert dict(COMMAND.findall(README)) == {key: f"{key}_v100.npz" for key in PARAMETERS}
    assert {row[0] for row in ROW.findall(README)} == {f"{key}_v100" for key in PARAMETERS}
    assert {path.name for path in EXAMPLES.iterdir()} == {
        *("README.md", "sweep.yaml", "notebooks"),
        *(f"{key}_v100.npz" for key in PARAMETERS),
    }


def test_files_are_small(key: str) -> None:
    assert (EXAMPLES / f"{key}_v100.npz").stat().st_size < 100_000


def test_models_have_the_published_number_of_parameters_and_the_readme_says_so(key: str) -> None:
    profile = example(key)
    assert profile.W.sum() == 4 * PARAMETERS[key]
    (row,) = (row[1:] for row in ROW.findall(README) if row[0] == f"{key}_v100")
    assert [int(number.replace(",", "")) for number in row] == [
        profile.meta["microbatch_size"],
        len(profile),
        PARAMETERS[key],
    ]


def test_nothing_crosses_a_cut_after_the_loss(key: str) -> None:
    assert example(key).A[-1] == 0


@pytest.mark.parametrize(("key", "width"), [("bert48", 1024), ("t5_base", 768), ("t5_3b", 1024), ("t5_11b", 1024)])
def test_the_smallest_cut_of_a_transformer_sends_its_hidden_states(key: str, width: int) -> None:
    profile = example(key)
    done = np.cumsum(profile.C) / profile.C.sum()
    assert profile.A[(done > 0.1) & (done < 0.9)].min() == 16 * 512 * width * 4


@pytest.mark.parametrize("key", ["bert48", "t5_base", "t5_3b", "t5_11b"])
def test_layers_that_do_the_same_cost_the_same(key: str) -> None:
    """All but the first and the last of an encoder or decoder, which also have what is next to them to work on."""
    profile = example(key)
    times: dict[str, dict[int, float]] = {}
    for layer, seconds in zip(profile.layers, profile.C, strict=True):
        if match := re.match(r"(.*block_)(\d+)", layer):
            stack = times.setdefault(match[1], {})
            stack[int(match[2])] = stack.get(int(match[2]), 0.0) + seconds
    for stack in times.values():
        inner = [stack[i] for i in range(1, len(stack) - 1)]
        assert np.allclose(inner, inner[0], rtol=0.02)


@pytest.mark.parametrize("key", ["vgg19", "t5_base"])
def test_the_command_traces_the_same_step_again(key: str, tmp_path: Path) -> None:
    for package in ("jax", "flax", "optax"):
        pytest.importorskip(package)
    again = tmp_path / f"{key}.npz"
    assert main([key, "--device", "v100", "-o", str(again)]) == 0
    remade, shipped = read_npz(again), example(key)
    for name in ("A", "W", "stash"):
        np.testing.assert_array_equal(getattr(remade, name), getattr(shipped, name), err_msg=name)
    assert (remade.names, remade.layers) == (shipped.names, shipped.layers)
    assert remade.C.sum() == pytest.approx(shipped.roofline_s["v100"])
    assert remade.meta["clock_s"] == shipped.meta["clock_s"]
