"""The step-time model against reality: predicted and measured processor time of the stages that torch runs.

Every plan takes the user's path: profile measured on this machine (`measure_module`) at the micro-batch size that runs,
planner, then what `automap run` does (`run.torch_backend`), one process a rank. Predicted is what the cost model says
of M micro-batches on a stage, M·(f + b), and of its parameters' share of the measured update; measured is the processor
time of the thread that computes, forward, backward and update, medians over the steps. Wall time is not compared: the
processes share cores, but each stage's share of it. "max/mean" is the slowest stage's time over the mean: what the
steady phase loses to imbalance.

    OMP_NUM_THREADS=1 python benchmarks/step_time.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from common import print_rows
from torch import Tensor, nn

from automap_models.core.cluster import Cluster
from automap_models.core.plan import Plan
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.result import PlanReport, Result
from automap_models.core.run_record import RunRecord
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.formats.staged_plan import staged_document
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.search import ExactPlanner
from automap_models.run.base import RunProblem, run_schedule
from automap_models.run.torch_backend import run
from automap_models.torch_export.measure import measure_module
from automap_models.workloads.source import Source, SourceKind

LOOPBACK_BYTES_PER_S = 1e9
"""About what gloo sends between two processes of one machine."""
CLASSES = 1000


class Transformer(nn.Module):
    """An encoder whose second half is twice as wide inside, between an embedding and a head."""

    def __init__(self, width: int = 256, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, width)
        inner = [2 * width if i < layers // 2 else 4 * width for i in range(layers)]
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, size) for size in inner)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """[T, B] tokens → [T, B, classes], or the loss."""
        x = self.embed(tokens).transpose(0, 1).contiguous()
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x).transpose(0, 1)
        return scores if labels is None else loss(scores, labels)


class Convolutions(nn.Module):
    """Convolutions that halve the picture and double the channels, then a perceptron with most of the parameters."""

    def __init__(self, channels: Sequence[int] = (32, 64, 128, 256), hidden: int = 1024) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for before, after in zip((3, *channels), channels, strict=False):
            blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*blocks, nn.Flatten())
        wide = (nn.Linear(channels[-1] * 4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.classifier = nn.Sequential(*wide, nn.Linear(hidden, CLASSES))

    def forward(self, pictures: Tensor, labels: Tensor | None = None) -> Tensor:
        """[B, 3, 32, 32] → [B, classes], or the loss."""
        scores = self.classifier(self.features(pictures))
        return scores if labels is None else loss(scores, labels)


def loss(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


Example = tuple[nn.Module, tuple[Tensor], dict[str, Tensor]]
"""What a factory returns: a model that computes its loss, and inputs of one micro-batch."""


def make_transformer() -> Example:
    tokens, labels = torch.randint(CLASSES, (2, 4, 128), generator=torch.Generator().manual_seed(0))
    return Transformer(), (tokens,), {"labels": labels}


def make_cnn() -> Example:
    random = torch.Generator().manual_seed(0)
    pictures = torch.randn(16, 3, 32, 32, generator=random)
    return Convolutions(), (pictures,), {"labels": torch.randint(CLASSES, (16,), generator=random)}


MODELS: dict[str, Callable[[], Example]] = {"transformer": make_transformer, "cnn": make_cnn}
STAGES = 4
SCHEDULES = {"1f1b": 1, "gpipe": 1, "interleaved": 2, "zb-h1": 1}
"""Name → virtual stages a rank."""


@dataclass(frozen=True)
class Comparison:
    """One plan under one schedule, [S] seconds of processor time a step."""

    model: str
    schedule: str
    plan: str
    predicted_s: FloatArray
    record: RunRecord

    @property
    def measured_s(self) -> FloatArray:
        """Forward, backward and update."""
        return self.median("F") + self.median("BIW") + self.median("U")

    def median(self, kinds: str) -> FloatArray:
        """Of all steps; virtual stages of a rank update together, in shares of their parameters."""
        return np.array([self.record.per_step(stage, kinds) for stage in range(STAGES)])

    @property
    def update_stages(self) -> FloatArray:
        """[S, S] which stage's update is counted with which: that of a rank with its first stage."""
        rank_of = np.array(self.record.schedule.rank_of)
        first = np.array([int(np.flatnonzero(rank_of == rank)[0]) for rank in rank_of])
        stages: FloatArray = np.eye(STAGES)[first]
        return stages


def share(seconds: FloatArray) -> FloatArray:
    shares: FloatArray = seconds / seconds.sum()
    return shares


