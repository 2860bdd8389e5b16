"""Files that once ended in a traceback, in hours of work or in gigabytes of memory, each with what happened."""

from __future__ import annotations

import hashlib
import json
import re
import resource
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hydra_programs import composed

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.datagen.command import job_from
from automap_models.errors import AutomapError, BadInput
from automap_models.formats.atomic import write_json
from automap_models.formats.dataset import KIND, read_dataset, write_shard
from automap_models.formats.files import read_profile
from automap_models.formats.graph_txt import parse_graph_txt
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.formats.npz import write_npz
from automap_models.formats.sweep_yaml import read_sweep
from automap_models.infer import app
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.feasibility import least_share
from automap_models.planners.staged.stage_arrays import stage_arrays


@pytest.mark.parametrize(
    "value", ['!!int ""', "!!bool maybe", "!!timestamp foo", "!!float x", "!!int 0b", '!!str "\\ud800"']
)
def test_a_yaml_tag_with_a_value_of_another_kind(value: str, tmp_path: Path) -> None:
    """PyYAML's constructors raised IndexError, KeyError and AttributeError, which nobody expected of a YAML file."""
    (tmp_path / "c.yaml").write_text(f"{{nodes: {value}, devices_per_node: 8, intra: 1, inter: 1, memory: 1}}")
    with pytest.raises(BadInput, match=r"c\.yaml: is not valid YAML"):
        read_cluster(tmp_path / "c.yaml")


def test_a_range_of_a_sweep_whose_ratio_is_no_float(tmp_path: Path) -> None:
    """`1e308 / 1e-320` is infinite, and infinity to a power was no bandwidth but an OverflowError."""
    (tmp_path / "s.yaml").write_text("clusters: [{base: A, inter: {from: 1e-320, to: 1e308, steps: 3}}]")
    with pytest.raises(BadInput, match=r"s\.yaml: \$\.clusters\[0\]\.inter goes from"):
        read_sweep(tmp_path / "s.yaml")


def test_the_time_of_loading_a_batch_is_no_computation() -> None:
    """PipeDream's profiler writes it into the node `Input`: 640 of 710 ms were planned as if a device computed them."""

    def node(name: str, forward: float, backward: float, size: float) -> str:
        times = f"forward_compute_time={forward}, backward_compute_time={backward}"
        return f"{name} -- {times}, activation_size={size}, parameter_size=8.0"

    lines = (
        node("node1 -- Input", 640.0, 0.0, 154.0),
        node("node2 -- Conv2d(3, 64)", 20.0, 30.0, 60.0),
        node("node3 -- Linear(64, 10)", 5.0, 15.0, 4.0),
        node("node4 -- InputNorm", 0.0, 0.0, 2.0),  # reads something: an operator, whatever its name
    )
    text = "\n".join((*lines, "\tnode1 -- node2", "\tnode1 -- node3", "\tnode2 -- node3", "\tnode3 -- node4"))
    profile = parse_graph_txt(text, source="graph.txt", model="m")
    assert profile.names == ("node2", "node3", "node4")
    assert profile.C.sum() == pytest.approx(0.070)
    assert profile.A.tolist() == [60.0, 4.0, 0.0]  # no batch crosses: each stage loads its own


@pytest.mark.parametrize("key", ["activation_size", "parameter_size", "forward_compute_time"])
def test_sizes_of_a_graph_txt_that_overflow_when_they_are_added(key: str, tmp_path: Path) -> None:
    """Two sizes of 1e308 were infinite together, so that the search for the least memory never ended."""
    sizes = {
        "forward_compute_time": 1,
        "backward_compute_time": 2,
        "activation_size": 3,
        "parameter_size": 4,
        key: 1e308,
    }
    numbers = ", ".join(f"{name}={value}" for name, value in sizes.items())
    (tmp_path / "g.txt").write_text(f"node1 -- A -- {numbers}\nnode2 -- B -- {numbers}\n\tnode1 -- node2\n")
    with pytest.raises(BadInput, match=rf"g\.txt, line 1: {key} is '1e\+308'; give 0 to 1e\+18"):
        read_profile(tmp_path / "g.txt")


def test_a_number_of_a_note_beyond_all_floats(tmp_path: Path) -> None:
    """1e400 in the note was read as infinity and refused only when the plan was written, hours later."""
    np.savez(tmp_path / "p.npz", C=np.ones(2), A=np.ones(2), W=np.ones(2), meta=np.array('{"microbatch_size": 1e400}'))
    with pytest.raises(BadInput, match=r"p\.npz, meta: is not valid JSON|size that can be meant"):
        read_profile(tmp_path / "p.npz")


