"""The architectures are right: with Hugging Face's weights copied over, they give Hugging Face's logits and losses.

VGG, which Hugging Face does not have, is compared with torch's own convolutions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from automap_models.workloads.config_json import read_config
from automap_models.workloads.convolutional import ResNetConfig, VggConfig
from automap_models.workloads.sizes import Architecture, BertConfig, DecoderConfig, T5Config, capacity
from automap_models.workloads.t5 import relative_buckets
from automap_models.workloads.training import cross_entropy, jax_model, training_step

from .hugging_face import configuration, model_of, written

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

BATCH, SEQUENCE, VOCABULARY = 3, 11, 40
Weights = dict[str, np.ndarray[Any, np.dtype[Any]]]
Rules = Iterable[tuple[str, str]]

ATTENTION = r"(q|k|v|o)\.weight"
T5_RULES = (
    (r"shared\.weight", "embedding/embedding"),
    (r"(en|de)coder\.final_layer_norm\.weight", r"\1coder/final_layer_norm/scale"),
    (r"(..coder)\.block\.0\..*\.relative_attention_bias\.weight", r"\1/relative_bias/embedding"),
    (rf"(..coder)\.block\.(\d+)\.layer\.0\.SelfAttention\.{ATTENTION}", r"\1/block_\2/attention/\3/kernel"),
    (rf"(..coder)\.block\.(\d+)\.layer\.1\.EncDecAttention\.{ATTENTION}", r"\1/block_\2/cross_attention/\3/kernel"),
    (r"(..coder)\.block\.(\d+)\.layer\.0\.layer_norm\.weight", r"\1/block_\2/attention_layer_norm/scale"),
    (r"decoder\.block\.(\d+)\.layer\.1\.layer_norm\.weight", r"decoder/block_\1/cross_attention_layer_norm/scale"),
    (r"(..coder)\.block\.(\d+)\.layer\.[12]\.layer_norm\.weight", r"\1/block_\2/feed_forward_layer_norm/scale"),
    (r"(..coder)\.block\.(\d+)\.layer\..\.(?:DenseReluDense|mlp)\.(w.)\.weight", r"\1/block_\2/feed_forward/\3/kernel"),
    (r"(..coder)\.block\.(\d+)\..*\.router\.classifier\.weight", r"\1/block_\2/feed_forward/router/kernel"),
    (r"(..coder)\.block\.(\d+)\..*\.expert_(\d+)\.(w.)\.weight", r"\1/block_\2/feed_forward/experts/\4/\3"),
)
LAYER, NORM = r"bert\.encoder\.layer\.(\d+)\.", r"LayerNorm\.(weight|bias)"
BERT_RULES = (
    (r"bert\.embeddings\.word_embeddings\.weight", "embedding/embedding"),
    (r"bert\.embeddings\.token_type_embeddings\.weight", "type_embedding/embedding"),
    (r"bert\.embeddings\.position_embeddings\.weight", "position_embedding/embedding"),
    (rf"bert\.embeddings\.{NORM}", r"embedding_layer_norm/\1"),
    (rf"{LAYER}attention\.self\.(q|k|v)\w+\.(\w+)", r"block_\1/attention/\2/\3"),
    (rf"{LAYER}attention\.output\.dense\.(\w+)", r"block_\1/attention/o/\2"),
    (rf"{LAYER}attention\.output\.{NORM}", r"block_\1/attention_layer_norm/\2"),
    (rf"{LAYER}intermediate\.dense\.(\w+)", r"block_\1/feed_forward/wi/\2"),
    (rf"{LAYER}output\.dense\.(\w+)", r"block_\1/feed_forward/wo/\2"),
    (rf"{LAYER}output\.{NORM}", r"block_\1/feed_forward_layer_norm/\2"),
    (r"cls\.predictions\.transform\.dense\.(\w+)", r"masked_lm/\1"),
    (rf"cls\.predictions\.transform\.{NORM}", r"masked_lm_layer_norm/\1"),
    (r"cls\.predictions\.bias", "masked_lm_bias"),
)
GPT2_RULES = (
    (r"transformer\.wte\.weight", "embedding/embedding"),
    (r"transformer\.wpe\.weight", "position_embedding/embedding"),
    (r"transformer\.ln_f\.(\w+)", r"final_layer_norm/\1"),
    (r"transformer\.h\.(\d+)\.ln_1\.(\w+)", r"block_\1/attention_layer_norm/\2"),
    (r"transformer\.h\.(\d+)\.ln_2\.(\w+)", r"block_\1/feed_forward_layer_norm/\2"),
    (r"transformer\.h\.(\d+)\.attn\.(q|k|v)\.(\w+)", r"block_\1/attention/\2/\3"),
    (r"transformer\.h\.(\d+)\.attn\.c_proj\.(\w+)", r"block_\1/attention/o/\2"),
    (r"transformer\.h\.(\d+)\.mlp\.c_fc\.(\w+)", r"block_\1/feed_forward/wi/\2"),
    (r"transformer\.h\.(\d+)\.mlp\.c_proj\.(\w+)", r"block_\1/feed_forward/wo/\2"),
)
DECODER = r"(?:model|gpt_neox|transformer)\."
BLOCK = rf"{DECODER}(?:layers|h)\.(\d+)\."
DECODER_RULES = (
    (rf"{DECODER}(?:embed_(?:tokens|in)|word_embeddings)\.weight", "embedding/embedding"),
    (rf"{DECODER}word_embeddings_layernorm\.(\w+)", r"embedding_layer_norm/\1"),
    (rf"{DECODER}(?:norm|final_layer_norm|ln_f)\.(\w+)", r"final_layer_norm/\1"),
    (r"(?:lm_head|embed_out)\.weight", "head/weight"),
    (rf"{BLOCK}input_layernorm\.(\w+)", r"block_\1/attention_layer_norm/\2"),
    (rf"{BLOCK}post_attention_layernorm\.(\w+)", r"block_\1/feed_forward_layer_norm/\2"),
    (rf"{BLOCK}(?:self_attn|attention|self_attention)\.(q|k|v|o)(?:_proj)?\.(\w+)", r"block_\1/attention/\2/\3"),
    (rf"{BLOCK}self_attn\.(q|k)_norm\.weight", r"block_\1/attention/\2_norm/weight"),
    (rf"{BLOCK}self_attn\.(q|kv)_a_proj\w*\.weight", r"block_\1/attention/\2_down/weight"),
    (rf"{BLOCK}self_attn\.(q|kv)_a_layernorm\.weight", r"block_\1/attention/\2_norm/weight"),
    (rf"{BLOCK}self_attn\.(q|kv)_b_proj\.weight", r"block_\1/attention/\2/weight"),
    (rf"{BLOCK}(?:self_)?attention\.dense\.(\w+)", r"block_\1/attention/o/\2"),
    (rf"{BLOCK}mlp\.dense_h_to_4h\.(\w+)", r"block_\1/feed_forward/wi/\2"),
    (rf"{BLOCK}mlp\.dense_4h_to_h\.(\w+)", r"block_\1/feed_forward/wo/\2"),
    (rf"{BLOCK}mlp\.c_fc\.(\w+)", r"block_\1/feed_forward/wi/\2"),
    (rf"{BLOCK}mlp\.c_proj\.(\w+)", r"block_\1/feed_forward/wo/\2"),
    (rf"{BLOCK}mlp\.gate\.weight", r"block_\1/feed_forward/router/weight"),
    (rf"{BLOCK}mlp\.gate(?:_proj)?\.weight", r"block_\1/feed_forward/gate/weight"),
    (rf"{BLOCK}mlp\.up_proj\.weight", r"block_\1/feed_forward/wi/weight"),
    (rf"{BLOCK}mlp\.down_proj\.weight", r"block_\1/feed_forward/wo/weight"),
    (rf"{BLOCK}mlp\.experts\.(gate|wi|wo)", r"block_\1/feed_forward/experts/\2"),
    (rf"{BLOCK}mlp\.shared_experts\.gate_proj\.weight", r"block_\1/feed_forward/shared/gate/weight"),
    (rf"{BLOCK}mlp\.shared_experts\.up_proj\.weight", r"block_\1/feed_forward/shared/wi/weight"),
    (rf"{BLOCK}mlp\.shared_experts\.down_proj\.weight", r"block_\1/feed_forward/shared/wo/weight"),
)
AROUND_RULES = (
    (rf"{BLOCK}post_attention_layernorm\.weight", r"block_\1/attention_output_norm/weight"),
    (rf"{BLOCK}pre_feedforward_layernorm\.weight", r"block_\1/feed_forward_layer_norm/weight"),
    (rf"{BLOCK}post_feedforward_layernorm\.weight", r"block_\1/feed_forward_output_norm/weight"),
    *DECODER_RULES,
)
"""Of the families that have norms after attention and feed-forward layers."""
GATED_T5_RULES = (
    (r"lm_head\.weight", "head/weight"),
    (
        r"(..coder)\.block\.(\d+)\.layer\..\.(?:DenseReluDense|mlp)\.wi_0\.weight",
        r"\1/block_\2/feed_forward/gate/kernel",
    ),
    (r"(..coder)\.block\.(\d+)\.layer\..\.(?:DenseReluDense|mlp)\.wi_1\.weight", r"\1/block_\2/feed_forward/wi/kernel"),
    *T5_RULES,
)
RESNET_LAYER = r"resnet\.encoder\.stages\.(\d+)\.layers\.(\d+)\."
RESNET_RULES = (
    (r"resnet\.embedder\.embedder\.convolution\.weight", "conv1/conv/kernel"),
    (r"resnet\.embedder\.embedder\.normalization\.(\w+)", r"conv1/batch_norm/\1"),
    (rf"{RESNET_LAYER}shortcut\.convolution\.weight", r"stage\1_block\2/shortcut/conv/kernel"),
    (rf"{RESNET_LAYER}shortcut\.normalization\.(\w+)", r"stage\1_block\2/shortcut/batch_norm/\3"),
    (rf"{RESNET_LAYER}layer\.(\d+)\.convolution\.weight", r"stage\1_block\2/conv\3/conv/kernel"),
    (rf"{RESNET_LAYER}layer\.(\d+)\.normalization\.(\w+)", r"stage\1_block\2/conv\3/batch_norm/\4"),
    (r"classifier\.1\.(\w+)", r"predictions/\1"),
)


def _randomised(model: Any, std: float = 0.3) -> Any:
    """The model with all its parameters drawn, so that none is 0 or 1 and could be forgotten unnoticed."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, std, generator=generator)
    return model


