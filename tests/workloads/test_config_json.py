"""A Hugging Face config.json is a model: the one that transformers builds of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from strategy_problems import DEVICE

from automap_models.api import fit, profile
from automap_models.core.cluster import Cluster
from automap_models.core.instruction_graph import Phase
from automap_models.core.model_work import Mark, WorkKind, WorkPass
from automap_models.errors import BadInput
from automap_models.formats.atomic import Cache
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.sharding_rules import RuledModule
from automap_models.planners.portfolio.model import profiled_once
from automap_models.workloads.catalogue import MODEL_TYPES, WORKLOADS
from automap_models.workloads.catalogue import PUBLISHED as CONFIGS
from automap_models.workloads.config_families import TYPES, families, read_key
from automap_models.workloads.config_json import decode_config, is_config, read_config
from automap_models.workloads.registry import configured, sized
from automap_models.workloads.sizes import Architecture
from automap_models.workloads.source import Source, SourceKind, module_of, source_kind
from automap_models.workloads.transformer import model_work

from . import hugging_face

CLUSTER = Cluster(1, 2, 1e11, 1e10, 80e9)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 16384,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "intermediate_size": 53248,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "intermediate_size": 18432,
    "max_position_embeddings": 163840,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
}
T5_BASE_V1_1: dict[str, Any] = {
    **{"model_type": "t5", "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12},
    **{"num_decoder_layers": 12, "num_heads": 12, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}


def written(document: object, folder: Path) -> Path:
    """The document as a config.json in a folder of the model's name."""
    path = folder / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def parameters(architecture: Architecture) -> int:
    """Number of trainable parameters, by the closed forms; test_transformer.py holds these against JAX's models."""
    work = model_work(architecture, "m", 4, "float32")
    encoding = sum(part.copies * part.layer.parameters.values.sum() for part in work.tower)
    return round(encoding + sum(work.layers[layer].parameters.values.sum() for layer in work.order))


SAMPLES = {
    **{
        "mamba": 512,
        "falcon_mamba": 512,
        "mamba2": 512,
        "t5": 512,
        "mt5": 512,
        "vit": None,
        "deit": None,
        "dinov2": None,
    },
    **{"roberta": 30, "xlm-roberta": 30, "camembert": 30},
}
"""Tokens of a sample of a small model that has no 32 positions for them."""


@pytest.mark.parametrize("model_type", sorted(hugging_face.FAMILIES))
def test_every_family_has_the_parameters_of_transformers_model(model_type: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    config = hugging_face.configuration(model_type)
    with torch.device("meta"):
        model = hugging_face.model_of(config)
    expected = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    predicting = {"mtp": 0} if model_type in ("deepseek_v3", "glm4_moe") else {}  # transformers leaves these layers out
    read = read_config(hugging_face.written(config, tmp_path), **predicting)
    assert parameters(read.architecture) == expected
    assert read.sequence == SAMPLES.get(model_type, 32)


COUNTED_ELSEWHERE = {
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2", "jamba", "bamba", "falcon_h1"), "test_recurrences.py"),
    **dict.fromkeys(("granitemoehybrid", "nemotron_h", "qwen3_next"), "test_recurrences.py"),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), "test_recurrences.py"),
    "deepseek_v4": "test_compressed.py",
    "llama4_text": "transformers has every expert compute every token",
    "dbrx": "torch refuses transformers' clamp of nothing",
}
"""Families whose FLOP are counted by other tests, or are not what a model of transformers computes."""
ALL_TOKENS = {"deepseek_v32": {"index_topk": 24}, "glm_moe_dsa": {"index_topk": 24}}
"""Sizes with which attention is not sparse: transformers computes all scores, and masks them."""


