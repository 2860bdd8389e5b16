"""What the name of a training system says of a measured step, where its row leaves it open.

Rows name the system and perhaps its year, `Megatron-LM 2021`; conf/systems.yaml says what such a system did by default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from automap_models.formats.schema import read_yaml
from automap_models.resources import conf_dir

SequenceParallel = Literal["never", "with tp", "with selective recomputation"]
Remainder = Literal["ends", "last"]
"""Which stages have fewer layers where they do not divide: the first and the last one, or only the last ones."""
TODAY = 9999
"""Year of a system whose name holds none, but for those that hardly anybody runs any more."""


@dataclass(frozen=True)
class System:
    """What a training system does by default.

    Attributes:
        pattern: of its name, a regular expression.
        flash_from: the first year in which attention runs in one kernel.
        sequence_parallel: when the devices of tensor parallelism share what is between their operators.
        dropout: whether its GPT drops activations.
        remainder: which stages have fewer layers.
        vocabulary_multiple: to which the vocabulary is padded.
        chunk_layers: of a virtual stage of an interleaved schedule; None: there are two virtual stages a rank.
        undated: the year that it is of where its name holds none.
        zero: which stage of ZeRO it runs unless a row says.
        untied: whether GPT's output matrix is not the word embedding.
        async_tensor: whether sums of tensor parallelism go on beside products.
        zero_beside_pipeline: the most that ZeRO divides where there is a pipeline.
        gathers_parameters: whether ZeRO-3 gathers every parameter alone, and not a layer at once.
        gradient_bytes: precision → bytes of a parameter's gradient while it adds up, where these are not 4.
        buffer_bytes: of buffers that ZeRO reduces and gathers in.
        micro_batches_are_ranks: whether a pipeline runs as many micro-batches as it has ranks, unless it is told.
        gradient_moved_bytes: precision → bytes that are moved of a parameter's gradient in every micro-batch beyond
            what its product writes, where these are not 6 (cost.layer_times.Runtime).
        fused_gradients_from: the first year in which products of gradients add to what is there, and move none.
        casts_weights_once: whether weights are cast to 8 bits once a step.
        hopper_attention: whether flash kernels are those written for Hopper, where that is the device.
        loss_copies, tensor_loss_copies: logits in fp32 that are held at once (cost.layer_times.Runtime).
    """

    pattern: str
    flash_from: int
    sequence_parallel: SequenceParallel = "never"
    dropout: bool = True
    remainder: Remainder = "ends"
    vocabulary_multiple: int = 1
    chunk_layers: int | None = None
    undated: int = TODAY
    zero: int = 0
    untied: bool = False
    async_tensor: bool = False
    zero_beside_pipeline: int = 3
    gathers_parameters: bool = False
    gradient_bytes: Mapping[str, int] = field(default_factory=dict)
    buffer_bytes: float = 0.0
    micro_batches_are_ranks: bool = False
    gradient_moved_bytes: Mapping[str, float] = field(default_factory=dict)
    fused_gradients_from: int = TODAY + 1
    casts_weights_once: bool = False
    hopper_attention: bool = False
    loss_copies: float = 2.0
    tensor_loss_copies: float = 2.0

    def moved_bytes(self, year: int, precision: str) -> float:
        """See `gradient_moved_bytes`."""
        return 0.0 if year >= self.fused_gradients_from else self.gradient_moved_bytes.get(precision, 6.0)

    def shares_tokens(self, year: int, tp: int, selective: bool) -> bool:
        """Whether tensor parallelism shares tokens, too, in that year's system."""
        if tp == 1 or self.sequence_parallel == "never":
            return False
        return self.sequence_parallel == "with tp" or (selective and year >= 2022)


@cache
def systems() -> tuple[System, ...]:
    """Those of conf/systems.yaml; the first whose pattern is in a name counts."""
    return read_yaml(conf_dir() / "systems.yaml", tuple[System, ...], do="install automap again")


def system_named(name: str) -> System:
    """The system of that name; the last one where none is known."""
    return next(system for system in systems() if re.search(system.pattern, name.lower()))


def year_named(name: str) -> int:
    """The year in a system's name, or the one that it is of where there is none."""
    match = re.search(r"\b20\d\d\b", name)
    return int(match[0]) if match else system_named(name).undated


def split_layers(layers: int, stages: int, remainder: Remainder) -> tuple[int, ...] | None:
    """[stages] layers of each stage; None where they divide evenly.

    Embedding and output matrix take about as long as a layer each, so that systems leave one layer out at both ends
    where that makes the rest equal. Otherwise stages are filled one after the other (`last`), or as many as needed of
    those in the middle have one more (`ends`).
    """
    share, rest = divmod(layers, stages)
    if not rest:
        return None
    if stages > 1 and (layers + 2) % stages == 0:
        even = (layers + 2) // stages
        return (even - 1, *[even] * (stages - 2), even - 1)
    if remainder == "last":
        filled = [min(share + 1, max(0, layers - (share + 1) * i)) for i in range(stages)]
        return tuple(filled)
    first = (stages - rest) // 2
    return tuple(share + (first <= i < first + rest) for i in range(stages))
