"""A batch that does not make the plan's micro-batches is refused before any pass runs."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import pipelines  # noqa: E402
import torch.distributed as dist  # noqa: E402

from automap_models.errors import BadInput  # noqa: E402
from automap_models.run import Pipeline  # noqa: E402


def test_samples_that_make_no_whole_micro_batches_are_counted(tmp_path: Path) -> None:
    """Two micro-batches of 6 samples are 12, not 13."""
    dist.init_process_group("gloo", init_method=(tmp_path / "rendezvous").as_uri(), rank=0, world_size=1)
    try:
        model, inputs = pipelines.decoder()
        pipeline = Pipeline(model, pipelines.plan([], [1], 2), inputs)
        batch = {name: torch.cat([tensor, tensor, tensor[:1]]) for name, tensor in inputs.items()}
        with pytest.raises(BadInput, match="a batch of 13 samples is not 2 micro-batches of 6; give 12 samples"):
            pipeline.step(batch)
    finally:
        dist.destroy_process_group()


def test_torchs_classes_are_not_asked_to_split_backward_passes(tmp_path: Path) -> None:
    """With two replicas under ZB-H1 they gave a gradient that was off by half of its norm, and said nothing."""
    dist.init_process_group("gloo", init_method=(tmp_path / "rendezvous").as_uri(), rank=0, world_size=1)
    try:
        model, inputs = pipelines.decoder()
        with pytest.raises(BadInput, match="torch's schedule classes cannot run it: zb-h1 splits backward passes"):
            Pipeline(model, pipelines.plan([], [1], 2), inputs, schedule="zb-h1", executor="torch")
    finally:
        dist.destroy_process_group()
