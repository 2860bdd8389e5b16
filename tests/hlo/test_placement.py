"""Instruction graphs contracted to placement graphs, against what the rule says about every single instruction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from automap_models.core.dag import find_cycle
from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.core.placement import PlacementGraph, PlacementPlan, PlacementProblem
from automap_models.cost.placement import placement_cost
from automap_models.errors import BadInput
from automap_models.hlo.liveness import Liveness
from automap_models.hlo.placement import placement_from_graph

ByHand = Callable[..., InstructionGraph]


def contracted(graph: InstructionGraph, nodes: int, times: object = None, link: float = 2.0) -> PlacementGraph:
    """With times that tell, added up, which instructions a node has: 1, 2, 4, …"""
    telling = 2.0 ** np.arange(len(graph)) if times is None else times
    return placement_from_graph(
        graph,
        telling,
        3.0 * np.asarray(telling),
        nodes=nodes,
        link_bytes_per_s=link,
        accelerators=2,
        cpus=1,
        accelerator_bytes=100.0,
    )


def node_of_instructions(placement: PlacementGraph, n: int) -> list[int]:
    """Which node has each instruction, from the telling times; each must be in exactly one."""
    homes = [[node for node, time in enumerate(placement.accelerator_s) if int(time) >> i & 1] for i in range(n)]
    assert all(len(home) == 1 for home in homes)
    return [home[0] for home in homes]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(2, 12))
def test_nodes_are_what_the_rule_says(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject, nodes: int
) -> None:
    graph = data.draw(random_graphs)
    placement = contracted(graph, nodes)
    assert len(placement) <= nodes
    assert find_cycle(placement.successors()) is None
    assert (placement.edges[:, 0] < placement.edges[:, 1]).all()
    node = node_of_instructions(placement, len(graph))
    assert placement.cpu_s.tolist() == (3.0 * placement.accelerator_s).tolist()
    assert all(placement.backward[node[i]] == (graph.phases[i] != Phase.FORWARD) for i in range(len(graph)))
    shows = Liveness(graph).argument[graph.result_offsets[:-1]] >= 0  # parameters go to what uses them
    forward = [node[i] for i in range(len(graph)) if graph.phases[i] == Phase.FORWARD and not shows[i]]
    assert forward == sorted(forward)
    assert len({int(placement.classes[f]) for f in forward}) == len(set(forward))


def moved_bytes(graph: InstructionGraph, node: list[int], assignment: np.ndarray) -> list[float]:
    """[2] bytes that cross each device's border, value by value, each once for its maker's and each reader's device."""
    liveness = Liveness(graph)
    crossing = set()
    for value, reader in zip(graph.operands.tolist(), graph.consumers.tolist(), strict=True):
        shown = int(liveness.storage[value])
        producer = int(graph.producers[shown])
        if producer >= 0 and liveness.is_activation[shown]:
            ends = {int(assignment[node[producer]]), int(assignment[node[reader]])}
            crossing |= {(shown, device) for device in ends if len(ends) == 2}
    return [sum(graph.value_bytes[v] for v, at in crossing if at == device) for device in range(2)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(2, 12))
def test_a_placement_moves_exactly_the_values_that_are_read_on_another_device(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject, nodes: int
) -> None:
    graph = data.draw(random_graphs)
    placement = contracted(graph, nodes)
    groups = int(placement.classes.max()) + 1
    assignment = np.array(data.draw(st.lists(st.integers(0, 1), min_size=groups, max_size=groups)))[placement.classes]
    cost = placement_cost(PlacementProblem.create(placement), PlacementPlan("drawn", assignment))
    expected = moved_bytes(graph, node_of_instructions(placement, len(graph)), assignment)
    assert (2.0 * cost.transfer_s[:2]).tolist() == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(2, 12))
def test_an_edge_or_two_lead_from_each_maker_to_each_reader(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject, nodes: int
) -> None:
    graph = data.draw(random_graphs)
    placement, liveness = contracted(graph, nodes), Liveness(graph)
    node = node_of_instructions(placement, len(graph))
    expected = set()
    for value, reader in zip(graph.operands.tolist(), graph.consumers.tolist(), strict=True):
        shown = int(liveness.storage[value])
        producer = int(graph.producers[shown])
        if producer >= 0 and liveness.is_activation[shown] and node[producer] != node[reader]:
            expected.add((node[producer], node[reader]))
    holders, successors = set(node), placement.successors()
    direct = {(a, b) for a, b in placement.edges.tolist() if a in holders and b in holders}
    sent = {(a, b) for a in holders for sender in successors[a] if sender not in holders for b in successors[sender]}
    assert direct | sent == expected


