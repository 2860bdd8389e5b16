"""Training steps of PyTorch models: the same GPT-2 in JAX and in PyTorch gives the same classes, sizes and prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("jax")

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.core.layers import block_boundaries
from automap_models.core.profile import Profile
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.core.staged import StagedProblem
from automap_models.cost.kernel_traffic import kernel_traffic
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.hlo.adapter import trace
from automap_models.hlo.clock import clock_times
from automap_models.hlo.dimension_classes import sharding_classes
from automap_models.hlo.graph import instruction_graph, rules_of
from automap_models.hlo.module import Module
from automap_models.hlo.order import phases
from automap_models.hlo.placement import placement_from_graph
from automap_models.hlo.profile import profile_from_graph
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.hlo.step_classes import StepClasses
from automap_models.planners.portfolio.model import profiled_model
from automap_models.planners.registry import make_planner
from automap_models.torch_export.step import step_module
from automap_models.workloads.registry import build
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.training import training_step

from .gpt import FusedAttention, gpt2

SIZES = {"width": 1024, "heads": 16, "layers": 2, "vocabulary": 50304, "positions": 1024}
BATCH, SEQUENCE = 16, 512


class Traced(NamedTuple):
    """A model's step by one route."""

    module: Module
    graph: InstructionGraph
    classes: ShardingClasses
    times_s: np.ndarray
    profile: Profile

    @classmethod
    def from_module(cls, module: Module, rules: str = "shardy") -> Traced:
        """A step with a V100's times."""
        graph = instruction_graph(module)
        times_s = clock_times(graph, read_device("v100"))
        classes = sharding_classes(module, rules_of(module), read_rule_set(rules)).classes
        return cls(module, graph, classes, times_s, profile_from_graph(graph, times_s))


@pytest.fixture(scope="module")
def in_torch() -> Traced:
    model, inputs = gpt2(**SIZES, batch=BATCH, sequence=SEQUENCE)
    return Traced.from_module(step_module(model, (), inputs, name="gpt2"))


@pytest.fixture(scope="module")
def in_jax() -> Traced:
    return Traced.from_module(trace(training_step("gpt2", DecoderConfig(**SIZES), (BATCH, SEQUENCE), "float32")))


def torch_name(name: str) -> str:
    """What an argument of the JAX step is called in PyTorch; "" for what it has not."""
    first, *path = name.split("/")
    if first == "batch":
        return path[0]
    if first != "params":
        return ""
    *modules, leaf = path
    if leaf == "embedding" and modules in ([], ["position_embedding"]):
        modules, leaf = [*modules] or ["embedding"], "weight"
    leaf = {"kernel": "weight", "scale": "weight"}.get(leaf, leaf)
    return ".".join([*(module.replace("block_", "block.") for module in modules), leaf])


def named_classes(classes: ShardingClasses, names: Mapping[str, str], transposed: set[str]) -> dict[Any, int]:
    """(Variable, dimension) of each class → the sizes by which it can be sharded, parameters and inputs only."""
    members: dict[int, set[tuple[str, int]]] = {}
    for entry, number in enumerate(classes.dim_classes.tolist()):
        variable = int(classes.dim_variables[entry])
        name = names[classes.variables[variable].name]
        if not name:
            continue
        dim = entry - int(classes.dim_offsets[variable])
        members.setdefault(number, set()).add((name, 1 - dim if name in transposed else dim))
    return {frozenset(dims): int(classes.divisors[number]) for number, dims in members.items()}


def linear_weights(classes: ShardingClasses, names: Mapping[str, str]) -> set[str]:
    """The matrices that PyTorch keeps transposed: those of linear layers."""
    return {names[v.name] for v in classes.variables if v.name.endswith("/kernel") and names[v.name]}


def test_the_classes_of_dimensions_are_the_same(in_jax: Traced, in_torch: Traced) -> None:
    names = {v.name: torch_name(v.name) for v in in_jax.classes.variables}
    expected = named_classes(in_jax.classes, names, linear_weights(in_jax.classes, names))
    own = {v.name: "" if v.kind == "state" else v.name for v in in_torch.classes.variables}

    def live(classes: dict[Any, int]) -> dict[Any, int]:
        return {members: divisor for members, divisor in classes.items() if divisor > 1}

    assert live(named_classes(in_torch.classes, own, set())) == live(expected)
    assert len(live(expected)) == 8  # width; heads and inner width of two blocks; vocabulary; positions; batch
    assert len(in_torch.classes.conflicts) == len(in_jax.classes.conflicts)


