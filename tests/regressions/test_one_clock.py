"""One model, one device, one precision, one price: by its traced graph, and by the layers that strategies price."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from strategy_problems import estimated

from automap_models.core.cluster import Cluster
from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.layers import block_ends
from automap_models.core.microbatch import rescaled
from automap_models.core.model_work import ModelWork
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.strategy import Precision, Recompute, Strategy
from automap_models.cost.profile_layers import ProfileWork
from automap_models.formats.hardware_yaml import device_of, read_cluster, read_device
from automap_models.hlo.clock import clock_times
from automap_models.hlo.dimension_classes import sharding_classes
from automap_models.hlo.graph import instruction_graph, rules_of
from automap_models.hlo.profile import clock_profile
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.hlo.sharding_work import DivisibleProfile, step_times
from automap_models.hlo.step_classes import StepClasses
from automap_models.simulate.plan_step import step_cost
from automap_models.workloads.source import Source, SourceKind, module_of, read_model_work

SEQUENCE, SAMPLES, MICRO_BATCHES = 256, 4, 4
DTYPES: dict[Precision, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
CLUSTERS = ("A", "p4d-4", "dgx-h100-4")
MODELS = ("gpt2_medium", "bert_large", "t5_base", "t5_3b", "llama3_8b", "gpt3_7b")
TOLERANCE = 0.05
"""Norms of T5, its bias of positions, and in 16 bits what kernels of gradients merge are 1 to 4 % apart."""


@cache
def _source(model: str, precision: Precision) -> Source:
    return Source(model, SourceKind.WORKLOAD, batch=SAMPLES, sequence=SEQUENCE, dtype=DTYPES[precision])


@cache
def _graph(model: str, precision: Precision) -> InstructionGraph:
    return instruction_graph(module_of(_source(model, precision)))


@cache
def _profile(model: str, precision: Precision, device: str) -> Profile:
    return clock_profile(_graph(model, precision), read_device(device))


COLUMNS = re.compile(r"/(q|k|v|wi|gate|head)/kernel$|relative_bias(/embedding)?$")
ROWS = re.compile(r"/(o|wo)/kernel$|params/embedding(/embedding)?$")
"""Parameters whose second dimension, or first, Megatron-LM divides (arXiv 1909.08053, section 3)."""


@cache
def _megatron(model: str, precision: Precision) -> tuple[StepClasses, frozenset[int]]:
    """The classes of a step, and those that tensor parallelism divides: heads, perceptrons' columns, the vocabulary."""
    graph, module = _graph(model, precision), module_of(_source(model, precision))
    step = StepClasses(module, sharding_classes(module, rules_of(module), read_rule_set("shardy")), graph)
    parameters = [(v, argument.name) for v, argument in enumerate(graph.arguments) if argument.kind == "parameter"]
    divided = {step.of_dims[v][1] for v, name in parameters if COLUMNS.search(name)}
    return step, frozenset(divided | {step.of_dims[v][0] for v, name in parameters if ROWS.search(name)})


@cache
def _divisible(model: str, precision: Precision, device: str) -> DivisibleProfile:
    step, kind = _megatron(model, precision)[0], read_device(device)
    times = step_times(_graph(model, precision), kind)
    return DivisibleProfile(step, times, _profile(model, precision, device), kind)


@cache
def _work(model: str, precision: Precision) -> ModelWork:
    return read_model_work(model, sequence=SEQUENCE, dtype=DTYPES[precision])


CASES = [(model, precision) for model in MODELS for precision in DTYPES]


@pytest.mark.parametrize("device", ["v100", "a100", "h100"])
@pytest.mark.parametrize(("model", "precision"), CASES)
def test_kernels_take_as_long_by_the_graph_as_by_the_layers(model: str, device: str, precision: Precision) -> None:
    """gpt2_medium in fp32 with dp 32 took 373 ms by one search and 1.94 s by the other."""
    kind, graph = read_device(device), _graph(model, precision)
    strategy = Strategy(micro_batch=SAMPLES, global_batch=SAMPLES, precision=precision)
    price = estimated(_work(model, precision), strategy, Cluster(1, 1, 1e11, 1e10, 1e12), kind)
    passes_s = float(clock_times(graph, kind)[graph.in_microbatch].sum())
    assert passes_s == pytest.approx(price.parts.compute, rel=TOLERANCE)


@pytest.mark.parametrize("samples", [1, 32])
@pytest.mark.parametrize(("model", "precision"), [(model, "fp32") for model in MODELS])
def test_another_micro_batch_takes_what_it_takes_when_it_is_traced_itself(
    model: str, precision: Precision, samples: int
) -> None:
    """The layers are priced with any number of samples: that is the second opinion on times of other sizes."""
    kind = read_device("v100")
    profile = rescaled(_profile(model, precision, kind.name), samples)
    strategy = Strategy(micro_batch=samples, global_batch=samples, precision=precision)
    price = estimated(_work(model, precision), strategy, Cluster(1, 1, 1e11, 1e10, 1e12), kind)
    assert profile.C.sum() == pytest.approx(price.parts.compute, rel=TOLERANCE)


