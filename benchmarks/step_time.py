"""The step-time model against reality: predicted and measured processor time of the stages that torch runs.

Every plan takes the user's path: profile measured on this machine (`measure_module`) at the micro-batch size that runs,
planner, `split_spec`, then `torch.distributed.pipelining` over gloo, one process a stage (`run_pipeline`). Predicted is
what the cost model says of M micro-batches on a stage, M·(f + b); measured is the processor time of the thread that
computes, forward, backward and update, medians over the steps. Wall time is not compared: the processes share cores.
"max/mean" is the slowest stage's time over the mean: what the steady phase loses to imbalance.

    OMP_NUM_THREADS=1 python benchmarks/step_time.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau, spearmanr
from torch import Tensor, nn

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.schedules import build_schedule
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.exact import ExactPlanner
from automap_models.torch_export.measure import measure_module
from automap_models.torch_export.pipelining import StageRun, run_pipeline, split_spec

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
        self.classifier = nn.Sequential(
            nn.Linear(channels[-1] * 4, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, CLASSES),
        )

    def forward(self, pictures: Tensor, labels: Tensor | None = None) -> Tensor:
        """[B, 3, 32, 32] → [B, classes], or the loss."""
        scores = self.classifier(self.features(pictures))
        return scores if labels is None else loss(scores, labels)


def loss(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def transformer(random: torch.Generator) -> tuple[nn.Module, Tensor, Tensor]:
    tokens, labels = torch.randint(CLASSES, (2, 4, 128), generator=random)
    return Transformer(), tokens, labels


def convolutions(random: torch.Generator) -> tuple[nn.Module, Tensor, Tensor]:
    pictures = torch.randn(16, 3, 32, 32, generator=random)
    return Convolutions(), pictures, torch.randint(CLASSES, (16,), generator=random)


MODELS: dict[str, tuple[Callable[[torch.Generator], tuple[nn.Module, Tensor, Tensor]], int]] = {
    "transformer": (transformer, 3),
    "cnn": (convolutions, 4),
}
"""Name → model with one micro-batch, and the number of stages."""


@dataclass(frozen=True)
class Comparison:
    """One plan under one schedule, [S] seconds of processor time a step."""

    model: str
    schedule: str
    plan: str
    predicted_s: FloatArray
    runs: list[StageRun]
    in_order: bool

    @property
    def measured_s(self) -> FloatArray:
        """Forward, backward and update."""
        return self.median("forward_s") + self.median("backward_s") + self.median("update_s")

    def median(self, part: str) -> FloatArray:
        """Of all steps."""
        return np.array([np.median(getattr(run, part)) for run in self.runs])


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


def compare(name: str, micro_batches: int, repeats: int, seed: int) -> list[Comparison]:
    """A model under both schedules and all plans."""
    build, stages = MODELS[name]
    torch.manual_seed(seed)
    model, inputs, labels = build(torch.Generator().manual_seed(seed))
    profile = measure_module(model, (inputs,), {"labels": labels}, name=name, repeats=repeats, seed=seed)
    problem, by_plan = plans(profile, stages, micro_batches)
    results = []
    for plan, cuts in by_plan.items():
        cost = plan_cost(problem, StagedPlan(tuple(cuts), tuple(range(1, stages)), micro_batches, "given"))
        predicted_s = micro_batches * (cost.forward_s + cost.backward_s)
        for named in ("1f1b", "gpipe"):
            runs = run_pipeline(
                model,
                (inputs,),
                split_spec=split_spec(profile, cuts),
                schedule=named,
                loss=loss,
                target=labels,
                micro_batches=micro_batches,
                repeats=repeats,
                seed=seed,
            )
            print(f"{name}: {plan} under {named} has run", file=sys.stderr)
            in_order = tuple(run.order for run in runs) == build_schedule(named, stages, micro_batches).orders
            results.append(Comparison(name, named, plan, predicted_s, runs, in_order))
    return results


def print_table(results: Sequence[Comparison], console: Console) -> None:
    columns = ("model", "schedule", "plan", "rank", "predicted", "measured", "ratio", "forward", "backward", "update")
    table = Table(*columns, "process / compute", "passes in order")
    for result in results:
        predicted, measured = share(result.predicted_s), share(result.measured_s)
        parts = [result.median(part) for part in ("forward_s", "backward_s", "update_s")]
        rest = result.median("process_s") / result.measured_s
        for rank in range(len(result.runs)):
            table.add_row(
                *(result.model, result.schedule, result.plan, str(rank)),
                *(f"{predicted[rank]:.3f}", f"{measured[rank]:.3f}", f"{measured[rank] / predicted[rank]:.2f}"),
                *(f"{1e3 * part[rank]:.0f} ms" for part in parts),
                *(f"{rest[rank]:.2f}", "yes" if result.in_order else "no"),
            )
    console.print(table)


def print_plans(results: Sequence[Comparison], console: Console) -> None:
    table = Table("model", "schedule", "plan", "max/mean predicted", "measured", "Spearman", "Kendall")
    for result in results:
        shares = result.predicted_s, result.measured_s
        agreement = (spearmanr(*shares).statistic, kendalltau(*shares).statistic)
        steep = (steepness(result.predicted_s), steepness(result.measured_s))
        table.add_row(result.model, result.schedule, result.plan, *(f"{value:.3f}" for value in (*steep, *agreement)))
    console.print(table)
    errors = np.concatenate([np.abs(share(result.predicted_s) - share(result.measured_s)) for result in results])
    console.print(
        f"error of a share: mean {errors.mean():.3f}, largest {errors.max():.3f}; "
        f"which of two plans is the more even: {agreeing(results)}"
    )


def agreeing(results: Sequence[Comparison]) -> str:
    """Pairs of plans, of one model under one schedule, that prediction and measurement put in the same order."""
    pairs = [(a, b) for a, b in combinations(results, 2) if (a.model, a.schedule) == (b.model, b.schedule)]
    same = sum(
        (steepness(a.predicted_s) < steepness(b.predicted_s)) == (steepness(a.measured_s) < steepness(b.measured_s))
        for a, b in pairs
    )
    return f"{same} of {len(pairs)} pairs as predicted"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in the stages' processes
    console = Console(width=150)
    options = (arguments.micro_batches, arguments.repeats, arguments.seed)
    results = [result for name in arguments.models for result in compare(name, *options)]
    print_table(results, console)
    print_plans(results, console)


if __name__ == "__main__":
    main()
