"""The numbers of a runtime that measured steps tell of, as simulate.calibration fits them.

A fit varies the logarithm of what takes time: of a share that goes on beside computation the logarithm of the rest, of
seconds of the host that of HOST_S more, so that a runtime may have none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from automap_models.cost.runtime import Runtime

HOST_S = 2e-5
"""Seconds for an operation that a fast host takes; fewer are as good as none."""


class Range(NamedTuple):
    """Where a number lies, and what of it a fit varies: log(offset + sign · number)."""

    low: float
    high: float
    sign: float = 1.0
    offset: float = 0.0

    def begin(self, value: float) -> float:
        """Where a fit begins: seconds of a host that takes none begin where passes may feel them."""
        return max(value, 2 * self.offset) if self.sign > 0 else value


SHARE = Range(0.02, 1.0)
HIDDEN = Range(0.0, 0.98, -1.0, 1.0)
HOST = Range(0.0, 1e-2, 1.0, HOST_S)
MIXTURE = "a step of a mixture of experts"


class Number(NamedTuple):
    """A number of a runtime.

    Attributes:
        range: see Range.
        evidence: the step that tells of it.
        key: of the runtime's file; empty where it is the number's name.
        place: in the list that the file has there.
        usual: constant of a device that it is where the file says nothing.
    """

    range: Range
    evidence: str
    key: str = ""
    place: int | None = None
    usual: str = ""


def _of_links(kind: str, dispatchers: str) -> dict[str, Number]:
    evidence = f"{MIXTURE} by {dispatchers}, with ep inside a node and over two"
    return {
        f"{kind}_inside": Number(SHARE, evidence, f"{kind}_shares", 0, "intra_efficiency"),
        f"{kind}_across": Number(SHARE, evidence, f"{kind}_shares", 1, "inter_efficiency"),
    }


NUMBERS: Mapping[str, Number] = {
    "compute": Number(Range(0.25, 4.0), "a step of one device"),
    "tensor_overlap": Number(HIDDEN, "a step with tp > 1"),
    "gradient_overlap": Number(HIDDEN, "a step with dp > 1 over two nodes and few micro-batches", usual="overlap"),
    "host_s": Number(HOST, "a step of a narrow model and small micro-batches, which waits for the host"),
    "sum_host_s": Number(HOST, "a step with tp > 1 and pp > 1 and small micro-batches"),
    "sum_across_s": Number(HOST, "a step with tp > 1 over two nodes"),
    "shard_s": Number(HOST, "a step with ZeRO-1 on hundreds of ranks"),
    "routing": Number(SHARE, MIXTURE),
    "mixture_host_s": Number(HOST, MIXTURE),
    "expert_overlap": Number(HIDDEN, f"{MIXTURE} with ep > 1 and ep_overlap"),
    "graphed": Number(HIDDEN, "a step with cuda_graph of some operations"),
    **_of_links("exchange", "alltoall or allgather"),
    **_of_links("dispatch", "deepep or hybridep"),
}
"""Number → what is known of it; most have the name of their key in the file."""


def runtime_with(runtime: Runtime, values: Mapping[str, float], usual: Mapping[str, float]) -> Runtime:
    """How a step runs with other numbers of its runtime.

    Args:
        runtime: of the step. What is off in it stays off, and what is not as usual stays as it is.
        values: of some numbers; with one of a pair also the other one.
        usual: of all numbers of the runtime.
    """
    changes: dict[str, Any] = {}
    for name in [name for name in values if not NUMBERS[name].key]:
        off = name in ("expert_overlap", "graphed") and not getattr(runtime, name)
        if not off and getattr(runtime, name) in (None, usual[name]):
            changes[name] = values[name]
    for kind in ("exchange", "dispatch"):
        if f"{kind}_inside" in values:
            changes[f"{kind}_shares"] = values[f"{kind}_inside"], values[f"{kind}_across"]
    return replace(runtime, **changes)


def with_pairs(names: Collection[str]) -> set[str]:
    """These numbers, and of those that are one of a pair both."""
    keys = {NUMBERS[name].key for name in names} - {""}
    return {*names, *(name for name, number in NUMBERS.items() if number.key in keys)}