@pytest.mark.parametrize(("array", "value"), [("W", 1e200), ("A", 1e60), ("C", 1e200), ("stash", 1e30)])
def test_a_size_that_no_model_has_is_refused_where_it_is_read(array: str, value: float) -> None:
    """W of 1e200 bisected without end; A of 1e60 ended in "point 0 is no cut point", of which nobody had spoken."""
    arrays = {name: np.ones(50) for name in ("C", "A", "W", "stash")}
    arrays[array][7] = value
    with pytest.raises(BadInput, match=rf"^profile: {array}\[7\] = .* is more than 1e\+(18|09); .*check the units"):
        Profile.create(**arrays)


@pytest.mark.parametrize("planner", ["exact", "policy", "auto", "uniform", "local-search"])
@pytest.mark.parametrize("array", ["C", "A", "W", "stash"])
def test_the_largest_legal_numbers_are_planned_or_do_not_fit(array: str, planner: str) -> None:
    """What is not refused must end: in a plan, or in the sentence about the memory that is missing."""
    arrays = {"C": np.full(50, 1e-12 / 49), "A": np.ones(50), "W": np.ones(50), "stash": np.ones(50)}
    arrays[array][7] = 1e9 if array == "C" else 1e18
    problem = StagedProblem(Profile.create(**arrays), Cluster(4, 2, 1e-6, 1e18, 1e9), 4, granularity=128)
    try:
        plan = make_planner(planner).solve(problem).plan
    except AutomapError as error:
        assert "cut point" not in str(error)
        return
    assert plan is None or plan.check_valid(problem) == (True, "")


def test_an_archive_that_unpacks_to_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """60 million zeros are 60 kB in a file and were 3.5 GB in memory."""
    with zipfile.ZipFile(tmp_path / "p.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("A", "W", "C"):
            with archive.open(f"{name}.npy", "w") as member:
                header = {"descr": "<f8", "fortran_order": False, "shape": (60_000_000 if name == "C" else 2,)}
                np.lib.format.write_array_header_1_0(member, header)
                for _ in range(60 if name == "C" else 0):
                    member.write(bytes(8_000_000))
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({1 << 30}, {1 << 30}))
from automap_models.errors import BadInput
from automap_models.formats.npz import read_npz
try:
    read_npz({str(tmp_path / "p.npz")!r})
except BadInput as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "array C of shape 60,000,000 takes more than 16,000,000 bytes" in done.stdout


def test_a_header_that_declares_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive, archive.open("C.npy", "w") as member:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
        np.lib.format.write_array_header_1_0(member, header)
    with pytest.raises(BadInput, match=r"array A is missing|takes more than"):
        read_profile(tmp_path / "p.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def shard_of(folder: Path, **changes: object) -> Path:
    entry = {**write_shard(folder / "shard-00000.npz", {"stages": np.ones(4, np.int32)}), **changes}
    manifest = {"schema": 1, "kind": KIND, "granularity": 4, "groups": 4, "seed": 1, "distributions": [], "config": {}}
    write_json(folder / "manifest.json", {**manifest, "ranges": {}, "shards": [entry]})
    return folder


@pytest.mark.parametrize("count", [10**9, 10**30, 5, -1, 4.5, True])
def test_a_shard_that_is_said_to_hold_more_than_it_does(count: object, tmp_path: Path) -> None:
    """The arrays for all groups were laid out before the first shard was opened: a MemoryError, or a killed process."""
    with pytest.raises(BadInput, match=r"count is|does not hold"):
        read_dataset(shard_of(tmp_path, count=count))


def test_a_shard_named_with_half_a_surrogate_pair(tmp_path: Path) -> None:
    """No file can have such a name: opening it was a UnicodeEncodeError."""
    with pytest.raises(BadInput, match=r"manifest\.json: is not valid JSON"):
        read_dataset(shard_of(tmp_path, file="shard-\ud800.npz"))


def test_a_shard_whose_content_is_not_what_its_checksum_says_is_not_opened(tmp_path: Path) -> None:
    folder = shard_of(tmp_path, sha256=hashlib.sha256(b"").hexdigest())
    with pytest.raises(BadInput, match="checksum"):
        read_dataset(folder)


def test_deep_nesting_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"nodes": ' + "[" * 2_000_000)
    with pytest.raises(BadInput):
        read_profile(tmp_path / "deep.json")
    (tmp_path / "keys.json").write_text(json.dumps({"nodes": [{"id": 10**400}]}))
    with pytest.raises(BadInput):
        read_profile(tmp_path / "keys.json")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("granularity=1e8", "granularity: is 100000000.0; give a whole number"),
        ("granularity=100000000", "granularity: is 100000000; give a whole number <= 65536"),
        ("granularity=65536", "for granularity times bins_per_point"),
        ("bins_per_point=1000000", "bins_per_point: is 1000000; give"),
        ("shard_size=1000000000", "for shard_size times granularity"),
        ("groups=1000000000000", "groups: is 1000000000000; give"),
        ("seed=1e400", "seed: is inf; give"),
    ],
)
def test_settings_of_datagen_that_would_fill_the_memory(override: str, words: str) -> None:
    """`granularity=1e8` laid out 800 GB and was killed."""
    with pytest.raises(BadInput, match=re.escape(words)):
        job_from(composed("datagen", override))


