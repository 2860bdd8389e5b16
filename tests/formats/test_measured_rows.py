"""Measured steps: a row of each published source against figures worked out by hand, and mistakes in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from published_rows import GPT3, LLAMA_8B, bloom, gpt, measured, reason, torchtitan

from automap_models.core.strategy import Strategy
from automap_models.core.tuning import FULL, Training
from automap_models.formats.measured_rows import network_in


def test_megatron_s_teraflops_are_seconds_by_its_formula(tmp_path: Path) -> None:
    """96·1536·2048·96·12288²·(1 + 2048/(6·12288) + 51200/(16·96·12288)) FLOP at 384 · 153 TFLOP/s: 76.78 s."""
    step = measured(tmp_path)
    assert step.step_s == pytest.approx(76.78, rel=1e-4)
    assert step.strategy == Strategy(
        micro_batch=1, global_batch=1536, tp=8, pp=12, dp=4, recompute="full", precision="fp16"
    )
    model = step.model
    assert (model.family, model.shape.heads, model.shape.ffn, step.runtime.flash) == ("gpt", 96, 49152, False)
    assert (step.device, step.cluster.nodes, step.cluster.devices_per_node) == ("a100", 48, 8)
    assert (step.cluster.intra, step.cluster.inter, step.cluster.memory) == (300e9, 8 * 25e9, 80 * 2**30)
    assert (step.memory_bytes, step.fits) == (None, True)


def test_memory_of_korthikanti_is_state_and_activations_with_sequence_parallelism_where_it_is_selective(
    tmp_path: Path,
) -> None:
    """Their Figure 1; 530B on 35 stages of 3 virtual ones is interleaved."""
    values = {
        "system": "Megatron-LM 2022",
        "model": gpt(105, 20480, 128, 2048, 51200),
        "gpus": 280,
        "pp": 35,
        "vp": 3,
        "dp": 1,
        "global_batch": 280,
        "recompute": "selective (attention)",
        "measured": {"memory_params_optimizer_gib": 31.640625, "memory_activations_gib": 23.076171875},
    }
    step = measured(tmp_path, **values)
    assert step.memory_bytes == (31.640625 + 23.076171875) * 2**30
    assert step.step_s is None
    assert (step.strategy.schedule, step.strategy.recompute) == ("interleaved", "selective")
    assert step.fits is None  # nobody says that these ran
    assert step.strategy.sequence_parallel
    assert not measured(tmp_path, **{**values, "recompute": "none"}).strategy.sequence_parallel
    assert not measured(tmp_path, **{**values, "system": "Megatron-LM 2021"}).strategy.sequence_parallel


@pytest.mark.parametrize(
    ("values", "flash"),
    [
        ({}, True),
        ({"flags": ["attention unfused"]}, False),
        ({"flash": False}, False),
        ({"system": "Megatron-LM 2021", "flash": True}, True),
    ],
)
def test_a_row_may_say_whether_attention_is_a_flash_kernel(values: dict[str, Any], flash: bool, tmp_path: Path) -> None:
    """Megatron's tests of a mixture were priced with one: their memory at 0.37 of what was measured."""
    assert measured(tmp_path, **{"system": "Megatron-LM CI 2026", **values}).runtime.flash is flash


@pytest.mark.parametrize(
    ("values", "fits"),
    [({}, True), ({"unknown": ["dispatcher"]}, True), ({"unknown": ["recompute", "overlap"]}, None)],
)
def test_what_nobody_says_to_recompute_tells_nothing_of_what_fits(
    values: dict[str, Any], fits: bool | None, tmp_path: Path
) -> None:
    assert measured(tmp_path, recompute=None, **values).fits is fits


@pytest.mark.parametrize(
    ("modules", "recompute"),
    [(["moe", "layernorm", "core_attn"], "layernorm+moe+core_attn"), (["moe_act"], "moe_act"), ([], "none")],
)
def test_modules_that_are_recomputed_are_the_strategy_s(modules: list[str], recompute: str, tmp_path: Path) -> None:
    values = {"recompute": "selective", "recompute_modules": modules}
    assert measured(tmp_path, system="Megatron-Bridge 26.04", **values).strategy.recompute == recompute


