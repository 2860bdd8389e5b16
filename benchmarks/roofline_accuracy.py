"""The V100's clock against what others measured on V100: time computed over time measured.

    OMP_NUM_THREADS=1 python benchmarks/roofline_accuracy.py --profiles FOLDER

FOLDER holds profiles measured by PipeDream (vgg16, resnet50; PyTorch) and DAPPLE (bert-24 with 6 sequences of 384
tokens, bert-48 with 2; TensorFlow), which are not part of the repository. The models are this package's own, traced at
the measured batch: convolutional networks as a whole but for their input pipeline, BERT per encoder layer (the middle
one). The clock assumes XLA's fusion.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from common import MEASURED_PROFILES, files_of, print_rows

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.core.profile import Profile
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_device
from automap_models.hlo.adapter import trace
from automap_models.hlo.clock import clock_times
from automap_models.hlo.graph import instruction_graph
from automap_models.workloads.convolutional import RESNET_50, VGG_19
from automap_models.workloads.sizes import BERT_48, Architecture
from automap_models.workloads.training import training_step

VGG_16 = replace(VGG_19, blocks=((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)))


@dataclass(frozen=True)
class Case:
    """A measured profile and the model that it is of."""

    file: str
    architecture: Architecture
    labels: tuple[int, ...]
    ours: str = ""
    theirs: str = ""


CASES = (
    Case("bert-24_b6", replace(BERT_48, layers=3), (6, 384), "block_1", "layer_12"),
    Case("bert-48_b2", replace(BERT_48, layers=3), (2, 384), "block_1", "layer_24"),
    Case("vgg16", VGG_16, (128,)),
    Case("resnet50", RESNET_50, (128,)),
)
"""Layers whose name begins with `ours`, or is `theirs`, count; all but the update and the input pipeline without."""


def traced(case: Case) -> InstructionGraph:
    return instruction_graph(trace(training_step(case.file, case.architecture, case.labels, "float32")))


def computed_ms(graph: InstructionGraph, layers: str) -> tuple[float, float]:
    """Forward and backward time by the clock of the layers with that prefix."""
    times_s = clock_times(graph, read_device("v100"))
    counted = np.array([layer.startswith(layers) for layer in graph.layers])
    forward, backward = (
        float(times_s[counted & (graph.phases == phase)].sum()) for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    return 1e3 * forward, 1e3 * backward


def measured_ms(profile: Profile, layer: str) -> tuple[float, float]:
    """Forward and backward time of one layer, or of everything but the input pipeline."""
    counted = np.array([name == layer if layer else not name.startswith("Input") for name in profile.layers])
    forward = float(profile.C_fwd[counted].sum())
    return 1e3 * forward, 1e3 * (float(profile.C[counted].sum()) - forward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=Path, default=None, help="folder of the measured profiles")
    folder = parser.parse_args().profiles
    needed = [f"{case.file}.txt" for case in CASES]
    paths = files_of(folder, "--profiles FOLDER", MEASURED_PROFILES, needed)

    def rows() -> Iterator[tuple[str, ...]]:
        for case, path in zip(CASES, paths, strict=True):
            computed, measured = computed_ms(traced(case), case.ours), measured_ms(read_profile(path), case.theirs)
            pairs = [(f"{a:.2f} / {b:.2f}", f"{a / b:.2f}") for a, b in zip(computed, measured, strict=True)]
            part = "an encoder layer" if case.ours else "all"
            yield (case.file, part, *pairs[0], *pairs[1], f"{sum(computed) / sum(measured):.2f}")

    print_rows(("profile", "part", "forward ms", "ratio", "backward ms", "ratio", "both, ratio"), rows())


if __name__ == "__main__":
    main()