@pytest.mark.parametrize("topo", CLUSTERS)
@pytest.mark.parametrize(("model", "precision"), CASES)
def test_data_parallelism_takes_as_long_by_a_plan_as_by_a_strategy(model: str, topo: str, precision: Precision) -> None:
    cluster = read_cluster(topo)
    device, dp = device_of(cluster), cluster.devices
    profile = rescaled(_profile(model, precision, device.name), SAMPLES * dp)
    problem = StagedProblem(profile, cluster, 1, MICRO_BATCHES, schedule="1f1b", device=device)
    plan_s = step_cost(problem, StagedPlan((), (), MICRO_BATCHES, "given")).step_s
    strategy = Strategy(
        micro_batch=SAMPLES, global_batch=SAMPLES * dp * MICRO_BATCHES, dp=dp, schedule="1f1b", precision=precision
    )
    assert plan_s == pytest.approx(estimated(_work(model, precision), strategy, cluster, device).step_s, rel=TOLERANCE)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("topo", CLUSTERS)
@pytest.mark.parametrize(("model", "precision"), CASES)
def test_equal_stages_take_as_long_by_a_plan_as_by_a_strategy(
    model: str, topo: str, precision: Precision, stages: int
) -> None:
    """Under a schedule whose ranks send beside their passes by both: of 1F1B strategies send alone, as Megatron does.

    T5's decoder in stages of its own holds the embedding, too; strategies know of the first and the last copy.
    """
    if model.startswith("t5") and stages > 2:
        pytest.xfail("three stages of T5 hold its embedding")
    cluster = read_cluster(topo)
    device, dp = device_of(cluster), cluster.devices // stages
    profile = rescaled(_profile(model, precision, device.name), SAMPLES * dp)
    problem = StagedProblem(profile, cluster, stages, MICRO_BATCHES, schedule="1f1b-deep", device=device)
    strategy = Strategy(
        micro_batch=SAMPLES,
        global_batch=SAMPLES * dp * MICRO_BATCHES,
        dp=dp,
        pp=stages,
        schedule="1f1b-deep",
        precision=precision,
    )
    price = estimated(_work(model, precision), strategy, cluster, device)
    ends = (*block_ends(profile), len(profile) - 1)  # of the blocks; the last one is the head's
    cuts = tuple(ends[count - 1] for count in np.cumsum(price.stage_layers)[:-1])
    plan = StagedPlan(cuts, tuple(dp * s for s in range(1, stages)), MICRO_BATCHES, "given")
    assert step_cost(problem, plan).step_s == pytest.approx(price.step_s, rel=TOLERANCE)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("topo", CLUSTERS)
@pytest.mark.parametrize(("model", "precision"), CASES)
def test_zero_and_recomputation_of_a_profile_cost_what_they_cost_of_the_model(
    model: str, topo: str, precision: Precision, zero: int, recompute: Recompute
) -> None:
    """A profile of GPT-2 had neither: "data parallelism does not fit" where ZeRO-3 did.

    What the framework saves of a layer is the profile's own: only its training state has to be the model's.
    """
    cluster = read_cluster(topo)
    device = device_of(cluster)
    strategy = Strategy(
        micro_batch=SAMPLES,
        global_batch=SAMPLES * cluster.devices * MICRO_BATCHES,
        dp=cluster.devices,
        zero=zero,
        recompute=recompute,
        precision=precision,
    )
    of_model, of_profile = (
        estimated(work, strategy, cluster, device)
        for work in (_work(model, precision), ProfileWork.from_profile(_profile(model, precision, device.name)))
    )
    assert of_profile.step_s == pytest.approx(of_model.step_s, rel=TOLERANCE)
    (held,), (expected,) = of_profile.memory, of_model.memory
    assert held.state == pytest.approx(expected.state, rel=0.01)
    assert (recompute == "full") == (held.temporary > 0.02 * held.activations)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("topo", CLUSTERS)
@pytest.mark.parametrize(("model", "precision"), CASES)
def test_tensor_parallelism_takes_as_long_by_a_plan_as_by_a_strategy(
    model: str, topo: str, precision: Precision, tp: int
) -> None:
    """Plans divided times by t: a quarter of GPT-2 took 0.79 of what the clock has for quarters of its products."""
    cluster = read_cluster(topo)
    device, dp = device_of(cluster), cluster.devices // tp
    divided = _megatron(model, precision)[1]
    sharded = (_divisible(model, precision, device.name).partitioned(divided, tp, f"{tp}-way"),)
    profile = _profile(model, precision, device.name)
    traced = StagedProblem(profile, cluster, 1, MICRO_BATCHES, schedule="1f1b", device=device, shardings=sharded)
    global_batch = SAMPLES * dp * MICRO_BATCHES
    problem = traced.with_split(1, MICRO_BATCHES, global_batch)
    cost = step_cost(problem, StagedPlan((), (), MICRO_BATCHES, "given", shardings=(1,)))
    strategy = Strategy(
        micro_batch=SAMPLES, global_batch=global_batch, dp=dp, tp=tp, schedule="1f1b", precision=precision
    )
    price = estimated(_work(model, precision), strategy, cluster, device)
    sums_s, strategy_sums_s = MICRO_BATCHES * cost.reduce_s.sum(), price.parts.tensor_parallel
    assert cost.step_s - sums_s == pytest.approx(price.step_s - strategy_sums_s, rel=TOLERANCE)
    if model == "bert_large":
        pytest.xfail("behind the norm XLA sums gradients of query, key and value apart: 1.48 of a strategy's sums")
    assert sums_s == pytest.approx(strategy_sums_s, rel=1e-3)
    assert cost.step_s == pytest.approx(price.step_s, rel=TOLERANCE)
