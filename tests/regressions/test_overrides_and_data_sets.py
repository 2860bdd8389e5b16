"""Overrides and damaged data sets that ended datagen and train in tracebacks; the fuzzer found them.

Hydra raises a ValueError or a TypeError over some overrides, which nobody expected besides its own exceptions. A group
of settings that was overridden by a number was merged, a path by a list opened. A data set whose checksums were right
and whose arrays were not (other versions, other tools) was taken as it came.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra_programs import quickly_composed, refusal

from automap_models.datagen.command import job_from, main, make
from automap_models.envs.pipeline.encoding import EncodedProblems
from automap_models.errors import BadInput
from automap_models.formats.dataset import read_dataset


@pytest.mark.parametrize("override", ["dist=null", "dist=1.5", "++problem.memory.bound_peak.x=1"])
def test_an_override_over_which_hydra_raises_no_exception_of_its_own(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(main, [override], tmp_path, monkeypatch, capsys).startswith("datagen: error: ")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dist=mixed", "dist.components.cnn=1.5"], r"dist\.components\.cnn: is 1\.5, not a distribution"),
        (["dist=mixed", "dist.components.cnn.family={x: 1}"], r"dist\.components\.cnn\.family: is \{'x': 1\}"),
        (["+dist.note=inf"], "dist: holds a number that is not finite"),
        (["~shard_size"], "shard_size: is missing"),
        (
            ["problem.stages={values: [2, 4], weights: [1e308, 1e308]}"],
            r"problem\.stages\.weights: is \[1e\+308, 1e\+308\]; give numbers ≥ 0, not all zero, with a finite sum",
        ),
        (["plot=maybe"], "plot: is 'maybe'; give true or false"),
        (["~dist", "out=x"], "dist: is missing"),
    ],
)
def test_settings_of_a_data_set_that_are_of_another_kind(overrides: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        job_from(quickly_composed("datagen", *overrides))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "data"
    make(quickly_composed("datagen", "dist=normal", "groups=6", "shard_size=6", "granularity=16", f"out={folder}"))
    return folder


def _with_arrays(data: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The same data set with other arrays and the checksum of these."""
    shutil.copytree(data, folder)
    shard, manifest = folder / "shard-00000.npz", folder / "manifest.json"
    with np.load(shard) as archive:
        arrays = dict(archive)
    change(arrays)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    document = json.loads(manifest.read_text())
    document["shards"][0]["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    shard.write_bytes(buffer.getvalue())
    manifest.write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("nodes"), "has no array nodes"),
        (lambda arrays: arrays.update(stages=arrays["stages"].astype("U5")), "array stages is of type <U5"),
        (lambda arrays: arrays.update(arrays=arrays["arrays"][..., None]), r"arrays is of type float32 and shape \(6,"),
        (lambda arrays: arrays["inter_over_intra"].fill(0), "array inter_over_intra holds what no problem has"),
        (lambda arrays: arrays["arrays"][0, 0].fill(np.nan), "array arrays holds what no problem has"),
        (lambda arrays: arrays["arrays"][0, 0, :2].__setitem__(slice(None), (5, 4)), "fall from one point to the next"),
        (lambda arrays: arrays["stages"].fill(1000), "more stages than devices"),
    ],
)
def test_a_data_set_whose_arrays_are_no_problems(
    change: Callable[[dict[str, Any]], object], message: str, data: Path, tmp_path: Path
) -> None:
    folder = _with_arrays(data, tmp_path / "data", change)
    with pytest.raises(BadInput, match=rf"data: .*{message}"):
        EncodedProblems.from_mapping(read_dataset(folder), str(folder))


def test_a_data_set_as_it_was_made_is_read(data: Path) -> None:
    """Else the refusals above would have other reasons."""
    assert len(EncodedProblems.from_mapping(read_dataset(data), str(data))) == 6


