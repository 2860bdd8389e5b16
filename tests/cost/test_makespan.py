"""The simulated step against a second simulator, brute force and published totals."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.placement import PlacementGraph, PlacementPlan, PlacementProblem
from automap_models.core.step_devices import StepDevices
from automap_models.cost.makespan import makespan_bound_s, simulate_step, step_values
from automap_models.cost.placement import placement_cost
from automap_models.cost.step_tables import StepTables
from automap_models.errors import BadInput
from automap_models.formats.planning_graphs import read_placement


def drawn_graph(seed: int, nodes: int, *, zeros: bool = False) -> PlacementGraph:
    """Random edges between operations of whole seconds and bytes, so that sums are exact."""
    random = np.random.default_rng(seed)
    pairs = [(a, b) for a in range(nodes) for b in range(a + 1, nodes) if random.random() < 2.5 / nodes]
    time_s = random.integers(0 if zeros else 1, 9, nodes).astype(float)
    return PlacementGraph(
        ids=tuple(range(nodes)),
        names=("",) * nodes,
        accelerator_s=time_s,
        cpu_s=3 * time_s,
        memory_bytes=random.integers(0, 5, nodes).astype(float),
        transfer_s=np.zeros(nodes),
        output_bytes=random.integers(0 if zeros else 1, 7, nodes).astype(float),
        supported=np.ones(nodes, dtype=bool),
        backward=np.zeros(nodes, dtype=bool),
        classes=np.arange(nodes),
        edges=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        accelerators=2,
        cpus=0,
        accelerator_bytes=1e9,
        live_bytes=random.integers(1, 6, nodes).astype(float),
    )


def drawn_devices(seed: int, devices: int) -> StepDevices:
    """Unequal speeds, links of several bandwidths, and where there are four devices two pairs that share a channel."""
    random = np.random.default_rng(seed)
    network = StepDevices.equal(devices, 0, 1e9, 1.0, 2.0)
    channel = network.channel.copy()
    if devices > 3:
        channel[0, 3] = channel[0, 2]
    return replace(
        network,
        channel=channel,
        slowdown=2.0 ** random.integers(-1, 2, devices),
        bytes_per_s=2.0 ** random.integers(-1, 3, network.bytes_per_s.size),
        latency_s=random.integers(0, 3, network.latency_s.size).astype(float),
    )


def slow_step(problem: PlacementProblem, device: list[int]) -> tuple[float, list[float]]:  # noqa: PLR0912
    """The makespan and the peaks by the module's rules, from lists, one instant after the other."""
    graph, network, times = problem.graph, problem.step_devices, problem.device_times_s
    readers: dict[int, set[int]] = {v: set() for v in range(len(graph))}
    inputs: dict[int, set[int]] = {v: set() for v in range(len(graph))}
    for a, b in graph.edges.tolist():
        readers[a].add(b)
        inputs[b].add(a)

    def transfer(u: int, b: int) -> float:
        c = network.channel[device[u], b]
        return float(network.latency_s[c] + graph.output_bytes[u] / network.bytes_per_s[c])

    def seconds(task: tuple[int, int]) -> float:
        return transfer(*task) if task[1] >= 0 else float(times[device[task[0]], task[0]])

    rank: dict[tuple[int, int], float] = {}

    def ranked(task: tuple[int, int]) -> float:  # of an operation (v, -1), or a transfer (v, device)
        if task not in rank:
            v, b = task
            if b < 0:
                after = [ranked((s, -1) if device[s] == device[v] else (v, device[s])) for s in readers[v]]
            else:
                after = [ranked((s, -1)) for s in readers[v] if device[s] == b]
            rank[task] = seconds(task) + max(after, default=0.0)
        return rank[task]

    def precedence(task: tuple[int, int]) -> float:
        if network.order == "path":
            return ranked(task)
        return -max([ends[p] for p in precedes(task)], default=0.0)

    def precedes(task: tuple[int, int]) -> list[tuple[int, int]]:
        v, b = task
        return [(v, -1)] if b >= 0 else [(u, -1) if device[u] == device[v] else (u, device[v]) for u in inputs[v]]

    operations = [(v, -1) for v in readers]
    moved = [(u, b) for u in readers for b in dict.fromkeys(device[s] for s in sorted(readers[u])) if b != device[u]]
    tasks = operations + moved  # equal ranks: in this order
    station: dict[tuple[int, int], object] = {
        t: ("d", device[t[0]]) if t[1] < 0 else ("c", network.channel[device[t[0]], t[1]]) for t in tasks
    }
    if not network.turns:
        station |= {t: t for t in moved}
    ends: dict[tuple[int, int], float] = {}
    begins: dict[tuple[int, int], float] = {}
    now = 0.0
    while len(ends) < len(tasks) or max(ends.values()) > now:
        started = True
        while started:
            started = False
            done = {t for t, end in ends.items() if end <= now}
            ready = [t for t in tasks if t not in ends and all(p in done for p in precedes(t))]
            for t in ready:
                if seconds(t) == 0:
                    begins[t] = ends[t] = now
                    started = True
            if started:
                continue
            for place in set(station.values()):
                if any(station[t] == place and begins[t] <= now < ends[t] for t in ends):
                    continue
                here = [t for t in ready if station[t] == place]
                if here:
                    first = max(here, key=lambda t: (precedence(t), -tasks.index(t)))
                    begins[first], ends[first] = now, now + seconds(first)
        later = [end for end in ends.values() if end > now]
        if not later:
            break
        now = min(later)
    peaks = []
    for d in range(len(network)):
        held = float(sum(graph.memory_bytes[v] for v in readers if device[v] == d))
        spans = []
        for v, after in readers.items():
            local = [ends[s, -1] for s in after if device[s] == d]
            if device[v] == d:
                sent = [ends[t] for t in moved if t[0] == v]
                spans.append((begins[v, -1], max([ends[v, -1], *local, *sent]), v))
            elif (v, d) in ends:
                spans.append((begins[v, d], max(local), v))
        at = [held + sum(graph.live_bytes[v] for a, b, v in spans if a <= t < b) for t, _, _ in spans]  # type: ignore[index]
        peaks.append(max([held, *at]))
    return max(end for (_, b), end in ends.items() if b < 0), peaks


