"""The closed form of propagation held against Shardy's own pipeline, class by class, and what rule sets change."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_models.core.sharding_classes import ShardingClasses
from automap_models.errors import BadInput
from automap_models.hlo.adapter import trace
from automap_models.hlo.dimension_classes import ModuleSharding, sharding_classes
from automap_models.hlo.module import MlirModule
from automap_models.hlo.rule_sets import RuleSet, read_rule_set
from automap_models.hlo.shardy import collectives, sharding_rules
from automap_models.hlo.step import TrainingStep
from automap_models.workloads.convolutional import ResNetConfig, VggConfig
from automap_models.workloads.sizes import Architecture, BertConfig, DecoderConfig, T5Config
from automap_models.workloads.training import training_step

TINY: dict[str, tuple[Architecture, tuple[int, ...]]] = {
    "bert": (BertConfig(width=16, heads=2, layers=1, vocabulary=40, positions=12), (2, 10)),
    "gpt2": (DecoderConfig(width=16, heads=2, layers=1, vocabulary=40, positions=12), (2, 10)),
    "t5": (T5Config(width=16, heads=2, head_width=6, feed_forward=24, layers=2, vocabulary=40), (2, 10)),
    "moe": (T5Config(width=16, heads=2, head_width=6, feed_forward=24, layers=2, vocabulary=40, experts=4), (2, 10)),
    "vgg": (VggConfig(blocks=((4, 1), (6, 2)), width=16, classes=6, image=8), (4,)),
    "resnet": (ResNetConfig(stages=(1, 2), width=4, classes=6, image=32), (4,)),
}
CHECKED = ["gpt2", "vgg", "bert", "moe", "resnet"]
"""The encoder and the decoder of moe have a block of t5 each."""
SHARDY = RuleSet("shardy", "")
BLOCKS = [(stack, i) for stack in ("encoder", "decoder") for i in (0, 1)]


@cache
def tiny(name: str) -> tuple[MlirModule, ModuleSharding]:
    architecture, labels = TINY[name]
    module = trace(training_step(name, architecture, labels, "float32"))
    return module, sharding_classes(module, sharding_rules(module), SHARDY)


def sharded(function: Any, *arguments: Any, rule_set: RuleSet = SHARDY) -> tuple[MlirModule, ShardingClasses]:
    module = trace(TrainingStep("step", function, arguments, 0, (len(arguments) - 1,), 1))
    return module, sharding_classes(module, sharding_rules(module), rule_set).classes


def f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def live(classes: ShardingClasses, axis_size: int = 2) -> list[int]:
    return np.flatnonzero(classes.divisors % axis_size == 0).tolist()


def inserted(module: MlirModule, dims: tuple[int, ...]) -> set[str]:
    return {collective.kind for collective in collectives(module, [(dims, 2)])}


@pytest.mark.parametrize("name", CHECKED, scope="module")
def test_sharding_one_class_needs_no_resharding(name: str) -> None:
    module, sharding = tiny(name)
    assert live(sharding.classes)
    for c in live(sharding.classes):
        assert inserted(module, sharding.classes.dims([c])) <= {"all_reduce"}


@pytest.mark.parametrize("name", CHECKED, scope="module")
def test_sharding_every_set_of_classes_without_conflicts_needs_none_either(name: str) -> None:
    module, sharding = tiny(name)
    random = np.random.default_rng(0)
    for _ in range(5):
        chosen: list[int] = []
        for c in random.permutation(live(sharding.classes)).tolist():
            if not sharding.classes.adjacency[c, chosen].any():
                chosen.append(c)
        assert inserted(module, sharding.classes.dims(chosen)) <= {"all_reduce"}


@pytest.mark.parametrize("name", CHECKED, scope="module")
def test_two_classes_in_conflict_make_shardy_reshard(name: str) -> None:
    module, sharding = tiny(name)
    classes, checked = sharding.classes, 0
    for pair in combinations(live(classes), 2):
        first, second = (classes.dims([c]) for c in pair)
        if classes.adjacency[pair] and not any(a >= 0 <= b for a, b in zip(first, second, strict=True)):
            assert "reshard" in inserted(module, tuple(map(max, first, second)))
            checked += 1
    assert checked


def test_the_classes_of_two_dense_layers_are_those_of_the_textbook() -> None:
    def step(w: Any, v: Any, x: Any) -> Any:
        return jax.grad(lambda w: (jax.nn.relu(x @ w) @ v).sum())(w)

    _, classes = sharded(step, f32(6, 8), f32(8, 10), f32(4, 6))
    features, hidden, hidden_too, outputs, batch, features_too = classes.dim_classes.tolist()
    assert features == features_too
    assert hidden == hidden_too
    assert len({features, hidden, outputs, batch}) == 4
    assert [int(classes.divisors[c]) for c in (features, hidden, outputs, batch)] == [6, 8, 10, 4]
    assert not classes.adjacency[features, outputs]
    assert classes.adjacency[features, hidden]
    assert classes.adjacency[hidden, outputs]
    assert classes.adjacency[batch, hidden]


def test_a_merged_dimension_follows_its_major_factor_and_the_minor_one_stays_whole() -> None:
    def step(w: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda w: (x @ w.reshape(24, 3)).sum())(w)

    _, classes = sharded(step, f32(4, 6, 3), f32(5, 24))
    major, minor, _, _, merged = classes.dim_classes.tolist()
    assert major == merged
    assert classes.divisors[[major, minor]].tolist() == [4, 1]


def test_a_class_that_meets_itself_cannot_be_sharded() -> None:
    def step(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: (w @ w.T * x).sum())(w)

    _, classes = sharded(step, f32(4, 6), f32(4, 4))
    rows, columns = classes.dim_classes[:2].tolist()
    assert classes.divisors[[rows, columns]].tolist() == [1, 6]


def test_what_a_loop_passes_on_is_tied_from_round_to_round() -> None:
    def step(w: Any, xs: Any) -> Any:
        def loss(w: Any) -> Any:
            return jax.lax.scan(lambda y, x: (jnp.tanh((x + y) @ w), None), xs[0], xs)[0].sum()

        return jax.grad(loss)(w)

    module, classes = sharded(step, f32(8, 8), f32(3, 4, 8))
    assert any(op.opcode == "while" for op in module.operations)
    rows, columns, rounds, batch, features = classes.dim_classes.tolist()
    assert rows == columns == features
    assert classes.divisors[[rounds, rows, batch]].tolist() == [1, 1, 4]
    assert inserted(module, classes.dims([batch])) <= {"all_reduce"}


def test_layers_of_stacked_parameters_are_tied_to_each_other() -> None:
    def step(ws: Any, x: Any) -> Any:
        def loss(ws: Any) -> Any:
            return jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, ws)[0].sum()

        return jax.grad(loss)(ws)

    module, classes = sharded(step, f32(3, 8, 8), f32(4, 8))
    assert not any(op.opcode == "while" for op in module.operations)
    rounds, rows, columns, batch, features = classes.dim_classes.tolist()
    assert rows == columns == features
    assert classes.divisors[[rounds, rows, batch]].tolist() == [1, 1, 4]  # y @ w ties w's dimensions to each other
    assert inserted(module, classes.dims([batch])) <= {"all_reduce"}


def test_constants_tie_nothing_together() -> None:
    def step(w: Any, x: Any) -> Any:
        mask = jnp.arange(8) < 5
        return jax.grad(lambda w: (jnp.where(mask, w, 0) * jnp.where(mask[:, None], x, 0).sum(1)).sum())(w), mask

    module, classes = sharded(step, f32(8), f32(8, 8))
    assert classes.divisors[classes.dim_classes].tolist() == [8, 8, 8]
    assert inserted(module, classes.dims([int(classes.dim_classes[2])])) <= {"all_reduce"}


def tanh_layer(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def dropout(w: Any, x: Any) -> Any:
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, (4, 8)), x @ w, 0)


def branch(w: Any, x: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, tanh_layer, lambda w, x: x @ w, w, x)


UNUSUAL: dict[str, tuple[Any, set[str]]] = {
    "dropout": (dropout, {"while", "xor"}),
    "a branch": (branch, {"case"}),
    "rematerialisation": (jax.checkpoint(tanh_layer), {"optimization_barrier"}),
    "sorting": (lambda w, x: jnp.sort(x @ w, axis=1), {"sort"}),
    "slices": (lambda w, x: (x @ w)[:, 2:6], {"slice", "pad"}),
    "joining": (lambda w, x: jnp.concatenate([x @ w, x], axis=1), {"concatenate"}),
    "cumulative sums": (lambda w, x: jnp.cumsum(x @ w, axis=1), {"reduce_window"}),
    "Fourier transforms": (lambda w, x: jnp.abs(jnp.fft.fft(x @ w)), {"fft"}),
}
"""What a model may do between its parameters and its loss, and operations of which it is then made."""


@pytest.mark.parametrize("name", UNUSUAL)
def test_whatever_a_model_is_made_of_the_batch_can_be_sharded_and_shardy_agrees(name: str) -> None:
    function, opcodes = UNUSUAL[name]

    def step(w: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda w: jnp.square(function(w, x)).sum())(w)

    module, classes = sharded(step, f32(8, 8), f32(4, 8))
    assert opcodes <= {op.opcode for op in module.operations}
    assert int(classes.dim_classes[2]) in live(classes, 4)  # the batch
    for c in live(classes):
        assert inserted(module, classes.dims([c])) <= {"all_reduce"}


def test_a_step_of_scalars_has_no_classes() -> None:
    _, classes = sharded(lambda w, x: jax.grad(lambda w: w * x)(w), f32(), f32())
    assert (len(classes), classes.dim_classes.size, len(classes.conflicts)) == (0, 0, 0)


def with_an_unruled_operation(rule_set: RuleSet) -> tuple[MlirModule, ShardingClasses]:
    def step(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: (w * x).sum())(w), jnp.linalg.eigh(x @ x.T)[0]

    return sharded(step, f32(6, 6), f32(6, 6), rule_set=rule_set)


def test_an_operation_without_a_rule_is_named() -> None:
    with pytest.raises(BadInput, match=r"step: Shardy has no sharding rule for .*custom_call of lapack"):
        with_an_unruled_operation(SHARDY)


def test_a_rule_set_can_keep_such_an_operation_whole(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("description: no eigenvalues\nforbid: [{opcode: custom_call, factor: any}]\n")
    _, classes = with_an_unruled_operation(read_rule_set(file))
    assert 6 in classes.divisors


def test_a_restriction_covers_opcode_phase_and_scope(tmp_path: Path) -> None:
    module, sharding = tiny("t5")
    file = tmp_path / "mine.yaml"

    def frozen(restriction: str) -> set[str]:
        """The dimensions of parameters that the restriction keeps whole."""
        file.write_text(f"description: mine\nforbid: [{restriction}]\n")
        classes = sharding_classes(module, sharding.rules, read_rule_set(file)).classes
        dead = (classes.divisors == 1) & (sharding.classes.divisors > 1)
        return {classes.describe(i) for i in np.flatnonzero(dead[classes.dim_classes]).tolist()}

    wo = {f"dimension 0 of params/{stack}/block_{i}/feed_forward/wo/kernel" for stack, i in BLOCKS}
    assert wo <= frozen("{opcode: dot_general, phase: forward, scope: wo}")
    assert wo <= frozen("{scope: '*/feed_forward/wo'}")
    assert wo <= frozen("{scope: wo, factor: any}")
    assert not wo & frozen("{opcode: dot_general, phase: forward, scope: q}")
    for nothing in ("opcode: no_such_operation", "opcode: dot_general, phase: update", "scope: wo, except: [wo]"):
        assert not frozen(f"{{{nothing}}}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "not a mapping of keys to values"),
        ("description: x", "forbid is missing"),
        ("description: x\nforbid: reduce", "forbid is 'reduce', not a list"),
        ("description: x\nforbid: [reduce]", r"forbid\[0\] is 'reduce'"),
        ("description: x\nforbid: [{opcod: reduce}]", "unknown key 'opcod'"),
        ("description: x\nforbid: [{phase: sideways}]", "not any or backward or forward or update"),
        ("description: x\nforbid: [{factor: all}]", "factor is 'all', not any or reduction"),
        ("description: x\nforbid: [{except: loss}]", "except is 'loss', not a list"),
        ("description: x\nforbid: [{opcode: 3}]", "opcode is 3"),
        ("description: [x", "not valid YAML"),
    ],
)
def test_a_wrong_rules_file_is_refused_in_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=message):
        read_rule_set(file)


def test_an_unknown_rule_set_lists_the_shipped_ones() -> None:
    with pytest.raises(BadInput, match="paper, shardy"):
        read_rule_set("papr")
