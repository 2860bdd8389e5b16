"""Tables 3 to 6 of Auto-MAP (arXiv 2007.04069) beside the proven optimum, and how long it takes from a model's name.

    OMP_NUM_THREADS=1 python benchmarks/sharding_tables.py [MODEL …] [--rules shardy]

Each row runs in a process of its own: building the step, tracing it, reading Shardy's rules, making the classes, and
the proven maximum of partitioned variables; imports count. The plan is then given to Shardy's own pipeline, which must
not reshard. The claims: VGG-19 ≤ 5 s, T5-base ≤ 15 s, T5-3B, T5-11B and BERT-48 ≤ 30 s.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from automap_models.core.mesh import AXES, MeshAxis, PlanKind

if TYPE_CHECKING:
    from automap_models.core.sharding import AxisCandidates, ShardingProblem
    from automap_models.hlo.module import MlirModule as Module

ROWS: tuple[tuple[str, PlanKind, int, str, str], ...] = (
    ("vgg19", "operator", 8, "5 in 30 s", "≤ 5 s"),
    ("t5_base", "operator", 4, "111 in 0.5 h", "≤ 15 s"),
    ("t5_base", "operator", 8, "", "≤ 15 s"),
    ("t5_3b", "operator", 32, "432 in 0.94 h", "≤ 30 s"),
    ("t5_11b", "operator", 32, "432 in 1.45 h", "≤ 30 s"),
    ("bert48", "operator", 16, "", "≤ 30 s"),
    ("gpt2_medium", "operator", 16, "", ""),
    ("moe", "operator", 4, "", ""),
    ("resnet50", "operator", 8, "", ""),
    ("vgg19", "data", 8, "2 in 70 s", "≤ 5 s"),
    ("t5_base", "data", 8, "7 in 0.27 h", "≤ 15 s"),
)
"""Model, kind of plan, devices, variables and time of the paper, our claim."""

TABLE_3 = {"q": 1, "k": 1, "v": 1, "o": 0, "wi": 1, "wo": 0}
T5_HEADS_DIVIDE = {"t5_base": (2, 4), "t5_3b": (2, 4, 8, 16, 32), "t5_11b": (2, 4, 8, 16, 32)}
"""Axis sizes at which Table 3 is possible at all: attention is partitioned by heads."""
TABLE_4 = {"fc1/kernel": 1, "fc1/bias": 0, "fc2/kernel": 0, "predictions/kernel": 1, "predictions/bias": 0}
HEADINGS = ("model", "kind", "D", "variables", "dims", "classes", "partitioned", "paper", "as printed", "reshards")


@dataclass(frozen=True)
class Row:
    """One line of the table; times from the start of the process, but for the step's."""

    variables: int
    dims: int
    classes: int
    partitioned: int
    proven: bool
    as_printed: str
    reshards: int
    all_reduces: int
    traced_s: float
    plan_s: float
    cpu_s: float
    search_s: float
    step_s: float
    lines: tuple[str, ...]


def traced(model: str) -> Module:
    """The training step of a built-in model; imports count."""
    from automap_models import workloads
    from automap_models.hlo.adapter import trace

    return trace(workloads.build(model))


def problem_of(module: Module, model: str, kind: PlanKind, devices: int, rules: str) -> ShardingProblem:
    """Partitioning a step's variables along one axis, on cluster C."""
    from automap_models.core.sharding import ShardingProblem
    from automap_models.formats.hardware_yaml import read_cluster
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.hlo.sharding_classes import sharding_classes
    from automap_models.hlo.shardy import sharding_rules

    classes = sharding_classes(module, sharding_rules(module), read_rule_set(rules)).classes
    return ShardingProblem(model, classes, read_cluster("C"), one_axis(kind, devices), rules=rules)


def one_axis(kind: PlanKind, devices: int) -> tuple[MeshAxis]:
    """The mesh of a kind of plan."""
    return (MeshAxis(next(name for name, of in AXES.items() if of == kind), devices),)