def _weights(model: Any) -> Weights:
    """Name → array of every parameter, tied ones once."""
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def _renamed(weights: Weights, rules: Rules) -> Weights:
    """Names as flax has them; each weight must be matched by a rule."""
    renamed = {}
    for name, weight in weights.items():
        matches = (re.sub(pattern, new, name) for pattern, new in rules if re.fullmatch(pattern, name))
        new_name = next(matches, None)
        assert new_name is not None, name
        renamed[new_name] = weight
    return renamed


def _params(weights: Weights, architecture: Architecture, labels: tuple[int, ...]) -> Any:
    """A pytree of parameters with exactly the shapes that the architecture wants.

    The last part of a name may still be torch's (`weight`): the layer decides what flax calls it.
    """
    wanted = flatten_dict(training_step("", architecture, labels, "float32").arguments[0], sep="/")
    layers = {}
    for name, weight in weights.items():
        layer, _, last = name.rpartition("/")
        if last == "weight":
            last = "scale" if f"{layer}/scale" in wanted else "kernel"
        layers[f"{layer}/{last}".lstrip("/")] = weight
    assert {name: weight.shape for name, weight in layers.items()} == {
        name: leaf.shape for name, leaf in wanted.items()
    }
    return unflatten_dict(layers, sep="/")


