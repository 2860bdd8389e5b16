"""The paper's Table 7 (arXiv 2007.04069): five models on clusters A, B and C, planned here and there.

    OMP_NUM_THREADS=1 python benchmarks/paper_tables.py [--sequence 512 128]

S = nodes, M = 16, micro-batches of 16 samples (VGG-19: 32), float32 on a V100's roofline, Adam (σ = 4), T5 with
Adafactor (σ = 2). The paper tells neither the length of its sequences nor what is kept for the backward pass; 512
tokens is what the shipped examples have.

The paper names layers "near the pivots". Its row is the shortest plan with its device cuts whose cuts lie, on the grid
of 128 points, inside those layers (counted from 0), or anywhere where it names none. L* is the exact planner's.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

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

PAPER_NAMES = (
    (re.compile(r"encoder/block_(\d+)\b.*"), r"enc/\1"),
    (re.compile(r"decoder/block_(\d+)\b.*"), r"dec/\1"),
    (re.compile(r"block_(\d+)\b.*"), r"layer \1"),
    (re.compile(r"(decoder/final_layer_norm|embedding\.attend|loss)\b.*"), "softmax"),
)
"""Our module paths as the paper writes them."""


@cache
def profile_of(model: str, sequence: int) -> Profile:
    """The profile that `automap profile MODEL --sequence N` makes."""
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


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def main() -> None:
    """Print the tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequence", nargs="+", type=int, default=[DEFAULT_SEQUENCE, 128], help="tokens a sample has")
    sequences = parser.parse_args().sequence
    for sequence in sequences:
        models = MODELS if sequence == sequences[0] else MODELS[:-1]  # VGG-19 has no sequences
        print(f"\n## Table 7, {sequence} tokens\n")
        print_rows(IN_TABLE_7, table_7(sequence, models))


if __name__ == "__main__":
    main()
