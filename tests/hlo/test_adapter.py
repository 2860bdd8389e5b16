"""The adapter: every way in gives the same flat module, which still computes what the model computes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_models.core.layers import repeated_blocks
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.hlo.adapter import MlirModule, compiled, one_op_modules, read_module, trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.profile import clock_profile
from automap_models.hlo.step import TrainingStep

DOT = """HloModule by_hand

relu.1 {
  Arg_0.2 = f32[4,3]{1,0} parameter(0)
  constant.3 = f32[] constant(0)
  broadcast.4 = f32[4,3]{1,0} broadcast(constant.3), dimensions={}
  ROOT maximum.5 = f32[4,3]{1,0} maximum(Arg_0.2, broadcast.4), metadata={op_name="max"}
}

ENTRY main.9 {
  w = f32[8,3]{1,0} parameter(0), metadata={op_name="params['w']"}
  x = f32[4,8]{1,0} parameter(1), metadata={op_name="x"}
  dot.1664 = f32[4,3]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_type="dot" op_name="jit(f)/jvp(Net)/fc/dot"}
  call.7 = f32[4,3]{1,0} call(dot.1664), to_apply=relu.1, metadata={op_name="jit(f)/jvp(Net)/fc/jit(relu)"}
  call.8 = f32[4,3]{1,0} call(call.7), to_apply=relu.1, metadata={op_name="jit(f)/jvp(Net)/out/jit(relu)"}
  ROOT custom-call.9 = f32[4,3]{1,0} custom-call(call.8), custom_call_target="my_kernel", metadata={op_name="jit(f)/jvp(Net)/out/my"}
}
"""  # noqa: E501


def lowered(step: TrainingStep) -> Any:
    return jax.jit(step.function, keep_unused=True).lower(*step.arguments)


def bytecode(step: TrainingStep) -> bytes:
    written = io.BytesIO()
    lowered(step).compiler_ir("stablehlo").operation.write_bytecode(written)
    return written.getvalue()


FORMS: dict[str, Callable[[TrainingStep], bytes]] = {
    "hlo text": lambda step: lowered(step).as_text("hlo", debug_info=True).encode(),
    "stablehlo text": lambda step: lowered(step).as_text(debug_info=True).encode(),
    "stablehlo bytecode": bytecode,
    "portable artifact": lambda step: jax.export.export(jax.jit(step.function))(*step.arguments).mlir_module_serialized,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_gives_the_same_graph_as_the_traced_function(form: str, mlp: TrainingStep, tmp_path: Path) -> None:
    file = tmp_path / "step"
    file.write_bytes(FORMS[form](mlp))
    traced, read = instruction_graph(trace(mlp)), instruction_graph(read_module(file))
    assert read.arguments == traced.arguments
    assert Counter(read.opcodes) == Counter(traced.opcodes)
    assert Counter(zip(read.layers, read.phases.tolist(), strict=True)) == Counter(
        zip(traced.layers, traced.phases.tolist(), strict=True)
    )
    assert read.flop.sum() == traced.flop.sum()
    if form.startswith("stablehlo"):
        assert read.names == traced.names


def test_names_are_those_in_xlas_own_text(transformer: TrainingStep) -> None:
    text = lowered(transformer).as_text("hlo")
    entry = text[text.index("\nENTRY") :]
    named = {line.split(" = ")[0].strip().removeprefix("ROOT ") for line in entry.splitlines() if " = " in line}
    module = trace(transformer)
    assert len({op.name for op in module.operations}) == len(module.operations)
    calls = {name for name in named if name.startswith(("jit_", "closed_call"))}
    inner = {op.name for op in module.operations if "jit(_" in op.path or "jit(take" in op.path}
    assert {op.name for op in module.operations} - inner <= named
    assert len(named) < len(module.operations) + len(module.arguments) + len(calls) + 2


def test_nothing_is_called_any_more_and_everything_is_made_before_it_is_read(transformer: TrainingStep) -> None:
    module = trace(transformer)
    assert module.mlir.operation.verify()
    assert " call @" not in str(module.mlir)
    known = len(module.arguments)
    for op in module.operations:
        assert all(value < known for value in op.operands)
        known += len(op.results)


def test_the_module_computes_what_the_function_computes(mlp: TrainingStep) -> None:
    draw = np.random.default_rng(0)
    leaves = [draw.uniform(0.1, 1.0, leaf.shape).astype(leaf.dtype) for leaf in jax.tree.leaves(mlp.arguments)]
    expected = jax.jit(mlp.function)(*jax.tree.unflatten(jax.tree.structure(mlp.arguments), leaves))
    for result, value in zip(run(trace(mlp), leaves), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-5)


def run(module: MlirModule, arguments: list[Any]) -> list[Any]:
    """The module, one compiled operation after the other."""
    values: dict[int, Any] = dict(enumerate(jnp.asarray(argument) for argument in arguments))
    functions = {i: compiled(one_op) for one_op in one_op_modules(module) for i in one_op.instructions.tolist()}
    for i, op in enumerate(module.operations):
        if op.opcode == "constant":
            results = [jnp.asarray(np.array(module.handles[i].attributes["value"]))]
        else:
            results = functions[i]([values[v] for v in dict.fromkeys(op.operands)])
        for value in results:
            values[len(values)] = value
    return [values[v] for v in module.outputs]


def test_how_a_random_key_may_lie_on_devices_is_no_operation() -> None:
    """`jax.random.split` says so by a custom call, for which the search of shardings has no rule."""

    def dropped(weight: jax.Array, batch: jax.Array, key: jax.Array) -> jax.Array:
        kept = [jax.random.bernoulli(one, 0.5, batch.shape) for one in jax.random.split(key)]
        return ((batch * kept[0] * kept[1]) @ weight).sum()

    shapes = jax.eval_shape(lambda: (jnp.ones((4, 3)), jnp.ones((8, 4)), jax.random.key(0)))
    step = TrainingStep("dropped", jax.value_and_grad(dropped), shapes, 0, (1, 2), 8, "float32")
    assert "Sharding" in lowered(step).as_text("hlo")
    assert "custom_call" not in {op.opcode for op in trace(step).operations}


def test_a_hint_in_a_file_is_the_value_itself(tmp_path: Path) -> None:
    hinted, plain = tmp_path / "hinted.txt", tmp_path / "plain.txt"
    hinted.write_text(DOT.replace('"my_kernel"', '"Sharding", sharding={replicated}'))
    plain.write_text(
        "\n".join(line for line in DOT.splitlines() if "ROOT custom" not in line).replace("call.8", "ROOT call.8")
    )
    modules = [read_module(path) for path in (hinted, plain)]
    assert modules[0].operations == modules[1].operations
    assert modules[0].outputs == modules[1].outputs


def test_one_op_modules_stand_for_every_operation_once(transformer: TrainingStep) -> None:
    module = trace(transformer)
    one_ops = one_op_modules(module)
    stood_for = np.concatenate([one_op.instructions for one_op in one_ops]).tolist()
    assert sorted(stood_for) == [i for i, op in enumerate(module.operations) if op.opcode != "constant"]
    for one_op in one_ops:
        operations = [module.operations[i] for i in one_op.instructions]
        assert {(op.opcode, op.results) for op in operations} == {(one_op.opcode, one_op.results)}


def test_calls_in_hlo_text_are_inlined_under_the_callers_scope_with_names_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "module_0001.before_optimizations.txt"
    file.write_text(DOT)
    graph = instruction_graph(read_module(file))
    maxima = [i for i, opcode in enumerate(graph.opcodes) if opcode == "maximum"]
    assert [graph.names[i] for i in maxima] == ["maximum.5", "maximum.6"]
    assert [graph.layers[i] for i in maxima] == ["fc", "out"]
    assert "dot.1664" in graph.names
    assert graph.model == "module_0001"
    assert [argument.kind for argument in graph.arguments] == ["parameter", "input"]


def test_an_unknown_custom_call_is_reported_and_costs_its_bytes_alone(tmp_path: Path) -> None:
    file = tmp_path / "hlo.txt"
    file.write_text(DOT)
    graph = instruction_graph(read_module(file))
    assert graph.meta["unknown_custom_calls"] == {"my_kernel": 1}
    i = graph.opcodes.index("custom_call")
    assert (graph.flop[i], graph.bytes_accessed[i]) == (0.0, 2 * 4 * 3 * 4)


def test_a_custom_call_may_have_several_results() -> None:
    def step(p: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda p: jnp.linalg.cholesky(p @ p.T + x).sum())(p)
        return p - gradient, value

    square = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    module = trace(TrainingStep("cholesky", step, (square, square), 0, (1,), 8))
    call = next(op for op in module.operations if op.target.startswith("lapack") and len(op.results) > 1)
    assert [result.shape for result in call.results] == [(8, 8), ()]


def test_what_differentiation_leaves_and_nothing_reads_is_no_part_of_the_step() -> None:
    """The masks' zeros of a `where`, which nothing reads, came after the loss: the first block ended with the model."""
    width = 8

    def loss(params: Any, x: Any) -> Any:
        for i, (query, out) in enumerate(params):
            with jax.named_scope(f"block_{i}"):
                heads = (x @ query).reshape(*x.shape[:2], 2, width // 2)
                x = x + jax.nn.dot_product_attention(heads, heads, heads, is_causal=True).reshape(x.shape) @ out
        return x.sum()

    def step(params: Any, x: Any) -> Any:
        return jax.tree.map(lambda of, slope: of - slope, params, jax.grad(loss)(params, x))

    square, x = jax.ShapeDtypeStruct((width, width), jnp.float32), jax.ShapeDtypeStruct((1, 4, width), jnp.float32)
    module = trace(TrainingStep("blocks", step, ([(square, square)] * 4, x), 0, (1,), 1))
    read = {value for operation in module.operations for value in operation.operands} | set(module.outputs)
    assert read >= set(range(len(module.arguments), len(module.types)))
    profile = clock_profile(instruction_graph(module), read_device("h100"))
    blocks = repeated_blocks(profile)
    assert len(blocks) == 4 and all(one.last < other.first for one, other in pairwise(blocks))


def test_large_constants_pass_through() -> None:
    table = np.arange(100_000, dtype=np.float32)

    def step(p: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda p: (p * table * x).sum())(p)
        return p - gradient, value

    vector = jax.ShapeDtypeStruct(table.shape, jnp.float32)
    module = trace(TrainingStep("table", step, (vector, vector), 0, (1,), 1))
    assert any(op.opcode == "constant" and op.results[0].shape == table.shape for op in module.operations)


def dynamic(step: TrainingStep) -> bytes:
    (size,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((size, 8), jnp.float32)
    return str(jax.export.export(jax.jit(lambda p, x: (x @ p).sum()))(jnp.ones((8, 2)), x).mlir_module()).encode()


def energy(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sin(x) ** 2)


def gradient_alone(function: Callable[..., jax.Array], *arguments: jax.Array) -> bytes:
    """A module with a backward pass that updates nothing; locations tell that it has one."""
    return str(jax.jit(function).lower(*arguments).as_text(debug_info=True)).encode()


WRONG: dict[str, tuple[Callable[[TrainingStep], bytes], str]] = {
    "nothing": (lambda step: b"", "is empty"),
    "prose": (lambda step: b"# A model\n", "neither HLO nor StableHLO"),
    "binary": (lambda step: b"\x80\x04\x95\xff", "neither text nor StableHLO bytecode"),
    "optimised": (lambda step: lowered(step).compile().as_text().encode(), "before_optimizations.txt"),
    "cut off": (lambda step: FORMS["hlo text"](step)[:9000], "that XLA can read"),
    "cut-off bytecode": (lambda step: FORMS["stablehlo bytecode"](step)[:900], "that XLA can read"),
    "dynamic": (dynamic, "dynamic shapes"),
    "no parameters": (lambda step: gradient_alone(jax.grad(energy), jnp.ones(3)), "`trainable=PATTERN`"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused_in_one_sentence(wrong: str, mlp: TrainingStep, tmp_path: Path) -> None:
    make, message = WRONG[wrong]
    file = tmp_path / "file"
    file.write_bytes(make(mlp))
    with pytest.raises(BadInput) as caught:
        read_module(file)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{file}: ")


def test_what_names_parameters_of_a_module_without_arguments_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(gradient_alone(lambda: jax.grad(energy)(jnp.ones(3))))
    with pytest.raises(BadInput, match="without parameters"):
        read_module(file, trainable=["params/*"])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_module(tmp_path / "nowhere")


def test_without_the_extra_the_pip_command_is_named() -> None:
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from automap_models.errors import BadInput\n"
        "try: import automap_models.hlo.adapter\n"
        "except BadInput as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'automap-models[jax]'" in done.stdout, done.stderr


def test_arrays_with_more_elements_than_xla_counts_are_refused() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.grad(lambda w: (w[:, None] * x[None, :]).sum())(w)

    side = jax.ShapeDtypeStruct((2**32,), jnp.float32)
    with pytest.raises(BadInput, match=r"huge: is refused by XLA \(INVALID_ARGUMENT: overflow .* `batch` and"):
        trace(TrainingStep("huge", step, (side, side), 0, (1,), 1, "float32"))