def test_one_device_of_a_larger_node_is_a_cluster_of_one(tmp_path: Path) -> None:
    step = measured(
        tmp_path,
        system="OneFlow-GPT 2021",
        model=gpt(16, 1536, 16, 2048, 51200),
        gpus=1,
        gpu_type="V100-SXM2-16GB",
        **dict.fromkeys(("tp", "pp", "dp"), 1),
        micro_batch=2,
        global_batch=2,
        measured={"iteration_s": 0.40616, "tflops_per_gpu": 49.43, "memory_gib": 10.807},
    )
    assert (step.cluster.nodes, step.cluster.devices_per_node) == (1, 1)
    assert (step.device, step.cluster.inter, step.cluster.memory) == ("v100", 12.5e9, 16 * 2**30)
    assert step.step_s == 0.40616
    assert step.memory_bytes == pytest.approx(11.604e9, rel=1e-4)


def test_memory_may_be_stated_as_a_share_of_what_drivers_find_on_the_device(tmp_path: Path) -> None:
    """84.04 % of an MI355X's 288 GiB were 259.9 GB in Primus's rows, which said nothing of memory before."""
    step = measured(tmp_path, **bloom(measured={"iteration_s": 10.0, "memory_percent": 50.0}))
    assert (step.memory_bytes, step.only_tensors) == (40 * 2**30, False)


def test_bloom_leaves_a_layer_out_at_both_ends_and_runs_on_omni_path(tmp_path: Path) -> None:
    step = measured(tmp_path, "8 GPUs a node, 4 Omni-Path links a node (100 Gb/s each by the vendor)", **bloom())
    assert step.strategy.layers == (5, *[6] * 10, 5)
    assert step.cluster.inter == 4 * 12.5e9
    assert step.memory_bytes == 59e9
    assert (step.strategy.zero, step.strategy.precision) == (1, "bf16")
    assert (step.runtime.gradient_bytes, step.runtime.buffer_bytes) == (6, 2e9)
    assert measured(tmp_path, **bloom(precision="fp16")).runtime.gradient_bytes == 2


def test_deepspeed_fills_stages_one_after_the_other(tmp_path: Path) -> None:
    """78 layers on 12 stages: 7 at most, so that 11 stages have 7 and the last one has 1."""
    step = measured(
        tmp_path,
        **bloom(model=gpt(78, 13824, 96, 2048, 250880), measured={"iteration_s": 107.12, "tflops_per_gpu": 151.64}),
    )
    assert step.strategy.layers == (*[7] * 11, 1)


def test_heads_that_nobody_published_are_about_128_wide(tmp_path: Path) -> None:
    """14400 has the divisors 16, 32, 48, 80, 96, 144, … among multiples of 16; BLOOM's trials had 96 of 150."""
    model = {**gpt(80, 14400, 1, 2048, 250880), "heads": None, "kv_heads": None}
    step = measured(tmp_path, **bloom(model=model, tp=8, pp=10, gpus=320, dp=4, measured={"iteration_s": 221.21}))
    assert (step.model.shape.heads, step.model.shape.kv_heads) == (96, 96)


def test_a_run_out_of_memory_does_not_fit_and_a_failure_says_nothing(tmp_path: Path) -> None:
    assert measured(tmp_path, **bloom(measured={"oom": True})).fits is False
    assert measured(tmp_path, **bloom(measured={"failed": True})).fits is None
    assert measured(tmp_path, **bloom(measured={"oom": True})).step_s is None


