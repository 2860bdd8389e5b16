"""plan.json of hybrid plans, and profiled models in the cache: read back as written, refused when anything is off."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel, unsharded
from automap_models.core.result import Bound, PlanReport, Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.atomic import decode_record, encode_record, write_json
from automap_models.formats.staged_plan import plan_document, read_plan

CLUSTER = Cluster(2, 4, intra=100e9, inter=10e9, memory=10e9, name="pair")


@pytest.fixture
def model() -> ProfiledModel:
    """Two dense layers of 10 s in micro-batches of 2 samples; in halves, one all-reduce forward and one backward."""
    profile = Profile.create(
        C=[10.0, 10.0],
        C_fwd=[4.0, 4.0],
        A=[2e9, 0.0],
        W=[8e8, 4e8],
        stash=[1e8, 3e8],
        names=("dot.0", "dot.1"),
        layers=("one", "two"),
        meta={"model": "two layers", "microbatch_size": 2},
    )
    halves = replace(
        unsharded(profile),
        name="2-way",
        degree=2,
        C=profile.C / 2,
        C_fwd=profile.C_fwd / 2,
        W=profile.W / 2,
        stash=np.array([5e7, 3e8]),
        reduced_fwd=np.array([0.0, 6e9]),
        reduced_bwd=np.array([4e9, 0.0]),
        starts_fwd=np.array([0.0, 1.0]),
        starts_bwd=np.array([1.0, 0.0]),
        gradients=np.array([1e9, 0.0]),
        dims={"params/one/kernel": 1, "params/two/kernel": 0},
    )
    return ProfiledModel(profile, (halves,), 0.5, {"batch/x": 0}, ("a note",))


@pytest.fixture
def report(model: ProfiledModel) -> PlanReport:
    """Six micro-batches of 4 samples: the first stage as 2 × 2 on one node, the second data-parallel on the other."""
    problem = StagedProblem(model.profile, CLUSTER, stages=2, shardings=model.shardings, launch_s=model.launch_s)
    problem = problem.with_split(2, 6, 24)
    plan = StagedPlan((0,), (4,), 6, "exact", (63,), shardings=(1, 0))
    assert plan.check_valid(problem) == (True, "")
    cost = plan_cost(problem, plan)
    result = Result(problem, plan, cost, "feasible", Bound(20.0, "relaxation"))
    return PlanReport(**vars(result), single_device_s=1.0)


@pytest.fixture
def written(report: PlanReport, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    write_json(path, plan_document(report))
    return path


@pytest.fixture
def former(written: Path) -> Path:
    """The same plan as it was once written, with a kind and words of its own."""
    document = json.loads(written.read_text())
    document["kind"] = "hybrid-pipeline"
    document["partitionings"] = document.pop("shardings")
    for stage in document["stages"]:
        stage["partitioning"] = stage.pop("sharding")
    written.write_text(json.dumps(document))
    return written


def test_a_plan_is_read_back_as_it_was_written(written: Path, model: ProfiledModel, report: PlanReport) -> None:
    for cluster in (None, CLUSTER):
        result = read_plan(written, model, cluster)
        assert (result.plan, result.bound) == (report.plan, report.bound)
        assert result.cost.length_s == pytest.approx(report.cost.length_s)
        assert result.problem.profile.fingerprint == report.problem.profile.fingerprint


def test_a_plan_written_under_its_former_kind_is_read(former: Path, model: ProfiledModel, report: PlanReport) -> None:
    assert read_plan(former, model).plan == report.plan


def test_former_words_are_checked_as_well(former: Path, model: ProfiledModel) -> None:
    document = json.loads(former.read_text())
    document["stages"][0]["partitioning"] = "4-way"
    former.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"stages\[0\].sharding is '4-way', not one of whole, 2-way"):
        read_plan(former, model)


def test_the_document_says_how_each_stage_shares_the_work(report: PlanReport) -> None:
    document = json.loads(json.dumps(plan_document(report)))
    assert document["kind"] == "pipeline"
    stages = [(stage["data"], stage["tensor"], stage["sharding"]) for stage in document["stages"]]
    assert stages == [(2, 2, "2-way"), (4, 1, "whole")]
    assert document["shardings"]["2-way"] == {"degree": 2, "dims": {"params/one/kernel": 1, "params/two/kernel": 0}}
    assert document["microbatch_size"] == 4
    assert document["length_s"] == pytest.approx(plan_cost(report.problem, report.plan).length_s)


Change = Callable[[dict[str, Any]], None]
CHANGES: dict[str, tuple[Change, str]] = {
    "another schema": (lambda d: d.update(schema=2), "schema"),
    "another kind": (lambda d: d.update(kind="operator"), "kind"),
    "another profile": (lambda d: d["provenance"].update(profile_fingerprint="0"), "another profile"),
    "another launch time": (lambda d: d.update(launch_s=0.4), "launch_s"),
    "another length": (lambda d: d.update(length_s=d["length_s"] * 1.01), "gap|length_s"),
    "a stage's time": (lambda d: d["stages"][0].update(forward_s=1.0), "forward_s"),
    "a stage's degree": (lambda d: d["stages"][0].update(tensor=4), "tensor"),
    "an unknown way": (lambda d: d["stages"][0].update(sharding="4-way"), "sharding"),
    "a way of another degree": (lambda d: d["shardings"]["2-way"].update(degree=4), "2-way"),
    "a way of other dimensions": (lambda d: d["shardings"]["2-way"]["dims"].clear(), "2-way"),
    "shardings that are missing": (lambda d: d.pop("shardings"), "shardings"),
    "a stage too few": (lambda d: d["stages"].pop(), "way|stages"),
    "cuts out of range": (lambda d: d.update(cuts=[5]), "cuts"),
    "groups across nodes": (lambda d: d.update(device_cuts=[3]), "groups of 2"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_contradiction_is_refused(change: str, written: Path, model: ProfiledModel) -> None:
    document = json.loads(written.read_text())
    CHANGES[change][0](document)
    written.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=CHANGES[change][1]):
        read_plan(written, model)


def test_a_plan_that_no_longer_fits_is_infeasible(written: Path, model: ProfiledModel) -> None:
    document = json.loads(written.read_text())
    document["cluster"]["memory"] = 1e9
    written.write_text(json.dumps(document))
    with pytest.raises(Infeasible, match=r"stage 1 needs 1\.8 GB"):
        read_plan(written, model)


def test_a_profile_without_operators_is_told_to_bring_the_model(written: Path, model: ProfiledModel) -> None:
    with pytest.raises(
        BadInput, match=r"has stages that partition operators.*: automap plan MODEL reads it with `plan`"
    ):
        read_plan(written, model.profile)


def test_another_cluster_is_refused(written: Path, model: ProfiledModel) -> None:
    with pytest.raises(BadInput, match="inter is"):
        read_plan(written, model, replace(CLUSTER, inter=1e9))


# --- profiled models ---------------------------------------------------------------------------------------------


def test_a_model_survives_its_archive(model: ProfiledModel) -> None:
    archive = encode_record(model)
    again = decode_record(archive, ProfiledModel)
    assert again.profile.fingerprint == model.profile.fingerprint
    assert (again.profile.names, again.profile.layers) == (model.profile.names, model.profile.layers)
    assert again.profile.meta == model.profile.meta
    assert (again.launch_s, again.batch_dims, again.notes) == (model.launch_s, model.batch_dims, model.notes)
    (ours,), (theirs,) = model.shardings, again.shardings
    assert (ours.name, ours.degree, ours.dims) == (theirs.name, theirs.degree, theirs.dims)
    for name, value in vars(ours).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, getattr(theirs, name))
    assert encode_record(again) == archive


@pytest.mark.parametrize("foreign", [b"", b"PK\x03\x04", b"{}", b"\x93NUMPY"])
def test_what_is_no_archive_is_refused(foreign: bytes) -> None:
    with pytest.raises(BadInput):
        decode_record(foreign, ProfiledModel)
