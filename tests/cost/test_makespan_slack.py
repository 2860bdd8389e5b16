"""Slack of simulated steps, against longest ways in the graph of everything that waits for something else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from automap_models.cost.makespan import StepTimeline, simulate_step, step_slack
from automap_models.cost.step_tables import StepTables
from automap_models.envs.placement.generator import random_problem


def _longest_paths(pairs: list[tuple[int, int]], task_s: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """[tasks] seconds of the longest way from the start of each task to the end, by Bellman's repeated sweeps."""
    way = task_s.copy()
    source, sink = np.array(pairs).T
    for _ in range(task_s.size):
        longer = way.copy()
        np.maximum.at(longer, source, task_s[source] + way[sink])
        if (longer == way).all():
            return way
        way = longer
    raise AssertionError("a cycle")


def _pairs(tables: StepTables, device: np.ndarray, timeline: StepTimeline) -> list[tuple[int, int]]:  # type: ignore[type-arg]
    """Who waits for whom: readers, transfers, and the next on the same device or channel."""
    n, pairs = device.size, []
    transfer = {
        key: n + t for t, key in enumerate(zip(timeline.producer.tolist(), timeline.target.tolist(), strict=True))
    }
    for u in range(n):
        for s in tables.readers[tables.readers_start[u] : tables.readers_start[u + 1]].tolist():
            if device[s] == device[u]:
                pairs.append((u, s))
            else:
                task = transfer[u, int(device[s])]
                pairs += [(u, task), (task, s)]
    lanes: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for v in range(n):
        lanes.setdefault(("device", int(device[v])), []).append((timeline.start_s[v], v))
    for t, (u, b) in enumerate(zip(timeline.producer.tolist(), timeline.target.tolist(), strict=True)):
        lanes.setdefault(("channel", int(tables.channel[device[u], b])), []).append((timeline.sent_s[t], n + t))
    start = np.concatenate([timeline.start_s, timeline.sent_s])
    finish = np.concatenate([timeline.finish_s, timeline.received_s])
    for lane in lanes.values():
        busy = sorted(pair for pair in lane if finish[pair[1]] > start[pair[1]])
        pairs += [(a, b) for (_, a), (_, b) in pairwise(busy)]
    return pairs


@pytest.mark.parametrize("seed", range(6))
def test_slack_is_what_the_longest_way_behind_an_operation_leaves(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed))
    tables = StepTables.from_problem(problem)
    device = np.random.default_rng(seed).integers(0, problem.devices, len(problem.graph))
    timeline = simulate_step(tables, device)
    slack = step_slack(tables, device, timeline)
    task_s = np.concatenate([timeline.finish_s - timeline.start_s, timeline.received_s - timeline.sent_s])
    way = _longest_paths(_pairs(tables, device, timeline), task_s)[: device.size]
    expected = timeline.makespan_s - timeline.start_s - way
    np.testing.assert_allclose(slack.slack_s, expected, atol=1e-12)
    assert slack.slack_s.min() == pytest.approx(0.0, abs=1e-12)


def test_an_edge_holds_its_reader_up_where_the_transfer_came_last() -> None:
    """By the times of the timeline alone: what each input arrived at, from its own device and from others."""
    problem = random_problem(np.random.default_rng(11))
    tables = StepTables.from_problem(problem)
    device = np.random.default_rng(1).integers(0, problem.devices, len(problem.graph))
    timeline = simulate_step(tables, device)
    slack = step_slack(tables, device, timeline)
    received = dict(
        zip(zip(timeline.producer.tolist(), timeline.target.tolist(), strict=True), timeline.received_s, strict=True)
    )
    producer, consumer = problem.graph.edges.T
    for v in range(device.size):
        inputs = producer[consumer == v]
        own = max((timeline.finish_s[u] for u in inputs if device[u] == device[v]), default=0.0)
        other = max((received[int(u), int(device[v])] for u in inputs if device[u] != device[v]), default=0.0)
        assert slack.wait_s[v] == pytest.approx(max(0.0, other - own))
    assert (slack.wait_s[consumer[slack.delays > 0]] > 0).all()
    assert slack.delays.sum() >= (slack.wait_s > 0).sum()


def test_pairs_of_a_single_device_have_no_wait() -> None:
    problem = random_problem(np.random.default_rng(2))
    tables = StepTables.from_problem(problem)
    device = np.zeros(len(problem.graph), dtype=np.int64)
    slack = step_slack(tables, device, simulate_step(tables, device))
    assert slack.wait_s.max() == 0 and slack.delays.max() == 0
