"""Planners of the objective `step`: against all placements of small graphs, and by what they promise."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.placement import PlacementGraph, PlacementProblem
from automap_models.core.step_devices import StepDevices
from automap_models.cost.makespan import step_values
from automap_models.cost.step_tables import StepTables
from automap_models.errors import Infeasible
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.registry import make_planner


def chains(count: int, length: int, bytes_moved: float = 1.0) -> PlacementGraph:
    """`count` chains of `length` operations of a second each, between one source and one sink without time."""
    n = count * length + 2
    edges = []
    for chain in range(count):
        first = 1 + chain * length
        edges += [(0, first), (first + length - 1, n - 1)]
        edges += [(first + i, first + i + 1) for i in range(length - 1)]
    time_s = np.array([0.0, *[1.0] * (count * length), 0.0])
    return PlacementGraph(
        ids=tuple(range(n)),
        names=("in", *(f"chain_{c}/op_{i}" for c in range(count) for i in range(length)), "out"),
        accelerator_s=time_s,
        cpu_s=10 * time_s,
        memory_bytes=np.ones(n),
        transfer_s=np.full(n, bytes_moved),
        output_bytes=np.full(n, bytes_moved),
        supported=np.ones(n, dtype=bool),
        backward=np.zeros(n, dtype=bool),
        classes=np.arange(n),
        edges=np.array(sorted(edges)),
        accelerators=count,
        cpus=0,
        accelerator_bytes=1e9,
    )


@pytest.mark.parametrize("name", ["m-etf", "expert", "metis", "local-search"])
def test_independent_chains_go_to_devices_of_their_own(name: str) -> None:
    """Three chains of ten seconds: ten, with the way in from the source and out to the sink (the expert's answer)."""
    result = make_planner(name, kind="placement").solve(PlacementProblem.create(chains(3, 10, 0.5), objective="step"))
    assert result.cost.value_s <= 11.0 + 1e-9
    if name == "local-search":
        devices = result.required_plan().assignment[1:-1].reshape(3, 10)
        assert (devices == devices[:, :1]).all()
        assert len(set(devices[:, 0])) == 3


@pytest.mark.parametrize("name", ["m-etf", "expert"])
def test_a_chain_whose_transfers_are_long_stays_where_it_is_but_for_an_experts(name: str) -> None:
    """One after the other: a second device can only add transfers."""
    problem = replace(PlacementProblem.create(chains(1, 8, 5.0), objective="step"), accelerators=2)
    result = make_planner(name, kind="placement").solve(problem)
    assert result.cost.value_s == pytest.approx(13.0 if name == "expert" else 8.0)
    assert (result.status == "optimal") == (name != "expert")


@pytest.mark.parametrize("seed", range(4))
def test_local_search_finds_the_best_of_all_placements_of_small_graphs(seed: int) -> None:
    random = np.random.default_rng(seed)
    graph = chains(2, 3, float(random.uniform(0.1, 2)))
    graph = replace(graph, accelerator_s=random.random(8), accelerators=2)
    problem = PlacementProblem.create(graph, objective="step")
    values, _ = step_values(StepTables.from_problem(problem), np.array(list(itertools.product(range(2), repeat=8))))
    result = make_planner("local-search", kind="placement").solve(problem)
    assert result.cost.value_s == pytest.approx(values.min(), rel=1e-12)
    assert result.bound is not None and result.bound.value <= values.min()


def test_a_faster_device_gets_a_chain_alone() -> None:
    network = replace(StepDevices.equal(2, 0, 1e9, 1.0), slowdown=np.array([3.0, 1.0]))
    result = make_planner("local-search", kind="placement").solve(PlacementProblem.of_step(chains(1, 6, 9.0), network))
    assert result.required_plan().assignment[1:-1].tolist() == [1] * 6
    assert result.cost.value_s == pytest.approx(6.0)
    assert result.bound is not None and result.bound.value <= 6.0


@pytest.mark.parametrize("name", ["m-etf", "local-search"])
def test_memory_that_forces_a_split_is_kept_to(name: str) -> None:
    """Ten bytes of operations on devices of six: no device may hold them all."""
    network = StepDevices.equal(2, 0, 6.0, 1.0)
    result = make_planner(name, kind="placement").solve(PlacementProblem.of_step(chains(2, 4), network))
    assert result.cost.memory_bytes.max() <= 6.0


def test_memory_that_nothing_fits_is_told() -> None:
    network = StepDevices.equal(2, 0, 4.0, 1.0)
    with pytest.raises(Infeasible, match="GB"):
        make_planner("local-search", kind="placement").plan(PlacementProblem.of_step(chains(2, 4), network))


@pytest.mark.parametrize("name", ["local-search", "learned"])
def test_where_no_baseline_fits_a_packing_does(name: str) -> None:
    """Two devices of nine bytes, operations of 2, 2, 4, 5, 3 and 2 in a row: first fit has 8 and 8 and no room."""
    graph = chains(1, 4, 1e-3)
    graph = replace(graph, memory_bytes=np.array([2.0, 2.0, 4.0, 5.0, 3.0, 2.0]), accelerator_s=np.ones(6))
    problem = PlacementProblem.of_step(graph, StepDevices.equal(2, 0, 9.0, 1.0))
    result = make_planner(name, kind="placement").solve(problem)
    assert result.cost.memory_bytes.tolist() == [9.0, 9.0]
    etf = make_planner("m-etf", kind="placement").solve(problem)
    assert etf.reason is not None and "try planner local-search, since one is known to fit" in str(etf.reason)


def test_unequal_devices_are_told_how_much_more_they_need() -> None:
    """Ten bytes on devices of three and six: at least a ninth more; whole bytes fill them with 4 and 6."""
    network = replace(StepDevices.equal(2, 0, 6.0, 1.0), memory_bytes=np.array([3.0, 6.0]))
    with pytest.raises(Infeasible, match=r"try 1\.1[0-9] times the memory of each device|try 1\.[23][0-9]* times"):
        make_planner("local-search", kind="placement").plan(PlacementProblem.of_step(chains(2, 4), network))


def test_devices_without_a_link_of_their_own_reach_each_other_over_others() -> None:
    """NVLinks of a DGX-1 (V100 white paper): 25 GB/s each; 0 and 5 have none, and 16.7 GB/s over 1."""
    network = StepDevices.of_cluster(read_cluster("dgx-1"))
    rate = network.bytes_per_s[network.channel]
    assert rate[0, 1] == 25e9 and rate[0, 3] == 50e9
    assert rate[0, 7] == pytest.approx(25e9)  # over device 4, 50 GB/s twice
    assert rate[0, 5] == pytest.approx(1 / (1 / 25e9 + 1 / 50e9))


def test_layers_stay_whole_and_in_order_for_the_expert() -> None:
    problem = PlacementProblem.create(chains(4, 5), objective="step", accelerators=2)
    device = make_planner("expert", kind="placement").plan(problem).assignment[1:-1].reshape(4, 5)
    assert (device == device[:, :1]).all()
    assert device[:, 0].tolist() == [0, 0, 1, 1]
