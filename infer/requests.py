"""What the commands are asked for: frozen records, checked as far as that takes no long work.

`None` is what the user left open, where the default depends on something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class SourceKind(Enum):
    """What a model comes from; the value says why an option does not apply to it."""

    PROFILE = "is a profile, with times and sizes of its own"
    MODULE = "is an HLO file, with shapes of its own"
    WORKLOAD = "is a built-in JAX model"
    FACTORY = "is a factory"


@dataclass(frozen=True)
class Source:
    """Where a model comes from, and which training step of it is meant.

    Attributes:
        what: the file, built-in model or factory.
        batch: samples in a micro-batch.
        sequence: tokens in a sample.
        dtype: that the layers compute in.
        trainable: patterns of an HLO file's trainable parameters.
    """

    what: str
    kind: SourceKind
    batch: int | None = None
    sequence: int | None = None
    dtype: str | None = None
    trainable: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, int | str | None]:
        """What a built-in model or a factory is called with."""
        return {"batch": self.batch, "sequence": self.sequence, "dtype": self.dtype}


@dataclass(frozen=True)
class ProfileRequest:
    """`automap profile`.

    Attributes:
        source: None where only the built-in models shall be listed.
        framework: "torch" or "jax" (also None), which a factory's model is written in.
        model: name that the profile shall have.
        device: roofline of a known device or one in a file; None for the default, or where the step is measured.
        measuring: options of measuring by name, such as repeats; None where nothing is measured.
        show, instructions: whether totals and every instruction are printed.
    """

    source: Source | None
    framework: str | None = None
    model: str | None = None
    device: str | None = None
    measuring: dict[str, int] | None = None
    show: bool = False
    instructions: bool = False


@dataclass(frozen=True)
class PlaceRequest:
    """`automap place`.

    Attributes:
        overrides: fields of the placement problem that are not the graph's, by name.
        split_passes: whether the largest forward and the largest backward load count.
        planner: by name; None for the objective's default.
        split: an expert's placement.
        time_limit_s: after which a solver returns its best plan; None for its own limit.
        seed: of random draws.
        plan: a placement.json to cost, instead of making one.
        nodes, accelerator, host, link_bytes_per_s: how a model becomes a graph.
    """

    source: Source
    overrides: dict[str, int | float | str]
    split_passes: bool
    planner: str | None
    split: Path | None
    time_limit_s: float | None
    seed: int
    plan: Path | None
    nodes: int | None
    accelerator: str | None
    host: str | None
    link_bytes_per_s: float | None
