"""What each dimension of the space of strategies buys: `OMP_NUM_THREADS=1 python benchmarks/ablation.py`.

For each model on each cluster the best strategy of all, and how much longer the best one is without a dimension. Where
the best of all does without it anyway, it buys nothing. The first rows are sizes of Mist's models (EuroSys 2025) on its
kinds of devices, L4 on PCIe and A100 with 40 GB, with 16 samples a device as its artefact has for the first one.

The last table is of clusters of two kinds of nodes: how much longer the step of a strategy is that was searched as if
all of them had the slowest links, and which is priced on those that they have.

Searches have equal counted seconds, and those without something begin beside the best strategy: ratios say what was
found, not what is proven. What any of them comes to counts for all parts of the space that it is in.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from common import print_rows
from measured_steps import percent
from strategy_search import CASES as MEASURED
from strategy_search import Case, problem_of

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device, HostMemory
from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.result import TIE
from automap_models.core.strategy import OFFLOADS, RECOMPUTE, Strategy
from automap_models.errors import BadInput
from automap_models.export.targets import strategy_limits
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import (
    PARTIAL,
    SPLIT,
    UNEQUAL,
    StrategiesConfig,
    StrategyProblem,
    steps_of,
)

L4 = Device(
    name="l4",
    matrix={"float32": 30.3e12, "tf32": 60e12, "bfloat16": 121e12, "float16": 121e12},
    vector=30.3e12,
    bandwidth=300e9,
    multiprocessors=58,
    sustained=1050 / 2040,
    host_memory=HostMemory(384e9, 50e9, 25e9),
)
"""NVIDIA's data sheet, without sparsity; Mist sets its clock to 1,050 of 2,040 MHz. Constants are the usual ones."""


