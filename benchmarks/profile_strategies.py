"""What ZeRO and recomputation are worth to a profile: the best plan of stages beside the best strategy of its layers.

    python benchmarks/profile_strategies.py

Of each example on each cluster: the step and the memory of the plan of `automap infer`, which has unequal stages and
cuts inside blocks, but no ZeRO and no recomputation; those of the strategy that competes with it in `automap plan`
(planners.portfolio.profile_strategy), the ratio of the steps, whether it is taken, processor seconds and its fields.
Both are by the same clock, links and schedules; strategies leave 8 % of the memory and the framework's bytes free.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from common import CLUSTERS, print_rows, profile_files, timed

from automap_models.core.estimate import strategy_in_words
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.schedules import DEFAULT_MIN_GAIN
from automap_models.core.units import seconds, size
from automap_models.errors import Infeasible
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.options import ExploreOptions, PlanOptions
from automap_models.planners.portfolio.planning import planned, space_to_explore
from automap_models.planners.portfolio.profile_strategy import best_strategy, gain_to_ask

HEADINGS = ("profile", "on", "plan of stages", "memory", "strategy", "memory", "ratio", "taken", "cpu s", "fields")


def row(path: Path, topo: str) -> tuple[tuple[str, ...], float]:
    """What is printed of a profile on a cluster, and the step of the answer over that of the plan of stages."""
    profile, cluster = read_profile(path), read_cluster(topo)
    try:
        cost = planned(profile, cluster, PlanOptions()).cost
        plan_s, memory = cost.step_s, size(float(cost.memory_bytes.max()))
    except Infeasible:
        plan_s, memory = math.inf, "–"
    best, taken_s = timed(lambda: best_strategy(space_to_explore(ProfiledModel(profile), cluster, ExploreOptions())))
    taken = f"{taken_s:.2f}"
    name, of_plan = path.stem.removesuffix("_v100"), "none fits" if math.isinf(plan_s) else seconds(plan_s)
    if isinstance(best, str):
        return (name, topo, of_plan, memory, "none fits", "–", "–", "", taken, ""), 1.0
    ratio, step_s = best.cost.step_s / plan_s, best.cost.step_s
    taken_instead = ratio <= 1.0 - gain_to_ask(best.required_plan(), DEFAULT_MIN_GAIN)
    figures = (f"{ratio:.3f}", "yes" if taken_instead else "", taken, strategy_in_words(best.cost))
    answer = ratio if taken_instead else 1.0
    return (name, topo, of_plan, memory, seconds(step_s), size(best.cost.peak_memory), *figures), answer


def main() -> None:
    """Print the table and how often and by how much strategies are shorter."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    ratios: list[float] = []

    def rows() -> Iterator[tuple[str, ...]]:
        for path, topo in product(profile_files(None), CLUSTERS):
            cells, ratio = row(path, topo)
            ratios.append(ratio)
            yield cells

    print_rows(HEADINGS, rows())
    mean, taken = math.exp(sum(map(math.log, ratios)) / len(ratios)), sum(ratio < 1.0 for ratio in ratios)
    print(f"\nstrategies taken: {taken} of {len(ratios)}; step of the answer of `automap plan` over that of plans of")
    print(f"stages alone, geometric mean of all rows: {mean:.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
