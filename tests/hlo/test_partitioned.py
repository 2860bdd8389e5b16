"""What partitioning leaves of a profile: two dense layers by hand, and for any legal choice the price of the whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device, StepConstants
from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.microbatch import rescaled
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ShardedProfile, require_alike
from automap_models.core.sharding import UNUSED
from automap_models.cost.sharding import ShardingPrice, axis_costs, sharding_price
from automap_models.errors import BadInput
from automap_models.hlo.adapter import trace
from automap_models.hlo.dimension_classes import ModuleSharding, sharding_classes
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.module import MlirModule
from automap_models.hlo.profile import profile_from_graph
from automap_models.hlo.rule_sets import RuleSet
from automap_models.hlo.sharding_work import DivisibleProfile, StepTimes, sharding_work, step_times
from automap_models.hlo.shardy import sharding_rules
from automap_models.hlo.step import TrainingStep
from automap_models.hlo.step_classes import StepClasses
from automap_models.workloads.convolutional import VggConfig
from automap_models.workloads.sizes import Architecture, BertConfig, T5Config
from automap_models.workloads.training import training_step

TINY: dict[str, tuple[Architecture, tuple[int, ...]]] = {
    "bert": (BertConfig(width=16, heads=4, layers=2, vocabulary=40, positions=12), (4, 12)),
    "t5": (T5Config(width=16, heads=4, head_width=4, feed_forward=32, layers=2, vocabulary=40), (4, 12)),
    "vgg": (VggConfig(blocks=((4, 1), (8, 2)), width=16, classes=4, image=8), (4,)),
}
IDEAL = StepConstants(1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0)
FLOP_ONLY = Device("counts", {"float32": 1e12}, 1e12, 1e30, step=IDEAL)
"""Nothing but FLOP counts, one a picosecond."""
SLOW_START = Device("slow start", {"float32": 1e12}, 1e12, 1e11, step=replace(IDEAL, launch_s=1e-6))
CLUSTER = Cluster(1, 8, 100e9, 100e9, 16e9)
SHARDY = RuleSet("shardy", "")
BATCH, WIDTH, HIDDEN, OUT, F32 = 32, 64, 256, 16, 4
ARRAYS = ("C", "C_fwd", "A", "W", "stash")


class Step(NamedTuple):
    """A traced step and what is made of it."""

    module: MlirModule
    sharding: ModuleSharding
    graph: InstructionGraph
    classes: StepClasses
    times: StepTimes
    profile: Profile
    divisible: DivisibleProfile

    def price(self, sharded: list[int], degree: int) -> ShardingPrice:
        axis_of = np.full(len(self.sharding.classes), UNUSED)
        axis_of[sharded] = 0
        return sharding_price(
            sharding_work(self.classes, self.divisible.times), axis_costs(CLUSTER, [degree], 0.0), axis_of
        )


def prepared(step: TrainingStep, device: Device) -> Step:
    module = trace(step)
    sharding = sharding_classes(module, sharding_rules(module), SHARDY)
    graph = instruction_graph(module)
    classes, times = StepClasses(module, sharding, graph), step_times(graph, device)
    profile = profile_from_graph(graph, times.total_s, {"microbatch_size": step.microbatch_size})
    return Step(module, sharding, graph, classes, times, profile, DivisibleProfile(classes, times, profile, device))


@cache
def tiny(name: str) -> Step:
    architecture, labels = TINY[name]
    return prepared(training_step(name, architecture, labels, "float32"), SLOW_START)


@cache
def layers() -> Step:
    """One step of gradient descent on two dense layers."""

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            with jax.named_scope("first"):
                hidden = jax.nn.relu(x @ params["v"])
            with jax.named_scope("second"):
                return jnp.square(hidden @ params["w"]).sum()

        value, gradients = jax.value_and_grad(loss)(params)
        with jax.named_scope("optimizer"):
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    params = {"v": jax.ShapeDtypeStruct((WIDTH, HIDDEN), jnp.float32)}
    params["w"] = jax.ShapeDtypeStruct((HIDDEN, OUT), jnp.float32)
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    return prepared(TrainingStep("layers", step, (params, x), 0, (1,), BATCH), FLOP_ONLY)


def layers_over(dim: int, degree: int = 4) -> ShardedProfile:
    """Sharding the class of a dimension (of v, w, x in a row)."""
    step = layers()
    return step.divisible.partitioned([int(step.sharding.classes.dim_classes[dim])], degree, "by hand")


def products() -> tuple[int, int]:
    """The positions of the two products in the profile."""
    first, second = (i for i, name in enumerate(layers().profile.names) if name.startswith("dot"))
    return first, second


def test_columns_then_rows_of_two_dense_layers() -> None:
    """Megatron's: the hidden dimension of v, w and the activation between them; x @ v @ w is summed once."""
    sharded, profile, (first, second) = layers_over(1), layers().profile, products()
    flop = 2 * BATCH * HIDDEN
    assert sharded.C_fwd[[first, second]] == pytest.approx([flop * WIDTH / 4e12, flop * OUT / 4e12])
    backward = sharded.C - sharded.C_fwd  # of v, as x needs no gradient; of w and of the activation
    assert backward[first] == pytest.approx(flop * WIDTH / 4e12, rel=0.05)
    assert backward[second] == pytest.approx(2 * flop * OUT / 4e12, rel=0.05)
    np.testing.assert_array_equal(np.flatnonzero(sharded.W), [first, second])
    np.testing.assert_array_equal(sharded.W[[first, second]], [F32 * WIDTH * HIDDEN / 4, F32 * HIDDEN * OUT / 4])
    np.testing.assert_array_equal(np.flatnonzero(sharded.reduced_fwd), [second])
    assert (sharded.reduced_fwd[second], sharded.starts_fwd[second]) == (F32 * BATCH * OUT, 1)
    assert not sharded.reduced_bwd.any() and not sharded.starts_bwd.any() and not sharded.gradients.any()
    assert sharded.dims == {"params/v": 1, "params/w": 0}
    # The activation between the layers is a quarter on each device, the result is whole and three quarters gathered.
    np.testing.assert_array_equal(sharded.boundary_bytes[first:second], profile.A[first:second] / 4)
    assert (sharded.boundary_bytes[second], sharded.gathered[second + 1]) == (
        F32 * BATCH * OUT,
        F32 * BATCH * OUT * 3 / 4,
    )
    assert not sharded.gathered[: second + 1].any()


