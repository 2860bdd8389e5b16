"""What Megatron-Core 0.19 makes of arguments, as its own training/arguments.py and TransformerConfig say."""

from __future__ import annotations

from pathlib import Path

import pytest

from automap_models.core.sublayer_sizes import Latent, Rotary
from automap_models.importing.reader import read_setting
from automap_models.importing.setting import Setting

LATENTS = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 100 "
    "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 8 --swiglu --multi-latent-attention "
)
SIZES = (
    "num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 32, vocab_size: 100, "
    "multi_latent_attention: true, gated_linear_unit: true"
)


def bridge(more: str, folder: Path) -> Setting:
    """An override of Megatron-Bridge, of a model with latents."""
    path = folder / "case.yaml"
    path.write_text(f"model: {{{SIZES}{more}}}\ntrain: {{micro_batch_size: 1, global_batch_size: 8}}\n", "utf-8")
    return read_setting(str(path), {})


def latent(setting: Setting) -> tuple[int | None, int]:
    """The ranks of queries, and of keys and values."""
    assert setting.model is not None
    assert setting.model.latent is not None
    return setting.model.latent.query_rank, setting.model.latent.rank


def test_queries_have_no_latent_that_no_argument_asks_for() -> None:
    """`--q-lora-rank` has None for a default, `--kv-lora-rank` 32; DeepSeek-V2-Lite has no latent of queries
    (arXiv 2405.04434, appendix B)."""
    setting = read_setting(LATENTS + "--kv-lora-rank 512", {})
    assert setting.model is not None
    assert setting.model.latent == Latent(None, 512, 128, Rotary(64), 128)
    assert latent(read_setting(LATENTS, {})) == (None, 32)


def test_a_configuration_has_the_latents_of_megatrons_dataclass(tmp_path: Path) -> None:
    """MLATransformerConfig has 512 of both, which a file can take away."""
    assert latent(bridge("", tmp_path)) == (512, 512)
    assert latent(bridge(", q_lora_rank: null, kv_lora_rank: 256", tmp_path)) == (None, 256)


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", ["since Megatron-Core 0.19"]),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl native", []),
        ("--cross-entropy-loss-fusion", []),
        ("--moe-grouped-gemm --fp16", []),  # until 0.15 it asked for --bf16
    ],
)
def test_refused_is_what_0_19_refuses(words: str, refused: list[str]) -> None:
    refusals = read_setting(LATENTS + words, {}).refusals
    assert len(refusals) == len(refused)
    assert all(part in sentence for part, sentence in zip(refused, refusals, strict=True))


def test_graphs_of_modules_are_noted() -> None:
    """`--cuda-graph-scope` was its name before 0.18."""
    for name in ("--cuda-graph-modules", "--cuda-graph-scope"):
        setting = read_setting(f"{LATENTS} {name} attn", {})
        assert [*setting.unread] == []
        assert any(name in note for note in setting.notes)
