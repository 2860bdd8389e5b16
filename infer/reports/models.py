"""The models that have a name, as people and programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from automap_models.requests import ModelsRequest
from automap_models.requests.models import NamedModel

from ..runner import Report
from .text import Column, Table, print_parts


def report(request: ModelsRequest, answer: Sequence[NamedModel] | Sequence[str]) -> Report:
    """A row a model, or a line a family."""
    if request.model_types:
        document = {"schema": 1, "kind": "families", "families": list(answer)}
        return Report(lambda: print("\n".join(map(str, answer))), lambda: document)
    models = [model for model in answer if isinstance(model, NamedModel)]
    rows = {"schema": 1, "kind": "models", "models": [asdict(model) for model in models]}
    return Report(lambda: print_parts([models_table(models)]), lambda: rows)


def models_table(models: Sequence[NamedModel]) -> Table:
    """Names, sizes and sources; a terminal of fewer columns gets no sources."""
    sizes = (
        Column("model", [model.name for model in models], text=True),
        Column("family", [model.model_type for model in models], text=True),
        Column("parameters", [_rounded(model.parameters) for model in models]),
        Column("active", [model.active for model in models]),
        Column("layers", [str(model.layers or "") for model in models]),
        Column("hidden", [str(model.hidden or "") for model in models]),
    )
    return Table((*sizes, Column("published in", [model.source for model in models], text=True)), sizes)


def _rounded(parameters: int) -> str:
    return f"{parameters / 1e9:,.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:,.1f} M"
