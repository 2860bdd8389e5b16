"""The paper's Tables 7 and 8 (arXiv 2007.04069): five models on clusters A, B and C, planned here and there.

    OMP_NUM_THREADS=1 python benchmarks/paper_tables.py [--sequence 512 128]

S = nodes, M = 16, micro-batches of 16 samples (VGG-19: 32), float32 on a V100's roofline, Adam (σ = 4), T5 with
Adafactor (σ = 2). The paper tells neither the length of its sequences nor what is kept for the backward pass; 512
tokens is what the shipped examples have.

The paper names layers "near the pivots". Its row is the shortest plan with its device cuts whose cuts lie, on the grid
of 128 points, inside those layers (counted from 0), or anywhere where it names none. L* is the exact planner's. The
last table says how much memory T5-11B needs on the fullest device at least, over all plans; a device has 32 GB.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
from common import optimum_s, print_rows

from automap_models import workloads
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.hlo.adapter import trace
from automap_models.hlo.clock import clock_times
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.profile import profile_from_graph
from automap_models.planners.registry import make_planner

MODELS = ("bert48", "t5_base", "t5_3b", "t5_11b", "vgg19")
STATE_FACTOR = {"t5_base": 2.0, "t5_3b": 2.0, "t5_11b": 2.0}  # Adafactor; the others' Adam needs 4
DEFAULT_SEQUENCE = 512
OUT_OF_MEMORY = "out of memory"
MEMORY_STEP = 1.001  # to which the least memory is found


@dataclass(frozen=True)
class Published:
    """A plan of Table 7: device cuts and the layers near the pivots, "" where none is named."""

    device_cuts: tuple[int, ...]
    near: tuple[str, ...]


TABLE_7: dict[tuple[str, str], Published | None] = {
    ("bert48", "A"): Published((8,), ("",)),
    ("bert48", "B"): Published((8, 16), ("layer 17", "layer 32")),
    ("bert48", "C"): Published((8, 16, 24), ("layer 14", "layer 27", "layer 40")),
    ("t5_base", "A"): Published((8,), ("",)),
    ("t5_base", "B"): Published((8, 16), ("enc/5", "dec/5")),
    ("t5_base", "C"): Published((8, 16, 22), ("", "dec/3", "softmax")),
    ("t5_3b", "A"): Published((8,), ("",)),
    ("t5_3b", "B"): Published((8, 16), ("enc/19", "dec/11")),
    ("t5_3b", "C"): Published((8, 16, 24), ("", "dec/5", "dec/17")),
    ("t5_11b", "A"): None,
    ("t5_11b", "B"): None,
    ("t5_11b", "C"): Published((8, 16, 24), ("enc/13", "dec/3", "dec/15")),
}
"""None: out of memory."""

TABLE_8 = (34, 66, 98), (8, 16, 24)
"""Points of 128 and device cuts on C, the same for BERT-48, T5-base and T5-11B."""

PAPER_NAMES = (
    (re.compile(r"encoder/block_(\d+)\b.*"), r"enc/\1"),
    (re.compile(r"decoder/block_(\d+)\b.*"), r"dec/\1"),
    (re.compile(r"block_(\d+)\b.*"), r"layer \1"),
    (re.compile(r"(decoder/final_layer_norm|embedding\.attend|loss)\b.*"), "softmax"),
)
"""Our module paths as the paper writes them."""


@cache
def profile_of(model: str, sequence: int) -> Profile:
    """The profile that `automap-profile MODEL --sequence N` makes."""
    graph = instruction_graph(trace(workloads.build(model, sequence=None if model == "vgg19" else sequence)))
    return profile_from_graph(graph, clock_times(graph, read_device("v100")))


def problem_of(model: str, sequence: int, cluster: str) -> StagedProblem:
    """One stage a node."""
    where = read_cluster(cluster)
    return StagedProblem(profile_of(model, sequence), where, where.nodes, state_factor=STATE_FACTOR.get(model, 4.0))


def near(profile: Profile, cut: int) -> str:
    """The layer of an instruction as the paper would name it; of one outside all modules the last one before it."""
    layer = next((profile.layers[i] for i in range(cut, -1, -1) if profile.layers[i]), "")
    for ours, theirs in PAPER_NAMES:
        if ours.fullmatch(layer):
            return ours.sub(theirs, layer)
    return layer


def published_plan(problem: StagedProblem, published: Published) -> StagedPlan:
    """The shortest plan that the paper's row may mean; one that does not fit only if none does."""
    points = problem.grid.cut_points
    names = [near(problem.profile, cut) for cut in problem.grid.to_instructions(points.tolist())]
    choices = [
        [int(p) for p, name in zip(points, names, strict=True) if layer in ("", name)] for layer in published.near
    ]
    plans = [
        StagedPlan(problem.grid.to_instructions(cuts), published.device_cuts, problem.micro_batches, "paper", cuts)
        for cuts in product(*choices)
        if list(cuts) == sorted(set(cuts))
    ]

    def rank(plan: StagedPlan) -> tuple[bool, float]:
        cost = plan_cost(problem, plan)
        return not cost.feasible, cost.length_s

    return min(plans, key=rank)


def plans_of(problem: StagedProblem) -> Iterator[tuple[str, StagedPlan | str]]:
    """The policy's and the exact planner's plan, or why there is none."""
    for name in ("policy", "exact"):
        try:
            yield name, make_planner(name).plan(problem)
        except Infeasible:
            yield name, OUT_OF_MEMORY


