"""DeepSpeed: its JSON, or the module that `export.deepspeed` writes; what the model does itself a file does not say."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export.deepspeed import LIMITS, config
from automap_models.importing.documents import Path, Values, changed, count_at, dump, unread, value_at
from automap_models.importing.setting import Setting

BATCHES = {
    "global_batch": "train_batch_size",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "micro_batches": "gradient_accumulation_steps",
}
"""What a strategy says of batches → its key."""
ZERO, TENSOR = ("zero_optimization", "stage"), ("tensor_parallel", "autotp_size")
OFFLOAD = ("zero_optimization", "offload_optimizer", "device")
HALVES = ("fp16", "bf16", "bfloat16")


def read(values: Values, text: str, ending: str) -> Setting:
    """What a configuration says.

    Raises:
        BadInput: it contradicts itself.
    """
    inside = value_at(values, "CONFIG") if ending == ".py" else values
    if not isinstance(inside, dict):
        raise BadInput("holds no CONFIG", do="give the JSON of DeepSpeed, or the module that automap-export writes")
    counts = ((name, count_at(inside, key)) for name, key in BATCHES.items())
    fields: dict[str, Any] = {name: count for name, count in counts if count is not None}
    fields = batches(fields) | {"zero": count_at(inside, *ZERO) or 0, "precision": precision(inside)}
    if (tensor := count_at(inside, *TENSOR)) is not None:
        fields["tp"] = tensor
    left_out, notes = unread(inside, "deepspeed", text)
    if value_at(inside, *OFFLOAD) == "cpu":
        fields["offload"] = "optimizer"
        del left_out[".".join(OFFLOAD)]

    def rewrite(strategy: Strategy) -> str:
        return dump(changed(inside, words(inside, strategy)), ".json")

    return Setting(
        limits=LIMITS,
        runtime="deepspeed",
        fields=fields | (_pipeline(values) if ending == ".py" else {}),
        searched=frozenset({"dp", "micro_batch", "zero"}),
        text=dump(inside, ".json"),
        rewrite=rewrite,
        lacking=("the model",),
        unread=left_out,
        notes=tuple(notes),
    )


def batches(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of batches of which one follows from the others: all three say the ranks of data parallelism."""
    given = dict(fields)
    if given.keys() >= BATCHES.keys():
        dp, rest = divmod(given["global_batch"], given["micro_batch"] * given["micro_batches"])
        if rest:
            names = " × ".join(BATCHES[name] for name in ("micro_batch", "micro_batches"))
            what = (
                f"{given['global_batch']} is no multiple of {names}, {given['micro_batch']} × {given['micro_batches']}"
            )
            raise BadInput(what, where=BATCHES["global_batch"], do="leave one of the three out")
        given["dp"] = dp
        del given["micro_batches"]
    return given


def precision(values: Values) -> str:
    """The one that is on; bf16 where the program chooses.

    Raises:
        BadInput: both are.
    """
    on = [name for name in HALVES if value_at(values, name, "enabled") is True]
    if len(on) > 1:
        raise BadInput(f"{on[0]} and {on[1]} are enabled", do="leave one of them out")
    automatic = any(isinstance(group := values.get(name), dict) and group.get("enabled") == "auto" for name in HALVES)
    return {"bfloat16": "bf16"}.get(on[0], on[0]) if on else "bf16" if automatic else "fp32"


def words(values: Values, strategy: Strategy) -> dict[Path, Any]:
    """The values that say another strategy, of those keys that a file has."""
    new = config(strategy)
    written = {(key,): new[key] for key in BATCHES.values() if key in values and values[key] != "auto"}
    return written | {ZERO: strategy.zero}


def _pipeline(values: Values) -> dict[str, Any]:
    """What the module of an exported plan says of its stages."""
    degrees = value_at(values, "topology")
    if degrees is None:
        return {}
    parts = [last - first for first, last in pairwise(values["PARTS"])]
    parts[0] -= 1
    parts[-1] -= 1
    interval = value_at(values, "super().__init__", "activation_checkpoint_interval")
    named = {"tp": degrees["num_mp"], "pp": degrees["num_pp"], "dp": degrees["num_dp"], "layers": tuple(parts)}
    return named | {"recompute": "full" if interval else "none"}
