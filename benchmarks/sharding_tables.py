"""Tables 3 to 6 of Auto-MAP (arXiv 2007.04069) beside the proven optimum, and how long it takes from a model's name.

    OMP_NUM_THREADS=1 python benchmarks/sharding_tables.py [MODEL …] [--rules shardy]

Each row runs in a process of its own: building the step, tracing it, reading Shardy's rules, making the classes, and
the proven maximum of partitioned variables; imports count, in processor time. The plan is then given to Shardy's own
pipeline, which must not reshard.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import TYPE_CHECKING

from automap_models.core.mesh import AXES, MeshAxis, PlanKind

if TYPE_CHECKING:
    from automap_models.core.sharding import ShardingProblem
    from automap_models.hlo.module import MlirModule as Module

ROWS: tuple[tuple[str, PlanKind, int, str], ...] = (
    ("vgg19", "operator", 8, "5 in 30 s"),
    ("t5_base", "operator", 4, "111 in 0.5 h"),
    ("t5_base", "operator", 8, ""),
    ("t5_3b", "operator", 32, "432 in 0.94 h"),
    ("t5_11b", "operator", 32, "432 in 1.45 h"),
    ("bert48", "operator", 16, ""),
    ("gpt2_medium", "operator", 16, ""),
    ("moe", "operator", 4, ""),
    ("resnet50", "operator", 8, ""),
    ("vgg19", "data", 8, "2 in 70 s"),
    ("t5_base", "data", 8, "7 in 0.27 h"),
)
"""Model, kind of plan, devices, variables and time of the paper."""

TABLE_3 = {"q": 1, "k": 1, "v": 1, "o": 0, "wi": 1, "wo": 0}
T5_HEADS_DIVIDE = {"t5_base": (2, 4), "t5_3b": (2, 4, 8, 16, 32), "t5_11b": (2, 4, 8, 16, 32)}
"""Axis sizes at which Table 3 is possible at all: attention is partitioned by heads."""
TABLE_4 = {"fc1/kernel": 1, "fc1/bias": 0, "fc2/kernel": 0, "predictions/kernel": 1, "predictions/bias": 0}
HEADINGS = (
    *("model", "kind", "D", "variables", "dims", "classes", "partitioned", "as printed", "reshards", "all-reduces"),
    *("processor time", "the paper"),
)


def traced(model: str) -> Module:
    """The training step of a built-in model; imports count."""
    from automap_models import workloads
    from automap_models.hlo.adapter import trace

    return trace(workloads.build(model))


def problem_of(module: Module, model: str, kind: PlanKind, devices: int, rules: str) -> ShardingProblem:
    """Partitioning a step's variables along one axis, on cluster C."""
    from automap_models.core.sharding import ShardingProblem
    from automap_models.formats.hardware_yaml import read_cluster
    from automap_models.hlo.dimension_classes import sharding_classes
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.hlo.shardy import sharding_rules

    classes = sharding_classes(module, sharding_rules(module), read_rule_set(rules)).classes
    return ShardingProblem(model, classes, read_cluster("C"), one_axis(kind, devices), rules=rules)


def one_axis(kind: PlanKind, devices: int) -> tuple[MeshAxis]:
    """The mesh of a kind of plan."""
    return (MeshAxis(next(name for name, axis_kind in AXES.items() if axis_kind == kind), devices),)


def measured(model: str, kind: PlanKind, devices: int, rules: str) -> tuple[str, ...]:
    """The cells of a row, but for the paper's."""
    from automap_models.hlo.shardy import collectives
    from automap_models.planners.registry import make_planner

    module = traced(model)
    problem = problem_of(module, model, kind, devices, rules)
    result = make_planner("milp", kind="sharding").solve(problem)
    plan, (along,) = result.required_plan(), problem.along
    cpu_s = time.process_time()
    inserted = [collective.kind for collective in collectives(module, [(plan.dims[0], devices)])]
    candidates = {variable.name: dim for variable, dim in plan.candidates().items()}
    classes = set(problem.classes.dim_classes[along.candidate_dims].tolist())
    return (
        *map(str, (model, kind, devices, len(candidates), along.candidate_dims.size, len(classes))),
        f"{plan.partitioned()}{' (proven)' if result.status == 'optimal' else ''}",
        compared(model, kind, devices, candidates) if rules == "paper" else "",
        *(str(inserted.count(what)) for what in ("reshard", "all_reduce")),
        f"{cpu_s:.1f} s",
    )


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
    names = dict.fromkeys(case[0] for case in ROWS)
    options.add_argument("models", metavar="MODEL", nargs="*", help="only these")
    options.add_argument("--rules", default="paper", help="rule set (default paper)")
    given = options.parse_args()
    if unknown := [name for name in given.models if name not in names]:
        options.error(f"{unknown[0]} is none of {', '.join(names)}")
    from common import print_rows  # not in the rows' processes, whose imports count

    cases = [(case, paper) for *case, paper in ROWS if not given.models or case[0] in given.models]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        print_rows(HEADINGS, ((*pool.apply(measured, (*case, given.rules)), paper) for case, paper in cases))


if __name__ == "__main__":
    main()
