"""Forward passes alone could not be placed: "has no forward instruction", and weights that are constants were missed.

An inference graph has an output of any shape, its input may look like the output's earlier version, and its weights may
be constants, which devices hold like parameters.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from automap_models.hlo.adapter import read_module
from automap_models.hlo.graph import instruction_graph
from automap_models.infer import app

FORWARD = """module @forward {
  func.func public @main(%w: tensor<64x64xf32> loc("params[0]"), %v: tensor<64x64xf32> loc("params[1]"),
                         %x: tensor<8x64xf32> loc("x")) -> tensor<8x64xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
         : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
    %1 = stablehlo.tanh %0 : tensor<8x64xf32>
    %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
         : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
    return %2 : tensor<8x64xf32>
  }
}
"""
CONSTANTS = """HloModule cluster

ENTRY main (ids: s32[10]) -> f32[10,128] {
  ids = s32[10] parameter(0)
  table = bf16[500,64] constant({...})
  rows = bf16[10,64] gather(table, ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
index_vector_dim=1, slice_sizes={1,64}
  wide = f32[10,64] convert(rows)
  w = f32[64,128] constant({...})
  ROOT out = f32[10,128] dot(wide, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
MATRIX = 4 * 64 * 64
WEIGHTS = {"forward.mlir": 2 * MATRIX, "constants.hlo": 2 * 500 * 64 + 4 * 64 * 128}


@pytest.fixture(params=sorted(WEIGHTS))
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    path.write_text({"forward.mlir": FORWARD, "constants.hlo": CONSTANTS}[request.param])
    return path


def test_everything_is_forward(file: Path) -> None:
    assert not instruction_graph(read_module(file)).phases.any()


@pytest.mark.parametrize("objective", ["throughput", "latency", "step"])
def test_devices_hold_the_weights(objective: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planner = ["--planner", "m-etf"] if objective == "step" else ["--planner", "local-search"]
    arguments = [str(file), "--devices", "2", "--objective", objective, *planner, "--json"]
    assert app.place(arguments) == 0
    placed = json.loads(capsys.readouterr().out)
    held = sum(placed["memory_bytes"])
    assert WEIGHTS[file.name] <= held < 1.6 * WEIGHTS[file.name]


def test_a_profile_of_one_is_refused_with_what_is_missing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.profile([str(file), "--show"]) == 2
    assert "has no backward pass" in capsys.readouterr().err
