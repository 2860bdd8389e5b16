"""automap plan with the fields of a strategy: its price, in words and as JSON, and failures in one line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import automap_models as am
from automap_models.export.target import read_source
from automap_models.infer.app import export
from automap_models.infer.app import plan as main
from automap_models.infer.reports.strategies import print_estimate
from automap_models.requests import StrategyRequest
from automap_models.requests.plan import plan_request
from automap_models.workloads.source import Source, SourceKind

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 8,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
}
DEVICE = """
name: tiny
matrix: {float32: 1 TFLOP/s, bfloat16: 8 TFLOP/s}
vector: 1 TFLOP/s
bandwidth: 100 GB/s
step: {product_efficiency: 0.8, half_size: 60, attention_efficiency: 0.3, bandwidth_efficiency: 0.7, launch_s: 1 us,
       intra_efficiency: 0.5, inter_efficiency: 0.5, overlap: 0.3}
"""
CLUSTER = "{nodes: 2, devices_per_node: 4, intra: 10 GB/s, inter: 10 Gbit/s, memory: 16 GB, name: pair}"
GIVEN = ("--global-batch", "16", "--tp", "2", "--pp", "2", "--recompute", "full", "--sequence-parallel", "--price")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all tests, so that the model is traced once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AUTOMAP_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A model, a device and a cluster as arguments."""
    tmp_path = tmp_path_factory.mktemp("strategy")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "device.yaml").write_text(DEVICE)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    model, device, cluster = (str(tmp_path / name) for name in ("config.json", "device.yaml", "cluster.yaml"))
    return (model, "--device", device, "--topo", cluster)


