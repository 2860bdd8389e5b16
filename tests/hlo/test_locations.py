"""Locations as JAX and TensorFlow write them."""

from __future__ import annotations

import pytest

from automap_models.hlo.hlo_text import mark_names, read_marks
from automap_models.hlo.locations import is_backward, is_differentiated, layers, scopes, split


@pytest.mark.parametrize(
    ("path", "module_path"),
    [
        ("jit(train_step)/jvp(T5)/enc_0/self/q/dot_general", "T5/enc_0/self/q"),
        ("jit(train_step)/transpose(jvp(T5))/enc_0/self/q/dot_general", "T5/enc_0/self/q"),
        ("jit(train_step)/jvp(Net)/embedding.attend/dot_general", "Net/embedding.attend"),
        ("jit(train_step)/jvp(Net)/enc_0/btd,bsd->bts/dot_general", "Net/enc_0"),
        ("jit(train_step)/jvp(loss)/jit(_where)/select_n", "loss"),
        ("jit(f)/transpose(jvp(Net))/jvp(Net)/checkpoint/enc_0/ln/mul", "Net/enc_0/ln"),
        ("jit(f)/transpose(jvp(l1))/jvp(l1)/checkpoint/rematted_computation/tanh", "l1"),
        ("jit(f)/jvp(Net)/layers/while/body/closed_call/mlp/tanh", "Net/layers/mlp"),
        ("jit(f)/jvp(vmap(Net))/custom_jvp_call/relu/max", "Net/relu"),
        ("jit(f)/cond/branch_1_fun/mul", ""),
        ("gradient_tape/model/dense/MatMul", "model/dense"),
        ("add", ""),
        ("", ""),
    ],
)
def test_scopes_are_the_module_path(path: str, module_path: str) -> None:
    assert "/".join(scopes(path)) == module_path


def test_the_models_own_scope_is_left_out_of_layers() -> None:
    paths = ["jit(f)/jvp(T5)/enc_0/q/dot", "jit(f)/jvp(T5)/add", "jit(f)/jvp(T5)/enc_0/mul", "jit(f)/jvp(loss)/sub"]
    assert layers(paths) == ("enc_0/q", "", "enc_0", "loss")


def test_a_scope_with_nothing_below_it_stays() -> None:
    assert layers(["jit(f)/jvp(layer)/dot", "jit(f)/jvp(layer)/add"]) == ("layer", "layer")


def test_forward_and_backward_are_told_by_the_marks_of_differentiation() -> None:
    assert is_backward("jit(f)/transpose(jvp(Net))/mul")
    assert is_backward("gradient_tape/model/MatMul")
    assert not is_backward("jit(f)/jvp(Net)/transpose")
    assert is_differentiated("jit(f)/jvp(Net)/mul")
    assert not is_differentiated("jit(f)/optimizer/add")


def test_a_slash_in_parentheses_separates_nothing() -> None:
    assert split("jit(f)/jvp(a/b)/mul") == ["jit(f)", "jvp(a/b)", "mul"]


def test_marks_survive_next_to_other_metadata() -> None:
    add = 'ROOT a.2 = f32[] add(c.1, c.1), metadata={op_type="x" op_name="p/add"}'
    text = f"ENTRY e {{\n  %c.1 = f32[] constant(1)\n  {add}\n}}"
    marked = mark_names(text)
    assert 'constant(1), metadata={op_name="<$c.1>"}' in marked
    assert 'metadata={op_type="x" op_name="<$a.2>p/add"}' in marked
    assert read_marks("<$a.2>p/add") == ("a.2", (), "p/add")
    assert read_marks("<$c.1>") == ("c.1", (), "")
