"""Which arguments are trainable: by position for a traced step, by name or dataflow for a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jax
import pytest

from automap_models.errors import BadInput
from automap_models.hlo.adapter import read_module, trace
from automap_models.hlo.arguments import argument_name
from automap_models.hlo.step import TrainingStep


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("params['params']['enc_0']['kernel']", "params/enc_0/kernel"),
        ("opt[0].mu['params']['enc_0']['kernel']", "opt/0/mu/params/enc_0/kernel"),
        ("state.params['w.x']", "state/params/w.x"),
        (r"params[\'w\']", "params/w"),
        ("x", "x"),
        ("", ""),
    ],
)
def test_jaxs_names_become_paths(raw: str, name: str) -> None:
    assert argument_name(raw) == name


def test_a_traced_steps_arguments_are_what_the_step_says(mlp: TrainingStep) -> None:
    arguments = trace(mlp).arguments
    assert Counter(argument.kind for argument in arguments) == {"parameter": 4, "state": 9, "input": 2}
    assert [a.name for a in arguments if a.kind == "parameter"] == [
        "params/first/bias", "params/first/kernel", "params/second/bias", "params/second/kernel",
    ]  # fmt: skip


def stripped(step: TrainingStep, tmp_path: Path) -> Path:
    """StableHLO without any names."""
    file = tmp_path / "anonymous.mlir"
    file.write_text(jax.jit(step.function, keep_unused=True).lower(*step.arguments).as_text())
    return file


def test_without_names_parameters_are_what_is_updated_and_takes_part_in_the_model(
    transformer: TrainingStep, tmp_path: Path
) -> None:
    kinds = [argument.kind for argument in read_module(stripped(transformer, tmp_path)).arguments]
    assert kinds == [argument.kind for argument in trace(transformer).arguments]


def test_patterns_decide_before_names_do(mlp: TrainingStep, tmp_path: Path) -> None:
    file = tmp_path / "step.txt"
    text = jax.jit(mlp.function, keep_unused=True).lower(*mlp.arguments).as_text("hlo", debug_info=True)
    file.write_text(text)
    arguments = read_module(file, trainable=["params/*/kernel"]).arguments
    assert {a.name for a in arguments if a.kind == "parameter"} == {"params/first/kernel", "params/second/kernel"}
    assert {a.kind for a in arguments if a.name.startswith("params/") and a.name.endswith("bias")} == {"state"}


def test_a_pattern_that_matches_nothing_is_refused_with_the_names_there_are(mlp: TrainingStep, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"argument matches weight\*; there are arg0 f32\[16\]"):
        read_module(stripped(mlp, tmp_path), trainable=["weight*"])
