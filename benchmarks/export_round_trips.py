"""Random plans are written for every target of automap export, and the target's own code reads them back.

Plans are those that the tests draw (tests/drawn_plans.py): strategies, plans of stages of whole blocks, sharding plans.
One that a target has no words for is drawn again. `check` of automap export compares what the target's code read with
the plan. For torch-split-spec, torch.distributed.pipelining cuts a model by the program's split_spec, too, and every
stage has to hold the parameters of the modules between two drawn cuts; for hf, transformers' Llama takes the plan.

torch, JAX and transformers are in the development packages. The other frameworks ask for a GPU's worth of libraries,
of which their parsers need none, so that they go best into an environment of their own:

    pip install --no-deps megatron-core torchtitan hetu-galvatron accelerate
    DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation deepspeed
    pip install einops hjson py-cpuinfo spmd_types tyro wheel

A target whose package is missing is left out with a sentence.

    python benchmarks/export_round_trips.py
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, print_rows

from automap_models.core.cluster import Cluster
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.export.exporter import write_files
from automap_models.export.model_blocks import Inexpressible
from automap_models.export.target import Mismatch, Source, Target
from automap_models.export.targets import TARGETS, target_by_name

sys.path.insert(0, str(ROOT / "tests"))
drawn_plans: Any = import_module("drawn_plans")

Draw = Callable[[np.random.Generator, Path], Source]
CLUSTER = Cluster(2, 4, 1e11, 1e10, 1e12, "drawn")
BLOCKS, SAMPLES = 6, 4
"""Of the model that torch cuts, and of its micro-batch."""


@dataclass
class Tally:
    """What became of a target's plans."""

    read: int = 0
    refused: int = 0
    mismatches: int = 0
    parser: str = ""


def strategy(rng: np.random.Generator, _: Path) -> Any:
    return drawn_plans.strategy_source(drawn_plans.draw_strategy(rng))


def data_parallel(rng: np.random.Generator, _: Path) -> Any:
    return drawn_plans.strategy_source(drawn_plans.draw_data_parallel(rng))


def stages(rng: np.random.Generator, folder: Path) -> Any:
    return drawn_plans.draw_stages(rng, CLUSTER, folder).source


def sharding(rng: np.random.Generator, _: Path) -> Source:
    source: Source = drawn_plans.sharding_source(drawn_plans.draw_sharding(rng))
    return source


def llama(rng: np.random.Generator, _: Path) -> Any:
    return drawn_plans.llama_plan(*drawn_plans.draw_llama(rng))


@cache
def torch_model() -> tuple[Any, Any, Any]:
    """A chain of layers and activations, its inputs and its profile."""
    import torch
    from torch import nn

    from automap_models.formats.hardware_yaml import read_device
    from automap_models.torch_export.profile import profile_module

    torch.set_num_threads(1)
    model = nn.Sequential(*(part for _ in range(BLOCKS) for part in (nn.Linear(4, 4), nn.Tanh())))
    inputs = torch.randn(SAMPLES, 4)
    return model, inputs, profile_module(model, (inputs,), {}, device=read_device("v100"))


