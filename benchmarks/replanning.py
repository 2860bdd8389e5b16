"""What static plans lose on drifting and straggling devices, and what re-planning at run time wins back.

    python benchmarks/replanning.py --plot docs/images/replanning.png

A seeded simulation. Time runs in windows of so many steps. In each window every device has a speed. It drifts (a
mean-reverting random walk of its logarithm, per device and per node, as temperature and neighbours make it). Devices
and whole nodes straggle now and then, by a random factor, for a geometrically distributed number of windows. The
profile is off, too, by a factor for each part of the model. No job knows any of this beforehand, but for the third:

    static      keeps its plan
    replanning  measures one window, plans again, and migrates before the next one if that pays within its steps
    perfect     knows all speeds beforehand and migrates for nothing; its plan in a window is the best of all known for
                these speeds, so that no job does better

What a plan is judged by is its step under the default schedule. The figures are seconds of simulated time, migrations
included. Searches have budgets of processor time, so that a faster machine may come to slightly shorter plans. A row is
printed as soon as it is known; a run takes a second of processor time for each window, model, world and seed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import EXAMPLES, print_rows

from automap_models.core.cluster import Cluster
from automap_models.core.observed import Observed, PlacedPlan, ReplanProblem
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.planners.base import Planner
from automap_models.planners.registry import make_planner
from automap_models.planners.replan.replan import ReplanPlanner, healthy_times
from automap_models.planners.replan.search import ReplanConfig, placed_cost, search_orders

StagedPlanner = Planner[StagedProblem, StagedPlan, Any]


@dataclass(frozen=True)
class World:
    """How devices behave.

    Attributes:
        windows: how many there are.
        steps: global batches in each.
        drift: standard deviation of a window's change of a logarithm of speed, of devices and of nodes.
        pull: share of its deviation that a logarithm of speed loses in a window.
        device_straggles, node_straggles: probability that a healthy one begins to, in a window.
        device_factor, node_factor: range of the slowdown then.
        recovers: probability that it ends, in a window.
        profile_error: standard deviation of the logarithm by which the profile is off, for each of PARTS of the model.
        noise: standard deviation of the logarithm of a measured time; one in a hundred is a stall of three times.
        samples: measured micro-batches in a window.
        restart_s: what a migration takes beside moving bytes.
        worth: the replanning job migrates for nothing less than this share of a step: speeds measured in one window and
            instructions never timed one by one promise a per cent or two that the next window does not keep.
    """

    windows: int = 20
    steps: int = 500
    drift: float = 0.005
    pull: float = 0.1
    device_straggles: float = 0.004
    node_straggles: float = 0.01
    device_factor: tuple[float, float] = (1.2, 2.0)
    node_factor: tuple[float, float] = (1.1, 1.5)
    recovers: float = 0.1
    profile_error: float = 0.05
    noise: float = 0.02
    samples: int = 16
    restart_s: float = 10.0
    worth: float = 0.02


PARTS = 16
STALL = 3.0
STALLS = 0.01
MODELS = ("bert48_v100", "vgg19_v100", "t5_base_v100")
WORLDS = {
    "all drift": World(device_straggles=0.0, node_straggles=0.0),
    "devices straggle": World(drift=0.0, node_straggles=0.0),
    "nodes straggle": World(drift=0.0, device_straggles=0.0, node_straggles=0.04),
    "all of it": World(node_straggles=0.04),
}


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the jobs took in each window; [windows], seconds a step without migrations, and seconds of migrations.

    Attributes:
        static_s, replanned_s, perfect_s: of the three jobs.
        migration_s: of the replanning job before the window, restart included.
        healthy_s: a step of the first plan, were all devices healthy and the profile right.
    """

    static_s: FloatArray
    replanned_s: FloatArray
    perfect_s: FloatArray
    migration_s: FloatArray
    healthy_s: float

    def totals(self, steps: int) -> tuple[float, float, float]:
        """Seconds of all windows: static, replanning with its migrations, perfect."""
        static, replanned, perfect = (steps * float(s.sum()) for s in (self.static_s, self.replanned_s, self.perfect_s))
        return static, replanned + float(self.migration_s.sum()), perfect