def _transposed(weights: Weights) -> Weights:
    """torch's Linear has [out, in] and its Conv2d [out, in, h, w]; flax has [in, out] and [h, w, in, out].

    Embeddings are the same in both.
    """
    order = {2: (1, 0), 4: (2, 3, 1, 0)}
    return {
        name: weight.transpose(order[weight.ndim]) if weight.ndim in order and "embedding" not in name else weight
        for name, weight in weights.items()
    }


def _ids(seed: int, highest: int = VOCABULARY) -> Any:
    return np.random.default_rng(seed).integers(0, highest, (BATCH, SEQUENCE))


def _labels() -> Any:
    """Class numbers, a third of them to be left out."""
    labels = _ids(3)
    labels[:, ::3] = -100
    return labels


def _compare(architecture: Architecture, params: Any, inputs: dict[str, Any], expected: Any, labels: Any) -> None:
    """Logits agree to float32's accuracy, and so do losses."""
    module = jax_model(architecture, "float32")
    logits = jax.jit(lambda params: module.apply({"params": params}, **inputs))(params)
    reference = expected.logits.detach().numpy()
    np.testing.assert_allclose(logits, reference, rtol=1e-4, atol=1e-4 * np.abs(reference).max())
    assert float(cross_entropy(logits, labels)) == pytest.approx(expected.loss.item(), rel=1e-4)


