"""automap doctor: its price is that of automap plan, what is refused is named, and what it advises is read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import automap_models as am
from automap_models.errors import BadInput
from automap_models.importing.reader import read_setting
from automap_models.infer.app import doctor as main

SIZES = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--vocab-size 4096 --bf16 --hidden-dropout 0.0"
)
CONFIG = {
    "model_type": "gpt2",
    "n_embd": 512,
    "n_layer": 8,
    "n_head": 8,
    "n_positions": 1024,
    "vocab_size": 4096,
    "torch_dtype": "bfloat16",
}
"""The same model as a config.json."""
SCRIPT = f"""\
TP=4
ARGS=(
    {SIZES}
    --micro-batch-size 1
    --global-batch-size 32
)
torchrun --nproc-per-node 4 pretrain_gpt.py ${{ARGS[@]}} \\
    --tensor-model-parallel-size $TP \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "run.sh").write_text(SCRIPT)
    return str(tmp_path / "run.sh")


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_price_is_that_of_the_same_strategy_and_model(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code, answer = answered(capsys, script, "--device", "h100")
    fields: dict[str, Any] = {"tp": 4, "micro_batch": 1, "global_batch": 32, "recompute": "full"}
    priced = am.price(
        str(tmp_path / "config.json"), gpus="1x4xh100", sequence=1024, runtime="megatron", precision="bf16", **fields
    )
    assert code == 0
    assert answer["verdict"] == "fits"
    assert answer["current"]["step_s"] == pytest.approx(priced.step_s, rel=1e-9)
    assert answer["current"]["peak_memory_bytes"] == pytest.approx(priced.peak_memory, rel=1e-9)


def test_the_lines_that_are_advised_say_the_better_strategy(script: str, tmp_path: Path) -> None:
    """A model of 30 M parameters needs neither tp nor recomputation; the changed script is read again."""
    answer = am.doctor(script, device="h100")
    assert answer.plan is not None and answer.gain is not None
    assert answer.gain > 0.3
    assert "- TP=4" in answer.changes
    (tmp_path / "better.sh").write_text(answer.setting.rewrite(answer.plan))
    better = read_setting(str(tmp_path / "better.sh"), {})
    assert not better.refusals
    read, names = better.strategy(4), ("tp", "pp", "vp", "dp", "cp", "micro_batch", "global_batch", "recompute", "zero")
    assert [getattr(read, name) for name in names] == [getattr(answer.plan, name) for name in names]
    assert am.price(  # and it takes what was promised
        answer.request.source.model, gpus="1x4xh100", strategy=answer.plan, runtime="megatron"
    ).step_s == pytest.approx(answer.cost.step_s)


def test_a_report_says_what_is_refused_and_what_changes(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(script).write_text(SCRIPT.replace("--bf16", "--bf16 --train-iters 9 --rampup-batch-size 1 1 9"))
    assert main([script, "--gpus", "4xh100"]) == 0
    report = capsys.readouterr().out
    for words in ("megatron is told: tp 4", "--rampup-batch-size", "bound by", "MFU", "fits", "\n- TP=4\n+ TP=1\n"):
        assert words in report, words


def test_degrees_that_do_not_divide_the_devices_are_refused_and_a_setting_is_still_found(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = answered(capsys, script, "--gpus", "2xh100")
    assert code == 0
    assert answer["current"] is None and answer["verdict"] is None
    assert "do not divide the 2 devices" in answer["refusals"][0]
    assert answer["better"] is not None and "- TP=4" in answer["changes"]


def test_what_does_not_fit_and_cannot_be_helped_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "torchrun --nproc-per-node 1 pretrain_gpt.py --num-layers 96 --hidden-size 12288 --num-attention-heads 96 "
        "--seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --fp16 --micro-batch-size 1 "
        "--global-batch-size 8"
    )
    code, answer = answered(capsys, command, "--device", "h100")
    assert (code, answer["verdict"], answer["better"]) == (3, "does not fit", None)


def test_deepspeed_s_file_changes_in_its_own_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """256 samples of 1,024 tokens save 34 · 512 bytes a token and layer, 36 GB, and a device has 24."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "ds.json").write_text(
        '{\n  "train_batch_size": 1024,\n  "train_micro_batch_size_per_gpu": 256,\n  "gradient_accumulation_steps": 1,'
        '\n  "bf16": {"enabled": true}, "zero_optimization": {"stage": 0}\n}\n'
    )
    files = (str(tmp_path / "ds.json"), "--model", str(tmp_path / "config.json"))
    code, answer = answered(capsys, *files, "--gpus", "4xrtx4090", "--sequence", "1024")
    assert (code, answer["verdict"], answer["better"]["verdict"]) == (0, "does not fit", "fits")
    assert '-   "train_micro_batch_size_per_gpu": 256,' in answer["changes"]
    assert not any("train_batch_size" in line for line in answer["changes"])


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("--bf16", {}, "which devices it runs on"),
        ("--bf16 --fp16", {"device": "h100"}, "contradicts"),
        ("--bf16 --micro-batch-size 2", {"device": "h100"}, "line 3 and line 4"),
        ("--bf16 --use-torch-fsdp2", {"device": "h100"}, "--use-torch-fsdp2` (line 3), which may matter"),
        ("--bf16 --pipeline-model-parallel-size $PP", {"device": "h100"}, "PP=VALUE"),
        ("--bf16 --pipeline-model-parallel-size two", {"device": "h100"}, "is 'two'"),
        ("--bf16 --pipeline-model-parallel-layout Ex|L", {"device": "h100"}, "Ett|tttt|ttL"),
        ("--bf16 --moe-layer-freq [0]*99 --num-experts 4", {"device": "h100"}, "does not say which of 8 layers"),
        ("--bf16", {"device": "h100", "micro_batch": 2}, "is 1 in the file"),
        ("--bf16", {"device": "h100", "sequence": 2048}, "is 1024 in the file"),
        ("--bf16", {"device": "h100", "model": "gpt2"}, "has layers 12, and the file says 8"),
        ("--bf16 --num-layers 12", {"device": "h100"}, "contradicts"),
    ],
)
def test_bad_input_costs_one_sentence(script: str, text: str, options: dict[str, Any], sentence: str) -> None:
    Path(script).write_text(SCRIPT.replace("--bf16", text))
    with pytest.raises(BadInput) as raised:
        am.doctor(script, **options)
    assert sentence in str(raised.value)


def test_what_is_ignored_or_set_outside_is_priced(script: str) -> None:
    Path(script).write_text(SCRIPT.replace("--bf16", "--bf16 --use-torch-fsdp2 --pipeline-model-parallel-size $PP"))
    answer = am.doctor(script, device="h100", ignore=["use-torch-fsdp2"], variables={"PP": "1"})
    assert answer.verdict == "fits"


@pytest.mark.parametrize("name", ["nothing.sh", "", "{", "plan.npz"])
def test_what_is_neither_a_file_nor_a_command_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="neither a file nor a command line"):
        am.doctor(name, gpus="8xh100")


def test_an_option_ignores_a_setting_by_its_name_without_dashes(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(script).write_text(SCRIPT.replace("--bf16", "--bf16 --use-torch-fsdp2"))
    assert main([script, "--device", "h100"]) == 2
    assert "--ignore use-torch-fsdp2" in capsys.readouterr().err
    code, answer = answered(capsys, script, "--device", "h100", "--ignore", "use-torch-fsdp2")
    assert (code, [*answer["unread"]]) == (0, ["--use-torch-fsdp2"])


def test_documents_that_share_a_sample_are_priced_by_their_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `automap plan` prices them; the file says that they are apart, and cannot say how long they are."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    text = "base_model: m\nsequence_len: 1024\nsample_packing: true\ngradient_checkpointing: true\n"
    (tmp_path / "sft.yaml").write_text(text)
    arguments = (str(tmp_path / "sft.yaml"), "--model", str(tmp_path / "config.json"), "--gpus", "1xh100")
    _, long = answered(capsys, *arguments)
    code, packed = answered(capsys, *arguments, "--packed", "64")
    assert code == 0 and "--packed" in " ".join(long["notes"]) and "--packed" not in " ".join(packed["notes"])
    assert packed["current"]["step_s"] < long["current"]["step_s"]
    given: dict[str, Any] = {"recompute": "full", "global_batch": 1, "runtime": "fsdp", "states": "bf16", "packed": 64}
    priced = am.price(str(tmp_path / "config.json"), gpus="1xh100", sequence=1024, **given)
    assert packed["current"]["step_s"] == pytest.approx(priced.step_s)


def test_what_is_shorter_and_harder_is_named_and_taken_where_no_gain_is_asked_for(tmp_path: Path) -> None:
    """FSDP of Llama-3-70B on 64 H100 is not worth five harder things that save 6.8 %, each of which is to save 2 %."""
    (tmp_path / "titan.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "70B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
        '[activation_checkpoint]\nmode = "full"\n'
    )
    options: dict[str, Any] = {"gpus": "64xh100", "global_batch": 128}
    answer, shortest = (am.doctor(tmp_path / "titan.toml", **options, min_gain=gain) for gain in (0.02, 0.0))
    assert answer.current is not None and answer.plan is None
    for alternative in answer.shorter:
        assert alternative.estimate is not None
        saved = 1.0 - alternative.estimate.step_s / answer.current.step_s
        assert 0.0 < saved < 1.0 - 0.98 ** len(alternative.requires)
    assert shortest.plan == answer.shorter[0].estimate.strategy and not shortest.shorter  # type: ignore[union-attr]
    priced = am.price("llama3-70b", gpus="64xh100", strategy=shortest.plan, runtime="torchtitan", sequence=8192)
    assert priced.step_s == pytest.approx(shortest.cost.step_s)
    assert "+ parallelism.pipeline_parallel_degree = 4" in shortest.changes
