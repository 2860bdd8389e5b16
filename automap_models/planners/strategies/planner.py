"""The planner of strategies: what it refuses, and what it says of a search."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from itertools import combinations, permutations
from typing import ClassVar

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import Estimate
from automap_models.core.framework import Limits
from automap_models.core.result import TIE, Bound, Result, Status
from automap_models.core.strategy import PARTS, Strategy, require_parts
from automap_models.errors import BadInput, Infeasible
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.strategies.bounds import holds_state
from automap_models.planners.strategies.completion import Incumbent
from automap_models.planners.strategies.grid import Grid
from automap_models.planners.strategies.problem import PARTIAL, StrategiesConfig, StrategyProblem, steps_of
from automap_models.planners.strategies.search import Search, SearchCounts
from automap_models.simulate.strategy import require_device

WITHIN = "target"
"""The argument that asks for the limits of a framework."""
OUTSIDE_GRID = frozenset({"precision", "dispatcher", "recompute", "recompute_blocks"})
"""Fields that no degrees contradict."""


class StrategiesPlanner(Planner[StrategyProblem, Strategy, StrategiesConfig]):
    """The fastest strategy of a grid, and how much shorter any other can be at most.

    On a mixed cluster the order of its groups of nodes is chosen, too: `problem` of the result has the chosen one.
    """

    name: ClassVar[str] = "strategies"
    config_type: ClassVar[type[StrategiesConfig]] = StrategiesConfig

    def solve(
        self, problem: StrategyProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> Result[StrategyProblem, Strategy]:
        """See Planner. `cost` is the Estimate; `bound` is of its step; search_log: the best Completion of each sort;
        facts: SearchCounts by name.

        Raises:
            BadInput: a fixed field contradicts the model, the cluster or another one, or the device has no constants.
        """
        begun_s = time.perf_counter()
        require_searchable(problem)
        if not holds_state(problem):
            reason = _reason(problem, "infeasible")
            return Result(problem, None, None, "infeasible", facts=dict(vars(SearchCounts())), reason=reason)
        watch(Progress("dividing the model and the cluster"))
        search, open_s, counts = self._searched(problem, deadline, watch)
        best, problem = search.best, replace(search.problem, below_s=float("inf"))
        taken_s, facts = time.perf_counter() - begun_s, dict(vars(counts))
        if best is None:
            status: Status = "infeasible" if open_s == float("inf") else "stopped"
            none_less = Bound(open_s, "relaxation") if 0 < open_s < float("inf") else None
            reason = _reason(problem, status)
            return Result(problem, None, None, status, none_less, facts=facts, taken_s=taken_s, reason=reason)
        best = search.simplest(best)
        estimate: Estimate = search.pricing.estimate(best.strategy)
        bound_s = min(open_s, best.step_s)
        optimal = bound_s >= best.step_s * (1 - TIE)
        bound = Bound(best.step_s if optimal else bound_s, "exact" if optimal else "relaxation") if bound_s else None
        return Result(
            problem,
            best.strategy,
            estimate,
            "optimal" if optimal else "feasible",
            bound,
            search_log=tuple(search.incumbent.of_sorts.values()),
            facts=facts,
            taken_s=taken_s,
        )

    def _searched(
        self, problem: StrategyProblem, deadline: Deadline, watch: Watch
    ) -> tuple[Search, float, SearchCounts]:
        """The search of the order of nodes with the best strategy, the least bound of all orders, and all counts.

        Each order has an equal share of the time that is left, and has to be shorter than the ones before.
        """
        orders, counts = node_orders(problem.cluster), SearchCounts()
        open_s = float("inf")
        begun_s = effort.counted_s()
        chosen: Search | None = None
        incumbent: Incumbent | None = None
        for number, cluster in enumerate(orders):
            spent_s = effort.counted_s() - begun_s
            share_s = max(0.0, self.config.budget_s - spent_s) / (len(orders) - number)
            part = deadline.part(share_s, effort.counted_s)
            former = None if incumbent is None else incumbent.best
            search = Search(replace(problem, cluster=cluster), self.config, part, watch, counts, incumbent)
            search.run()
            incumbent, open_s = search.incumbent, min(open_s, search.open_s)
            if chosen is None or incumbent.best is not former:
                chosen = search
        assert chosen is not None
        return chosen, open_s, counts


def node_orders(cluster: Cluster) -> list[Cluster]:
    """The orders of a cluster's groups of nodes, the given one first; alone where there are more than three."""
    if not 1 < len(cluster.groups) <= 3:
        return [cluster]
    return [replace(cluster, groups=groups) for groups in dict.fromkeys(permutations(cluster.groups))]