def costs(problem: StagedProblem, plan: StagedPlan, best_s: float) -> tuple[str, ...]:
    """L, speed-up over one device, L / L* and memory of the fullest device."""
    cost = plan_cost(problem, plan)
    memory = f"{cost.memory_bytes.max() / 1e9:.1f} GB"
    if not cost.feasible:
        return OUT_OF_MEMORY, "", "", memory
    speed_up = problem.micro_batches * problem.profile.C.sum() / cost.length_s
    ratio = cost.length_s / best_s
    return f"{cost.length_s:.4g} s", f"{speed_up:.2f}", f"{ratio:.4f}", memory


IN_TABLE_7 = ("model", "on", "by", "cut after", "near", "device cuts", "L", "speed-up", "L / L*", "memory")


def table_7(sequence: int, models: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every model on every cluster by each planner and by the paper."""
    for model, cluster in product(models, "ABC"):
        problem = problem_of(model, sequence, cluster)
        rows, best_s = list(plans_of(problem)), optimum_s(problem)
        if (model, cluster) in TABLE_7:
            published = TABLE_7[model, cluster]
            rows.append(("paper", published_plan(problem, published) if published else OUT_OF_MEMORY))
        for by, plan in rows:
            if isinstance(plan, str):
                yield (model, cluster, by, "", "", "", plan, "", "", "")
                continue
            layers = ", ".join(near(problem.profile, cut) for cut in plan.cuts)
            cells = _listed(plan.cuts), layers, _listed(plan.device_cuts)
            yield (model, cluster, by, *cells, *costs(problem, plan, best_s))


IN_TABLE_8 = ("model", "by", "points", "device cuts", "time before", "L / L*")


def table_8(sequence: int, models: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Points of the 128 grid on C, and how much of the time lies before each."""
    for model in models:
        problem = problem_of(model, sequence, "C")
        done, best_s = problem.profile.C.cumsum() / problem.profile.C.sum(), optimum_s(problem)
        points, devices = TABLE_8
        paper = StagedPlan(problem.grid.to_instructions(points), devices, problem.micro_batches, "paper", points)
        for by, plan in [*plans_of(problem), ("paper", paper)]:
            if isinstance(plan, str):
                yield (model, by, plan, "", "", "")
                continue
            shares = ", ".join(f"{100 * done[cut]:.0f} %" for cut in plan.cuts)
            length, _, ratio, _ = costs(problem, plan, best_s)
            yield (model, by, _listed(plan.coarse_cuts or ()), _listed(plan.device_cuts), shares, ratio or length)


def least_memory(problem: StagedProblem) -> float:
    """Device memory, bytes, below which no plan of the problem fits (to 0.1 %)."""
    low, high = 1e8, 1e12
    while high > MEMORY_STEP * low:
        middle = (low * high) ** 0.5
        variant = replace(problem, cluster=replace(problem.cluster, memory=middle))
        low, high = (middle, high) if np.isnan(optimum_s(variant)) else (low, middle)
    return high


def with_recomputed_blocks(problem: StagedProblem) -> tuple[StagedProblem, float]:
    """The problem if only each block's input is kept, and what the largest block needs while it is recomputed, bytes.

    A block's input are the hidden states, which are what the smallest cut between blocks sends. The latter is for a
    stage of as many replicas as a node has devices.
    """
    profile = problem.profile
    blocks = [block[0] if (block := re.match(r".*block_\d+", layer)) else "" for layer in profile.layers]
    starts = [i for i in range(1, len(blocks)) if blocks[i] and blocks[i] != blocks[i - 1]]
    saved = np.zeros(len(profile))
    saved[starts] = profile.A[[i - 1 for i in starts]].min()
    working = max(profile.stash[[b == block for b in blocks]].sum() for block in set(blocks) - {""})
    return replace(problem, profile=replace(profile, stash=saved)), working / problem.cluster.devices_per_node


def memory_table(model: str, sequences: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """What the fullest device needs at least on A, B and C, under three assumptions about activations."""
    for sequence in sequences:
        problems = [problem_of(model, sequence, cluster) for cluster in "ABC"]
        inputs = [with_recomputed_blocks(problem) for problem in problems]
        nothing = [replace(p, profile=replace(p.profile, stash=np.zeros(len(p.profile)))) for p in problems]
        least = {
            "everything": [least_memory(problem) for problem in problems],
            "each block's input": [least_memory(problem) + working for problem, working in inputs],
            "nothing": [least_memory(problem) for problem in nothing],
        }
        for what, some in least.items():
            yield (str(sequence), what, *(f"{memory / 1e9:.1f} GB" for memory in some))


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def main() -> None:
    """Print all tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequence", nargs="+", type=int, default=[DEFAULT_SEQUENCE, 128], help="tokens a sample has")
    sequences = parser.parse_args().sequence
    for sequence in sequences:
        models = MODELS if sequence == sequences[0] else MODELS[:-1]  # VGG-19 has no sequences
        print(f"\n## Table 7, {sequence} tokens\n")
        print_rows(IN_TABLE_7, table_7(sequence, models))
        print(f"\n## Table 8, cluster C, {sequence} tokens\n")
        print_rows(IN_TABLE_8, table_8(sequence, ("bert48", "t5_base", "t5_11b")))
    print("\n## T5-11B: least memory of the fullest device, over all plans\n")
    print_rows(("tokens", "kept for backward", "A", "B", "C"), memory_table("t5_11b", sequences))


if __name__ == "__main__":
    main()
