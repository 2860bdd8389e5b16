"""Measured steps of GPTs on DGX A100 whose seconds are for a test to say."""

from __future__ import annotations

from dataclasses import replace

from gpt_work import gpt_work

from automap_models.core.measured import MeasuredStep
from automap_models.core.strategy import Strategy
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.simulate.calibration import Observation


def observation(name: str, source: str, layers: int, hidden: int, **values: int) -> Observation:
    """A step of 64 samples of 2,048 tokens, in a second until a test says otherwise."""
    work = gpt_work(layers, hidden, hidden // 128, 2048)
    strategy = Strategy(global_batch=64, recompute="full", **values)  # type: ignore[arg-type]
    cluster = replace(read_cluster("dgx-a100-4"), nodes=max(1, strategy.devices // 8))
    step = MeasuredStep(
        name=name,
        source=source,
        system="Megatron-LM",
        family="gpt",
        shape=work.shape,
        experts_per_token=None,
        tied=True,
        dropout=True,
        strategy=strategy,
        device="a100",
        cluster=replace(cluster, devices_per_node=min(8, strategy.devices)),
        flash=True,
        async_tensor=False,
        gathers_a_layer=1,
        gradient_bytes=4,
        buffer_bytes=0.0,
        step_s=1.0,
        memory_bytes=None,
        fits=True,
    )
    return Observation(step, work)