def test_the_batch_sums_gradients_late_where_the_parameters_are_used() -> None:
    sharded, profile, (first, second) = layers_over(4, 8), layers().profile, products()
    assert sharded.gradients[[first, second]] == pytest.approx([F32 * WIDTH * HIDDEN, F32 * HIDDEN * OUT], abs=F32)
    assert sharded.gradients.sum() == F32 * (WIDTH * HIDDEN + HIDDEN * OUT + 1)  # and the loss
    assert not sharded.reduced_fwd.any() and not sharded.reduced_bwd.any()
    np.testing.assert_array_equal(sharded.W, profile.W)
    np.testing.assert_array_equal(sharded.stash, profile.stash / 8)
    np.testing.assert_array_equal(sharded.boundary_bytes, profile.A / 8)


def test_rows_of_the_first_layer_are_summed_before_the_activation() -> None:
    sharded, (first, _) = layers_over(0), products()
    np.testing.assert_array_equal(np.flatnonzero(sharded.reduced_fwd), [first])
    assert sharded.reduced_fwd[first] == F32 * BATCH * HIDDEN
    np.testing.assert_array_equal(sharded.boundary_bytes, layers().profile.A)


@st.composite
def choices(draw: st.DrawFn) -> tuple[str, list[int], int]:
    """A model, classes of it that one axis can shard together, and the axis."""
    name, degree = draw(st.sampled_from(sorted(TINY))), draw(st.sampled_from([2, 4]))
    classes = tiny(name).sharding.classes
    live = np.flatnonzero(classes.divisors % degree == 0).tolist()
    chosen: list[int] = []
    for c in draw(st.permutations(live))[: draw(st.integers(0, len(live)))]:
        if not classes.adjacency[c, chosen].any():
            chosen.append(c)
    return name, chosen, degree