def simulate_job(
    problem: StagedProblem, plan: StagedPlan, world: World, seed: int, starts: tuple[StagedPlanner, ...] = ()
) -> Outcome:
    """Run the three jobs through the same windows.

    Args:
        problem: with the profile that is thought to be right.
        plan: what they start with.
        world: how devices behave.
        seed: of all draws.
        starts: see planners.replan.search.ReplanConfig.
    """
    random = np.random.default_rng(seed)
    planner = ReplanPlanner(ReplanConfig(starts=starts))
    truth = replace(problem, profile=_true_profile(problem.profile, world, random))
    speeds = slowdown_path(problem.cluster, world, random)
    static = replanning = perfect = PlacedPlan(plan, tuple(range(problem.cluster.devices)))
    believed, slowdowns = problem, np.ones(problem.cluster.devices)
    taken, migration_s = np.zeros((3, world.windows)), np.zeros(world.windows)
    true_starts = [start.plan(truth) for start in starts]
    for window, slowdown in enumerate(speeds):
        plans = [static.plan, replanning.plan, *true_starts]
        perfect = search_orders(truth, perfect, slowdown, plans).plan
        jobs = [placed_cost(truth, job, slowdown).step_s for job in (static, replanning, perfect)]
        taken[:, window] = *jobs[:2], min(jobs)
        if window + 1 == world.windows:
            break
        measured = _measured(truth, replanning, slowdown, world, random)
        result = planner.solve(
            ReplanProblem(believed, replanning, measured, known_slowdown=slowdowns, restart_s=world.restart_s)
        )
        facts = result.facts
        believed, slowdowns = facts["corrected"], facts["speeds"].slowdown
        worth = facts["saved_s"] >= world.worth * facts["running_cost"].step_s
        if worth and facts["pays_after_steps"] is not None and facts["pays_after_steps"] <= world.steps:
            replanning = result.required_plan()
            migration_s[window + 1] = facts["migration"].migration_s + world.restart_s
    healthy_s = placed_cost(truth, static, np.ones(problem.cluster.devices)).step_s
    return Outcome(taken[0], taken[1], taken[2], migration_s, healthy_s)


def slowdown_path(cluster: Cluster, world: World, random: np.random.Generator) -> FloatArray:
    """[windows, D] slowdown of every device; all are healthy in the first window."""
    devices, nodes = cluster.devices, cluster.nodes
    node_of = np.arange(devices) // cluster.devices_per_node
    drift, node_drift = np.zeros(devices), np.zeros(nodes)
    straggling, node_straggling = np.ones(devices), np.ones(nodes)
    path = np.ones((world.windows, devices))
    for window in range(1, world.windows):
        drift = (1.0 - world.pull) * drift + world.drift * random.standard_normal(devices)
        node_drift = (1.0 - world.pull) * node_drift + world.drift * random.standard_normal(nodes)
        straggling = _straggling(straggling, world.device_straggles, world.device_factor, world.recovers, random)
        node_straggling = _straggling(node_straggling, world.node_straggles, world.node_factor, world.recovers, random)
        path[window] = np.exp(drift + node_drift[node_of]) * straggling * node_straggling[node_of]
    return path


def _straggling(
    now: FloatArray, begins: float, factor: tuple[float, float], ends: float, random: np.random.Generator
) -> FloatArray:
    """Factors of the next window: some recover, some healthy ones begin to straggle."""
    healthy = (now == 1.0) | (random.random(now.size) < ends)
    begin = (now == 1.0) & (random.random(now.size) < begins)
    return np.where(begin, random.uniform(*factor, now.size), np.where(healthy, 1.0, now))


def _true_profile(profile: Profile, world: World, random: np.random.Generator) -> Profile:
    """The profile with every part of the model off by a factor of its own."""
    part = np.arange(len(profile)) * PARTS // len(profile)
    off = np.exp(world.profile_error * random.standard_normal(PARTS))[part]
    return replace(profile, C=profile.C * off, C_fwd=profile.C_fwd * off)


