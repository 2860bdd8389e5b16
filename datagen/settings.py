"""From a config to frozen records: what a data set is drawn from, checked before anything is drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from automap_models.errors import BadInput

SEE = "see conf/datagen.yaml"
FloatArray = NDArray[np.float32]
Record = TypeVar("Record")

MOST = 1e300
"""Of any number: none is infinite."""
Share = Annotated[float, Meta(ge=0, le=1)]
"""A share of groups or a probability."""
Positive = Annotated[float, Meta(gt=0, le=MOST)]
NonNegative = Annotated[float, Meta(ge=0, le=MOST)]
Count = Annotated[int, Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of settings, all of which have to be given, and no others."""


class Ends(Settings, frozen=True, array_like=True):
    """Two ends to draw between, written `[low, high]` in a config, within limits of the kind."""

    limits: ClassVar[tuple[float, float]]

    low: float
    high: float

    def __post_init__(self) -> None:
        least, most = self.limits
        if not least <= self.low <= self.high <= most:
            raise ValueError(f"give {least:g} ≤ low ≤ high ≤ {most:g}")


class Range(Ends, frozen=True):
    """A range that is drawn from evenly; 0 ≤ low."""

    limits: ClassVar[tuple[float, float]] = (0.0, 1e30)

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """`count` values, float32 [count, 1]: one for each row of a batch."""
        return self.low + (self.high - self.low) * rng.random((count, 1), dtype=np.float32)


class SignedRange(Range, frozen=True):
    """A range that may reach below 0."""

    limits: ClassVar[tuple[float, float]] = (-1e30, 1e30)


class PartRange(Range, frozen=True):
    """A range of parts of a whole that leave something to the rest."""

    limits: ClassVar[tuple[float, float]] = (0.0, 0.999)


class LogRange(Range, frozen=True):
    """A range in which logarithms are evenly spread; 0 < low."""

    limits: ClassVar[tuple[float, float]] = (1e-30, 1e30)

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """`count` values, float32 [count, 1]."""
        spread = math.log(self.high / self.low) * rng.random((count, 1), dtype=np.float32)
        return np.asarray(self.low * np.exp(spread), dtype=np.float32)


class LogPartRange(LogRange, frozen=True):
    """Parts of a whole whose logarithms are evenly spread."""

    limits: ClassVar[tuple[float, float]] = (1e-30, 0.999)


class CountRange(Ends, frozen=True):
    """Whole numbers from low to high, both included, k as likely as log(1 + 1/k); 1 ≤ low."""

    limits: ClassVar[tuple[float, float]] = (1, 1_000_000)

    low: int
    high: int

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
        """`count` of them, int32 [count]."""
        values = self.low * np.exp(math.log((self.high + 1) / self.low) * rng.random(count))
        counts: NDArray[np.int32] = np.minimum(values, self.high).astype(np.int32)
        return counts


class Choice(Settings, frozen=True):
    """Values to choose from, with weights."""

    values: Annotated[tuple[Count, ...], Meta(min_length=1)]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.values) or not are_weights(self.weights):
            raise ValueError(f"weights: {WEIGHTS}, one for each value")

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
        """`count` of the values, int32 [count]."""
        weights = np.asarray(self.weights)
        return rng.choice(np.asarray(self.values, dtype=np.int32), count, p=weights / weights.sum())


class ClusterSettings(Settings, frozen=True):
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
    fixed_ratio: Positive
    inter_over_intra: LogRange


class MemorySettings(Settings, frozen=True):
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
    largest_instruction: Positive
    no_stash: Share


class ProblemSettings(Settings, frozen=True):
    """What every group draws besides its three arrays.

    Attributes:
        instructions: range of n.
        weights_to_compute: range of (ΣW / inter) / ΣC.
        activation_to_compute: range of (mean A / inter) / ΣC, the mean over the points of the grid.
        forward_share: range of the group's mean of C_fwd / C.
        forward_fixed: share of the groups where it is 1/3 throughout, as in profiles without C_fwd.
        micro_batches: range of M.
        stages: S to choose from; a group gets fewer where devices or distinct cut points do not allow as many.
        stages_match_nodes: share of the groups with S = nodes instead, where S may be as many.
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


WEIGHTS = "give numbers ≥ 0, not all zero, with a finite sum"


def are_weights(weights: Sequence[float]) -> bool:
    """Whether they are what WEIGHTS says."""
    return all(weight >= 0 for weight in weights) and 0 < sum(weights) < math.inf


_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "array": "a list, as conf/datagen.yaml does",
    "object": "a group of settings",
}


def parse(record: type[Record], config: Any, where: str = "") -> Record:
    """Fill a settings record from a mapping.

    Args:
        where: the group that they are; none is the whole config.

    Raises:
        BadInput: a key is missing, unknown or holds a value that cannot be meant.
    """
    try:
        return msgspec.convert(config, record)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        names = re.findall(r"\.(\w+)", path)
        if field := re.fullmatch(r"Object (missing|contains).* field `(.*)`", what):
            what = "is missing" if field[1] == "missing" else "is not a setting"
            raise BadInput(what, where=".".join(part for part in (where, *names, field[2]) if part), do=SEE) from None
        if of_field := re.match(r"(\w+): ", what):  # a group that does not like one of its settings
            names.append(of_field[1])
            what = what.removeprefix(of_field[0])
        value = reduce(lambda group, name: group[name], names, config)
        do = re.sub(r"Expected `(\w+)[^`]*`(?:, got `.*`)?", lambda kind: f"give {_WORDS.get(kind[1], kind[1])}", what)
        raise BadInput(f"is {value!r}", where=".".join(part for part in (where, *names) if part), do=do) from None