@settings(max_examples=12, deadline=None)
@given(choices())
def test_the_instructions_add_up_to_the_price_of_a_micro_batch(drawn: tuple[str, list[int], int]) -> None:
    name, chosen, degree = drawn
    step = tiny(name)
    sharded, price = step.divisible.partitioned(chosen, degree, "drawn"), step.price(chosen, degree)
    assert sharded.C.sum() >= price.compute_s * (1 - 1e-9)  # operands that are whole are read as a whole
    assert sharded.reduced_fwd.sum() + sharded.reduced_bwd.sum() == pytest.approx(price.activation_bytes[0])
    assert sharded.gradients.sum() == pytest.approx(price.gradient_bytes[0])
    work = sharding_work(step.classes, step.divisible.times)
    merged = sum(sums.number for sums in work.merged if not sums.late and set(sums.over) <= set(chosen))
    assert sharded.starts_fwd.sum() + sharded.starts_bwd.sum() == pytest.approx(work.starts[chosen].sum() - merged)
    variables = step.sharding.classes.variables
    parts = {v.name: degree if v.name in sharded.dims else 1 for v in variables}
    assert sharded.W.sum() == pytest.approx(sum(v.nbytes / parts[v.name] for v in variables if v.kind == "parameter"))
    others = sum(v.nbytes / parts[v.name] for v in variables if v.kind != "parameter")
    held = others + sharded.stash.sum() + sharded.frozen.sum()  # constants of the step among the last
    assert 2 * sharded.W.sum() + held == pytest.approx(price.memory_bytes)
    for variable in variables:
        if variable.name in sharded.dims:
            assert variable.shape[sharded.dims[variable.name]] % degree == 0


@settings(max_examples=20, deadline=None)
@given(choices())
def test_no_array_is_negative_or_more_than_the_profile_and_none_grows_with_the_degree(
    drawn: tuple[str, list[int], int],
) -> None:
    name, chosen, _ = drawn
    step = tiny(name)
    classes = step.sharding.classes
    chosen = [c for c in chosen if classes.divisors[c] % 4 == 0]
    two, four = (step.divisible.partitioned(chosen, degree, "drawn") for degree in (2, 4))
    whole = step.divisible.partitioned([], 2, "nothing")
    for array in ("C", "C_fwd", "boundary_bytes", "W", "stash"):
        least, less, most = (getattr(divided, array) for divided in (four, two, whole))
        assert (least >= most / 4 * (1 - 1e-12)).all()
        assert (least <= less * (1 + 1e-12)).all() and (less <= most * (1 + 1e-12)).all()
    for divided in (two, four):
        assert (divided.C_fwd <= divided.C).all() and (divided.gathered >= -1e-6).all()
        for array in ("reduced_fwd", "reduced_bwd", "starts_fwd", "starts_bwd", "gradients"):
            assert (getattr(divided, array) >= 0).all()
    np.testing.assert_array_equal(two.reduced_fwd, four.reduced_fwd)


@pytest.mark.parametrize("name", TINY)
def test_where_nothing_is_divided_it_is_the_profile(name: str) -> None:
    step = tiny(name)
    everything = np.flatnonzero(step.sharding.classes.divisors > 1).tolist()
    for sharded in (step.divisible.partitioned([], 4, "none"), step.divisible.partitioned(everything[:1], 1, "alone")):
        for array in ARRAYS:
            np.testing.assert_allclose(getattr(sharded, array), getattr(step.profile, array), rtol=1e-12)
        np.testing.assert_array_equal(sharded.boundary_bytes, sharded.A)
        assert not any(
            getattr(sharded, f"{array}_{p}").any() for array in ("reduced", "starts") for p in ("fwd", "bwd")
        )
        assert not sharded.gradients.any() and not sharded.dims
        assert require_alike(step.profile, sharded) is sharded


