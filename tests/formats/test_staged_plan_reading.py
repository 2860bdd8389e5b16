"""plan.json read: what was written comes back, what contradicts itself is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from toy_plan import CLUSTER, PROFILE, toy_report

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.result import Bound, PlanReport, Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.atomic import json_text, write_json
from automap_models.formats.files import read_profile
from automap_models.formats.plan import written_plan
from automap_models.formats.staged_plan import StagedDocument, plan_document, read_plan


@st.composite
def _reports(draw: st.DrawFn) -> PlanReport:
    n = draw(st.integers(2, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    profile = Profile.create(rng.random(n) + 1e-3, rng.random(n) * 1e6, rng.random(n) * 1e6, stash=rng.random(n) * 1e5)
    cluster = Cluster(draw(st.integers(1, 4)), draw(st.integers(1, 4)), 1e9, 1e7, 1e12)
    problem = StagedProblem(profile, cluster, 1, draw(st.integers(1, 32)), draw(st.floats(0.5, 8)))
    points = problem.grid.cut_points
    stages = draw(st.integers(1, min(cluster.devices, points.size + 1)))
    assume(stages <= points.size + 1)
    problem = replace(problem, stages=stages)
    plan = StagedPlan(
        cuts=tuple(sorted(int(i) for i in rng.choice(n - 1, stages - 1, replace=False))),
        device_cuts=tuple(sorted(int(d) + 1 for d in rng.choice(cluster.devices - 1, stages - 1, replace=False)))
        if stages > 1
        else (),
        micro_batches=problem.micro_batches,
        planner="any",
    )
    cost = plan_cost(problem, plan)
    proof = draw(st.sampled_from([None, Bound(cost.length_s * 0.9, "relaxation"), Bound(cost.length_s, "exact")]))
    plan = replace(plan, coarse_cuts=problem.grid.to_points(plan.cuts))
    return PlanReport(**vars(Result(problem, plan, cost, "feasible", proof)), single_device_s=1.0)


@given(report=_reports())
def test_a_written_plan_is_read_back_with_its_problem(
    report: PlanReport, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    write_json(path, plan_document(report))
    for cluster in (report.problem.cluster, None):
        result = read_plan(path, report.problem.profile, cluster)
        assert (result.plan, result.cost.length_s) == (report.plan, report.cost.length_s)
        assert (result.bound is None) == (report.bound is None)
        assert _same(result.problem, report.problem)


def _same(a: StagedProblem, b: StagedProblem) -> bool:
    keys = ("cluster", "stages", "micro_batches", "state_factor", "granularity")
    return a.profile is b.profile and all(getattr(a, key) == getattr(b, key) for key in keys)


def _file(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    return path


def _good() -> dict[str, Any]:
    return copy.deepcopy(plan_document(toy_report(bound=Bound(30.0, "relaxation"))))


def test_a_file_without_a_state_factor_takes_the_default(tmp_path: Path) -> None:
    document = plan_document(toy_report())
    del document["state_factor"]
    for stage, memory in zip(document["stages"], (22.0, 33.0), strict=True):  # σ = 4
        stage["memory_bytes"] = memory
    problem = read_plan(_file(tmp_path, document), PROFILE, CLUSTER).problem
    assert problem.state_factor == 4.0


def test_a_plan_in_the_words_of_older_files_is_read(tmp_path: Path) -> None:
    """Buckets of gradients, lengths for steps, a bound on the grid; neither objective nor baselines."""
    document = _good()
    for key in ("microbatch_size", "global_batch", "objective", "schedule", "step_s", "simulated_length_s"):
        del document[key]
    for key in ("baselines", "planning_s", "notes"):
        del document[key]
    document["provenance"] = {"profile_fingerprint": PROFILE.fingerprint}
    document["optimality"] = {
        "bound_s": 30.0,
        "proof": "exact",
        "gap": document["length_s"] / 30 - 1,
        "grid_bound_s": 30,
    }
    entry = {"stages": 2, "micro_batches": 4, "microbatch_size": None, "planner": "exact", "length_s": 38.53}
    document["tried"] = [{**entry, "bound_s": None, "outcome": "planned", "chosen": True}]
    for stage in document["stages"]:
        stage |= {"buckets_ready_s": [0.5], "buckets_s": [0.1], "shares_link": True}
    result = read_plan(_file(tmp_path, document), PROFILE, CLUSTER)
    assert (result.problem.schedule, result.bound) == (None, Bound(30.0, "exact"))


FORMER_PLANS = Path(__file__).parent / "former_plans"
"""Files as they were written on 21 (hybrid), 23 (buckets) and 26 (length) November 2026."""


def test_a_plan_with_a_bound_on_the_grid_beside_its_own_length_costs_what_it_did() -> None:
    profile = read_profile(Path(__file__).parents[2] / "examples" / "vgg19_v100.npz")
    result = read_plan(FORMER_PLANS / "length.json", profile)
    assert result.cost.length_s == pytest.approx(0.21589562548216834)
    assert result.bound == Bound(0.21589562548216834, "exact")


def test_a_plan_with_buckets_of_gradients_is_read_as_it_is_written() -> None:
    plan = written_plan(FORMER_PLANS / "buckets.json", StagedDocument)
    assert (plan.step_s, plan.schedule, plan.cut_names) == (4.5307955549061925, "1f1b", ("add.6275",))
    assert [name for stage in plan.stages for name, _ in stage.tied] == ["params/embedding"] * 2


def test_a_plan_of_the_former_kind_is_read_as_it_is_written() -> None:
    plan = written_plan(FORMER_PLANS / "hybrid.json", StagedDocument)
    (stage,), name = plan.stages, "24-way, least time"
    assert (stage.sharding, stage.tensor, stage.replicas, stage.device_count) == (name, 24, 1, 24)
    dims = json.loads((FORMER_PLANS / "hybrid.json").read_text())["partitionings"][name]["dims"]
    assert plan.sharded_dims(stage) == dims


def test_the_cluster_s_name_does_not_matter_and_its_figures_may_be_written_as_integers(tmp_path: Path) -> None:
    document = _good()
    document["cluster"] |= {"intra": 100, "inter": 10, "memory": 1000}
    problem = read_plan(_file(tmp_path, document), PROFILE, replace(CLUSTER, name="other")).problem
    assert problem.cluster.name == "other"


def test_stages_name_the_parameters_they_hold_copies_of_and_older_files_do_not(tmp_path: Path) -> None:
    tied = replace(PROFILE, shared_parameters=(SharedParameter("embedding", 1.0, (0, 3)),))
    document = plan_document(toy_report(profile=tied))
    assert [stage["tied"] for stage in document["stages"]] == [["embedding"]] * 2
    for stage in document["stages"]:
        del stage["tied"]
    assert read_plan(_file(tmp_path, document), tied, CLUSTER).plan is not None
    document["stages"][0]["tied"] = ["other"]
    with pytest.raises(BadInput, match=r"\$\.stages\[0\]\.tied is \['other'\]"):
        read_plan(_file(tmp_path, document), tied, CLUSTER)


def test_a_figure_may_differ_by_rounding(tmp_path: Path) -> None:
    document = _good()
    document["length_s"] *= 1 + 1e-7
    read_plan(_file(tmp_path, document), PROFILE, CLUSTER)


def test_a_plan_of_another_profile_is_refused(tmp_path: Path) -> None:
    other = Profile.create(PROFILE.C * 2, PROFILE.A, PROFILE.W, meta={"model": "other toy"})
    with pytest.raises(BadInput, match="belongs to another profile than other toy; plan again"):
        read_plan(_file(tmp_path, _good()), other, CLUSTER)


@pytest.mark.parametrize(
    ("key", "value"), [("nodes", 4), ("devices_per_node", 1), ("intra", 1.0), ("inter", 1.0), ("memory", 1.0)]
)
def test_a_plan_of_another_cluster_is_refused(tmp_path: Path, key: str, value: float) -> None:
    with pytest.raises(BadInput, match=rf"cluster\.{key} is .*, but cluster tiny has {value}"):
        read_plan(_file(tmp_path, _good()), PROFILE, replace(CLUSTER, **{key: value}))


def test_a_plan_that_does_not_fit_the_memory_is_infeasible(tmp_path: Path) -> None:
    small = replace(CLUSTER, memory=18.0)
    with pytest.raises(Infeasible, match=r"stage 1 needs .* GB on each device"):
        read_plan(_file(tmp_path, plan_document(toy_report(cluster=small))), PROFILE, small)


Change = Callable[[dict[str, Any]], object]


def _set(*path: str | int, to: object) -> Change:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to

    return change


REFUSED: list[tuple[str, Change]] = [
    (r"schema is 2, not 1", _set("schema", to=2)),
    (r"schema is '1', not a whole number", _set("schema", to="1")),
    (r"kind is 'operator', not pipeline; automap search opp reads it with `plan`", _set("kind", to="operator")),
    (r"kind is 'data', not pipeline; automap search adp reads it with `plan`", _set("kind", to="data")),
    (r"kind is 'placement', not pipeline; automap place reads it with `plan`", _set("kind", to="placement")),
    (r"kind is 'soup', not pipeline; plan again", _set("kind", to="soup")),
    (r"profile_fingerprint is None, not a text", _set("provenance", "profile_fingerprint", to=None)),
    (r"provenance is 3, not a mapping", _set("provenance", to=3)),
    (r"belongs to another profile", _set("provenance", "profile_fingerprint", to="0" * 64)),
    (r"cuts\[0\] is 1.5, not a whole number", _set("cuts", to=[1.5])),
    (r"cuts\[0\] is True, not a whole number", _set("cuts", to=[True])),
    (r"cuts is '1', not a list", _set("cuts", to="1")),
    (r"instruction cuts \[3\] do not increase inside 0..2", _set("cuts", to=[3])),
    (r"cuts\[0\] is -1, not a whole number ≥ 0", _set("cuts", to=[-1])),
    (r"instruction cuts \[2, 1\] do not increase", lambda d: d.update(cuts=[2, 1], device_cuts=[1, 2])),
    (r"coarse cuts \[63\] do not stand for cuts \[2\]", _set("cuts", to=[2])),
    (r"coarse cuts \[64\] do not stand for cuts \[1\]", _set("coarse_cuts", to=[64])),
    (r"device cuts \[0\] do not increase inside 1..3", _set("device_cuts", to=[0])),
    (r"device cuts \[4\] do not increase", _set("device_cuts", to=[4])),
    (r"1 instruction cut\(s\) but 2 device cut\(s\)", _set("device_cuts", to=[1, 2])),
    (r"6 stages on the 4 device\(s\)", _set("cuts", to=[0, 1, 2, 3, 4])),
    (r"micro_batches is 0", _set("micro_batches", to=0)),
    (r"micro_batches is 4.5, not a whole number", _set("micro_batches", to=4.5)),
    (r"granularity 1;", _set("granularity", to=1)),
    (r"state factor -1", _set("state_factor", to=-1)),
    (r"state_factor is 'many', not a number", _set("state_factor", to="many")),
    (r"planner is None, not a text", _set("planner", to=None)),
    (r"lists 1 stages, but the cuts make 2", lambda d: d["stages"].pop()),
    (r"stages is \{\}, not a list", _set("stages", to={})),
    (r"stages\[1\] is 3, not a mapping", _set("stages", 1, to=3)),
    (r"stages\[0\]\.index is 1, not 0 as its cuts make it", _set("stages", 0, "index", to=1)),
    (r"stages\[0\]\.last is 2, not 1", _set("stages", 0, "last", to=2)),
    (r"stages\[1\]\.first is 1, not 2", _set("stages", 1, "first", to=1)),
    (r"stages\[1\]\.first_name is 'b', not 'c'", _set("stages", 1, "first_name", to="b")),
    (r"stages\[1\]\.layers is \['x', 'out'\]", _set("stages", 1, "layers", to=["x", "out"])),
    (r"stages\[1\]\.devices is \[1, 3\], not \[2, 3\]", _set("stages", 1, "devices", to=[1, 3])),
    (r"stages\[1\]\.replicas is 3, not 2", _set("stages", 1, "replicas", to=3)),
    (r"stages\[0\]\.forward_s is 1.6, not 1.5", _set("stages", 0, "forward_s", to=1.6)),
    (r"stages\[0\]\.backward_s is None, not a number", _set("stages", 0, "backward_s", to=None)),
    (r"stages\[0\]\.transfer_s is None, not 2.0", _set("stages", 0, "transfer_s", to=None)),
    (r"stages\[1\]\.transfer_s is 0.0, not None", _set("stages", 1, "transfer_s", to=0.0)),
    (r"stages\[1\]\.all_reduce_s is 0.0, not 0.07", _set("stages", 1, "all_reduce_s", to=0)),
    (r"stages\[1\]\.memory_bytes is True, not a number", _set("stages", 1, "memory_bytes", to=True)),
    (r"stages\[0\]\.memory_bytes is missing", lambda d: d["stages"][0].pop("memory_bytes")),
    (r"length_s is .*, not 38.53", lambda d: d.update(length_s=d["length_s"] * (1 + 2e-6), optimality=None)),
    (r"length_s is 1000", _set("length_s", to=10**400)),
    (r"span_s is 36.6, not 38.5", _set("span_s", to=36.6)),
    (r"pivot is 3, not one of the 3 pseudo-stages", _set("pivot", to=3)),
    (r"pivot is -1", _set("pivot", to=-1)),
    (r"proof is 'hope', not exact or relaxation", _set("optimality", "proof", to="hope")),
    (r"bound_s is 0, not a number > 0", _set("optimality", "bound_s", to=0)),
    (r"gap is 0.5, not length_s over bound_s less 1", _set("optimality", "gap", to=0.5)),
    (r"grid_bound_s is 20", _set("optimality", "grid_bound_s", to=20.0)),
    (r"grid_bound_s is 40", _set("optimality", "grid_bound_s", to=40.0)),
    (r"gap is -0.03", _set("optimality", to={"proof": "exact", "bound_s": 40.0, "gap": 38.53 / 40.0 - 1})),
    (r"cluster\.nodes is 2.0, not a whole number", _set("cluster", "nodes", to=2.0)),
    (r"cluster: inter is -1", _set("cluster", "inter", to=-1)),
    *((f"{key} is missing", lambda d, key=key: d.pop(key)) for key in ("schema", "kind", "cuts", "device_cuts")),  # type: ignore[misc]
    *((f"{key} is missing", lambda d, key=key: d.pop(key)) for key in ("coarse_cuts", "stages", "length_s", "span_s")),  # type: ignore[misc]
    *((f"{key} is missing", lambda d, key=key: d.pop(key)) for key in ("pivot", "optimality", "provenance", "cluster")),  # type: ignore[misc]
    *((f"{key} is missing", lambda d, key=key: d.pop(key)) for key in ("planner", "micro_batches", "granularity")),  # type: ignore[misc]
]


@pytest.mark.parametrize(("message", "change"), REFUSED, ids=[message for message, _ in REFUSED])
@pytest.mark.parametrize("cluster", [CLUSTER, None], ids=["given cluster", "own cluster"])
def test_a_file_that_contradicts_itself_is_refused_in_one_sentence(
    tmp_path: Path, message: str, change: Change, cluster: Cluster | None
) -> None:
    document = _good()
    change(document)
    with pytest.raises(BadInput, match=rf"plan\.json.*{message}") as refusal:
        read_plan(_file(tmp_path, document), PROFILE, cluster)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b'{"schema": NaN}', r"is not valid JSON"),
        (b'{"schema": 1, "length_s": -Infinity}', r"is not valid JSON"),
        (b"[" * 100_000, "the document is not a mapping"),
        (b"[1]", r"the document is \[1\], not a mapping"),
        (b"9" * 5000, "the document is not a number of a size"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_in_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(BadInput, match=rf"plan\.json: {message}") as refusal:
        read_plan(tmp_path / "plan.json", PROFILE, CLUSTER)
    assert "\n" not in str(refusal.value)


def test_a_plan_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be read \(No such file"):
        read_plan(tmp_path / "plan.json", PROFILE, CLUSTER)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = json_text(_good()).encode()
    for length in range(0, len(whole), 5):
        (tmp_path / "plan.json").write_bytes(whole[:length])
        with pytest.raises(BadInput):
            read_plan(tmp_path / "plan.json", PROFILE, CLUSTER)


@pytest.mark.parametrize("number", [10**9, 10**12, 10**20, 10**400])
@pytest.mark.parametrize("key", ["granularity", "micro_batches", "nodes", "devices_per_node"])
def test_numbers_that_would_fill_the_memory_are_refused(tmp_path: Path, key: str, number: int) -> None:
    """A worker of the test run once died of a plan on a thousand million nodes, killed for its memory."""
    document = _good()
    (document if key in document else document["cluster"])[key] = number
    with pytest.raises(BadInput):
        read_plan(_file(tmp_path, document), PROFILE, None)


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data())
def test_junk_in_any_field_is_read_or_refused_but_never_crashes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    document = _good()
    key = data.draw(st.sampled_from(sorted(document)))
    inner = document[key]
    if isinstance(inner, dict) and data.draw(st.booleans()):
        inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(_JUNK)
    else:
        document[key] = data.draw(_JUNK)
    try:
        read_plan(_file(tmp_path_factory.mktemp("junk"), document), PROFILE, None)
    except (BadInput, Infeasible) as error:
        assert "\n" not in str(error)


def test_a_plan_as_it_is_written_has_the_figures_of_its_file(tmp_path: Path) -> None:
    """The figures are those worked out in test_staged_plan.py."""
    written = written_plan(_file(tmp_path, _good()), StagedDocument)
    assert (written.model, written.micro_batches, written.instructions) == ("toy", 4, 4)
    assert written.cut_names == ("b",)
    assert [stage.forward_s for stage in written.stages] == [1.5, 2.5]
    assert [stage.transfer_s for stage in written.stages] == [2.0, 0.0]
    assert written.cluster == CLUSTER


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (r"\$\.stages is \[\], not a list of length ≥ 1", _set("stages", to=[])),
        (r"\$\.micro_batches is 0, not a whole number ≥ 1", _set("micro_batches", to=0)),
        (r"\$\.stages\[0\]\.replicas is -2", _set("stages", 0, "replicas", to=-2)),
        (r"\$\.stages\[0\]\.first is 1, not 0", _set("stages", 0, "first", to=1)),
        (r"\$\.stages\[1\]\.first is 2, not 3", _set("stages", 0, "last", to=2)),
        (r"\$\.stages\[1\]\.first is 1, not 2", _set("stages", 1, "first", to=1)),
        (r"\$\.stages\[1\]\.last is 1, not 2 or more", _set("stages", 1, "last", to=1)),
        (r"\$\.stages\[1\]\.devices is \[1, 2\], not from device 2 on", _set("stages", 1, "devices", to=[1, 2])),
        (
            r"\$\.stages\[1\]\.devices is \[2, 4\], not the first and the last of 2",
            _set("stages", 1, "devices", to=[2, 4]),
        ),
        (r"\$\.cuts is \[0\], not \[1\] as its stages end", _set("cuts", to=[0])),
    ],
)
def test_a_plan_whose_stages_do_not_follow_each_other_is_refused_without_its_model(
    tmp_path: Path, message: str, change: Change
) -> None:
    """A plan without stages ended in an IndexError, and one whose stages overlap was run and exported."""
    document = _good()
    change(document)
    with pytest.raises(BadInput, match=message):
        written_plan(_file(tmp_path, document), StagedDocument)
