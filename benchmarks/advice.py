"""Whether anything that people do without automap, or with its options, beats what it advises by default.

For each profile on each cluster the plan that `automap-infer PROFILE --topo CLUSTER` makes is held against:

    data parallelism     one stage
    uniform S            equally many instructions on D·s // S devices, for every S up to 2 × nodes
    megatron S           equally many blocks, the embedding with the first and the head with the last
    torchtitan S         the same, the embedding and the head counting as a block each (generate_llm_fqn_per_model_part)
    deepspeed S          the smallest largest sum of parameters, PipelineModule's partition_method="parameters"
    cost balanced S      the smallest largest forward + backward time, as in PyTorch's pull request 179212
    fixed S              `--stages S`, for every S up to 2 × nodes
    restricted           `--equal-replicas --cut-at blocks`
    fixed M              `--micro-batches M` with a global batch, for every divisor M, on some profiles

Frameworks give every stage equally many devices, so theirs are tried for every S that divides these. They cut between
blocks; where none repeat, between layers. Both kinds of balance are tried between layers, too, where these are few.

With `--random N` the rows are instead those of N random models on random clusters of up to 8 devices, of which every
S and every M is held against `--stages auto --micro-batches auto`.

All are steps that are simulated under 1F1B with whole samples, of plans that fit the memory. `ratio` is the best
rival's step over the default's: below 1 a rival is faster. The default takes fewer stages as long as that makes the
step at most 0.5 % longer (`--min-gain`), so a rival of more stages beats it only by more than that; any other rival
beats it by any amount. `gap` is how far the step is above the proven bound. Budgets are counted seconds, so that the
machine and other work on it change nothing; `s` is the planner's processor time.

    OMP_NUM_THREADS=1 python benchmarks/advice.py [--profiles bert48_v100 …] [--clusters A B …] [--shared FOLDER]
    OMP_NUM_THREADS=1 python benchmarks/advice.py --random 30
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import EXAMPLES, hugging_face

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import BLOCKS, Constraints
from automap_models.core.microbatch import required_size
from automap_models.core.profile import Profile
from automap_models.core.result import TIE
from automap_models.core.schedules import DEFAULT_MIN_GAIN, DEFAULT_SCHEDULE
from automap_models.core.staged import DEFAULT_MICRO_BATCHES, StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.formats.npz import write_npz
from automap_models.planners.base import Deadline
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.space import divisors, planning_problem
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.costs import StagedResult
from automap_models.planners.staged.frameworks import block_ends, framework_plans, layer_ends
from automap_models.simulate.step import step_cost

DEVICES = {"A": "v100", "B": "v100", "C": "v100", "p4d-4": "a100", "dgx-h100-4": "h100"}
"""Cluster → the devices for which Hugging Face models are profiled; profiles in files keep their times."""
DTYPES = {"v100": "float32", "a100": "bfloat16", "h100": "bfloat16"}
SAMPLES, TOKENS = 32, 512
WITH_BATCH = ("bert48_v100", "t5_base_v100", "vgg19_v100", "gpt2")
"""Profiles with a row for every M, on the first of BATCH_CLUSTERS that is asked for."""
BATCH_CLUSTERS = ("C", "A", "B")

LLAMA_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 8}
LLAMA_1B = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**LLAMA_7B, "vocab_size": 32000, "tie_word_embeddings": False}),
    "llama_tied": (
        "Llama",
        {**LLAMA_1B, "num_hidden_layers": 8, "vocab_size": 128256, "tie_word_embeddings": True},
    ),
    "gpt2": ("GPT2", {"n_layer": 8, "n_embd": 1024, "n_head": 16}),
    "bert": (
        "Bert",
        {"num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "mixtral": ("Mixtral", {"num_hidden_layers": 4}),
}
"""Name → family and sizes of its configuration: real widths, few layers."""


@dataclass(frozen=True)
class Rival:
    """Something else that one could do: its name, stages and step."""

    name: str
    stages: int
    step_s: float

    def beats(self, step_s: float, stages: int) -> bool:
        """Whether it is faster than a plan, by more than the gain that a further stage has to bring."""
        tolerance = DEFAULT_MIN_GAIN if self.stages > stages else TIE
        return step_s > self.step_s * (1.0 + tolerance) * (1.0 + TIE)


def profile_of(name: str, device: str) -> Profile:
    """The profile of a model built from its configuration."""
    from automap_models.torch_export.profile import profile_module

    model, inputs = hugging_face(*MODELS[name], SAMPLES, TOKENS, DTYPES[device])
    return profile_module(model, (), inputs, device=read_device(device), name=name)


def problem_of(profile: Profile, cluster: Cluster, stages: int) -> StagedProblem:
    """The problem of the command with so many stages."""
    return StagedProblem(profile, cluster, stages, DEFAULT_MICRO_BATCHES, schedule=DEFAULT_SCHEDULE)


def simulated(name: str, problem: StagedProblem, plan: StagedPlan | None) -> Rival | None:
    """The rival of a plan; None where there is none that fits."""
    if plan is None or not plan.check_valid(problem)[0]:
        return None
    cost = step_cost(problem, plan)
    return Rival(name, plan.stages, cost.step_s) if cost.feasible else None


def solved(
    profile: Profile, cluster: Cluster, min_gain: float = DEFAULT_MIN_GAIN, **options: Any
) -> tuple[StagedResult, float]:
    """What the default planner makes with such options, and its processor time.

    With a gain of 0 it takes the shortest of all, whatever its stages.
    """
    problem = planning_problem(profile, cluster, schedule=DEFAULT_SCHEDULE, **options)
    planner, begun_s = AutoPlanner(AutoConfig(min_gain=min_gain)), time.process_time()
    result = planner.solve(problem.space, deadline=Deadline(clock=time.process_time))
    return result, time.process_time() - begun_s


def planned(name: str, profile: Profile, cluster: Cluster, **options: Any) -> Rival | None:
    """The rival that the planner makes with other options; None where they allow no plan that fits."""
    try:
        result, _ = solved(profile, cluster, min_gain=0.0, **options)
    except BadInput:
        return None
    return None if result.plan is None else Rival(name, result.plan.stages, result.cost.step_s)


def rivals(profile: Profile, cluster: Cluster) -> Iterator[Rival | None]:
    """All that the default is held against, where a micro-batch is as profiled."""
    one, blocks, layers = problem_of(profile, cluster, 1), block_ends(profile), layer_ends(profile)
    most = min(2 * cluster.nodes, cluster.devices, one.grid.cut_points.size + 1)
    yield simulated("data parallelism", one, StagedPlan((), (), DEFAULT_MICRO_BATCHES, "rival"))
    for stages in range(2, most + 1):
        problem = problem_of(profile, cluster, stages)
        yield simulated(f"uniform {stages}", problem, UniformPlanner().solve(problem).plan)
    for stages in divisors(cluster.devices)[1:]:
        if stages <= one.grid.cut_points.size + 1:
            problem = problem_of(profile, cluster, stages)
            for name, plan in framework_plans(problem, blocks, layers):
                yield simulated(f"{name} {stages}", problem, plan)
    yield planned("restricted", profile, cluster, constraints=Constraints(equal_replicas=True, cut_at=BLOCKS))
    for stages in range(1, most + 1):
        yield planned(f"fixed {stages}", profile, cluster, stages=stages)


def fixed_counts(profile: Profile, cluster: Cluster, batch: int) -> Iterator[Rival | None]:
    """Every number of micro-batches that divides the batch."""
    for count in divisors(batch):
        yield planned(f"fixed M = {count}", profile, cluster, global_batch=batch, micro_batches=count)


@dataclass(frozen=True)
class Row:
    """What is printed of a profile on a cluster, and whether the default loses: to whom, by how much."""

    cells: tuple[str, ...]
    gap: float | None
    taken_s: float
    losses: tuple[Rival, ...]


def row(name: str, cluster: Cluster, default: tuple[StagedResult, float], others: Sequence[Rival]) -> Row:
    """Hold a default plan against its rivals."""
    result, taken_s = default
    best = min(others, key=lambda rival: rival.step_s, default=None)
    if result.plan is None:
        none = "–" if best is None else f"{best.name}: {best.step_s:.4g} s"
        return Row(
            (name, cluster.name, "does not fit", "–", none, "–", "–", f"{taken_s:.1f}"), None, taken_s, (*others,)
        )
    step_s, plan = result.cost.step_s, result.plan
    gap = None if result.bound is None else max(step_s / result.bound.value - 1.0, 0.0)
    losses = tuple(rival for rival in others if rival.beats(step_s, plan.stages))
    shape = f"{plan.stages}" + (f", M = {plan.micro_batches}" if plan.micro_batches != DEFAULT_MICRO_BATCHES else "")
    shown = ("–", "–") if best is None else (best.name, f"{best.step_s / step_s:.4f}")
    verdict = " **loses**" if losses else ""
    proven = "–" if gap is None else f"{100 * gap:.1f} %"
    return Row(
        (name, cluster.name, shape, f"{step_s:.4g} s", shown[0], shown[1] + verdict, proven, f"{taken_s:.1f}"),
        gap,
        taken_s,
        losses,
    )


def sources(shared: Path | None, folder: Path) -> dict[str, Callable[[str], Profile]]:
    """Name → what makes the profile for a device; those of Hugging Face models are kept in a folder."""

    def in_file(path: Path) -> Callable[[str], Profile]:
        return lambda device: read_profile(path)

    def of_model(name: str) -> Callable[[str], Profile]:
        def make(device: str) -> Profile:
            path = folder / f"{name}-{device}.npz"
            if not path.exists():
                write_npz(path, profile_of(name, device))
            return read_profile(path)

        return make

    files = sorted(EXAMPLES.glob("*.npz")) + (sorted(shared.glob("*.txt")) if shared else [])
    return {path.stem: in_file(path) for path in files} | {name: of_model(name) for name in MODELS}


def rows_of(name: str, profile: Profile, cluster: Cluster, *, batch: bool) -> Iterator[Row]:
    """The row of a profile on a cluster, and that with every number of micro-batches."""
    others = [rival for rival in rivals(profile, cluster) if rival is not None]
    yield row(name, cluster, solved(profile, cluster), others)
    if batch:
        samples = DEFAULT_MICRO_BATCHES * required_size(profile)
        others = [rival for rival in fixed_counts(profile, cluster, samples) if rival is not None]
        yield row(f"{name}, {samples} samples", cluster, solved(profile, cluster, global_batch=samples), others)


def random_model(seed: int) -> tuple[Profile, Cluster]:
    """A model of 20 to 60 instructions for micro-batches of 4 samples, and a cluster of up to 8 devices.

    Transfers and all-reduces take from a hundredth to three times as long as the computation of a device.
    """
    rng = np.random.default_rng(seed)
    nodes, inside, n = int(rng.integers(1, 4)), int(rng.choice([2, 4])), int(rng.integers(20, 61))
    cluster = Cluster(min(nodes, 8 // inside), inside, 100e9, 10 ** rng.uniform(9.0, 11.0), 32e9, f"random {seed}")
    compute = rng.lognormal(sigma=1.0, size=n) * 1e-3
    activations, weights = (
        rng.lognormal(size=n) * 10 ** rng.uniform(-2.0, 0.5) * compute.sum() * cluster.inter / scale
        for scale in (8.0, n)
    )
    meta = {"model": f"random {seed}", "microbatch_size": 4}
    return Profile.create(compute, activations, weights, compute / 3.0, activations, meta=meta), cluster


def random_rows(count: int) -> Iterator[Row]:
    """Of random models: every S with every M that divides 16 samples against both left open."""
    for seed in range(count):
        profile, cluster = random_model(seed)
        choices = [(stages, rounds) for stages in range(1, cluster.devices + 1) for rounds in divisors(16)]
        others = [
            planned(f"S = {s}, M = {m}", profile, cluster, global_batch=16, stages=s, micro_batches=m)
            for s, m in choices
        ]
        default = solved(profile, cluster, global_batch=16)
        yield row(profile.model, cluster, default, [rival for rival in others if rival is not None])


def print_summary(rows: Sequence[Row]) -> None:
    """How many rows the default loses, how large the gaps are, how long planning takes."""
    lost = [row for row in rows if row.losses]
    gaps = sorted(row.gap for row in rows if row.gap is not None)
    print(f"\n{len(rows)} rows; the default loses {len(lost)}.")
    for loser in lost:
        rivals = ", ".join(f"{rival.name} ({rival.step_s:.4g} s)" for rival in loser.losses)
        print(f"- {loser.cells[0]} on {loser.cells[1]}, {loser.cells[3]}, to {rivals}")
    if gaps:
        proven = sum(gap <= 1e-6 for gap in gaps)
        near = sum(gap <= 0.02 for gap in gaps)
        print(f"Gap: 0 in {proven}, at most 2 % in {near}; median {100 * np.median(gaps):.1f} %, largest", end=" ")
        print(f"{100 * gaps[-1]:.1f} %.")
    times = [row.taken_s for row in rows]
    print(f"Planning: median {np.median(times):.1f} s, longest {max(times, default=math.nan):.1f} s.")


def print_rows(rows: Iterator[Row]) -> None:
    """Print a row as soon as it is known, then the summary."""
    headings, printed = ("profile", "cluster", "S", "step", "best rival", "ratio", "gap", "s"), []
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}", flush=True)
    for line in rows:
        printed.append(line)
        print(f"| {' | '.join(line.cells)} |", flush=True)
    print_summary(printed)


def main() -> None:
    """Print the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--clusters", nargs="+", default=list(DEVICES), metavar="NAME", help="default: all five")
    parser.add_argument("--shared", type=Path, metavar="FOLDER", help="of further profiles, graph.txt files")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="of Hugging Face profiles (default: temporary)")
    parser.add_argument("--no-batch", action="store_true", help="leave out the rows for every M")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="random models and clusters instead")
    arguments = parser.parse_args()
    if arguments.random:
        print_rows(random_rows(arguments.random))
        return
    folder = arguments.cache or Path(tempfile.mkdtemp(prefix="advice-"))
    folder.mkdir(parents=True, exist_ok=True)
    make = sources(arguments.shared, folder)
    clusters = {name: read_cluster(name) for name in arguments.clusters}
    of_batch = next((name for name in BATCH_CLUSTERS if name in clusters), None)

    def rows() -> Iterator[Row]:
        for name in arguments.profiles or make:
            for topo, cluster in clusters.items():
                profile = make[name](DEVICES.get(topo, "v100"))
                batch = not arguments.no_batch and name in WITH_BATCH and topo == of_batch
                yield from rows_of(name, profile, cluster, batch=batch)

    print_rows(rows())


if __name__ == "__main__":
    main()
