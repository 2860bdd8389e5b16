"""Where modules and repeated blocks end, on profiles whose blocks are known because they were built."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.layers import block_boundaries, boundaries, loop_notes, scopes
from automap_models.core.profile import Profile
from automap_models.errors import BadInput


def profile_of(layers: Sequence[str], W: Sequence[float] = (), names: Sequence[str] = ()) -> Profile:
    n = len(layers) or len(names)
    return Profile.create(np.ones(n), np.ones(n), W or np.ones(n), layers=layers, names=names)


def test_the_scopes_of_a_path_are_the_modules_that_hold_it() -> None:
    assert scopes("encoder/block_3/attention") == ("encoder", "encoder/block_3", "encoder/block_3/attention")
    assert scopes("model.layers.0") == ("model", "model.layers", "model.layers.0")
    assert scopes("") == ()


@given(
    blocks=st.integers(1, 6),
    parts=st.lists(st.sampled_from(["attention", "mlp", "norm.weight", "experts.0", "experts.1", ""]), min_size=1),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    prefix=st.sampled_from(["", "model.layers.", "transformer.h.", "encoder/block_", "layer"]),
)
def test_blocks_and_their_pattern_give_the_cuts_between_them(
    blocks: int, parts: list[str], before: int, after: int, prefix: str
) -> None:
    mark = "/" if "/" in prefix else "."
    block = [f"{{}}{mark}{part}" if part else "{}" for part in parts]
    named = [part.format(f"{prefix}{k}") for k in range(blocks) for part in block]
    layers = [*["embedding"] * before, *named, *["head"] * after]
    n = len(layers)
    expected = tuple(before + (k + 1) * len(block) - 1 for k in range(blocks))
    expected = tuple(cut for cut in expected if cut < n - 1)
    if n < 2:
        return
    if expected:
        assert boundaries(profile_of(layers), f"{prefix}[0-9]*") == expected
    if blocks > 1:
        assert block_boundaries(profile_of(layers)) == expected


def test_blocks_of_encoder_and_decoder_are_both_found_and_what_repeats_inside_is_not() -> None:
    layers = [
        *("embedding", "encoder/block_0/wi_0", "encoder/block_0/wi_1", "encoder/block_1/wi_0", "encoder/block_1/wi_1"),
        *("encoder/norm", "decoder/block_0", "decoder/block_1", "head"),
    ]
    assert block_boundaries(profile_of(layers)) == (2, 4, 6, 7)
    with pytest.raises(
        BadInput, match=r"`target`: megatron takes blocks of one series, and .* has decoder.* and encoder"
    ):
        block_boundaries(profile_of(layers), "megatron")
    assert boundaries(profile_of(layers), "decoder/*") == (6, 7)
    assert boundaries(profile_of(layers), "encoder") == (5,)


def test_stages_of_a_convolutional_model_are_blocks_only_where_they_are_alike() -> None:
    """As in ResNet: layer1 and layer2 differ in width, the blocks of each but the first are the same."""
    layers = ["stem", "layer1.0", "layer1.1", "layer1.2", "layer2.0", "layer2.1", "layer2.2", "fc"]
    W = [1.0, 5.0, 4.0, 4.0, 20.0, 16.0, 16.0, 3.0]
    assert block_boundaries(profile_of(layers, W)) == (1, 2, 3, 4, 5, 6)


def test_instructions_without_a_layer_end_no_block() -> None:
    layers = ["h.0.a", "", "h.0.b", "", "h.1.a", "h.1.b", "", "head"]
    assert block_boundaries(profile_of(layers)) == (2, 5)


def test_two_small_layers_with_numbers_are_no_blocks() -> None:
    layers = ["LayerNorm_0", *(f"h.{k}" for k in range(3)), "LayerNorm_1"]
    profile = Profile.create([0.01, 1.0, 1.0, 1.0, 0.01], np.ones(5), np.ones(5), layers=layers)
    assert block_boundaries(profile) == (1, 2, 3)


def test_names_serve_where_there_are_no_layers() -> None:
    profile = profile_of((), names=["embedding", "block0", "block1", "head"])
    assert block_boundaries(profile) == boundaries(profile, "block*") == (1, 2)


@pytest.mark.parametrize(
    ("layers", "names", "message"),
    [
        (["a", "b", "c"], (), "no blocks repeat among the layers of unnamed model; give a pattern"),
        (["Conv2d(3, 3, p=0.1)"] * 3, (), "no blocks repeat"),
        (["layer0", "layer1", "head"], (), None),
        ((), (), "names neither layers nor instructions"),
    ],
)
def test_a_model_without_blocks_says_so(layers: Sequence[str], names: Sequence[str], message: str | None) -> None:
    profile = profile_of(layers, names=names) if layers else Profile.create([1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    if message is None:
        assert block_boundaries(profile) == (0, 1)
        return
    with pytest.raises(BadInput, match=message):
        block_boundaries(profile)


def test_a_pattern_that_matches_nothing_names_the_nearest_layers() -> None:
    layers = ["embed", "model.layers.0.mlp", "model.layers.1.mlp", "head"]
    with pytest.raises(BadInput, match=r"^`cut_at`: 'model.layer.\*' matches no layer; .*model\.layers\.1") as refused:
        boundaries(profile_of(layers), "model.layer.*")
    assert "\n" not in str(refused.value)
    with pytest.raises(BadInput, match="'head' matches only head, which ends with the model"):
        boundaries(profile_of(layers), "head")


def test_loops_that_no_cut_divides_are_named_with_their_layer() -> None:
    profile = Profile.create(
        [80.0, 1.0, 1.0, 18.0],
        np.ones(4),
        np.ones(4),
        names=["while.1", "while.2", "while.3", "dot.4"],
        layers=["encoder", "mask", "decoder", ""],
        meta={"loops": ["while.1", "while.2", "while.3"], "loops_of_unknown_length": ["while.3", "while.9"]},
    )
    assert list(loop_notes(profile)) == [
        "the loop while.1 in layer encoder takes 80.0 % of the time and is one instruction: no cut divides it",
        "the loop while.3 in layer decoder runs until its data say so: it counts as one round, and no cut divides it",
        "loops that run until their data say so count as one round: while.9",
    ]
