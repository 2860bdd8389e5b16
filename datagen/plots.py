"""A picture of a data set: a few of its groups, and how its numbers are spread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from automap_models.envs.pipeline.encoding import CHANNELS, EncodedProblems, cut_masks
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.dataset import Manifest, read_dataset, read_manifest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUMMARY = "summary.png"
COLOURS = {"C": "#4063d8", "A": "#cb6a2d", "W": "#389826", "F": "#8da0e0", "stash": "#8c6bb1"}
GREY = "#7a7a7a"
MEANING = {"C": "compute", "A": "activations", "W": "parameters"}


def write_summary(folder: Path) -> Path:
    """Draw the summary of a finished data set into its folder.

    Returns:
        The picture's file.

    Raises:
        BadInput: matplotlib is missing; the data set is damaged or unfinished; the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("needs matplotlib", where="plot=true", do="pip install 'automap-models[plot]'") from None
    manifest = read_manifest(folder)
    arrays = read_dataset(folder, min(20_000, manifest.groups))
    figure = Figure(layout="constrained")
    _draw(figure, EncodedProblems.from_mapping(arrays), arrays["distribution"], manifest)
    write_atomically(folder / SUMMARY, lambda file: figure.savefig(file, format="png", dpi=110))
    return folder / SUMMARY


def _draw(figure: Figure, groups: EncodedProblems, kinds: NDArray[Any], manifest: Manifest) -> None:
    names: Sequence[str] = manifest.distributions
    examples = _examples(groups, kinds, len(names))
    figure.set_size_inches(15, 1.9 * len(examples) + 5.2)
    figure.suptitle(f"{manifest.groups:,} groups, seed {manifest.seed}: {', '.join(names)}", weight="bold")
    parts = figure.subfigures(2, 1, height_ratios=[1.9 * len(examples), 5.0], squeeze=False)
    above, below = parts[:, 0]
    axes = above.subplots(len(examples), 4, squeeze=False, sharex=True)
    for row, i in zip(axes, examples, strict=True):
        _example(row, groups.take(slice(i, i + 1)), names[int(kinds[i])])
    titles = [*(f"{MEANING[channel]} {channel}, each point" for channel in "CAW"), "prefix sums and A, normalised"]
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    axes[0, 3].legend(loc="upper left", fontsize=8, ncols=2, frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("depth in the model")
    _histograms(below.subplots(2, 4).ravel(), groups)


def _examples(groups: EncodedProblems, kinds: NDArray[Any], names: int) -> list[int]:
    """One group of each distribution, or several of different sizes where there are few: five, if there are as many."""
    examples = -(-5 // names)
    chosen: list[int] = []
    for kind in range(names):
        rows = np.flatnonzero(kinds == kind)[:200]
        by_size = rows[np.argsort(groups.instructions[rows], kind="stable")]
        if rows.size:
            positions = np.linspace(0.15, 0.85, examples) if examples > 1 else [(0.35 + 0.3 * kind) % 0.8 + 0.1]
            chosen += [int(by_size[int(q * (rows.size - 1))]) for q in positions]
    return chosen


def _example(row: NDArray[Any], group: EncodedProblems, name: str) -> None:
    points = group.arrays.shape[2]
    last = np.append(np.flatnonzero(cut_masks(group.instructions, points)[0]), points - 1)
    edges = np.append(0, last + 1) / points
    values = dict(zip(CHANNELS, group.arrays[0][:, last].astype(np.float64), strict=True))
    for axis, channel in zip(row, "CAW", strict=False):
        height = values[channel] if channel == "A" else np.diff(values[channel], prepend=0)
        axis.stairs(height / max(height.max(), 1e-30), edges, fill=True, color=COLOURS[channel])
        axis.set(xlim=(0, 1), ylim=(0, 1.05), yticks=[0, 1])
    for channel in ("C", "F", "W", "A"):
        row[3].plot((last + 1) / points, values[channel], color=COLOURS[channel], label=channel, lw=1.5)
    row[3].set(xlim=(0, 1), ylim=(0, 1.05), yticks=[0, 1])
    facts = f"n = {group.instructions[0]}\nS = {group.stages[0]}\nM = {group.micro_batches[0]}"
    row[0].set_ylabel(f"{name}\n{facts}", rotation=0, ha="right", va="center")


def _histograms(axes: NDArray[Any], groups: EncodedProblems) -> None:
    compute, weights = groups.arrays[:, 0, -1], groups.arrays[:, 2, -1]
    _log_histogram(axes[0], groups.instructions, "instructions n", integers=True)
    _log_histogram(axes[1], groups.micro_batches, "micro-batches M", integers=True)
    powers = [2**k for k in range(21) if groups.micro_batches.min() <= 2**k <= groups.micro_batches.max()]
    axes[1].set_xticks(powers, labels=map(str, powers))
    _counts(axes[2], groups.stages, "stages S")
    _counts(axes[3], groups.nodes * groups.devices_per_node, "devices D")
    _log_histogram(axes[4], weights / compute, "ΣW / inter / ΣC")
    _log_histogram(axes[5], groups.arrays[:, 1].mean(axis=1) / compute, "mean A / inter / ΣC")
    _log_histogram(axes[6], groups.inter_over_intra, "inter / intra (log count)")
    axes[6].set_yscale("log")
    axes[6].tick_params(axis="y", which="both", left=False, labelleft=False)
    _log_histogram(axes[7], fullest_stage(groups), "even plan: fullest stage / memory")
    axes[7].axvline(1, color="black", lw=1, ls="--")


def _log_histogram(axis: Axes, values: NDArray[Any], title: str, integers: bool = False) -> None:
    """Groups per step of the logarithm: what was drawn log-uniformly looks flat, whole numbers too."""
    low, high = float(values.min()), float(values.max()) + integers
    edges = np.geomspace(low, max(high, low * 1.01), 41)
    edges = np.unique(np.ceil(edges[::2])) if integers else edges
    count, _ = np.histogram(values, edges)
    axis.stairs(count / np.diff(np.log(edges)), edges, fill=True, color=GREY)
    axis.set(xscale="log", title=title, yticks=[])
    axis.xaxis.set_minor_formatter("")


def _counts(axis: Axes, values: NDArray[Any], title: str) -> None:
    value, count = np.unique(values, return_counts=True)
    axis.bar([str(v) for v in value], count, color=GREY)
    axis.set(title=title, yticks=[])


def fullest_stage(groups: EncodedProblems) -> NDArray[np.float64]:
    """[B] memory of the fullest stage when compute is cut evenly and every stage has D/S devices; 1 is all there is."""
    C = groups.arrays[:, 0].astype(np.float64)
    stages = groups.stages[:, None].astype(np.float64)
    devices = (groups.nodes * groups.devices_per_node)[:, None]
    stage = np.minimum((C / C[:, -1:] * stages).astype(np.int64), groups.stages[:, None] - 1)
    index = np.arange(int(groups.stages.max()))
    end = np.maximum((stage[:, :, None] <= index).sum(axis=1) - 1, 0)  # the last point of each stage
    state, saved = (
        np.diff(np.take_along_axis(groups.arrays[:, c], end, axis=1).astype(np.float64), axis=1, prepend=0)
        for c in (CHANNELS.index("W"), CHANNELS.index("stash"))
    )
    flying = np.clip(stages - index, 0, groups.micro_batches[:, None])
    memory = groups.state_over_memory[:, None] * state + flying * saved * stages / devices
    return np.asarray(memory.max(axis=1))