@pytest.mark.parametrize(
    ("word", "vp", "schedule", "virtual", "layers"),
    [
        ("1F1B", 1, "1f1b", 1, (1, *[2] * 14, 1)),
        ("ZB-1p", 1, "zb-h1", 1, (1, *[2] * 14, 1)),
        ("ZB-2p", 1, "zb-h2", 1, (1, *[2] * 14, 1)),
        ("ZB-V", 2, "zb-v", 2, (0, *[1] * 30, 0)),
        ("1F1B-I", None, "interleaved", 2, (0, *[1] * 30, 0)),
    ],
)
def test_zero_bubble_s_schedules_by_their_names(
    tmp_path: Path, word: str, vp: int | None, schedule: str, virtual: int, layers: tuple[int, ...]
) -> None:
    """288 samples at 66.4 a second; the vocabulary is padded to a multiple of 128."""
    step = measured(
        tmp_path,
        system="Megatron-LM 2023 + zero bubble",
        model=gpt(30, 4096, 32, 1024, 50257),
        gpus=16,
        tp=1,
        pp=16,
        dp=1,
        vp=vp,
        micro_batch=6,
        global_batch=288,
        schedule=word,
        recompute="none",
        measured={"samples_per_s": 66.4},
    )
    assert (step.strategy.schedule, step.strategy.vp) == (schedule, virtual)
    assert step.strategy.layers == layers
    assert step.step_s == pytest.approx(4.33735, rel=1e-5)
    assert (step.model.shape.vocabulary, step.runtime.flash) == (393 * 128, False)


def test_amp_s_cuts_are_counted_in_deepspeed_s_modules(tmp_path: Path) -> None:
    """Modules 0 and 1 are the embedding and a transposition, 2 to 25 the layers, 26 to 29 what comes after them."""
    step = measured(
        tmp_path,
        system="DeepSpeed 3D (AMP)",
        model=gpt(24, 1024, 16, 1024, 52256),
        gpus=16,
        gpu_type="T4-16GB",
        gpus_per_node=4,
        tp=1,
        pp=4,
        dp=4,
        global_batch=32,
        recompute=None,
        zero=None,
        measured={"iteration_s": 1.2},
        note="pipeline cuts (layer indices of the DeepSpeed module list): [0, 9, 15, 21, 30]",
    )
    assert step.strategy.layers == (7, 6, 6, 5)
    assert (step.strategy.recompute, step.strategy.zero) == ("none", 0)
    assert (step.device, step.cluster.inter, step.cluster.memory) == ("t4", 6.25e9, 16 * 2**30)


def test_tokens_a_second_on_a_device_are_seconds_of_a_step(tmp_path: Path) -> None:
    """Megatron-Bridge: 1536 · 8192 tokens at 1024 · 326 a second; 126 layers and two ends on 64 virtual stages."""
    model = {**LLAMA_8B, "layers": 126, "hidden": 16384, "ffn": 53248, "heads": 128}
    step = measured(
        tmp_path,
        system="Megatron-Bridge 26.06",
        model=model,
        gpus=1024,
        gpu_type="H100",
        pp=8,
        vp=8,
        dp=8,
        cp=2,
        schedule="interleaved 1F1B",
        recompute=None,
        zero=1,
        precision="FP8-CS",
        measured={"tokens_per_s_per_gpu": 326.0},
    )
    assert step.step_s == pytest.approx(37.693, rel=1e-4)
    assert step.strategy.layers == (1, *[2] * 62, 1)
    assert (step.strategy.precision, step.strategy.sequence_parallel, step.runtime.flash) == ("fp8", True, True)
    assert (step.model.tied, step.model.dropout) == (False, False)
    assert (step.device, step.runtime.tensor_overlap) == ("h100", 0.7)
    assert step.runtime.gradient_bytes == 2


def test_torchtitan_s_fsdp_on_h100_of_96_gb(tmp_path: Path) -> None:
    """16 · 8192 tokens at 8 · 5762 a second."""
    step = measured(tmp_path, **torchtitan())
    assert step.step_s == pytest.approx(2.84346, rel=1e-5)
    assert (step.device, step.cluster.memory, step.cluster.nodes) == ("h100-96", 96 * 2**30, 1)
    assert (step.model.shape.kv_heads, step.strategy.zero, step.strategy.sequence_parallel) == (8, 3, False)


