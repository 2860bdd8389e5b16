"""A step whose operations run where a placement has them: the loss, gradients and next values of the step itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

import jax
import numpy as np

from automap_models.hlo.step_graph import step_nodes
from automap_models.run.jax_pipeline import TracedStep
from automap_models.run.jax_placement import PlacedStep, instruction_devices, parts_of
from automap_models.workloads.recurrent import RecurrentConfig
from automap_models.workloads.training import training_step

DEVICES = 8


def traced_step() -> TracedStep:
    """An RNNLM with two small layers, unrolled over two words."""
    return TracedStep(training_step("rnnlm", RecurrentConfig(2, 8, 12), (3, 2), "float32"))


def run_on_devices() -> None:
    """The process with eight devices: random placements against the jitted step and one device."""
    from automap_models.hlo.sharded_step import on_one_device

    traced = traced_step()
    step, nodes = traced.step, step_nodes(traced.graph).size
    leaves, expected = on_one_device(step, 0)
    answers = []
    for seed in range(1):
        blocks = np.random.default_rng(seed).permutation(DEVICES)
        assignment = blocks[np.arange(nodes) * blocks.size // nodes]
        placed = PlacedStep(traced, assignment, jax.devices())
        values = placed.run(leaves)
        results = [np.asarray(values[v]) for v in traced.module.outputs]
        where = {device for v in traced.module.outputs for device in values[v].devices()}
        error = max(
            float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-6))
            for got, want in zip(results, map(np.asarray, expected), strict=True)
        )
        answers.append(
            {
                "loss": abs(float(results[traced.results.loss]) / float(expected[traced.results.loss]) - 1.0),
                "results": error,
                "devices": len({part.key.stage for part in placed.parts}),
                "where": len(where),
                "parts": len(placed.parts),
            }
        )
    print(json.dumps(answers))


def test_operations_on_eight_devices_give_the_steps_loss_gradients_and_next_values() -> None:
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    folder = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); import test_jax_placement as t; t.run_on_devices()"
    environ = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for answer in json.loads(done.stdout.splitlines()[-1]):
        assert answer["devices"] == DEVICES
        assert answer["where"] > 1
        assert max(answer["loss"], answer["results"]) <= 1e-5  # Adam's moments among them, which show gradients


def test_a_part_reads_only_parts_before_it_and_every_operation_is_where_it_was_placed() -> None:
    traced = traced_step()
    graph = traced.graph
    assignment = np.random.default_rng(3).integers(0, 4, step_nodes(graph).size)
    device = instruction_devices(graph, assignment)
    parts = parts_of(graph, device, traced.module.outputs)
    known = set(range(len(graph.arguments)))
    homes: dict[int, set[int]] = {}
    for part in parts:
        assert set(part.inputs) <= known
        known |= set(part.outputs)
        for i in part.operations:
            homes.setdefault(i, set()).add(part.key.stage)
    assert set(traced.module.outputs) <= known
    assert all(where == {int(device[i])} for i, where in homes.items() if device[i] >= 0)
