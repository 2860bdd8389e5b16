"""Plans of every kind that run on JAX's devices, held against the training step as it is.

For each of three models eight plans run under four schedules: two steps of four micro-batches. The loss of both steps
and the gradients of the first are held against the step itself, `jax.jit(step)`, on one device: it runs once a
micro-batch from the same values, the first moment of Adam's first update shows the gradient, and their averages are
what a plan has to come to. The collectives in the compiled programs are held against those that the plan implies: of a
micro-batch, and of the gradients that replicas sum once a step.

    OMP_NUM_THREADS=1 python benchmarks/jax_plans.py [MODEL …] [--plans NAME …] [--schedules NAME …]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from common import print_rows

from automap_models.core.passes import build_schedule
from automap_models.core.sharding_classes import REPLICATED
from automap_models.hlo.dimension_classes import sharding_classes
from automap_models.hlo.graph import rules_of
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.hlo.step import TrainingStep
from automap_models.run.base import gradient_errors
from automap_models.run.jax_collectives import ProgramCollectives, program_collectives, reduction_collectives
from automap_models.run.jax_pipeline import JaxPipeline, TracedStep
from automap_models.run.jax_step import drawn_arguments, drawn_batch, micro_batches
from automap_models.run.layout import Layout, StageLayout
from automap_models.workloads.convolutional import ResNetConfig
from automap_models.workloads.sizes import DecoderConfig, T5Config
from automap_models.workloads.training import OPTIMIZER, training_step

FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",  # compilation is what takes time
    "--xla_llvm_disable_expensive_passes=true",
)
SAMPLES, MICRO_BATCHES, LENGTH, VOCABULARY = 4, 4, 6, 24
TOLERANCE = 1e-5
_DECAY = 0.9
"""Adam's, of the first moment."""


def gpt() -> TrainingStep:
    """A decoder whose word embedding is its output matrix, with dropout."""
    config = DecoderConfig(8, 2, 1, VOCABULARY, positions=LENGTH, tied=True, attention_bias=False, residual_dropout=0.1)
    return training_step("gpt", config, (SAMPLES, LENGTH), "float32")


def resnet() -> TrainingStep:
    """Convolutions whose batch statistics are state."""
    return training_step("resnet", ResNetConfig((1,), width=4, classes=4, image=16), (SAMPLES,), "float32")


def t5() -> TrainingStep:
    """An encoder and a decoder that reads it from all its blocks; one embedding for three uses."""
    config = T5Config(8, 2, 4, 16, 1, VOCABULARY)
    return training_step("t5", config, (SAMPLES, LENGTH), "float32")


MODELS: dict[str, Callable[[], TrainingStep]] = {"gpt": gpt, "resnet": resnet, "t5": t5}


Shapes = tuple[tuple[int, int], ...]
"""(d, t) of each rank: its replicas, and the devices of a replica."""

PLANS: dict[str, Shapes] = {
    "1-1": ((1, 1), (1, 1)),
    "1-1-1": ((1, 1), (1, 1), (1, 1)),
    "2-2": ((2, 1), (2, 1)),
    "1-2-1": ((1, 1), (2, 1), (1, 1)),
    "3-1": ((3, 1), (1, 1)),
    "hybrid 2x2": ((2, 2), (2, 2)),
    "hybrid 1x2-2x1": ((1, 2), (2, 1)),
    "operators": ((1, 4),),
}
"""Name → plan; of 4 samples, three replicas get 2, 2 and 0."""
SCHEDULES = {"gpipe": 1, "1f1b": 1, "zb-h1": 1, "interleaved": 2}
"""Schedule → virtual stages a rank; those with as many, and with or without a split backward pass, share programs."""


