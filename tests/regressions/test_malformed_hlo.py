"""Malformed HLO ended the process: `automap-profile step.hlo` exited with 139 (a segmentation fault) or 134 (an abort).

XLA's parser answers a computation without a ROOT line, an index of -1 or a computation that comes after its caller with
the end of the process. Foreign text is therefore read by a child process, whose death is one sentence and exit code 2.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
STABLEHLO = _lowered().as_text(debug_info=True)
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


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A step's text cut off, or with lines left out, repeated or moved, or with a number replaced."""
    text = draw(st.sampled_from([HLO, STABLEHLO]))
    for _ in range(draw(st.integers(1, 3))):
        lines = text.splitlines()
        line = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["cut off", "left out", "repeated", "moved", "number"])):
            case "cut off":
                text = text[: draw(st.integers(1, len(text)))]
                continue
            case "left out":
                del lines[line]
            case "repeated":
                lines.insert(draw(st.integers(0, len(lines))), lines[line])
            case "moved":
                moved = lines.pop(line)
                lines.insert(draw(st.integers(0, len(lines))), moved)
            case "number":
                wrong = draw(st.sampled_from(["-1", "0", "7", "99999999999", str(-(2**63))]))
                lines[line] = re.sub(r"\d+", wrong, lines[line], count=1)
        text = "\n".join(lines) or " "
    return text


@given(text=damaged())
@settings(max_examples=10)  # a child process reads each
def test_damaged_text_is_read_or_refused_in_one_sentence(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("damaged") / "step.txt"
    file.write_text(text)
    try:
        assert len(instruction_graph(read_module(file))) >= 0
    except BadInput as refusal:
        assert str(refusal).startswith(str(file)) and "\n" not in str(refusal)
