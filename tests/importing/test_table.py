"""Files that a configuration names are strangers' files, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from automap_models.errors import BadInput
from automap_models.importing.reader import read_setting

AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 1\ndeepspeed: {}\n"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("z3.json", b"\x7fELF\xd0\xff", "is no text"),
        ("z3.json", b"root:x:0:0", "is not valid JSON"),
        ("z3.json", b"[3]", "not a mapping"),
        ("z3", b"{}", None),
        (".", None, "names ., which is not there"),
        ("[1, 2]", None, "which is not there"),
        ("x" * 5000, None, "which is not there"),
        ("/dev/zero", None, "which is not there"),
    ],
)
def test_a_deepspeed_file_that_is_none_is_refused_by_name(
    name: str, content: bytes | None, sentence: str | None, tmp_path: Path
) -> None:
    """A program in place of the JSON, and a name that no file can have, came with their tracebacks."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL.format(name))
    if content is not None:
        (tmp_path / name).write_bytes(content)
    if sentence is None:
        assert read_setting(str(path), {}).runtime == "deepspeed"
        return
    with pytest.raises(BadInput) as error:
        read_setting(str(path), {})
    assert sentence in error.value.what and "axolotl.yaml" in str(error.value.where)


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("tensor_parallel_size: 0", "`tp`"),
        ("gradient_accumulation_steps: -2", "`micro_batches`"),
        ("gradient_accumulation_steps: 999999999999999989", "`micro_batches`"),
    ],
)
def test_counts_are_numbers_that_people_give(line: str, where: str, tmp_path: Path) -> None:
    """0 ended in a division by it, and a prime of eighteen digits looked for its divisors without end."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL.replace("deepspeed: {}\n", line))
    with pytest.raises(BadInput, match="give 1 to 2,147,483,647") as error:
        read_setting(str(path), {})
    assert where in str(error.value.where)


VERL = """actor_rollout_ref:
  model: {path: meta-llama/Llama-3.1-8B}
  actor:
    %s
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""


@pytest.mark.parametrize("actor", ["strategy: fsdp", "ppo_mini_batch_size: 7", "use_dynamic_bsz: true"])
def test_an_update_of_the_actor_may_say_little(actor: str, tmp_path: Path) -> None:
    path = tmp_path / "verl.yaml"
    path.write_text(VERL % actor)
    assert read_setting(str(path), {}).fields["global_batch"] == (7 if "mini" in actor else 256)


def test_a_better_setting_has_no_section_without_a_name(tmp_path: Path) -> None:
    """`None:` was to be added to verl's file, for an optimizer that it does not name."""
    path = tmp_path / "verl.yaml"
    path.write_text(VERL % "strategy: megatron\n    ppo_micro_batch_size_per_gpu: 1\n    ppo_mini_batch_size: 64")
    setting = read_setting(str(path), {})
    better = replace(setting.strategy(8), tp=2, dp=4, zero=0, sequence_parallel=False)
    assert "None:" not in setting.rewrite(better)


def test_llama_factory_adapts_all_matrices_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    """`finetuning_type`, `lora_rank` and `lora_target` are lora, 8 and all in its FinetuningArguments."""
    path = tmp_path / "sft.yaml"
    path.write_text("model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\n")
    training = read_setting(str(path), {}).training
    assert (training.rank, training.targets) == (8, ("*",))
    hash(training)  # of which blocks are told apart


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"zero_optimization": {"stage": %s%s}}' % ("[" * 500, "]" * 500), "is nested too deeply"),  # noqa: UP031
        ('{"train_batch_size": 8, "name": "\x7f\ufffe", "zero_optimization": {"stage": 2}}', None),
    ],
)
def test_json_that_yaml_cannot_read_is_read_or_refused(text: str, sentence: str | None, tmp_path: Path) -> None:
    """Edits keep lines by YAML's marks, which ended in a traceback."""
    path = tmp_path / "zero.json"
    path.write_text(text, encoding="utf-8")
    if sentence is None:
        assert read_setting(str(path), {}).fields["zero"] == 2
        return
    with pytest.raises(BadInput, match=sentence):
        read_setting(str(path), {})