def test_torchtitan_runs_as_many_micro_batches_as_ranks_and_two_virtual_stages(tmp_path: Path) -> None:
    model = {**LLAMA_8B, "layers": 126, "hidden": 16384, "ffn": 53248, "heads": 128}
    pipeline = {"gpus": 512, "tp": 8, "pp": 8, "dp": 8, "micro_batch": None, "global_batch": 256, "precision": "fp8"}
    step = measured(
        tmp_path,
        **torchtitan(model=model, **pipeline, schedule="Interleaved1F1B", measured={"tokens_per_s_per_gpu": 128}),
    )
    assert (step.strategy.micro_batches, step.strategy.micro_batch, step.strategy.vp) == (8, 4, 2)
    assert step.strategy.layers == (7, *[8] * 14, 7)
    assert step.strategy.sequence_parallel


@pytest.mark.parametrize(
    ("note", "fields", "groups"),
    [
        ("HSDP; 400 Gb/s of network a node", {}, 4),
        ("zero1=4, samples packed", {}, 8),
        ("zero1=-1", {}, 1),
        ("FSDP", {}, 1),
        (None, {"dp_replicate": 2}, 2),
    ],
)
def test_groups_within_which_zero_divides_are_in_the_note_or_said(
    tmp_path: Path, note: str | None, fields: dict[str, int], groups: int
) -> None:
    """InternEvo's zero1 counts the ranks of a group, and HSDP has one in each node: of 32 ranks."""
    row = torchtitan(gpus=32, dp=32, gpus_per_node=8, zero=1, global_batch=64, note=note, **fields)
    assert measured(tmp_path, **row).strategy.dp_replicate == groups


@pytest.mark.parametrize(
    ("note", "overlaps"),
    [("async TP; torch.compile", True), ("2D + AsyncTP", True), ("vanilla TP; torch.compile", False), (None, False)],
)
def test_async_tensor_parallelism_is_in_the_note(tmp_path: Path, note: str | None, overlaps: bool) -> None:
    parallel = {"gpus": 64, "tp": 8, "global_batch": 96, "micro_batch": 12}
    assert measured(tmp_path, **torchtitan(**parallel, note=note)).runtime.tensor_overlap == (0.35 if overlaps else 0.0)
    assert not measured(tmp_path, **torchtitan(note=note)).runtime.tensor_overlap


@pytest.mark.parametrize(
    ("values", "share"),
    [({"tp_comm_overlap": False}, 0.0), ({"precision": "nvfp4"}, 0.0), ({"tp_comm_overlap": True}, 0.7), ({}, 0.7)],
)
def test_sums_of_tensor_parallelism_go_beside_nothing_where_that_is_off(
    tmp_path: Path, values: dict[str, Any], share: float
) -> None:
    """By their configurations MLPerf's steps on L40S and in 4 bits do not; on L40S they were priced at 0.58."""
    row = {"gpus": 64, "tp": 8, "precision": "fp8", "system": "NeMo 25.04", **values}
    assert measured(tmp_path, **torchtitan(**row)).runtime.tensor_overlap == share


@pytest.mark.parametrize(
    ("note", "day"),
    [
        ("section 'GBS Variations', 02-25", "02-25"),
        ("measured 2022-02-25, second iteration", "2022-02-25"),
        ("container 25.09-12; ranks 12-16 and 13-02", ""),
        (None, ""),
    ],
)
def test_the_day_of_a_trial_is_in_the_note(tmp_path: Path, note: str | None, day: str) -> None:
    assert measured(tmp_path, **torchtitan(note=note)).day == day


def test_a_scale_for_every_row_is_no_precision(tmp_path: Path) -> None:
    assert measured(tmp_path, **torchtitan(precision="float8 tensorwise")).strategy.precision == "fp8"
    assert "float8 with a scale for every row" in reason(tmp_path, **torchtitan(precision="float8 rowwise"))


