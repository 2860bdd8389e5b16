"""What recomputation by module does without and runs again: counted by hand of DeepSeek-V3's blocks, for each token."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.model_work import Mark, ModelWork, module_bits
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_costs import LayerCosting
from automap_models.cost.recompute import run_again
from automap_models.cost.runtime import Runtime
from automap_models.formats.hardware_yaml import read_device
from automap_models.workloads.layer import Layer
from automap_models.workloads.registry import sized
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.transformer import model_work

TOKENS = 4096
HIDDEN, HEADS, PER_TOKEN, EXPERT, DENSE = 7168, 128, 8, 2048, 18432
PERCEPTRONS = 3 * 2 * EXPERT  # a gate, what it gates and their product in 16 bits, of one expert
BYTES = {
    "layernorm": 2 * 2 * HIDDEN,
    "mla_up_proj": 2 * (HEADS * (128 + 64 + 128 + 128) + 64 + 1536 + 512),  # queries, keys, values, normed latents
    "moe_act": PER_TOKEN * 2 * EXPERT,
    "shared_experts": PERCEPTRONS,
    # what experts read and give, and the router's logits in fp32; weights of experts, 48 bytes, are kept
    "moe": PER_TOKEN * (PERCEPTRONS + 2 * 2 * HIDDEN) + PERCEPTRONS + 4 * 256,
}


@cache
def deepseek() -> ModelWork:
    config = sized("deepseek-v3", sequence=TOKENS).architecture
    assert isinstance(config, DecoderConfig)
    return model_work(config, "deepseek-v3", TOKENS, "bfloat16")


@pytest.mark.parametrize(("module", "nbytes"), BYTES.items())
def test_a_module_of_a_mixture_does_without_what_is_made_in_it(module: str, nbytes: float) -> None:
    block = deepseek().layers[deepseek().order[-2]]
    discarded = block.saved.made_by(np.array([module_bits(module)]))
    assert discarded.values.sum() / TOKENS == pytest.approx(nbytes)


def test_a_perceptron_does_without_its_norm_and_what_is_inside() -> None:
    block = deepseek().layers[deepseek().order[1]]
    discarded = block.saved.made_by(np.array([module_bits("mlp")]))
    assert discarded.values.sum() / TOKENS == pytest.approx(2 * (HIDDEN + 3 * DENSE))


def test_modules_run_again_by_themselves_what_they_do_together() -> None:
    work, strategy = deepseek(), Strategy(micro_batch=1, global_batch=8)
    costing = LayerCosting(work, Cluster(1, 1, 1e11, 1e11, 8e10), read_device("h100"), Runtime(selects="attention"))
    again = costing.costs(strategy, costing.groups(strategy)).times[work.order[-2], :, 3]
    of = {kind: again[work.kind(kind)] for kind in (*BYTES, "full", "layernorm+mla_up_proj+moe_act+core_attn")}
    core_s = again[work.kind("core_attn")]
    together = of["layernorm"] + of["mla_up_proj"] + of["moe_act"] + core_s
    assert of["layernorm+mla_up_proj+moe_act+core_attn"] == pytest.approx(together)
    assert 0 < of["layernorm"] < of["mla_up_proj"] < of["moe"] < of["full"]
    assert again[work.kind("selective")] == core_s


def test_recomputation_ends_before_a_last_product_that_nothing_reads() -> None:
    """As FLOP that torch counts of a checkpoint that is reentrant and of one that stops early, beside two forward and
    four backward products; nor is there a sum then."""
    torch, counter = pytest.importorskip("torch"), pytest.importorskip("torch.utils.flop_counter")
    layer = Layer(8, "bfloat16")
    layer.dense(layer.dense(layer.value(64), 256, Mark.TENSOR), 64)
    for stops in (False, True):
        x = torch.ones(8, 64, requires_grad=True)
        inner, outer = (torch.ones(64, 256, requires_grad=True), torch.ones(256, 64, requires_grad=True))
        with counter.FlopCounterMode(display=False) as counted:
            torch.utils.checkpoint.checkpoint(lambda x: x @ inner @ outer, x, use_reentrant=not stops).sum().backward()  # noqa: B023
        work = layer.work("layer")
        again = run_again(work, ("full",), Runtime(stops_early=stops))
        products = 6 + again.kernels[work.kernels.products].sum()
        assert (counted.get_total_flops(), again.sums.tolist()) == (products * 2 * 8 * 64 * 256, [[not stops]])


def test_a_module_that_is_part_of_another_or_that_a_model_lacks_changes_nothing() -> None:
    work = deepseek()
    assert work.kind("moe_act+shared_experts+moe") == work.kind("moe")
    assert work.kinds[work.kind("none")] == "none"
    without = model_work(sized("llama3-8b", sequence=TOKENS).architecture, "llama3-8b", TOKENS, "bfloat16")  # type: ignore[arg-type]
    assert without.kind("layernorm+moe_act+mlp") == without.kind("mlp") and without.kind("moe") == 0


def test_experts_that_are_weighted_before_their_last_product_are_not_kept() -> None:
    """The eight results of a token, in 16 bits; where all of a mixture runs again, none of them was kept."""
    work, strategy = deepseek(), Strategy(micro_batch=1, global_batch=8)
    runtimes = (Runtime(weighs_within=within) for within in (False, True))
    costings = [LayerCosting(work, Cluster(1, 1, 1e11, 1e11, 8e10), read_device("h100"), of) for of in runtimes]
    costs = (costing.costs(strategy, costing.groups(strategy)) for costing in costings)
    after, within = (of.memory[work.order[-2], :, 0] for of in costs)
    assert (after - within)[work.kind("none")] == pytest.approx(TOKENS * PER_TOKEN * 2 * HIDDEN)
    assert (after - within)[work.kind("moe")] == 0.0
