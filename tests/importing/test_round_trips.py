"""Random strategies are written for every target and read again: what comes back is what was drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draw_counts import counts
from drawn_plans import Rng, draw_data_parallel, draw_strategy, strategy_source

from automap_models.core.passes import build_schedule
from automap_models.core.strategy import MODULES, Strategy
from automap_models.errors import BadInput
from automap_models.export.launch import LAUNCHERS, Job
from automap_models.export.model_blocks import Inexpressible
from automap_models.export.targets import target_by_name
from automap_models.export.torchtitan import BY_ROWS
from automap_models.export.torchtitan import LIMITS as TITAN
from automap_models.importing.reader import read_setting

TARGETS = ("megatron", "torchtitan", "deepspeed", "megatron-bridge", "accelerate", "galvatron")
BY_ROWS_ALIKE = [name for name, word in TITAN.schedules.items() if word == BY_ROWS]
MOST_DRAWN = 100
"""Strategies drawn for one that the target has words for, at most."""


def drawn(rng: Rng) -> Strategy:
    """Any strategy, with context parallelism, and with experts that several devices share."""
    strategy = draw_strategy(rng)
    shared: dict[str, Any] = {"cp": int(rng.choice([1, 1, 2]))}
    if rng.random() < 0.4:
        ep = int(rng.choice([2, 4]))
        shared |= {"ep": ep, "dispatcher": str(rng.choice(["alltoall", "allgather", "deepep", "hybridep"]))}
    if shared["cp"] > 1 and rng.random() < 0.4:
        shared["tower_tp"] = strategy.tp
    if rng.random() < 0.2:
        shared["offload"] = "optimizer"
    if rng.random() < 0.3:
        shared |= {"recompute": "+".join(name for name in MODULES if rng.random() < 0.4) or "none"}
        shared["recompute_blocks"] = None
    if strategy.stages == 1 and rng.random() < 0.3:
        shared |= {"recompute": "offload", "recompute_blocks": (1,), "layers": (2,)}
    try:
        return replace(strategy, **shared)
    except BadInput:
        return strategy


def comparable(target: str, s: Strategy) -> Strategy:
    """What a target's file tells of a strategy: nothing of what has no effect, nor of what its users say elsewhere."""
    shared = s.ep * s.expert_tensor > 1 and s.ep > 1
    fields = {
        "etp": s.expert_tensor if s.ep > 1 else None,
        "sequence_parallel": s.sequence_parallel and s.tp > 1,
        "dispatcher": s.dispatcher if shared and target.startswith("megatron") else None,
        "schedule": s.schedule if s.stages > 1 else "1f1b",
        "tower_tp": s.tower_tp if target == "megatron-bridge" else None,
    }
    if s.offload == "optimizer":  # of one device all stages of ZeRO are alike
        fields["zero"] = s.zero if s.dp * s.cp > 1 else 3
    if target == "deepspeed":
        fields |= {"sequence_parallel": False, "recompute": s.recompute if s.pp > 1 else "none"}
        fields |= {} if s.pp > 1 else {"layers": None}
    if target == "accelerate":  # without FSDP the program recomputes
        fields |= {"recompute": s.recompute if s.zero else "none", "layers": None, "sequence_parallel": False}
    if target == "galvatron":  # its command line has the precision, and which layers of a stage recompute is no matter
        counts = [
            n if kind == "full" else 0
            for kind, n in zip(s.recompute_kinds, s.recompute_blocks or s.layers or (), strict=True)
        ]
        alike = tuple(counts) in (s.layers, (0,) * len(counts))
        fields |= {"recompute": "full" if any(counts) else "none", "recompute_blocks": None if alike else tuple(counts)}
        fields |= {"precision": "bf16", "sequence_parallel": False}
    if target == "megatron-bridge":  # the recipe has the number of layers
        fields |= {} if s.stages > 1 else {"layers": None}
    if target == "torchtitan":  # its experts are whole, on devices of tp, too
        fields |= {"ep": TITAN.expert_degree(s), "etp": 1 if TITAN.expert_degree(s) > 1 else None}
        fields |= {} if s.pp > 1 else {"layers": None}
    if target == "torchtitan" and TITAN.schedules[s.schedule] == BY_ROWS and s.pp > 1:
        fields["schedule"] = next(name for name in BY_ROWS_ALIKE if rows(s, name) == rows(s, s.schedule))
    return replace(s, **fields)


