"""Loops over layers: the unrolled module computes the same numbers, and costs what a Python loop over layers costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_devices import ideal_device

from automap_models.core.device import Device
from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.layers import block_boundaries
from automap_models.core.profile import Profile
from automap_models.formats.hardware_yaml import read_device
from automap_models.hlo.adapter import compiled, read_module, trace
from automap_models.hlo.clock import clock_times
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.measure import part
from automap_models.hlo.module import Module
from automap_models.hlo.profile import profile_from_graph
from automap_models.hlo.stablehlo_values import reshaped_slice
from automap_models.hlo.step import TrainingStep

LAYERS, WIDTH, HIDDEN, BATCH = 4, 8, 32, 6
F32 = 4
Tree = Any
Run = Callable[[Tree, Any], Any]
"""(the layers' parameters, x) → x."""


def shape(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def layer(w: Mapping[str, Any], x: Any) -> Any:
    up, bias, down = (w[name].astype(x.dtype) for name in ("up", "bias", "down"))
    return x + jnp.tanh(x @ up + bias) @ down


def step_of(run: Run, layers: Tree) -> TrainingStep:
    """A step of gradient descent whose model is a matrix, the layers, and a matrix."""
    params = {"embedding": shape(WIDTH, WIDTH), "layers": layers, "head": shape(WIDTH, 3)}

    def loss(params: Tree, batch: Tree) -> Any:
        with jax.named_scope("embedding"):
            x = batch["x"] @ params["embedding"]
        x = run(params["layers"], x)
        with jax.named_scope("head"):
            return jnp.mean((x @ params["head"] - batch["y"]) ** 2)

    def step(params: Tree, batch: Tree) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return TrainingStep("layers", step, (params, {"x": shape(BATCH, WIDTH), "y": shape(BATCH, 3)}), 0, (1,), BATCH)


SHAPES = {"up": (WIDTH, HIDDEN), "bias": (HIDDEN,), "down": (HIDDEN, WIDTH)}


def stacked(run: Run) -> TrainingStep:
    """With the layers' parameters in one array each."""
    return step_of(run, {name: shape(LAYERS, *dims) for name, dims in SHAPES.items()})


def listed(run: Run) -> TrainingStep:
    """With arrays of its own for each layer."""
    return step_of(run, [{name: shape(*dims) for name, dims in SHAPES.items()} for _ in range(LAYERS)])


def scan(body: Callable[[Any, Any], Any] = layer, **options: Any) -> Run:
    return lambda w, x: jax.lax.scan(lambda x, own: (body(own, x), None), x, w, **options)[0]


def python_loop(body: Callable[[Any, Any], Any] = layer) -> Run:
    def run(layers: Tree, x: Any) -> Any:
        for k, own in enumerate(layers):
            with jax.named_scope(f"layer_{k}"):
                x = body(own, x)
        return x

    return run


def two_scans(w: Tree, x: Any) -> Any:
    first, second = (jax.tree.map(lambda a, part=part: a[part], w) for part in (slice(0, 2), slice(2, 4)))
    return scan()(second, scan()(first, x))


def scan_in_scan(w: Tree, x: Any) -> Any:
    pairs = jax.tree.map(lambda a: a.reshape(2, 2, *a.shape[1:]), w)
    return scan(scan())(pairs, x)


def half(run: Run, *, copied: bool) -> Run:
    """In bfloat16, of which all parameters are copied first, or each where it is used."""

    def halved(w: Tree, x: Any) -> Any:
        own = jax.tree.map(lambda a: a.astype(jnp.bfloat16), w) if copied else w
        return run(own, x.astype(jnp.bfloat16)).astype(jnp.float32)

    return halved


def indexed(w: Tree, x: Any) -> Any:
    """A loop that indexes its parameters itself."""
    at = jax.lax.dynamic_index_in_dim
    return jax.lax.fori_loop(0, LAYERS, lambda k, x: layer(jax.tree.map(lambda a: at(a, k, keepdims=False), w), x), x)


LOOP = python_loop()
SAVE_PRODUCTS = jax.checkpoint_policies.dots_saveable
PAIRS: dict[str, tuple[Run, Run]] = {
    "scan": (scan(), LOOP),
    "the last layer first": (scan(reverse=True), lambda w, x: LOOP(w[::-1], x)),
    "two layers a round": (scan(unroll=2), LOOP),
    "one layer left over": (scan(unroll=LAYERS - 1), LOOP),
    "unrolled as a whole": (scan(unroll=True), LOOP),
    "indexed": (indexed, LOOP),
    "rematerialised": (scan(jax.checkpoint(layer)), python_loop(jax.checkpoint(layer))),
    "products saved": (
        scan(jax.checkpoint(layer, policy=SAVE_PRODUCTS)),
        python_loop(jax.checkpoint(layer, policy=SAVE_PRODUCTS)),
    ),
    "two scans": (two_scans, LOOP),
    "a scan in a scan": (scan_in_scan, LOOP),
    "mixed precision": (half(scan(), copied=True), half(LOOP, copied=False)),
}
"""The same model with stacked parameters in loops, and as a Python loop over layers."""
OTHER_BLOCKS = {
    *("two layers a round", "one layer left over", "unrolled as a whole"),
    *("two scans", "a scan in a scan"),
}
"""Whose rounds are no layers."""


FREE = 1e30
"""FLOP/s or bytes/s at which nothing takes any time."""
UNITS = {
    "flop": ideal_device("flop", {"float32": 1.0, "bfloat16": 1.0}, 1.0, FREE),
    "bytes": ideal_device("bytes", {"float32": FREE, "bfloat16": FREE}, FREE, 1.0),
    "launches": ideal_device("launches", {"float32": FREE, "bfloat16": FREE}, FREE, FREE, launch_s=1.0),
}
"""Devices of which times are numbers of FLOP, bytes and kernels."""


@cache
def traced(model: Callable[[Run], TrainingStep], run: Run) -> tuple[Module, InstructionGraph]:
    """Once for all tests, as most models are compared with the same loop."""
    module = trace(model(run))
    return module, instruction_graph(module)


def profile_of(graph: InstructionGraph, device: Device | None = None) -> Profile:
    """Without a device, with a V100's times."""
    return profile_from_graph(graph, clock_times(graph, device or read_device("v100")))


def by_block(profile: Profile) -> np.ndarray:
    """[5, blocks + 2] C, C_fwd, W and stash of what is before, in and behind the blocks, and A at their ends."""
    blocks = ("scan", "layer")
    of = [i for i, name in enumerate(profile.layers) if name.startswith(blocks)]
    names = list(dict.fromkeys(profile.layers[i].split("/")[0] for i in of))
    ends = [max(i for i in of if profile.layers[i].split("/")[0] == name) for name in names]
    bounds = [0, of[0], *(end + 1 for end in ends)]
    sums = [np.add.reduceat(array, bounds) for array in (profile.C, profile.C_fwd, profile.W, profile.stash)]
    return np.array([*sums, [*profile.A[np.array(bounds[1:]) - 1], 0.0]])


@pytest.mark.parametrize("name", PAIRS)
def test_a_scan_over_layers_costs_what_a_python_loop_costs(name: str) -> None:
    in_loops, unrolled = PAIRS[name]
    module, graph = traced(stacked, in_loops)
    profile, expected = profile_of(graph), profile_of(traced(listed, unrolled)[1])
    assert not any(op.opcode == "while" for op in module.operations)
    sums = {"C_fwd": profile.C_fwd, "W": profile.W, "stash": profile.stash}
    for array, values in sums.items():
        assert values.sum() == pytest.approx(getattr(expected, array).sum(), rel=1e-6), array
    assert profile.shared_parameters == expected.shared_parameters == ()
    if name not in OTHER_BLOCKS:
        np.testing.assert_allclose(by_block(profile)[1:], by_block(expected)[1:], rtol=1e-6)
        ends = [p.A[list(block_boundaries(p))] for p in (profile, expected)]
        assert len(ends[0]) == LAYERS
        np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("name", PAIRS)
def test_the_backward_pass_of_a_scan_stacks_gradients_where_that_of_a_loop_transposes_them(name: str) -> None:
    """The gradient of a matrix is transposed into its stack, and moves as much; that of a bias is moved once more."""
    in_loops, unrolled = PAIRS[name]
    counts = {
        unit: [profile_of(graph, device) for _, graph in (traced(stacked, in_loops), traced(listed, unrolled))]
        for unit, device in UNITS.items()
    }
    more = {unit: own.C.sum() - other.C.sum() for unit, (own, other) in counts.items()}
    itemsize = 2 if name == "mixed precision" else F32
    expected = {"flop": 0.0, "bytes": 2.0 * LAYERS * HIDDEN * itemsize, "launches": len(SHAPES) - 2.0 * LAYERS}
    if name == "two scans":  # the stack of each is padded with a zero to that of all, and the two are added
        expected["flop"] += LAYERS * sum(math.prod(dims) for dims in SHAPES.values())
        expected["bytes"] += len(SHAPES) * F32
    assert more == pytest.approx(expected, abs=1e-9)
    if name not in OTHER_BLOCKS | {"mixed precision"}:  # which converts whole stacks
        np.testing.assert_allclose(*map(by_block, counts["flop"]), rtol=1e-9)


def numbers(step: TrainingStep) -> Tree:
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda kind: jnp.asarray(rng.random(kind.shape) * 0.3, kind.dtype), step.arguments)


def carried(w: Tree, x: Any) -> Any:
    """The counter, what each layer makes, and the sum of an output take part in the result."""

    def body(state: Any, own: Any) -> Any:
        x, k = state
        x = layer(own, x) * (1 + 0.1 * k)
        return (x, k + 1), x.mean(axis=1)

    (x, k), means = jax.lax.scan(body, (x, jnp.int32(0)), w)
    return x + means.sum(axis=0)[:, None] + means[-1][:, None] * k


EXACT = {**{name: pair[0] for name, pair in PAIRS.items() if name != "mixed precision"}, "carried": carried}
"""One of each sort of loop, for the fast tests: compiling takes a second each."""


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, id=name) for name, run in EXACT.items()],
)
def test_the_unrolled_module_computes_the_same_numbers(run: Run) -> None:
    step, (module, _) = stacked(run), traced(stacked, run)
    arguments = numbers(step)
    assert not any(op.opcode == "while" for op in module.operations)
    read = {value for op in module.operations for value in op.operands} | set(module.outputs)
    leaves = [leaf for i, leaf in enumerate(jax.tree.leaves(arguments)) if i in read]
    computed = compiled(part(module, module.outputs))(leaves)
    for ours, theirs in zip(computed, jax.tree.leaves(jax.jit(step.function)(*arguments)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-7)


@given(data=st.data())
def test_a_slice_lies_in_the_same_elements_in_another_shape(data: st.DataObject) -> None:
    """By numpy: the box of the other shape has the elements of the slice, in their order."""
    whole = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    other = data.draw(st.permutations(whole)) if data.draw(st.booleans()) else [math.prod(whole[:2]), *whole[2:]]
    starts = [data.draw(st.integers(0, most - 1)) for most in whole]
    sizes = [data.draw(st.integers(1, most - start)) for most, start in zip(whole, starts, strict=True)]
    box = reshaped_slice(starts, sizes, whole, other)
    numbered = np.arange(math.prod(whole))
    piece = numbered.reshape(whole)[tuple(map(slice, starts, np.add(starts, sizes)))].ravel()
    if box is not None:
        own = numbered.reshape(other)[tuple(map(slice, box[0], np.add(*box)))]
        assert own.shape == box[1]
        np.testing.assert_array_equal(own.ravel(), piece)


def test_a_row_lies_in_one_box_of_the_stack_split_in_rounds() -> None:
    assert reshaped_slice((4, 0), (1, 5), (6, 5), (2, 3, 5)) == ((1, 1, 0), (1, 1, 5))
    assert reshaped_slice((1, 1, 0), (1, 2, 5), (2, 3, 5), (6, 5)) == ((4, 0), (2, 5))
    assert reshaped_slice((2, 0), (2, 5), (6, 5), (2, 3, 5)) is None


def test_each_round_holds_its_layer_of_the_stacked_parameters() -> None:
    profile = profile_of(traced(stacked, PAIRS["scan"][0])[1])
    own = F32 * sum(int(np.prod(dims)) for dims in SHAPES.values())
    of_round = dict.fromkeys((layer.split("/")[0] for layer in profile.layers), 0.0)
    for name, held in zip(profile.layers, profile.W, strict=True):
        of_round[name.split("/")[0]] += held
    assert list(of_round) == ["embedding", *(f"scan_{k}" for k in range(LAYERS)), "head"]
    assert list(of_round.values()) == [F32 * WIDTH * WIDTH, *[own] * LAYERS, F32 * WIDTH * 3]


def test_a_layer_that_two_rounds_use_is_shared() -> None:
    """The first layer runs again behind the loop."""

    def run(w: Tree, x: Any) -> Any:
        return layer(jax.tree.map(lambda a: a[0], w), scan()(w, x))

    profile = profile_of(traced(stacked, run)[1])
    assert sorted(shared.nbytes for shared in profile.shared_parameters) == sorted(
        F32 * float(np.prod(dims)) for dims in SHAPES.values()
    )
    assert {profile.layers[shared.instructions[0]] for shared in profile.shared_parameters} == {"scan_0"}


def test_a_file_of_hlo_gives_the_same_arrays_as_the_traced_step(tmp_path: Any) -> None:
    step = stacked(PAIRS["scan"][0])
    text = jax.jit(step.function, keep_unused=True).lower(*step.arguments).as_text(debug_info=True)
    path = tmp_path / "step.mlir"
    path.write_text(text)
    graph = instruction_graph(read_module(path, trainable=["params*"]))
    profile = profile_from_graph(graph, clock_times(graph, read_device("v100")))
    np.testing.assert_allclose(by_block(profile), by_block(profile_of(traced(stacked, PAIRS["scan"][0])[1])), rtol=1e-9)


def test_a_loop_over_time_stays_a_loop_and_is_named() -> None:
    """A recurrent network: every round has the same parameters, and a chunk of the batch."""

    def step(w: Any, xs: Any) -> Any:
        def loss(w: Any) -> Any:
            return jax.lax.scan(lambda h, x: (jnp.tanh(x + h @ w), None), xs[0], xs)[0].sum()

        return jax.value_and_grad(loss)(w)

    module = trace(TrainingStep("rnn", step, (shape(8, 8), shape(5, 4, 8)), 0, (1,), 4))
    profile = profile_of(instruction_graph(module))
    (loop,) = (op for op in module.operations if op.opcode == "while" and "transpose" not in op.path)
    assert profile.meta["loops"] == [loop.name]
    assert loop.rounds == 5
