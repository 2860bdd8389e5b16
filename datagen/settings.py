"""From a config to frozen records: what a data set is drawn from, checked before anything is drawn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NewType, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from automap_models.errors import BadInput

FloatArray = NDArray[np.float32]
Record = TypeVar("Record")

Share = NewType("Share", float)
"""A share of groups or a probability, 0 … 1."""
NonNegative = NewType("NonNegative", float)
"""A number that may be 0."""
Signed = NewType("Signed", float)
"""A number that may be negative; a plain float in a record may not even be 0, an int is ≥ 1."""


@dataclass(frozen=True)
class Range:
    """Two ends to draw evenly between, written `[low, high]` in a config; 0 ≤ low."""

    limits: ClassVar[tuple[float, float]] = (0.0, 1e30)

    low: float
    high: float

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """`count` values, float32 [count, 1]: one for each row of a batch."""
        return self.low + (self.high - self.low) * rng.random((count, 1), dtype=np.float32)


@dataclass(frozen=True)
class SignedRange(Range):
    """A range that may reach below 0."""

    limits: ClassVar[tuple[float, float]] = (-1e30, 1e30)


@dataclass(frozen=True)
class PartRange(Range):
    """A range of parts of a whole that leave something to the rest."""

    limits: ClassVar[tuple[float, float]] = (0.0, 0.999)


@dataclass(frozen=True)
class LogRange(Range):
    """A range in which logarithms are evenly spread; 0 < low."""

    limits: ClassVar[tuple[float, float]] = (1e-30, 1e30)

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """`count` values, float32 [count, 1]."""
        spread = math.log(self.high / self.low) * rng.random((count, 1), dtype=np.float32)
        return np.asarray(self.low * np.exp(spread), dtype=np.float32)


@dataclass(frozen=True)
class LogPartRange(LogRange):
    """Parts of a whole whose logarithms are evenly spread."""

    limits: ClassVar[tuple[float, float]] = (1e-30, 0.999)


@dataclass(frozen=True)
class CountRange:
    """Whole numbers from low to high, both included, k as likely as log(1 + 1/k); 1 ≤ low."""

    limits: ClassVar[tuple[float, float]] = (1, 1_000_000)

    low: int
    high: int

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
        """`count` of them, int32 [count]."""
        values = self.low * np.exp(math.log((self.high + 1) / self.low) * rng.random(count))
        whole: NDArray[np.int32] = np.minimum(values, self.high).astype(np.int32)
        return whole


@dataclass(frozen=True)
class Choice:
    """Values to choose from, with weights."""

    values: tuple[int, ...]
    weights: tuple[float, ...]

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
        """`count` of the values, int32 [count]."""
        weights = np.asarray(self.weights)
        return rng.choice(np.asarray(self.values, dtype=np.int32), count, p=weights / weights.sum())


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


def parse(record: type[Record], config: object, where: str) -> Record:
    """Fill a settings record from a mapping.

    Raises:
        BadInput: a key is missing, unknown or holds a value that cannot be meant.
    """
    if not isinstance(config, Mapping):
        raise BadInput(f"is {config!r}, not a group of settings", where=where, do="see conf/datagen.yaml")
    hints = get_type_hints(record)
    known = [field.name for field in dataclasses.fields(record)]  # type: ignore[arg-type]
    for key in (*known, *config):
        if key not in config or key not in known:
            problem = "is missing" if key in known else "is not a setting"
            raise BadInput(problem, where=f"{where}.{key}", do=f"expected are {', '.join(known)}")
    return record(**{key: _value(hints[key], config[key], f"{where}.{key}") for key in known})


def _value(kind: Any, value: object, where: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, (Range, CountRange)):
        return kind(*_ends(kind, value, where))
    if kind is Choice:
        return _choice(value, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return parse(kind, value, where)
    if kind is int:
        return _whole(value, where)
    return _number(kind, value, where)


def _number(kind: Any, value: object, where: str) -> float:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    wanted, right = {
        Share: ("a number from 0 to 1", 0 <= number <= 1),
        NonNegative: ("a number ≥ 0", 0 <= number < math.inf),
        Signed: ("a number", math.isfinite(number)),
        float: ("a number > 0", 0 < number < math.inf),
    }[kind]
    if not right:
        raise BadInput(f"is {value!r}", where=where, do=f"give {wanted}")
    return float(number)


def _whole(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"is {value!r}", where=where, do="give a whole number ≥ 1")
    return value


def _ends(kind: type[Range] | type[CountRange], value: object, where: str) -> tuple[Any, Any]:
    numbers = (int,) if issubclass(kind, CountRange) else (int, float)
    name = "whole numbers" if issubclass(kind, CountRange) else "numbers"
    if not isinstance(value, list) or len(value) != 2 or not all(type(end) in numbers for end in value):
        raise BadInput(f"is {value!r}", where=where, do=f"give two {name}: [low, high]")
    (least, most), (low, high) = kind.limits, value
    if not least <= low <= high <= most:
        raise BadInput(f"is {value!r}", where=where, do=f"give {least:g} ≤ low ≤ high ≤ {most:g}")
    return low, high


def _choice(value: object, where: str) -> Choice:
    if not isinstance(value, Mapping) or set(value) != {"values", "weights"}:
        raise BadInput(f"is {value!r}", where=where, do="give values and weights, two lists")
    values, weights = value["values"], value["weights"]
    if not isinstance(values, list) or not values:
        raise BadInput(f"is {values!r}", where=f"{where}.values", do="give a list of whole numbers")
    if not isinstance(weights, list) or len(weights) != len(values):
        raise BadInput(f"is {weights!r}", where=f"{where}.weights", do="give a list with one number for each value")
    whole = tuple(_whole(number, f"{where}.values") for number in values)
    return Choice(whole, checked_weights(weights, f"{where}.weights"))


def checked_weights(weights: list[object], where: str) -> tuple[float, ...]:
    """Weights as floats.

    Raises:
        BadInput: one that is no finite number ≥ 0, or nothing but zeros.
    """
    right = all(type(w) in (int, float) and 0 <= w < math.inf for w in weights)  # type: ignore[operator]
    if not right or not any(weights) or not math.isfinite(sum(weights)):  # type: ignore[arg-type]
        raise BadInput(f"are {weights!r}", where=where, do="give numbers ≥ 0, not all zero, with a finite sum")
    return tuple(float(w) for w in weights)  # type: ignore[arg-type]