def test_llm_foundry_on_a100_of_40_gb_has_flash_attention_and_no_dropout(tmp_path: Path) -> None:
    """192 · 2048 tokens at 8 · 9000 a second."""
    step = measured(
        tmp_path,
        system="llm-foundry (PyTorch FSDP)",
        model=gpt(32, 2560, 20, 2048, 50368),
        gpus=8,
        gpu_type="A100-40GB",
        tp=1,
        pp=1,
        dp=8,
        micro_batch=4,
        global_batch=192,
        recompute="none",
        zero=3,
        precision="bf16",
        measured={"tokens_per_s_per_gpu": 9000, "mfu_percent": 55},
    )
    assert step.step_s == pytest.approx(5.46133, rel=1e-5)
    assert (step.device, step.cluster.memory, step.strategy.micro_batches) == ("a100-40", 40 * 2**30, 6)
    assert (step.runtime.flash, step.model.dropout, step.model.tied) == (True, False, True)


def test_megatron_s_tests_on_two_trays_of_gb200(tmp_path: Path) -> None:
    step = measured(
        tmp_path,
        system="Megatron-LM CI (dev)",
        model={**gpt(32, 4096, 32, 8192, 131073), "kv_heads": 8},
        gpus=8,
        gpu_type="GB200",
        gpus_per_node=4,
        tp=1,
        pp=4,
        dp=2,
        vp=8,
        global_batch=8,
        schedule="interleaved 1F1B",
        recompute="none",
        zero=1,
        precision="bf16",
        measured={"iteration_s": 0.787, "memory_max_allocated_bytes": 60519342080, "memory_allocated_bytes": 1},
    )
    assert (step.cluster.nodes, step.cluster.devices_per_node, step.cluster.inter) == (2, 4, 3.6e12)
    assert (step.memory_bytes, step.step_s) == (60519342080, 0.787)
    assert (step.model.shape.vocabulary, step.model.tied, step.runtime.flash) == (1025 * 128, False, True)
    assert step.strategy.layers is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"dp": 8}, "are 768 devices, cluster dgx-a100-4 has 384"),
        ({"model": {**GPT3, "arch": "llama", "ffn": None}}, "`ffn`: is not stated"),
        ({"model": {**GPT3, "layers": None}}, "`layers`: is not stated"),
        ({"gpu_type": "MI100"}, "no device is shipped for 'MI100'"),
        ({"gpu_type": "H100-80GB PCIe"}, "no device is shipped"),
        ({"gpus_per_node": 7}, "384 devices do not fill nodes of 7"),
        ({"model": {**GPT3, "arch": "mamba"}}, "'mamba' is none of gpt, gpt2"),
        ({"model": {**GPT3, "experts": 8}}, "`topk`: is not stated"),
        ({"model": {**GPT3, "vocab": None}}, "`vocab`: is not stated"),
        ({"tp": None}, "`tp`: is not stated"),
        ({"global_batch": None}, "`global_batch`: is not stated"),
        ({"micro_batch": None}, "`micro_batch`: is not stated"),
        ({"schedule": "DAPPLE"}, "'DAPPLE' is none of"),
        ({"recompute": "block"}, "'block' is none of none, selective, offload, full"),
        ({"precision": "int8"}, "'int8' is none of fp32, fp16, bf16, fp8"),
        ({"micro_batch": 5}, "do not divide 1536"),
        ({"measured": {}}, "neither time nor memory is stated"),
        ({"measured": {"iteration_s": 66.7, "tflops_per_gpu": 200}}, "1.14 of the FLOP of its sizes"),
        ({"topo": "Z"}, "neither a known cluster nor a file"),
    ],
)
def test_a_row_that_cannot_be_priced_says_why(tmp_path: Path, values: dict[str, Any], sentence: str) -> None:
    assert sentence in reason(tmp_path, **values)


@pytest.mark.parametrize(
    ("gpu_type", "device"),
    [
        *(("A100-80GB PCIe", "a100-pcie"), ("AMD MI250X", "mi250x"), ("L4 24GB", "l4"), ("L40S", "l40s")),
        *(("A10G", "a10g"), ("GeForce RTX 5090", "rtx5090"), ("RTX PRO 6000 Blackwell", "rtx-pro-6000")),
    ],
)
def test_a_row_names_its_device_as_people_do(tmp_path: Path, gpu_type: str, device: str) -> None:
    assert measured(tmp_path, gpu_type=gpu_type, topo=None).device == device


