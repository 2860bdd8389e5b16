"""A step that runs by a plan on JAX: all its stages share this process's one device, which changes no number.

Plans on several devices run in test_jax_plans.py.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.passes import build_schedule
from automap_models.core.plan import Plan, Stage
from automap_models.errors import BadInput
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.profile import profile_from_graph
from automap_models.hlo.step import TrainingStep
from automap_models.run.base import gradient_errors
from automap_models.run.jax_pipeline import JaxPipeline, TracedStep
from automap_models.run.jax_run import require_model
from automap_models.run.jax_step import drawn_arguments, drawn_batch, step_results
from automap_models.run.layout import Layout, StageLayout, layout_of, on_one_device
from automap_models.workloads.source import Source, SourceKind, module_of, training_step_of

SAMPLES, WIDTH, MICRO_BATCHES = 4, 6, 3
RATE, MOMENTUM = 0.1, 0.9


def loss(params: Any, mean: Any, x: Any, key: Any) -> Any:
    """Two layers with the same kernel, noise by a key, and a mean of inputs that is kept beside."""
    with jax.named_scope("first"):
        seen = 0.5 * mean + 0.5 * x.mean(0)
        h = jnp.tanh((x - seen) @ params["kernel"] + params["bias"])
    with jax.named_scope("second"):
        h = h * jax.random.bernoulli(key, 0.8, h.shape)
        out = h @ params["kernel"]
    return jnp.mean(out**2), seen


def train_step(params: Any, state: Any, x: Any, key: Any) -> Any:
    """SGD with momentum, clipped by the norm of all gradients."""
    (value, seen), gradients = jax.value_and_grad(loss, has_aux=True)(params, state["mean"], x, key)
    return *updated(params, state, gradients, seen), value


def updated(params: Any, state: Any, gradients: Any, seen: Any) -> Any:
    """New parameters and state."""
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
    clipped = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.01 / norm), gradients)
    moments = jax.tree.map(lambda m, g: MOMENTUM * m + g, state["moments"], clipped)
    params = jax.tree.map(lambda p, m: p - RATE * m, params, moments)
    return params, {"mean": seen, "moments": moments, "steps": state["steps"] + 1}


@pytest.fixture(scope="module")
def traced() -> TracedStep:
    """The step, traced once."""
    shape = jax.ShapeDtypeStruct
    params = {"kernel": shape((WIDTH, WIDTH), jnp.float32), "bias": shape((WIDTH,), jnp.float32)}
    state = {"mean": shape((WIDTH,), jnp.float32), "moments": params, "steps": shape((), jnp.int32)}
    key = jax.eval_shape(lambda: jax.random.key(0))
    arguments = (params, state, shape((SAMPLES, WIDTH), jnp.float32), key)
    return TracedStep(TrainingStep("small", train_step, arguments, 0, (2, 3), SAMPLES))


@pytest.fixture(scope="module")
def arguments(traced: TracedStep) -> list[Any]:
    """First values."""
    return drawn_arguments(traced.step, 3)


@pytest.fixture(scope="module")
def batches(traced: TracedStep) -> list[list[Any]]:
    """Two global batches."""
    return [drawn_batch(traced.step, seed, MICRO_BATCHES, 2) for seed in (5, 6)]


@dataclasses.dataclass
class Right:
    """What JAX itself makes of two steps: gradients of each micro-batch, their mean, one update."""

    losses: list[float]
    gradients: Any
    params: Any
    state: Any


@pytest.fixture(scope="module")
def right(arguments: list[Any], batches: list[list[Any]]) -> Right:
    """By jax.grad of the loss, micro-batch by micro-batch."""
    params, state = arguments[0], arguments[1]
    call = jax.jit(jax.value_and_grad(loss, has_aux=True))
    losses, first = [], None
    for x, key in batches:
        seen, values, gradients = state["mean"], [], []
        for m in range(MICRO_BATCHES):
            part = x[m * SAMPLES : (m + 1) * SAMPLES]
            (value, seen), gradient = call(params, seen, part, jax.random.fold_in(key, m))
            values.append(float(value))
            gradients.append(gradient)
        mean = jax.tree.map(lambda *own: sum(own) / MICRO_BATCHES, *gradients)
        first = mean if first is None else first
        params, state = updated(params, state, mean, seen)
        losses.append(float(np.mean(values)))
    return Right(losses, first, params, state)


def layout(traced: TracedStep, stages: int, schedule: str, virtual: int = 1) -> Layout:
    """Stages of equally many instructions, all on the one device."""
    forward = int((traced.graph.phases == 0).sum())
    cuts = tuple(forward * (s + 1) // stages - 1 for s in range(stages - 1))
    order = build_schedule(schedule, stages // virtual, MICRO_BATCHES, virtual)
    return Layout(order, (StageLayout((0,)),) * stages, cuts)


@pytest.mark.parametrize(
    ("stages", "schedule", "virtual", "measure"),
    [
        (2, "zb-h1", 1, True),
        (1, "1f1b", 1, False),
        (3, "gpipe", 1, True),
        (2, "1f1b", 1, False),
        (3, "interleaved", 3, False),
    ],
)
def test_a_plan_trains_as_the_step_itself(
    stages: int,
    schedule: str,
    virtual: int,
    measure: bool,
    traced: TracedStep,
    arguments: list[Any],
    batches: list[list[Any]],
    right: Right,
) -> None:
    """Tied kernels, clipping by a norm over stages, state of micro-batches and of steps, keys; gradients and values."""
    pipeline = JaxPipeline(traced, layout(traced, stages, schedule, virtual), arguments)
    losses = [pipeline.step(*batches[0], measure=measure)]
    gradients = pipeline.gradients()
    losses.append(pipeline.step(*batches[1]))
    np.testing.assert_allclose(losses, right.losses, rtol=1e-5)
    assert set(gradients) == {"params/bias", "params/kernel"}
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, right.gradients[name.removeprefix("params/")], rtol=1e-5, atol=1e-7)
    params, state, *_ = pipeline.arguments()
    for own, other in zip(jax.tree.leaves([params, state]), jax.tree.leaves([right.params, right.state]), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-7)
    assert state["steps"] == 2


def test_a_measured_step_has_every_pass_of_the_schedule_once(
    traced: TracedStep, arguments: list[Any], batches: list[list[Any]]
) -> None:
    plan = layout(traced, 2, "1f1b")
    pipeline = JaxPipeline(traced, plan, arguments)
    pipeline.step(*batches[0], measure=True)
    passes = {(one.kind, one.stage, one.micro_batch) for one in pipeline.passes}
    expected = {(kind, stage, m) for order in plan.schedule.orders for kind, stage, m in order}
    assert {one for one in passes if one[0] != "U"} == expected
    assert ("U", 0, 0) in passes  # where both tied parameters are updated
    ends = {(one.kind, one.stage, one.micro_batch): one.end_s for one in pipeline.passes}
    for one in pipeline.passes:
        assert 0 <= one.start_s <= one.end_s <= pipeline.length_s
        assert one.busy_s >= 0
        if one.kind == "F" and one.stage:
            assert ends["F", one.stage - 1, one.micro_batch] <= one.start_s
        if one.kind == "B" and not one.stage:
            assert ends["B", 1, one.micro_batch] <= one.start_s


def test_training_goes_on_under_another_plan(
    traced: TracedStep, arguments: list[Any], batches: list[list[Any]], right: Right
) -> None:
    first = JaxPipeline(traced, layout(traced, 2, "gpipe"), arguments)
    first.step(*batches[0])
    second = JaxPipeline(traced, layout(traced, 3, "1f1b"), first.arguments())
    np.testing.assert_allclose(second.step(*batches[1]), right.losses[1], rtol=1e-5)


def test_a_batch_that_is_no_m_micro_batches_is_refused(
    traced: TracedStep, arguments: list[Any], batches: list[list[Any]]
) -> None:
    pipeline = JaxPipeline(traced, on_one_device(MICRO_BATCHES), arguments)
    x, key = batches[0]
    with pytest.raises(BadInput, match="a batch of 11 samples is not 3 micro-batches of 4; give 12 samples"):
        pipeline.step(x[:11], key)
    with pytest.raises(BadInput, match="1 inputs, the step has 2"):
        pipeline.step(x)
    with pytest.raises(BadInput, match=r"has the shape \[12, 5\]"):
        pipeline.step(x[:, :5], key)


def test_too_few_devices_are_refused(traced: TracedStep) -> None:
    plan = Layout(build_schedule("1f1b", 1, 1), (StageLayout(tuple(range(64)), 64),))
    with pytest.raises(BadInput, match="the plan is for 64 devices, JAX has"):
        JaxPipeline(traced, plan)


def test_a_step_that_does_not_return_its_parameters_is_refused(traced: TracedStep) -> None:
    step = dataclasses.replace(traced.step, function=lambda params, state, x, key: (state, x.sum()))
    with pytest.raises(BadInput, match="does not return argument 0, updated"):
        step_results(step)
    silent = dataclasses.replace(traced.step, function=lambda params, state, x, key: (params, state))
    with pytest.raises(BadInput, match="returns no floating-point number, the loss"):
        step_results(silent)


def run_plan_of(traced: TracedStep, fingerprint: str | None) -> Plan:
    """A plan of two stages, (1, 2) devices, as read from a file."""
    names = [traced.graph.names[i] for i in np.flatnonzero(traced.graph.phases == 0)]
    middle, last = len(names) // 2, len(names) - 1
    times = (1e-3, 2e-3, 0.0, 0.0)
    stages = (
        Stage(0, middle, names[middle], (0, 0), 1, 1, None, *times),
        Stage(middle + 1, last, names[last], (1, 2), 2, 1, None, *times),
    )
    cluster = Cluster(1, 3, 1e9, 1e9, 1e12)
    return Plan("plan.json", "small", stages, MICRO_BATCHES, SAMPLES, "1f1b", 1.0, fingerprint, {}, cluster)


def test_the_plan_of_another_model_is_refused(traced: TracedStep) -> None:
    own = run_plan_of(traced, None)
    source = Source("m:f", SourceKind.FACTORY)
    require_model(own, traced, source)
    with pytest.raises(BadInput, match=r"plan\.json: was made for another model than small"):
        require_model(dataclasses.replace(own, model_fingerprint="0"), traced, source)
    renamed = dataclasses.replace(own.stages[0], last_name="dot.99")
    with pytest.raises(BadInput, match="was made for another model"):
        require_model(dataclasses.replace(own, stages=(renamed, own.stages[1])), traced, source)


def test_a_deep_model_is_told_by_its_repeated_blocks(tmp_path: Path) -> None:
    """Its profile is made of a few blocks, and names instructions in another way than the whole trace."""
    pytest.importorskip("flax")
    sizes = {"n_embd": 8, "n_head": 2, "n_layer": 8, "n_positions": 8, "vocab_size": 16}
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, **sizes, "layer_norm_epsilon": 1e-5}), encoding="utf-8")
    source = Source(str(path), SourceKind.CONFIG, batch=2, sequence=4)
    graph = instruction_graph(module_of(source))
    names = [graph.names[i] for i in np.flatnonzero(graph.phases == 0)]
    profile = profile_from_graph(graph, np.ones(len(graph)), {})
    stage = Stage(0, len(names) - 1, names[-1], (0, 0), 1, 1, None, 1e-3, 1e-3, 0.0, 0.0)
    cluster = Cluster(1, 1, 1e9, 1e9, 1e12)
    plan = Plan("plan.json", "deep", (stage,), 1, 2, "1f1b", 1.0, profile.model_fingerprint, {}, cluster)
    require_model(plan, TracedStep(training_step_of(source)), source)
    with pytest.raises(BadInput, match="was made for another model"):
        require_model(dataclasses.replace(plan, model_fingerprint="0"), TracedStep(training_step_of(source)), source)


def test_stages_lie_on_devices_one_after_the_other(traced: TracedStep) -> None:
    plan = run_plan_of(traced, None)
    laid = layout_of(plan, build_schedule("1f1b", 2, MICRO_BATCHES))
    assert [stage.devices for stage in laid.stages] == [(0,), (1, 2)]
    assert [stage.data for stage in laid.stages] == [1, 2]
    assert laid.cuts == (plan.stages[0].last,)


def test_errors_of_gradients_are_relative_but_for_negligible_ones() -> None:
    expected = {"a": np.array([3.0, 4.0]), "b": np.array([1e-9])}
    same = {"a": np.array([3.0, 4.0]), "b": np.array([2e-9])}
    error, difference = gradient_errors(same, expected, 1e-5)
    assert error == pytest.approx(1e-9 / (5.0 * 1e-3), rel=1e-6)
    assert difference is None
    error, difference = gradient_errors({**same, "a": np.array([3.0, 4.001])}, expected, 1e-5)
    assert error == pytest.approx(2e-4)
    assert difference is not None
    assert difference.startswith("the gradient of a differs by 2.0e-04")
    coarse, difference = gradient_errors({**same, "a": np.array([3.0, 4.001]), "b": np.array([0.01])}, expected, 5e-2)
    assert (coarse, difference) == (
        pytest.approx(0.01 / (5.0 * 1e-2), rel=1e-3),
        "the gradient of b differs by 2.0e-01 of its norm, 1.000e-09",
    )
    assert gradient_errors({**same, "b": np.array([0.002])}, expected, 5e-2) == (pytest.approx(0.04, rel=1e-3), None)


def test_a_problem_survives_as_json(traced: TracedStep) -> None:
    import msgspec

    from automap_models.run.base import RunProblem
    from automap_models.run.jax_process import as_array, as_list

    plan = run_plan_of(traced, "abc")
    problem = RunProblem(plan, Source("m:f", SourceKind.FACTORY, batch=4), build_schedule("gpipe", 2, 3), check=True)
    line = msgspec.json.encode(problem, enc_hook=as_list)
    read = msgspec.json.decode(line, type=RunProblem, dec_hook=as_array)
    assert dataclasses.replace(read, schedule=problem.schedule) == problem
    assert str(read.schedule) == str(problem.schedule)
