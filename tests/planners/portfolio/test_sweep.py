"""Sweeps: a row is no longer than any plan of the other rows is in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import with_microbatch_size
from automap_models.core.staged import StagedProblem
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.sweep import Row, sweep
from automap_models.simulate.plan_step import step_cost

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MakeProblem = Callable[..., StagedProblem]


def rows_on(problem: StagedProblem, clusters: list[Cluster]) -> list[Row]:
    problems = [replace(problem, cluster=cluster) for cluster in clusters]
    combinations = [(p.cluster, p.stages, p.micro_batches, p) for p in problems]
    return sweep(list(combinations), AutoPlanner(AutoConfig(certify_s=0.0)))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), factors=st.lists(st.floats(0.05, 20.0), min_size=2, max_size=4))
def test_the_plans_of_other_links_and_memories_are_candidates_of_every_row(
    make_problem: MakeProblem, seed: int, factors: list[float]
) -> None:
    """A faster link never gives a worse plan than the slower cluster's is on it."""
    problem = replace(make_problem(seed), schedule="1f1b")
    problem = replace(problem, profile=with_microbatch_size(problem.profile, 1 + seed % 9))
    own = problem.cluster
    clusters = [replace(own, inter=own.inter * factor, memory=own.memory / (1 + j)) for j, factor in enumerate(factors)]
    for row, other in permutations(rows_on(problem, clusters), 2):
        if other.outcome.plan is None or row.outcome.problem is None:
            continue
        cost = step_cost(row.outcome.problem, other.outcome.plan)
        if cost.feasible:
            assert row.step_s is not None
            assert row.step_s <= cost.step_s * (1.0 + 1e-9)


def test_faster_links_between_nodes_never_make_a_step_longer(bert_rows: list[Row]) -> None:
    steps = [row.step_s for row in bert_rows]
    assert all(earlier and later and later <= earlier * (1.0 + 1e-9) for earlier, later in pairwise(steps))


@pytest.fixture(scope="module")
def bert_rows() -> list[Row]:
    """BERT-48 in 4 stages on ever faster links; a row was a third longer at 12.5 GB/s than at 3.125 GB/s once."""
    cluster = read_cluster("C")
    clusters = [replace(cluster, inter=inter) for inter in (1.5625e9, 3.125e9, 6.25e9, 12.5e9, 25e9)]
    return rows_on(StagedProblem(read_profile(EXAMPLES / "bert48_v100.npz"), cluster, 4, 32, schedule="1f1b"), clusters)