def test_a_row_may_state_what_its_system_leaves_open(tmp_path: Path) -> None:
    step = measured(tmp_path, sequence_parallel=True, layers_per_stage=[*[9] * 6, *[7] * 6], topo="jean-zay-a100")
    assert step.strategy.sequence_parallel
    assert step.strategy.layers == (*[9] * 6, *[7] * 6)
    assert (step.cluster.name, step.cluster.nodes) == ("jean-zay-a100", 48)


@pytest.mark.parametrize(
    ("words", "gbit_per_s"),
    [
        ("InfiniBand EDR 100 Gb/s, one HCA a node; 25 Gb/s Ethernet", 100),
        ("400 Gb/s RDMA per GPU; throughput read at iteration 90", 8 * 400),
        ("4 x g4dn.12xlarge (4 T4 each, 50 Gb/s)", 50),
        ("4 Omni-Path links a node (100 Gb/s each by the vendor); measured 15-42 Gb/s", 400),
        ("nothing of a network", 1600),
    ],
)
def test_the_network_is_what_the_source_says_it_is(tmp_path: Path, words: str, gbit_per_s: float) -> None:
    assert measured(tmp_path, words).cluster.inter == gbit_per_s / 8 * 1e9
    assert measured(tmp_path, words, topo="dgx-h100-4").cluster.inter == 400e9


def test_what_follows_from_the_rest_may_be_left_out(tmp_path: Path) -> None:
    """384 devices are 8 · 12 · 4; nodes of DGX A100 have 8; FSDP alone divides by nothing but data."""
    step = measured(tmp_path, dp=None, gpus_per_node=None, zero=None)
    assert (step.strategy.dp, step.strategy.zero, step.cluster.nodes) == (4, 0, 48)
    fsdp = {"tp": None, "pp": None, "dp": None, "zero": None, "micro_batch": None, "precision": None, "recompute": None}
    step = measured(tmp_path, **torchtitan(**fsdp))
    assert (step.strategy.tp, step.strategy.dp, step.strategy.zero) == (1, 8, 3)
    assert (step.strategy.micro_batch, step.strategy.precision) == (2, "bf16")


def test_deepspeed_gathers_parameter_by_parameter_and_fsdp_layer_by_layer(tmp_path: Path) -> None:
    """A GPT layer has four matrices (q, k and v are one), their biases, and two norms of two."""
    fsdp, deepspeed = measured(tmp_path, **torchtitan()), measured(tmp_path, system="DeepSpeed ZeRO-3")
    assert (fsdp.runtime.gathers_a_layer, deepspeed.runtime.gathers_a_layer) == (1, 4 + 4 + 2 * 2)


def test_no_kernel_computes_attention_as_a_whole_on_v100(tmp_path: Path) -> None:
    row = torchtitan(gpu_type="V100-SXM2-32GB")
    assert (measured(tmp_path, **row).runtime.flash, measured(tmp_path, **torchtitan()).runtime.flash) == (False, True)


def test_a_pipeline_of_more_stages_than_layers_is_refused_before_it_is_laid_out(tmp_path: Path) -> None:
    """A damaged row with 10^12 stages ended in a MemoryError."""
    assert "virtual stages of" in reason(tmp_path, pp=10**12, schedule="1F1B", vp=1)


def test_a_number_of_thousands_of_digits_is_no_bandwidth(tmp_path: Path) -> None:
    """It ended in a ValueError of int."""
    assert network_in(f"{'9' * 5000} links a node (100 Gb/s each)", 8) == pytest.approx(100 * 1e9 / 8)
    assert network_in(f"{'9' * 5000} Gb/s", 8) is None


def test_a_row_may_say_what_is_trained(tmp_path: Path) -> None:
    assert measured(tmp_path).training == FULL
    adapters = {"lora": "16:q,v", "quantize": True, "states": "bf16"}
    tuned = Training(rank=16, targets=("q", "v"), quantize=True, states="bf16")
    assert measured(tmp_path, training=adapters).training == tuned
    assert "no rank" in reason(tmp_path, training={"lora": "q"})