def measured(model: str, kind: PlanKind, devices: int, rules: str) -> Row:
    begun = time.perf_counter()
    from automap_models.core.sharding import variable_rows
    from automap_models.hlo.shardy import collectives
    from automap_models.planners.registry import make_planner

    module = traced(model)
    traced_s = time.perf_counter() - begun
    problem = problem_of(module, model, kind, devices, rules)
    classes = problem.classes
    result = make_planner("milp", kind="sharding").solve(problem)
    plan, (along,) = result.required_plan(), problem.along
    plan_s, cpu_s = time.perf_counter() - begun, time.process_time()
    inserted = [collective.kind for collective in collectives(module, [(plan.dims[0], devices)])]
    candidates = {variable.name: dim for variable, dim in plan.candidates().items()}
    return Row(
        variables=len(candidates),
        dims=int(along.candidate_dims.size),
        classes=len(set(classes.dim_classes[along.candidate_dims].tolist())),
        partitioned=plan.partitioned(),
        proven=result.status == "optimal",
        as_printed=compared(model, kind, devices, candidates) if rules == "paper" else "",
        reshards=inserted.count("reshard"),
        all_reduces=inserted.count("all_reduce"),
        traced_s=traced_s,
        plan_s=plan_s,
        cpu_s=cpu_s,
        search_s=result.taken_s,
        step_s=step_time_s(along),
        lines=tuple(f"{row.name} → {row.dim}" for row in variable_rows(plan)),
    )


def step_time_s(along: AxisCandidates) -> float:
    """Seconds of one decision with everything that follows, over an episode that decides every dimension both ways."""
    from automap_models.envs.sharding.propagation import Propagation, State

    propagation = Propagation(along)
    begun = time.perf_counter()
    for dim in range(len(propagation)):
        for decision in (0, 1):
            propagation.decide(State(), dim, decision)
    return (time.perf_counter() - begun) / (2 * len(propagation))


def compared(model: str, kind: PlanKind, devices: int, candidates: dict[str, int]) -> str:
    """How many of the variables have the dimension of the paper's table; those it does not list are left out."""
    if kind == "data":
        expected = dict.fromkeys(candidates, 0)
    elif model == "vgg19":
        expected = {name: TABLE_4.get(name.removeprefix("params/"), -1) for name in candidates}
    elif model.startswith("t5") and devices in T5_HEADS_DIVIDE[model]:
        expected = {name: table_3(name) for name in candidates if "relative_bias" not in name}
    else:
        return ""
    return f"{sum(candidates[name] == dim for name, dim in expected.items())} of {len(expected)}"


def table_3(name: str) -> int:
    """A T5 variable's dimension in Table 3: embedding 0, layer norms -1, matrices by their role."""
    *_, parent, leaf = name.split("/")
    return -1 if leaf == "scale" else 0 if leaf == "embedding" else TABLE_3[parent]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", metavar="MODEL", nargs="*", help="only these")
    options.add_argument("--rules", default="paper", help="rule set (default paper)")
    given = options.parse_args()
    screen = Console(width=200)
    quality = Table(*HEADINGS, "all-reduces")
    times = Table("model", "kind", "D", "traced", "plan", "claim", "paper", "processor", "of it search", "one step")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for model, kind, devices, paper, claim in ROWS:
            if given.models and model not in given.models:
                continue
            row = pool.apply(measured, (model, kind, devices, given.rules))
            screen.print(f"{model}, {kind}, {devices} devices: {', '.join(row.lines)}", highlight=False)
            counts = (row.variables, row.dims, row.classes)
            partitioned = f"{row.partitioned}{' (proven)' if row.proven else ''}"
            ends = (partitioned, paper.partition(" in ")[0], row.as_printed, str(row.reshards), str(row.all_reduces))
            quality.add_row(model, kind, str(devices), *map(str, counts), *ends)
            spent = (f"{row.cpu_s:.1f} s", f"{1e3 * row.search_s:.0f} ms", f"{1e6 * row.step_s:.1f} µs")
            reached = (f"{row.traced_s:.1f} s", f"{row.plan_s:.1f} s", claim, paper.partition(" in ")[2])
            times.add_row(model, kind, str(devices), *reached, *spent)
    screen.print(quality)
    screen.print(times)


if __name__ == "__main__":
    main()
