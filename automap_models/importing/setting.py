"""What a file of another program says of a training step: the mirror of what `export` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from automap_models.core.framework import Limits
from automap_models.core.strategy import Strategy
from automap_models.core.tuning import FULL, Training
from automap_models.core.units import LARGEST
from automap_models.cost.measured_step import MeasuredModel
from automap_models.errors import BadInput

Rewrite = Callable[[Strategy], str]
"""Strategy → the text of the file as it says that."""
COUNTS = ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "dp_replicate", "micro_batch", "micro_batches", "global_batch")
"""Fields that count something."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a file, or a command line, says.

    Attributes:
        limits: what the program that reads it can express; its name.
        runtime: the shipped runtime by whose numbers steps are.
        fields: of the strategy, by name; `micro_batches` where the file has them in place of the global batch.
        searched: fields that a better setting may change: those that the file has words for.
        text: that the changed lines are of.
        rewrite: says another strategy in the file's own words.
        split: layers, stages → [stages] layers of each as the program divides them unless it is told; None: equally.
        training: what of the model is trained, and by which optimizer.
        model: that its sizes make; None where it says none, or too little.
        name: of a built-in model that it names; empty where it names none.
        lacking: what it does not say of the model, in words.
        sequence: tokens of a sample; None where it does not say.
        nodes, per_node: of devices; None where it does not say.
        refusals: what the program refuses at start-up beside its limits, in sentences.
        unread: setting that may matter for time or memory and is not known → where it stands.
        notes: on what is read otherwise than it is written, in sentences.
        documents: `apart` or `together` where several share a sample, `one` where not; empty where nothing says it.

    Raises:
        BadInput: a field that counts something is below 1 or above LARGEST.
    """

    limits: Limits
    runtime: str
    fields: Mapping[str, Any]
    searched: frozenset[str]
    text: str
    rewrite: Rewrite
    split: Callable[[int, int], tuple[int, ...]] | None = None
    training: Training = FULL
    model: MeasuredModel | None = None
    name: str = ""
    lacking: tuple[str, ...] = ()
    sequence: int | None = None
    nodes: int | None = None
    per_node: int | None = None
    refusals: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    documents: str = ""

    def __post_init__(self) -> None:
        for name in COUNTS:
            _require_count(self.fields.get(name, 1), name)

    def strategy(self, devices: int, **given: Any) -> Strategy:
        """The strategy on so many devices; `given` are fields that the file does not say.

        Raises:
            BadInput: it contradicts itself or the devices, or does not say how many samples a step has.
        """
        fields = {**self.fields, **{name: value for name, value in given.items() if value is not None}}
        shared = fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1)
        if devices % (shared * fields.get("dp", 1)) or devices < shared:
            what = f"tp {fields.get('tp', 1)} × cp {fields.get('cp', 1)} × pp {fields.get('pp', 1)}"
            dp = f" × dp {fields['dp']}" if "dp" in fields else ""
            raise BadInput(f"{what}{dp} do not divide the {devices} devices", do="let their product be the devices")
        fields.setdefault("dp", devices // shared)
        if "micro_batch" not in fields and {"global_batch", "micro_batches"} <= fields.keys():
            fields["micro_batch"], rest = divmod(fields["global_batch"], fields["dp"] * fields["micro_batches"])
            if rest or not fields["micro_batch"]:
                what = (
                    f"{fields['global_batch']} samples are no multiple of dp {fields['dp']} × {fields['micro_batches']}"
                )
                raise BadInput(f"{what} micro-batches", do="let them be one")
        if "micro_batch" not in fields:
            raise BadInput("is not said", where="`micro_batch`", do="give the samples that a device takes at once")
        micro_batches = fields.pop("micro_batches", 1)
        fields.setdefault("global_batch", fields["dp"] * fields["micro_batch"] * micro_batches)
        _require_count(fields["global_batch"], "global_batch")
        if fields.get("ep", 1) == 1 and fields.get("etp") == fields.get("tp", 1):
            del fields["etp"]  # as it is where nobody says; files of models without experts say it, too
        strategy = Strategy(**fields)
        if strategy.devices != devices:
            what = f"tp {strategy.tp} × cp {strategy.cp} × pp {strategy.pp} × dp {strategy.dp} are {strategy.devices}"
            raise BadInput(f"{what} devices, and there are {devices}", do="let their product be the devices")
        return strategy


def _require_count(count: int, name: str) -> None:
    if not 1 <= count <= LARGEST:
        raise BadInput(f"is {count}", where=f"`{name}`", do=f"give 1 to {LARGEST:,}")


def contradiction(first: str, second: str, one: str, other: str) -> BadInput:
    """Two settings of one file that say different things, each with its place."""
    return BadInput(f"`{first}` contradicts `{second}`", where=f"{one} and {other}", do="leave one of them out")
