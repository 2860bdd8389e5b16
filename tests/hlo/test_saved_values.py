"""What is saved for the backward pass: published formulas of a transformer layer, brute force, and graphs by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.instruction_graph import FloatArray, InstructionGraph, Phase
from automap_models.hlo.adapter import trace
from automap_models.hlo.dimension_classes import sharding_classes
from automap_models.hlo.graph import instruction_graph, rules_of
from automap_models.hlo.liveness import Liveness
from automap_models.hlo.rule_sets import RuleSet
from automap_models.hlo.saved_values import saved_values
from automap_models.hlo.step_classes import StepClasses
from automap_models.workloads.sizes import BertConfig, DecoderConfig
from automap_models.workloads.training import training_step

F, B = Phase.FORWARD, Phase.BACKWARD
COLUMNS = ("q/kernel", "k/kernel", "v/kernel", "wi/kernel")
"""Matrices whose columns tensor parallelism divides (arXiv 1909.08053, section 3)."""


SMALL = DecoderConfig(width=64, heads=4, layers=1, vocabulary=100, positions=32)
DROPPING = replace(SMALL, attention_dropout=0.1, residual_dropout=0.1, embedding_dropout=0.1)


class Layer(NamedTuple):
    """The first of a model's layers.

    Attributes:
        sizes: bytes of what is saved of it.
        divided: whether tensor parallelism divides each of these values.
        shapes: of these values.
        samples, tokens, width, heads: of the model, b, s, h and a of Korthikanti et al.
    """

    sizes: FloatArray
    divided: list[bool]
    shapes: list[tuple[int, ...]]
    samples: int
    tokens: int
    width: int
    heads: int

    @property
    def unit(self) -> int:
        """s·b·h."""
        return self.samples * self.tokens * self.width

    @property
    def scores(self) -> float:
        """a·s/h."""
        return self.heads * self.tokens / self.width


def layer_of(architecture: BertConfig | DecoderConfig, samples: int, tokens: int) -> Layer:
    """The layer of a model in half precision."""
    module = trace(training_step("layer", architecture, (samples, tokens), "bfloat16"))
    graph, sharding = instruction_graph(module), sharding_classes(module, rules_of(module), RuleSet("shardy", ""))
    first_dims = sharding.rules.dim_offsets
    columns = {
        int(sharding.dim_classes[first_dims[v] + 1])
        for v, argument in enumerate(graph.arguments)
        if argument.kind == "parameter" and argument.name.endswith(COLUMNS)
    }
    classes = StepClasses(module, sharding, graph).of_values
    saved = [v for v in np.flatnonzero(saved_values(graph)) if graph.layers[graph.producers[v]].startswith("block_0")]
    return Layer(
        graph.value_bytes[saved],
        [bool(columns.intersection(classes[v])) for v in saved],
        [graph.shapes[v] for v in saved],
        samples,
        tokens,
        architecture.width,
        architecture.heads,
    )


@pytest.fixture(scope="module")
def gpt() -> Layer:
    """A layer of GPT with dropout; a·s/h is 2."""
    return layer_of(DROPPING, 2, 32)


@pytest.fixture(
    scope="module",
    params=[
        "gpt",
        (128, 2, 48, 3),
        (48, 12, 20, 1),
    ],
    ids=str,
)
def layer(request: pytest.FixtureRequest, gpt: Layer) -> Layer:
    """Layers of GPT of several widths, heads, tokens and samples."""
    if request.param == "gpt":
        return gpt
    width, heads, tokens, samples = request.param
    return layer_of(replace(DROPPING, width=width, heads=heads, positions=tokens), samples, tokens)


def test_a_layer_with_dropout_saves_what_korthikanti_et_al_count(layer: Layer) -> None:
    """Equation 1 of arXiv 2205.05198: s·b·h·(34 + 5·a·s/h)."""
    assert layer.sizes.sum() == pytest.approx(layer.unit * (34 + 5 * layer.scores), rel=1e-9)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_parallelism_divides_what_korthikanti_et_al_say(layer: Layer, t: int) -> None:
    """Equation 2: s·b·h·(10 + 24/t + 5·a·s/(h·t))."""
    on_device = np.where(layer.divided, layer.sizes / t, layer.sizes).sum()
    assert on_device == pytest.approx(layer.unit * (10 + 24 / t + 5 * layer.scores / t), rel=1e-9)


def test_sequence_parallelism_divides_what_tensor_parallelism_does_not(layer: Layer) -> None:
    """Equation 4 divides all by t: whatever has no heads or columns has tokens."""
    rest = [shape for shape, divided in zip(layer.shapes, layer.divided, strict=True) if not divided]
    assert rest
    assert {shape[:2] for shape in rest} == {(layer.samples, layer.tokens)}


def test_an_attention_core_saves_what_selective_recomputation_spares(layer: Layer) -> None:
    """Section 5: 5·a·s/h of it, everything that has a score of every query against every key."""
    core = [shape[-2:] == (layer.tokens, layer.tokens) for shape in layer.shapes]
    assert layer.sizes[core].sum() == pytest.approx(layer.unit * 5 * layer.scores, rel=1e-9)


def test_a_layer_of_bert_saves_as_much() -> None:
    shares = DROPPING.attention_dropout, DROPPING.residual_dropout, DROPPING.embedding_dropout
    sizes = BertConfig(64, 4, 1, attention_dropout=shares[0], residual_dropout=shares[1], embedding_dropout=shares[2])
    layer = layer_of(sizes, 2, 32)
    assert layer.sizes.sum() == pytest.approx(layer.unit * (34 + 5 * layer.scores), rel=1e-9)


def test_without_dropout_a_layer_saves_no_masks_and_its_softmax_once() -> None:
    """Equation 1 less two masks of the hidden states, one of the scores, and the scores after dropout."""
    layer = layer_of(SMALL, 2, 32)
    assert layer.sizes.sum() == pytest.approx(layer.unit * (34 - 2 + (5 - 1 - 2) * layer.scores), rel=1e-9)


COMPUTED_AGAIN = {"add", "reduce", "convert", "transpose"}
FLOATS = {"f32", "bf16"}


@st.composite
def steps(draw: st.DrawFn, by_hand: Callable[..., InstructionGraph]) -> InstructionGraph:
    """Small training steps with conversions, products, and what is never computed again, in both passes."""
    arguments = [("parameter", 4), *(("input", 4 * draw(st.integers(1, 5))) for _ in range(draw(st.integers(0, 1))))]
    instructions: list[tuple[str, str, Phase, Sequence[int], int]] = []
    dtypes = ["f32"] * len(arguments)
    forward = draw(st.integers(2, 7))
    for i in range(forward + draw(st.integers(1, 3))):
        known = st.integers(0, len(arguments) + i - 1)
        opcode = draw(st.sampled_from([*sorted(COMPUTED_AGAIN), "add", "convert", "dot", "random_bits", "reshape"]))
        operands = draw(st.lists(known, min_size=1, max_size=2 if opcode in ("add", "dot") else 1))
        dtypes.append(draw(st.sampled_from(["f32", "f32", "bf16", "bf16", "ui32", "f8E4M3FN"])))
        instructions.append((opcode, "", F if i < forward else B, operands, 4 * draw(st.integers(0, 9))))
    return replace(by_hand(instructions, arguments), dtypes=tuple(dtypes))


class Naive:
    """The definition of kept.py, spelled out."""

    def __init__(self, graph: InstructionGraph) -> None:
        self.graph, self.arguments, offsets = graph, len(graph.arguments), graph.operand_offsets
        self.reads = [graph.operands[offsets[i] : offsets[i + 1]].tolist() for i in range(len(graph))]
        self.forward = [i for i in range(len(graph)) if graph.phases[i] == F]
        self.candidates = [self.arguments + i for i in self.forward if graph.opcodes[i] != "reshape"]

    def result(self, i: int) -> int:
        return self.arguments + i

    def are_one(self, i: int) -> bool:
        """Whether an instruction makes another form of what it reads."""
        types = {self.graph.dtypes[v] for v in (*self.reads[i], self.result(i))}
        return self.graph.opcodes[i] == "reshape" or (self.graph.opcodes[i] == "convert" and types <= FLOATS)

    def computable(self, saved: set[int]) -> set[int]:
        """What can be computed from arguments and these values."""
        known = {*range(self.arguments), *saved}
        before = -1
        while len(known) > before:
            before = len(known)
            for i in self.forward:
                v, opcode = self.result(i), self.graph.opcodes[i]
                again = opcode in COMPUTED_AGAIN and not self.graph.dtypes[v].startswith("ui")
                if (again or self.are_one(i)) and known.issuperset(self.reads[i]):
                    known.add(v)
                if self.are_one(i) and v in known:
                    known.update(self.reads[i])
        return known

    def forms(self, value: int) -> set[int]:
        """The value in all its forms."""
        forms = {value}
        for _ in self.forward:
            for i in filter(self.are_one, self.forward):
                pair = {self.result(i), *self.reads[i]}
                forms |= pair if pair & forms else set()
        return forms

    def read_by_products(self) -> set[int]:
        """Forward values, or arguments, that products of the backward pass read, as they are or moved."""
        chosen, pending = set[int](), list[int]()
        for i in range(len(self.graph)):
            if self.graph.phases[i] == B and self.graph.opcodes[i] == "dot":
                pending += self.reads[i]
        while pending:
            v = pending.pop()
            i = v - self.arguments
            if i < 0 or self.graph.phases[i] == F:
                chosen.add(v)
            elif self.graph.opcodes[i] in ("reshape", "transpose", "convert"):
                pending += self.reads[i]
        return chosen

    def fewest_bytes(self) -> float:
        """By all sets of values that could be saved."""
        needed = {v for i in range(len(self.graph)) if self.graph.phases[i] == B for v in self.reads[i]}
        needed = {v for v in needed if v < self.arguments or self.graph.phases[v - self.arguments] == F}
        forms = [self.forms(v) for v in self.read_by_products()]
        as_they_are = [one & set(self.candidates) for one in forms if min(one) >= self.arguments]
        sets = (set(chosen) for k in range(len(self.candidates) + 1) for chosen in combinations(self.candidates, k))
        return min(
            float(self.graph.value_bytes[sorted(chosen)].sum())
            for chosen in sets
            if all(one & chosen for one in as_they_are) and needed <= self.computable(chosen)
        )


@given(data=st.data())
def test_no_set_of_fewer_bytes_makes_everything_computable(
    by_hand: Callable[..., InstructionGraph], data: st.DataObject
) -> None:
    graph = data.draw(steps(by_hand))
    kept = saved_values(graph)
    assert graph.value_bytes[kept].sum() == Naive(graph).fewest_bytes()


@settings(deadline=None)
@given(data=st.data())
def test_no_more_is_saved_than_the_backward_pass_reads(
    random_graphs: st.SearchStrategy[InstructionGraph], data: st.DataObject
) -> None:
    graph = data.draw(random_graphs)
    kept, liveness = saved_values(graph), Liveness(graph)
    assert graph.value_bytes[kept].sum() <= graph.value_bytes[liveness.saved].sum()
    assert not (kept & ~(liveness.is_activation & (liveness.born >= 0))).any()


def test_of_sets_of_equal_bytes_the_one_nearest_to_its_readers_is_saved(
    by_hand: Callable[..., InstructionGraph],
) -> None:
    """What a product makes, or what a chain makes of it: the latter, which spares computing the chain again."""
    graph = by_hand(
        [("dot", "", F, [0], 8), ("add", "", F, [1], 8), ("tanh", "", F, [2], 8), ("multiply", "", B, [3], 8)],
        [("parameter", 4)],
    )
    assert np.flatnonzero(saved_values(graph)).tolist() == [3]


def test_dropout_saves_a_mask_of_a_byte_a_number_though_the_key_would_do(
    by_hand: Callable[..., InstructionGraph],
) -> None:
    graph = by_hand(
        [
            ("shift_left", "", F, [0], 400),  # rounds of a generator that are no loop
            ("bitcast_convert", "", F, [1], 400),
            ("compare", "", F, [2], 100),
            ("select", "", B, [3], 400),
        ],
        [("input", 8)],
    )
    graph = replace(graph, dtypes=("ui32", "ui32", "f32", "i1", "f32"))
    assert np.flatnonzero(saved_values(graph)).tolist() == [3]


def test_a_softmax_is_saved_in_half_precision_where_exponentials_are_read(
    by_hand: Callable[..., InstructionGraph],
) -> None:
    graph = by_hand(
        [
            ("dot", "", F, [0], 400),
            ("exponential", "", F, [1], 400),
            ("reduce", "", F, [2], 4),
            ("broadcast_in_dim", "", F, [3], 400),
            ("divide", "", F, [2, 4], 400),
            ("convert", "", F, [5], 200),
            ("multiply", "", B, [2, 3], 400),
        ],
        [("parameter", 4)],
    )
    graph = replace(graph, dtypes=("f32",) * 6 + ("bf16", "f32"))
    assert np.flatnonzero(saved_values(graph)).tolist() == [6]


def test_values_of_more_bytes_than_32_bits_count_are_compared(by_hand: Callable[..., InstructionGraph]) -> None:
    """One value of 30 GB, or the two of 20 GB and 9.9 GB that it is made of."""
    graph = by_hand(
        [
            ("dot", "", F, [0], 20_000_000_000),
            ("dot", "", F, [0], 9_900_000_000),
            ("add", "", F, [1, 2], 30_000_000_000),
            ("multiply", "", B, [3], 8),
        ],
        [("parameter", 4)],
    )
    assert np.flatnonzero(saved_values(graph)).tolist() == [1, 2]