def test_flop_and_parameter_bytes_are_the_same(in_jax: Traced, in_torch: Traced) -> None:
    def of_products(traced: Traced) -> float:
        flop = zip(traced.graph.flop, traced.graph.opcodes, strict=True)
        return sum(float(f) for f, opcode in flop if opcode == "dot_general")

    assert of_products(in_torch) == of_products(in_jax)
    assert in_torch.graph.flop.sum() == pytest.approx(in_jax.graph.flop.sum(), rel=1e-3)
    assert in_torch.profile.W.sum() == in_jax.profile.W.sum()
    assert Counter(v.nbytes for v in in_torch.classes.variables if v.kind == "state") == Counter(
        v.nbytes for v in in_jax.classes.variables if v.kind == "state"
    )


def test_times_are_the_same_within_three_percent(in_jax: Traced, in_torch: Traced) -> None:
    for key in ("forward_s", "backward_s", "update_per_step_s"):
        assert in_torch.profile.meta[key] == pytest.approx(in_jax.profile.meta[key], rel=0.05)
    assert in_torch.profile.C.sum() == pytest.approx(in_jax.profile.C.sum(), rel=0.03)


@pytest.mark.parametrize("degree", [2, 8])
def test_operator_partitioning_costs_the_same_within_three_percent(
    in_jax: Traced, in_torch: Traced, degree: int
) -> None:
    cluster, device = read_cluster("B"), read_device("v100")
    models = [
        profiled_model(traced.module, traced.graph, device, cluster, read_rule_set("shardy"), lambda _: None)
        for traced in (in_jax, in_torch)
    ]
    fastest = [
        min((s for s in model.shardings if s.degree == degree), key=lambda s: float(s.C.sum())) for model in models
    ]
    assert fastest[1].C.sum() == pytest.approx(fastest[0].C.sum(), rel=0.03)
    assert fastest[1].W.sum() == pytest.approx(fastest[0].W.sum(), rel=0.03)
    assert (fastest[1].reduced_fwd + fastest[1].reduced_bwd).sum() == pytest.approx(
        (fastest[0].reduced_fwd + fastest[0].reduced_bwd).sum(), rel=0.03
    )
    assert models[1].batch_dims == {"ids": 0, "labels": 0}


def test_data_parallelism_sums_each_gradient_once_that_of_the_tied_embedding_too(
    in_jax: Traced, in_torch: Traced
) -> None:
    def summed(traced: Traced) -> float:
        """Bytes that data parallelism all-reduces for the update."""
        module, classes = traced.module, traced.classes
        sharding = sharding_classes(module, rules_of(module), read_rule_set("shardy"))
        batch = int(classes.dim_classes[batch_entries(classes)[0]])
        return sum(one.nbytes for one in StepClasses(module, sharding, traced.graph).sums_over([batch]) if one.late)

    positions = 4 * SIZES["positions"] * SIZES["width"]  # summed as activations, before they are put into their rows
    assert summed(in_torch) == in_torch.profile.W.sum() - positions
    assert summed(in_torch) == pytest.approx(summed(in_jax), rel=1e-6)


def test_running_averages_are_kept_and_views_that_nobody_reads_are_not(in_torch: Traced) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    module = step_module(model, (torch.empty(4, 8),))
    assert [op.name.split(".")[0] for op in module.operations].count("copy") == 2  # mean and variance
    read = {value for op in in_torch.module.operations for value in op.operands} | set(in_torch.module.outputs)
    offsets = in_torch.graph.result_offsets
    assert all(not read.isdisjoint(range(*offsets[i : i + 2].tolist())) for i in range(len(in_torch.graph)))


def test_layers_are_the_models_modules_in_the_order_in_which_they_run(in_torch: Traced) -> None:
    layers = [layer for layer in dict.fromkeys(in_torch.profile.layers) if layer]
    parts = ["attention_layer_norm", "attention.q", "attention.k", "attention.v", "attention.o"]
    parts += ["feed_forward_layer_norm", "feed_forward.wi", "feed_forward", "feed_forward.wo"]
    blocks = [f"block.{i}.{part}" for i in (0, 1) for part in parts]
    known = ["embedding", "position_embedding", *blocks, "final_layer_norm", "loss"]
    assert [layer for layer in layers if layer in known] == known
    assert set(layers) - set(known) <= {f"block.{i}{part}" for i in (0, 1) for part in ("", ".attention")}


def test_the_phases_that_the_marks_and_the_dataflow_tell_are_those_that_ran(in_torch: Traced) -> None:
    operations = in_torch.module.operations
    names = phases(operations, in_torch.module.arguments)
    ran = [
        Phase.UPDATE
        if op.path.startswith("optimizer/")
        else Phase.BACKWARD
        if op.path.startswith("transpose(")
        else Phase.FORWARD
        if op.path.startswith("jvp(")
        else phase
        for op, phase in zip(operations, names, strict=True)
    ]
    assert names.tolist() == ran


