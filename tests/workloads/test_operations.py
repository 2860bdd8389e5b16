"""What blocks of a program whose operations are not fused save, against what torch saves of transformers' blocks.

Attention is torch's kernel that saves no scores; models are in bfloat16, without dropout. Bytes of blocks are those of
twice as many blocks less those of as many, of all storages that are no parameters.
"""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from automap_models.core.model_work import LayerWork
from automap_models.core.tuning import FULL, LayerTraining, Training
from automap_models.workloads.config_families import families, read_key
from automap_models.workloads.config_json import read_config
from automap_models.workloads.layer import Layer
from automap_models.workloads.registry import configured
from automap_models.workloads.sublayers import turned
from automap_models.workloads.transformer import model_work

from . import hugging_face, test_towers

pytestmark = pytest.mark.slow
SAMPLES, TOKENS = 2, 24
WIDTHS = ("width", "feed_forward", "decoder_feed_forward", "expert_width", "shared_width", "embedding_width", "latent")
RANKS, HEADS = ("rank", "query_rank"), ("heads", "kv_heads", "decoder_heads")
HEAD_WIDTHS = ("head_width", "window_head_width", "plain_width", "rope_width", "value_width", "window_value_width")
FACTORS = dict.fromkeys(WIDTHS + RANKS, 32) | dict.fromkeys(HEAD_WIDTHS, 8) | dict.fromkeys(HEADS, 4)
"""Our word for a size → how much larger it is than in hugging_face.FAMILIES, so that a number of each row is little."""
DEEPER = ("layers", "decoder_layers", "pattern", "mixture_pattern")
EQUAL_HEADS = {"deepseek_v2": 48, "deepseek_v3": 48, "glm4_moe_lite": 48, "mimo_v2_flash": 96}
"""Family → width of heads of values that is that of keys, as the kernel on a CPU wants it."""
RECURRENCES = ("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h")
RECURRENCES += ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
OTHERWISE = {
    **dict.fromkeys(RECURRENCES, "without its kernels transformers runs a recurrence step by step"),
    **dict.fromkeys(
        ("bloom", "codegen", "falcon", "gpt_neo", "gptj", "mpt", "xglm"), "attention is no kernel in transformers"
    ),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), "the indexer needs a mask, which the kernel here has not"),
    "deepseek_v4": "streams and means are many small operations, here those of its kernels",
    "minimax_m3_vl_text": "the indexer saves scores of all tokens in fp32",
    "gemma4_text": "norms of the router and of values are not counted",
    "llama4_text": "transformers has every expert compute every token",
    "dbrx": "torch refuses transformers' clamp of nothing",
}
"""Families whose bytes are not counted → why."""


@pytest.fixture(scope="module", autouse=True)
def fused() -> None:
    """An attention of transformers that is one kernel, whatever the mask."""
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def attention(module: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> tuple[Any, None]:
        grouped = q.shape[1] != k.shape[1]
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)
        return mixed.transpose(1, 2).contiguous(), None

    hf.AttentionInterface.register("fused", attention)


def configuration(model_type: str, depth: int) -> Any:
    """Of a model that is large enough, with `depth` times the blocks."""
    sizes, changes = hugging_face.FAMILIES[model_type][2], dict[str, Any]()
    factors = FACTORS | dict.fromkeys(DEEPER, depth)
    for word, text in families()[model_type].keys.items():
        changes |= {key: factors[word] * sizes[key] for key in read_key(text)[0] if word in factors and sizes.get(key)}
    if model_type in EQUAL_HEADS:
        changes["v_head_dim"] = EQUAL_HEADS[model_type]
    return hugging_face.configuration(model_type, **changes)


def saved(model: Any, forward: Any) -> float:
    """Bytes of all storages that torch saves in a forward pass but for those of parameters and buffers."""
    torch, storages = importlib.import_module("torch"), dict[int, Any]()

    def save(tensor: Any) -> Any:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        forward()
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    return float(sum(storage.nbytes() for place, storage in storages.items() if place not in weights))


def saved_by_torch(config: Any, frozen: bool) -> float:
    """Bytes of all samples."""
    torch = importlib.import_module("torch")
    model = hugging_face.model_of(config, attn_implementation="fused").to(torch.bfloat16).eval()
    if frozen:
        model.requires_grad_(False).get_input_embeddings().requires_grad_(True)
    given = hugging_face.inputs(config, SAMPLES, TOKENS)
    given = {name: x.bfloat16() if x.is_floating_point() else x for name, x in given.items()}
    cache = {} if "image_size" in vars(config) else {"use_cache": False}
    return saved(model, lambda: model(**given, **cache))


def saved_by_ours(config: Any, folder: Path, training: Training = FULL) -> float:
    """Bytes of a sample."""
    predicting = {"mtp": 0} if config.model_type in ("deepseek_v3", "glm4_moe") else {}
    architecture = read_config(hugging_face.written(config, folder), **predicting).architecture
    work = model_work(architecture, "m", TOKENS, "bfloat16", training)
    return sum(saved_by_layer(work.layers[place]) for place in work.order)


