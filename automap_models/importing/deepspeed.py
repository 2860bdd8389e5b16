"""DeepSpeed: the module that `export.deepspeed` writes, whose CONFIG is read by the table of its JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

from automap_models.errors import BadInput
from automap_models.importing.documents import Values, parse, value_at
from automap_models.importing.setting import Setting
from automap_models.importing.table import read as read_table


def read(values: Values, where: str) -> Setting:
    """What a module says: its configuration, and its stages.

    Raises:
        BadInput: it contradicts itself, or has no configuration.
    """
    config = value_at(values, "CONFIG")
    if not isinstance(config, dict):
        raise BadInput("holds no CONFIG", do="give the JSON of DeepSpeed, or the module that automap export writes")
    setting = read_table(parse(json.dumps(config, indent=2), ".json", where), "deepspeed")
    return replace(setting, fields={**setting.fields, **_pipeline(values)})


def _pipeline(values: Values) -> dict[str, Any]:
    """What the module of an exported plan says of its stages."""
    degrees = value_at(values, "topology")
    if degrees is None:
        return {}
    parts = [last - first for first, last in pairwise(values["PARTS"])]
    parts[0] -= 1
    parts[-1] -= 1
    interval = value_at(values, "super().__init__", "activation_checkpoint_interval")
    stages = {"tp": degrees["num_mp"], "pp": degrees["num_pp"], "dp": degrees["num_dp"], "layers": tuple(parts)}
    return stages | {"recompute": "full" if interval else "none"}
