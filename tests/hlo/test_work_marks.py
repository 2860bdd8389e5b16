"""Marks of a traced transformer are those that Megatron-LM's tensor and expert parallelism give its parameters."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from automap_models.core.model_work import Mark
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph, rules_of
from automap_models.hlo.model_layers import ModelLayers
from automap_models.hlo.rule_sets import RuleSet
from automap_models.hlo.sharding_classes import sharding_classes
from automap_models.hlo.step_classes import StepClasses
from automap_models.hlo.work_marks import WorkMarks
from automap_models.workloads.blocks import Latent, Rotary
from automap_models.workloads.decoder import DecoderConfig
from automap_models.workloads.mixture import Mixture
from automap_models.workloads.t5 import T5Config
from automap_models.workloads.training import TransformerArchitecture, training_step

LENGTH, WIDTH, VOCABULARY = 12, 32, 80
GPT = DecoderConfig(width=WIDTH, heads=4, layers=2, vocabulary=VOCABULARY, positions=LENGTH, tied=False)
DEEPSEEK = DecoderConfig(
    width=WIDTH,
    heads=4,
    layers=2,
    vocabulary=VOCABULARY,
    positions=None,
    feed_forward=48,
    gated=True,
    root_mean_square=True,
    tied=False,
    latent=Latent(20, 18, 6, Rotary(4), 5),
    mixture=Mixture(4, 2, 28, 24),
    dense_layers=1,
)
T5 = T5Config(width=WIDTH, heads=4, head_width=6, feed_forward=56, layers=2, vocabulary=VOCABULARY)
FAMILIES: dict[str, TransformerArchitecture] = {"gpt": GPT, "deepseek": DEEPSEEK, "t5": T5}

PARTITIONED = {
    r"^params/embedding(/embedding)?$": 0,
    r"/head/kernel$": 1,
    r"attention/(q|k|v|kv)/kernel$": 1,
    r"attention/(q|k|v)/bias$": 0,
    r"attention/o/kernel$": 0,
    r"(feed_forward|shared)/(wi|gate)/kernel$": 1,
    r"feed_forward/(wi|gate)/bias$": 0,
    r"(feed_forward|shared)/wo/kernel$": 0,
    r"experts/(wi|gate)$": 2,
    r"experts/wo$": 1,
    r"relative_bias/embedding$": 1,
}
"""Pattern of a parameter's path → its dimension that tensor parallelism divides (arXiv 1909.08053, section 3); no other
parameter is divided. Latents of queries, keys and values are whole on every device (DeepSeek's released code)."""


class Traced(NamedTuple):
    """A trace and its marks."""

    step: StepClasses
    layers: ModelLayers
    marks: WorkMarks


@pytest.fixture(
    scope="module", params=["gpt", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name != "gpt")]
)
def traced(request: pytest.FixtureRequest) -> Traced:
    architecture = FAMILIES[request.param]
    module = trace(training_step("m", architecture, (2, LENGTH), "float32"))
    graph = instruction_graph(module)
    step = StepClasses(module, sharding_classes(module, rules_of(module), RuleSet("shardy", "")), graph)
    layers = ModelLayers(module, graph, architecture.stacks)
    return Traced(step, layers, WorkMarks(step, layers, architecture.shape("m", LENGTH)))


def _dimension(name: str) -> int | None:
    dims = [dim for pattern, dim in PARTITIONED.items() if re.search(pattern, name)]
    assert len(dims) < 2, name
    return dims[0] if dims else None


def test_tensor_parallelism_divides_one_dimension_of_the_parameters_that_megatron_divides(traced: Traced) -> None:
    step = traced.step
    for v, argument in enumerate(step.graph.arguments):
        if argument.kind == "parameter" and "position" not in argument.name:
            divided = [dim for dim, c in enumerate(step.of_dims[v]) if c in traced.marks.tensor]
            expected = _dimension(argument.name)
            assert divided == ([] if expected is None else [expected]), argument.name


def test_experts_are_the_first_dimension_of_their_matrices_and_the_last_of_the_router(traced: Traced) -> None:
    step = traced.step
    of_experts = {
        argument.name: [dim for dim, c in enumerate(step.of_dims[v]) if c in traced.marks.experts]
        for v, argument in enumerate(step.graph.arguments)
        if argument.kind == "parameter"
    }
    for name, dims in of_experts.items():
        assert dims == ([0] if "/experts/" in name else [1] if "/router/" in name else []), name


def test_what_a_step_reads_has_samples_and_tokens_and_the_hidden_states_as_well(traced: Traced) -> None:
    step, marks = traced.step, traced.marks
    per_token = Mark.SAMPLES | Mark.TOKENS
    for v, argument in enumerate(step.graph.arguments):
        if argument.kind == "input":
            assert marks.of_value(v) == per_token
    assert all(marks.of_value(v) == per_token for v in traced.layers.crossing)
    width = {step.graph.shapes[v][-1] for v in traced.layers.crossing if step.graph.shapes[v]}
    assert width == {WIDTH}


def test_scores_have_queries_and_keys(traced: Traced) -> None:
    step, marks = traced.step, traced.marks
    products = [i for i, opcode in enumerate(step.graph.opcodes) if opcode == "dot_general" and step.graph.in_core[i]]
    results = [int(step.graph.result_offsets[i]) for i in products]
    for v in results:
        scores = list(step.graph.shapes[v]).count(LENGTH) == 2
        assert marks.is_scores(v) == scores
        assert marks.of_value(v) == Mark.SAMPLES | Mark.TOKENS | Mark.TENSOR or not scores
