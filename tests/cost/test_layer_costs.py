"""Costs of layers that strategies share: what one has worked out is what another one would work out alone."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from strategy_problems import DEVICE

from automap_models.core.cluster import Cluster
from automap_models.core.strategy import Dispatcher, Strategy
from automap_models.core.sublayer_sizes import Mixture
from automap_models.cost.layer_costs import LayerCosting, LayerCosts
from automap_models.cost.layer_times import StepClock
from automap_models.cost.runtime import Runtime
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.transformer import model_work

CLUSTER = Cluster(2, 4, 1e11, 1e10, 1e12)
CONFIG = DecoderConfig(width=128, heads=4, layers=3, vocabulary=512, mixture=Mixture(4, 2, 128))
WORK = model_work(CONFIG, "mixture", 64, "bfloat16")
DISPATCHERS: tuple[Dispatcher, ...] = ("alltoall", "deepep")
STRATEGIES = [
    Strategy(micro_batch=size, global_batch=16, tp=tp, dp=8 // tp, ep=ep, sequence_parallel=shared, dispatcher=name)
    for tp, ep, size, shared, name in product((1, 2), (1, 2, 4), (1, 2), (False, True), DISPATCHERS)
    if tp > 1 or not shared
]


def costs(costing: LayerCosting, strategy: Strategy) -> LayerCosts:
    return costing.costs(strategy, costing.groups(strategy))


def test_strategies_in_any_order_cost_what_each_costs_alone() -> None:
    together = LayerCosting(WORK, CLUSTER, DEVICE)
    together.expect(STRATEGIES)
    for i in np.random.default_rng(38).permutation(len(STRATEGIES)).tolist():
        shared, alone = (costs(costing, STRATEGIES[i]) for costing in (together, LayerCosting(WORK, CLUSTER, DEVICE)))
        for field in fields(LayerCosts):
            pair = getattr(shared, field.name), getattr(alone, field.name)
            assert np.allclose(*pair, rtol=1e-12, atol=0.0), (STRATEGIES[i], field.name)


def test_layers_are_timed_once_for_all_micro_batches_and_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedding, a block and a head for each way of tp with sequence parallelism."""
    timed, layer = [0], StepClock.layer

    def counted(*arguments: Any) -> Any:
        timed[0] += 1
        return layer(*arguments)

    monkeypatch.setattr(StepClock, "layer", counted)
    costing = LayerCosting(WORK, CLUSTER, DEVICE)
    strategies = [strategy for strategy in STRATEGIES if strategy.dispatcher == "deepep"]
    costing.expect(strategies)
    for strategy in strategies:
        costs(costing, strategy)
    assert timed[0] == 3 * 3


def test_an_eager_program_saves_norms_inputs_in_fp32_and_what_gates_multiply() -> None:
    """Of a block of two norms 2·4·s·h bytes more, on a half of the tokens each, and 2·s·f, half of the columns each."""
    config = DecoderConfig(width=128, heads=4, layers=2, vocabulary=512, feed_forward=256, gated=True)
    work = model_work(replace(config, root_mean_square=True), "gated", 64, "bfloat16")
    strategy = Strategy(micro_batch=1, global_batch=4, tp=2, dp=4, sequence_parallel=True)
    fused, eager = (
        costs(LayerCosting(work, CLUSTER, DEVICE, Runtime(eager=eager)), strategy).memory[1] for eager in (False, True)
    )
    assert (eager - fused)[0, 0] == 64 * (8 * 128 + 2 * 256) / 2