@pytest.mark.parametrize("model_type", sorted({*hugging_face.FAMILIES} - {*COUNTED_ELSEWHERE}))
def test_every_family_has_the_forward_flop_that_torch_counts(model_type: str, tmp_path: Path) -> None:
    """But for those of experts, whose grouped products torch does not count where it has them."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    counter = pytest.importorskip("torch.utils.flop_counter")
    config = hugging_face.configuration(model_type, **ALL_TOKENS.get(model_type, {}))
    model = hugging_face.model_of(config, attn_implementation="eager").eval()
    with counter.FlopCounterMode(display=False) as counted, torch.no_grad():
        model(**hugging_face.inputs(config))
    predicting = {"mtp": 0} if model_type in ("deepseek_v3", "glm4_moe") else {}
    work = model_work(
        read_config(hugging_face.written(config, tmp_path), **predicting).architecture, "m", 24, "float32"
    )
    flop = of_experts = 0.0
    for kernels in (work.layers[place].kernels for place in work.order):
        forward = (kernels.kinds == WorkKind.PRODUCT) & (kernels.passes == WorkPass.FORWARD)
        sizes, marks = 2 * kernels.sizes[forward].prod(axis=1), kernels.size_marks[forward]
        flop += sizes.sum()
        of_experts += sizes[marks[:, 0] & Mark.EXPERTS > 0].sum()
    total = counted.get_total_flops()
    assert total in (pytest.approx(flop, rel=0.02), pytest.approx(flop - of_experts, rel=0.02))


def test_every_family_that_is_read_is_compared_with_transformers() -> None:
    of_pairs = {"clip_text_model", "siglip_text_model"}  # test_towers.py
    assert set(families()) == {*hugging_face.FAMILIES, *hugging_face.ALIKE, *of_pairs, "step3p5"}
    assert all(families()[name] == families()[other] for name, other in hugging_face.ALIKE.items())


def test_heads_with_a_gate_and_more_of_them_in_windows_have_the_parameters_of_transformers_model() -> None:
    """Step 3.5, which transformers has as the text model of one with images alone: no output matrix."""
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 5, "intermediate_size": 24, "head_dim": 6}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_sliding_attention_heads": 6, "sliding_window": 3}
    sizes |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "share_expert_dim": 20}
    types = ["full_attention", *["sliding_attention"] * 3, "full_attention"]
    config = hf.Step3p7TextConfig(**sizes, layer_types=types)
    with torch.device("meta"):
        model = hf.models.step3p7.modeling_step3p7.Step3p7TextModel(config)
    expected = sum(parameter.numel() for parameter in model.parameters()) + 40 * 16
    content = json.dumps(config.to_dict()).encode()
    assert parameters(decode_config(content, "m", where="config.json").architecture) == expected


def test_help_lists_every_known_value_of_model_type() -> None:
    assert tuple(families()) == MODEL_TYPES


def test_a_gated_t5_with_an_output_matrix_has_the_published_number_of_parameters(tmp_path: Path) -> None:
    assert parameters(read_config(written(T5_BASE_V1_1, tmp_path)).architecture) == 247_577_856


PUBLISHED = {
    "bert-base": 109_514_298,  # BertForMaskedLM
    "bert-large": 335_174_458,
    "bloom-176b": 176_247_271_424,
    "bloom-7b1": 7_069_016_064,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200 - 58 * 256,  # without the biases that balance experts, which are not trained
    "gemma2-27b": 27_227_128_320,
    "gemma2-9b": 9_241_705_984,
    "gpt-neox-20b": 20_554_567_680,
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama2-7b": 6_738_415_616,
    "llama3-405b": 405_853_388_800,
    "llama3-70b": 70_553_706_496,
    "llama3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "olmo2-13b": 13_716_198_400,
    "olmo2-7b": 7_298_617_344,
    "phi3-medium": 13_960_238_080,
    "phi4": 14_659_507_200,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "starcoder2-15b": 15_957_889_024,
    "t5-large": 737_668_096,
    "t5-small": 60_506_624,
}
"""Parameters of the published weights."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_by_name_have_the_published_number_of_parameters(name: str) -> None:
    assert parameters(sized(name).architecture) == PUBLISHED[name] == WORKLOADS[name].parameters


def test_gpt3_has_the_parameters_of_a_formula() -> None:
    """Equation 2 of arXiv 2104.04473, which leaves out the last norm; the paper says 175.0 B."""
    layers, width, vocabulary, positions = 96, 12288, 50257, 2048
    blocks = 12 * layers * width**2 * (1 + 13 / (12 * width) + (vocabulary + positions) / (12 * layers * width))
    count = parameters(sized("gpt3-175b").architecture)
    assert count == round(blocks) + 2 * width == WORKLOADS["gpt3-175b"].parameters
    assert count == pytest.approx(175.0e9, rel=0.003)


def test_the_matrix_products_have_the_floating_point_operations_that_torch_counts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    counter = pytest.importorskip("torch.utils.flop_counter")
    config = hugging_face.configuration("qwen3", num_hidden_layers=1)
    path = hugging_face.written(config, tmp_path)
    model = hugging_face.model_of(config, attn_implementation="eager")
    with counter.FlopCounterMode(display=False) as counted:
        model(torch.zeros((2, 8), dtype=torch.int64), use_cache=False).logits.sum().backward()
    graph = instruction_graph(module_of(Source(str(path), SourceKind.CONFIG, batch=2, sequence=8)))
    products = np.array([opcode in ("dot", "dot_general") for opcode in graph.opcodes])
    flop = graph.flop[products & (graph.phases != Phase.UPDATE)].sum()
    assert flop == pytest.approx(counted.get_total_flops(), rel=0.02)


