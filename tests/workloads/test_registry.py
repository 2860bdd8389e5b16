"""The workloads by name: parameters as published, and options that a model does not have."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path

import jax
import pytest

from automap_models import workloads
from automap_models.errors import BadInput
from automap_models.hlo.step import TrainingStep
from automap_models.workloads import catalogue, registry
from automap_models.workloads.config_json import read_config
from automap_models.workloads.sizes import Architecture
from automap_models.workloads.source import SourceKind, source_kind

GPT = {"gpt2_medium": (1024, 24, 16), "gpt2_xl": (1600, 48, 25), "gpt3_7b": (4096, 32, 32), "gpt3_13b": (5120, 40, 40)}
"""Name → width, layers, heads."""
RECURRENT = {"rnnlm": (2, 4, 8), "gnmt": (2, 4, 8)}
"""Family → layers."""
WAVENETS = {"wavenet_2x18": (2, 18), "wavenet_4x36": (4, 36)}
"""Name → stacks, layers of each."""
UNROLLED = tuple(f"{family}_{layers}" for family, sizes in RECURRENT.items() for layers in sizes)
NAMES = (
    *("bert48", "t5_base", "t5_3b", "t5_11b", "vgg19", "resnet50", *GPT, "moe"),
    *(*UNROLLED, *WAVENETS, "inception_v3", *(f"transformer_xl_{layers}" for layers in (2, 4, 8)), "amoebanet_d"),
)
PUBLISHED_FILES = sorted((Path(registry.__file__).parent / "published").glob("*.json"))
"""Models of which the fast tests have a smaller one of the same architecture."""
build = cache(workloads.build)


def _published_vgg() -> tuple[int, int]:
    """Parameters and variables of configuration E, from the paper's table: kernels and biases layer by layer."""
    channels = [3, 64, 64, 128, 128, *[256] * 4, *[512] * 8]
    layers = [(9 * a, b) for a, b in pairwise(channels)]
    layers += [(512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)]
    return sum((a + 1) * b for a, b in layers), 2 * len(layers)


# Name → (parameters of Hugging Face's model, variables). q, k, v are one matrix and one bias in the published GPT-2
# and three here; experts are one matrix each there and stacked here: 2 · 6 layers · 2 · (8 - 1) variables fewer.
VARIABLES: dict[str, int] = {
    "bert48": 778,
    "t5_base": 257,
    "t5_3b": 509,
    "t5_11b": 509,
    "resnet50": 161,
    **{name: 4 + 12 * layers + layers * 2 * 2 for name, (_, layers, _) in GPT.items()},
    "moe": 437 - 2 * 6 * 2 * 7,
}


def _by_model(names: Iterable[str]) -> pytest.MarkDecorator:
    """A test runs for these workloads: one after the other, so that each is built once."""
    return pytest.mark.parametrize("name", list(names), scope="module")


