"""Strategies as JSON: kind "strategy", of equal stages.

That is what `automap plan --tp 8 … --json` prints: the strategy and the layers of its virtual stages are read back, the
price beside it is for people and other programs.
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import Meta

from automap_models.core.estimate import Estimate
from automap_models.core.framework import ModelFacts
from automap_models.core.plan import Plan
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.core.tuning import FULL, Training
from automap_models.errors import BadInput
from automap_models.formats.plan import PlanDocument
from automap_models.formats.schema import Index, Text, convert, located, wrong

_Record = TypeVar("_Record", Strategy, TransformerShape, Training)


class StrategyDocument(PlanDocument, kw_only=True, forbid_unknown_fields=False):
    """What of the file is read: the price beside it is ignored."""

    remedy: ClassVar[str] = "price it again with automap plan"

    kind: Literal["strategy"]
    model: Text
    strategy: dict[str, Any]
    stage_layers: Annotated[list[Index], Meta(min_length=1)]
    shape: dict[str, Any] | None = None
    tied: bool = False
    own_code: bool = False
    recurrent: bool = False
    encodes: bool = False
    training: dict[str, Any] | None = None
    runtime: str | None = None
    cluster: str = ""

    def plan(self, where: str) -> Plan:
        """See PlanDocument."""
        written = dict(self.strategy)
        micro_batches = written.pop("micro_batches", None)
        with located(None, self.remedy):
            strategy = replace(_record(written, Strategy, "$.strategy"), layers=tuple(self.stage_layers))
        if micro_batches != strategy.micro_batches:
            raise wrong("$.strategy.micro_batches", micro_batches, f"{strategy.micro_batches} as its batches make it")
        shape = None if self.shape is None else _record(self.shape, TransformerShape, "$.shape")
        with located(None, self.remedy):
            training = FULL if self.training is None else _record(self.training, Training, "$.training")
        facts = ModelFacts(shape, self.tied, self.own_code, self.recurrent, training, self.encodes)
        plan = Plan(where, self.model, (), strategy.micro_batches, strategy=strategy, facts=facts)
        return replace(plan, runtime=self.runtime or None, cluster_name=self.cluster)


def estimate_document(estimate: Estimate) -> dict[str, Any]:
    """The price as plain JSON types."""
    return {
        "schema": 1,
        "kind": "strategy",
        "model": estimate.model,
        "shape": None if estimate.facts.shape is None else asdict(estimate.facts.shape),
        **{name: getattr(estimate.facts, name) for name in ("tied", "own_code", "recurrent", "encodes")},
        "training": None if estimate.facts.training.is_full else asdict(estimate.facts.training),
        "cluster": estimate.cluster,
        "device": estimate.device,
        "runtime": estimate.runtime or None,
        "imbalance": estimate.imbalance,
        "strategy": {**asdict(estimate.strategy), "micro_batches": estimate.strategy.micro_batches},
        "stage_layers": list(estimate.stage_layers),
        "modules": [module._asdict() for module in estimate.modules],
        **{key: getattr(estimate, key) for key in ("step_s", "tokens_per_s_per_device", "mfu", "bubble_rate")},
        "parts": {f"{name}_s": value for name, value in estimate.parts._asdict().items()},
        "parts_rank": estimate.parts_rank,
        "memory": [
            {**parts._asdict(), "total": parts.total, "memory_bytes": nbytes}
            for parts, nbytes in zip(estimate.memory, estimate.memory_bytes, strict=True)
        ],
        "peak_memory_bytes": estimate.peak_memory,
        "memory_upper_bytes": estimate.upper_bytes(estimate.peak_memory),
        "host_bytes": estimate.host[0],
        "fits": estimate.fits,
        "verdict": estimate.verdict,
    }


def _record(written: dict[str, Any], kind: type[_Record], where: str) -> _Record:
    """The fields of a record, each of its own type; none unknown."""
    if unknown := written.keys() - {field.name for field in fields(kind)}:
        raise BadInput(f"has the unknown key {min(unknown)!r}", where=where)
    return convert(written, kind, where=where, do=StrategyDocument.remedy)