def test_fused_attention_has_the_same_classes_of_parameters(in_torch: Traced) -> None:
    model, inputs = gpt2(**SIZES, batch=BATCH, sequence=SEQUENCE, attention=FusedAttention)
    fused = Traced.from_module(step_module(model, (), inputs, name="gpt2"))
    own = {v.name: "" if v.kind == "state" else v.name for v in in_torch.classes.variables}
    assert named_classes(fused.classes, own, set()) == named_classes(in_torch.classes, own, set())
    assert fused.profile.C.sum() < in_torch.profile.C.sum()
    assert fused.module.notes == ()


def test_pipelines_take_as_long_within_three_percent(in_jax: Traced, in_torch: Traced) -> None:
    cluster = read_cluster("B")
    lengths_s = [
        make_planner("exact", kind="staged").solve(StagedProblem(traced.profile, cluster, stages=3)).cost.length_s
        for traced in (in_jax, in_torch)
    ]
    assert lengths_s[1] == pytest.approx(lengths_s[0], rel=0.03)


def test_a_parameter_s_gradient_and_update_are_placed_together() -> None:
    """As torch.export transposes a weight before each product, that is what uses it first."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    graph = instruction_graph(step_module(model, (torch.zeros(4, 64),)))
    times_s = clock_times(graph, read_device("v100"))
    placement = placement_from_graph(
        graph, times_s, times_s, nodes=100, link_bytes_per_s=12e9, accelerators=4, cpus=0, accelerator_bytes=32e9
    )
    assert len(set(placement.classes.tolist())) > 4
    activation_bytes, weight_bytes = 4 * 64 * 4, 64 * 64 * 4
    assert placement.output_bytes.max() <= 2 * activation_bytes < weight_bytes


def test_blocks_end_where_the_modules_do(in_torch: Traced) -> None:
    ends = block_boundaries(in_torch.profile)
    layers = in_torch.profile.layers
    assert [(layers[end].split(".")[:2], layers[end + 1].split(".")[0]) for end in ends] == [
        (["block", "0"], "block"),
        (["block", "1"], "final_layer_norm"),
    ]


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_models_of_transformers_have_a_rule_for_every_operator_and_a_batch(
    name: str, builders: Mapping[str, Callable[[], Any]]
) -> None:
    model, inputs = builders[name]()
    traced = Traced.from_module(step_module(model, (), inputs))
    assert traced.module.notes == ()
    samples = {traced.classes.dim_classes[entry] for entry in batch_entries(traced.classes)}
    assert len(samples) == 1
    assert traced.classes.divisors[samples.pop()] == inputs["labels"].shape[0]


def batch_entries(classes: ShardingClasses) -> list[int]:
    """The first dimension of every input."""
    kinds = [variable.kind for variable in classes.variables]
    return [int(first) for first, kind in zip(classes.dim_offsets, kinds, strict=False) if kind == "input"]


class Inverted(nn.Module):
    """A layer whose result goes through an operator that nobody describes."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.linalg.inv(self.before(x))).square().mean()


def test_a_model_that_sorts_its_tokens_by_expert_is_planned_with_data_parallelism_and_stages() -> None:
    """Mixtral: no input dimension propagates past the sort over all tokens, but replicas sort their own samples."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=4, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config)
    tokens = torch.zeros(4, 8, dtype=torch.long)
    module = step_module(model, kwargs={"input_ids": tokens, "labels": tokens}, name="mixtral")
    profile = Traced.from_module(module).profile
    assert module.unknown == {}
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert profile.W.sum() == pytest.approx(parameters)
    cluster = read_cluster("A")
    for stages, planner in ((1, "data-parallel"), (2, "uniform")):
        result = make_planner(planner).solve(StagedProblem(profile, cluster, stages, 4, schedule="1f1b"))
        assert result.plan is not None
        assert (result.plan.stages, result.problem.samples) == (stages, 4)


class Fused(nn.Module):
    """Attention whose queries, keys and values come from one projection, by head or one after the other."""

    def __init__(self, *, by_head: bool) -> None:
        super().__init__()
        self.by_head = by_head
        self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The mean square of what it makes."""
        samples, tokens, _ = x.shape
        dim = 3 if self.by_head else 2
        shape = (samples, tokens, 4, 3, 8) if self.by_head else (samples, tokens, 3, 4, 8)
        q, k, v = (part.squeeze(dim).transpose(1, 2) for part in self.qkv(x).view(shape).split(1, dim))
        mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(samples, tokens, 32)).square().mean()