def torch_stages(rng: np.random.Generator, folder: Path) -> Any:
    """Cuts after any of the layers and activations."""
    _, _, profile = torch_model()
    count = int(rng.choice([1, 2, 4]))
    cuts = np.sort(rng.choice(len(profile) - 1, count - 1, replace=False))
    schedule = str(rng.choice(["1f1b", "gpipe", "1f1b-deep"]))
    cluster = Cluster(1, 4, 1e11, 1e10, 1e12, "drawn")
    problem = StagedProblem(profile, cluster, stages=count, micro_batches=8, schedule=schedule)
    device_cuts = tuple(range(4 // count, 4, 4 // count))
    plan = StagedPlan(tuple(map(int, cuts)), device_cuts, 8, "drawn")
    return drawn_plans.staged_source(problem, plan, folder)


def cut_by_torch(source: Any, path: Path) -> None:
    """torch.distributed.pipelining cuts the model by the program's split_spec.

    Raises:
        Mismatch: a stage holds other parameters than the instructions between two cuts.
    """
    import runpy

    from torch.distributed.pipelining import pipeline

    model, inputs, profile = torch_model()
    spec = runpy.run_path(str(path))["SPLIT_SPEC"]
    pipe = pipeline(copy.deepcopy(model), (inputs,), split_spec=spec)
    parameters = [[name for name, _ in pipe.get_stage_module(s).named_parameters()] for s in range(pipe.num_stages)]
    ends = [*source.result.required_plan().cuts, len(profile) - 1]
    last = [int(profile.name(end).rpartition(" ")[2]) for end in ends[:-1]] + [2 * BLOCKS - 1]
    begins = [0, *(end + 1 for end in last[:-1])]
    expected = [
        [f"{layer}.{kind}" for layer in range(begin, end + 1) if layer % 2 == 0 for kind in ("weight", "bias")]
        for begin, end in zip(begins, last, strict=True)
    ]
    if parameters != expected:
        raise Mismatch(f"stages of {profile.model}: torch cuts {parameters}, the plan {expected}")


@cache
def llama_model() -> Any:
    """Transformers' own, of one layer and without values."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def taken_by_llama(source: Any, path: Path) -> None:
    """The setter of `tp_plan` checks styles and modules.

    Raises:
        Mismatch: another module is divided than the plan divides.
    """
    import json

    read = json.loads(path.read_text("utf-8"))
    styles = {f"model.{name}": style for name, style in read["base_model_tp_plan"].items()} | read["tp_plan"]
    llama_model().tp_plan = styles
    (dims,) = source.plan.sharding.dims
    names = [variable.name for variable in source.plan.sharding.variables]
    divided = {
        name.removesuffix(".weight").replace(".0.", ".*.")
        for name, dim in zip(names, dims, strict=True)
        if dim >= 0 and ".1." not in name and ".2." not in name
    }
    if set(llama_model().tp_plan) != divided:
        raise Mismatch(f"modules: transformers divides {set(llama_model().tp_plan)}, the plan {divided}")


DRAWS: dict[str, tuple[Draw, ...]] = {
    "torch-csv": (strategy, stages),
    "torch-split-spec": (torch_stages,),
    "torchtitan": (strategy, stages),
    "megatron": (strategy, stages),
    "megatron-bridge": (strategy, stages),
    "deepspeed": (strategy, stages),
    "accelerate": (data_parallel,),
    "galvatron": (strategy, stages),
    "jax": (sharding, stages),
    "hf": (llama,),
}
"""Target → kinds of plans, equally many of each."""
FURTHER: dict[str, Callable[[Source, Path], None]] = {"torch-split-spec": cut_by_torch, "hf": taken_by_llama}
"""Target → what its own code does with a file beside `check`."""


def round_trips(target: Target, draw: Draw, plans: int, rng: np.random.Generator, tally: Tally) -> None:
    """That many plans of one kind.

    Raises:
        BadInput: the target's code is not installed.
    """
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"plan{target.ending}"
        while done < plans:
            source = draw(rng, Path(folder))
            try:
                write_files(path, target.write(source, path))
            except Inexpressible:
                tally.refused += 1
                continue
            done += 1
            try:
                tally.parser = target.check(source, path)
                if target.name in FURTHER:
                    FURTHER[target.name](source, path)
                tally.read += 1
            except Mismatch as mismatch:
                tally.mismatches += 1
                print(f"{target.name}: {mismatch}", file=sys.stderr)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what frameworks print when they are imported, or say of a machine without GPUs."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def main() -> None:
    """Print a row a target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", nargs="+", choices=tuple(TARGETS), default=tuple(TARGETS))
    parser.add_argument("--plans", type=int, default=1000, help="that every target reads (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    def rows() -> Iterator[tuple[str, ...]]:
        for name in arguments.to:
            kinds, tally, start_s = DRAWS[name], Tally(), time.process_time()
            rng, plans = np.random.default_rng(arguments.seed), -(-arguments.plans // len(kinds))
            try:
                with quiet():
                    for draw in kinds:
                        round_trips(target_by_name(name), draw, plans, rng, tally)
            except BadInput as error:
                print(f"{name}: left out: {error}", file=sys.stderr)
                continue
            words = ", ".join(draw.__name__.replace("torch_", "") for draw in kinds)
            counts = map(str, (tally.read, tally.mismatches, tally.refused))
            yield (name, tally.parser, words, *counts, f"{time.process_time() - start_s:.0f}")

    headings = ("target", "read by", "kinds of plans", "read as planned", "mismatches", "no words for", "seconds")
    print_rows(headings, rows())


if __name__ == "__main__":
    main()
