"""Towers of images with a division of their own: searches against all strategies, and prices against counts by hand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from draw_counts import parts
from strategy_problems import DEVICE, assert_least, estimated
from whole_space import estimates, whole_space_problem, with_memory

from automap_models.core.cluster import Cluster
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export import megatron_bridge
from automap_models.export.model_blocks import BlockPlan
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.config_json import decode_config
from automap_models.workloads.registry import configured

TEXT = {
    **{"vocab_size": 512, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16},
    **{"intermediate_size": 128, "max_position_embeddings": 4096, "tie_word_embeddings": False},
}
TOWER = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 21,
    "hidden_size": 64,
    "intermediate_size": 96,
    "out_hidden_size": 64,
}
FAST, ALL, PARTS = 12, 300, 10


@cache
def work_of(layers: int, images: int, read: int = 0, text: tuple[tuple[str, Any], ...] = ()) -> ModelWork:
    """Of Qwen2.5-VL's family, or of Qwen3-VL's, whose first blocks read the tower, in small.

    Args:
        read: how many read it.
        text: sizes that differ.
    """
    values = {
        "model_type": "qwen3_vl" if read else "qwen2_5_vl",
        "text_config": {**TEXT, **dict(text), "num_hidden_layers": layers},
        "vision_config": {**TOWER, "deepstack_visual_indexes": [*range(read)], "fullatt_block_indexes": [1]},
    }
    values["vision_config"] |= {"num_position_embeddings": 64} if read else {"window_size": 84}
    sequence = max(1, images) * 1024
    model = decode_config(json.dumps(values).encode(), "m", where="config.json", images=images, sequence=sequence)
    return configured(model, dtype="bfloat16").work()


def _problem(seed: int) -> StrategyProblem:
    """One of the whole space, with images; the memory is as full as there, by the same strategies."""
    problem, draw = whole_space_problem(seed), np.random.default_rng([seed, 16])
    read = int(draw.integers(0, 3))
    work = work_of(max(read, problem.work.shape.layers), int(draw.choice([1, 2, 3])), read)
    fixed = {name: value for name, value in problem.fixed.items() if name not in ("ep", "layers")}
    return replace(problem, work=work, fixed=fixed, cluster=with_memory(problem.cluster, 1e12, 1.0))


def _agrees(seed: int) -> Counter[str]:
    problem = _problem(seed)
    priced = list(estimates(problem))
    sizes = sorted(estimate.fullest[0] for _, estimate in priced)
    if not sizes:
        return Counter()
    room = sizes[len(sizes) // 2] * (1 + 1e-9)
    problem = replace(problem, cluster=with_memory(problem.cluster, room, 1.0), rank_reserve_bytes={})
    fitting = [(estimate.step_s, i) for i, (_, estimate) in enumerate(priced) if estimate.fullest[0] <= room]
    least_s, number = min(fitting)
    best = priced[number][0]
    assert_least(problem, least_s, f"problem {seed}: {best}")
    of_tower = {"images apart": best.image_groups > 1, "alone": (best.layers or (1,))[0] == 0 and best.pp > 1}
    return Counter([name for name, holds in {**of_tower, "priced": True}.items() if holds])


def test_plans_and_bounds_are_those_of_all_strategies_of_models_with_images() -> None:
    seen = sum((_agrees(seed) for seed in range(FAST)), Counter[str]())
    assert seen["images apart"]


@pytest.mark.parametrize("part", parts(1, of=PARTS))
def test_plans_and_bounds_are_those_of_all_strategies_of_many_problems_with_images(part: int) -> None:
    seen = sum((_agrees(seed) for seed in range(FAST + part, FAST + ALL, PARTS)), Counter[str]())
    assert seen["images apart"]


NODE = Cluster(1, 8, 1e11, 1e10, 80e9)
PLAIN = Strategy(micro_batch=1, global_batch=8, dp=8)
ALL_SHARE = Strategy(micro_batch=2, global_batch=2, tp=2, cp=4)


def tower_s(strategy: Strategy, images: int, read: int = 0) -> FloatArray:
    """[12] seconds that the tower takes, as of LayerCosts: kernels, and forward and backward what tp and cp send."""
    layers = StrategyPricing(work_of(2, images, read), NODE, DEVICE).layers[0]
    (kernels,) = layers.timed([strategy], [layers.groups(strategy)])
    copies = np.array([part.copies for part in layers.work.tower])
    return np.asarray(copies @ kernels.times[len(layers.work.layers) :, 0])


def test_devices_that_encode_one_image_each_take_as_long_as_one_device_for_one() -> None:
    """Micro-batches of 2 samples with 4 images each, among 8 devices, and with 3, which is two for the fullest."""
    alone, two = (tower_s(PLAIN, images)[:4] for images in (1, 2))
    assert tower_s(replace(ALL_SHARE, tower_tp=1), 4)[:4] == pytest.approx(alone)
    assert tower_s(replace(ALL_SHARE, micro_batch=3, global_batch=3, tower_tp=1), 4)[:4] == pytest.approx(two)


def test_without_a_division_every_device_of_cp_encodes_all_images() -> None:
    sequences = replace(PLAIN, dp=4, cp=2)
    assert tower_s(sequences, 4)[:4] == pytest.approx(tower_s(PLAIN, 4)[:4])
    assert tower_s(replace(sequences, tower_tp=1), 4)[:4] == pytest.approx(tower_s(PLAIN, 2)[:4])


@pytest.mark.parametrize("tower_tp", [None, 1, 2])
def test_towers_of_several_strategies_at_once_take_what_each_takes_alone(tower_tp: int | None) -> None:
    sizes = ((1, 4), (2, 4), (3, 2), (3, 1))
    strategies = [
        Strategy(micro_batch=size, global_batch=size * 4 // cp, tp=2, cp=cp, dp=4 // cp, tower_tp=tower_tp)
        for size, cp in sizes
    ]
    together, alone = (StrategyPricing(work_of(2, 4), NODE, DEVICE) for _ in range(2))
    together.layers[0].expect(strategies)
    for strategy in strategies:
        assert together.price(strategy)[0] == pytest.approx(alone.price(strategy)[0], rel=1e-12)


@pytest.mark.parametrize("read", [0, 2])
def test_embeddings_of_all_images_are_gathered(read: int) -> None:
    """(1008 / 21)² patches of an image, 4 a token of 64 numbers in 16 bits, for the first block and each that reads."""
    strategy = replace(PLAIN, dp=4, cp=2, tower_tp=1)
    group = StrategyPricing(work_of(2, 4, read), NODE, DEVICE).layers[0].groups(strategy).context
    gathered_s = group.gather_s(4 * (48 * 48 // 4) * 64 * 2 * (1 + read))
    assert tower_s(strategy, 4, read)[6:8] == pytest.approx([gathered_s, gathered_s])
    assert not tower_s(replace(strategy, tower_tp=None), 4, read)[4:].any()


@pytest.mark.parametrize(
    ("strategy", "read", "reason"),
    [
        (replace(PLAIN, dp=2, pp=4, layers=(1, 1, 0, 0)), 2, "the first stage has 1 of the 2 layers"),
        (replace(PLAIN, dp=2, tp=4), 0, "4 does not divide the 2 heads of the tower"),
    ],
)
def test_what_a_tower_does_not_allow_is_refused(strategy: Strategy, read: int, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        strategy.require_model(work_of(2, 1, read).shape)


def test_a_division_of_no_tower_or_by_no_divisor_is_refused() -> None:
    with pytest.raises(BadInput, match="3 devices share no tower of images where tp is 2"):
        replace(PLAIN, dp=4, tp=2, tower_tp=3)
    with pytest.raises(BadInput, match="has no tower of images"):
        replace(PLAIN, tower_tp=1).require_model(work_of(2, 0).shape)
    replace(PLAIN, dp=2, tp=4, tower_tp=1).require_model(work_of(2, 1).shape)


def test_a_first_stage_without_blocks_is_the_towers_own_devices() -> None:
    strategy = Strategy(micro_batch=2, global_batch=4, tp=2, pp=2, dp=2, tower_tp=1, layers=(0, 2))
    vision, language = estimated(work_of(2, 2), strategy, NODE, DEVICE).modules
    assert vision == ("vision", 0, 4, 1, 1, 1, 4)
    assert language == ("language", 4, 4, 2, 1, 1, 2)
    shared = estimated(work_of(2, 2), replace(strategy, layers=(1, 1), tower_tp=None), NODE, DEVICE).modules
    assert shared == (("vision", 0, 4, 2, 1, 1, 2), ("language", 0, 8, 2, 1, 2, 2))


def test_megatron_bridge_divides_images_among_cp_and_towers_without_a_pipeline() -> None:
    facts = work_of(2, 2).facts
    plan = BlockPlan("m", replace(ALL_SHARE, tower_tp=2, layers=(2,)), (2,), facts)
    assert megatron_bridge.overrides(plan)["model", "vision_dp_when_cp"]
    for strategy, allowed in (
        (replace(ALL_SHARE, tower_tp=2), True),
        (replace(PLAIN, dp=4, tp=2, tower_tp=1), True),
        (replace(PLAIN, dp=2, tp=2, pp=2, tower_tp=1), False),
        (replace(ALL_SHARE, tower_tp=1), False),
    ):
        assert (megatron_bridge.LIMITS.degrees_objection(strategy, facts) is None) == allowed
