"""Random plans are written for every target and read back: stages, order and batches are those that were drawn."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import yaml
from draw_counts import counts
from drawn_plans import MICRO_BATCHES, SAMPLES, draw_stages, draw_strategy, strategy_source
from export_readers import deepspeed_stages, galvatron_layers, megatron_arguments, megatron_stages, titan_configs

from automap_models.core.cluster import Cluster
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export.exporter import export_plan, write_files
from automap_models.export.model_blocks import Inexpressible
from automap_models.export.target import Source, Target
from automap_models.export.targets import target_by_name

DRAWS = counts(40, 60, 1000)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(2, 4, 1e11, 1e10, 1e12, "drawn")


def written(target: Target, source: Source, folder: Path) -> Path | None:
    """The file of a plan; None where the target has no words for it."""
    path = folder / f"plan{target.ending}"
    try:
        files = target.write(source, path).files(path)
    except Inexpressible:
        return None
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    return path


def embedded(layers: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and end of each stage's layers, where the embedding and the head are layers, too."""
    counts = [*layers]
    counts[0] += 1
    counts[-1] += 1
    stops = [*accumulate(counts)]
    return list(zip([0, *stops[:-1]], stops, strict=True))


def check_megatron(path: Path, s: Strategy, layers: tuple[int, ...]) -> None:
    read = megatron_arguments(path.read_text("utf-8"))
    assert read["--tensor-model-parallel-size"] == [str(s.tp)]
    assert read["--pipeline-model-parallel-size"] == [str(s.pp)]
    assert read["--micro-batch-size"] == [str(s.micro_batch)]
    assert read["--global-batch-size"] == [str(s.global_batch)]
    assert ("--sequence-parallel" in read) == (s.sequence_parallel and s.tp > 1)
    assert read.get("--recompute-granularity", ["none"]) == [s.recompute]
    assert ("--use-distributed-optimizer" in read) == (s.zero == 1)
    assert ("--overlap-grad-reduce" in read) == (s.dp * s.cp > 1)  # as priced; not unless it is told
    assert ("--overlap-param-gather" in read) == (s.zero == 1 and s.dp * s.cp > 1)
    if len(layers) > 1:
        stages = megatron_stages(*read["--pipeline-model-parallel-layout"])
        assert stages[0][0] == "E"
        assert stages[-1][-1] == "L"
        assert "".join(stages) == f"E{'t' * sum(layers)}L"
        assert tuple(stage.count("t") for stage in stages) == layers


def check_torchtitan(path: Path, s: Strategy, layers: tuple[int, ...]) -> None:
    read = titan_configs(path.read_text("utf-8"))
    config, training = read["parallelism"], read["training"]
    degrees = (config.tensor_parallel_degree, config.pipeline_parallel_degree, config.context_parallel_degree)
    assert degrees == (s.tp, s.pp, s.cp)
    assert config.data_parallel_replicate_degree * config.data_parallel_shard_degree == s.dp
    assert (config.data_parallel_shard_degree > 1) == (s.zero > 0 and s.dp > 1)
    micro_batches = training.local_batch_size // config.pipeline_parallel_microbatch_size
    assert training.global_batch_size == s.global_batch
    if s.pp > 1:
        assert micro_batches == s.micro_batches
    assert read["activation_checkpoint"] == {"none": None, "selective": "SelectiveAC", "full": "FullAC"}[s.recompute]
    if len(layers) > 1:
        modules = config.module_fqns_per_model_part
        names = ["tok_embeddings", *(f"layers.{i}" for i in range(sum(layers))), "norm", "lm_head"]
        assert [name for stage in modules for name in stage] == names
        assert tuple(sum(name.startswith("layers.") for name in stage) for stage in modules) == layers


def check_deepspeed(path: Path, s: Strategy, layers: tuple[int, ...]) -> None:
    config, bounds, interval = deepspeed_stages(path.read_text("utf-8"))
    assert config["train_batch_size"] == s.global_batch
    assert config["train_micro_batch_size_per_gpu"] == s.micro_batch
    assert config["gradient_accumulation_steps"] == s.micro_batches
    assert config["zero_optimization"] == {"stage": s.zero}
    if s.pp > 1:
        assert interval == (s.recompute == "full")
        assert bounds == [stage for stage in embedded(layers) for _ in range(s.tp * s.dp)]


def check_megatron_bridge(path: Path, s: Strategy, layers: tuple[int, ...]) -> None:
    read = yaml.safe_load(path.read_text("utf-8"))
    model = read["model"]
    assert (model["tensor_model_parallel_size"], model["pipeline_model_parallel_size"]) == (s.tp, s.pp)
    assert model["virtual_pipeline_model_parallel_size"] == (s.vp if s.vp > 1 else None)
    assert read["train"] == {"micro_batch_size": s.micro_batch, "global_batch_size": s.global_batch}
    assert model["sequence_parallel"] == (s.sequence_parallel and s.tp > 1)
    assert (model["recompute_granularity"] or "none") == s.recompute
    assert read["ddp"]["use_distributed_optimizer"] == read["optimizer"]["use_distributed_optimizer"] == (s.zero == 1)
    assert read["mixed_precision"].startswith("bf16_with" if s.precision in ("fp8", "nvfp4") else s.precision)
    if len(layers) > 1:
        stages = megatron_stages(model["pipeline_model_parallel_layout"])
        assert tuple(stage.count("t") for stage in stages) == layers


