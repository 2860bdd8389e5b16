"""Malformed HLO ended the process: `automap profile step.hlo` exited with 139 (a segmentation fault) or 134 (an abort).

XLA's parser answers a computation without a ROOT line, an index of -1 or a computation that comes after its caller with
the end of the process. Foreign text is therefore read by a child process, whose death is one sentence and exit code 2.
Whatever else may be wrong with a text is drawn by tests/fuzz.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from automap_models.errors import BadInput
from automap_models.hlo.adapter import read_module
from automap_models.hlo.graph import instruction_graph


def _lowered() -> jax.stages.Lowered:
    """A step with loops, calls and tuples."""

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(w: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=5)[0].sum()

        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, value

    return jax.jit(step).lower(jnp.zeros((4, 4)), jnp.zeros((2, 4)))


HLO = _lowered().compiler_ir("hlo").as_hlo_text()
COMPUTATIONS = HLO.split("\n\n")


def _without_a_root() -> str:
    lines = HLO.splitlines()
    root = next(i for i, line in enumerate(lines) if "ROOT" in line)
    return "\n".join(lines[:root] + lines[root + 1 :])


def _index_of_minus_one() -> str:
    return re.sub(r"(get-tuple-element\(while[.\w]*\)), index=0", r"\1, index=-1", HLO, count=1)


def _displaced_computation() -> str:
    header, first, *rest = COMPUTATIONS
    return "\n\n".join([header, *rest, first])


MALFORMED = {
    "a deleted ROOT line": _without_a_root,
    "an index of -1": _index_of_minus_one,
    "a displaced computation": _displaced_computation,
}


def test_the_command_says_one_sentence_and_exits_with_2(tmp_path: Path) -> None:
    file = tmp_path / "step.txt"
    file.write_text(_without_a_root())
    program = "import sys; from automap_models.infer.app import profile; sys.exit(profile())"
    command = [sys.executable, "-c", program, str(file), "-o", str(tmp_path / "out.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(r"automap[- ]profile: error: \S*step\.txt: is no HLO text that XLA can read.*\n", done.stderr)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.txt"]


def test_a_good_file_is_read_after_a_malformed_one(tmp_path: Path) -> None:
    file = tmp_path / "step.txt"
    for make in MALFORMED.values():
        file.write_text(make())
        with pytest.raises(BadInput, match="is no HLO text that XLA can read"):
            read_module(file)
    file.write_text(HLO)
    assert len(instruction_graph(read_module(file)))
