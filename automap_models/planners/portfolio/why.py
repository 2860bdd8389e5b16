"""Why a plan loses against the best one: one sentence from what its step and its memory consist of."""

from __future__ import annotations

from automap_models.cost.breakdown import stage_weights_bytes
from automap_models.cost.collectives import devices_per_node
from automap_models.planners.portfolio.candidate import Candidate

NEARLY = 0.95
"""Of the memory: a plan that takes more would rather have taken another shape."""
SLIGHT = 0.005
"""Plans that differ relatively by less are equal to a reader."""


def why_it_loses(loser: Candidate, best: Candidate) -> str:
    """The sentence; about the memory if the loser does not fit, else about what it has most more of than the best."""
    if not loser.fits:
        return _does_not_fit(loser)
    if loser.length_s <= best.length_s * (1.0 + SLIGHT):
        return f"within {100 * SLIGHT:g} % of the best"
    ours, theirs = loser.parts, best.parts
    excess = {
        _gradients: ours.gradients_s - theirs.gradients_s,
        _activations: ours.activations_s - theirs.activations_s,
        _bubble: ours.bubble_s - theirs.bubble_s,
        _transfers: ours.transfers_s - theirs.transfers_s,
        _compute: ours.compute_s - theirs.compute_s,
    }
    largest = max(excess, key=excess.__getitem__)
    return largest(loser)


def _does_not_fit(loser: Candidate) -> str:
    needed, have = loser.memory_bytes, loser.problem.cluster.memory
    parts = loser.parts
    what, part = max(
        (("training state", parts.state_bytes), ("activations", parts.stash_bytes)), key=lambda each: each[1]
    )
    return f"does not fit: {_size(needed)} of {_size(have)}, {_size(part)} of it {what}"


def _gradients(loser: Candidate) -> str:
    stage = loser.parts.last_reduced
    held = stage_weights_bytes(loser.problem, loser.plan)[stage]
    first, last = loser.plan.stage_devices(loser.problem.cluster.devices)[stage]
    nodes = int((devices_per_node(loser.problem.cluster, first, last + 1) > 0).sum())
    over = f"{nodes} nodes" if nodes > 1 else f"{last - first + 1} devices"
    return f"gradient all-reduce of {_size(held)} over {over}: {_share(loser, loser.parts.gradients_s)}"


def _activations(loser: Candidate) -> str:
    stage = loser.cost.pivot // 2
    way = loser.problem.all_shardings[loser.plan.shardings[stage]]
    first, last = loser.plan.stage_instructions(len(way))[stage]
    own = slice(first, last + 1)
    d, t = loser.degrees[stage]
    reduced = float(way.reduced_fwd[own].sum() + way.reduced_bwd[own].sum()) / d
    share = _share(loser, loser.parts.activations_s)
    return f"all-reduces of activations over {t} devices, {_size(reduced)} a micro-batch: {share}"


def _bubble(loser: Candidate) -> str:
    return f"bubble: {_share(loser, loser.parts.bubble_s)}"


def _transfers(loser: Candidate) -> str:
    return f"transfers between stages: {_share(loser, loser.parts.transfers_s)}"


def _compute(loser: Candidate) -> str:
    pipeline = loser.problem
    even_s = pipeline.micro_batches * float(pipeline.profile.C.sum()) / pipeline.cluster.devices
    over = loser.parts.compute_s / even_s - 1.0
    if loser.plan.stages > 1:
        uneven = f"uneven stages: the slowest one computes {100 * over:.0f} % longer than an even share"
        needed, have = loser.memory_bytes, pipeline.cluster.memory
        return uneven if needed < NEARLY * have else f"{uneven}, for want of memory ({_size(needed)} of {_size(have)})"
    return f"what it leaves whole is computed on every device: {100 * over:.0f} % more computation"


def _share(loser: Candidate, part_s: float) -> str:
    return f"{100 * part_s / loser.length_s:.0f} % of the step"


def _size(value_bytes: float) -> str:
    unit, name = next(((u, n) for u, n in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if value_bytes >= u), (1e3, "kB"))
    value = value_bytes / unit
    return f"{value:.0f} {name}" if value >= 100 else f"{value:.1f} {name}"
