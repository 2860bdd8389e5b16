"""Every planner of placements on published graphs, beside the published values.

    OMP_NUM_THREADS=1 python benchmarks/placement.py FOLDER [--planners ideals,milp] [--time-limit S] [--only TEXT]

FOLDER holds graphs of the dnn-partitioning artifact (Tarnawski et al., NeurIPS 2020) with `_` for each `/` in their
paths, such as `throughput-inputs_LayerGraphs_bert24_training.json`, and the experts' splits likewise. Each planner
plans a small graph first, so that what it compiles or imports is not counted; one that is not made for the objective,
or an expert who left no split, is left out. Values and bounds are in milliseconds, as in the paper; seconds are CPU
time, all threads together.

The published values were computed by the authors' programs: their dynamic program, linearised and not, local search,
the experts' splits and the greedy baseline; `milp` stands beside the best values known of placements that are not
contiguous, from half a minute to a minute of HiGHS or CP-SAT. Without --time-limit planners count their work.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from common import PLACEMENT_GRAPHS, files_of, print_rows, timed, tracked

from automap_models.core.placement import Objective, PlacementProblem
from automap_models.errors import BadInput
from automap_models.formats.planning_graphs import read_placement
from automap_models.planners.base import Deadline
from automap_models.planners.registry import make_planner, planner_names

WARM_UP = "LayerGraphs_bert24_inference"
PUBLISHED_MS: Mapping[str, Mapping[str, float]] = {
    "throughput bert24_inference": {"expert": 20.08, "local-search": 17.78, "ideals": 17.79, "milp": 17.715},
    "throughput bert24_training": {"expert": 49.40, "local-search": 39.94, "ideals": 41.75, "milp": 39.79},
    "throughput resnet50_inference": {"expert": 43.92, "local-search": 35.89, "ideals": 33.77, "milp": 33.305},
    "throughput resnet50_training": {"expert": 112.11, "ideals": 78.63},
    "throughput bert_l-3_inference": {"local-search": 27.57, "ideals": 27.92, "milp": 21.91},
    "throughput bert_l-3_training": {"ideals": 65.30},
    "latency bert24_inference": {"milp": 100.22},
    "latency resnet50_inference": {"milp": 1443.79},
    "latency bert_l-3_inference": {"milp": 408.47},
}
"""Objective and graph → planner → value in ms."""

EXPERTS = {
    "LayerGraphs_bert24_inference": "bert24_inference",
    "LayerGraphs_bert24_training": "bert24_training",
    "LayerGraphs_resnet50_inference": "resnet50_inference",
    "LayerGraphs_resnet50_training": "resnet50_inference",
}
"""Graph → the expert's split; that of the training graph follows from the colours of the inference graph."""


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def cells(
    problem: PlacementProblem, name: str, split: Path, time_limit_s: float = math.inf, published_ms: float | None = None
) -> tuple[str, ...]:
    """Value, bound, gap, status, CPU seconds and the published value of a planner on a graph; the expert has a split.

    Raises:
        BadInput: the planner is not made for the problem.
    """
    planner = make_planner(name, kind="placement", **({"split": split} if name == "expert" else {}))
    result, taken_s = timed(lambda: planner.solve(problem, deadline=Deadline(time_limit_s)))
    ends = f"{taken_s:.2f}", _number(published_ms)
    if result.plan is None:
        return ("–", "–", "–", result.reason.what if result.reason else result.status, *ends)
    value_ms, bound_ms = result.cost.value_s * 1e3, None if result.bound is None else result.bound.value * 1e3
    gap = "–" if not bound_ms else f"{100 * max(0.0, value_ms / bound_ms - 1):.2f} %"
    return (f"{value_ms:.3f}", _number(bound_ms), gap, result.status, *ends)


def rows(folder: Path, planners: list[str], time_limit_s: float, only: str) -> Iterator[tuple[str, ...]]:
    """A row a graph and planner, graph by graph."""
    for objective in get_args(Objective):
        for path in sorted(folder.glob(f"{objective}-inputs_*.json")):
            name = path.stem.partition("_")[2]
            if only not in path.stem:
                continue
            problem = PlacementProblem.create(read_placement(path), objective=objective)
            split = folder / f"human-experts_{EXPERTS.get(name)}_expert.json"
            for planner in tracked(planners, f"{objective} {name}"):
                published_ms = PUBLISHED_MS.get(f"{objective} {name.partition('_')[2]}", {}).get(planner)
                with contextlib.suppress(BadInput):
                    yield (objective, name, planner, *cells(problem, planner, split, time_limit_s, published_ms))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--planners", help="names, separated by commas (default: all)")
    parser.add_argument("--time-limit", type=float, default=math.inf, help="seconds of each (default: its work)")
    parser.add_argument("--only", default="", help="graphs with this text in their name")
    arguments = parser.parse_args()
    planners = arguments.planners.split(",") if arguments.planners else list(planner_names("placement"))
    files_of(arguments.folder, "FOLDER", PLACEMENT_GRAPHS, ("*-inputs_*.json",))
    small = PlacementProblem.create(read_placement(arguments.folder / f"throughput-inputs_{WARM_UP}.json"))
    split = arguments.folder / f"human-experts_{EXPERTS[WARM_UP]}_expert.json"
    for planner in planners:
        with contextlib.suppress(BadInput):  # it is for steps
            cells(small, planner, split)
    headings = ("objective", "graph", "planner", "value", "bound", "gap", "status", "CPU s", "published")
    print_rows(headings, rows(arguments.folder, planners, arguments.time_limit, arguments.only))


if __name__ == "__main__":
    main()
