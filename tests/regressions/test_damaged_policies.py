"""`--policy FILE` with a damaged file ended in tracebacks of onnxruntime, or in a ZeroDivisionError of ours.

A run that failed raised onnxruntime's own Fail or InvalidArgument; what a graph answered was taken as it came; a
damaged loop could run for ever and a damaged shape could ask for all memory.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuzzing.policies import INPUTS, RANGES, write_policy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.envs.placement.features import PlacerInputs
from automap_models.envs.placement.generator import random_problem
from automap_models.errors import BadInput
from automap_models.planners.placement.learned import move_logits, read_placer
from automap_models.planners.placement.step_groups import StepUnits
from automap_models.planners.placement.step_moves import MoveSpace, drawn_moves
from automap_models.planners.staged import policy_file
from automap_models.planners.staged.policy import SHIPPED as SHIPPED_FILE
from automap_models.planners.staged.policy_file import LEGAL, VALUES, Policy
from automap_models.resources import zoo_dir

SHIPPED = (zoo_dir() / SHIPPED_FILE).read_bytes()
LENGTH = 30


def plan_with(file: Path, points: int) -> None:
    """What PolicyPlanner does with a file, one plan wide: BadInput or a valid plan of three stages on four devices."""
    random = np.random.default_rng(0)
    profile = Profile.create(random.random(LENGTH), random.random(LENGTH) * 1e6, random.random(LENGTH) * 1e6)
    trial = StagedProblem(profile, Cluster(2, 2, 1e10, 1e9, 1e9), 3, 8, granularity=points)
    try:
        ((plan,),) = Policy(file).best_plans([trial], 1, "policy")
    except BadInput as error:
        assert str(file) in str(error) and "\n" not in str(error) and error.do
        raise
    assert plan.check_valid(trial) == (True, "")


positions = st.integers(0, len(SHIPPED) - 1)
damages = st.one_of(
    st.tuples(st.just("flip"), positions, st.integers(1, 255)),
    st.tuples(st.just("truncate"), positions, st.just(0)),
    st.tuples(st.just("delete"), positions, st.integers(1, 400)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(damages, min_size=1, max_size=3))
def test_damaged_bytes_of_the_shipped_policy_are_refused_or_give_a_valid_plan(
    tmp_path: Path, damage: list[tuple[str, int, int]]
) -> None:
    with suppress(BadInput):
        plan_with(damaged(SHIPPED, damage, tmp_path), 128)


def damaged(shipped: bytes, damage: list[tuple[str, int, int]], folder: Path) -> Path:
    """A file with that damage."""
    content = bytearray(shipped)
    for kind, position, amount in damage:
        place = min(position, max(0, len(content) - 1))
        if kind == "truncate":
            del content[place:]
        elif kind == "delete":
            del content[place : place + amount]
        elif content:
            content[place] ^= amount
    file = folder / "damaged.onnx"
    file.write_bytes(content)
    return file


def constant(values: NDArray[Any]) -> list[onnx.NodeProto]:
    """Nodes of a graph that answers the same to all."""
    return [helper.make_node("Constant", [], [VALUES], value=onnx.numpy_helper.from_array(values))]


def test_a_graph_that_adds_up_features_is_a_policy(tmp_path: Path) -> None:
    """Else the refusals below would have other reasons."""
    plan_with(write_policy(tmp_path / "policy.onnx"), 16)


@pytest.mark.parametrize("network", INPUTS)
@pytest.mark.parametrize("number", [1.0, np.nan, np.inf, -np.inf])
def test_whatever_numbers_a_graph_answers_legal_choices_are_taken(number: float, network: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["number"], value_float=number),
        helper.make_node("Shape", [LEGAL], ["shape"]),
        helper.make_node("Expand", ["number", "shape"], [VALUES]),
    ]
    plan_with(write_policy(tmp_path / "policy.onnx", nodes, network=network), 16)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (np.zeros((1, 1), np.float32), r"answers values of type float32 and shape \(1, 1\), not float32 and \(1, 15\)"),
        (np.zeros((), np.float32), r"answers values of type float32 and shape \(\)"),
        (np.zeros((1, 15, 1), np.float32), r"answers values of type float32 and shape \(1, 15, 1\)"),
        (np.zeros((1, 15), np.int64), "answers values of type int64"),
    ],
    ids=["too few", "one number", "too many dimensions", "integers"],
)
def test_a_graph_that_answers_no_values_is_refused(answer: NDArray[Any], reason: str, tmp_path: Path) -> None:
    kind = helper.np_dtype_to_tensor_dtype(answer.dtype)
    with pytest.raises(BadInput, match=reason):
        plan_with(write_policy(tmp_path / "policy.onnx", constant(answer), kind=kind), 16)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"automap_kind": "another-planner"}, "not a pipeline policy"),
        ({"points": "many"}, "does not say which problems"),
        ({"points": "9" * 5000}, "does not say which problems"),
        ({"points": "-1"}, "impossible problems"),
        ({"max_stages": "0"}, "impossible problems"),
        ({"max_stages": "1000000000000000000"}, "impossible problems"),
        ({"ranges": "[" * 100_000}, "does not say which problems"),
        ({"ranges": json.dumps(RANGES | {"nodes": [0.0, 0.5]})}, "impossible problems"),
        ({"ranges": json.dumps(RANGES | {"nodes": [float("nan"), 2.0]})}, "impossible problems"),
        ({"ranges": json.dumps(RANGES | {"stages": [1.0, float("inf")]})}, "impossible problems"),
        ({"network": "of choices"}, "not a pipeline policy"),
        ({"network": "flat"}, "fails while it plans"),
    ],
)
def test_metadata_that_cannot_be_meant_are_refused(metadata: dict[str, str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=reason):
        plan_with(write_policy(tmp_path / "policy.onnx", metadata=metadata), 16)


def endless_loop() -> list[onnx.NodeProto]:
    """Values that 2^60 rounds of a loop add up."""
    value = helper.make_tensor_value_info
    inputs = [value("round", TensorProto.INT64, []), value("going", TensorProto.BOOL, [])]
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["still"]), helper.make_node("Add", ["sum", "sum"], ["more"])],
        "body",
        [*inputs, value("sum", TensorProto.FLOAT, [1, 1])],
        [value("still", TensorProto.BOOL, []), value("more", TensorProto.FLOAT, [1, 1])],
    )
    return [
        helper.make_node("Constant", [], ["start"], value=helper.make_tensor("s", TensorProto.FLOAT, [1, 1], [0.5])),
        helper.make_node("Constant", [], ["rounds"], value_int=2**60),
        helper.make_node("Loop", ["rounds", "", "start"], [VALUES], body=body),
    ]


def huge_tensor() -> list[onnx.NodeProto]:
    """Values that are sums of 2^50 numbers."""
    return [
        helper.make_node("Constant", [], ["shape"], value_ints=[1, 1, 2**50]),
        helper.make_node("ConstantOfShape", ["shape"], ["numbers"]),
        helper.make_node("Constant", [], ["axis"], value_ints=[2]),
        helper.make_node("ReduceSum", ["numbers", "axis"], [VALUES], keepdims=0),
    ]


def test_a_loop_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_file, "ALLOWANCE_S", 0.2)
    file = write_policy(tmp_path / "policy.onnx", endless_loop())
    with ThreadPoolExecutor(2) as threads:  # one after another, and two beside each other, by one watcher
        for beside in (1, 2):
            for failed in [threads.submit(plan_with, file, 16) for _ in range(beside)]:
                with pytest.raises(BadInput, match=r"no plan after 0\.2 s of processor time"):
                    failed.result(timeout=60)


def test_a_tensor_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    file = write_policy(tmp_path / "policy.onnx", huge_tensor())
    with pytest.raises(BadInput, match="GB of memory to plan"):
        plan_with(file, 16)


PIECES, COUNT = 32, 4
"""Pieces and devices of the placement that the policy is asked about."""


# ---- policies that place ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def placer_inputs() -> PlacerInputs:
    units = StepUnits.from_problem(random_problem(np.random.default_rng(3)))
    space, device = MoveSpace(units, 0), np.zeros(len(units), dtype=np.int64)
    return space.inputs(device, space.pieces(device, 0, np.random.default_rng(0)))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(damages, min_size=1, max_size=3))
def test_damaged_bytes_of_the_shipped_placer_are_refused_or_give_placements(
    tmp_path: Path, placer_inputs: PlacerInputs, damage: list[tuple[str, int, int]]
) -> None:
    """A flipped sign of a weight answered devices that there are not, which ended in an IndexError."""
    file = damaged((zoo_dir() / "placer.onnx").read_bytes(), damage, tmp_path)
    try:
        logits = move_logits(read_placer.__wrapped__(file), placer_inputs)
    except BadInput as error:
        assert str(file) in str(error) and "\n" not in str(error) and error.do
        return
    moves = drawn_moves(logits, placer_inputs, 8, 0.1, np.random.default_rng(0))
    assert (placer_inputs.move_mask[moves[:, 0], moves[:, 1]] > 0).all()


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (np.zeros((1, PIECES, 1), np.float32), f"answers 1 × {PIECES} × 1 of float32"),
        (np.zeros((PIECES, COUNT), np.float32), f"answers {PIECES} × {COUNT} of float32"),
        (np.zeros((), np.float32), "answers a single value of float32"),
        (np.zeros((1, PIECES, COUNT), np.int64), "of int64"),
        (np.full((1, PIECES, COUNT), np.nan, np.float32), "answers numbers that are not finite"),
        (np.full((1, PIECES, COUNT), np.inf, np.float32), "answers numbers that are not finite"),
    ],
)
def test_a_placer_that_answers_no_logits_is_refused(
    answer: NDArray[Any], what: str, placer_inputs: PlacerInputs, tmp_path: Path
) -> None:
    """The first of these ended in an IndexError, NaN in a placement on device 0."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in placer_inputs.feed().items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(answer.dtype)
    output = helper.make_tensor_value_info("logits", kind, answer.shape)
    constant = helper.make_node("Constant", [], ["logits"], value=onnx.numpy_helper.from_array(answer))
    model = helper.make_model(helper.make_graph([constant], "placer", inputs, [output]), ir_version=9)
    model.opset_import[0].version = 18
    helper.set_model_props(model, {"kind": "placer", "version": "2"})
    onnx.save(model, tmp_path / "placer.onnx")
    with pytest.raises(BadInput, match=what) as refusal:
        move_logits(read_placer(tmp_path / "placer.onnx"), placer_inputs)
    assert "export the policy again" in str(refusal.value)
