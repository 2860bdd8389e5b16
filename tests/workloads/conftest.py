"""Every kind of workload in a size that runs in a second."""

from __future__ import annotations

import pytest

from automap_models.workloads.convolutional import ResNetConfig, VggConfig
from automap_models.workloads.sizes import Architecture, BertConfig, DecoderConfig, T5Config

TINY: dict[str, tuple[Architecture, tuple[int, ...]]] = {
    "bert": (BertConfig(width=16, heads=2, layers=1, vocabulary=40, positions=12), (2, 10)),
    "gpt2": (DecoderConfig(width=16, heads=2, layers=1, vocabulary=40, positions=12), (2, 10)),
    "t5": (T5Config(width=16, heads=2, head_width=6, feed_forward=24, layers=1, vocabulary=40), (2, 10)),
    "moe": (
        T5Config(width=16, heads=2, head_width=6, feed_forward=24, layers=2, vocabulary=40, experts=4),
        (2, 10),
    ),  # in block 1
    "vgg": (VggConfig(blocks=((4, 1), (6, 2)), width=16, classes=5, image=8), (4,)),
    "resnet": (ResNetConfig(stages=(1, 2), width=4, classes=5, image=32), (4,)),
}


"""Tested in the slow tests."""


@pytest.fixture(params=TINY, scope="module")
def tiny(request: pytest.FixtureRequest) -> tuple[Architecture, tuple[int, ...]]:
    """Sizes of a model, and the shape of its labels; tests of one model run in a row and share what they have built."""
    return TINY[request.param]
