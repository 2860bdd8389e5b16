"""From graph and times to a profile: the sums are kept, everything is at home, what is shared is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from automap_models.core.instruction_graph import Argument, InstructionGraph, Phase
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.hlo.attribution import homes
from automap_models.hlo.liveness import NEVER, Liveness
from automap_models.hlo.profile import clock_profile, profile_from_graph

F, B, U = Phase


@settings(deadline=None)
@given(data=st.data())
def test_sums_are_kept_whatever_the_graph(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject
) -> None:
    graph = data.draw(random_graphs)
    n = len(graph)
    times = np.array(data.draw(st.lists(st.floats(0, 1e3, allow_subnormal=False), min_size=n, max_size=n)))
    assume(times[graph.phases != U].sum() > 0)
    profile = profile_from_graph(graph, times, {})
    parameters = [a.kind == "parameter" for a in graph.arguments]
    assert profile.C.sum() == pytest.approx(times[graph.phases != U].sum(), rel=1e-12)
    assert profile.C_fwd.tolist() == times[graph.phases == F].tolist()
    assert profile.W.sum() == graph.value_bytes[: len(parameters)][parameters].sum()
    assert (profile.C_fwd <= profile.C).all()
    phases = [profile.meta[f"{phase}_s"] for phase in ("forward", "backward", "update_per_step")]
    assert sum(phases) == pytest.approx(times.sum(), rel=1e-12)


@settings(deadline=None)
@given(data=st.data())
def test_forward_instructions_are_at_home_with_themselves(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject
) -> None:
    liveness = Liveness(data.draw(random_graphs))
    home = homes(liveness)
    assert home[liveness.forward].tolist() == list(range(liveness.forward.size))
    assert home.min() >= NEVER
    assert home.max() < liveness.forward.size


def test_a_profile_by_the_clock_says_how_long_other_kinds_of_devices_take(mlp_graph: InstructionGraph) -> None:
    a100, slow = read_device("a100"), replace(read_device("v100"), name="attic", bandwidth=1e9)
    own, other = clock_profile(mlp_graph, a100), clock_profile(mlp_graph, slow)
    assert own.device == "a100"
    assert own.roofline_s["a100"] == pytest.approx(own.C.sum())
    assert set(known_devices()) == set(own.roofline_s) == set(other.roofline_s) - {"attic"}
    assert other.roofline_s["attic"] == pytest.approx(other.C.sum())
    assert other.roofline_s["v100"] == own.roofline_s["v100"] < other.roofline_s["attic"]


def test_an_mlp_by_hand(mlp_graph: InstructionGraph) -> None:
    profile = profile_from_graph(mlp_graph, mlp_graph.bytes_accessed, {"device": "ruler"})
    layers = np.array(profile.layers)
    first, second = layers == "first", layers == "second"
    assert profile.W[first].sum() == 4 * (8 * 16 + 16)
    assert profile.W[second].sum() == 4 * (16 * 3 + 3)
    assert profile.W.sum() == profile.W[first | second].sum()
    ends = [np.flatnonzero(of)[-1] for of in (first, second)]
    assert profile.A[ends[0]] == 4 * 4 * 16  # the hidden activations of 4 samples
    assert profile.A[ends[1]] == 4 * 4 * 3  # the logits
    assert profile.A[-1] == 0.0
    assert profile.meta["device"] == "ruler"
    assert profile.meta["unattributed_s"] == 0.0
    assert profile.shared_parameters == ()
    assert profile.meta["parameter_dtype"] == "float32"


def test_backward_products_belong_to_the_forward_product_of_their_layer(transformer_graph: InstructionGraph) -> None:
    """A step whose products alone take time costs each dense layer thrice its forward time."""
    graph = transformer_graph
    times = np.where([opcode.startswith("dot") for opcode in graph.opcodes], graph.flop, 0.0)
    profile = profile_from_graph(graph, times)
    busy = profile.C_fwd > 0
    np.testing.assert_allclose(profile.C[busy], 3 * profile.C_fwd[busy])
    assert not profile.C[~busy].any()


def test_updates_belong_to_the_first_use_of_their_parameter(transformer_graph: InstructionGraph) -> None:
    graph = transformer_graph
    liveness = Liveness(graph)
    home = homes(liveness)[(graph.phases == U) & (graph.bytes_accessed > 0)]
    first_uses = liveness.trained.first_using(graph.value_bytes) > 0
    updates = np.bincount(home[home != NEVER], minlength=first_uses.size)
    assert (updates[first_uses] > 0).all()
    assert updates[first_uses].sum() > 0.97 * home.size


def test_the_update_is_in_no_micro_batch_however_long_it_takes(transformer_graph: InstructionGraph) -> None:
    graph = transformer_graph
    short, long = (
        profile_from_graph(graph, np.where(graph.phases == U, seconds, graph.bytes_accessed)) for seconds in (0.0, 1e9)
    )
    np.testing.assert_array_equal(short.C, long.C)
    assert long.meta["update_per_step_s"] == pytest.approx(1e9 * (graph.phases == U).sum())


def test_a_tied_embedding_counts_once_and_is_reported(transformer_graph: InstructionGraph) -> None:
    profile = profile_from_graph(transformer_graph, transformer_graph.flop)
    (tied,) = profile.shared_parameters
    assert (tied.name, tied.nbytes) == ("params/embedding", 4 * 20 * 8)
    assert [profile.layers[i] for i in tied.instructions] == ["embedding", "embedding.attend"]
    assert profile.W[tied.instructions[0]] == tied.nbytes
    layers = np.array(profile.layers)
    assert profile.W[layers == "embedding"].sum() == 4 * 20 * 8
    assert profile.W[layers == "embedding.attend"].sum() == 0


def test_the_smallest_cuts_of_a_transformer_are_between_its_layers(transformer_graph: InstructionGraph) -> None:
    profile = profile_from_graph(transformer_graph, transformer_graph.flop)
    layers = list(profile.layers)
    inside = slice(layers.index("block_0/q"), layers.index("embedding.attend"))
    smallest = profile.A[inside].min()
    assert smallest == 4 * 4 * 6 * 8  # float32, batch 4, length 6, width 8
    assert {layers[inside][i] for i in np.flatnonzero(profile.A[inside] == smallest)} >= {"block_0", "block_1"}


def test_time_without_a_home_is_spread_and_reported(by_hand: Callable[..., InstructionGraph]) -> None:
    graph = by_hand(
        [("dot", "a", F, [0], 4), ("dot", "b", F, [1], 4), ("mul", "a", B, [2], 4), ("mystery", "", B, [], 4)],
        [("parameter", 8)],
    )
    profile = profile_from_graph(graph, [1.0, 2.0, 1.0, 2.0])
    assert profile.C.tolist() == [3.0, 3.0]
    assert (profile.meta["unattributed_s"], profile.meta["unattributed_share"]) == (2.0, pytest.approx(1 / 3))


def test_a_parameter_that_nothing_uses_is_kept_in_the_sum_and_named(by_hand: Callable[..., InstructionGraph]) -> None:
    graph = by_hand(
        [("dot", "a", F, [0], 4), ("dot", "b", F, [2], 4), ("mul", "a", B, [3], 4)],
        [("parameter", 8), ("parameter", 16)],
    )
    profile = profile_from_graph(graph, [1.0, 1.0, 1.0])
    assert profile.W.tolist() == [24.0, 0.0]
    assert profile.meta["unused_parameters"] == ["parameter/1"]


def test_values_that_skip_many_cuts_are_named(by_hand: Callable[..., InstructionGraph]) -> None:
    chain = [("add", f"l{i}", F, [2 + i], 4) for i in range(20)]
    rows = [("dot", "encoder", F, [0, 1], 64), *chain, ("add", "end", F, [2, 22], 4), ("mul", "end", B, [23], 4)]
    graph = by_hand(rows, [("parameter", 8), ("input", 8)])
    profile = profile_from_graph(graph, np.ones(len(graph)))
    assert profile.meta["long_lived_values"] == [{"name": "i0", "bytes": 64.0, "first": "encoder", "last": "end"}]


def test_what_is_no_training_step_is_refused(mlp_graph: InstructionGraph) -> None:
    n = len(mlp_graph)
    forward_only = replace(mlp_graph, phases=np.zeros(n, dtype=np.int8))
    nameless = replace(mlp_graph, arguments=tuple(Argument(a.name, "input") for a in mlp_graph.arguments))
    for graph, times, message in (
        (forward_only, np.ones(n), "no backward pass"),
        (nameless, np.ones(n), "no trainable parameters"),
        (mlp_graph, np.zeros(n), "all times are zero"),
    ):
        with pytest.raises(BadInput, match=message):
            profile_from_graph(graph, times)