def test_the_price_is_the_library_s(files: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """The report in words has the parts, and every rank's memory."""
    assert main([*files, *GIVEN, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    _, _, device, _, cluster = files
    strategy = am.Strategy(micro_batch=1, global_batch=16, tp=2, pp=2, dp=2, recompute="full", sequence_parallel=True)
    work = am.read_model_work(files[0])
    estimate = am.price(work, cluster, strategy, device=device)
    assert printed["step_s"] == estimate.step_s == pytest.approx(sum(printed["parts"].values()))
    assert printed["strategy"]["dp"] == 2
    assert [held["total"] for held in printed["memory"]] == [held.total for held in estimate.memory]
    assert (printed["fits"], printed["mfu"]) == (estimate.fits, estimate.mfu)

    print_estimate(estimate, "gpt2 on pair")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gpt2 on pair"
    assert lines[1].startswith("strategy: tp 2, dp 2, pp 2, 8 micro-batches of 1 sample, 1f1b, full recomputation, ")
    firsts = [line.split("  ")[0] for line in lines]
    parts = {"compute", "recomputation", "sums of tensor parallelism", "idle time (bubble)", "step"}
    assert parts | {"0", "1"} <= {*firsts}
    assert any(line.split()[:2] == ["memory", "fits:"] for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tp", "8", "--global-batch", "8", "--price"), "--tp: 8 does not divide the 4 heads of"),
        (
            ("--pp", "3", "--global-batch", "8", "--price"),
            "--dp: tp × cp × pp are 3 devices, which do not divide the 8 of cluster",
        ),
        (
            ("--pp", "8", "--schedule", "gpipe", "--global-batch", "999999999", "--price"),
            "--global-batch: schedule gpipe with 999999999 micro-batches through 8 stages; give at most",
        ),
        (("--tp", "2", "--dp", "2", "--global-batch", "8", "--price"), "are 4 devices, cluster pair has 8"),
        (("--pp", "4", "--vp", "4", "--global-batch", "8", "--price"), "do not make 4 × 4 equal stages"),
        (
            ("--pp", "4", "--schedule", "dualpipev", "--global-batch", "8", "--price"),
            "--global-batch: schedule dualpipev with 4",
        ),
        (
            ("--pp", "2", "--schedule", "zb-v", "--vp", "1", "--global-batch", "8", "--price"),
            "--vp: schedule zb-v with 1",
        ),
        (("--precision", "fp16", "--global-batch", "8", "--price"), "has no rate for matrix products in float16"),
        (("--layers", "8,x", "--global-batch", "8"), "argument --layers: 'x' is no whole number"),
        (("--layers", "4,4", "--global-batch", "8", "--price"), "--layers: 2 numbers of layers for 1 × 1 stages"),
        (("--micro-batch", "2", "--batch", "4"), "--micro-batch: is what --batch 4 says, too; leave it out"),
        (
            ("--tp", "2", "--cut-at", "x*", "--pin", "x=1"),
            "--pin and --cut-at: are not for a strategy, which --tp gives: "
            "strategies have stages of whole blocks, which --layers gives; strategies cut where blocks end; leave",
        ),
        (("--pin", "block_0=0"), "--pin: is not for a transformer: strategies have stages of whole blocks, which"),
        (("--keep-together", "block_0/*"), "--keep-together: is not for a transformer: strategies have stages of"),
        (("--cut-at", "block_*"), "--cut-at: is not for a transformer: strategies cut where blocks end; leave it out"),
        (("--min-stage", "0"), "--min-stage: is not for a transformer: strategies have stages of whole blocks"),
        (
            ("--state-factor", "2"),
            "--state-factor: is not for a transformer: strategies have the state of an --optimizer; leave",
        ),
        (("--microbatch-size", "2"), "--microbatch-size: is not for a transformer: --micro-batch is a strategy's"),
        (("--for", "torch-split-spec"), "--for torch-split-spec: is not for a transformer: it takes no strategies"),
        (("--objective", "length"), "--objective length: is not for a transformer: strategies have no length L"),
        (("--pin", "block_0=0"), "config.json -o profile.npz, then automap plan profile.npz"),
        (("--min-gain", "0.1", "--price"), "--min-gain: is for a search, and --price searches nothing"),
        (("--max-stages", "2", "--price"), "--max-stages: is for a search, and --price searches nothing"),
        (("--tp", "2", "--objective", "length"), "--objective length: is not for a strategy, which --tp gives"),
        (("--tp", "2", "--forbid", "operator"), "--tp: is forbidden by --forbid operator; leave it out"),
        (("--precision", "fp32", "--dtype", "float32"), "--precision: is what --dtype float32 says, too"),
        (("--price", "--thorough"), "--thorough: is for a search, and --price"),
        (
            ("--tp", "2", "--global-batch", "8", "--price", "--reserve", "1 GB"),
            "--reserve: is for a search, and --price",
        ),
        (("--tp", "8", "--global-batch", "8"), "--tp: 8 does not divide the 4 heads of"),
        (("--tp", "3", "--global-batch", "8", "--price"), "--tp: 3 does not divide the 4 heads of"),
        (
            ("--pp", "4", "--schedule", "dualpipev", "--global-batch", "4"),
            "has pp 4 and schedule dualpipev; change one",
        ),
        (("--tp", "2", "--pp", "4", "--dp", "2", "--global-batch", "8"), "has tp 2 and pp 4 and dp 2; change one"),
        (
            ("--tp", "2", "--global-batch", "8", "--for", "torch-split-spec"),
            "--for torch-split-spec: is not for a strategy, which --tp gives: it takes no strategies",
        ),
        (
            ("--zero", "3", "--global-batch", "8", "--for", "megatron"),
            "--zero: megatron has no ZeRO-3; take zero 0 or 1",
        ),
        (("--global-batch", "8", "--for", "megatron", "--schedule", "zb-v"), "megatron does not run schedule zb-v"),
        (
            ("--global-batch", "8", "--for", "deepspeed", "--pp", "2", "--zero", "3"),
            "has pp 2 and zero 3 and words in deepspeed; change one of them",
        ),
        (
            ("--tp", "2", "--zero", "3", "--global-batch", "8", "--price", "--for", "megatron"),
            "--for: megatron has no ZeRO-3; take zero 0 or 1",
        ),
        (("--global-batch", "8", "--reserve", "x=1 GB"), "'x' is no rank of a pipeline; give a whole number"),
        (("--global-batch", "8", "--reserve", "90 GB"), "--reserve: 90.0 GB of the 16.0 GB of a device; give less"),
        (("--tp", "2", "--global-batch", "8", "--devices", "6..12"), "6 devices are no whole nodes of 4"),
    ],
)
def test_bad_input_is_one_sentence(
    files: tuple[str, ...], options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code: object
    try:
        code = main([*files, *options])
    except SystemExit as end:  # argparse
        code = end.code
    printed = capsys.readouterr()
    assert code == 2
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_a_price_on_a_device_without_a_fit_says_that_its_constants_are_means(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    model, *_, cluster = files
    for device, constants in (
        ("cpu", "mean constants of devices"),
        ("b300", "constants of a device of its generation"),
    ):
        assert main([model, "--device", device, "--topo", cluster, *GIVEN]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"unfitted: data sheet of {device}, and the {constants}" in printed


@pytest.mark.parametrize(
    ("options", "runtime", "error"),
    [
        (
            (),
            "for programs in general (--runtime)",
            "how far it is off steps that it was not fitted to is not known (--runtime)",
        ),
        (("--for", "megatron"), "for megatron", "how far it is off steps that it was not fitted to is not known"),
        (("--runtime", "nanotron"), "for nanotron", "6.6 to 10 % off steps that it was not fitted to"),
    ],
)
def test_a_price_says_which_program_s_it_is_and_how_far_off(
    files: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    runtime: str,
    error: str,
) -> None:
    model, *_, cluster = files
    assert main([model, "--device", "h200", "--topo", cluster, *GIVEN, *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert runtime in printed
    assert error in printed


@pytest.mark.parametrize(
    ("runtime", "options", "sentence"),
    [
        ("nanotron", ["--zero", "3"], "--zero: nanotron has no ZeRO-3; take zero 0 or 1, or another --runtime"),
        ("nanotron", ["--schedule", "zb-v"], "--schedule: nanotron does not run schedule zb-v"),
        ("nanotron", ["--precision", "fp8"], "--precision: "),
        ("mindspeed", ["--zero", "2"], "--zero: megatron has no ZeRO-2"),
    ],
)
def test_what_a_runtime_lacks_is_refused_with_what_it_has(
    runtime: str, options: list[str], sentence: str, files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """nanotron was told to take ZeRO-3, which it does not have."""
    assert main([*files, "--global-batch", "16", "--runtime", runtime, "--price", *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("runtime", ["megatron", "deepspeed", "nanotron"])
def test_a_runtime_s_strategy_is_one_that_its_program_runs(
    runtime: str, files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """`--runtime megatron` came to zb-h1 and ZeRO-2, which `--price` refused by that very runtime."""
    given = ("--global-batch", "16", "--runtime", runtime, "--budget", "1 s", "--json")
    assert main([*files, *given]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["for"] == runtime
    fields = {name: value for name, value in printed["strategy"].items() if name != "micro_batches"}
    strategy = am.Strategy(**{**fields, "layers": tuple(printed["stage_layers"])})
    cluster = am.read_cluster(files[4])  # of which nodes may stand idle
    used = replace(cluster, nodes=strategy.devices // cluster.devices_per_node)
    priced = am.price(am.read_model_work(files[0]), used, strategy, device=files[2], runtime=runtime)
    assert priced.step_s == pytest.approx(printed["step_s"])


def test_an_unknown_runtime_is_bad_input(files: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    model, *_, cluster = files
    assert main([model, "--topo", cluster, *GIVEN, "--runtime", "trainer"]) == 2
    assert "'trainer' is neither a known runtime nor a file" in capsys.readouterr().err


def test_the_device_is_the_one_that_the_cluster_is_made_of(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A model on H100 was priced, and searched for, as if these were V100 where --device was forgotten."""
    model, _, device, *_ = files
    named = tmp_path / "named.yaml"
    named.write_text(CLUSTER.replace("name: pair", f"name: pair, device: {device}"))
    for arguments in (files, (model, "--topo", str(named))):
        assert main([*arguments, *GIVEN, "--json"]) == 0
    first, _, second = capsys.readouterr().out.partition("\n}\n")
    assert json.loads(first + "}") == json.loads(second)


def test_the_search_finds_a_strategy_that_costs_what_it_says(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Given fields are fixed, the price is the library's, no choice is better, and the file is read back."""
    out, picture = tmp_path / "strategy.json", tmp_path / "strategy.png"
    options = ("--global-batch", "16", "--tp", "2", "--budget", "1", "--devices", "4..8")
    assert main([*files, *options, "--out", str(out), "--plot", str(picture), "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    written = read_source(out).plan
    assert written.strategy is not None
    assert written.strategy.tp == 2
    assert picture.stat().st_size > 1000
    _, _, device, _, cluster = files
    work = am.read_model_work(files[0])
    estimate = am.price(work, cluster, written.strategy, device=device)
    assert estimate.fits
    assert printed["step_s"] == pytest.approx(estimate.step_s)
    assert 0 < printed["bound_s"] <= printed["step_s"]
    assert [size["devices"] for size in printed["sizes"]] == [4, 8]
    assert all(of["best"] is None or of["best"]["step_s"] >= printed["bound_s"] for of in printed["choices"])
    assert main([*files, "--plan", str(out), "--json"]) == 0
    again: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (again["strategy"]["tp"], again["step_s"]) == (2, pytest.approx(printed["step_s"]))


def test_a_strategy_for_a_framework_is_one_that_its_exporter_writes_and_what_that_costs_is_said(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, written = tmp_path / "strategy.json", tmp_path / "megatron.args"
    options = ("--global-batch", "16", "--for", "megatron", "--budget", "0.5", "--reserve", "-1=2 GB")
    assert main([*files, *options, "--out", str(out), "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["for"] == "megatron"
    assert printed["without_limits"]["step_s"] <= printed["step_s"]
    assert printed["memory"][0]["step_s"] == printed["kinds"][0]["best"]["step_s"] == printed["step_s"]
    last = printed["memory"][0]["memory"][-1]
    assert last["total"] + 2e9 <= last["memory_bytes"]
    assert export([str(out), "--to", "megatron", "--out", str(written)]) == 0
    assert "--micro-batch-size" in written.read_text()
    capsys.readouterr()
    assert main([*files, *options]) == 0
    assert "for megatron  costs " in capsys.readouterr().out


def test_a_strategy_is_one_that_a_framework_trains_where_there_is_one(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """ZeRO-2 in a pipeline with a tied embedding is Galvatron's alone, and without its limits zb-v is shorter."""
    options = ("--global-batch", "16", "--budget", "0.5", "--pp", "2", "--zero", "2")
    assert main([*files, *options, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert "for" not in printed  # nobody asked for Galvatron
    assert any("a framework that runs it" in of["requires"] for of in printed["shorter"])
    assert all(of["best"]["step_s"] < printed["step_s"] for of in printed["shorter"])
    assert main([*files, *options]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "shorter no framework trains the shortest strategy (" in text
    assert text.endswith("--for galvatron")
    assert main([*files, *options, "--schedule", "zb-h1"]) == 0
    assert "none of them runs this one" in " ".join(capsys.readouterr().out.split())


def test_the_shortest_question_has_an_answer_and_the_command_that_runs_it(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A model, a cluster and a framework; a step of so small a model is GPT-3's of 0.5 M tokens (its Table 2.1)."""
    question = (*files, "--for", "megatron", "--budget", "0.5")
    assert main([*question, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["strategy"]["global_batch"] * CONFIG["n_positions"] == 2**19
    words = shlex.split(printed["command"])
    assert words[:6] == ["torchrun", "--nnodes", "2", "--nproc-per-node", "4", "pretrain_gpt.py"]
    sizes = {"hidden-size": 64, "num-layers": 8, "num-attention-heads": 4, "seq-length": 64, "ffn-hidden-size": 4 * 64}
    assert {name: words[words.index(f"--{name}") + 1] for name in sizes} == {k: str(v) for k, v in sizes.items()}
    assert "--num-query-groups" not in words
    assert "--untie-embeddings-and-output-weights" not in words  # GPT-2's are tied

    assert main(question) == 0
    shown = capsys.readouterr().out
    assert "pair: 2 nodes of 4 devices with 16.0 GB, 10.0 GB/s inside a node, 1.25 GB/s between nodes" in " ".join(
        shown.split()
    )
    assert shlex.split(shown[shown.index("torchrun") : shown.index(" next ")].replace("\\\n", "")) == words
    assert "--vocab-size N" in shown


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (("--forbid", "pipeline", "--forbid", "operator"), {"pp": 1, "vp": 1, "tp": 1}),
        (("--forbid", "data", "--dtype", "float32"), {"dp": 1, "precision": "fp32"}),
        (("--thorough", "--equal-replicas", "--cut-at", "blocks"), {}),
    ],
)
def test_options_of_all_plans_hold_for_strategies(
    files: tuple[str, ...], options: tuple[str, ...], fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*files, *options, "--global-batch", "16", "--budget", "0.5", "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["kind"] == "strategy"
    assert {name: printed["strategy"][name] for name in fields} == fields


def test_a_pipeline_is_planned_where_it_gains_min_gain(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its gain is that of its step over the one of data parallelism, which is what is planned with more to gain."""

    def planned(min_gain: float) -> dict[str, Any]:
        assert main([*files, "--global-batch", "16", "--budget", "0.5", "--min-gain", str(min_gain), *rest]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    rest = ("--zero", "1", "--json")  # which is a setting that has to gain something, too
    pipeline, replicas = planned(0.0), planned(0.9)
    assert pipeline["strategy"]["pp"] > 1 and replicas["strategy"]["dp"] == 8
    gain = 1.0 - pipeline["step_s"] / replicas["step_s"]
    assert planned(0.9 * gain)["strategy"] == pipeline["strategy"]
    assert planned(1.1 * gain)["strategy"]["pp"] == 1  # on all devices, or on those of one node


def test_the_batch_of_a_transformer_is_the_micro_batch_of_its_strategies(files: tuple[str, ...]) -> None:
    request = plan_request(Source(files[0], SourceKind.CONFIG, batch=2), "p4d-4", {"max_stages": 2}, device="a100")
    assert isinstance(request, StrategyRequest)
    assert request.fields == {"micro_batch": 2}


def test_max_stages_bounds_the_ranks_of_a_pipeline(files: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*files, "--max-stages", "2", "--forbid", "data", "--global-batch", "16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"]["pp"] <= 2


def test_nothing_fits_and_the_least_change_that_would_is_named(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """3.5 GB hold what the runtime needs, and nothing beside three kinds of groups of devices."""
    options = ("--global-batch", "16", "--tp", "2", "--pp", "2", "--dp", "2", "--memory", "3.5 GB")
    assert main([*files, *options]) == 3
    message = capsys.readouterr().err
    assert "no strategy of 16 samples fits the memory of 3.5 GB" in message
    assert "open: the best strategy found then takes" in message


@pytest.mark.parametrize(("pp", "layers"), [(4, None), (7, (1, 2, 2, 2, 2, 2, 1)), (8, (1, 1, 2, 2, 2, 2, 1, 1))])
def test_layers_that_make_no_equal_stages_are_priced_as_frameworks_split_them(
    pp: int, layers: tuple[int, ...] | None
) -> None:
    """Twelve layers by hand: with an embedding and a head as large as a layer seven stages are equal; eight are not,
    and those in the middle have one more. A price was refused, with 94 layers on 8 ranks, say."""
    strategy = am.price("gpt2", gpus=f"{pp}xa100", pp=pp, global_batch=8, dropout=False).strategy
    assert strategy.layers == layers


def test_a_warning_names_options_as_people_type_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It had the library's argument, in backticks."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 96, "vocab_size": 256, "moe_intermediate_size": 32, "n_routed_experts": 4}
    sizes |= {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 1, "q_lora_rank": None}
    sizes |= {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1, **sizes}))
    assert main([str(file), "--gpus", "1xh100", "--price", "--sequence", "128", "--global-batch", "1"]) == 0
    assert "--mtp 0 leaves it out" in capsys.readouterr().err


def test_a_strategy_that_does_not_fit_is_printed_and_has_the_code_of_what_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had 0, as what fits has; 70 billion parameters with gradients and moments are 1.1 TB on a device."""
    question, plan = ["llama3-70b", "--gpus", "8xh100", "--global-batch", "8"], tmp_path / "plan.json"
    assert main([*question, "--price", "--out", str(plan)]) == 3
    assert "does not fit" in capsys.readouterr().out
    assert main([*question[:3], "--plan", str(plan), "--json"]) == 3
    priced = json.loads(capsys.readouterr().out)
    assert (priced["verdict"], priced["fits"]) == ("does not fit", False)
    assert main(["llama3-8b", *question[1:], "--price", "--zero", "3", "--recompute", "full"]) == 0


def test_of_a_deep_pipeline_the_first_the_fullest_and_the_last_rank_have_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The 32 ranks of qwen3-235b-a22b filled a screen, each with some megabytes less than the one before."""
    question = ["llama3-70b", "--gpus", "16xh100", "--pp", "16", "--global-batch", "64", "--price"]
    assert main([*question, "--json"]) == 3
    totals = [rank["total"] for rank in json.loads(capsys.readouterr().out)["memory"]]
    assert main(question) == 3
    _, _, table = capsys.readouterr().out.partition("\nrank ")
    rows = [line.split() for line in table.split("\n\n")[0].splitlines()[2:]]
    fullest = totals.index(max(totals))
    assert [row[0] for row in rows][:1] + [row[0] for row in rows][-1:] == ["0", "15"]
    assert fullest in (0, 15) or str(fullest) in [row[0] for row in rows]
    assert len(rows) <= 5
    for row in rows:
        first, _, last = row[0].partition("–")
        most = max(totals[int(first) : int(last or first) + 1])
        assert float(row[-2]) == pytest.approx(most / 1e9, rel=5e-3)