def test_a_cut_moves_to_where_little_crosses_but_not_far(by_hand: ByHand) -> None:
    # 12 instructions of equal time in two groups: the cut may move by 3 of them from the middle.
    crossing = [9, 1, 9, 5, 9, 9, 9, 9, 9, 9, 9, 9]
    chain = [("add", "", Phase.FORWARD, [i], size) for i, size in enumerate(crossing)]
    placement = contracted(by_hand(chain, [("input", 4)]), nodes=2, times=np.ones(12))
    assert placement.accelerator_s.tolist() == [4.0, 8.0]
    assert placement.output_bytes.tolist() == [5.0, 0.0]
    assert not placement.is_training


def two_layers(by_hand: ByHand) -> InstructionGraph:
    """Two layers, their gradients, and an optimiser whose step counter, made beside layer 0, all updates read."""
    p0, p1, x, count = 0, 1, 2, 3
    f0, f1, b1, b0, step, u0, u1 = range(4, 11)
    return by_hand(
        [
            ("dot", "0", Phase.FORWARD, [p0, x], 40),
            ("dot", "1", Phase.FORWARD, [p1, f0], 20),
            ("mul", "1", Phase.BACKWARD, [f1, f0], 48),
            ("mul", "0", Phase.BACKWARD, [b1, f0], 44),
            ("add", "", Phase.UPDATE, [count], 4),
            ("sub", "", Phase.UPDATE, [p0, b0, step], 44),
            ("sub", "", Phase.UPDATE, [p1, b1, step], 48),
        ],
        [("parameter", 44), ("parameter", 48), ("input", 12), ("state", 4)],
        outputs=[u0, u1],
    )


def test_an_update_that_reads_an_earlier_group_is_a_node_of_its_own(by_hand: ByHand) -> None:
    placement = contracted(two_layers(by_hand), nodes=5, times=np.ones(7))
    #         forward 0, 1  backward 1  backward 0, counter, update 0  update 1
    assert placement.accelerator_s.tolist() == [1.0, 1.0, 1.0, 3.0, 1.0]
    assert placement.classes.tolist() == [0, 1, 1, 0, 1]
    assert placement.backward.tolist() == [False, False, True, True, True]
    assert placement.edges.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [2, 3], [2, 4], [3, 4]]
    # Layer 0's output is read by class 1, its gradient's input by class 0, the counter by class 1.
    assert placement.output_bytes.tolist() == [40.0, 0.0, 48.0, 4.0, 0.0]


def test_memory_is_arguments_gradients_and_what_is_kept(by_hand: ByHand) -> None:
    placement = contracted(two_layers(by_hand), nodes=5, times=np.ones(7))
    parameters_and_input, kept = [44 + 12, 48, 0, 0, 0], [40, 20, 0, 0, 0]
    gradients_and_state = [0, 0, 48, 44 + 4, 0]
    assert placement.memory_bytes.tolist() == np.sum([parameters_and_input, kept, gradients_and_state], axis=0).tolist()


def test_too_few_nodes_for_all_groups_make_fewer_groups(by_hand: ByHand) -> None:
    assert len(contracted(two_layers(by_hand), nodes=4)) == 2


def test_a_training_step_loses_no_time_and_no_parameter(transformer_graph: InstructionGraph) -> None:
    times = np.linspace(1.0, 2.0, len(transformer_graph))
    parameters = sum(
        transformer_graph.value_bytes[v] for v, a in enumerate(transformer_graph.arguments) if a.kind == "parameter"
    )
    for nodes in (2, 20, 80):
        placement = contracted(transformer_graph, nodes, times)
        assert nodes // 2 <= len(placement) <= nodes
        assert placement.accelerator_s.sum() == pytest.approx(times.sum())
        assert placement.memory_bytes[~placement.backward].sum() >= parameters
        assert placement.memory_bytes[placement.backward].sum() >= 3 * parameters  # gradients, Adam's two moments
        assert len(placement) == 2 or any("block_0" in name for name in placement.names)


def test_a_residual_leaves_beside_what_the_next_layer_reads(transformer_graph: InstructionGraph) -> None:
    times = np.ones(len(transformer_graph))
    placement = contracted(transformer_graph, 80, times)
    outputs = np.array([name.endswith(", output") for name in placement.names])
    assert outputs.any()
    assert not placement.accelerator_s[outputs].any()
    assert not placement.memory_bytes[outputs].any()
    assert (placement.transfer_s[outputs] > 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 1}, "`nodes`: 1 node"),
        ({"link": 0.0}, "`link_bytes_per_s`: 0.0 bytes/s"),
        ({"link": np.nan}, "`link_bytes_per_s`: nan bytes/s"),
    ],
)
def test_a_mistake_is_named(change: dict[str, object], message: str, by_hand: ByHand) -> None:
    with pytest.raises(BadInput, match=message):
        contracted(two_layers(by_hand), **{"nodes": 4, **change})  # type: ignore[arg-type]
