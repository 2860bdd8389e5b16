"""What every group draws besides its arrays: size, ratios, cluster, memory."""

from __future__ import annotations

from dataclasses import dataclass

from .settings import Choice, CountRange, LogRange, PartRange, Range, Share


@dataclass(frozen=True)
class ClusterSettings:
    """Clusters to draw: number of nodes, devices in a node and the ratio of the two bandwidths.

    Attributes:
        nodes, devices_per_node: what to choose from.
        fixed_share: share of the groups whose `inter_over_intra` is exactly `fixed_ratio`.
        fixed_ratio: that of the clusters in conf/topo.
        inter_over_intra: range for the other groups.
    """

    nodes: Choice
    devices_per_node: Choice
    fixed_share: Share
    fixed_ratio: float
    inter_over_intra: LogRange


@dataclass(frozen=True)
class MemorySettings:
    """How full device memory is at a balanced plan's fullest stage, as a fraction of it.

    Attributes:
        bound_share: share of the groups in which memory decides.
        bound_peak: range of the fraction in those groups.
        loose_peak: range in the others.
        largest_instruction: most that one point's own parameters may take, so that a problem stays solvable.
        no_stash: share of the groups that keep no activations, as profiles without that array.
    """

    bound_share: Share
    bound_peak: Range
    loose_peak: LogRange
    largest_instruction: float
    no_stash: Share


@dataclass(frozen=True)
class ProblemSettings:
    """What every group draws besides its three arrays.

    Attributes:
        instructions: range of n.
        weights_to_compute: range of (ΣW / inter) / ΣC.
        activation_to_compute: range of (mean A / inter) / ΣC, the mean over the points of the grid.
        forward_share: range of the group's mean of C_fwd / C.
        forward_fixed: share of the groups where it is 1/3 throughout, as in profiles without C_fwd.
        micro_batches: range of M.
        stages: S to choose from; a group gets fewer where devices or distinct cut points do not allow as many.
        stages_match_nodes: share of the groups with S = nodes instead.
        cluster, memory: see there.
    """

    instructions: CountRange
    weights_to_compute: LogRange
    activation_to_compute: LogRange
    forward_share: PartRange
    forward_fixed: Share
    micro_batches: CountRange
    stages: Choice
    stages_match_nodes: Share
    cluster: ClusterSettings
    memory: MemorySettings