FILE_ARGUMENTS = [
    ("infer", ["{}", "--topo", "A"]),
    ("infer", ["good.npz", "--topo", "{}"]),
    ("infer", ["good.npz", "--topo", "A", "--planner", "policy", "--policy", "{}"]),
    ("infer", ["good.npz", "--topo", "A", "--plan", "{}"]),
    ("infer", ["good.npz", "--topo", "A", "--observed", "{}", "--plan", "good.npz"]),
    ("infer", ["good.npz", "--sweep", "{}"]),
    ("infer", ["good.npz", "--topo", "A", "--out", "{}"]),
    ("infer", ["good.npz", "--topo", "A", "--plot", "{}.png"]),
    ("infer", ["good.npz", "--topo", "A", "--trace", "{}"]),
    ("plan", ["{}", "--topo", "A"]),
    ("plan", ["good.npz", "--topo", "A", "--plan", "{}"]),
    ("plan", ["good.npz", "--topo", "A", "--out", "{}"]),
    ("place", ["{}"]),
    ("place", ["{}", "--plan", "{}"]),
    ("place", ["{}", "--split", "{}"]),
    ("profile", ["{}"]),
    ("profile", ["good.npz", "-o", "{}"]),
    ("profile", ["good.npz", "--plot", "{}.png"]),
    ("search", ["pp", "{}", "--topo", "A", "--stages", "2"]),
    ("search", ["opp", "{}", "--topo", "A"]),
    ("search", ["opp", "t5_base", "--topo", "A", "--rules", "{}"]),
    ("search", ["pp", "good.npz", "--topo", "{}", "--stages", "2"]),
    ("search", ["pp", "good.npz", "--topo", "A", "--stages", "2", "--out", "{}"]),
]


@pytest.mark.parametrize(("command", "arguments"), FILE_ARGUMENTS)
@pytest.mark.parametrize("name", ["x" * 300, f"{'y' * 300}/x.npz"])
def test_a_file_name_that_no_file_system_takes(
    command: str,
    arguments: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`OSError: File name too long` reached the user as a traceback from wherever pathlib met the name first."""
    monkeypatch.chdir(tmp_path)
    write_npz("good.npz", Profile.create(np.ones(9), np.ones(9), np.ones(9), meta={"model": "m"}))
    assert getattr(app, command)([argument.format(name) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"automap {command}: error: ")
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["good.npz"]


@pytest.mark.parametrize("size", [1e18, 1e200, 1e307])
def test_the_least_memory_of_any_finite_parameters_is_found(size: float) -> None:
    """From 1e154 on the product of the two ends of the bisection was infinite, and its middle never came closer.

    Such a profile can only be put together by hand: `Profile.create` refuses it. The least memory is the training state
    of the one instruction that has parameters, for replicas do not share it.
    """
    ones = np.ones(8)
    parameters = np.where(np.arange(8) == 3, size, 0.0)
    profile = Profile(ones, ones, parameters, ones / 3, np.zeros(8))
    problem = StagedProblem(profile, Cluster(2, 2, 1e9, 1e9, 1e9), 2, granularity=8)
    began = time.monotonic()
    with np.errstate(over="ignore"):
        least = problem.cluster.memory * least_share(stage_arrays(problem)[0])
    assert time.monotonic() - began < 5
    assert least == pytest.approx(problem.state_factor * size, rel=2e-3)
