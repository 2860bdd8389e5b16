"""Gradients that replicas add up for themselves are those of jax.grad, and what looks at all samples stays whole."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np

from automap_models.hlo.dimension_classes import sharding_classes
from automap_models.hlo.graph import rules_of
from automap_models.hlo.jax_function import program_function
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.hlo.step import TrainingStep
from automap_models.hlo.step_classes import StepClasses
from automap_models.hlo.step_cut import ProgramKey, cut_step
from automap_models.run.jax_local_sums import LocalSumFinder, LocalSums
from automap_models.run.jax_pipeline import TracedStep

SAMPLES, WIDTH, WORDS, REPLICAS = 6, 4, 5, 3


def loss(params: Any, words: Any) -> Any:
    """A table, batch statistics, a bias, a kernel that is read twice, and a factor of a weight."""
    x = params["table"][words]
    x = (x - x.mean(0)) * params["scale"]
    x = jnp.tanh(x @ params["kernel"] + params["bias"]) @ params["kernel"].T
    return jnp.mean(x**2)


def train_step(params: Any, words: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(params, words)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


@pytest.fixture(scope="module")
def traced() -> TracedStep:
    shape = jax.ShapeDtypeStruct
    sizes = {"table": (WORDS, WIDTH), "kernel": (WIDTH, WIDTH), "bias": (WIDTH,), "scale": (WIDTH,)}
    params = {name: shape(own, jnp.float32) for name, own in sizes.items()}
    words = shape((SAMPLES,), jnp.int32)
    return TracedStep(TrainingStep("small", train_step, (params, words), 0, (1,), SAMPLES))


@pytest.fixture(scope="module")
def parts(traced: TracedStep) -> tuple[LocalSums, StepClasses, frozenset[int]]:
    """The backward program of a single stage in two parts."""
    module = traced.module
    classes = StepClasses(module, sharding_classes(module, rules_of(module), read_rule_set("shardy")), traced.graph)
    words = next(v for v, argument in enumerate(traced.graph.arguments) if argument.kind == "input")
    samples = frozenset({classes.of_dims[words][0]})
    cut = cut_step(traced.graph, (), traced.returned, wanted=tuple(traced.gradients.values()))
    averaged = set(cut.averaged())
    program = cut.programs[ProgramKey("B", 0)]
    summed = [v for v in program.outputs if v in averaged]
    local = LocalSumFinder(module, classes).split(program, summed, [], samples)
    assert local is not None
    return local, classes, samples


def test_every_gradient_is_added_up_where_its_samples_are(
    traced: TracedStep, parts: tuple[LocalSums, StepClasses, frozenset[int]]
) -> None:
    assert set(parts[0].totals) == set(traced.gradients.values())


def test_the_replicas_totals_come_to_the_gradients(
    traced: TracedStep, parts: tuple[LocalSums, StepClasses, frozenset[int]]
) -> None:
    """Head on all samples, tail on each third of them: the batch statistics are those of all, as one process has."""
    local, classes, samples = parts
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda own: rng.normal(size=own.shape).astype(np.float32), traced.step.arguments[0])
    words = np.array([0, 1, 1, 4, 3, 0], np.int32)
    cut = cut_step(traced.graph, (), traced.returned, wanted=tuple(traced.gradients.values()))
    values: dict[int, Any] = dict(enumerate([*jax.tree.leaves(params), words]))
    for program in (cut.programs[ProgramKey("F", 0)], local.head):
        returned = jax.jit(program_function(traced.module, program))(*(values[v] for v in program.inputs))
        values |= zip(program.outputs, returned, strict=True)
    totals: list[Any] = []
    for replica in range(REPLICAS):
        own = [_part(values[v], classes.of_dims[v], samples, replica) for v in local.tail.inputs]
        shapes = {v: np.shape(value) for v, value in zip(local.tail.inputs, own, strict=True)}
        totals.append(jax.jit(program_function(traced.module, local.tail, shapes))(*own))
    names = {v: traced.graph.arguments[a].name.removeprefix("params/") for a, v in traced.gradients.items()}
    right = jax.grad(loss)(params, words)
    for v, *own in zip(local.totals, *totals, strict=True):
        np.testing.assert_allclose(sum(own), right[names[v]], rtol=1e-5, atol=1e-7)


def _part(value: Any, classes: tuple[int, ...], samples: frozenset[int], replica: int) -> Any:
    for dim, own in enumerate(classes):
        if own in samples:
            return np.split(np.asarray(value), REPLICAS, axis=dim)[replica]
    return value