def rows(s: Strategy, schedule: str) -> str:
    """The passes of a schedule; those of ZB-H1 and ZB-H2 are the same on few ranks."""
    try:
        return str(build_schedule(schedule, s.pp, s.micro_batches, s.vp))
    except BadInput:
        return schedule


@pytest.mark.parametrize("draws", counts(30, 60, 1000))
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_launches_megatron_is_read_as_it_was_drawn(launcher: str, draws: int, tmp_path: Path) -> None:
    """A script, and the scripts in a task of SkyPilot and a job of Kubernetes; what is changed stays in its place."""
    write, ending, _ = LAUNCHERS[launcher]
    rng, path, expressible = np.random.default_rng(5), tmp_path / f"job{ending}", 0
    while expressible < draws:
        strategy = drawn(rng)
        try:
            written = target_by_name("megatron").write(strategy_source(strategy), path)
        except Inexpressible:
            continue
        path.write_text(
            write(Job("job", written.program, {"NAME": "1"}, strategy.devices, 1, "h100")), encoding="utf-8"
        )
        setting = read_setting(str(path), {})
        read = setting.strategy(strategy.devices)
        assert comparable("megatron", read) == comparable("megatron", strategy), path.read_text("utf-8")
        assert setting.rewrite(read) == setting.text == path.read_text("utf-8")
        expressible += 1


def test_without_a_pipeline_deepspeed_s_configuration_says_all_of_it(tmp_path: Path) -> None:
    """Trainers take a JSON of it, and no module."""
    rng, path = np.random.default_rng(6), tmp_path / "plan.json"
    for _ in range(100):
        strategy = replace(draw_data_parallel(rng), cp=1, dp_replicate=1)
        path.write_text(target_by_name("deepspeed").write(strategy_source(strategy), path).text, encoding="utf-8")
        read = read_setting(str(path), {}).strategy(strategy.devices)
        assert comparable("deepspeed", read) == comparable("deepspeed", strategy), path.read_text("utf-8")


@pytest.mark.parametrize("draws", counts(30, 60, 1000))
@pytest.mark.parametrize("name", TARGETS)
def test_what_is_exported_is_read_as_it_was_drawn(name: str, draws: int, tmp_path: Path) -> None:
    rng, target, expressible = np.random.default_rng(4), target_by_name(name), 0
    path = tmp_path / f"plan{target.ending}"
    for _ in range(draws * MOST_DRAWN):
        strategy = drawn(rng)
        if name == "deepspeed" and strategy.pp == 1:
            strategy = replace(
                strategy, tp=1, ep=1, tower_tp=None, dispatcher=None
            )  # its users divide the operators themselves
        if name in ("deepspeed", "galvatron"):
            strategy = replace(strategy, dp_replicate=1)
        if name == "galvatron":  # has neither, so that few of the drawn ones would be left
            strategy = replace(strategy, cp=1, ep=1, etp=None, dispatcher=None)
        if name == "accelerate":
            strategy = draw_data_parallel(rng)
        try:
            files = target.write(strategy_source(strategy), path).files(path)
        except Inexpressible:
            continue
        for file, text in files.items():
            file.write_text(text, encoding="utf-8")
        setting = read_setting(str(path), {})
        batches = ("micro_batch", "global_batch") if name == "accelerate" else ()  # are its program's
        read = setting.strategy(strategy.devices, **{field: getattr(strategy, field) for field in batches})
        assert comparable(name, read) == comparable(name, strategy), path.read_text("utf-8")
        assert not setting.unread
        if name == "galvatron":
            assert setting.rewrite(read) == path.read_text("utf-8")
        expressible += 1
        if expressible == draws:
            break
    assert expressible == draws
