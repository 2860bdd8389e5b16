"""Plans of three models run on real processes and give what one process gives; the oracle is torch's own autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pipelines  # noqa: E402
import plan_matrix  # noqa: E402
import workers_duties  # noqa: E402

from automap_models.core.run_record import Plan  # noqa: E402
from automap_models.run.base import RunProblem, run_schedule  # noqa: E402
from automap_models.run.layout import layout_of  # noqa: E402
from automap_models.run.torch_backend import PRELOAD, run_process  # noqa: E402
from automap_models.run.workers import Workers  # noqa: E402
from automap_models.workloads.source import Source, SourceKind  # noqa: E402

MOST_PROCESSES = 5
MICRO_BATCHES = 4
CUTS = {
    "encoder": (
        [
            "layers.0.linear1",
            "layers.0",
            "layers.1",
            "layers.2.self_attn",
            "layers.3.norm1",
            "layers.3",
            "layers.4.self_attn",
        ]
    ),
    "convolutions": (
        ["layers.0.1", "layers.1.0", "before layers.2", "layers.2", "layers.3.1", "before layers.4", "layers.5.0"]
    ),
    "decoder": (["before positions", "layers.0", "layers.1.1", "layers.2.1", "layers.3", "layers.4", "layers.5"]),
    "noisy": ["layers.0", "layers.1", "layers.2"],
    "gpt2": ["transformer.h.0.attn", "transformer.h.1"],
    "t5": ["encoder.block.0", "decoder.block.0.layer.0"],
}
"""Cuts of each model, inside layers and between them."""
DEVICES: dict[str, list[int]] = {
    "1": [1],
    "1-1": [1, 1],
    "2-2": [2, 2],
    "1-2-1": [1, 2, 1],
    "2-1": [2, 1],
    "1-3": [1, 3],
    "3-2": [3, 2],
    "1-1-1-1": [1, 1, 1, 1],
}
"""Name of a plan → devices of each rank."""
MATRIX = ("gpipe", "1f1b", "interleaved", "zb-h1")
"""Schedules that every plan runs under."""
OTHERS = ("1f1b-deep", "zb-h2", "zb-v", "dualpipev")
"""Those that plans of two equal stages run under, too."""
SPLIT = {"zb-h1", "zb-h2", "zb-v", "dualpipev"}
"""Schedules whose backward passes are split, which a pipeline leaves to automap's executor."""
FOLDED = {"zb-v", "dualpipev"}
"""Schedules whose virtual stages go through the ranks and back."""
Runner = Callable[..., Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A function that runs a plan on processes that all runs of this module share."""
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with Workers(MOST_PROCESSES, PRELOAD, environment) as workers:

        def run(model: str, plan: Plan, schedule: str = "1f1b", **options: Any) -> Any:
            problem = RunProblem(
                plan=plan,
                source=Source(f"pipelines:{model}", SourceKind.FACTORY),
                schedule=run_schedule(plan, schedule, None),
                **{"steps": 2, "warmup": 0, "device": "cpu", "check": True, **options},
            )
            rendezvous = (tmp_path_factory.mktemp("run") / "rendezvous").as_uri()
            ranks = layout_of(plan, problem.schedule).devices
            return workers.run(run_process, problem, rendezvous, ranks=ranks)[0]

        run.workers = workers  # type: ignore[attr-defined]
        yield run


def pairs(*names: str) -> list[Any]:
    """Each model with each of these plans."""
    return [(model, name) for model in pipelines.WITHOUT_DRAWS for name in names]


def plan_of(model: str, name: str, micro_batches: int = 4) -> Plan:
    devices = DEVICES[name]
    return pipelines.plan(spread(CUTS[model], len(devices) - 1), devices, micro_batches)


def spread(cuts: list[str], count: int) -> list[str]:
    """So many of the cuts, from the whole model."""
    return [cuts[(2 * i + 1) * len(cuts) // (2 * count)] for i in range(count)]


def require_agreement(outcome: Any, tensors: int) -> None:
    comparison = outcome.comparison
    assert comparison.difference is None
    assert comparison.tensors == tensors
    assert comparison.loss_error <= 1e-5
    assert comparison.gradient_error <= 1e-5


def trainable(model: str) -> int:
    return sum(1 for _ in getattr(pipelines, model)()[0].parameters())


@pytest.fixture(scope="module")
def right() -> dict[str, plan_matrix.Trained]:
    """What one process makes of each model, by torch's own autograd on the whole batch at once."""
    return {model: plan_matrix.on_one_process(model, MICRO_BATCHES) for model in pipelines.WITHOUT_DRAWS}


@pytest.mark.parametrize(("model", "name"), pairs(*DEVICES))
def test_a_plan_trains_as_one_process_does_under_all_schedules(
    model: str, name: str, right: dict[str, plan_matrix.Trained], runs: Runner, tmp_path: Path
) -> None:
    """Plans of equal replicas by torch's classes and by automap's executor, all others by the latter."""
    devices, cases = DEVICES[name], []
    for schedule in MATRIX + (OTHERS if devices == [1, 1] else ()):
        stages = devices * plan_matrix.virtual_stages(schedule)
        if schedule in FOLDED:  # the second half of the stages runs through the ranks backwards
            stages = devices + devices[::-1]
        plan = pipelines.plan(spread(CUTS[model], len(stages) - 1), stages, MICRO_BATCHES)
        cases.append(plan_matrix.Case(plan, schedule, "automap"))
        if schedule not in SPLIT and len(set(devices)) == 1 and len(stages) > 1:
            cases.append(plan_matrix.Case(plan, schedule, "torch"))
    arguments = (plan_matrix.run_cases, model, cases, sum(devices), (tmp_path / "rendezvous").as_uri())
    for case, trained in zip(cases, runs.workers.run(*arguments, ranks=sum(devices))[0], strict=True):
        assert trained.executor == case.executor
        assert trained.gradients.keys() >= right[model].gradients.keys()
        loss, gradient = plan_matrix.errors(trained, right[model])
        assert max(loss, gradient) <= 1e-5, (case.schedule, case.executor)


@pytest.mark.parametrize(("model", "name"), pairs("2-2", "1-2-1", "3-2"))
def test_replicas_that_share_parameters_train_as_one_process_does(
    model: str, name: str, right: dict[str, plan_matrix.Trained], runs: Runner, tmp_path: Path
) -> None:
    """FSDP2 inside stages, in torch's classes and in automap's executor; V schedules put two stages on a rank."""
    devices, cases = DEVICES[name], []
    for schedule in ("1f1b", "interleaved", "zb-h1", "zb-v") if devices == [2, 2] else ("1f1b", "interleaved", "zb-h1"):
        stages = devices + devices[::-1] if schedule in FOLDED else devices * plan_matrix.virtual_stages(schedule)
        plan = pipelines.plan(spread(CUTS[model], len(stages) - 1), stages, MICRO_BATCHES)
        executors = ["automap"] if schedule in SPLIT or devices != [2, 2] else ["automap", "torch"]
        cases += [plan_matrix.Case(plan, schedule, executor, 3) for executor in executors]
        if schedule == "1f1b":
            cases += [plan_matrix.Case(plan, schedule, executor, 2) for executor in executors]
    arguments = (plan_matrix.run_cases, model, cases, sum(devices), (tmp_path / "rendezvous").as_uri())
    for case, trained in zip(cases, runs.workers.run(*arguments, ranks=sum(devices))[0], strict=True):
        loss, gradient = plan_matrix.errors(trained, right[model])
        assert max(loss, gradient) <= 1e-5, (case.schedule, case.executor, case.zero)
        assert trained.local_share == 1.0 if devices[0] == 1 else trained.local_share < 0.7


def test_replicas_that_share_their_weights_pass_the_check(runs: Runner) -> None:
    """The head is the embedding, of the first and the last stage: their replicas share it, too."""
    require_agreement(runs("decoder", plan_of("decoder", "2-2", 2), zero=3), trainable("decoder"))


@pytest.mark.parametrize(("name", "executor"), [("2-2", None), ("1-1", "automap")])
def test_noise_whole_inputs_and_a_loss_in_float64_pass_the_check(name: str, executor: Any, runs: Runner) -> None:
    """A mask was cut into micro-batches where its size was that of the batch; noise by other operators than dropout and
    bernoulli was not seeded, so that the check said "differs"; and gloo was given 8 bytes for 4 and killed."""
    outcome = runs("noisy", plan_of("noisy", name), executor=executor)
    assert outcome.executor == (executor or "torch")
    require_agreement(outcome, trainable("noisy"))


@pytest.mark.parametrize("executor", [None, "automap"])
@pytest.mark.parametrize("name", ["2-2", "1-1-1-1"])
def test_masks_of_dropout_are_those_of_one_process(name: str, executor: Any, runs: Runner) -> None:
    outcome = runs("encoder", plan_of("encoder", name), executor=executor)
    assert outcome.executor == (executor or "torch")
    require_agreement(outcome, trainable("encoder"))


@pytest.mark.parametrize("executor", [None, "automap"])
def test_batch_statistics_are_those_of_a_replica(executor: Any, runs: Runner) -> None:
    """Batch normalisation takes the samples of one replica together; one process takes them apart alike."""
    require_agreement(runs("convolutions", plan_of("convolutions", "2-2"), executor=executor), 20)


@pytest.mark.parametrize(("model", "name"), [("gpt2", "2-2"), ("t5", "1-2-1")])
def test_models_of_hugging_face_run_as_they_are(model: str, name: str, runs: Runner) -> None:
    require_agreement(runs(model, plan_of(model, name, 2)), trainable(model))


def test_one_replica_two_and_one_give_the_losses_and_gradients_of_one_process(runs: Runner) -> None:
    outcome = runs("decoder", plan_of("decoder", "1-2-1", 2))
    assert outcome.executor == "automap"
    require_agreement(outcome, trainable("decoder"))
    kinds = {(one.kind, one.stage, one.replica) for step in outcome.steps for one in step.passes}
    assert {("F", 1, 0), ("F", 1, 1), ("B", 2, 0), ("U", 0, 0)} <= kinds


@pytest.mark.parametrize("zero", [0, 3])
def test_a_state_is_the_whole_models_and_goes_on_under_another_plan(
    zero: int, runs: Runner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two steps, the second by a plan of other stages and replicas, are two steps of the whole model."""
    workers: Workers = runs.workers  # type: ignore[attr-defined]
    losses, state = [], None
    for plan in (plan_of("decoder", "1-2-1", 2), plan_of("decoder", "2-2" if zero else "1-1", 2)):
        rendezvous = (tmp_path_factory.mktemp("state") / "rendezvous").as_uri()
        arguments = (workers_duties.train_and_hand_over, plan, state, zero, rendezvous)
        loss, state = workers.run(*arguments, ranks=plan.stages[-1].devices[1] + 1)[0]
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