def layout(traced: TracedStep, shapes: Shapes, name: str) -> Layout:
    """Stages of equally many instructions; what is sharded along the model axis is all that can be."""
    forward, virtual = int((traced.graph.phases == 0).sum()), SCHEDULES[name]
    schedule = build_schedule(name, len(shapes), MICRO_BATCHES, virtual)
    stages = len(shapes) * virtual
    cuts = tuple(forward * (s + 1) // stages - 1 for s in range(stages - 1))
    first = np.concatenate([[0], np.cumsum([d * t for d, t in shapes])]).tolist()
    layouts: list[StageLayout] = []
    for rank in schedule.rank_of:
        d, t = shapes[rank]
        devices = tuple(range(first[rank], first[rank + 1]))
        layouts.append(StageLayout(devices, d, t, sharded_dims(traced, t) if t > 1 else {}))
    return Layout(schedule, tuple(layouts), cuts)


def sharded_dims(traced: TracedStep, degree: int) -> dict[str, int]:
    """Dimensions of parameters that do not conflict, classes of many parameters first."""
    module = traced.module
    classes = sharding_classes(module, rules_of(module), read_rule_set("shardy")).classes
    parameters = [v for v, variable in enumerate(classes.variables) if variable.kind == "parameter"]
    weight = np.zeros(len(classes))
    inputs: set[int] = set()
    for v, variable in enumerate(classes.variables):
        of_dims = classes.dim_classes[classes.dim_offsets[v] : classes.dim_offsets[v + 1]]
        if v in parameters:
            np.add.at(weight, of_dims, 1)
        elif variable.kind == "input":
            inputs |= set(of_dims.tolist())
    chosen: list[int] = []
    for c in np.argsort(-weight, kind="stable").tolist():
        clash = classes.adjacency[c, chosen].any() if chosen else False
        if weight[c] and c not in inputs and classes.divisors[c] % degree == 0 and not clash:
            chosen.append(c)
    dims = zip(classes.variables, classes.dims(chosen), strict=True)
    return {variable.name: int(dim) for variable, dim in dims if dim != REPLICATED}


@dataclass(frozen=True)
class Expected:
    """What the step itself makes: the losses of two steps, the gradients of the first."""

    losses: tuple[float, float]
    gradients: dict[str, np.ndarray]


def expected(traced: TracedStep, arguments: Sequence[Any], batches: Sequence[Sequence[Any]]) -> Expected:
    """The step micro-batch by micro-batch on one device, and an update by the averaged gradients."""
    step = traced.step
    call = jax.jit(step.function)
    params, optimizer, state = arguments[0], arguments[1], arguments[2]
    start = jax.tree.map(np.zeros_like, optimizer)  # so that the first moment is nothing but the gradient
    losses: list[float] = []
    first: Any = None
    for batch in batches:
        gradients, loss = [], []
        for part in micro_batches(step, batch, MICRO_BATCHES):
            given = jax.tree.unflatten(jax.tree.structure(step.arguments[3]), _typed(part, step.arguments[3]))
            _, moments, state, value = call(params, start, state, given)
            gradients.append(jax.tree.map(lambda moment: moment / (1 - _DECAY), moments[0].mu))
            loss.append(float(value))
        mean = jax.tree.map(lambda *parts: sum(parts) / MICRO_BATCHES, *gradients)
        first = mean if first is None else first
        updates, optimizer = OPTIMIZER.update(mean, optimizer, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(np.mean(loss)))
    names = [argument.name for argument in traced.graph.arguments if argument.kind == "parameter"]
    return Expected((losses[0], losses[1]), dict(zip(names, map(np.asarray, jax.tree.leaves(first)), strict=True)))


def _typed(part: Sequence[Any], shapes: Any) -> Iterator[Any]:
    for value, shape in zip(part, jax.tree.leaves(shapes), strict=True):
        is_key = jax.numpy.issubdtype(shape.dtype, jax.dtypes.prng_key)
        yield jax.random.wrap_key_data(value) if is_key else value


class Bytes(NamedTuple):
    """Of collectives on one device of each stage, all stages: what XLA all-reduces, what the plan says, the rest."""

    all_reduced: float
    planned: float
    others: float

    @staticmethod
    def from_collectives(collectives: Iterable[ProgramCollectives]) -> Bytes:
        """Their sums."""
        some = list(collectives)
        others = sum(sum(c.others.values()) for c in some)
        return Bytes(sum(c.all_reduced for c in some), sum(c.planned for c in some), others)


class Ran(NamedTuple):
    """A plan that ran under a schedule.

    Attributes:
        loss, gradient: the largest relative error of a loss and of a gradient.
        micro_batch, step: collectives of each micro-batch, and of the gradients once a step.
    """

    loss: float
    gradient: float
    micro_batch: Bytes
    step: Bytes

    @property
    def agrees(self) -> bool:
        """Whether it trains as the step itself, and all-reduces what the plan says."""
        exact = max(self.loss, self.gradient) <= TOLERANCE
        return exact and all(some.all_reduced == some.planned for some in (self.micro_batch, self.step))


def run(model: str, plans: Sequence[str], schedules: Sequence[str]) -> Iterator[tuple[str, list[Ran]]]:
    """Each plan of a model under all schedules."""
    traced = TracedStep(MODELS[model]())
    arguments = drawn_arguments(traced.step, 0)
    batches = [drawn_batch(traced.step, 1 + k, MICRO_BATCHES, 4 if model == "resnet" else VOCABULARY) for k in (0, 1)]
    right = expected(traced, arguments, batches)
    for name in plans:
        compiled: dict[tuple[int, bool], JaxPipeline] = {}
        runs = []
        for schedule in schedules:
            laid_out = layout(traced, PLANS[name], schedule)
            sort = (len(laid_out.stages), laid_out.schedule.splits_backward)
            if sort not in compiled:
                compiled[sort] = JaxPipeline(traced, laid_out, arguments)
            pipeline = compiled[sort]
            pipeline.layout = laid_out
            pipeline.load(arguments)
            losses = [pipeline.step(*batches[0])]
            gradient = gradient_errors(pipeline.gradients(), right.gradients, TOLERANCE)[0]
            losses.append(pipeline.step(*batches[1], measure=True))
            loss = max(abs(one - other) / abs(other) for one, other in zip(losses, right.losses, strict=True))
            collectives = (program_collectives(pipeline.programs), reduction_collectives(pipeline.programs))
            runs.append(Ran(loss, gradient, *(Bytes.from_collectives(some.values()) for some in collectives)))
        yield name, runs


HEADINGS = (
    *("model", "plan", "loss", "gradient", "all-reduced a micro-batch", "a step", "others a micro-batch"),
    "schedules that agree",
)


def row(model: str, name: str, runs: Sequence[Ran]) -> tuple[str, ...]:
    """The largest errors and bytes of a plan under all schedules."""
    errors = (f"{max(some):.1e}" for some in zip(*((ran.loss, ran.gradient) for ran in runs), strict=True))
    nbytes = ((ran.micro_batch.all_reduced, ran.step.all_reduced, ran.micro_batch.others) for ran in runs)
    most = (f"{max(some):,.0f}" for some in zip(*nbytes, strict=True))
    return (model, name, *errors, *most, "all" if all(ran.agrees for ran in runs) else "not all")


def main() -> int:
    """Print the table; 1 where a number differs, or a program all-reduces other bytes than the plan."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--plans", nargs="+", default=list(PLANS), choices=PLANS, metavar="NAME")
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES, metavar="NAME")
    options = parser.parse_args()
    if unknown := [name for name in options.models if name not in MODELS]:
        parser.error(f"{unknown[0]} is none of {', '.join(MODELS)}")
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *FLAGS))  # before JAX looks for devices
    plans = (
        (model, *ran) for model in options.models or MODELS for ran in run(model, options.plans, options.schedules)
    )
    printed = print_rows(HEADINGS, (row(*plan) for plan in plans))
    return int(any(cells[-1] != "all" for cells in printed))


if __name__ == "__main__":
    raise SystemExit(main())