def _reason(problem: StrategyProblem, status: Status) -> Infeasible:
    where = f"{problem.work.shape.name} on cluster {problem.cluster.name}"
    if status == "stopped":
        return Infeasible("no strategy was found in the time given", where=where, do="give more time")
    what = f"no strategy of {problem.global_batch} samples fits the memory of {problem.cluster.memory / 1e9:g} GB"
    return Infeasible(what, where=where, do="fix fewer fields, or give more devices")


def require_searchable(problem: StrategyProblem) -> None:
    """Refuse a problem before anything is searched.

    Raises:
        BadInput: a device has no constants of training steps, no peak for the precision, no such dispatcher, or no
            memory of hosts; a fixed field does not divide the model; or no number of devices or samples goes together
            with the fields that are fixed: says which two contradict one another.
    """
    usual = {name: getattr(problem, name) for name in ("precision", "dispatcher", "offload")}
    recompute = "offload" if "offload" in problem.fixed.get("recompute", "") else "none"
    strategy = Strategy(micro_batch=1, global_batch=1, recompute=recompute, **usual)
    for kind in problem.devices:
        require_device(kind, strategy)
    if problem.within is not None:
        require_framework(problem, problem.within)
    require_parts(problem.work.shape, **{name: problem.fixed[name] for name in PARTS if name in problem.fixed})
    if not any_subspace(problem):
        names = [name for name in problem.fixed if name not in OUTSIDE_GRID]
        names += [WITHIN] * (problem.within is not None)
        for size in range(1, len(names) + 1):
            for chosen in combinations(names, size):
                fixed = {name: problem.fixed[name] for name in chosen if name != WITHIN}
                within = problem.within if WITHIN in chosen else None
                if not any_subspace(replace(problem, fixed=fixed, within=within)):
                    given = [f"{name} {value}" for name, value in fixed.items()]
                    given += [f"words in {within.name}"] if within else []
                    model = f"{problem.work.shape.name} with {problem.global_batch} samples on cluster"
                    what = f"no strategy of {model} {problem.cluster.name} ({problem.cluster.devices} devices) has "
                    do = "change one of them, or leave it open" if size > 1 else _alone(problem, fixed, within)
                    raise BadInput(what + " and ".join(given), where=f"`{chosen[0]}`", do=do)
        raise BadInput("no strategy divides it", where="`global_batch`", do="give other samples or other layers")


def _alone(problem: StrategyProblem, fixed: dict[str, object], within: Limits | None) -> str:
    """What to do where one field contradicts the number of samples, or else that of devices."""
    samples = -(-problem.global_batch // problem.cluster.devices) * problem.cluster.devices
    if any_subspace(replace(problem, fixed=fixed, within=within, global_batch=samples)):
        return f"change it, or give other samples, such as {samples}"
    return "change it or the number of devices"


def require_framework(problem: StrategyProblem, within: Limits) -> None:
    """Refuse a field, or a model, that the framework has no words for.

    Raises:
        BadInput: there is one; says what the framework has instead.
    """
    for name, value in problem.fixed.items():
        objection = within.field_objection(name, value, problem.work.facts)
        if objection is not None:
            raise BadInput(objection.what, where=f"`{name}`", do=f"{objection.do}, or leave `{WITHIN}` out")
    for objection in (within.precision_objection(problem.precision), within.training_objection(problem.work.facts)):
        if objection is not None:
            raise BadInput(objection.what, where=f"`{WITHIN}`", do="leave it out")
    series = dict.fromkeys(problem.work.layers[layer].name for layer in problem.work.order[1:-1])
    if within.one_series and len(series) > 1:
        what = f"{within.name} takes blocks of one series, and {problem.work.shape.name} has {' and '.join(series)}"
        raise BadInput(what, where=f"`{WITHIN}`", do="leave it out, or take galvatron or deepspeed")


def is_trained(problem: StrategyProblem, strategy: Strategy, within: Limits) -> bool:
    """Whether a framework trains a strategy of the problem's model."""
    with contextlib.suppress(BadInput):
        require_framework(problem, within)
        alike = not within.recompute_alike or strategy.recompute == "offload" or PARTIAL not in steps_of(strategy)
        return alike and within.objection(strategy, problem.work.facts) is None
    return False


def any_subspace(problem: StrategyProblem) -> bool:
    """Whether the model, the samples and the devices can be divided as fixed fields and the framework ask for."""
    grid = Grid(problem)
    return any(grid.schedules(degrees) for degrees in grid.degree_sets())
