"""`automap infer` as its users see it: what it prints and writes, and what one line a mistake costs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from automap_models.core.schedules import WARM_UPS
from automap_models.formats.npz import read_npz
from automap_models.infer.app import infer as main
from automap_models.plots import figures
from automap_models.resources import zoo_dir

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GRAPH = """node1 -- Embedding(10, 4) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4000.0, parameter_size=160.0
node2 -- Linear(4, 4) -- forward_compute_time=2.0, backward_compute_time=4.0, activation_size=4000.0, parameter_size=80.0
node3 -- Linear(4, 2) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=2000.0, parameter_size=40.0
\tnode1 -- node2
\tnode2 -- node3
"""  # noqa: E501


LENGTH = ("--objective", "length")
SHIPPED = sorted(zoo_dir().glob("*.onnx"))[0].read_bytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a profile, a graph.txt and a small cluster."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "vgg19_v100.npz", "vgg.npz")
    Path("graph.txt").write_text(GRAPH, encoding="utf-8")
    cluster = "{nodes: 2, devices_per_node: 2, intra: 130e9, inter: 3.125e9, memory: 32e9, name: tiny}\n"
    Path("tiny.yaml").write_text(cluster, encoding="utf-8")
    return tmp_path


@pytest.fixture
def refused(folder: Path, refuses: Callable[..., Callable[..., str]]) -> Callable[..., str]:
    """Run the command in the folder and require that it refuses, in the line that is returned."""
    return refuses(main, "automap infer")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    doing = [line for line in err.splitlines() if re.match(r" +\d+\.\d s  \w", line)]  # what --verbose says
    assert bool(doing) == ("--verbose" in arguments) and len(doing) == len(err.splitlines())
    return out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:  # type: ignore[type-arg]
    return json.loads(printed(capsys, *arguments, "--json"))  # type: ignore[no-any-return]


def save(path: str, **changes: object) -> None:
    arrays: dict[str, object] = {key: np.ones(6) for key in ("C", "A", "W")} | changes
    np.savez_compressed(path, **{key: np.asarray(array) for key, array in arrays.items() if array is not None})


def test_a_plan_is_printed_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "vgg.npz", "--topo", "C", "--stages", "4")
    for word in ("4 stages", "× over", "fits", "proven", "vgg19", "conv1_1", "memory", "next"):
        assert word in out
    more = printed(capsys, "vgg.npz", "--topo", "C", "--stages", "4", "--verbose")
    for word in ("step time", "bottleneck", "speed-up"):
        assert word in more and word not in out
    assert max(map(len, out.splitlines())) <= 100
    assert list(folder.glob("*.json")) == []


def test_json_is_the_only_thing_on_stdout_and_the_same_as_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = document(capsys, "vgg.npz", "--topo", "B", "--certify-budget", "50", "--out", "plan.json")
    assert plan == json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert (plan["schema"], plan["kind"], plan["cluster"]["name"]) == (1, "pipeline", "B")
    assert plan["micro_batches"] * plan["microbatch_size"] == plan["global_batch"] == 16 * 32  # profiled: 32
    assert plan["step_s"] <= plan["baselines"]["data_parallel_s"]
    assert plan["step_s"] <= plan["baselines"]["uniform_s"]
    assert plan["optimality"]["gap"] >= 0


def test_single_device_time_is_all_micro_batches_one_after_another(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = document(capsys, "graph.txt", "--topo", "tiny.yaml", "--micro-batches", "5")
    assert plan["baselines"]["single_device_s"] == pytest.approx(5 * 12e-3)


@pytest.mark.parametrize("planner", ["policy", "exact", "uniform"])
def test_a_named_planner_s_own_plan_is_returned(planner: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, "vgg.npz", "--topo", "A", "--planner", planner)
    assert (plan["planner"], len(plan["stages"])) == (planner, 2)


@pytest.mark.parametrize("planner", ["policy", "uniform"])
def test_the_optimum_is_told_beside_a_named_planner_s_own_plan(
    planner: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = document(capsys, "vgg.npz", "--topo", "C", "--planner", "exact", *LENGTH)
    options = ("vgg.npz", "--topo", "C", "--planner", planner, *LENGTH)
    plan = document(capsys, *options, "--certify-budget", "inf")
    assert (plan["planner"], plan["optimality"]["proof"]) == (planner, "exact")
    assert plan["optimality"]["bound_s"] == pytest.approx(best["length_s"], rel=1e-9)
    unproven = document(capsys, *options, "--certify-budget", "0")
    assert unproven["cuts"] == plan["cuts"]
    assert unproven["optimality"]["proof"] == "relaxation"
    assert unproven["optimality"]["bound_s"] <= best["length_s"]


def test_the_default_is_refined_off_the_grid_and_a_plan_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(4)
    C, A, W = rng.uniform(size=(3, 600))
    save("deep.npz", C=C * 1e-3, A=A * 1e5, W=W * 1e4)
    options = ("deep.npz", "--topo", "A", "--stages", "2", "--certify-budget", "inf", *LENGTH)
    on_grid, refined = (
        document(capsys, *options, "--refine-budget", "0"),
        document(capsys, *options, "--refine-budget", "inf"),
    )
    assert on_grid["coarse_cuts"] is not None
    assert on_grid["optimality"]["bound_s"] == on_grid["length_s"]
    assert refined["coarse_cuts"] is None
    assert refined["length_s"] < on_grid["length_s"]
    assert refined["optimality"]["bound_s"] == on_grid["optimality"]["bound_s"]  # of the plans on the grid
    assert refined["optimality"]["gap"] == pytest.approx(refined["length_s"] / on_grid["length_s"] - 1)
    assert any(note.startswith("refined by single instructions") for note in refined["notes"])
    printed(capsys, *options, "--refine-budget", "inf", "--out", "plan.json")
    again = document(capsys, "deep.npz", "--plan", "plan.json")
    assert again["optimality"] == refined["optimality"]
    named = document(capsys, *options, "--planner", "policy")
    assert named["coarse_cuts"] is not None


@pytest.mark.parametrize("schedule", WARM_UPS)
def test_with_a_schedule_its_step_is_what_gets_shorter(
    schedule: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("vgg.npz", "--topo", "B", "--stages", "3", "--certify-budget", "0", "--schedule", schedule)
    before, after = (
        document(capsys, *options, "--refine-budget", "0"),
        document(capsys, *options, "--refine-budget", "inf"),
    )
    assert after["step_s"] <= before["step_s"]
    assert after["step_s"] == pytest.approx(after["simulated_length_s"][schedule])
    assert (after["objective"], after["schedule"]) == ("step", schedule)
    assert after["optimality"]["gap"] >= 0


def test_the_data_parallel_planner_has_one_stage_without_being_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its baseline is data parallelism in the micro-batches that suit it best: of 16 × 32 samples."""
    own = ("vgg.npz", "--topo", "A", "--planner", "data-parallel")
    plan = document(capsys, *own)
    assert (plan["planner"], len(plan["stages"]), plan["cuts"]) == ("data-parallel", 1, [])
    batch = ("--global-batch", "512", "--micro-batches")
    steps = [document(capsys, *own, *batch, str(2**power))["step_s"] for power in range(10)]
    assert plan["baselines"]["data_parallel_s"] == pytest.approx(min(steps), rel=1e-9)