def _t5_inputs() -> tuple[dict[str, Any], dict[str, Any]]:
    """The same batch for ours and for theirs."""
    ids, decoder_ids = _ids(1), _ids(2)
    theirs = {"input_ids": ids, "decoder_input_ids": decoder_ids, "labels": _labels()}
    return {"ids": ids, "decoder_ids": decoder_ids}, {name: torch.tensor(array) for name, array in theirs.items()}


def test_t5() -> None:
    architecture = T5Config(
        width=16, heads=2, head_width=6, feed_forward=24, layers=2, vocabulary=VOCABULARY, buckets=8, max_distance=9
    )
    config = hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=6,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=9,
    )
    model = _randomised(hf.T5ForConditionalGeneration(config)).eval()
    weights = _transposed(_renamed(_weights(model), T5_RULES))
    ours, theirs = _t5_inputs()
    _compare(architecture, _params(weights, architecture, (BATCH, SEQUENCE)), ours, model(**theirs), _labels())


def test_switch_transformer_with_experts_that_overflow() -> None:
    architecture = T5Config(
        width=16, heads=2, head_width=6, feed_forward=24, layers=2, vocabulary=VOCABULARY, experts=4
    )
    config = hf.SwitchTransformersConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=6,
        d_ff=24,
        num_layers=2,
        num_decoder_layers=2,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_heads=2,
        num_experts=4,
        expert_capacity=capacity(SEQUENCE, 4),
    )
    model = _randomised(hf.SwitchTransformersForConditionalGeneration(config)).eval()
    weights = _transposed(_renamed(_weights(model), T5_RULES))
    stacks = {name.rpartition("/")[0] for name in weights if "/experts/" in name}
    for stack in sorted(stacks):
        weights[stack] = np.stack([weights.pop(f"{stack}/{expert}") for expert in range(4)])
    ours, theirs = _t5_inputs()
    _compare(architecture, _params(weights, architecture, (BATCH, SEQUENCE)), ours, model(**theirs), _labels())


def test_bert() -> None:
    architecture = BertConfig(width=16, heads=2, layers=2, vocabulary=VOCABULARY, positions=12)
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=12,
    )
    model = _randomised(hf.BertForMaskedLM(config)).eval()
    params = _params(_transposed(_renamed(_weights(model), BERT_RULES)), architecture, (BATCH, SEQUENCE))
    ids, types, labels = _ids(1), _ids(2, highest=2), _labels()
    expected = model(torch.tensor(ids), token_type_ids=torch.tensor(types), labels=torch.tensor(labels))
    _compare(architecture, params, {"ids": ids, "types": types}, expected, labels)


