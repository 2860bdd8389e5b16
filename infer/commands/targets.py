"""`--for TARGET`: plans that automap-export can write for a framework, from the start.

Nothing here imports numpy: help is to be fast."""

from __future__ import annotations

import argparse

from automap_models.errors import BadInput
from automap_models.planners.options import COMPETING

PLANNED_FOR = ("torch-split-spec", "torchtitan", "megatron", "deepspeed", "galvatron")
"""Targets that restrict where a model is cut or how devices are shared out."""
STRATEGIES_FOR = ("torchtitan", "megatron", "deepspeed", "galvatron")
"""Those that strategies can be written for; a test holds them and the targets together."""
BLOCKS = "blocks"  # core.constraints knows it, too; a test holds them together


TARGET = f"""
    --for TARGET  only plans that automap-export can write for it ({", ".join(PLANNED_FOR)}): equal stages, cut where
        blocks end, under a schedule that it runs; of strategies, with the ZeRO and recomputation that it has
"""
"""Option: within what a framework can express."""


def narrow(namespace: argparse.Namespace) -> None:
    """Ask of plans what the target asks of them; `--equal-replicas`, `--cut-at` and `--forbid` are set accordingly.

    Stages that divide operators, each by its own number of devices, are left out where the target has one number."""
    name, namespace.target = namespace.target, None
    if name is None:
        return
    from automap_models.core.framework import StageLimits
    from automap_models.export.targets import target_by_name

    target = target_by_name(name)
    limits = target.limits
    assert limits is not None
    if namespace.schedule is not None and namespace.schedule not in limits.schedules:
        do = f"choose from {', '.join(limits.schedules)}"
        raise BadInput(f"{name} does not run schedule {namespace.schedule}", where="`schedule`", do=do)
    namespace.target = StageLimits(
        tuple(schedule for schedule in COMPETING if schedule in limits.schedules),
        limits.filled,
        limits.ties,
        target.takes_strategies,
        limits.power_of_two,
    )
    namespace.equal_replicas = namespace.equal_replicas or limits.equal_replicas
    if limits.cuts != "anywhere":
        if namespace.cut_at not in (None, BLOCKS):
            raise BadInput(f"{name} cuts where blocks end", where="`cut_at`", do="leave it out")
        namespace.cut_at = BLOCKS
    forbidden = getattr(namespace, "forbid", None)
    if limits.sharding != "by stage" and forbidden is not None and "operator" not in forbidden:
        namespace.forbid = [*forbidden, "operator"]
