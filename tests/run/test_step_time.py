"""The step-time model against torch's pipelines in real processes: order and ratio, by processor time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import pipelines  # noqa: E402

from automap_models.core.cluster import Cluster  # noqa: E402
from automap_models.core.staged import StagedPlan, StagedProblem  # noqa: E402
from automap_models.cost.staged import plan_cost  # noqa: E402
from automap_models.run.base import RunProblem, run_schedule  # noqa: E402
from automap_models.run.torch_backend import run  # noqa: E402
from automap_models.torch_export.measure import measure_module  # noqa: E402
from automap_models.workloads.source import Source, SourceKind  # noqa: E402

pytestmark = pytest.mark.slow  # two processes that import torch, twice
MICRO_BATCHES = 4


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_two_processes_share_the_work_as_predicted(name: str) -> None:
    model, inputs = pipelines.perceptron()
    profile = measure_module(model, inputs, repeats=5)
    cut = profile.names.index("0")  # one layer, which passes no gradient on: 2 of the 2 + 7·3 matrix products
    problem = StagedProblem(profile, Cluster(1, 2, intra=1e9, inter=1e9, memory=1e12), 2, MICRO_BATCHES)
    cost = plan_cost(problem, StagedPlan((cut,), (1,), MICRO_BATCHES, "test"))
    light_s, heavy_s = (cost.forward_s + cost.backward_s).tolist()
    plan = pipelines.plan([profile.name(cut)], [1, 1], MICRO_BATCHES, len(inputs[0]), (cut, len(profile) - 1))
    record = run(
        RunProblem(
            plan=plan,
            source=Source("pipelines:perceptron", SourceKind.FACTORY),
            schedule=run_schedule(plan, name, None),
            steps=5,
            warmup=2,
            device="cpu",
        ),
        print,
    )
    assert record is not None
    measured = record.per_step(1, "FBU") / record.per_step(0, "FBU")
    assert heavy_s / light_s > 4
    assert measured > max(1.5, heavy_s / light_s / 4)