def test_gpt2() -> None:
    architecture = DecoderConfig(width=16, heads=2, layers=2, vocabulary=VOCABULARY, positions=12)
    config = hf.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=12)
    model = _randomised(hf.GPT2LMHeadModel(config)).eval()
    weights = _weights(model)
    for name in [name for name in weights if "c_attn" in name]:
        for part, matrix in zip("qkv", np.split(weights.pop(name), 3, axis=-1), strict=True):
            weights[name.replace("c_attn", part)] = matrix
    params = _params(_renamed(weights, GPT2_RULES), architecture, (BATCH, SEQUENCE))  # Conv1D is [in, out]
    ids = _ids(1)
    expected = model(torch.tensor(ids), labels=torch.tensor(ids))  # shifts them itself
    following = np.concatenate([ids[:, 1:], np.full((BATCH, 1), -100)], axis=1)
    _compare(architecture, params, {"ids": ids}, expected, following)


def _taken_apart(weights: Weights, config: Any) -> Weights:
    """Weights with q, k and v apart, which GPT-NeoX has head by head, and gates apart from wi; Gemma's norms add 1."""
    heads, apart = config.num_attention_heads, Weights()
    if config.model_type.startswith("gemma"):
        weights = {name: weight + ("norm" in name) for name, weight in weights.items()}
    for name, weight in weights.items():
        layer = name.rpartition(".")[0]
        if "query_key_value" in name:
            own = weight.reshape(heads, 3, -1, *weight.shape[1:])
            for place, part in enumerate("qkv"):
                apart[name.replace("query_key_value", part)] = own[:, place].reshape(-1, *weight.shape[1:])
        elif "self_attn.qkv_proj" in name:
            width, shared = len(weight) // (heads + 2 * config.num_key_value_heads), config.num_key_value_heads
            for part, rows in zip("qkv", np.split(weight, [heads * width, (heads + shared) * width]), strict=True):
                apart[name.replace("qkv", part)] = rows
        elif name.endswith("mlp.gate_up_proj.weight"):
            for part, rows in zip(("gate", "up"), np.split(weight, 2), strict=True):
                apart[name.replace("gate_up", part)] = rows
        elif name.endswith("experts.gate_up_proj"):
            gate, up = np.split(weight, 2, axis=1)
            apart |= {f"{layer}.gate": gate.swapaxes(1, 2), f"{layer}.wi": up.swapaxes(1, 2)}
        elif name.endswith("experts.down_proj"):
            apart[f"{layer}.wo"] = weight.swapaxes(1, 2)
        else:
            apart[name] = weight
    return apart


DECODERS = ("bloom", "deepseek_v3", "gemma2", "gemma3_text", "gpt_neox", "llama", "mistral", "mixtral", "olmo2", "phi3")
DECODERS += ("qwen2", "qwen3", "qwen3_moe", "stablelm", "starcoder2")


@pytest.mark.parametrize("model_type", DECODERS)
def test_decoders_of_a_config_json(model_type: str, tmp_path: Path) -> None:
    config = configuration(model_type)
    model = _randomised(model_of(config)).eval()
    architecture = read_config(written(config, tmp_path)).architecture
    weights = _taken_apart(_weights(model), config)
    rules = AROUND_RULES if model_type in {"gemma2", "gemma3_text", "olmo2"} else DECODER_RULES
    params = _params(_transposed(_renamed(weights, rules)), architecture, (BATCH, SEQUENCE))
    ids = _ids(1)
    expected = model(torch.tensor(ids), labels=torch.tensor(ids))  # shifts them itself
    following = np.concatenate([ids[:, 1:], np.full((BATCH, 1), -100)], axis=1)
    _compare(architecture, params, {"ids": ids}, expected, following)


