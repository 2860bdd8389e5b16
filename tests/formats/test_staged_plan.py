"""plan.json: what formats.md lists is written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from toy_plan import PROFILE, toy_report

from automap_models.core.profile import Profile
from automap_models.core.result import Bound
from automap_models.errors import BadInput
from automap_models.formats.atomic import json_text
from automap_models.formats.staged_plan import plan_document, read_plan
from automap_models.version import __version__


def test_the_document_says_what_was_decided_and_what_it_costs() -> None:
    """Two stages on one node of two devices each; every figure by hand from cost-model.md.

    f = (1+2)/2, (3+2)/2; b = (2+4)/2, (6+4)/2; the boundary is between nodes: x = 20 / 10 = 2;
    AR = ΣW · 2·(1/2)/100; u = 4.5, 4, 7.5; T = 8.5 + 4·7.5; L = T + AR_0, as stage 0 has no backward before it;
    mem = 2·3 + min(4, 2)·10/2, 2·7 + 1·10/2.
    """
    document = plan_document(toy_report())
    assert list(document) == [
        *("schema", "kind", "model", "planner", "granularity", "cluster", "micro_batches", "microbatch_size"),
        *("global_batch", "state_factor", "cuts", "coarse_cuts", "device_cuts", "stages", "length_s", "span_s"),
        *(
            "pivot",
            "objective",
            "schedule",
            "step_s",
            "simulated_length_s",
            "baselines",
            "optimality",
            "planning_s",
            "notes",
            "tried",
            "provenance",
        ),
    ]
    assert document["stages"] == [
        {
            **{"index": 0, "first": 0, "last": 1, "first_name": "a", "last_name": "b", "layers": ["in", "mid/1"]},
            **{"devices": [0, 1], "replicas": 2, "forward_s": 1.5, "backward_s": 3.0, "transfer_s": 2.0},
            **{"all_reduce_s": pytest.approx(0.03), "memory_bytes": 16.0},
        },
        {
            **{"index": 1, "first": 2, "last": 3, "first_name": "c", "last_name": "d", "layers": ["mid/2", "out"]},
            **{"devices": [2, 3], "replicas": 2, "forward_s": 2.5, "backward_s": 5.0, "transfer_s": None},
            **{"all_reduce_s": pytest.approx(0.07), "memory_bytes": 19.0},
        },
    ]
    assert document["span_s"] == pytest.approx(38.5)
    assert document["length_s"] == pytest.approx(38.53)
    assert document["pivot"] == 2
    assert document["cuts"] == [1]
    assert document["device_cuts"] == [2]
    assert document["coarse_cuts"] == [63]  # the last of 128 points that stands for instruction 1 of 4
    assert (document["schema"], document["kind"], document["model"]) == (1, "pipeline", "toy")
    assert (document["planner"], document["granularity"], document["micro_batches"]) == ("exact", 128, 4)
    assert document["state_factor"] == 2.0
    assert document["cluster"] == {
        **{"name": "tiny", "nodes": 2, "devices_per_node": 2, "intra": 100.0, "inter": 10.0, "memory": 1000.0}
    }
    assert document["baselines"] == {"single_device_s": 96.0, "data_parallel_s": None, "uniform_s": 60.0}
    assert document["optimality"] is None
    assert (document["planning_s"], document["notes"]) == (0.25, ["a note"])
    assert document["provenance"] == {
        **{"automap_version": __version__, "policy": "pp-1"},
        **{"profile_fingerprint": PROFILE.fingerprint, "profile_microbatch_size": None, "seed": 7},
        "model_fingerprint": PROFILE.model_fingerprint,
    }


def test_where_nothing_is_proven_the_file_says_nothing_of_it() -> None:
    """A bound of zero ended in a division by zero: T5-11B on C with --pin embedding=0."""
    assert plan_document(toy_report(bound=Bound(0.0, "relaxation")))["optimality"] is None


def test_the_gap_is_the_length_over_the_bound_less_one() -> None:
    document = plan_document(toy_report(bound=Bound(30.0, "relaxation")))
    assert document["optimality"]["bound_s"] == 30.0
    assert document["optimality"]["proof"] == "relaxation"
    assert document["optimality"]["gap"] == pytest.approx(38.53 / 30.0 - 1)


def test_a_bound_speaks_of_the_grid_and_a_plan_between_its_points_may_be_below_it(tmp_path: Path) -> None:
    """On 151, which is off the grid, this plan of 300 equal instructions is a hair shorter than it claims they are."""
    profile = Profile.create(np.ones(300), np.ones(300), np.ones(300))
    length_s = toy_report((151,), profile=profile).cost.length_s
    bound = Bound(1.01 * length_s, "exact")
    document = plan_document(toy_report((151,), profile=profile, bound=bound))
    assert document["optimality"] == {
        **{"bound_s": bound.value, "proof": "exact", "gap": pytest.approx(1 / 1.01 - 1), "plans": "grid"}
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    assert read_plan(path, profile).bound == bound


def test_older_files_whose_plan_bounds_itself_keep_what_was_proven_on_the_grid(tmp_path: Path) -> None:
    profile = Profile.create(np.ones(300), np.ones(300), np.ones(300))
    document = plan_document(toy_report((151,), profile=profile))
    length_s = document["length_s"]
    document["optimality"] = {"bound_s": length_s, "proof": "exact", "gap": 0.0, "grid_bound_s": 1.01 * length_s}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    assert read_plan(path, profile).bound == Bound(1.01 * length_s, "exact")


def test_cuts_off_the_grid_have_no_coarse_cuts() -> None:
    profile = Profile.create(np.ones(300), np.ones(300), np.ones(300))
    assert plan_document(toy_report((151,), profile=profile))["coarse_cuts"] is None
    on_grid = plan_document(toy_report((149,), profile=profile))  # ⌈64·300/128⌉ - 1
    assert on_grid["coarse_cuts"] == [63]


def test_one_stage_has_no_cuts_and_no_transfer() -> None:
    document = plan_document(toy_report((), ()))
    assert (document["cuts"], document["coarse_cuts"], document["device_cuts"]) == ([], [], [])
    assert [stage["transfer_s"] for stage in document["stages"]] == [None]


def test_a_profile_without_names_is_told_by_indices() -> None:
    profile = Profile.create(PROFILE.C, PROFILE.A, PROFILE.W)
    stage = plan_document(toy_report(profile=profile))["stages"][1]
    assert (stage["first_name"], stage["last_name"], stage["layers"]) == ("instruction 2", "instruction 3", ["", ""])


def _plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    return type(value) in (str, int, float, bool, type(None))


def test_the_document_holds_plain_python_only() -> None:
    cuts, devices = tuple(np.array([1])), tuple(np.array([2]))
    assert _plain(plan_document(toy_report(cuts, devices)))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_figure_that_is_not_finite_is_no_json() -> None:
    with pytest.raises(BadInput, match="too large for a number; check the units"):
        json_text({**plan_document(toy_report()), "length_s": math.inf})
