"""Plans of three models run on real processes and give what one process gives; the oracle is torch's own autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pipelines  # noqa: E402
import workers_duties  # noqa: E402

from automap_models.core.run_record import WrittenPlan  # noqa: E402
from automap_models.run.base import RunProblem, processes_of, run_schedule  # noqa: E402
from automap_models.run.torch_backend import PRELOAD, run_process  # noqa: E402
from automap_models.run.workers import Workers  # noqa: E402
from automap_models.workloads.source import Source, SourceKind  # noqa: E402

MOST_PROCESSES = 5
CUTS = {
    "encoder": ["layers.0.linear1", "layers.2", "layers.4.self_attn"],
    "convolutions": ["layers.0.1", "layers.2", "before layers.4"],
    "decoder": ["layers.0", "layers.2.1", "layers.5"],
    "gpt2": ["transformer.h.0.attn", "transformer.h.1"],
    "t5": ["encoder.block.0", "decoder.block.0.layer.0"],
}
"""Two or three cuts of each model, inside layers and between them."""
PLANS: dict[str, tuple[slice, list[int]]] = {
    "1": (slice(0, 0), [1]),
    "1-1": (slice(1, 2), [1, 1]),
    "2-2": (slice(1, 2), [2, 2]),
    "1-2-1": (slice(0, 2), [1, 2, 1]),
    "2-1": (slice(1, 2), [2, 1]),
    "1-3": (slice(2, 3), [1, 3]),
    "3-2": (slice(0, 1), [3, 2]),
    "1-1-1-1": (slice(0, 3), [1, 1, 1, 1]),
}
"""Name → which of the cuts, and devices of each stage."""
Runner = Callable[..., Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A function that runs a plan on processes that all runs of this module share."""
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with Workers(MOST_PROCESSES, PRELOAD, environment) as workers:

        def run(model: str, plan: WrittenPlan, schedule: str = "1f1b", **options: Any) -> Any:
            problem = RunProblem(
                plan=plan,
                source=Source(f"pipelines:{model}", SourceKind.FACTORY),
                schedule=run_schedule(plan, schedule, None),
                **{"steps": 2, "warmup": 0, "device": "cpu", "check": True, **options},
            )
            rendezvous = (tmp_path_factory.mktemp("run") / "rendezvous").as_uri()
            used = {process for stage in processes_of(plan, problem.schedule) for process in stage}
            return workers.run(run_process, problem, rendezvous, ranks=len(used))[0]

        run.workers = workers  # type: ignore[attr-defined]
        yield run


def plan_of(model: str, name: str, micro_batches: int = 4) -> WrittenPlan:
    chosen, devices = PLANS[name]
    return pipelines.plan(CUTS[model][chosen], devices, micro_batches)


def require_agreement(outcome: Any, tensors: int) -> None:
    comparison = outcome.comparison
    assert comparison.difference is None
    assert comparison.tensors == tensors
    assert comparison.loss_error <= 1e-5
    assert comparison.gradient_error <= 1e-5


def trainable(model: str) -> int:
    return sum(1 for _ in getattr(pipelines, model)()[0].parameters())


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("executor", [None, "automap"])
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("model", ["encoder", "decoder"])
def test_a_plan_gives_the_losses_and_gradients_of_one_process(
    model: str, name: str, executor: Any, schedule: str, runs: Runner
) -> None:
    """Equal replicas by torch's classes and by automap's executor, unequal ones by the latter."""
    if executor is None and name not in {"1-1", "2-2", "1-1-1-1"}:
        pytest.skip("the default is automap's executor")
    outcome = runs(model, plan_of(model, name), schedule, executor=executor)
    assert outcome.executor == (executor or "torch")
    require_agreement(outcome, trainable(model))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("executor", [None, "automap"])
@pytest.mark.parametrize("name", ["1-1", "2-2", "1-1-1-1"])
def test_batch_statistics_are_those_of_a_replica(name: str, executor: Any, schedule: str, runs: Runner) -> None:
    """Batch normalisation takes the samples of one replica together; one process takes them apart alike."""
    require_agreement(runs("convolutions", plan_of("convolutions", name), schedule, executor=executor), 20)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), [("gpt2", "2-2"), ("t5", "1-2-1")])
def test_models_of_hugging_face_run_as_they_are(model: str, name: str, runs: Runner) -> None:
    require_agreement(runs(model, plan_of(model, name, 2)), trainable(model))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipev", "1f1b-deep"])
@pytest.mark.parametrize("model", ["encoder", "decoder", "convolutions"])
def test_schedules_with_virtual_stages_or_split_backward_passes(model: str, schedule: str, runs: Runner) -> None:
    require_agreement(runs(model, plan_of(model, "1-1-1-1"), schedule), trainable(model))


def test_one_replica_two_and_one_give_the_losses_and_gradients_of_one_process(runs: Runner) -> None:
    outcome = runs("decoder", plan_of("decoder", "1-2-1", 2))
    assert outcome.executor == "automap"
    require_agreement(outcome, trainable("decoder"))
    kinds = {(one.kind, one.stage, one.replica) for step in outcome.steps for one in step.passes}
    assert {("F", 1, 0), ("F", 1, 1), ("B", 2, 0), ("U", 0, 0)} <= kinds


@pytest.mark.slow
def test_a_state_is_the_whole_models_and_goes_on_under_another_plan(
    runs: Runner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two steps, the second by a plan of other stages and replicas, are two steps of the whole model."""
    workers: Workers = runs.workers  # type: ignore[attr-defined]
    losses, state = [], None
    for plan in (plan_of("decoder", "1-2-1", 2), plan_of("decoder", "1-1", 2)):
        rendezvous = (tmp_path_factory.mktemp("state") / "rendezvous").as_uri()
        arguments = (workers_duties.train_and_hand_over, plan, state, rendezvous)
        loss, state = workers.run(*arguments, ranks=plan.devices)[0]
        losses.append(loss)
    torch.manual_seed(0)
    model, inputs = pipelines.decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(**inputs)["loss"]
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert state is not None
    assert list(state) == list(model.state_dict())
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(torch.tensor(state[name]), tensor, rtol=1e-5, atol=1e-6)
