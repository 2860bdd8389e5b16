"""Random planning problems by the ten thousand: raw arrays drawn, given ratios, coarsened and normalised.

Every group comes out as envs.pipeline.encoding.encode would write it for the profile and the cluster drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from automap_models.envs.pipeline.encoding import CHANNELS, EncodedProblems
from automap_models.errors import BadInput

from .binning import Bins
from .distributions import Distribution, Mixture
from .settings import FloatArray, MemorySettings, ProblemSettings

Fields = dict[str, NDArray[Any]]
"""Name → array with one entry a group."""


@dataclass(frozen=True)
class Recipe:
    """All that decides what is drawn, apart from the seed.

    Attributes:
        mixture: the distributions of the arrays.
        problem: everything else about a group.
        granularity: points P of the grid.
        bins_per_point: bins at most per point (binning.py).
    """

    mixture: Mixture
    problem: ProblemSettings
    granularity: int
    bins_per_point: int


@np.errstate(over="ignore", invalid="ignore")  # what overflows is refused, by name
def draw_groups(recipe: Recipe, rng: np.random.Generator, count: int) -> Fields:
    """`count` groups: the fields of EncodedProblems and `distribution`, int16 [count], which member each is of.

    Raises:
        BadInput: the recipe's numbers vary so much that float32 cannot hold them.
    """
    scalars = _draw_scalars(recipe, rng, count)
    fields: Fields = {"arrays": np.empty((count, len(CHANNELS), recipe.granularity), np.float32)}
    fields["state_over_memory"] = np.empty(count, np.float32)
    for member, width, rows in _batches(recipe, scalars):
        batch = {name: values[rows] for name, values in scalars.items()}
        arrays, state = _draw_batch(recipe, rng, recipe.mixture.members[member], width, batch)
        fields["arrays"][rows] = arrays
        fields["state_over_memory"][rows] = state
    rest = {name: scalars[name] for name in (*EncodedProblems.__dataclass_fields__, "distribution") if name in scalars}
    return fields | rest


def _draw_scalars(recipe: Recipe, rng: np.random.Generator, count: int) -> Fields:
    problem, cluster = recipe.problem, recipe.problem.cluster
    weights = np.asarray(recipe.mixture.weights)
    nodes, per_node = cluster.nodes.draw(rng, count), cluster.devices_per_node.draw(rng, count)
    n = problem.instructions.draw(rng, count)
    matched = (rng.random(count) < problem.stages_match_nodes) & (nodes > 1) & (nodes <= max(problem.stages.values))
    stages = np.where(matched, nodes, problem.stages.draw(rng, count))
    most = np.minimum(nodes * per_node, np.minimum(n, recipe.granularity))
    ratio = cluster.inter_over_intra.draw(rng, count)[:, 0]
    fixed = rng.random(count) < cluster.fixed_share
    scalars: Fields = {
        "instructions": n,
        "nodes": nodes,
        "devices_per_node": per_node,
        "inter_over_intra": np.where(fixed, np.float32(cluster.fixed_ratio), ratio).astype(np.float32),
        "stages": np.minimum(stages, most).astype(np.int32),
        "micro_batches": problem.micro_batches.draw(rng, count),
        "distribution": rng.choice(len(weights), count, p=weights / weights.sum()).astype(np.int16),
        "weights_to_compute": problem.weights_to_compute.draw(rng, count),
        "activation_to_compute": problem.activation_to_compute.draw(rng, count),
    }
    return scalars


def _batches(recipe: Recipe, scalars: Fields) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """(distribution, width in bins, rows): groups of one kind and of about one size."""
    batch = 1024  # groups: enough for numpy to pay, few enough for a processor's cache
    most = recipe.granularity * recipe.bins_per_point
    widths = [most]
    while widths[-1] >= 32:
        widths.append(widths[-1] // 2)
    widths.sort()
    size = np.searchsorted(widths, scalars["instructions"])  # len(widths): more instructions than bins
    for member in range(len(recipe.mixture.members)):
        for bucket, width in enumerate([*widths, most]):
            rows = np.flatnonzero((scalars["distribution"] == member) & (size == bucket))
            for start in range(0, rows.size, batch):
                yield member, width, rows[start : start + batch]


def _draw_batch(
    recipe: Recipe, rng: np.random.Generator, member: Distribution, width: int, batch: Fields
) -> tuple[FloatArray, FloatArray]:
    """Arrays [B, 5, P] and state_over_memory [B] of groups of one distribution and width."""
    bins = Bins.create(batch["instructions"], width)
    point = bins.point_bins(recipe.granularity)
    raw = member.draw(rng, bins)
    compute, parameters = (_or_even(values, bins.span) for values in (raw.C, raw.W))
    forward = compute * _forward_share(recipe.problem, rng, bins)
    saved = bins.span * raw.A * rng.random(bins.shape, dtype=np.float32)
    C, F, W, H = (_prefix(values, point) for values in (compute, forward, parameters, _or_even(saved, bins.span)))
    F /= C[:, -1:]
    C, W, H = (sums / sums[:, -1:] for sums in (C, W, H))
    A = np.take_along_axis(raw.A, point, axis=1)
    A = _or_even(A, np.ones_like(A))
    A *= batch["activation_to_compute"] / A.mean(axis=1, keepdims=True)
    weights = batch["weights_to_compute"]
    scale = 1 / np.maximum(np.maximum(1, weights), A.max(axis=1, keepdims=True))
    state, peaks = _memory(recipe.problem.memory, rng, batch, largest_step=np.diff(W, axis=1, prepend=0).max(axis=1))
    arrays: FloatArray = np.stack([C * scale, A * scale, W * (weights * scale), F * scale, H * peaks], axis=1)
    if not np.isfinite(arrays).all():
        raise BadInput("its numbers leave the range of float32", where="dist", do="give parameters that vary less")
    return arrays, cast(FloatArray, (state / (weights * scale))[:, 0])


def _or_even(values: FloatArray, even: FloatArray) -> FloatArray:
    """The same where a group has anything at all, else an even spread."""
    empty = ~((values > 0) & (even > 0)).any(axis=1)
    values[empty] = even[empty]
    return values


def _forward_share(problem: ProblemSettings, rng: np.random.Generator, bins: Bins) -> FloatArray:
    """[B, m] forward part of each bin's time: around the group's own mean, or 1/3 throughout."""
    groups = len(bins)
    fixed = rng.random((groups, 1)) < problem.forward_fixed
    mean = np.where(fixed, np.float32(1 / 3), problem.forward_share.draw(rng, groups))
    spread = np.where(fixed, np.float32(0), 0.5 * rng.random((groups, 1), dtype=np.float32))
    share = mean + spread * (rng.random(bins.shape, dtype=np.float32) - np.float32(0.5))
    clipped: FloatArray = np.clip(share, 0, 1)
    return clipped


def _prefix(values: FloatArray, point: NDArray[np.int64]) -> FloatArray:
    return np.take_along_axis(np.cumsum(values, axis=1, dtype=np.float32), point, axis=1)


def _memory(
    memory: MemorySettings, rng: np.random.Generator, batch: Fields, largest_step: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Whole state and whole stash [B, 1], in units of device memory.

    A balanced stage holds state/S, and the first keeps min(M, S) micro-batches of stash/S on D/S replicas.
    """
    groups = largest_step.size
    bound = rng.random((groups, 1)) < memory.bound_share
    peak = np.where(bound, memory.bound_peak.draw(rng, groups), memory.loose_peak.draw(rng, groups))
    no_stash = rng.random((groups, 1)) < memory.no_stash
    part = np.where(no_stash, np.float32(1), rng.random((groups, 1), dtype=np.float32))
    stages, devices = (column[:, None] for column in (batch["stages"], batch["nodes"] * batch["devices_per_node"]))
    state = np.minimum(peak * part * stages, memory.largest_instruction / largest_step[:, None])
    saved = peak * (1 - part) * devices / np.minimum(batch["micro_batches"][:, None], stages)
    return state.astype(np.float32), saved.astype(np.float32)
