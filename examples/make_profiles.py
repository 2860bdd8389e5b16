"""Profiles of VGG-19 and BERT-large on a V100, computed without one (how: roofline.py).

python examples/make_profiles.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from example_models import VGG19, BertLarge
from roofline import Device, trace
from torch import Tensor, nn

from automap_models.core.profile import Profile
from automap_models.formats.npz import write_npz

V100 = Device("V100-SXM2-32GB", 15.7e12, 900e9, compute_efficiency=0.6, bandwidth_efficiency=0.75)
"""NVIDIA's data sheet: fp32 peak and HBM2 bandwidth."""


def vgg19(microbatch_size: int = 32) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """VGG-19 and one micro-batch of 224×224 images with labels, on the meta device."""
    with torch.device("meta"):
        labels = torch.zeros(microbatch_size, dtype=torch.int64)
        return VGG19(), (torch.zeros(microbatch_size, 3, 224, 224), labels)


def bert_large(microbatch_size: int = 16, sequence: int = 384) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """BERT-large and one micro-batch of sequences with masks and labels, on the meta device."""
    with torch.device("meta"):
        tokens, segments = (torch.zeros(microbatch_size, sequence, dtype=torch.int64) for _ in range(2))
        labels = torch.zeros(microbatch_size, dtype=torch.int64)
        return BertLarge(), (tokens, segments, torch.zeros(microbatch_size, sequence), labels)


MODELS = {"vgg19": ("VGG-19", vgg19), "bert-large": ("BERT-large", bert_large)}
"""File name → the model's name and how to build it with its inputs."""


def make_profile(key: str, device: Device = V100) -> Profile:
    """The profile of one of MODELS on a device."""
    name, build = MODELS[key]
    model, inputs = build()
    traced = trace(model, inputs, device)
    booked = traced.instructions
    return Profile.create(
        C=[i.forward_s + i.backward_s for i in booked],
        A=traced.crossing_bytes(),
        W=[i.weights_bytes for i in booked],
        C_fwd=[i.forward_s for i in booked],
        stash=[i.stash_bytes for i in booked],
        names=[f"{i.operator}.{index}" for index, i in enumerate(booked)],
        layers=[i.layer for i in booked],
        meta={
            "model": name,
            "source": "computed by examples/make_profiles.py: roofline, not measured",
            "device": device.name,
            "efficiency": {"compute": device.compute_efficiency, "bandwidth": device.bandwidth_efficiency},
            "microbatch_size": inputs[0].shape[0],
            "input_shape": list(inputs[0].shape),
            "dtype": "float32",
            "torch": torch.__version__.split("+")[0],
        },
    )


def main() -> None:
    """Write both profiles."""
    parser = argparse.ArgumentParser(description="Compute the example profiles.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="folder to write to")
    folder = parser.parse_args().out
    for key in MODELS:
        profile = make_profile(key)
        path = folder / f"{key}_v100.npz"
        write_npz(path, profile)
        print(f"{path}: {len(profile)} instructions, {profile.C.sum() * 1e3:.1f} ms a micro-batch")


if __name__ == "__main__":
    main()
