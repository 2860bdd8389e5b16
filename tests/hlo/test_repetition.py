"""A step whose blocks are repeated from a shallow trace is the step that was traced as a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from automap_models.formats.hardware_yaml import read_device
from automap_models.hlo import repetition
from automap_models.hlo.adapter import trace
from automap_models.hlo.block_labels import BlockStack
from automap_models.hlo.clock import clock_times
from automap_models.hlo.dimension_classes import sharding_classes
from automap_models.hlo.graph import instruction_graph, rules_of
from automap_models.hlo.module import Module
from automap_models.hlo.profile import profile_from_graph
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.hlo.sharding_rules import RuledModule
from automap_models.hlo.sharding_work import sharding_work, step_times
from automap_models.hlo.step_classes import StepClasses
from automap_models.workloads.blocks import token_shapes
from automap_models.workloads.sizes import Architecture, BertConfig, DecoderConfig, T5Config
from automap_models.workloads.training import step_module, training_step

T5 = T5Config(width=16, heads=4, head_width=4, feed_forward=32, layers=5, vocabulary=40)
FAMILIES: dict[str, Architecture] = {
    "t5": T5,
    "bert": BertConfig(width=16, heads=4, layers=5, vocabulary=40, positions=8),
    "gpt2": DecoderConfig(width=16, heads=4, layers=12, vocabulary=40, positions=8),
    "moe": replace(T5, layers=10, experts=2),
    "dropout": DecoderConfig(
        width=16,
        heads=4,
        layers=6,
        vocabulary=40,
        positions=8,
        attention_dropout=0.1,
        residual_dropout=0.1,
        embedding_dropout=0.1,
    ),
}
"""More blocks than are traced; those of gpt2 are sorted 0, 1, 10, 11, 2 as keys of a tree.

That of t5 is by hand: moe has its blocks, too."""
LABELS = (2, 8)


@pytest.fixture(
    scope="module",
    params=FAMILIES,
)
def steps(request: pytest.FixtureRequest) -> tuple[Module, Module]:
    """A step that was traced as a whole, and the same with blocks repeated."""
    architecture = FAMILIES[request.param]
    step = step_module("m", architecture, LABELS, "bfloat16")
    assert isinstance(step, RuledModule)
    return trace(training_step("m", architecture, LABELS, "bfloat16")), step


def test_the_profiles_are_equal(steps: tuple[Module, Module]) -> None:
    whole, repeated = (instruction_graph(step) for step in steps)
    device = read_device("v100")
    expected, profile = (profile_from_graph(graph, clock_times(graph, device)) for graph in (whole, repeated))
    for array in ("C", "A", "W", "C_fwd", "stash"):
        np.testing.assert_allclose(getattr(profile, array), getattr(expected, array), rtol=1e-9, atol=0.0)
    assert profile.layers == expected.layers
    assert profile.shared_parameters == expected.shared_parameters
    assert len(set(profile.names)) == len(profile)
    for key in expected.meta.keys() - {"long_lived_values"}:  # whose names have other numbers
        value = expected.meta[key]
        assert profile.meta[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key


def test_the_steps_take_the_same_arguments_and_return_as_many(steps: tuple[Module, Module]) -> None:
    whole, repeated = steps
    assert repeated.arguments == whole.arguments
    assert repeated.argument_types == whole.argument_types
    assert len(repeated.operations) == len(whole.operations)
    assert len(set(repeated.outputs)) == len(set(whole.outputs))


def test_the_sharding_classes_and_their_work_are_equal(steps: tuple[Module, Module]) -> None:
    whole, repeated = (sharding_classes(step, rules_of(step), read_rule_set("shardy")) for step in steps)
    assert repeated.classes.variables == whole.classes.variables
    for array in ("dim_classes", "divisors", "conflicts"):
        np.testing.assert_array_equal(getattr(repeated.classes, array), getattr(whole.classes, array))
    device = read_device("v100")
    expected, work = (
        sharding_work(StepClasses(step, sharding, graph), step_times(graph, device))
        for step, sharding, graph in zip(steps, (whole, repeated), map(instruction_graph, steps), strict=True)
    )
    for array in ("compute_s", "launch_s", "compute", "held_bytes", "memory", "activation_sums", "gradient_sums"):
        np.testing.assert_allclose(getattr(work, array), getattr(expected, array), rtol=1e-9)
    np.testing.assert_array_equal(work.starts, expected.starts)
    assert work.merged == expected.merged


@dataclass(frozen=True)
class Widening:
    """A model each of whose blocks is wider inside than the one before it."""

    layers: int

    def module(self, dtype: Any) -> nn.Module:
        """See training.Architecture."""
        return WideningModule(self.layers)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See training.Architecture."""
        return token_shapes(labels, "ids", "labels")


class WideningModule(nn.Module):
    """The model of a Widening."""

    layers: int

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        """[batch, n] → logits [batch, n, 8]."""
        x = nn.Embed(8, 4, name="embedding")(ids)
        for i in range(self.layers):
            x = x + nn.Dense(4, name=f"block_{i}_out")(nn.Dense(4 + i, name=f"block_{i}")(x))
        return nn.Dense(8, name="head")(x)


def test_blocks_that_differ_are_not_repeated() -> None:
    stack = BlockStack("block_", 6)
    step = trace(training_step("widening", Widening(stack.traced), LABELS, "float32"))
    assert repetition.repeated(step, [stack]) is None


@pytest.mark.parametrize(
    ("stack", "traced"),
    [
        (BlockStack("b", 3), 3),
        (BlockStack("b", 126), 4),
        (BlockStack("b", 61, lead=3), 7),
        (BlockStack("b", 24, period=2), 8),
        (BlockStack("b", 25, period=2), 9),
    ],
)
def test_a_trace_has_four_instances_of_what_repeats_beside_what_does_not(stack: BlockStack, traced: int) -> None:
    assert stack.traced == traced