def saved_by_layer(layer: LayerWork) -> float:
    return float(layer.saved.values.sum() + layer.saved_eagerly.values.sum())


@pytest.mark.parametrize("model_type", sorted({*hugging_face.FAMILIES} - {*OTHERWISE}))
def test_blocks_of_a_family_save_what_torch_counts(model_type: str, tmp_path: Path) -> None:
    once, twice = (configuration(model_type, depth) for depth in (1, 2))
    counted = (saved_by_torch(twice, False) - saved_by_torch(once, False)) / SAMPLES
    assert saved_by_ours(twice, tmp_path) - saved_by_ours(once, tmp_path) == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize("model_type", ["llama", "gemma", "cohere", "gpt_neox", "deepseek_v3", "gpt2", "opt", "t5"])
def test_frozen_blocks_save_what_torch_counts(model_type: str, tmp_path: Path) -> None:
    once, twice = (configuration(model_type, depth) for depth in (1, 2))
    counted = (saved_by_torch(twice, True) - saved_by_torch(once, True)) / SAMPLES
    ours = [saved_by_ours(config, tmp_path, Training(freeze=("block_*",))) for config in (once, twice)]
    assert ours[1] - ours[0] == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize(
    "model_type",
    ["gemma3", "glm4v", "internvl", "llava", "mistral3", "paligemma", "qwen2_5_vl", "qwen3_vl"],
)
def test_blocks_of_a_tower_save_what_torch_counts(model_type: str) -> None:
    torch, hf = (importlib.import_module(name) for name in ("torch", "transformers"))
    counted, ours = list[float](), list[float]()
    for depth in (1, 2):
        factors = {"hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "num_attention_heads": 2}
        config = test_towers.configuration(model_type, factors | {"depth": depth, "num_hidden_layers": depth})
        config._attn_implementation = "fused"
        builder = getattr(hf, f"{test_towers.MODELS[model_type][0]}ForConditionalGeneration")
        model = builder._from_config(config, attn_implementation="fused").to(torch.bfloat16).eval()
        given = test_towers.image(config)
        given["pixel_values"] = given["pixel_values"].bfloat16()
        counted.append(saved(model, partial(model.get_image_features, **given)))
        blocks = configured(test_towers.decoded(config.to_dict()), dtype="bfloat16").work().tower
        ours.append(sum(part.copies * saved_by_layer(part.layer) for part in blocks))
    assert ours[1] - ours[0] == pytest.approx(counted[1] - counted[0], rel=0.02)


def moved_by_torch(operation: Any, count: int) -> list[float]:
    """Bytes of a number that the kernels of an operation of so many values read and write, forward and backward."""
    torch = importlib.import_module("torch")
    mode = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    views, moved = {"view", "t", "transpose", "unsqueeze", "slice", "detach", "expand", "ones_like"}, [0.0]

    class Counting(mode):  # type: ignore[misc, valid-type]  # torch is read where it is needed
        def __torch_dispatch__(self, op: Any, _: Any, values: Any = (), named: Any = None) -> Any:
            result = op(*values, **(named or {}))
            leaves = torch.utils._pytree.tree_leaves((values, named, result))
            if op.__name__.split(".")[0] not in views:
                moved[-1] += sum(x.nbytes for x in leaves if isinstance(x, torch.Tensor))
            return result

    values = [torch.randn(1, 32, 64, 128, dtype=torch.bfloat16, requires_grad=True) for _ in range(count)]
    with Counting():
        result = operation(*values)
        moved.append(0.0)
        result.backward(torch.ones_like(result))
    return [nbytes / values[0].numel() for nbytes in moved]


@pytest.mark.parametrize("name", ["norm", "positions", "gate"])
def test_an_eager_operation_moves_what_torch_counts(name: str) -> None:
    torch, llama = (importlib.import_module(m) for m in ("torch", "transformers.models.llama.modeling_llama"))
    layer = Layer(64, "bfloat16", LayerTraining(frozen=("norm",)))
    x, y = layer.value(512), layer.value(512)
    cosine = torch.rand(1, 64, 128, dtype=torch.bfloat16)
    norm = llama.LlamaRMSNorm(128).bfloat16().requires_grad_(False)
    of_torch, count, ours = {
        "norm": (norm, 1, lambda: layer.norm(x, layer_norm=False)),
        "positions": (lambda q: q * cosine + llama.rotate_half(q) * cosine, 1, lambda: turned(layer, x)),
        "gate": (lambda g, u: torch.nn.functional.silu(g) * u, 2, lambda: layer.gated(x, y)),
    }[name]
    ours()
    kernels = layer.work("m").kernels
    moved = [kernels.moved_bytes[kernels.passes[kernels.moved_kernels] == of_pass].sum() for of_pass in (0, 1)]
    assert [nbytes / (64 * 512) for nbytes in moved] == pytest.approx(moved_by_torch(of_torch, count), rel=0.04)


def test_what_is_not_counted_is_a_family() -> None:
    assert {*OTHERWISE} < {*hugging_face.FAMILIES}
    assert len({*hugging_face.FAMILIES} - {*OTHERWISE}) >= 75
