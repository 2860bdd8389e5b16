"""Hugging Face transformers: `base_model_tp_plan` and `base_model_pp_plan` of a model's config, as JSON.

A module whose weight [out, in] is partitioned by its rows (dim 0) is "colwise", by its columns (dim 1) "rowwise": the
words are those of the transposed matrix. What a colwise module makes stays partitioned, and a rowwise one takes it so:

    q, k, v   colwise  ─►  attention of the device's own heads  ─►  o   rowwise  ─►  summed

Where a layer's attention or perceptron is partitioned in part only, its modules gather and split instead
("colwise_gather_output", "rowwise_split_input"), which is right for every plan. A word embedding is
"embedding_rowwise" where its words are partitioned, else "embedding_colwise".

Checked against transformers 5.23 (distributed/tensor_parallel.py, distributed/mixin.py), whose own pipeline gives every
rank equally many layers and the last one the rest.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from automap_models.core.framework import Limits
from automap_models.core.profiled_model import UNSHARDED
from automap_models.core.sharding import ShardingPlan
from automap_models.core.sharding_classes import REPLICATED
from automap_models.core.units import counted
from automap_models.export.model_blocks import Inexpressible, block_plan
from automap_models.export.target import Source, Target, Written, parser_module, require_same
from automap_models.formats.atomic import json_text

NAME = "hf"
DISTRIBUTION = "transformers"
LIMITS = Limits(
    name=NAME,
    schedules={"1f1b": "as transformers runs it", "gpipe": "as transformers runs it"},
    one_series=True,
)
PIPELINE = {
    "embed_tokens": [["input_ids"], ["inputs_embeds"]],
    "layers": [["hidden_states", "attention_mask"], ["hidden_states"]],
    "norm": [["hidden_states"], ["hidden_states"]],
}
"""Child of a decoder → the names of its inputs and outputs, as configs of transformers have them."""
_WEIGHT = ".weight"
_LAYER = re.compile(r"^(.*?)(\w+)\.\d+\.")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_EMBEDDING = re.compile(r"embed|wte|wpe")


def write(source: Source, path: Path) -> Written:
    """The document."""
    document, notes = _document(source)
    return Written(json_text(document) + "\n", notes=tuple(notes))


def _document(source: Source) -> tuple[dict[str, Any], list[str]]:
    """The plans, of the base model and of what is around it, and sentences for people."""
    notes: list[str] = []
    sharding = source.plan.sharding
    sizes, weights, pipeline = _staged(source, notes) if sharding is None else _sharding(sharding)
    prefix = _prefix(weights)
    styles = tp_styles(weights, source.plan.where)
    base = {name.removeprefix(prefix): style for name, style in styles.items() if name.startswith(prefix)}
    around = {name: style for name, style in styles.items() if not name.startswith(prefix)}
    document = {**sizes, "base_model_tp_plan": base, "tp_plan": around}
    return {**document, "base_model_pp_plan": pipeline}, notes


Weights = Mapping[str, tuple[tuple[int, ...] | None, int]]
"""Name of a weight → its shape, None where it is unknown, and the dimension that is partitioned."""


def _sharding(plan: ShardingPlan) -> tuple[dict[str, int], Weights, None]:
    """Of a sharding plan: sizes of both kinds of parallelism, and the weights."""
    sizes = {"operator": 1, "data": 1} | {axis.kind: int(axis.size) for axis in plan.mesh}
    along = next((a for a, axis in enumerate(plan.mesh) if axis.kind == "operator"), None)
    dims = {} if along is None else plan.by_variable(along)
    weights = {variable.name: (variable.shape, dim) for variable, dim in dims.items() if variable.kind == "parameter"}
    return {"tp_size": sizes["operator"], "dp_size": sizes["data"], "pp_size": 1}, weights, None


def _staged(source: Source, notes: list[str]) -> tuple[dict[str, int], Weights, Any]:
    """Of a staged plan likewise, and the plan of its pipeline where it has several stages."""
    source.require_result(NAME)
    plan, where = source.plan, source.plan.where
    used = dict.fromkeys(stage.sharding or UNSHARDED for stage in plan.stages)
    if len(used) > 1:
        what = f"its stages have the shardings {' and '.join(used)}, and transformers one plan for all layers"
        raise Inexpressible(what, where=where, do="export it to jax, which has one for each stage")
    first, *others = plan.stages
    dims = plan.sharded_dims(first)
    weights = {name: (None, dim) for name, dim in dims.items() if not name.startswith("state.")}
    sizes = {"tp_size": first.tensor, "dp_size": first.replicas, "pp_size": len(plan.stages)}
    if not others:
        return sizes, weights, None
    layers = block_plan(source, NAME, LIMITS).layers
    even = even_layers(sum(layers), len(layers))
    if layers != even:
        what = f"its stages hold {', '.join(map(str, layers))} layers, those of transformers"
        do = f"plan {counted(len(even), 'stage')} so, or export it to torchtitan"
        raise Inexpressible(f"{what} {', '.join(map(str, even))}", where=where, do=do)
    notes.append("transformers runs the stages in its own order, whatever schedule the plan has")
    return sizes, weights, PIPELINE


def even_layers(layers: int, stages: int) -> tuple[int, ...]:
    """[S] layers of each stage as transformers has them: equally many, the last one has the rest."""
    share = layers // stages
    return (*(share,) * (stages - 1), layers - share * (stages - 1))


def tp_styles(weights: Weights, where: str) -> dict[str, str]:
    """Module, with a star for every layer's number → its style; those that are replicated are left out.

    Raises:
        Inexpressible: parameters that are no modules' weights, layers that are partitioned in different ways, or a
            dimension that no style partitions.
    """
    modules: dict[str, dict[str, int]] = defaultdict(dict)
    for name, (shape, dim) in weights.items():
        if not name.endswith(_WEIGHT):
            if dim != REPLICATED and not name.endswith(".bias"):
                what = f"{name} is no weight of a torch module, and transformers partitions modules"
                raise Inexpressible(what, where=where, do="export it to jax")
            continue
        if dim > 1 or (dim == 0 and shape is not None and len(shape) < 2):
            what = f"dimension {dim} of {name} is partitioned, for which transformers has no style"
            raise Inexpressible(what, where=where, do="export it to jax")
        module = name.removesuffix(_WEIGHT)
        modules[_NUMBER.sub("*", module)][module] = dim
    dims: dict[str, int] = {}
    for pattern, alike in modules.items():
        if len(set(alike.values())) > 1:
            what = f"{pattern} is partitioned in different ways in different layers"
            raise Inexpressible(what, where=where, do="export it to jax")
        dims[pattern] = next(iter(alike.values()))
    return {pattern: _style(pattern, dims) for pattern, dim in dims.items() if dim != REPLICATED}


def _style(pattern: str, dims: Mapping[str, int]) -> str:
    """The style of a partitioned module beside those of the same attention or perceptron."""
    dim, (parent, _, leaf) = dims[pattern], pattern.rpartition(".")
    if _EMBEDDING.search(leaf):
        return "embedding_rowwise" if dim == 0 else "embedding_colwise"
    siblings = [sharded_dim for name, sharded_dim in dims.items() if name.rpartition(".")[0] == parent]
    is_pattern = "*" in pattern and {*siblings} == {0, 1}
    if dim == 0:
        return "colwise" if is_pattern else "colwise_gather_output"
    return "rowwise" if is_pattern else "rowwise_split_input"


def _prefix(weights: Weights) -> str:
    """Of names in the base model, such as `model.` of `model.layers.0.mlp.up_proj`; empty where it is the model."""
    for name in weights:
        if match := _LAYER.match(name):
            return match[1]
    return ""


def check(source: Source, path: Path) -> None:
    """Transformers knows every style in the file, and its pipeline would make the plan's stages."""
    parallel = parser_module("transformers.distributed.parallel_utils", DISTRIBUTION)
    parser_module("transformers.distributed.tensor_parallel", DISTRIBUTION)
    read = json.loads(path.read_text("utf-8"))
    require_same("plan", read, json.loads(json_text(_document(source)[0])))
    styles = {*read["base_model_tp_plan"].values(), *read["tp_plan"].values()}
    require_same("styles that transformers does not know", styles - {*parallel.ALL_PARALLEL_STYLES}, set())


TARGET = Target(NAME, DISTRIBUTION, ".json", ("sharding", "stages"), write, check, LIMITS)
