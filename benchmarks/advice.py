"""Whether anything that people do without automap, or with its options, beats what it advises by default.

For each profile on each cluster the plan of `automap infer PROFILE --topo CLUSTER` is held against rivals that satisfy
the same rules (every stage holds work, every replica has a sample):

    data parallelism     one stage, in every number of micro-batches
    uniform S            equally many instructions on D·s // S devices, for every S up to 2 × nodes
    megatron S           equally many blocks, the embedding with the first and the head with the last
    torchtitan S         the same, the embedding and the head counting as a block each (generate_llm_fqn_per_model_part)
    deepspeed S          the smallest largest sum of parameters, PipelineModule's partition_method="parameters"
    cost balanced S      the smallest largest forward + backward time, as in PyTorch's pull request 179212
    --stages S           for every S up to 2 × nodes
    --micro-batches M    for every divisor M of the batch
    restricted           --equal-replicas --cut-at blocks
    --schedule NAME      of those that compete

Frameworks give every stage equally many devices, so theirs are tried for every S that divides these, in every number of
micro-batches and under every schedule that competes; they cut between blocks, and balance between layers, too.

`shortest` is the plan of `--min-gain 0`: by how much it is shorter is what the rule of simplicity costs. The default
loses where a rival is shorter than that plan, or where one that is as simple, in as few stages, is shorter than the
default.

    OMP_NUM_THREADS=1 python benchmarks/advice.py [--profiles FOLDER] [--clusters A B …]
    OMP_NUM_THREADS=1 python benchmarks/advice.py --random 30

With `--random N` the rows are of N random models on random clusters of up to 8 devices, and the rivals every S with
every M.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from common import CLUSTERS, add_profiles, print_rows, profile_files

from automap_models.core.cluster import Cluster
from automap_models.core.layers import block_ends, layer_ends
from automap_models.core.profile import Profile
from automap_models.core.result import TIE
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster, step_device
from automap_models.planners.options import COMPETING, PlanOptions
from automap_models.planners.portfolio.candidate import Simplicity, simplicity
from automap_models.planners.portfolio.planning import planned
from automap_models.planners.portfolio.space import PlanningSpace, divisors, planning_space
from automap_models.planners.staged.baselines import UniformPlanner
from automap_models.planners.staged.frameworks import framework_plans
from automap_models.simulate.plan_step import step_cost


@dataclass(frozen=True)
class Rival:
    """A plan that one could run: who makes it, how simple it is, its problem and its step."""

    name: str
    kind: Simplicity
    problem: StagedProblem
    plan: StagedPlan
    step_s: float

    def beats(self, default: Rival, shortest: Rival) -> bool:
        """Whether the default loses to it."""
        as_simple = self.kind <= default.kind and self.plan.stages <= default.plan.stages
        return self.step_s < (default if as_simple else shortest).step_s * (1.0 - TIE)

    @property
    def in_words(self) -> str:
        """S × M and the schedule."""
        return f"{self.plan.stages} × {self.plan.micro_batches}, {self.problem.schedule}"


@dataclass(frozen=True)
class Job:
    """A profile on a cluster, and its name."""

    name: str
    profile: Profile
    cluster: Cluster

    @property
    def space(self) -> PlanningSpace:
        """Where the plain command looks."""
        options = PlanOptions()
        space, _ = planning_space(
            self.profile,
            self.cluster,
            schedule=options.step_schedule,
            schedules=options.schedules,
            constraints=options.constraints,
            device=step_device(self.profile, self.cluster),
        )
        return space

    def rival(self, name: str, problem: StagedProblem, plan: StagedPlan | None) -> Rival | None:
        """A plan with its price; None where it breaks a rule or does not fit."""
        if plan is None or not plan.check_valid(problem)[0]:
            return None
        cost, kind = step_cost(problem, plan), simplicity(plan, self.cluster.devices, block_ends(self.profile))
        return Rival(name, kind, problem, plan, cost.step_s) if cost.feasible else None

    def planned(self, name: str, **options: Any) -> Rival | None:
        """What the command advises with such options; None where they allow no plan that fits."""
        try:
            result = planned(self.profile, self.cluster, PlanOptions(**options))
        except (BadInput, Infeasible):
            return None
        return self.rival(name, result.problem, result.plan)

    def people(self) -> Iterator[Rival | None]:
        """What people do without automap."""
        space = self.space
        blocks, layers = block_ends(self.profile), layer_ends(self.profile)
        for count, schedule, stages in product(space.counts, space.competing, space.stage_numbers):
            problem = space.problem(stages, count, schedule)
            if stages == 1:
                yield self.rival("data parallelism", problem, StagedPlan((), (), count, "rival"))
                continue
            for name, plan in framework_plans(problem, blocks):
                yield self.rival(f"{name} {stages}", problem, plan)
            for name, plan in framework_plans(problem, layers) if layers != blocks else ():
                if name in ("deepspeed", "cost balanced"):
                    yield self.rival(f"{name}, layers, {stages}", problem, plan)
            if stages <= 2 * self.cluster.nodes:
                yield self.rival(f"uniform {stages}", problem, UniformPlanner().solve(problem).plan)

    def optional(self) -> Iterator[Rival | None]:
        """What the command advises with one option, the shortest of all plans."""
        space, planned = self.space, partial(self.planned, min_gain=0.0)
        for stages in [stages for stages in space.stage_numbers if stages <= 2 * self.cluster.nodes]:
            yield planned(f"--stages {stages}", stages=stages)
        for count in space.counts if space.global_batch else ():
            yield planned(f"--micro-batches {count}", micro_batches=count, global_batch=space.global_batch)
        for schedule in COMPETING:
            yield planned(f"--schedule {schedule}", schedule=schedule)
        yield planned("restricted", equal_replicas=True, cut_at="blocks")

    def every(self, batch: int) -> Iterator[Rival | None]:
        """What the command advises for every S and every M."""
        for stages, count in product(range(1, self.cluster.devices + 1), divisors(batch)):
            options = {"stages": stages, "micro_batches": count, "global_batch": batch}
            yield self.planned(f"S = {stages}, M = {count}", min_gain=0.0, **options)


def rows(jobs: Iterable[Job]) -> Iterator[tuple[str, ...]]:
    """The default against everything that one could do instead."""
    for job in jobs:
        yield row(job, [rival for rival in (*job.people(), *job.optional()) if rival is not None])


def row(job: Job, rivals: Sequence[Rival], **options: Any) -> tuple[str, ...]:
    """The cells of a row."""
    default, shortest = job.planned("default", **options), job.planned("shortest", min_gain=0.0, **options)
    best = min(rivals, key=lambda rival: rival.step_s, default=None)
    if default is None or shortest is None or best is None:
        loss = "" if best is None else f"**loses** to {best.name}"
        return (job.name, job.cluster.name, "does not fit", "", "", "", loss, "")
    losses = [rival.name for rival in rivals if rival.beats(default, shortest)]
    against = f"{best.name}: {best.in_words}" + (f" **loses** to {', '.join(losses)}" if losses else "")
    return (
        *(job.name, job.cluster.name, default.in_words, f"{default.step_s:.4g} s", shortest.in_words),
        *(f"{shortest.step_s / default.step_s:.4f}", against, f"{best.step_s / shortest.step_s:.4f}"),
    )


def random_rows(count: int) -> Iterator[tuple[str, ...]]:
    """Of random models: every S with every M that divides 16 samples against both left open."""
    for seed in range(count):
        job = random_job(seed)
        yield row(job, [rival for rival in job.every(16) if rival is not None], global_batch=16)


def random_job(seed: int) -> Job:
    """A model of 20 to 60 instructions for micro-batches of 4 samples, and a cluster of up to 8 devices.

    Transfers and all-reduces take from a hundredth to three times as long as the computation of a device.
    """
    rng = np.random.default_rng(seed)
    nodes, inside, n = int(rng.integers(1, 4)), int(rng.choice([2, 4])), int(rng.integers(20, 61))
    cluster = Cluster(min(nodes, 8 // inside), inside, 100e9, 10 ** rng.uniform(9.0, 11.0), 32e9, f"random {seed}")
    compute = rng.lognormal(sigma=1.0, size=n) * 1e-3
    activations, weights = (
        rng.lognormal(size=n) * 10 ** rng.uniform(-2.0, 0.5) * compute.sum() * cluster.inter / scale
        for scale in (8.0, n)
    )
    meta = {"model": f"random {seed}", "microbatch_size": 4}
    profile = Profile.create(compute, activations, weights, compute / 3.0, activations, meta=meta)
    return Job(f"random {seed}", profile, cluster)


OF_RIVALS = (
    *("profile", "cluster", "default", "step", "shortest", "shortest / default"),
    *("best rival", "rival / shortest"),
)


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Print the rows, how many are lost, and what the ratios come to."""
    printed = print_rows(OF_RIVALS, rows)
    print(f"\n{len(printed)} rows, {sum('**loses**' in ''.join(cells) for cells in printed)} lost")
    for i, heading in enumerate(OF_RIVALS):
        ratios = [float(cells[i]) for cells in printed if cells[i]] if " / " in heading else []
        if ratios:
            spread = f"{min(ratios):.4f} to {max(ratios):.4f} in {len(ratios)} rows"
            print(f"{heading}: mean {np.mean(ratios):.4f}, {spread}")


def main() -> None:
    """Print the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_profiles(parser)
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS, metavar="NAME", help="default: all five")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="random models and clusters instead")
    arguments = parser.parse_args()
    clusters = [read_cluster(name) for name in arguments.clusters]
    files = profile_files(arguments.profiles)
    jobs = (Job(file.stem, read_profile(file), cluster) for file in files for cluster in clusters)
    print_table(random_rows(arguments.random) if arguments.random else rows(jobs))


if __name__ == "__main__":
    main()