@cache
def _published(name: str) -> int:
    """Parameters of Hugging Face's model of that name, built on the meta device from the published configuration."""
    torch = pytest.importorskip("torch")
    hf = pytest.importorskip("transformers")
    wide = {"d_model": 1024, "d_kv": 128, "num_layers": 24}
    with torch.device("meta"):
        match name:
            case "bert48":
                sizes = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
                model = hf.BertForMaskedLM(hf.BertConfig(num_hidden_layers=48, **sizes))
            case "t5_base":
                model = hf.T5ForConditionalGeneration(hf.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12))
            case "t5_3b":
                model = hf.T5ForConditionalGeneration(hf.T5Config(d_ff=16384, num_heads=32, **wide))
            case "t5_11b":
                model = hf.T5ForConditionalGeneration(hf.T5Config(d_ff=65536, num_heads=128, **wide))
            case "resnet50":
                model = hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000))
            case "gpt2_medium" | "gpt2_xl" | "gpt3_7b" | "gpt3_13b":
                width, layers, heads = GPT[name]
                positions = 2048 if name.startswith("gpt3") else 1024
                config = hf.GPT2Config(n_embd=width, n_layer=layers, n_head=heads, n_positions=positions)
                model = hf.GPT2LMHeadModel(config)
            case "moe":
                sparse = {"num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6}
                config = hf.SwitchTransformersConfig(d_ff=3072, num_experts=8, **sparse)
                model = hf.SwitchTransformersForConditionalGeneration(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _of_torch(name: str) -> int:
    """Parameters of a model of the same layers from torch.nn, whose LSTMs have a second bias that adds nothing."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    with torch.device("meta"):
        family, _, size = name.partition("_")
        if name in WAVENETS:
            stacks, layers = WAVENETS[name]
            gated = [nn.Conv1d(128, 256, 2), nn.Conv1d(128, 256, 1), nn.Conv1d(128, 128, 1)]
            parts = [nn.Embedding(256, 128), *gated * (stacks * layers), nn.Conv1d(256, 256, 1), nn.Conv1d(256, 256, 1)]
        elif family == "rnnlm":
            parts = [nn.Embedding(10_000, 2048), nn.LSTM(2048, 2048, int(size)), nn.Linear(2048, 10_000)]
        else:  # attention of two matrices; the encoder's second layer and all of the decoder read two vectors
            layers = int(size)
            encoder = [nn.LSTM(1024, 1024, bidirectional=True), nn.LSTM(2048, 1024)]
            decoder = [nn.LSTM(2048, 1024)] * layers
            attention = [nn.Linear(1024, 1024, bias=False)] * 2
            ends = [nn.Embedding(32_000, 1024), nn.Embedding(32_000, 1024), nn.Linear(1024, 32_000)]
            parts = [*encoder, *[nn.LSTM(1024, 1024)] * (layers - 2), *decoder, *attention, *ends]
    named = [item for part in parts for item in part.named_parameters()]
    return sum(parameter.numel() for key, parameter in named if not key.startswith("bias_hh"))


def _parameters(step: TrainingStep) -> list[int]:
    """Elements of each trainable variable."""
    return [leaf.size for leaf in jax.tree.leaves(step.arguments[step.trainable])]


def test_the_list_is_complete_and_in_order() -> None:
    assert workloads.names()[: len(NAMES)] == NAMES
    assert set(workloads.names()[len(NAMES) :]) == {path.stem for path in PUBLISHED_FILES}


@_by_model(VARIABLES)
def test_parameters_are_those_of_the_published_configuration(name: str) -> None:
    sizes = _parameters(build(name))
    assert sum(sizes) == _published(name) == catalogue.WORKLOADS[name].parameters
    assert len(sizes) == VARIABLES[name]


@_by_model((*UNROLLED, *WAVENETS))
def test_parameters_of_steps_that_are_placed_are_those_of_torchs_layers(name: str) -> None:
    assert sum(_parameters(build(name))) == _of_torch(name) == catalogue.WORKLOADS[name].parameters


def test_inception_v3_has_keras_parameters_and_a_scale_for_each_normalised_channel() -> None:
    """Keras publishes 23,817,352 trainable ones and 34,432 statistics, two of each channel; it has no scales."""
    assert sum(_parameters(build("inception_v3"))) == 23_817_352 + 34_432 // 2


@pytest.mark.parametrize(
    ("sizes", "millions"),
    [
        ({"layers": 12}, 41),
        ({"layers": 24, "width": 1024, "head_width": 128, "inner": 3072}, 277),
    ],
)
def test_transformer_xl_has_the_parameters_of_its_paper(sizes: dict[str, int], millions: int) -> None:
    """Table 2 of arXiv 1901.02860 for enwik8: 12 layers 41M, 24 layers 277M."""
    from automap_models.workloads.transformer_xl import TransformerXlConfig

    assert round(_initial_parameters(TransformerXlConfig(**sizes), (2, 256)) / 1e6) == millions


@pytest.mark.parametrize(("filters", "millions"), [(208, 82), (416, 318)])
def test_amoebanet_d_has_the_parameters_of_gpipe(filters: int, millions: int) -> None:
    """Table 1 of arXiv 1811.06965, to half a per cent: 81.5 and 319.0 M here."""
    from automap_models.workloads.amoebanet import AmoebaNetConfig

    counted = _initial_parameters(AmoebaNetConfig(18, filters), (2,))
    assert counted / 1e6 == pytest.approx(millions, abs=0.5 + 0.005 * millions)


def _initial_parameters(architecture: Architecture, labels: tuple[int, ...]) -> int:
    from automap_models.workloads.training import training_step

    step = training_step("model", architecture, labels, "float32")
    return sum(_parameters(step))


def test_relative_scores_are_moved_to_the_keys_that_they_belong_to() -> None:
    """Row j + q - 1 - i of the distances is that of query i and key j, for keys that the query may see."""
    import numpy as np

    from automap_models.workloads.transformer_xl import _shifted

    q, k = 3, 5
    rows = np.random.default_rng(0).normal(size=(1, 1, q, k)).astype(np.float32)
    shifted = np.asarray(_shifted(jax.numpy.asarray(rows)))
    for i in range(q):
        for j in range(k - q + i + 1):
            assert shifted[0, 0, i, j] == rows[0, 0, i, j + q - 1 - i]


def test_vgg19_has_the_papers_parameters() -> None:
    sizes = _parameters(build("vgg19"))
    assert (sum(sizes), len(sizes)) == _published_vgg()
    assert sum(sizes) == catalogue.WORKLOADS["vgg19"].parameters


def test_bert48_has_the_layers_of_dapples_published_profile(shared_data: Path) -> None:
    lines = (shared_data / "v100_profiles" / "bert-48_b2.txt").read_text().splitlines()
    nodes = [line.split(" -- ") for line in lines if "parameter_size" in line]
    size = {node[1]: float(node[2].rpartition("=")[2]) for node in nodes}
    params = build("bert48").arguments[0]
    embeddings = [tree for name, tree in params.items() if "embedding" in name]
    assert sum(4 * leaf.size for leaf in jax.tree.leaves(embeddings)) == size["embeddings"]
    blocks = [name for name in params if name.startswith("block_")]
    assert len(blocks) == sum(name.startswith("layer_") for name in size) == 48
    assert {sum(4 * leaf.size for leaf in jax.tree.leaves(params[name])) for name in blocks} == {size["layer_0"]}


@_by_model(NAMES)
def test_a_summary_is_one_line_with_the_defaults(name: str) -> None:
    text, step = workloads.summary(name), build(name)
    assert "\n" not in text
    assert f"{sum(_parameters(step)) / 1e6:,.1f} M parameters" in text
    assert f"batch {step.microbatch_size}" in text
    labels = step.arguments[-1]["labels"].shape
    assert (f"of {labels[1]} tokens" if labels[1:] else "images") in text


@_by_model(NAMES)
def test_a_step_has_shapes_only(name: str) -> None:
    step = build(name)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(step.arguments))
    assert (step.name, step.trainable, step.inputs, step.dtype) == (name, 0, (3,), "float32")


@_by_model(NAMES)
def test_adam_keeps_two_moments_a_parameter_and_a_count(name: str) -> None:
    step = build(name)
    assert sum(leaf.size for leaf in jax.tree.leaves(step.arguments[1])) == 2 * sum(_parameters(step)) + 1


def test_batch_sequence_and_dtype_are_options() -> None:
    step = build("t5_base", batch=3, sequence=40, dtype="bfloat16")
    assert {name: leaf.shape for name, leaf in step.arguments[-1].items()} == dict.fromkeys(
        ("ids", "decoder_ids", "labels"), (3, 40)
    )
    assert (step.microbatch_size, step.dtype) == (3, "bfloat16")
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(step.arguments[0])} == {"float32"}
    assert build("resnet50", batch=5).arguments[-1]["images"].shape == (5, 224, 224, 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bert", {}, r"unknown model 'bert'; did you mean bert48, .*"),
        ("vgg19", {"sequence": 128}, r"sequence: vgg19 reads images; leave .*"),
        ("t5_base", {"sequence": 0}, r"sequence: must be at least 1, is 0"),
        ("bert48", {"sequence": 513}, r"sequence: bert48 has 512 positions, 513 were asked for"),
        ("gpt2_medium", {"sequence": 1025}, r"sequence: gpt2_medium has 1024 positions, .*"),
        ("t5_base", {"batch": 0}, r"batch: must be at least 1, is 0"),
        ("t5_base", {"dtype": "int8"}, r"dtype: unknown dtype 'int8'; choose from float32, bfloat16, float16"),
    ],
)
def test_an_option_that_a_model_does_not_have_is_refused(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(BadInput, match=rf"^{message}$"):
        workloads.build(name, **options)  # type: ignore[arg-type]  # dtype is text


@pytest.mark.parametrize("path", PUBLISHED_FILES, ids=lambda path: path.stem)
def test_the_list_says_of_a_config_what_its_file_says(path: Path) -> None:
    workload, model = catalogue.WORKLOADS[path.stem], read_config(path)
    assert (workload.sequence, workload.longest, workload.dtype) == (model.sequence, model.longest, model.dtype)
    assert (workload.architecture, workload.batch) == (None, 1)
    assert registry.sized(path.stem).architecture == model.architecture


def test_a_hyphen_in_a_name_is_as_good_as_an_underscore() -> None:
    assert catalogue.canonical("gpt2-medium") == catalogue.canonical("gpt2_medium") == "gpt2_medium"
    assert catalogue.canonical("qwen2.5-7b") == catalogue.canonical("qwen2.5_7b") == "qwen2.5-7b"
    assert catalogue.canonical("gpt3-6.7b") == "gpt3_7b"
    assert catalogue.canonical("gpt5") is None
    assert len({re.sub("[-_]", "", name.lower()) for name in workloads.names()}) == len(workloads.names())
    assert registry.sized("gpt2-xl").name == "gpt2_xl"


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("meta-llama/Llama-2-70b-hf", "llama2-70b"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4-scout"),
        ("google/gemma-3-27b-it", "gemma3-27b"),
        ("google/gemma-2b", "gemma-2b"),
        ("google/gemma-2-2b", "gemma2-2b"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "qwen3-next-80b-a3b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("google-bert/bert-base-cased", "bert-base-cased"),
        ("google/mt5-base", "mt5-base"),
        ("microsoft/phi-1_5", "phi-1.5"),
        ("bigscience/bloom", "bloom-176b"),
        ("openai-community/gpt2", "gpt2"),
        ("gpt-2", "gpt2"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("EleutherAI/pythia-1.4b-deduped", "pythia-1.4b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder-480b-a35b"),
        ("allenai/OLMo-2-1124-7B", "olmo2-7b"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"),
        ("Qwen/Qwen3-VL-30B-A3B-Thinking", "qwen3-vl-30b-a3b"),
        ("llava-hf/llava-1.5-7b-hf", "llava-1.5-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama3.1-70b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", None),  # whose output matrix is its own
        ("gpt2-9b", None),
        ("llama", None),
        ("../bert48", None),
        ("./bert48", None),
        ("/models/bert48", None),
        ("a/b/bert48", None),
        ("", None),
        ("base", None),
    ],
)
def test_a_name_of_the_hub_is_that_of_the_model_with_the_same_layers(name: str, listed: str | None) -> None:
    assert catalogue.canonical(name) == listed


def test_a_file_comes_before_a_name_that_is_not_written_as_in_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_kind("google/gemma-2b") is SourceKind.WORKLOAD
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "gemma-2b").write_bytes(b"")
    assert source_kind("google/gemma-2b") is SourceKind.PROFILE
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "llama-2-7b").mkdir()
    (tmp_path / "meta" / "llama-2-7b" / "config.json").write_text('{"model_type": "gemma"}')
    assert source_kind("meta/llama-2-7b") is SourceKind.CONFIG  # a folder that was downloaded
    (tmp_path / "gemma-2b").write_bytes(b"")
    assert source_kind("gemma-2b") is SourceKind.WORKLOAD


def test_a_config_by_name_has_the_dropout_of_its_file_if_it_is_asked_for() -> None:
    assert (
        registry.sized("gpt2", dropout=True).architecture
        == read_config(PUBLISHED_FILES[0].with_name("gpt2.json"), dropout=True).architecture
    )
    for name, message in (("bert48", "bert48 is built in without it"), ("llama3-8b", "not known for models of llama")):
        with pytest.raises(BadInput, match=message):
            registry.sized(name, dropout=True)


def test_an_unknown_name_has_no_summary() -> None:
    with pytest.raises(BadInput, match="unknown model 'vgg16'"):
        workloads.summary("vgg16")


@pytest.mark.parametrize("missing", ["jax", "flax", "optax"])
def test_a_missing_extra_is_named_with_the_pip_command(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda package: None if package == missing else object())
    message = rf"^(vgg19|a:b): {missing} is not installed; pip install 'automap-models\[jax\]'$"
    with pytest.raises(BadInput, match=message):
        workloads.build("vgg19")
    with pytest.raises(BadInput, match=message):
        workloads.from_factory("a:b")


def test_listing_the_workloads_imports_nothing_heavy() -> None:
    code = (
        "import sys; from automap_models import workloads as w; [w.summary(n) for n in w.names()]; "
        "print({'jax', 'flax', 'optax', 'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_variables_of_the_paper_s_tables_can_be_told_by_their_names() -> None:
    t5, vgg = build("t5_base").arguments[0], build("vgg19").arguments[0]
    block = t5["decoder"]["block_11"]
    assert {name: tree["kernel"].shape for name, tree in block["cross_attention"].items()} == dict.fromkeys(
        ("q", "k", "v", "o"), (768, 768)
    )
    assert block["feed_forward"]["wi"]["kernel"].shape == block["feed_forward"]["wo"]["kernel"].shape[::-1]
    assert t5["encoder"]["relative_bias"]["embedding"].shape == (32, 12)
    assert t5["embedding"]["embedding"].shape == (32128, 768)
    assert t5["encoder"]["final_layer_norm"]["scale"].shape == (768,)
    assert [name for name in vgg if not name.startswith("conv")] == ["fc1", "fc2", "predictions"]
    assert all(set(tree) == {"kernel", "bias"} for tree in vgg.values())
    assert prod(vgg["fc1"]["kernel"].shape) == 7 * 7 * 512 * 4096