def test_smaller_products_take_what_the_clock_has_for_them() -> None:
    """Of x · v each device has a quarter of v's columns, of h · w a quarter of the depth; x is read as a whole."""
    device = replace(FLOP_ONLY, step=replace(IDEAL, half_size=32.0), multiprocessors=4)
    step, (first, second) = layers(), products()
    profile = profile_from_graph(step.graph, step_times(step.graph, device).total_s)
    divisible = DivisibleProfile(step.classes, step_times(step.graph, device), profile, device)
    sharded = divisible.partitioned([int(step.sharding.classes.dim_classes[1])], 4, "by hand")
    sizes = np.array([[1.0, BATCH, HIDDEN / 4, WIDTH], [1.0, BATCH, OUT, HIDDEN / 4]])
    expected = 2.0 * sizes.prod(axis=1) / device.product_rates(sizes, "float32")
    np.testing.assert_allclose(sharded.C_fwd[[first, second]], expected)
    assert (expected > 1.3 * profile.C_fwd[[first, second]] / 4).all()


def test_times_that_the_clock_has_none_of_are_divided() -> None:
    step = layers()
    counts = FLOP_ONLY
    moves = np.flatnonzero(step.times.total_s == 0)
    measured_s = np.where(step.times.total_s == 0, 1.0, step.times.total_s)
    times = step_times(step.graph, counts, measured_s)
    divisible = DivisibleProfile(step.classes, times, profile_from_graph(step.graph, measured_s), counts)
    columns = [int(step.sharding.classes.dim_classes[1])]
    divided = sum(step.graph.in_microbatch[i] and columns[0] in step.classes.of_instructions[i] for i in moves.tolist())
    whole = sum(bool(step.graph.in_microbatch[i]) for i in moves.tolist()) - divided
    assert divided > 0
    assert divisible.partitioned(columns, 4, "columns").C.sum() == pytest.approx(whole + divided / 4, rel=1e-3)


def test_launches_are_left_whole() -> None:
    step = tiny("bert")
    slow = StepTimes(np.zeros(len(step.graph)), step.times.launch_s)
    profile = profile_from_graph(step.graph, slow.total_s)
    everything = DivisibleProfile(step.classes, slow, profile, SLOW_START).partitioned(_independent(step), 4, "all")
    np.testing.assert_allclose(everything.C, profile.C)


def test_of_measured_times_launches_are_the_rooflines_and_all_else_is_divided() -> None:
    step = tiny("bert")
    measured_s = 3 * step.times.total_s
    times = step_times(step.graph, SLOW_START, measured_s)
    np.testing.assert_allclose(times.total_s, measured_s)
    np.testing.assert_array_equal(times.launch_s, step.times.launch_s)
    short = step_times(step.graph, SLOW_START, np.full(len(step.graph), 1e-9))
    assert (short.work_s >= 0).all() and short.total_s == pytest.approx(1e-9)


@pytest.mark.parametrize("how", ["rescaled", "other times", "other model"])
def test_a_profile_of_something_else_is_refused(how: str) -> None:
    step = tiny("bert")
    other = {
        "rescaled": lambda: rescaled(step.profile, 8),
        "other times": lambda: profile_from_graph(step.graph, step.times.work_s),
        "other model": lambda: tiny("t5").profile,
    }[how]()
    with pytest.raises(BadInput, match="other instructions or times than the step"):
        DivisibleProfile(step.classes, step.times, other, SLOW_START)


def _independent(step: Step) -> list[int]:
    """Classes with parameters that can be sharded by 4, each taken if it can be with those before."""
    classes, chosen = step.sharding.classes, list[int]()
    of_inputs = {
        int(classes.dim_classes[entry])
        for entry, v in enumerate(classes.dim_variables)
        if classes.variables[v].kind == "input"
    }
    for c in np.flatnonzero(classes.divisors % 4 == 0).tolist():
        if c not in of_inputs and not classes.adjacency[c, chosen].any():
            chosen.append(c)
    return chosen