def test_stages_are_honoured_exactly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for stages in (1, 2, 3):
        assert len(document(capsys, "vgg.npz", "--topo", "A", "--stages", str(stages))["stages"]) == stages


def test_auto_says_what_was_tried_and_the_plan_comes_back_at_its_micro_batch_size(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("vgg.npz", "--topo", "tiny.yaml", "--stages", "auto", "--micro-batches", "auto", "--global-batch", "96")
    plan = document(capsys, *options, "--certify-budget", "inf", "--out", "plan.json", *LENGTH)
    (chosen,) = (attempt for attempt in plan["tried"] if attempt["chosen"])
    assert (chosen["stages"], chosen["micro_batches"]) == (len(plan["stages"]), plan["micro_batches"])
    assert plan["micro_batches"] * plan["microbatch_size"] == plan["global_batch"] == 96
    assert plan["provenance"]["profile_microbatch_size"] == 32
    profiled_s = 3 * float(read_npz("vgg.npz").C.sum())  # 96 samples by 32
    assert plan["baselines"]["single_device_s"] == pytest.approx(profiled_s, rel=0.25)  # by the clock
    steps = [attempt["step_s"] for attempt in plan["tried"] if attempt["step_s"] is not None]
    assert plan["length_s"] <= min(steps) * (1 + 1e-9)
    again = document(capsys, "vgg.npz", "--plan", "plan.json")
    for key in ("length_s", "micro_batches", "microbatch_size", "global_batch", "cuts", "provenance"):
        assert again[key] == plan[key] or key == "provenance"
    assert again["provenance"]["profile_fingerprint"] == plan["provenance"]["profile_fingerprint"]


def test_auto_finds_at_least_what_every_single_run_finds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget = ("--topo", "tiny.yaml", "--granularity", "32", "--certify-budget", "inf", "--refine-budget", "0", *LENGTH)
    best = document(capsys, "vgg.npz", "--stages", "auto", *budget)
    for stages in ("1", "2", "3", "4"):
        alone = document(capsys, "vgg.npz", "--stages", stages, *budget)
        assert best["length_s"] <= alone["length_s"] * (1 + 1e-9)


def test_verbose_prints_a_row_for_everything_tried(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("vgg.npz", "--topo", "tiny.yaml", "--stages", "auto", "--micro-batches", "auto", "--global-batch", "64")
    out = printed(capsys, *options, "--verbose", *LENGTH)
    assert sum(line.rstrip().endswith("chosen") and line.lstrip()[0].isdigit() for line in out.splitlines()) == 1
    assert out.count("longer") >= 3
    assert "are those of the clock, as the model was profiled with 32" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 100
    assert "proven longer" not in printed(capsys, *options, *LENGTH)


def test_a_global_batch_alone_makes_micro_batches_of_the_profiled_size(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = document(capsys, "vgg.npz", "--topo", "A", "--global-batch", "256", *LENGTH)
    assert (plan["micro_batches"], plan["microbatch_size"]) == (8, 32)
    halved = document(capsys, "vgg.npz", "--topo", "A", "--global-batch", "256", "--micro-batches", "16")
    assert (halved["micro_batches"], halved["microbatch_size"]) == (16, 16)
    # Kernels of fewer samples are less efficient, but not by much from 32 to 16.
    assert 1.0 < halved["baselines"]["single_device_s"] / plan["baselines"]["single_device_s"] < 1.25


def test_a_silent_profile_is_told_its_micro_batch_size(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("graph.txt", "--topo", "tiny.yaml", "--micro-batches", "auto", "--global-batch", "8")
    plan = document(capsys, *arguments, "--microbatch-size", "2", "--out", "plan.json")
    assert plan["global_batch"] == 8
    assert plan["baselines"]["single_device_s"] == pytest.approx(8 / 2 * 12e-3)
    assert document(capsys, "graph.txt", "--plan", "plan.json")["length_s"] == plan["length_s"]


def test_a_short_profile_gets_fewer_stages_than_nodes_and_a_note(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save("two.npz", **{key: np.ones(2) for key in ("C", "A", "W")})
    assert "rather than one for each of the 4 nodes" in printed(capsys, "two.npz", "--topo", "C", *LENGTH)


def test_plot_and_trace_are_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = printed(capsys, "graph.txt", "--topo", "tiny.yaml", "--plot", "plan.png", "--trace", "trace.json")
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert "plan.png" in out
    assert "trace.json" in out


@pytest.mark.parametrize(("ending", "magic"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_plot_is_the_same_every_time(
    ending: str, magic: bytes, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    for name in ("one", "two"):
        printed(capsys, "graph.txt", "--topo", "tiny.yaml", "--plot", f"{name}.{ending}", "--micro-batches", "30")
    drawn = (folder / f"one.{ending}").read_bytes()
    assert drawn.startswith(magic)
    assert drawn == (folder / f"two.{ending}").read_bytes()


def test_a_plan_read_back_costs_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, "vgg.npz", "--topo", "C", "--stages", "4", "--out", "plan.json")
    again = document(capsys, "vgg.npz", "--plan", "plan.json")
    for key in ("cuts", "device_cuts", "length_s", "span_s", "pivot", "stages", "simulated_length_s", "planner"):
        assert again[key] == plan[key]


def test_a_plan_for_another_profile_is_refused(
    folder: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = document(capsys, "vgg.npz", "--topo", "tiny.yaml", "--stages", "2", "--out", "plan.json")
    save("other.npz", **{key: np.full(plan["stages"][-1]["last"] + 1, 1.0) for key in ("C", "A", "W")})
    assert "plan.json" in refused("other.npz", "--plan", "plan.json")


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "--help")
    assert "examples:" in out
    assert "exit codes:" in out


POLICY = ("vgg.npz", "--topo", "C", "--planner", "policy", "--policy")


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message"),
    [
        ("bad.npz", b"not a profile", ("bad.npz", "--topo", "C"), "bad.npz"),
        ("other.npz", b"", ("nowhere.npz", "--topo", "C"), "nowhere.npz"),
        ("graph.txt", f"{GRAPH}\tnode3 -- node1\n".encode(), ("graph.txt", "--topo", "C"), "cycl"),
        ("bad.yaml", b"{nodes: 0}", ("vgg.npz", "--topo", "bad.yaml"), "bad.yaml"),
        ("policy.onnx", b"not a policy", (*POLICY, "policy.onnx"), "policy.onnx"),
        ("policy.onnx", SHIPPED[: len(SHIPPED) // 2], (*POLICY, "policy.onnx"), "policy.onnx"),
        ("policy.onnx", b"", (*POLICY, "nowhere.onnx"), "nowhere.onnx"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    name: str, content: bytes, arguments: tuple[str, ...], message: str, refused: Callable[..., str]
) -> None:
    """One of each kind: what is refused, and in which words, is tested with the readers."""
    Path(name).write_bytes(content)
    assert message in refused(*arguments)


def test_a_profile_that_cannot_be_is_refused_by_array_and_index(refused: Callable[..., str]) -> None:
    save("bad.npz", C=[1.0, np.nan, 1, 1, 1, 1])
    line = refused("bad.npz", "--topo", "C", "--out", "plan.json")
    assert "bad.npz" in line
    assert "C[1]" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topo", "Z"), "A, B, C"),
        ((), "--topo"),
        (("--topo", "C", "--stages", "47"), "--stages"),
        (("--topo", "C", "--stages", "33"), "at most 32"),
        (("--topo", "C", "--stages", "0"), "--stages"),
        (("--topo", "C", "--stages", "-2"), "--stages"),
        (("--topo", "C", "--stages", "two"), "'two'"),
        (("--topo", "C", "--micro-batches", "0"), "--micro-batches"),
        (("--topo", "C", "--micro-batches", "1.5"), "--micro-batches"),
        (("--topo", "C", "--micro-batches", "auto"), "give --global-batch"),
        (("--topo", "C", "--micro-batches", "auto", "--global-batch", "0"), "--global-batch"),
        (("--topo", "C", "--micro-batches", "auto", "--global-batch", "7", *LENGTH), "32 devices"),
        (("--topo", "C", "--micro-batches", "5", "--global-batch", "64"), "a divisor"),
        (("--topo", "C", "--global-batch", "100", *LENGTH), "no multiple of the 32"),
        (("--topo", "C", "--global-batch", "10000000000000"), "1,000,000,000"),
        (("--topo", "C", "--microbatch-size", "16"), "says 32 samples itself"),
        (("--topo", "C", "--stages", "auto", "--planner", "policy"), "does not choose"),
        (("--topo", "C", "--beam", "0"), "--beam"),
        (("--topo", "C", "--certify-budget", "-1"), "--certify-budget"),
        (("--topo", "C", "--certify-budget", "nan"), "--certify-budget"),
        (("--topo", "C", "--certify-budget", "300 Mbit"), "--certify-budget: '300 Mbit' is no time such as"),
        (("--topo", "C", "--planner", "data-parallel", "--certify-budget", "100"), "needs no proof"),
        (("--topo", "C", "--refine-budget", "-5"), "--refine-budget"),
        (("--topo", "C", "--planner", "exact", "--refine-budget", "5"), "planner exact is not refined"),
        (("--topo", "C", "--granularity", "1"), "--granularity"),
        (("--topo", "C", "--state-factor", "0"), "--state-factor"),
        (("--topo", "C", "--state-factor", "nan"), "--state-factor"),
        (("--topo", "C", "--planner", "best"), "data-parallel"),
        (("--topo", "C", "--planner", "data-parallel", "--stages", "2"), "--stages"),
        (("--topo", "C", "--planner", "exact", "--policy", "p.onnx"), "--policy"),
        (("--topo", "C", "--schedule", "best"), "1f1b"),
        (("--topo", "C", "--nonsense"), "--nonsense"),
        (("--topo", "C", "--plot", "plan.bmp"), ".png"),
        (("--topo", "C", "--out", "nowhere/plan.json"), "nowhere"),
        (("--topo", "C", "--trace", "."), "folder"),
        (("--topo", "C", "--out", "vgg.npz"), "input"),
        (("--topo", "C", "--out", "same.json", "--trace", "same.json"), "another name"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: tuple[str, ...], message: str, refused: Callable[..., str]) -> None:
    assert message in refused("vgg.npz", *arguments)


def test_more_stages_than_cut_points_are_refused(refused: Callable[..., str]) -> None:
    assert "at most 3" in refused("graph.txt", "--topo", "C", "--stages", "4")


def test_where_nothing_fits_the_code_is_3_and_the_line_says_which_stage_needs_how_much(
    refused: Callable[..., str],
) -> None:
    Path("tiny.yaml").write_text(Path("tiny.yaml").read_text().replace("32e9", "1e8"), encoding="utf-8")
    line = refused("vgg.npz", "--topo", "tiny.yaml", "--out", "plan.json", code=3)
    assert "GB" in line
    assert "stage" in line


def test_where_nothing_fits_the_line_says_which_plan_comes_nearest_and_what_would(
    refused: Callable[..., str],
) -> None:
    Path("tiny.yaml").write_text(Path("tiny.yaml").read_text().replace("32e9", "1e8"), encoding="utf-8")
    line = refused("vgg.npz", "--topo", "tiny.yaml", "--stages", "auto", code=3)
    assert re.search(r"no plan fits the 0\.1 GB of cluster tiny: every one needs \d+\.\d+ GB or more on its", line)
    assert re.search(r"\d stages in \d+ micro-batches come nearest, by stage \d; devices with \d+\.\d+ GB would", line)


def test_an_output_that_cannot_be_written_is_found_before_planning(
    folder: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from automap_models.infer import runner

    monkeypatch.setattr(runner, "solve", lambda request, watch: pytest.fail("planned all the same"))
    refused("vgg.npz", "--topo", "C", "--out", "nowhere/plan.json")


def test_without_matplotlib_the_error_names_the_extra(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'automap-models[plot]'" in refused("vgg.npz", "--topo", "C", "--plot", "plan.png")


def test_an_interrupt_leaves_no_partial_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt  # the temporary file is full and not yet in its place

    monkeypatch.setattr("os.fsync", interrupted)
    before = sorted(folder.rglob("*"))
    assert main(["graph.txt", "--topo", "tiny.yaml", "--out", "plan.json", "--json"]) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def test_times_of_another_kind_of_device_than_the_cluster_s_are_noted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = {name: document(capsys, "vgg.npz", "--topo", name)["notes"] for name in ("A", "p4d-4")}
    assert any(note.startswith("times of v100 are scaled to a100-40 by the clock: 0.") for note in notes["p4d-4"])
    assert not any("scaled" in note or "made of" in note for note in notes["A"])


def test_the_next_command_repeats_what_was_asked_and_makes_the_same_plan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It left out all options but the cluster, and so wrote another plan."""
    shutil.copy(folder / "vgg.npz", folder / "my vgg.npz")
    words = (
        "--equal-replicas",
        "--stages",
        "4",
        "--global-batch",
        "64",
        "--refine-budget",
        "0",
        "--certify-budget",
        "20",
    )
    out = printed(capsys, "my vgg.npz", "--topo", "C", *words)
    command = " ".join(out[out.index("automap infer") : out.index("automap run")].replace("\\\n", "").split())
    program, name, *arguments = shlex.split(command)
    assert (program, name, arguments[0]) == ("automap", "infer", "my vgg.npz")
    assert printed(capsys, *arguments).splitlines()[0] == out.splitlines()[0]
    assert (folder / "plan.json").exists()
