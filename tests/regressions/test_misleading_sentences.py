"""Sentences that sent people the wrong way: what they ask for helps now, or the file is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.hlo.adapter import read_module
from automap_models.infer import app

UNSPECIFIED = """HloModule step

ENTRY main {
  w = f32[32,32] parameter(0), metadata={op_name="params['w']"}
  x = f32[8,32] parameter(1), metadata={op_name="batch['x']"}
  h = f32[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(step)/jvp(a)/dot_general"}
  moved = f32[8,32] custom-call(h), custom_call_target="MoveToHost", api_version=API_VERSION_UNSPECIFIED, \
metadata={op_name="jit(step)/jvp(a)/move"}
  gw = f32[32,32] dot(x, moved), lhs_contracting_dims={0}, rhs_contracting_dims={0}, \
metadata={op_name="jit(step)/transpose(jvp(a))/dot_general"}
  new = f32[32,32] subtract(w, gw), \
metadata={op_name="jit(step)/sub"}
  ROOT out = (f32[32,32], f32[8,32]) tuple(new, moved)
}
"""
ACCUMULATES = """
import jax
import jax.numpy as jnp


def shape(*dimensions):
    return jax.ShapeDtypeStruct(dimensions, jnp.float32)


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def make_step(batch=4):
    def step(w, data):
        def part(total, x):
            value, gradient = jax.value_and_grad(loss)(w, x)
            return total + gradient, value

        gradient, values = jax.lax.scan(part, jnp.zeros_like(w), data)
        return w - 0.1 * gradient, values.mean()

    return step, (shape(8, 8), shape(3, batch, 8))


def make_forward(batch=4):
    return loss, (shape(8, 8), shape(batch, 8))
"""


def test_a_custom_call_of_no_stated_version_is_valid_hlo(tmp_path: Path) -> None:
    """XLA and torch-xla print the words; "check that the file is whole and not edited by hand" was the answer."""
    path = tmp_path / "step.hlo"
    path.write_text(UNSPECIFIED)
    module = read_module(path)
    path.write_text(UNSPECIFIED.replace(", api_version=API_VERSION_UNSPECIFIED", ""))
    assert module.operations == read_module(path).operations


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("make_step", r"its forward and backward passes are inside a loop .*; give the step of one micro-batch"),
        ("make_forward", r"has no backward pass .*; give a step that differentiates its loss"),
    ],
)
def test_a_factory_is_not_asked_for_the_text_of_a_lowered_step(
    factory: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "accumulates_gradients.py").write_text(ACCUMULATES)
    monkeypatch.syspath_prepend(tmp_path)
    assert app.profile([f"accumulates_gradients:{factory}", "--show"]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert "as_text" not in error


def test_a_cluster_of_one_node_needs_no_bandwidth_between_nodes(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("{nodes: 1, devices_per_node: 4, intra: 100 GB/s, memory: 24 GB}")
    assert read_cluster(path).inter == 100e9
    path.write_text("{nodes: 2, devices_per_node: 4, intra: 100 GB/s, memory: 24 GB}")
    with pytest.raises(BadInput, match="inter"):
        read_cluster(path)
