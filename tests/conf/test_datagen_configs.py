"""Every shipped distribution composes, is drawn, and every launcher the documentation names is there."""

from __future__ import annotations

from pathlib import Path

import hydra
import numpy as np
import pytest

from automap_models.core.resources import conf_dir
from automap_models.datagen.command import job_from
from automap_models.datagen.generate import draw_groups
from automap_models.envs.encoding import EncodedProblems

DISTRIBUTIONS = sorted(path.stem for path in (conf_dir() / "dist").glob("*.yaml"))


def test_the_promised_distributions_are_shipped() -> None:
    promised = {"uniform", "normal", "binomial", "exponential", "lognormal", "transformer", "cnn", "mixed"}
    assert promised <= set(DISTRIBUTIONS)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_shipped_distribution_composes_and_is_drawn(name: str, tmp_path: Path) -> None:
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = hydra.compose("datagen", overrides=[f"dist={name}", f"out={tmp_path}"])
    assert config.dist.name == name
    job = job_from(config)
    groups = EncodedProblems.from_mapping(draw_groups(job.recipe, np.random.default_rng(1), 50))
    assert len(groups) == 50
    assert np.isfinite(groups.arrays).all()
    members = job.recipe.mixture.names
    assert members == (tuple(config.dist.components) if name == "mixed" else (name,))


def test_the_default_folder_is_named_after_the_distribution() -> None:
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        assert hydra.compose("datagen", overrides=["dist=cnn"]).out == "data/cnn"


@pytest.mark.parametrize("launcher", ["joblib", "submitit_slurm"])
def test_the_launchers_compose(launcher: str) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = hydra.compose("datagen", overrides=[f"hydra/launcher={launcher}"], return_hydra_config=True)
    assert launcher.partition("_")[0] in config.hydra.launcher._target_