def l4(devices: int) -> tuple[Device, Cluster]:
    """L4 on PCIe 4, eight a node, with 100 Gbit/s between nodes."""
    return L4, Cluster(max(devices // 8, 1), min(devices, 8), 32e9, 12.5e9, 24e9, name=f"{devices} L4")


def a100(devices: int) -> tuple[str, Cluster]:
    """A100 with 40 GB, eight a node, with 400 Gbit/s between nodes."""
    return "a100-40", Cluster(devices // 8, 8, 300e9, 50e9, 40e9, name=f"{devices} A100")


ON_L4 = ("gpt3-1.3b", 2), ("gpt3-2.7b", 4), ("gpt3_7b", 8), ("llama2-7b", 8), ("falcon3-7b", 8), ("gpt3_13b", 16)
ON_A100 = ("llama2-7b", 8, 4096), ("falcon3-7b", 8, 4096), ("llama2-13b", 16, 4096), ("gpt-neox-20b", 32, 2048)
CASES: Sequence[tuple[Case, str]] = (
    *(((model, *l4(devices), 16 * devices, 2048), "") for model, devices in (*ON_L4, ("gpt-neox-20b", 32))),
    *(((model, *a100(devices), 16 * devices, tokens), "") for model, devices, tokens in ON_A100),
    *((MEASURED[name], "") for name in ("llama3-8b, long", "llama3-70b", "mixtral-8x7b")),
    *((MEASURED[name], "megatron") for name in ("mixtral-8x7b", "deepseek-v3")),
)
"""Case, and the framework whose strategies are meant; empty: all."""


ON_MIXED: Sequence[Case] = tuple(
    (model, "a100", cluster, 256, 1024)
    for cluster in ("p4d-p3dn", "p3-g4dn", "16xh100+16xa100")
    for model in ("gpt2_xl", "gpt3-1.3b", "gpt3-2.7b", "llama2-7b", "falcon3-7b", "llama3-8b")
)


class Space(NamedTuple):
    """A part of all strategies: fields as they are to be, steps (problem.STEPS) that none takes, and whether modules
    are recomputed by name."""

    fixed: Mapping[str, Any] = {}
    without: frozenset[str] = frozenset()
    modules: bool = True

    def problems(self, problem: StrategyProblem, start: Sequence[Strategy]) -> Iterator[StrategyProblem]:
        """The searches of this part: with everything on the devices, and with the optimizer on hosts."""
        within = problem.within
        if within is not None and not self.modules:
            within = replace(within, modules=())
        for offload in (self.fixed["offload"],) if "offload" in self.fixed else OFFLOADS:
            fixed = {**self.fixed, "offload": offload}
            yield replace(problem, fixed=fixed, without=self.without, within=within, start=start)

    def has(self, strategy: Strategy) -> bool:
        """Whether a strategy is in it."""
        alike = all(getattr(strategy, name) == value for name, value in self.fixed.items())
        by_name = not set(strategy.recompute_kinds) <= {*RECOMPUTE}
        return alike and not self.without & steps_of(strategy) and (self.modules or not by_name)


ZERO = [Space({"zero": stage}) for stage in range(3)]
LESS: Mapping[str, Sequence[Space]] = {
    **{name: [Space({name: 1})] for name in ("tp", "cp", "ep", "pp", "dp")},
    **{"ZeRO": ZERO[:1], "ZeRO-2 and 3": ZERO[:2], "ZeRO-3": ZERO},
    "ZeRO within groups of ranks": [Space({"dp_replicate": 1})],
    "the optimizer on hosts": [Space({"offload": "none"})],
    "recomputation": [Space({"recompute": "none"})],
    "recomputation of some layers": [Space(without=frozenset({PARTIAL}))],
    "recomputation by module": [Space(modules=False)],
    "sequence parallelism": [Space({"sequence_parallel": False})],
    "micro-batches of several samples": [Space({"micro_batch": 1})],
    "virtual stages": [Space({"vp": 1})],
    "backward passes in two parts": [Space(without=frozenset({SPLIT}))],
    "both of these": [Space({"schedule": "1f1b", "vp": 1})],
    "unequal layers": [Space(without=frozenset({UNEQUAL}))],
    "DeepEP": [Space({"dispatcher": kind}) for kind in (None, "alltoall")],
}
"""Dimension → the parts of the space that are left without it."""


def searched(
    problem: StrategyProblem, spaces: Sequence[Space], budget_s: float, start: Sequence[Strategy] = ()
) -> list[Estimate]:
    """The best of each search of parts of the space that finds anything."""
    costs = list[Estimate | None]()
    for part in (part for space in spaces for part in space.problems(problem, start)):
        with suppress(BadInput):  # fields contradict one another
            costs.append(StrategiesPlanner(StrategiesConfig(budget_s=budget_s)).solve(part).cost)
    return [cost for cost in costs if cost is not None]


def longer(problem: StrategyProblem, budget_s: float) -> tuple[Estimate, dict[str, float]]:
    """The best strategy of all, and by dimension its share that one without is longer by; infinite where none fits."""
    costs = searched(problem, [Space()], budget_s)
    best = min(costs, key=lambda cost: cost.step_s)
    for spaces in LESS.values():
        if not any(space.has(best.strategy) for space in spaces):
            costs += searched(problem, spaces, budget_s, (best.strategy,))
    least = min(costs, key=lambda cost: cost.step_s)
    shares = dict[str, float]()
    for name, spaces in LESS.items():
        steps_s = (cost.step_s for cost in costs if any(space.has(cost.strategy) for space in spaces))
        shares[name] = min(steps_s, default=np.inf) / least.step_s - 1.0
    return least, shares


def on_mixed(case: Case, budget_s: float) -> tuple[str, ...]:
    """What searches with the links that there are, and with the slowest of them everywhere, come to."""
    problem, planner = problem_of(case, None), StrategiesPlanner(StrategiesConfig(budget_s=budget_s))
    cluster = problem.cluster
    slow = {group: replace(group, intra=cluster.intra, inter=cluster.inter) for group in cluster.groups}
    alike = planner.solve(replace(problem, cluster=Cluster.of_groups([*slow.values()], cluster.name)))
    assert alike.plan is not None
    order = sorted(cluster.groups, key=lambda group: alike.problem.cluster.groups.index(slow[group]))
    of_order = replace(problem, cluster=Cluster.of_groups(order, cluster.name))
    same = of_order.costs.pricing.estimate(alike.plan)
    best = planner.solve(replace(of_order, start=(alike.plan,))).cost
    assert best is not None
    least = min(best, same, key=lambda cost: cost.step_s)
    longer = percent(same.step_s / least.step_s - 1.0)
    words = strategy_in_words(same), strategy_in_words(least)
    return case[0], cluster.name, f"{same.step_s:.4g} s", f"{least.step_s:.4g} s", longer, *words


def means(shares: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, ...]]:
    """Of each dimension: where it buys anything, and how much in the geometric mean."""
    for name in LESS:
        of_cases = np.array([of_case[name] for of_case in shares])
        some = of_cases[np.isfinite(of_cases)]
        mean = percent(float(np.exp(np.log1p(some).mean()) - 1.0))
        used = f"{(of_cases > TIE).sum()} of {len(shares)}"
        yield name, used, str(np.isinf(of_cases).sum()), mean, percent(float(of_cases.max()))


def main() -> None:
    """Print a table of cases, and one of dimensions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", type=float, default=2.0, help="counted seconds of each search")
    budget_s = parser.parse_args().budget
    shares = list[dict[str, float]]()

    def rows() -> Iterator[tuple[str, ...]]:
        for case, target in CASES:
            problem = problem_of(case, None, within=strategy_limits(target) if target else None)
            best, of_case = longer(problem, budget_s)
            shares.append(of_case)
            buys = ", ".join(f"{name} {percent(share)}" for name, share in of_case.items() if share > TIE)
            name = f"{case[0]}, for {target}" if target else case[0]
            sizes = problem.cluster.name, str(problem.global_batch), str(problem.work.shape.sequence)
            yield (name, *sizes, f"{best.step_s:.4g} s", strategy_in_words(best), buys)

    print_rows(("model", "on", "samples", "tokens", "step", "best strategy", "longer without"), rows())
    print()
    print_rows(("without", "longer in", "nothing fits in", "mean of the others", "at most"), means(shares))
    print()
    headings = "model", "on", "slowest links everywhere", "those that there are", "longer", "strategy", "and with them"
    print_rows(headings, (on_mixed(case, budget_s) for case in ON_MIXED))


if __name__ == "__main__":
    main()
