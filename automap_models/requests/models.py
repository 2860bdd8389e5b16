"""The models that have a name, by a word of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module

from automap_models.errors import BadInput
from automap_models.planners.base import Watch
from automap_models.requests import ModelsRequest
from automap_models.workloads import catalogue
from automap_models.workloads.catalogue import MODEL_TYPES, PUBLISHED, Workload


@dataclass(frozen=True)
class NamedModel:
    """A model that has a name.

    Attributes:
        name: what people type.
        model_type: that of its config.json; of others the kind of network.
        parameters: number of trainable parameters.
        published, active: see `Workload`.
        layers, hidden: blocks, and numbers of a token between them; None of what is no transformer.
        source: the model, and where its sizes are from.
    """

    name: str
    model_type: str
    parameters: int
    published: str
    active: str
    layers: int | None
    hidden: int | None
    source: str


def solve(request: ModelsRequest, watch: Watch) -> tuple[NamedModel, ...] | tuple[str, ...]:
    """The models whose name or family has the word, in the order of the list; or the values of model_type.

    Raises:
        BadInput: none has it.
    """
    on_the_hub = catalogue.canonical(request.filter) if "/" in request.filter else None
    word = (on_the_hub or request.filter).lower().replace("_", "-")
    matching: tuple[NamedModel, ...] | tuple[str, ...]
    if request.model_types:
        matching = tuple(kind for kind in MODEL_TYPES if word in kind.replace("_", "-"))
        do = "ask for all of them, without a word"
    else:
        models = (_named(name, workload) for name, workload in catalogue.WORKLOADS.items())
        matching = tuple(m for m in models if word in f"{m.name} {m.model_type}".replace("_", "-"))
        do = catalogue.nearest(word)
    if not matching:
        raise BadInput("is in no name and no family", where=request.filter, do=do)
    return matching


def _named(name: str, workload: Workload) -> NamedModel:
    model_type, layers, hidden = _sizes(name, workload)
    counts = workload.parameters, workload.published, workload.active
    return NamedModel(name, model_type, *counts, layers, hidden, workload.what)


def _sizes(name: str, workload: Workload) -> tuple[str, int | None, int | None]:
    """Family, layers and width, without any library."""
    if workload.architecture is None:
        document = json.loads((PUBLISHED / f"{name}.json").read_bytes())
        values = document.get("text_config", document)
        layers, hidden = (
            next((values[key] for key in keys.split() if key in values), None)
            for keys in ("num_hidden_layers n_layer num_layers n_layers encoder_layers", "hidden_size n_embd d_model")
        )
        return document["model_type"], layers or len(values.get("hybrid_override_pattern", "")), hidden
    module, _, constant = workload.architecture.partition(":")
    if module != "sizes":
        return module, None, None
    architecture = getattr(import_module("automap_models.workloads.sizes"), constant)
    model_type = type(architecture).__name__.removesuffix("Config").lower()
    return model_type, architecture.layers, architecture.width