def test_a_gated_t5_with_fewer_layers_in_the_decoder(tmp_path: Path) -> None:
    config = configuration("t5", tie_word_embeddings=False)
    model = model_of(config)
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))  # as in published weights
    _randomised(model).eval()
    architecture = read_config(written(config, tmp_path)).architecture
    weights = _transposed(_renamed(_weights(model), GATED_T5_RULES))
    ours, theirs = _t5_inputs()
    _compare(architecture, _params(weights, architecture, (BATCH, SEQUENCE)), ours, model(**theirs), _labels())


def test_resnet_in_training_and_the_means_it_keeps() -> None:
    architecture = ResNetConfig(stages=(1, 2), width=4, classes=5, image=32)
    config = hf.ResNetConfig(embedding_size=4, hidden_sizes=[16, 32], depths=[1, 2], num_labels=5)
    model = _randomised(hf.ResNetForImageClassification(config)).train()
    weights = _transposed(_renamed(_weights(model), RESNET_RULES))
    weights = {_from_one(name): weight for name, weight in weights.items()}
    params = _params(weights, architecture, (BATCH,))
    images = np.random.default_rng(1).normal(size=(BATCH, 32, 32, 3)).astype(np.float32)
    expected = model(torch.tensor(images.transpose(0, 3, 1, 2))).logits.detach().numpy()
    module = jax_model(architecture, "float32")
    shapes = training_step("", architecture, (BATCH,), "float32").arguments[2]
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    logits, state = jax.jit(partial(module.apply, mutable="batch_stats"))({"params": params, **zeros}, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    theirs = model.resnet.embedder.embedder.normalization.running_mean.numpy()
    np.testing.assert_allclose(state["batch_stats"]["conv1"]["batch_norm"]["mean"], theirs, rtol=1e-4, atol=1e-5)


def _from_one(name: str) -> str:
    """Stages, blocks and their convolutions count from 1 with us, from 0 with Hugging Face."""
    return re.sub(r"(?<=stage)\d+|(?<=_block)\d+|(?<=\d/conv)\d", lambda number: str(int(number[0]) + 1), name)


def test_vgg() -> None:
    architecture = VggConfig(blocks=((4, 1), (6, 2)), width=16, classes=5, image=8)
    random = np.random.default_rng(2)
    shapes = training_step("", architecture, (BATCH,), "float32").arguments[0]
    params = jax.tree.map(lambda leaf: random.normal(0, 0.3, leaf.shape).astype(np.float32), shapes)
    images = random.normal(size=(BATCH, 8, 8, 3)).astype(np.float32)
    x, functional = torch.tensor(images.transpose(0, 3, 1, 2)), torch.nn.functional
    for name in ("conv1_1", "pool", "conv2_1", "conv2_2", "pool"):
        if name == "pool":
            x = functional.max_pool2d(x, 2)
        else:
            kernel, bias = (torch.tensor(params[name][part]) for part in ("kernel", "bias"))
            x = functional.relu(functional.conv2d(x, kernel.permute(3, 2, 0, 1), bias, padding=1))
    x = x.permute(0, 2, 3, 1).flatten(1).numpy()
    for name in ("fc1", "fc2", "predictions"):
        x = x @ params[name]["kernel"] + params[name]["bias"]
        x = x if name == "predictions" else np.maximum(x, 0)
    logits = jax_model(architecture, "float32").apply({"params": params}, images)
    np.testing.assert_allclose(logits, x, rtol=1e-4, atol=1e-4 * np.abs(x).max())


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_positions_fall_into_t5s_buckets(bidirectional: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    position = torch.arange(600)
    theirs = T5Attention._relative_position_bucket(position[None] - position[:, None], bidirectional, 32, 128)
    np.testing.assert_array_equal(relative_buckets(600, 32, 128, bidirectional=bidirectional), theirs)