def across_the_heads(step: Step) -> list[int]:
    """Megatron's choice: the heads of every attention layer and the hidden units of every feed-forward layer."""
    classes = step.sharding.classes
    columns = [v for v, variable in enumerate(classes.variables) if variable.name.endswith(("/q/kernel", "/wi/kernel"))]
    return sorted(
        {
            int(classes.dim_classes[classes.dim_offsets[v] + 1])
            for v in columns
            if classes.variables[v].kind == "parameter"
        }
    )


def reduced_by_xla(name: str, dims: list[int], dump: str) -> dict[str, dict[str, float]]:
    """Bytes of the collectives in a compiled step and in its loss alone, by their kind; to be run in a process.

    Under "reassociated" are those of the step as XLA's partitioner left it, after the rule of all-reduce-reassociate,
    which XLA applies for accelerators only.
    """
    from automap_models.hlo.sharded_step import compile_step

    architecture, labels = TINY[name]
    step = training_step(name, architecture, labels, "float32")
    loss = replace(step, function=lambda *arguments: step.function(*arguments)[-1])
    plan = {"model": 4}, [dims]
    reduced = {"step": compile_step(step, *plan).communication}
    (partitioned,) = Path(dump).glob("*after_spmd-partitioning*")
    reduced["loss"] = compile_step(loss, *plan).communication
    nbytes = {what: {kind: part.nbytes for kind, part in parts.items()} for what, parts in reduced.items()}
    return nbytes | {"reassociated": {"all-reduce": reassociated_bytes(partitioned.read_text())}}


def reassociated_bytes(hlo: str) -> float:
    """Bytes of a partitioned module's all-reduces where add(all-reduce(x), all-reduce(y)) is all-reduce(add(x, y))."""
    operations = {
        name: (opcode, prod(map(int, filter(None, sizes.split(",")))) * F32, re.findall(r"%([\w.\-]+)", operands))
        for name, sizes, opcode, operands in re.findall(
            r"^ +(?:ROOT )?%([\w.\-]+) = \w+\[([\d,]*)\]\S* ([\w\-]+)\((.*?)\)", hlo[hlo.index("ENTRY") :], re.MULTILINE
        )
    }
    readers = Counter(operand for _, _, operands in operations.values() for operand in operands)
    due = {name: size for name, (opcode, size, _) in operations.items() if opcode == "all-reduce"}
    for name, (opcode, size, operands) in operations.items():  # in a topological order
        if opcode == "add" and len(set(operands)) == 2 and all(x in due and readers[x] == 1 for x in operands):
            due = {other: nbytes for other, nbytes in due.items() if other not in operands} | {name: size}
    return float(sum(due.values()))


@pytest.mark.parametrize(("name", "choose"), [(name, _independent) for name in TINY] + [("t5", across_the_heads)])
def test_xla_all_reduces_as_many_bytes_forward_and_in_all(
    name: str, choose: Callable[[Step], list[int]], tmp_path: Path
) -> None:
    """Compiled for four devices made of this host. XLA for CPUs sums every result on its own."""
    step, chosen = tiny(name), choose(tiny(name))
    dims = list(step.sharding.classes.dims(chosen))
    flags = "--xla_force_host_platform_device_count=4 --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=spmd.*"
    environment = {"XLA_FLAGS": f"{flags} --xla_dump_to={tmp_path}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, name, json.dumps(dims), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert ran.returncode == 0, ran.stderr
    reduced = json.loads(ran.stdout)
    apart = [part for part in step.classes.separate_sums if part.over in chosen]
    assert reduced["step"] == {"all-reduce": sum(part.nbytes for part in apart)}
    sharded = step.divisible.partitioned(chosen, 4, "compiled")
    assert reduced["loss"] == {"all-reduce": sharded.reduced_fwd.sum()}
    merged = sharded.reduced_fwd.sum() + sharded.reduced_bwd.sum() + sharded.gradients.sum()
    assert reduced["reassociated"] == {"all-reduce": pytest.approx(merged)}
    if choose is across_the_heads:  # what each layer of the decoder gives the encoder's output is added first
        one = F32 * 4 * 12 * 16
        assert sum(total.nbytes for total in step.classes.sums if total.over in chosen) - merged == 2 * one


if __name__ == "__main__":
    print(json.dumps(reduced_by_xla(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])))
