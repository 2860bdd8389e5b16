"""The targets' own parsers, where they are installed, read random plans back.

They are not among the packages that the tests ask for: a GPU's worth of libraries for a few functions.
`pip install --no-deps megatron-core torchtitan deepspeed hetu-galvatron` and what these import make the tests run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from draw_counts import counts
from drawn_plans import draw_stages, draw_strategy, strategy_source

from automap_models.core.cluster import Cluster
from automap_models.export.exporter import export_plan, write_files
from automap_models.export.model_blocks import Inexpressible
from automap_models.export.targets import target_by_name

PARSERS = {
    "megatron": "megatron.core.transformer.pipeline_parallel_layer_layout",
    "torchtitan": "torchtitan.distributed.pipeline_parallel",
    "deepspeed": "deepspeed.runtime.config",
    "galvatron": "galvatron.utils.config_utils",
}
"""Target → the module that parses its files."""


@pytest.mark.parametrize("draws", counts(None, 30, 500))
@pytest.mark.parametrize("name", PARSERS)
def test_a_targets_own_parser_reads_random_plans(name: str, draws: int, tmp_path: Path) -> None:
    """As many strategies and as many plans of stages."""
    pytest.importorskip(PARSERS[name], exc_type=ImportError)
    target, rng = target_by_name(name), np.random.default_rng(7)
    cluster, path = Cluster(2, 4, 1e11, 1e10, 1e12, "drawn"), tmp_path / f"plan{target.ending}"
    strategies = stages = 0
    while min(strategies, stages) < draws:
        source = (
            strategy_source(draw_strategy(rng)) if strategies < draws else draw_stages(rng, cluster, tmp_path).source
        )
        try:
            exported = export_plan(source, target, path)
        except Inexpressible:
            continue
        write_files(path, exported.written)
        target.check(source, path)
        strategies, stages = strategies + (strategies < draws), stages + (strategies >= draws)