@pytest.mark.parametrize("seed", range(6))
def test_every_placement_of_a_small_graph_takes_as_long_as_a_second_simulator_says(seed: int) -> None:
    devices, nodes = (2, 8) if seed % 2 else (3, 5)
    problem = PlacementProblem.of_step(drawn_graph(seed, nodes), drawn_devices(seed, devices))
    tables = StepTables.from_problem(problem)
    placements = np.array(list(itertools.product(range(devices), repeat=nodes)))
    values, _ = step_values(tables, placements)
    for placement, value in zip(placements, values, strict=True):
        makespan, peaks = slow_step(problem, placement.tolist())
        assert value == makespan
        assert simulate_step(tables, placement).peak_bytes.tolist() == peaks
    assert makespan_bound_s(tables) <= values.min()


@given(
    st.integers(0, 10_000), st.integers(2, 12), st.integers(2, 4), st.sampled_from(["path", "arrival"]), st.booleans()
)
def test_devices_that_run_by_arrival_and_links_without_turns(
    seed: int, nodes: int, devices: int, order: Literal["path", "arrival"], turns: bool
) -> None:
    network = replace(drawn_devices(seed, devices), order=order, turns=turns)
    problem = PlacementProblem.of_step(drawn_graph(seed, nodes, zeros=True), network)
    placement = np.random.default_rng(seed).integers(0, devices, nodes)
    tables = StepTables.from_problem(problem)
    timeline = simulate_step(tables, placement)
    assert timeline.makespan_s == slow_step(problem, placement.tolist())[0]
    assert makespan_bound_s(tables) <= timeline.makespan_s


@pytest.mark.parametrize(("size_bytes", "shortest_s"), [(1.0, 12.0), (4.0, 15.0), (20.0, 21.0)])
def test_two_inputs_are_on_one_device_or_one_of_them_is_sent(size_bytes: float, shortest_s: float) -> None:
    """Two operations of 10 s and their reader of 1 s: sent in 1 or 4 s, or one after the other. The bound was half of
    the work, or 11 s along a path, whatever a transfer takes."""
    graph = replace(
        drawn_graph(0, 3),
        accelerator_s=np.array([10.0, 10.0, 1.0]),
        output_bytes=np.full(3, size_bytes),
        edges=np.array([[0, 2], [1, 2]]),
    )
    tables = StepTables.from_problem(PlacementProblem.of_step(graph, StepDevices.equal(2, 0, 1e9, 1.0)))
    values, _ = step_values(tables, np.array(list(itertools.product(range(2), repeat=3))))
    assert values.min() == shortest_s
    assert makespan_bound_s(tables) == pytest.approx(shortest_s, rel=1e-9)


def test_every_placement_of_twelve_operations_takes_as_long_as_a_second_simulator_says() -> None:
    problem = PlacementProblem.of_step(drawn_graph(11, 12), drawn_devices(11, 2))
    placements = np.array(list(itertools.product(range(2), repeat=12)))
    values, _ = step_values(StepTables.from_problem(problem), placements)
    assert values.tolist() == [slow_step(problem, placement.tolist())[0] for placement in placements]


@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(2, 4))
def test_operations_and_transfers_without_time_do_not_wait(seed: int, nodes: int, devices: int) -> None:
    problem = PlacementProblem.of_step(drawn_graph(seed, nodes, zeros=True), drawn_devices(seed, devices))
    placement = np.random.default_rng(seed).integers(0, devices, nodes)
    tables = StepTables.from_problem(problem)
    timeline = simulate_step(tables, placement)
    assert timeline.makespan_s == slow_step(problem, placement.tolist())[0]
    assert makespan_bound_s(tables) <= timeline.makespan_s


