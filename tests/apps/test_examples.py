"""The example profiles are what their script computes, and the models are the published ones."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from automap_models.core.profile import Profile
from automap_models.formats.npz import read_npz

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = {"vgg19": EXAMPLES / "vgg19_v100.npz", "bert-large": EXAMPLES / "bert-large_v100.npz"}
BERT_LARGE_PARAMETERS = (
    (30522 + 512 + 2) * 1024  # word, position and segment embeddings
    + 2 * 1024  # their normalisation
    + 24 * (4 * (1024 * 1024 + 1024) + 2 * (1024 * 4096) + 4096 + 1024 + 4 * 1024)  # attention, feed-forward, norms
    + (1024 * 1024 + 1024)  # pooler
    + 2 * (1024 + 1)  # the classifier's head
)


@pytest.fixture(params=list(FILES))
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_profiles(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module("make_profiles")


def test_both_files_read_as_profiles_that_say_where_they_come_from(key: str) -> None:
    profile = read_npz(FILES[key])
    assert "computed by examples/make_profiles.py" in str(profile.meta["source"])
    assert str(profile.meta["device"]).startswith("V100")
    assert profile.meta["fingerprint"] == profile.fingerprint
    assert len(set(profile.names)) == len(profile.layers) == len(profile)


def test_files_are_small(key: str) -> None:
    assert FILES[key].stat().st_size < 200_000


def test_vgg19_has_the_published_number_of_parameters() -> None:
    assert read_npz(FILES["vgg19"]).W.sum() == 143_667_240 * 4


def test_bert_large_has_the_published_number_of_parameters() -> None:
    assert BERT_LARGE_PARAMETERS - 2 * 1025 == 335_141_888
    assert read_npz(FILES["bert-large"]).W.sum() == BERT_LARGE_PARAMETERS * 4


def test_nothing_crosses_a_cut_after_the_loss(key: str) -> None:
    assert read_npz(FILES[key]).A[-1] == 0


def test_a_cut_between_encoder_layers_sends_the_hidden_states_and_the_mask() -> None:
    profile = read_npz(FILES["bert-large"])
    hidden, mask = 16 * 384 * 1024 * 4, 16 * 384 * 4
    last = [max(_of_layer(profile, f"encoder/layer_{i}")) for i in range(24)]
    assert profile.A[last].tolist() == [hidden + mask] * 23 + [hidden]


def test_a_residual_connection_counts_where_the_cut_runs_below_it() -> None:
    profile = read_npz(FILES["bert-large"])
    inside = profile.layers.index("encoder/layer_3/intermediate")
    assert profile.A[inside] == 16 * 384 * (1024 + 4096) * 4 + 16 * 384 * 4


def test_vgg19_keeps_each_activation_once() -> None:
    profile = read_npz(FILES["vgg19"])
    images = 32 * 3 * 224 * 224 * 4
    block1 = 32 * 64 * 224 * 224 * 4
    pooled = block1 // 4
    kept = dict(zip(profile.layers, profile.stash, strict=True))
    assert kept["features/block1_conv1"] == images
    assert kept["features/block1_relu1"] == block1
    assert kept["features/block1_conv2"] == 0  # its input is what the ReLU before it keeps
    assert kept["features/block1_pool"] == 2 * pooled  # int64 indices
    assert kept["features/block2_conv1"] == pooled


def test_the_first_convolution_needs_no_gradient_of_the_images() -> None:
    profile = read_npz(FILES["vgg19"])
    backward = profile.C - profile.C_fwd
    assert backward[0] < 1.5 * profile.C_fwd[0]
    assert backward[2] == pytest.approx(2 * profile.C_fwd[2], rel=1e-12)


def test_encoder_layers_cost_the_same_but_for_the_last() -> None:
    profile = read_npz(FILES["bert-large"])
    times = [profile.C_fwd[_of_layer(profile, f"encoder/layer_{i}")].sum() for i in range(24)]
    assert np.allclose(times, times[0], rtol=1e-12)


@pytest.mark.slow
def test_the_script_computes_these_very_arrays(key: str, make_profiles: ModuleType) -> None:
    stored, again = read_npz(FILES[key]), make_profiles.make_profile(key)
    if again.meta["torch"] != stored.meta["torch"]:
        pytest.skip(f"the files were made with torch {stored.meta['torch']}: releases differ in their operators")
    assert again.fingerprint == stored.fingerprint
    assert (again.names, again.layers) == (stored.names, stored.layers)


def test_vgg19_multiplies_as_often_as_published(make_profiles: ModuleType) -> None:
    """19.6 billion multiply-adds an image; the backward pass twice that, but for the gradient of the images."""
    model, inputs = make_profiles.vgg19()
    booked = make_profiles.trace(model, inputs, make_profiles.V100).instructions
    forward, backward = (sum(getattr(i, name) for i in booked) for name in ("flop", "backward_flop"))
    assert forward / 2 / 32 == pytest.approx(19.6e9, rel=0.005)
    assert backward == 2 * forward - booked[0].flop


def test_bert_large_multiplies_as_often_as_its_matrices_say(make_profiles: ModuleType) -> None:
    model, inputs = make_profiles.bert_large(microbatch_size=2, sequence=64)
    booked = make_profiles.trace(model, inputs, make_profiles.V100).instructions
    tokens = 2 * 64
    encoder = 24 * tokens * (4 * 1024**2 + 2 * 1024 * 4096 + 2 * 64 * 1024)
    assert sum(i.flop for i in booked) == 2 * (encoder + 2 * (1024**2 + 2 * 1024))


def test_bert_layer_times_are_those_measured_on_a_v100(shared_data: Path) -> None:
    """DAPPLE measured the same layer for 6 sequences; a roofline is trusted to half and double."""
    text = (shared_data / "v100_profiles" / "bert-24_b6.txt").read_text()
    forward, backward = _times_ms(text)["layer_10"][0]
    profile = read_npz(FILES["bert-large"])
    of_layer = _of_layer(profile, "encoder/layer_10")
    scale = 1e3 * 6 / 16
    assert 0.5 < profile.C_fwd[of_layer].sum() * scale / forward < 2
    assert 0.5 < (profile.C - profile.C_fwd)[of_layer].sum() * scale / backward < 2


def test_vgg_block_times_are_those_measured_on_a_v100(shared_data: Path) -> None:
    """PipeDream measured VGG-16 for 128 images; VGG-19 shares its layers up to the third of each block."""
    measured = _times_ms((shared_data / "v100_profiles" / "vgg16.txt").read_text())
    profile = read_npz(FILES["vgg19"])
    convolution = {layer: i for i, layer in enumerate(profile.layers) if "_conv" in layer}
    shared = [layer for layer in convolution if not layer.endswith("_conv4") and layer != "features/block1_conv1"]
    forward, backward = np.sum([t for name, ts in measured.items() if _convolves(name) for t in ts], axis=0)
    at = [convolution[layer] for layer in shared]
    scale = 1e3 * 128 / 32
    assert 0.5 < profile.C_fwd[at].sum() * scale / forward < 2
    assert 0.5 < (profile.C - profile.C_fwd)[at].sum() * scale / backward < 2


def _of_layer(profile: Profile, path: str) -> list[int]:
    return [i for i, layer in enumerate(profile.layers) if layer == path or layer.startswith(f"{path}/")]


def _convolves(name: str) -> bool:
    return name.startswith("Conv2d(") and not name.startswith("Conv2d(3,")


def _times_ms(graph: str) -> dict[str, list[tuple[float, float]]]:
    """Forward and backward milliseconds of all nodes of a description."""
    times = defaultdict(list)
    pattern = r"node\d+ -- (.*) -- forward_compute_time=([\d.]+), backward_compute_time=([\d.]+)"
    for name, forward, backward in re.findall(pattern, graph):
        times[name].append((float(forward), float(backward)))
    return times
