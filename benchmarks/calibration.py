"""How well constants that are fitted to profiles of one machine price models of other sizes on it.

GPT-2s of transformers are profiled on this machine's processor with one thread (automap profile --measure): forward
pass, backward pass and Adam's update in fp32. The constants of a device are fitted to those of FITTED, and those of
OTHERS are priced, of which the fit knows nothing. `left out` is the error of a fitted profile when the constants are
fitted to the others.

    OMP_NUM_THREADS=1 python benchmarks/calibration.py [--peak 192e9] [--bandwidth 30e9] [--cache FOLDER]

The peaks are those of one core. Profiles that the folder holds are not measured again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import print_rows

from automap_models.core.device import USUAL, Device
from automap_models.core.profile import Profile
from automap_models.formats.npz import read_npz, write_npz
from automap_models.simulate.calibration import fit_constants, left_out_s
from automap_models.simulate.observations import MeasuredKind, Observation, pass_observation
from automap_models.workloads.measured import measured_passes, passes_work
from automap_models.workloads.source import Source, SourceKind, profile_source


class Sizes(NamedTuple):
    """Of a GPT-2, and of its micro-batch."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    samples: int
    tokens: int

    @property
    def name(self) -> str:
        """What the table and the file are called."""
        return f"{self.width}x{self.layers}, {self.samples} × {self.tokens} tokens, {self.vocabulary} words"


FITTED = (
    *(Sizes(256, 4, 4, 8192, 4, 128), Sizes(512, 2, 8, 8192, 2, 128), Sizes(256, 2, 4, 2048, 2, 512)),
    *(Sizes(128, 6, 2, 4096, 8, 64), Sizes(384, 3, 6, 16384, 1, 256), Sizes(768, 2, 12, 4096, 1, 128)),
)
OTHERS = (
    *(Sizes(512, 4, 8, 16384, 4, 128), Sizes(256, 8, 8, 8192, 2, 256)),
    *(Sizes(640, 3, 10, 8192, 1, 512), Sizes(192, 12, 3, 4096, 4, 64)),
)


def profiled(sizes: Sizes, folder: Path, repeats: int) -> Profile:
    """The measured profile of a GPT-2, from the folder where it is there."""
    path = folder / ("-".join(map(str, sizes)) + ".npz")
    if not path.exists():
        source = Source(sizes.name, SourceKind.FACTORY, model=gpt2(sizes))
        measuring = {"repeats": repeats, "warmup": 2}
        write_npz(path, profile_source(source, machine(1e11, 1e10), measuring, lambda _: None, lambda *_: None))
    return read_npz(path)


def gpt2(sizes: Sizes) -> tuple[Any, dict[str, Any]]:
    """A model of transformers on the meta device, which allocates nothing, and its inputs with labels."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(1)
    names = ("n_embd", "n_layer", "n_head", "vocab_size")
    fields: dict[str, Any] = dict(zip(names, sizes, strict=False))
    fields |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    fields |= dict.fromkeys(("bos_token_id", "eos_token_id"), None)
    config = GPT2Config(
        **fields,
        n_positions=1024,
        use_cache=False,
    )
    with torch.device("meta"):
        ids = torch.ones(sizes.samples, sizes.tokens, dtype=torch.int64)
        return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def machine(peak: float, bytes_per_s: float) -> Device:
    """One core."""
    return Device("core", {"float32": peak}, peak, bytes_per_s)


HEADINGS = ("profile", "step", "priced", "error", "left out", "forward", "backward", "update")


def print_table(fitted: list[Observation], others: list[Observation], device: Device) -> None:
    """Print the errors of all profiles, and the constants."""
    kind = MeasuredKind(fitted, [device])
    constants = fit_constants(kind)
    omitted_s = left_out_s(kind, asdict(constants), asdict(USUAL))
    fitted_device, errors = replace(device, step=constants), []

    def rows() -> Iterator[tuple[str, ...]]:
        for k, observation in enumerate((*fitted, *others)):
            parts, price = observation.parts_s, observation.price_s(fitted_device, {})
            step_s = float(parts.sum())
            errors.append(price.sum() / step_s - 1)
            without = f"{100 * (omitted_s[k] / step_s - 1):+.0f} %" if k < len(fitted) else ""
            by_part = [f"{100 * (p / m - 1):+.0f} %" for p, m in zip(price, parts, strict=True)]
            cells = f"{1e3 * step_s:.1f} ms", f"{1e3 * price.sum():.1f} ms", f"{100 * errors[-1]:+.0f} %", without
            yield (observation.name, *cells, *by_part)

    print_rows(HEADINGS, rows())
    for name, some in (("fitted", errors[: len(fitted)]), ("others", errors[len(fitted) :])):
        print(f"median |error|, {name}: {100 * float(np.median(np.abs(some))):.1f} %")
    print(", ".join(f"{name} {value:.3g}" for name, value in asdict(constants).items()))


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peak", type=float, default=192e9, help="FLOP/s of a core in float32")
    parser.add_argument("--bandwidth", type=float, default=30e9, help="bytes/s of the memory")
    parser.add_argument("--repeats", type=int, default=9, help="steps of which the median counts")
    parser.add_argument("--cache", type=Path, help="folder of measured profiles (default: temporary)")
    arguments = parser.parse_args()
    folder = arguments.cache or Path(tempfile.mkdtemp(prefix="calibration-"))
    folder.mkdir(parents=True, exist_ok=True)

    def observed(sizes: Sizes) -> Observation:
        passes = measured_passes(profiled(sizes, folder, arguments.repeats), sizes.name)
        return pass_observation(passes, passes_work(passes))

    device = machine(arguments.peak, arguments.bandwidth)
    print_table([*map(observed, FITTED)], [*map(observed, OTHERS)], device)


if __name__ == "__main__":
    main()