@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 5))
def test_nothing_starts_before_its_inputs_and_nobody_does_two_things_at_a_time(
    seed: int, nodes: int, devices: int
) -> None:
    problem = PlacementProblem.of_step(drawn_graph(seed, nodes, zeros=True), drawn_devices(seed, devices))
    device = np.random.default_rng(seed).integers(0, devices, nodes)
    line = simulate_step(StepTables.from_problem(problem), device)
    arrives = {
        (u, b): t
        for u, b, t in zip(line.producer.tolist(), line.target.tolist(), line.received_s.tolist(), strict=True)
    }
    for u, v in problem.graph.edges.tolist():
        there = line.finish_s[u] if device[u] == device[v] else arrives[u, int(device[v])]
        assert line.start_s[v] >= there
    channel = problem.step_devices.channel[device[line.producer], line.target]
    spans = [("d", d, a, b) for d, a, b in zip(device, line.start_s, line.finish_s, strict=True) if b > a]
    spans += [("c", c, a, b) for c, a, b in zip(channel, line.sent_s, line.received_s, strict=True) if b > a]
    for (kind, where, _, end), (other, at, start, _) in itertools.pairwise(sorted(spans)):
        assert (kind, where) != (other, at) or start >= end


@pytest.mark.parametrize(
    ("name", "total_ms"),
    [
        ("throughput-inputs_LayerGraphs_bert24_training", 217.81),
        ("throughput-inputs_LayerGraphs_resnet50_training", 462.38),
        ("throughput-inputs_OperatorGraphs_bert_l-3_training", 122.99),
    ],
)
def test_a_published_graph_on_one_device_takes_what_the_paper_says(
    name: str, total_ms: float, shared_data: Path
) -> None:
    problem = PlacementProblem.create(
        read_placement(shared_data / "placement_graphs" / f"{name}.json"),
        objective="step",
        accelerators=1,
        cpus=0,
        memory_bytes=1e15,
    )
    cost = placement_cost(problem, PlacementPlan("single", np.zeros(len(problem.graph), dtype=np.int64)))
    assert cost.feasible
    assert cost.value_s * 1e3 == pytest.approx(total_ms, abs=0.005 + 1e-9)


@pytest.mark.parametrize("name", ["LayerGraphs_bert24", "OperatorGraphs_bert_l-3"])
def test_the_published_latency_of_a_split_is_no_less_than_its_step(name: str, shared_data: Path) -> None:
    """A piece of the latency model waits for all its inputs and sends at its end; a step waits for each on its own."""
    path = shared_data / "placement_graphs" / f"latency-inputs_{name}_inference.json"
    if not path.exists():
        path = shared_data / "placement_graphs" / f"throughput-inputs_{name}_inference.json"
    graph = read_placement(path)
    from automap_models.planners.registry import make_planner

    latency = PlacementProblem.create(graph, objective="latency")
    plan = make_planner("local-search", kind="placement").plan(latency)
    step = PlacementProblem.create(graph, objective="step")
    assert placement_cost(step, plan).value_s <= placement_cost(latency, plan).value_s * (1 + 1e-9)


def test_two_hundred_placements_of_5000_operations_are_simulated_in_a_second() -> None:
    random = np.random.default_rng(0)
    nodes = 5000
    ends = {(max(0, v - int(random.geometric(0.05))), v) for v in range(1, nodes) for _ in range(2)}
    graph = replace(
        drawn_graph(0, 2),
        **{key: random.random(nodes) for key in ("accelerator_s", "cpu_s", "memory_bytes", "output_bytes")},
        transfer_s=random.random(nodes),
        live_bytes=random.random(nodes),
        ids=tuple(range(nodes)),
        names=("",) * nodes,
        supported=np.ones(nodes, dtype=bool),
        backward=np.zeros(nodes, dtype=bool),
        classes=np.arange(nodes),
        edges=np.array(sorted(ends)),
    )
    tables = StepTables.from_problem(PlacementProblem.create(graph, objective="step", accelerators=8))
    placements = np.sort(random.integers(0, 8, (20, nodes)), axis=1)
    step_values(tables, placements[:1])
    begun_s = time.process_time()
    step_values(tables, placements)
    assert 20 / (time.process_time() - begun_s) >= 200


def test_memory_that_a_step_passes_is_told() -> None:
    graph = drawn_graph(1, 6)
    problem = PlacementProblem.create(graph, objective="step", memory_bytes=float(graph.memory_bytes.sum()) + 0.5)
    cost = placement_cost(problem, PlacementPlan("all", np.zeros(6, dtype=np.int64)))
    assert not cost.feasible
    assert cost.memory_bytes[0] > graph.memory_bytes.sum()


def test_devices_without_a_link_are_refused() -> None:
    network = StepDevices.equal(3, 0, 1e9, 1.0)
    channel = network.channel.copy()
    channel[2, 0] = -1
    with pytest.raises(BadInput, match="no link from 2 to 0"):
        replace(network, channel=channel)


def test_a_kind_that_the_graph_has_no_times_for_is_refused() -> None:
    network = replace(StepDevices.equal(2, 0, 1e9, 1.0), kinds=("accelerator", "a100"))
    with pytest.raises(BadInput, match="no times for devices of kind 'a100'"):
        PlacementProblem.of_step(drawn_graph(0, 4), network)
