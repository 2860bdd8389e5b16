"""The compiled loops of the exact search against those in numpy, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.compiled import is_compiled
from automap_models.core.profile import SharedParameter
from automap_models.planners.staged import feasibility, pareto, relaxation
from automap_models.planners.staged.feasibility import even_plan, stages_exist
from automap_models.planners.staged.pareto import pareto_front
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.relaxation import least_excess, least_length_s
from automap_models.planners.staged.search import exact_search

pytest.importorskip("numba")
search_kernel = pareto.compiled_search()
MODULES = (feasibility, pareto, relaxation)


def test_the_loops_are_compiled():
    assert search_kernel is not None
    names = ("least_through", "undominated", "furthest_ends", "least_maxima")
    assert all(is_compiled(getattr(search_kernel, name)) for name in names)


def in_numpy(patch: pytest.MonkeyPatch) -> None:
    """From now on as where numba is not installed."""
    for module in MODULES:
        patch.setattr(module, "compiled_search", lambda: None)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 5),
    size=st.integers(0, 60),
    groups=st.integers(1, 5),
    values=st.integers(1, 12),
)
def test_fronts_are_the_same(seed, count, size, groups, values):
    """With many equal numbers, infinite ones among them, and groups of one entry."""
    rng = np.random.default_rng(seed)
    group = np.sort(rng.integers(groups, size=size))
    numbers = rng.integers(values, size=(count, size)) * rng.uniform(0.5, 1.0, size=(count, 1))
    numbers[-1, rng.uniform(size=size) < 0.2] = -np.inf
    compiled = pareto_front(group, numbers)
    with pytest.MonkeyPatch.context() as patch:
        in_numpy(patch)
        assert compiled.tolist() == pareto_front(group, numbers).tolist()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), stretch=st.floats(0.8, 3.0), tied=st.booleans())
def test_what_stages_reach_and_plans_are_the_same(seed, stretch, tied, make_problem):
    """With parameters that instructions share, too, of which stages hold copies."""
    problem = make_problem(seed, max_n=30, max_devices=12, max_stages=5)
    if tied:
        profile = problem.profile
        uses = tuple(np.sort(np.random.default_rng(seed).choice(len(profile), 3, replace=False)).tolist())
        W = profile.W.copy()
        W[uses[0]] = max(W.max(), 1.0)
        shared = (SharedParameter("table", float(W[uses[0]]), uses),)
        problem = replace(problem, profile=replace(profile, W=W, shared_parameters=shared))
    tables = tables_of(problem)
    if not stages_exist(tables, np.inf, tables.memory):
        return

    def looked_at() -> list[object]:
        """Of plans of a random length what each module says, from nothing known."""
        tables.reach.too_short_s = tables.reach.enough_s = np.nan
        length_s = stretch * tables.micro_batches * float(tables.C[-1]) / tables.replicas_in_all
        plan = even_plan(tables, length_s, tables.memory)
        reached = [of.tolist() for of in feasibility._reached(tables, length_s, tables.memory)]
        result = exact_search(problem)
        return [reached, plan and plan.q.tolist(), least_length_s(tables, relaxation.Deadline()), result]

    compiled = looked_at()
    with pytest.MonkeyPatch.context() as patch:
        in_numpy(patch)
        assert compiled == looked_at()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), schedule=st.sampled_from(["1f1b", "gpipe"]))
def test_what_earlier_stages_add_to_round_trips_is_the_same(seed, schedule, make_problem):
    tables = tables_of(replace(make_problem(seed, max_n=30, max_devices=12, max_stages=6), schedule=schedule))
    compiled = least_excess.__wrapped__(tables)
    with pytest.MonkeyPatch.context() as patch:
        in_numpy(patch)
        assert np.array_equal(compiled, least_excess.__wrapped__(tables))
    if tables.stages > 1:
        assert np.array_equal(compiled[-1], by_brute_force(tables))


def by_brute_force(tables) -> np.ndarray:
    """What one of the stages before the last adds at least, from all ways to divide what comes before it."""
    excess = np.full((tables.replicas_in_all + 1, tables.end + 1), np.inf)
    excess[0, 0] = 0.0
    for s in range(tables.stages - 1):
        of_both, of_forward = tables.suffixes.own_weights(s)
        after = np.full_like(excess, np.inf)
        for sharding in tables.shardings:
            for a, q in zip(*np.nonzero(sharding.allowed), strict=True):
                place, rate = (0 if sharding.place is None else sharding.place[a, q]), sharding.paces.rate[a, q]
                sums = (of_both * sharding.C[place] + of_forward * sharding.F[place]) / rate
                if sharding.shared:
                    sums = sums + of_both * sharding.shared.start_s + of_forward * sharding.shared.start_forward_s
                for k in range(tables.end + 1):
                    before = excess[a, : k + 1]
                    least = np.maximum(before, sums[k] - sums[: k + 1]).min()
                    after[q, k] = min(after[q, k], least)
        excess = after
    return excess