@pytest.mark.parametrize("by_head", [True, False])
def test_a_fused_projection_is_partitioned_by_heads_if_it_is_laid_out_by_them(by_head: bool) -> None:
    """As Megatron lays it out; where queries come first, their heads are no outermost part of the dimension."""
    module = step_module(Fused(by_head=by_head), (torch.zeros(5, 7, 32),), name="fused")
    classes = sharding_classes(module, rules_of(module), read_rule_set("shardy")).classes
    names = [variable.name for variable in classes.variables]
    of = {
        name: classes.dim_classes[classes.dim_variables == names.index(name)] for name in ("qkv.weight", "out.weight")
    }
    heads = 4 if by_head else 1
    assert classes.divisors[of["qkv.weight"]].tolist() == [heads, 32]
    assert classes.divisors[of["out.weight"]].tolist() == [32, heads]


def test_what_an_operator_without_a_rule_reads_and_makes_stays_whole_and_is_counted() -> None:
    traced = Traced.from_module(step_module(Inverted(), (torch.empty(8, 8),)))
    assert dict(traced.module.unknown) == {"linalg_inv_ex": 1}
    (note,) = traced.module.notes
    assert "linalg_inv_ex (1)" in note
    live = {v.name: traced.classes.describe(e) for v, e in live_entries(traced.classes) if v.kind == "parameter"}
    assert set(live) == {"before.weight", "after.weight", "after.bias"}  # in before.weight, what it reads of x
    assert live["before.weight"] == "dimension 1 of before.weight"
    assert live["after.weight"] == "dimension 0 of after.weight"


def live_entries(classes: ShardingClasses) -> list[tuple[Variable, int]]:
    """The dimensions that two devices can share, with their variables."""
    live = np.flatnonzero(classes.divisors[classes.dim_classes] % 2 == 0)
    return [(classes.variables[int(classes.dim_variables[entry])], int(entry)) for entry in live]


def test_adam_s_state_follows_its_parameters(in_torch: Traced) -> None:
    classes = in_torch.classes
    names = [variable.name for variable in classes.variables]
    for word in ("exp_avg", "exp_avg_sq"):
        for name in ("block.0.attention.q.weight", "embedding.weight"):
            own, moment = names.index(name), names.index(f"state.{name}.{word}")
            for dim in (0, 1):
                offsets = classes.dim_offsets[[own, moment]] + dim
                assert len(set(classes.dim_classes[offsets].tolist())) == 1


def test_the_users_model_is_left_as_it_is() -> None:
    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    step_module(model, (torch.ones(3, 4),))
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


def test_dropout_costs_a_mask_of_a_byte_an_element_and_no_random_bits() -> None:
    def profiled(*between: nn.Module) -> Traced:
        model = nn.Sequential(nn.Linear(64, 512), *between, nn.Linear(512, 64))
        return Traced.from_module(step_module(model, (torch.empty(256, 64),)))

    without, dropped = profiled(), profiled(nn.Dropout(0.1))
    assert "rng" in dropped.graph.opcodes
    hidden = 256 * 512
    assert dropped.profile.stash.sum() - without.profile.stash.sum() == hidden  # the mask; the result in place of x
    moved = [kernel_traffic(traced.graph).moved.sum() for traced in (without, dropped)]
    # Forward, what adds the bias drops out, too: the mask is written and read. Backward: mask and gradient are read,
    # the gradient written. The mask is made from the step's number.
    assert moved[1] - moved[0] == hidden * (1 + 1) + hidden * (1 + 4 + 4) + 4


class Vgg19(nn.Module):
    """Configuration E of arXiv 1409.1556."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for convolutions, width in ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)):
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.fc1, self.fc2, self.predictions = nn.Linear(25088, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = self.fc2(self.fc1(self.features(images).flatten(1)).relu()).relu()
        return nn.functional.cross_entropy(self.predictions(hidden), labels)


def test_convolutions_cost_what_they_cost_in_jax() -> None:
    """FLOP as XLA counts them, without the padding."""
    with torch.device("meta"):
        model, images, labels = Vgg19(), torch.empty(32, 3, 224, 224), torch.empty(32, dtype=torch.int64)
    in_torch, in_jax = (
        Traced.from_module(step_module(model, (images, labels))),
        Traced.from_module(trace(build("vgg19"))),
    )

    def flop(traced: Traced) -> float:
        return sum(
            float(f) for f, op in zip(traced.graph.flop, traced.graph.opcodes, strict=True) if op == "convolution"
        )

    assert flop(in_torch) == flop(in_jax)
    assert in_torch.profile.W.sum() == in_jax.profile.W.sum()
    assert in_torch.profile.C.sum() == pytest.approx(in_jax.profile.C.sum(), rel=0.03)


def test_a_value_that_is_divided_by_a_number_is_timed() -> None:
    """The number is no operand of PyTorch's division: GPT-2's step ended in a traceback."""

    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).tanh() / 2.0

    graph = instruction_graph(step_module(Halved(), (torch.zeros(4, 8),)))
    assert "divide" in graph.opcodes
    assert (clock_times(graph, read_device("v100")) >= 0.0).all()
