"""The step-time model against torch.distributed.pipelining in real processes: order and ratio, by processor time."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.schedules import build_schedule
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from automap_models.torch_export.measure import measure_module  # noqa: E402
from automap_models.torch_export.pipelining import run_pipeline, split_spec  # noqa: E402

WIDTH, SAMPLES, MICRO_BATCHES = 512, 128, 4


def perceptron(layers: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_two_processes_share_the_work_as_predicted(name: str) -> None:
    model, inputs = perceptron(8), torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
    profile = measure_module(model, (inputs,), repeats=5)
    cut = profile.names.index("0")  # one layer, which passes no gradient on: 2 of the 2 + 7·3 matrix products
    problem = StagedProblem(profile, Cluster(1, 2, intra=1e9, inter=1e9, memory=1e12), 2, MICRO_BATCHES)
    cost = plan_cost(problem, StagedPlan((cut,), (1,), MICRO_BATCHES, "test"))
    predicted = np.divide(*(cost.forward_s + cost.backward_s)[::-1])
    runs = run_pipeline(
        model,
        (inputs,),
        split_spec=split_spec(profile, [cut]),
        schedule=name,
        micro_batches=MICRO_BATCHES,
        repeats=5,
        warmup=2,
    )
    light_s, heavy_s = (float(np.median(run.forward_s + run.backward_s + run.update_s)) for run in runs)
    assert predicted > 4
    assert heavy_s / light_s > max(1.5, predicted / 4)
    assert tuple(run.order for run in runs) == build_schedule(name, 2, MICRO_BATCHES).orders
    assert all((run.process_s >= run.forward_s + run.backward_s + run.update_s).all() for run in runs)


def test_what_torch_cannot_run_is_refused_before_any_process_starts() -> None:
    model, inputs = perceptron(2), (torch.ones(2, WIDTH),)
    spec = split_spec(measure_module(model, inputs, repeats=1, warmup=0), [0])
    with pytest.raises(BadInput, match="no schedule '1f1b-deep'"):
        run_pipeline(model, inputs, split_spec=spec, schedule="1f1b-deep", micro_batches=4)
    with pytest.raises(BadInput, match="1 micro-batches for 2 stages"):
        run_pipeline(model, inputs, split_spec=spec, schedule="gpipe", micro_batches=1)
    with pytest.raises(BadInput, match="0 repeats"):
        run_pipeline(model, inputs, split_spec=spec, schedule="gpipe", micro_batches=4, repeats=0)
