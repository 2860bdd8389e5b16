"""What a division of its own buys a tower of images: `OMP_NUM_THREADS=1 python benchmarks/towers.py [--budget S]`.

For models that read images the best strategy of all, and the best one whose tower is divided as the text is, so that
every device of cp encodes all images (`tower_tp`); of programs in general, and of those that Megatron-Bridge trains.
Both searches have equal counted seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from common import print_rows
from measured_steps import percent

from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.export.megatron_bridge import LIMITS
from automap_models.formats.hardware_yaml import device_of, read_cluster
from automap_models.formats.runtime_yaml import read_runtime
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.workloads.source import Source, SourceKind, transformer


class Images(NamedTuple):
    """A model, what its samples consist of, and clusters."""

    model: str
    sequence: int
    images: int
    gpus: tuple[str, ...] = ("64xh100", "32xa100")


CASES = (
    *(Images("qwen2.5-vl-7b", 8192, 1), Images("qwen2.5-vl-7b", 8192, 4), Images("qwen2.5-vl-7b", 32768, 16)),
    *(Images("qwen3-vl-32b", 8192, 1), Images("qwen3-vl-32b", 8192, 4), Images("qwen3-vl-32b", 32768, 16)),
    *(Images("qwen2.5-vl-72b", 8192, 4), Images("qwen3-vl-30b-a3b", 8192, 4), Images("llava-1.5-13b", 4096, 1)),
    Images("qwen3-vl-235b-a22b", 8192, 4, ("128xh100", "256xh100")),
)
HEADINGS = ("model", "tokens", "images", "cluster", "program", "step", "all images everywhere", "longer by", "strategy")


def problem_of(case: Images, gpus: str, program: str) -> StrategyProblem:
    """What is searched."""
    source = Source(case.model, SourceKind.WORKLOAD, sequence=case.sequence, images=case.images)
    cluster = read_cluster(gpus)
    device = device_of(cluster, None)
    return StrategyProblem.from_work(
        lambda dtype: transformer(replace(source, dtype=dtype)).work(),
        cluster,
        device,
        global_batch=None,
        fixed={},
        runtime=read_runtime(program or "general").runtime("bf16", device.name),
        within=LIMITS if program else None,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=5.0, help="counted seconds of a search")
    config = StrategiesConfig(budget_s=parser.parse_args().budget)
    ratios: dict[str, list[float]] = {"": [], LIMITS.name: []}

    def best(problem: StrategyProblem) -> Estimate | None:
        cost: Estimate | None = StrategiesPlanner(config).solve(problem).cost
        return cost

    def rows() -> Iterator[tuple[str, ...]]:
        of_cases = [(case, *of_case) for case in CASES for of_case in product(case.gpus, ratios)]
        for case, gpus, program in of_cases:
            problem = problem_of(case, gpus, program)
            of_all, alike = best(problem), best(replace(problem, fixed={"tower_tp": None}))
            named = (case.model, f"{case.sequence:,}", str(case.images), gpus, program or "in general")
            if of_all is None or alike is None:
                yield (*named, *(f"{one.step_s:.4g} s" if one else "none fits" for one in (of_all, alike)), "", "")
                continue
            ratios[program].append(alike.step_s / of_all.step_s)
            longer = percent(ratios[program][-1] - 1)
            yield (*named, f"{of_all.step_s:.4g} s", f"{alike.step_s:.4g} s", longer, strategy_in_words(of_all))

    print_rows(HEADINGS, rows())
    for program, of_program in ratios.items():
        mean, worst = float(np.exp(np.log(of_program).mean())), max(of_program)
        print(f"{program or 'in general'}: longer by {percent(mean - 1)} in the mean, {percent(worst - 1)} at most")


if __name__ == "__main__":
    main()
