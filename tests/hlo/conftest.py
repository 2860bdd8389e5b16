"""Small training steps and instruction graphs that the tests of the HLO front-end share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from hypothesis import strategies as st

from automap_models.core.instruction_graph import Argument, InstructionGraph, Phase
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.step import TrainingStep

BATCH, WIDTH, HIDDEN, CLASSES = 4, 8, 16, 3
LENGTH, VOCABULARY = 6, 20


class Mlp(nn.Module):
    """Two dense layers with a relu between them."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(CLASSES, name="second")(nn.relu(nn.Dense(HIDDEN, name="first")(x)))


class Block(nn.Module):
    """Single-head attention and a feed-forward layer with residuals."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        h = nn.LayerNorm(name="norm")(x)
        q, k, v = (nn.Dense(WIDTH, name=name)(h) for name in "qkv")
        x = x + nn.softmax(q @ k.swapaxes(1, 2)) @ v
        return x + nn.Dense(WIDTH, name="out")(nn.gelu(nn.Dense(HIDDEN, name="in")(x)))


class Transformer(nn.Module):
    """Two blocks between a tied embedding."""

    block: Any = Block

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        embedding = nn.Embed(VOCABULARY, WIDTH, name="embedding")
        x = embedding(ids)
        for i in range(2):
            x = self.block(name=f"block_{i}")(x)
        return embedding.attend(x)


def training_step(model: nn.Module, x: Any, labels: Any, name: str) -> TrainingStep:
    """Loss, gradients and Adam around a flax module."""
    optimizer = optax.adam(1e-3)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    state = jax.eval_shape(optimizer.init, params)

    def train_step(params: Any, opt_state: Any, x: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = model.apply(params, x)
            with jax.named_scope("loss"):
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(gradients, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, value

    return TrainingStep(name, train_step, (params, state, x, labels), trainable=0, inputs=(2, 3), microbatch_size=BATCH)


def mlp_step() -> TrainingStep:
    """A step whose every number can be worked out by hand."""
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    return training_step(Mlp(), x, jax.ShapeDtypeStruct((BATCH,), jnp.int32), "mlp")


def transformer_step(*, remat: bool = False) -> TrainingStep:
    """A step with residuals, attention, layer norms and a tied embedding."""
    ids = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    return training_step(Transformer(nn.remat(Block) if remat else Block), ids, ids, "transformer")


def graph_of(
    instructions: Sequence[tuple[str, str, Phase, Sequence[int], int]],
    arguments: Sequence[tuple[str, int]],
    outputs: Sequence[int] = (),
) -> InstructionGraph:
    """A graph written down by hand.

    Args:
        instructions: (opcode, layer, phase, operands, bytes of the one result); names are i0, i1, …
        arguments: (kind, bytes).
    """
    counts = [len(instruction[3]) for instruction in instructions]
    sizes = [size for _, size in arguments] + [instruction[4] for instruction in instructions]
    return InstructionGraph(
        model="by hand",
        names=tuple(f"i{i}" for i in range(len(instructions))),
        opcodes=tuple(instruction[0] for instruction in instructions),
        layers=tuple(instruction[1] for instruction in instructions),
        phases=np.array([instruction[2] for instruction in instructions], dtype=np.int8),
        result_offsets=len(arguments) + np.arange(len(instructions) + 1),
        operand_offsets=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
        operands=np.array([v for instruction in instructions for v in instruction[3]], dtype=np.int64),
        shapes=tuple((size // 4,) for size in sizes),
        dtypes=("f32",) * len(sizes),
        value_bytes=np.array(sizes, dtype=np.float64),
        arguments=tuple(Argument(f"{kind}/{i}", kind) for i, (kind, _) in enumerate(arguments)),  # type: ignore[arg-type]
        outputs=np.array(outputs, dtype=np.int64),
        flop=np.zeros(len(instructions)),
        bytes_accessed=np.zeros(len(instructions)),
    )


@st.composite
def graphs(draw: st.DrawFn) -> InstructionGraph:
    """Training steps of any shape: forward, then backward, then update, each reading anything made before it."""
    n_forward = draw(st.integers(2, 8))
    phases = [Phase.FORWARD] * n_forward
    phases += [Phase.BACKWARD] * draw(st.integers(1, 8)) + [Phase.UPDATE] * draw(st.integers(0, 5))
    kinds = draw(st.lists(st.sampled_from(["parameter", "state", "input"]), max_size=5))
    arguments = [("parameter", 4), *((kind, 4 * draw(st.integers(1, 9))) for kind in kinds)]
    instructions: list[tuple[str, str, Phase, Sequence[int], int]] = []
    for i, phase in enumerate(phases):
        known = len(arguments) + i
        operands = draw(st.lists(st.integers(0, known - 1), max_size=3))
        opcode = draw(st.sampled_from(["add", "dot", "reshape"] if operands else ["constant"]))
        layer = draw(st.sampled_from(["", "a", "b", "c/d"]))
        instructions.append((opcode, layer, phase, operands, 4 * draw(st.integers(0, 9))))
    return graph_of(instructions, arguments)


@pytest.fixture(scope="session")
def mlp() -> TrainingStep:
    """Two dense layers: every number can be worked out by hand."""
    return mlp_step()


@pytest.fixture(scope="session")
def transformer() -> TrainingStep:
    """Residuals, attention, layer norms and a tied embedding."""
    return transformer_step()


@pytest.fixture(scope="session")
def rematerialised() -> TrainingStep:
    """The transformer with nn.remat around its blocks."""
    return transformer_step(remat=True)


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., InstructionGraph]:
    """A function that makes a graph of lists, see `graph_of`."""
    return graph_of


@pytest.fixture(scope="session")
def random_graphs() -> st.SearchStrategy[InstructionGraph]:
    """A strategy that draws small instruction graphs of any shape."""
    return graphs()


@pytest.fixture(scope="session")
def mlp_graph(mlp: TrainingStep) -> InstructionGraph:
    """The MLP's instruction graph."""
    return instruction_graph(trace(mlp))


@pytest.fixture(scope="session")
def transformer_graph(transformer: TrainingStep) -> InstructionGraph:
    """The transformer's instruction graph."""
    return instruction_graph(trace(transformer))
