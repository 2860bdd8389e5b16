"""What unequal devices cost a job that keeps its plan, and one that adjusts it: a seeded simulation.

Time runs in windows of so many steps. In each, every device has a speed: it drifts (a mean-reverting random walk of its
logarithm, per device and per node, as temperature and neighbours make it), and devices and whole nodes straggle now and
then (by a random factor, for a geometrically distributed number of windows). The profile is off, too, by a factor for
each part of the model. Nobody is told any of this: the adjusting job measures one window, adjusts, and moves before the
next one if that pays within the window's steps. The third job knows all speeds beforehand and moves for nothing; its
plan in a window is the best of all known for these speeds, so that no job here does better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.formats.observed_json import Observed
from automap_models.planners.replan.migration import Placed
from automap_models.planners.replan.replan import adjust, healthy_times, placed_cost, replan

Starts = Callable[[StagedProblem], Sequence[StagedPlan]]


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
        restart_s: what a move takes beside moving bytes.
        worth: the adjusting job moves for nothing less than this share of a step: speeds measured in one window and
            instructions never timed one by one promise a per cent or two that the next window does not keep.
    """

    windows: int = 30
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


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the jobs took in each window; [windows], seconds a step without moves, and seconds of moving.

    Attributes:
        static_s, adjusted_s, perfect_s: of the job that keeps its plan, adjusts it, knows everything.
        moving_s: of the adjusting job before the window, restart included.
        healthy_s: a step of the first plan, were all devices healthy and the profile right.
        slowest: the largest slowdown of a device.
    """

    static_s: FloatArray
    adjusted_s: FloatArray
    perfect_s: FloatArray
    moving_s: FloatArray
    healthy_s: float
    slowest: FloatArray

    def totals(self, steps: int) -> tuple[float, float, float]:
        """Seconds of all windows: static, adjusted with its moves, perfect."""
        return (
            steps * float(self.static_s.sum()),
            steps * float(self.adjusted_s.sum()) + float(self.moving_s.sum()),
            steps * float(self.perfect_s.sum()),
        )


def simulate_job(problem: StagedProblem, plan: StagedPlan, world: World, seed: int, starts: Starts) -> Outcome:
    """Run the three jobs through the same windows.

    Args:
        problem: with the profile that is thought to be right.
        plan: what they start with.
        world: how devices behave.
        seed: of all draws.
        starts: see planners.replan.replan.adjust.
    """
    random = np.random.default_rng(seed)
    truth = replace(problem, profile=_true_profile(problem.profile, world, random))
    speeds = slowdown_path(problem.cluster, world, random)
    static = adjusting = perfect = Placed(plan, tuple(range(problem.cluster.devices)))
    believed, known = problem, np.ones(problem.cluster.devices)
    taken, moving_s = np.zeros((3, world.windows)), np.zeros(world.windows)
    for window, slowdown in enumerate(speeds):
        perfect = replan(truth, perfect, slowdown, [static.plan, adjusting.plan, *starts(truth)])
        jobs = [placed_cost(truth, job, slowdown).length_s for job in (static, adjusting, perfect)]
        taken[:, window] = *jobs[:2], min(jobs)
        if window + 1 == world.windows:
            break
        measured = _measured(truth.profile, adjusting, slowdown, world, random)
        found = adjust(believed, adjusting, measured, known=known, starts=starts, restart_s=world.restart_s)
        believed, known = found.problem, found.speeds.slowdown
        worth = found.saved_s >= world.worth * found.before_cost.length_s
        if worth and found.pays_after_steps is not None and found.pays_after_steps <= world.steps:
            adjusting, moving_s[window + 1] = found.after, found.moving.moving_s + world.restart_s
    healthy_s = placed_cost(truth, static, np.ones(problem.cluster.devices)).length_s
    return Outcome(taken[0], taken[1], taken[2], moving_s, healthy_s, speeds.max(axis=1))


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
    return Profile.create(profile.C * off, profile.A, profile.W, profile.C_fwd * off, profile.stash)


def _measured(
    profile: Profile, job: Placed, slowdown: FloatArray, world: World, random: np.random.Generator
) -> Observed:
    """What the devices of a job measure in a window; idle ones try their stage's part."""
    times, stage = healthy_times(profile, job), job.stage_of_device()

    def samples(healthy_s: float, slow: float) -> FloatArray:
        noisy = np.exp(world.noise * random.standard_normal(world.samples))
        stalled = np.where(random.random(world.samples) < STALLS, STALL, 1.0)
        drawn: FloatArray = healthy_s * slow * noisy * stalled
        return drawn

    forward, backward = (
        {device: samples(float(of[stage[device]]), float(slow)) for device, slow in enumerate(slowdown)} for of in times
    )
    return Observed("device", forward, backward)