def _measured(
    problem: StagedProblem, job: PlacedPlan, slowdown: FloatArray, world: World, random: np.random.Generator
) -> Observed:
    """What the devices of a job measure in a window; idle ones try their stage's part."""
    times, stage = healthy_times(problem, job), job.stage_of_device()

    def samples(healthy_s: float, slow: float) -> FloatArray:
        noisy = np.exp(world.noise * random.standard_normal(world.samples))
        stalled = np.where(random.random(world.samples) < STALLS, STALL, 1.0)
        drawn: FloatArray = healthy_s * slow * noisy * stalled
        return drawn

    forward, backward = (
        {device: samples(float(t[stage[device]]), float(slow)) for device, slow in enumerate(slowdown)} for t in times
    )
    return Observed("device", forward, backward)


def problems(models: Sequence[str]) -> Iterator[tuple[StagedProblem, StagedPlan, StagedPlanner]]:
    """Every model on cluster C with its plan, and the planner that made it."""
    planner = make_planner("auto", certify_s=0.0, refine_s=0.0)
    for model in models:
        cluster = read_cluster("C")
        profile = read_profile(EXAMPLES / f"{model}.npz")
        problem = StagedProblem(profile, cluster, stages=cluster.nodes, schedule=DEFAULT_SCHEDULE)
        yield problem, planner.plan(problem), planner


HEADINGS = (
    *("model", "world", "static loses", "replanning loses", "won back"),
    *("migrations", "time in migrations", "CPU per plan"),
)


def row(outcomes: list[Outcome], world: World, taken_s: float) -> tuple[str, ...]:
    """The table's figures over all seeds."""
    static, replanned, perfect = np.sum([outcome.totals(world.steps) for outcome in outcomes], axis=0)
    migrations = float(np.mean([(outcome.migration_s > 0).sum() for outcome in outcomes]))
    migrating = sum(float(outcome.migration_s.sum()) for outcome in outcomes)
    won = f"{100 * (static - replanned) / (static - perfect):.0f} %" if static > 1.001 * perfect else "–"
    windows = 2 * world.windows * len(outcomes)  # the perfect job plans, too
    losses = (f"{100 * (job / perfect - 1):.2f} %" for job in (static, replanned))
    ends = f"{100 * migrating / replanned:.2f} %", f"{1e3 * taken_s / windows:.0f} ms"
    return (*losses, won, f"{migrations:.1f}", *ends)


def write_plot(path: Path, outcome: Outcome, title: str) -> None:
    """Seconds a step of the three jobs over the windows, and when the replanning one migrated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    axes = figure.subplots()
    windows = np.arange(outcome.static_s.size)
    for times, label, colour in (
        (outcome.static_s, "keeps its plan", "#D55E00"),
        (outcome.replanned_s, "plans again", "#0072B2"),
        (outcome.perfect_s, "knows everything beforehand", "#009E73"),
    ):
        axes.step(windows, times, where="mid", label=label, color=colour, linewidth=2.0)
    moved = np.flatnonzero(outcome.migration_s)
    axes.plot(moved, outcome.replanned_s[moved], "v", color="black", label="migrates")
    axes.axhline(outcome.healthy_s, color="grey", linestyle="--", linewidth=1.0, label="first plan, healthy devices")
    axes.set(xlabel="window", ylabel="seconds a step", title=title)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=MODELS, help="profiles in examples/")
    parser.add_argument("--windows", type=int, default=World.windows)
    parser.add_argument("--plot", type=Path, help="draw the first model's first run with everything going on")
    arguments = parser.parse_args()

    def rows() -> Iterator[tuple[str, ...]]:
        for problem, plan, planner in problems(arguments.models):
            model = problem.profile.model
            for name, kind in WORLDS.items():
                world, begin = replace(kind, windows=arguments.windows), time.process_time()
                outcomes = [simulate_job(problem, plan, world, seed, (planner,)) for seed in range(arguments.seeds)]
                yield (model, name, *row(outcomes, world, time.process_time() - begin))
                if arguments.plot and name == "all of it" and model == "bert48":
                    write_plot(arguments.plot, outcomes[0], f"{model} on C, {name}")

    print_rows(HEADINGS, rows())


if __name__ == "__main__":
    main()
