"""Measured steps of GPTs on DGX A100 whose seconds are for a test to say."""

from __future__ import annotations

from dataclasses import replace

from gpt_work import gpt_work

from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy
from automap_models.cost.measured_step import MeasuredModel, MeasuredStep
from automap_models.cost.runtime import Runtime
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.simulate.observations import Observation, step_observation


def observation(name: str, source: str, layers: int, hidden: int, **values: int) -> Observation:
    """A step of 64 samples of 2,048 tokens, in a second until a test says otherwise."""
    return step_observation(*measured_step(name, source, layers, hidden, **values))


def measured_step(
    name: str, source: str, layers: int, hidden: int, step_s: float | None = 1.0, **values: int
) -> tuple[MeasuredStep, ModelWork]:
    """The step and its model's work."""
    work = gpt_work(layers, hidden, hidden // 128, 2048)
    strategy = Strategy(global_batch=64, recompute="full", **values)  # type: ignore[arg-type]
    cluster = replace(read_cluster("dgx-a100-4"), nodes=max(1, strategy.devices // 8))
    step = MeasuredStep(
        name=name,
        source=source,
        system="Megatron-LM",
        model=MeasuredModel(family="gpt", shape=work.shape, tied=True, dropout=True),
        strategy=strategy,
        device="a100",
        cluster=replace(cluster, devices_per_node=min(8, strategy.devices)),
        runtime=Runtime(),
        step_s=step_s,
        memory_bytes=None,
        fits=True,
    )
    return step, work