def check_galvatron(path: Path, s: Strategy, layers: tuple[int, ...]) -> None:
    read = galvatron_layers(path)
    assert (read["pp_deg"], tuple(read["pp_division"])) == (s.pp, layers)
    assert read["tp_sizes_enc"] == [s.tp] * sum(layers)
    assert read["checkpoint"] == [int(s.recompute == "full")] * sum(layers)
    assert read["dp_types_enc"] == [int(s.zero == 3)] * sum(layers)
    assert read["embed_sdp"] == read["vocab_sdp"] == int(s.zero == 3)  # Hetu-Galvatron 2.4.0 reads one, 2.4.1 the other
    assert (read["global_bsz"], read["chunks"]) == (s.global_batch, s.micro_batches)
    assert read["pipeline_type"] == {"1f1b": "pipedream_flush", "gpipe": "gpipe"}[s.schedule]


CHECKS = {
    "megatron": check_megatron,
    "megatron-bridge": check_megatron_bridge,
    "torchtitan": check_torchtitan,
    "deepspeed": check_deepspeed,
    "galvatron": check_galvatron,
}
MOST_DRAWN = 100
"""Strategies drawn for one that the target has words for, at most."""


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("name", CHECKS)
def test_strategies_come_back_as_they_were_drawn(name: str, draws: int, tmp_path: Path) -> None:
    rng, target, expressible = np.random.default_rng(1), target_by_name(name), 0
    for _ in range(draws * MOST_DRAWN):
        strategy = draw_strategy(rng)
        path = written(target, strategy_source(strategy), tmp_path)
        if path is not None and strategy.layers is not None:
            expressible += 1
            CHECKS[name](path, strategy, strategy.layers)
        if expressible == draws:
            break
    assert expressible == draws


@pytest.mark.parametrize("name", CHECKS)
def test_a_snapped_strategy_keeps_devices_batch_and_blocks_and_is_read_back(name: str, tmp_path: Path) -> None:
    """Whatever is drawn; some are refused, whose batch does not divide or that have fewer blocks than stages."""
    rng, target, refused = np.random.default_rng(8), target_by_name(name), 0
    path = tmp_path / f"plan{target.ending}"
    for _ in range(60):
        drawn = draw_strategy(rng)
        try:
            exported = export_plan(strategy_source(drawn), target, path, snap=True)
        except BadInput:
            refused += 1
            continue
        moved = exported.source.plan.strategy
        assert isinstance(moved, Strategy)
        assert (moved.devices, moved.global_batch) == (drawn.devices, drawn.global_batch)
        assert moved.layers is not None and drawn.layers is not None
        assert sum(moved.layers) == sum(drawn.layers)
        assert (exported.snapped is None) == (moved == drawn)
        write_files(path, exported.written)
        CHECKS[name](path, moved, moved.layers)
    assert refused <= 15


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("name", CHECKS)
def test_stages_come_back_as_they_were_drawn(name: str, draws: int, cluster: Cluster, tmp_path: Path) -> None:
    """Those whose schedule the target runs; galvatron has no stages without a block either."""
    rng, target, expressible = np.random.default_rng(2), target_by_name(name), 0
    for _ in range(draws):
        drawn = draw_stages(rng, cluster, tmp_path)
        path = written(target, drawn.source, tmp_path)
        problem = drawn.source.require_result(name).problem
        if path is not None and problem.schedule is not None:
            expressible += 1
            strategy = Strategy(
                micro_batch=SAMPLES // drawn.replicas,
                global_batch=SAMPLES * MICRO_BATCHES,
                pp=len(drawn.layers),
                dp=drawn.replicas,
                schedule=problem.schedule,
                layers=drawn.layers,
            )
            CHECKS[name](path, strategy, drawn.layers)
    assert expressible > draws / 5


@pytest.mark.parametrize("draws", DRAWS)
def test_torch_loads_the_orders_of_all_schedules(draws: int, tmp_path: Path) -> None:
    """By torch's own reader of rows: order of passes, and the rank of every virtual stage."""
    torch_csv = pytest.importorskip("automap_models.export.torch_csv")
    pytest.importorskip("torch")
    rng, target = np.random.default_rng(3), target_by_name("torch-csv")
    for _ in range(draws):
        source = strategy_source(draw_strategy(rng))
        path = written(target, source, tmp_path)
        assert path is not None
        schedule = source.plan.build_schedule()
        orders, ranks = torch_csv.load(path, schedule)
        assert orders == [[f"{a.stage}{a.kind}{a.micro_batch}" for a in order] for order in schedule.orders]
        looped = {stage: stage % schedule.ranks for stage in range(schedule.stages)}
        v = {stage: min(stage, 2 * schedule.ranks - 1 - stage) for stage in range(schedule.stages)}
        assert ranks == (v if schedule.placement == "v" else looped)
