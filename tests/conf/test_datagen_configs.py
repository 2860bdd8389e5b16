"""Every shipped distribution composes, is drawn, and every launcher the documentation names is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hydra_programs import composed

from automap_models.datagen.command import job_from
from automap_models.datagen.generate import draw_groups
from automap_models.envs.pipeline.encoding import EncodedProblems
from automap_models.resources import conf_dir

DISTRIBUTIONS = sorted(path.stem for path in (conf_dir() / "dist").glob("*.yaml"))
SIZES = sorted(path.stem for path in (conf_dir() / "sizes").glob("*.yaml"))


def test_the_promised_distributions_are_shipped() -> None:
    promised = {"uniform", "normal", "binomial", "exponential", "lognormal", "transformer", "cnn", "mixed"}
    assert promised <= set(DISTRIBUTIONS)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_shipped_distribution_composes_and_is_drawn(name: str, tmp_path: Path) -> None:
    config = composed("datagen", f"dist={name}", f"out={tmp_path}")
    assert config.dist.name == name
    job = job_from(config)
    groups = EncodedProblems.from_mapping(draw_groups(job.recipe, np.random.default_rng(1), 50))
    assert len(groups) == 50
    assert np.isfinite(groups.arrays).all()
    members = job.recipe.mixture.names
    assert members == (tuple(config.dist.components) if name == "mixed" else (name,))


@pytest.mark.parametrize("name", SIZES)
def test_every_shipped_choice_of_sizes_composes_and_is_drawn(name: str, tmp_path: Path) -> None:
    """All numbers of stages, nodes and devices in a node that it names come up, and no others."""
    config = composed("datagen", f"sizes={name}", f"out={tmp_path}")
    groups = EncodedProblems.from_mapping(draw_groups(job_from(config).recipe, np.random.default_rng(1), 2000))
    cluster = config.problem.cluster
    assert set(groups.nodes.tolist()) == set(cluster.nodes["values"])
    assert set(groups.devices_per_node.tolist()) == set(cluster.devices_per_node["values"])
    assert set(groups.stages.tolist()) >= set(config.problem.stages["values"])
    low, high = config.problem.micro_batches
    assert low <= groups.micro_batches.min() < groups.micro_batches.max() <= high


def test_the_sizes_are_the_paper_s_unless_said_otherwise() -> None:
    """Clusters A, B and C: two to four nodes of eight; all sizes reach 16 stages on 512 devices, as the agent does."""
    paper, widest = composed("datagen").problem, composed("datagen", "sizes=all").problem
    env = composed("train", "experiment=all_sizes").env
    assert (paper.cluster.nodes["values"], paper.cluster.devices_per_node["values"]) == ([2, 3, 4], [8])
    assert max(widest.stages["values"]) == env.max_stages == 16
    most = max(widest.cluster.nodes["values"]) * max(widest.cluster.devices_per_node["values"])
    assert most == env.max_devices == 512


def test_the_default_folder_is_named_after_the_distribution() -> None:
    assert composed("datagen", "dist=cnn").out == "data/cnn"


@pytest.mark.parametrize("launcher", ["joblib", "submitit_slurm"])
def test_the_launchers_compose(launcher: str) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    config = composed("datagen", f"hydra/launcher={launcher}", return_hydra_config=True)
    assert launcher.partition("_")[0] in config.hydra.launcher._target_