def test_a_config_says_how_long_samples_are_and_what_layers_compute_in(tmp_path: Path) -> None:
    path = written(LLAMA, tmp_path / "Llama-3.1-405B")
    assert source_kind(str(path)) is SourceKind.CONFIG
    model = configured(read_config(path))
    assert (model.name, model.labels, model.dtype) == ("Llama-3.1-405B", (1, 8192), "bfloat16")
    given = configured(read_config(path), batch=4, sequence=128, dtype="float32")
    assert (given.labels, given.dtype) == ((4, 128), "float32")


def test_a_config_of_another_name_is_told_by_its_model_type(tmp_path: Path) -> None:
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(LLAMA))
    assert is_config(path)
    assert read_config(path).name == "llama"
    path.write_text('{"nodes": []}')
    assert not is_config(path)


def test_llama_405b_is_profiled_from_four_of_its_blocks(tmp_path: Path) -> None:
    module = module_of(Source(str(written(LLAMA, tmp_path)), SourceKind.CONFIG))
    assert isinstance(module, RuledModule)
    graph = instruction_graph(module)
    sizes = [
        tensor
        for tensor, argument in zip(module.argument_types, module.arguments, strict=True)
        if argument.kind == "parameter"
    ]
    assert sum(math.prod(tensor.shape) for tensor in sizes) == 405_853_388_800
    products = np.array([opcode == "dot_general" for opcode in graph.opcodes])
    # 2 FLOP for each weight of a matrix and token, and 4·n·width for the scores and sums of attention, whole rows
    matrices = sum(math.prod(tensor.shape) for tensor in sizes if len(tensor.shape) == 2) - 128256 * 16384
    expected = 8192 * (2 * matrices + 126 * 4 * 8192 * 16384)
    assert graph.flop[products & (graph.phases == Phase.FORWARD)].sum() == pytest.approx(expected, rel=1e-6)
    assert {f"block_{i}/attention/q" for i in range(126)} < set(graph.layers)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "the document is [], not a mapping of keys to values"),
        ({}, "$.model_type is missing"),
        (
            {"model_type": "mamba9"},
            "$.model_type is 'mamba9', not one of arcee, bamba, bart, bert, blenderbot, bloom, camembert",
        ),
        ({"model_type": 3}, "$.model_type is 3, not one of"),
        ({"model_type": ["llama"]}, "$.model_type is ['llama'], not one of"),  # was a TypeError, as was a mapping
        ({"model_type": {}}, "$.model_type is {}, not one of"),
        ({"model_type": "bloom", "vocab_size": 40}, "$.n_embed or $.hidden_size is missing"),
        ({"model_type": "llama"}, "is missing"),
        ({**LLAMA, "hidden_size": -4}, "$.hidden_size is -4, not a whole number ≥ 1"),
        ({**LLAMA, "hidden_size": 10**30}, "$.hidden_size"),
        ({**LLAMA, "hidden_size": "16384"}, "$.hidden_size is '16384', not a whole number"),
        ({**LLAMA, "hidden_size": True}, "$.hidden_size is True, not a whole number"),
        ({**LLAMA, "num_hidden_layers": 0}, "$.num_hidden_layers is 0, not a whole number ≥ 1"),
        ({**LLAMA, "num_hidden_layers": 10**6}, "$.num_hidden_layers is 1000000, not a whole number ≤ 1000"),
        ({**LLAMA, "num_attention_heads": 100}, "$.num_attention_heads is 100, which does not divide $.hidden_size"),
        ({**LLAMA, "num_key_value_heads": 3}, "$.num_key_value_heads is 3, which does not divide"),
        ({**LLAMA, "num_attention_heads": 16384}, "1 of a head's 1 numbers have rotary positions"),
        ({**LLAMA, "hidden_act": "tanhshrink"}, "$.hidden_act is 'tanhshrink', not one of gelu"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "$.num_experts_per_tok is 9, more than $.num_local_experts, 8"),
        ({**DEEPSEEK_V3, "moe_layer_freq": 2}, "$.moe_layer_freq is 2, not 1"),
        (
            {**LLAMA, "model_type": "qwen3_moe", "num_experts": 4},
            "$.num_experts_per_tok is 8, more than $.num_experts, 4",
        ),
        ({**LLAMA, "model_type": "stablelm", "qk_layernorm": True}, "$.qk_layernorm is True, not false"),
        ({**T5_BASE_V1_1, "feed_forward_proj": "gelu-gated-x"}, "$.feed_forward_proj is 'gelu-gated-x'"),
        ({**T5_BASE_V1_1, "relative_attention_max_distance": 16}, "not more than half the buckets, 16"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(document: object, message: str, tmp_path: Path) -> None:
    path = written(document, tmp_path)
    with pytest.raises(BadInput) as refusal:
        read_config(path)
    assert message in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_a_sequence_beyond_the_learned_positions_is_refused(tmp_path: Path) -> None:
    document = {"model_type": "gpt2", "vocab_size": 40, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    path = written(document, tmp_path / "tiny")
    assert configured(read_config(path)).labels == (1, 16)
    with pytest.raises(BadInput, match="tiny has 16 positions, 17 were asked for"):
        configured(read_config(path), sequence=17)


GPT2 = {"model_type": "gpt2", "vocab_size": 40, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
BERT = {
    **{"model_type": "bert", "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"intermediate_size": 16, "max_position_embeddings": 16},
}


@pytest.mark.parametrize(
    ("document", "shares"),
    [
        (GPT2, (0.1, 0.1, 0.1)),  # what transformers takes where a file says nothing
        ({**GPT2, "attn_pdrop": 0.0, "resid_pdrop": 0.2, "embd_pdrop": 0.3}, (0.0, 0.2, 0.3)),
        (BERT, (0.1, 0.1, 0.1)),
        ({**BERT, "attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.0}, (0.3, 0.0, 0.0)),
    ],
)
def test_a_model_has_the_dropout_of_its_file_if_it_is_asked_for(
    document: dict[str, Any], shares: tuple[float, float, float], tmp_path: Path
) -> None:
    path = written(document, tmp_path)
    for dropout, expected in ((True, shares), (False, (0.0, 0.0, 0.0))):
        sizes: Any = read_config(path, dropout=dropout).architecture
        assert (sizes.attention_dropout, sizes.residual_dropout, sizes.embedding_dropout) == expected


def test_a_step_with_dropout_reads_a_random_key(tmp_path: Path) -> None:
    path = written(GPT2, tmp_path)
    modules = (configured(read_config(path, dropout=dropout)).module() for dropout in (True, False))
    names = [{argument.name for argument in module.arguments} for module in modules]
    assert names[0] - names[1] == {"batch/key"}


def test_dropout_of_other_families_is_refused(tmp_path: Path) -> None:
    path = written(LLAMA, tmp_path)
    with pytest.raises(BadInput, match="not known for models of llama"):
        read_config(path, dropout=True)


def test_dropout_is_for_models_with_a_config() -> None:
    with pytest.raises(BadInput, match="is built in without it"):
        profile("bert48", dropout=True)
    with pytest.raises(BadInput, match="is a factory"):
        profile("package.module:factory", dropout=True)


@pytest.mark.parametrize("family", families())
def test_what_a_size_is_without_its_key_is_of_its_type(family: str) -> None:
    """YAML reads 1e-5 as a text, and 1.0e-5 as a number."""
    for size, text in families()[family].keys.items():
        _, default = read_key(text)
        if default not in (None, msgspec.NODEFAULT):
            assert msgspec.convert(default, TYPES[size], strict=True) == default


def test_a_folder_that_was_downloaded_is_the_model_of_its_config(tmp_path: Path) -> None:
    """`automap plan ./Llama-3.1-8B`, which "cannot be read (Is a directory)"."""
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    assert not is_config(folder)
    (folder / "config.json").write_bytes((CONFIGS / "llama3-8b.json").read_bytes())
    assert is_config(folder)
    assert read_config(folder) == read_config(folder / "config.json")
    assert read_config(folder).name == "Llama-3.1-8B"


def test_the_folder_of_an_adapter_is_refused_by_its_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "my/llama"}')
    for path in (tmp_path, tmp_path / "adapter_config.json"):
        assert source_kind(str(path)) is SourceKind.CONFIG
        with pytest.raises(BadInput, match=r"is an adapter of my/llama; give the config\.json of that"):
            read_config(path)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is a folder without a config\.json; give one that has it"):
        source_kind(str(tmp_path))


def test_what_is_wrong_with_a_config_is_said_whatever_the_strategy(tmp_path: Path) -> None:
    """A strategy's field was refused in its place, as if the model were a profile."""
    path = written({**LLAMA, "num_key_value_heads": 6}, tmp_path)
    with pytest.raises(BadInput, match=r"num_key_value_heads is 6, which does not divide"):
        fit(path, gpus="8xH100", tp=2)


@pytest.mark.slow
def test_a_folder_is_traced_as_its_config(tmp_path: Path) -> None:
    """A cache of traces read the folder as if it were the file."""
    pytest.importorskip("flax")
    path = written(GPT2, tmp_path / "tiny")
    sources = (Source(str(file), SourceKind.CONFIG) for file in (path, path.parent))
    one, other = (profiled_once(source, DEVICE, None, CLUSTER, Cache(tmp_path), print).profile for source in sources)
    np.testing.assert_array_equal(one.C, other.C)