def steepness(seconds: FloatArray) -> float:
    return float(seconds.max() / seconds.mean())


def plans(profile: Profile, stages: int, micro_batches: int) -> tuple[StagedProblem, dict[str, tuple[int, ...]]]:
    """The problem and three cuts of it: the best, equally many instructions, every stage twice the one before."""
    cluster = Cluster(1, stages, LOOPBACK_BYTES_PER_S, LOOPBACK_BYTES_PER_S, memory=1e12, name="loopback")
    problem = StagedProblem(profile, cluster, stages, micro_batches)
    cuts = {planner.name: planner.plan(problem).cuts for planner in (ExactPlanner(), UniformPlanner())}
    done = np.cumsum(profile.C) / profile.C.sum()
    doubling = (2.0 ** np.arange(1, stages) - 1) / (2.0**stages - 1)
    return problem, {**cuts, "doubling": tuple(int(cut) for cut in np.searchsorted(done, doubling))}


def run_plan(problem: StagedProblem, cost: StagedCost, plan: StagedPlan) -> Plan:
    """The plan as automap run takes it."""
    result = Result(problem, plan, cost, "feasible")
    return staged_document(PlanReport(**vars(result), single_device_s=cost.step_s)).plan(plan.planner)


def compare(name: str, micro_batches: int, repeats: int, seed: int) -> list[Comparison]:
    """A model under all schedules and plans."""
    torch.manual_seed(seed)
    model, inputs, labels = MODELS[name]()
    profile = measure_module(model, inputs, labels, name=name, repeats=repeats, seed=seed)
    problem, by_plan = plans(profile, STAGES, micro_batches)
    update_s = float(str(profile.meta["update_per_step_s"]))
    results = []
    for plan, cuts in by_plan.items():
        one_device_each = StagedPlan(cuts, tuple(range(1, STAGES)), micro_batches, plan)
        cost = plan_cost(problem, one_device_each)
        shares = np.add.reduceat(profile.W, [0, *(cut + 1 for cut in cuts)]) / profile.W.sum()
        running = run_plan(problem, cost, one_device_each)
        for schedule, virtual in SCHEDULES.items():
            to_run = RunProblem(
                plan=running,
                source=Source(f"step_time:make_{name}", SourceKind.FACTORY),
                schedule=run_schedule(running, schedule, virtual),
                steps=repeats,
                warmup=3,
                device="cpu",
                seed=seed,
            )
            record = run(to_run, lambda _: None)
            assert record is not None  # it is no rank of torchrun's
            print(f"{name}: {plan} under {schedule} has run", file=sys.stderr)
            result = Comparison(name, schedule, plan, micro_batches * (cost.forward_s + cost.backward_s), record)
            predicted_s = result.predicted_s + update_s * shares @ result.update_stages
            results.append(replace(result, predicted_s=predicted_s))
    return results


HEADINGS = ("model", "schedule", "plan", "predicted", "measured", "max/mean predicted", "measured")
TIMES = ("predicted_s", "measured_s")


def row(result: Comparison) -> tuple[str, ...]:
    """The stages' shares, and how uneven they are."""
    both = [getattr(result, name) for name in TIMES]
    shares = (" ".join(f"{part:.3f}" for part in share(seconds)) for seconds in both)
    return (result.model, result.schedule, result.plan, *shares, *(f"{steepness(seconds):.3f}" for seconds in both))


def agreeing(results: Sequence[Comparison]) -> str:
    """Pairs of plans, of one model under one schedule, that prediction and measurement put in the same order."""
    pairs = [(a, b) for a, b in combinations(results, 2) if (a.model, a.schedule) == (b.model, b.schedule)]
    orders = [[steepness(getattr(a, name)) < steepness(getattr(b, name)) for name in TIMES] for a, b in pairs]
    return f"{sum(predicted == measured for predicted, measured in orders)} of {len(pairs)} pairs as predicted"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in the stages' processes
    options = (arguments.micro_batches, arguments.repeats, arguments.seed)
    results = [result for name in arguments.models for result in compare(name, *options)]
    print_rows(HEADINGS, map(row, results))
    errors = np.concatenate([np.abs(share(result.predicted_s) - share(result.measured_s)) for result in results])
    print(f"\nerror of a share: mean {errors.mean():.3f}, largest {errors.max():.3f}")
    print(f"which of two plans is the more even: {agreeing(results)}")


if __name__ == "__main__":
    main()