TINY = (
    *("env.points=16", "env.max_stages=4", "env.max_devices=64", "agent.size.hidden=4", "logger=csv", "export=false"),
    *("data.validation_groups=2", "data.batch=2", "data.steps_per_epoch=1", "data.min_stages=2", "episodes=2"),
    *("agent.learner.branches=1", "agent.learner.replay=20", "agent.learner.batch=2", "agent.learner.iterations=1"),
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=1"], "data: is 1, not a group of settings"),
        (["agent.learner=x"], r"agent\.learner: is 'x', not a group of settings"),
        (["out=1.5"], r"out: is 1\.5; give a path"),
        (["init_from=[1]"], r"init_from: is \[1\]; give a path or null"),
        (["export=maybe"], "export: is 'maybe'; give true or false"),
        (["ckpt_path=true"], "ckpt_path: is True; give a path or null"),
        (["agent.learner.branches=1e30"], r"agent\.learner\.branches: is 1e\+30"),
        (
            [f"agent.learner.branches={2**40}"],
            r"branches: is 1099511627776; give a whole number from 1 to 2,147,483,647",
        ),
        (["data.min_stages=1000"], "has no problem of 1000 stages or more to train on"),
        (["agent.size.hidden=2000000000"], "agent: needs more memory than there is"),
    ],
)
def test_settings_of_a_training_that_are_of_another_kind(
    overrides: list[str], message: str, data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("lightning")
    from automap_models.train.main import train

    config = quickly_composed("train", *TINY, f"data.path={data}", f"out={tmp_path / 'run'}", *overrides)
    with pytest.raises(BadInput, match=message):
        train(config)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("lightning")
    from automap_models.train.main import train

    out = tmp_path_factory.mktemp("trained") / "run"
    train(quickly_composed("train", *TINY, f"data.path={data}", f"out={out}"))
    return out / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize("key", ["ckpt_path", "init_from"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["state_dict"].popitem(), "holds other weights than its network has"),
        (lambda content: content["state_dict"].update(x=[1]), "holds other weights than its network has"),
        (lambda content: content.update(state_dict=[1]), "is no checkpoint of a training run"),
        (lambda content: content.update(rainbow={}), "is no checkpoint of a training run"),
        (lambda content: content["hyper_parameters"].pop("size"), "is no checkpoint of a training run"),
    ],
)
def test_a_checkpoint_whose_parts_are_others(
    change: Callable[[dict[str, Any]], object], message: str, key: str, checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    """torch raised a RuntimeError of many lines over the first weight that did not fit."""
    import torch

    from automap_models.train.main import train

    content = torch.load(checkpoint, weights_only=True)
    change(content)
    torch.save(content, tmp_path / "damaged.ckpt")
    out = f"out={tmp_path / 'run'}"
    with pytest.raises(BadInput, match=rf"damaged\.ckpt: {message}"):
        train(quickly_composed("train", *TINY, f"data.path={data}", out, f"{key}={tmp_path / 'damaged.ckpt'}"))


HEADER = b"\x93NUMPY\x01\x00\x76\x00"


@pytest.mark.parametrize(
    "header",
    [b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999999,)}", b"{'descr': '<f8', (", b""],
    ids=["a length beyond all integers", "a bracket that does not close", "nothing"],
)
def test_damaged_optima_beside_a_data_set_are_found_again(header: bytes, data: Path, tmp_path: Path) -> None:
    """numpy's reader of headers raised an OverflowError, or a TokenError of Python's own parser."""
    pytest.importorskip("lightning")
    from automap_models.train.build import build_data

    folder = shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("optima-*"))
    config = quickly_composed("train", *TINY, f"data.path={folder}", f"out={tmp_path / 'run'}")
    optima = []
    for _ in range(2):
        trained = build_data(config)
        trained.setup()
        optima.append(trained.optima)
        (kept,) = folder.glob("optima-*.npy")
        kept.write_bytes(HEADER + header.ljust(117) + b"\n")
    assert (optima[0] == optima[1]).all()