LLAMA_FACTORY = "model_name_or_path: meta-llama/Llama-3.1-8B\nfinetuning_type: full\nstage: %s\n"


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        (AXOLOTL.format("") + "rl: dpo\n", "dpo"),
        (AXOLOTL.format("") + "rl: dpo\nprecompute_ref_log_probs: true\n", "pairs"),
        (AXOLOTL.format("") + "rl: orpo\n", "pairs"),
        (AXOLOTL.format("") + "reward_model: true\n", "reward"),
        (AXOLOTL.format(""), "tokens"),
        (LLAMA_FACTORY % "sft", "tokens"),
        (LLAMA_FACTORY % "dpo", "dpo"),
        (LLAMA_FACTORY % "dpo\npref_loss: simpo", "pairs"),
        (LLAMA_FACTORY % "sft\npref_loss: simpo", "tokens"),
        (LLAMA_FACTORY % "rm", "reward"),
    ],
)
def test_the_loss_is_that_of_the_file(text: str, loss: str, tmp_path: Path) -> None:
    """LLaMA-Factory has a reference with stage dpo, but for pref_loss orpo and simpo (hparams/parser.py)."""
    path = tmp_path / "training.yaml"
    path.write_text(text.replace("deepspeed: \n", ""))
    setting = read_setting(str(path), {})
    assert setting.training.loss == loss and not {"rl", "stage", "reward_model"} & {*setting.unread}


@pytest.mark.parametrize("text", [AXOLOTL.format("") + "rl: grpo\n", LLAMA_FACTORY % "ppo"])
def test_a_loss_that_generates_is_asked_for(text: str, tmp_path: Path) -> None:
    path = tmp_path / "training.yaml"
    path.write_text(text.replace("deepspeed: \n", ""))
    assert {"rl", "stage"} & {*read_setting(str(path), {}).unread}


@pytest.mark.parametrize(
    ("text", "documents", "noted"),
    [
        (AXOLOTL.format(""), "one", "full length"),
        (AXOLOTL.format("") + "sample_packing: true\n", "apart", "`packed` says"),
        (LLAMA_FACTORY % "sft\npacking: true\nneat_packing: true", "apart", "`packed` says"),
        (LLAMA_FACTORY % "sft\npacking: true", "together", ""),
    ],
)
def test_packed_samples_are_noted(text: str, documents: str, noted: str, tmp_path: Path) -> None:
    """Without packing samples are padded, and without neat_packing attention reads across documents."""
    path = tmp_path / "training.yaml"
    path.write_text(text.replace("deepspeed: \n", ""))
    setting = read_setting(str(path), {})
    assert setting.documents == documents
    assert noted in "".join(setting.notes) and bool(noted) == bool(setting.notes)


ACCELERATE = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n{}\n"
LLAMA_FACTORY = "model_name_or_path: meta-llama/Llama-3.1-8B\nfinetuning_type: full\nbf16: {}\ntf32: true\n"
DEEPSPEED = '{{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": true}}, {}}}'
ACTOR = "actor_rollout_ref: {{model: {{path: Qwen/Qwen2.5-7B, {}}}, actor: {{strategy: fsdp}}}}\n"
NEMO = "model: {{micro_batch_size: 1, num_layers: 2, hidden_size: 64, num_attention_heads: 2, {}}}"
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = 2\n{}\n'


