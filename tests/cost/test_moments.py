"""The fullest moment of a step whose program frees gradients, or copies moments: by hand, and as published."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from gpt_work import gpt_work

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import DeviceMemory
from automap_models.core.strategy import Strategy
from automap_models.core.tuning import Training
from automap_models.cost.layer_costs import LayerCosting
from automap_models.cost.runtime import Runtime
from automap_models.cost.stage_costs import StageCosting
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.simulate.observations import measured_estimate
from automap_models.workloads.measured import step_work

ROWS = Path(__file__).parents[2] / "benchmarks" / "unseen_steps.json"
WORK = gpt_work(4, 256, 4, sequence=64, vocabulary=1000)
FREES = Runtime(frees_gradients=True)


@pytest.mark.parametrize("row", ["005", "006", "007", "fused-045", "fused-052"])
def test_an_update_that_copies_a_moment_is_where_mistral_7b_is_fullest(row: str) -> None:
    """It holds five times its weights, which are in 16 bits, or under FSDP in 32, whatever the samples: see the row's
    source."""
    step = next(step for step in read_measured_steps(ROWS) if step.name == f"fms-acceleration-{row}")
    memory = measured_estimate(step, step_work(step), read_device("a100")).memory[0]
    assert memory.total - memory.runtime == pytest.approx(step.memory_bytes, rel=0.01)
    assert memory.activations == memory.gathered == 0


def _costing(runtime: Runtime, **fields: object) -> tuple[StageCosting, Strategy]:
    strategy = Strategy(**{"micro_batch": 2, "global_batch": 4, "dp": 2, "precision": "bf16", **fields})  # type: ignore[arg-type]
    cluster = Cluster(1, strategy.devices, 3e11, 2e11, 8e10)
    return StageCosting(LayerCosting(WORK, cluster, read_device("a100"), runtime), strategy), strategy


def _memory(runtime: Runtime, **fields: object) -> DeviceMemory:
    costing, strategy = _costing(runtime, **fields)
    return costing.costs(strategy).memory[0]


@pytest.mark.parametrize(("zero", "recompute", "micro_batch"), product((0, 1, 2, 3), ("none", "full"), (1, 2, 16)))
def test_no_moment_of_the_backward_pass_is_fuller(zero: int, recompute: str, micro_batch: int) -> None:
    """The pass is walked from the head to the embedding: layers before have activations, those behind gradients."""
    fields = {"zero": zero, "recompute": recompute, "micro_batch": micro_batch, "global_batch": 2 * micro_batch}
    costing, strategy = _costing(FREES, **fields)
    memory, stays = costing.costs(strategy).memory[0], _memory(Runtime(), **fields)
    layers, kind = costing.of_layers, WORK.kind(recompute)
    of_order = [(layer, 0 if place in (0, 5) else kind) for place, layer in enumerate(WORK.order)]
    activations = [layers.memory[layer, kind, 0] for layer, kind in of_order]
    gradients = [4.0 * layers.parameters[layer].sum() / (2 if zero > 1 else 1) for layer, _ in of_order]
    moments = [sum(activations[:cut]) + sum(gradients[cut:]) for cut in range(len(WORK.order) + 1)]
    assert max(moments) <= memory.activations + memory.gradients < stays.activations + stays.gradients
    assert memory.activations == stays.activations == pytest.approx(sum(activations))
    assert (memory.weights, memory.optimizer, memory.temporary) == (stays.weights, stays.optimizer, stays.temporary)


@pytest.mark.parametrize("fields", [{"global_batch": 8}, {"pp": 2, "dp": 1, "global_batch": 2}])
def test_gradients_stay_between_micro_batches_and_in_pipelines(fields: dict[str, int]) -> None:
    assert _memory(FREES, **fields) == _memory(Runtime(), **fields)


@pytest.mark.parametrize(
    ("training", "copied"), [(Training(), 4), (Training(states="bf16"), 2), (Training(optimizer="lion"), 0)]
)
def test_the_copy_is_of_one_of_the_moments_of_adamw(training: Training, copied: float) -> None:
    assert training.copied_bytes == copied
    of_moments = training.parameter_bytes("fp32")[2]
    assert copied in (of_moments / 2, 0)


def test_an_update_is_the_fullest_moment_where_few_tokens_are_on_their_way() -> None:
    """A copy of 4 bytes for each of the parameters that a device updates, half of them, beside all that is trained."""
    fields = {"micro_batch": 1, "global_batch": 2, "zero": 1, "recompute": "full"}
    memory, stays = (_memory(Runtime(copies_moments=copies), **fields) for copies in (True, False))
    parameters = np.sum(_costing(FREES)[0].of_layers.parameters[list(WORK.order)])
    assert memory.temporary == pytest.approx(4 * parameters / 2)
    assert (memory.state, memory.activations) == (stays.state, 0)