@pytest.mark.parametrize(
    ("ending", "text", "noted", "unread"),
    [
        (".yaml", AXOLOTL.format("''") + "bf16: false\ntf32: true\n", "tf32", ""),
        (".yaml", AXOLOTL.format("''") + "bf16: auto\ntf32: true\n", "", ""),
        (".yaml", AXOLOTL.format("''") + "eager_attention: true\n", "eager_attention", ""),
        (".yaml", AXOLOTL.format("''") + "attn_implementation: eager\n", "attn_implementation", ""),
        (".yaml", AXOLOTL.format("''") + "attn_implementation: flash_attention_2\n", "", ""),
        (".yaml", AXOLOTL.format("''") + "torch_compile: true\ntorch_compile_backend: inductor\n", "torch_compile", ""),
        (".yaml", AXOLOTL.format("''") + "gptq: true\n", "", "gptq"),
        (".yaml", AXOLOTL.format("''") + "use_anything: true\n", "", "use_anything"),
        (".yaml", LLAMA_FACTORY.format("false"), "tf32", ""),
        (".yaml", LLAMA_FACTORY.format("true"), "", ""),
        (".yaml", LLAMA_FACTORY.format("true") + "flash_attn: disabled\n", "flash_attn", ""),
        (".yaml", LLAMA_FACTORY.format("true") + "flash_attn: fa2\n", "", ""),
        (
            ".yaml",
            LLAMA_FACTORY.format("true") + "fsdp_config: {fsdp_offload_params: true}\n",
            "",
            "fsdp_config.fsdp_offload_params",
        ),
        (".yaml", ACCELERATE.format("dynamo_config: {dynamo_backend: INDUCTOR}"), "dynamo_config.dynamo_backend", ""),
        (".yaml", ACCELERATE.format("dynamo_config: {dynamo_backend: 'no'}"), "", ""),
        (
            ".yaml",
            ACCELERATE.format("fsdp_config: {fsdp_auto_wrap_policy: NO_WRAP}"),
            "fsdp_config.fsdp_auto_wrap_policy",
            "",
        ),
        (".yaml", ACCELERATE.format("use_cpu: true"), "", "use_cpu"),
        (".json", DEEPSPEED.format('"amp": {"enabled": true}'), "", "amp.enabled"),
        (".json", DEEPSPEED.format('"communication_data_type": "fp32"'), "communication_data_type", ""),
        (
            ".json",
            DEEPSPEED.format('"zero_optimization": {"overlap_comm": false}'),
            "zero_optimization.overlap_comm",
            "",
        ),
        (".json", DEEPSPEED.format('"zero_optimization": {"overlap_comm": true}'), "", ""),
        (".yaml", ACTOR.format("use_fused_kernels: true"), "actor_rollout_ref.model.use_fused_kernels", ""),
        (".yaml", NEMO.format("fp32_residual_connection: true"), "model.fp32_residual_connection", ""),
        (".yaml", NEMO.format("bias_activation_fusion: false"), "model.bias_activation_fusion", ""),
        (".yaml", NEMO.format("bias_activation_fusion: true"), "", ""),
        (".toml", TITAN.format("[compile]\nenable = true"), "compile.enable", ""),
        (".toml", TITAN.format("disable_loss_parallel = true"), "parallelism.disable_loss_parallel", ""),
        (".sh", "pretrain_gpt.py --overlap-grad-reduce --bf16 --attention-backend unfused", "--attention-backend", ""),
        (".sh", "pretrain_gpt.py --overlap-grad-reduce --bf16 --attention-backend flash", "", ""),
        (".sh", "pretrain_gpt.py --bf16 --attention-backend flash", "--overlap-grad-reduce", ""),
        (
            ".sh",
            "pretrain_gpt.py --overlap-grad-reduce --bf16 --tp-comm-overlap --sequence-parallel",
            "--tp-comm-overlap",
            "",
        ),
    ],
)
def test_what_changes_the_step_is_noted_or_asked_for(
    ending: str, text: str, noted: str, unread: str, tmp_path: Path
) -> None:
    """They were passed over, as logging is."""
    path = tmp_path / f"config{ending}"
    path.write_text(text.replace("deepspeed: ''\n", ""))
    setting = read_setting(str(path), {})
    assert [note.split("`")[1] for note in setting.notes if note.startswith("`")] == [noted][: len(noted)]
    assert [*setting.unread] == [unread][: len(unread)]
