"""The optimiser's state in the memory of hosts: what devices hold then, and how long hosts take to update weights."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from strategy_problems import DEVICE, estimated

from automap_models.core.cluster import Cluster
from automap_models.core.device import HostMemory
from automap_models.core.estimate import Estimate
from automap_models.core.strategy import Strategy
from automap_models.cost.runtime import DEFAULT_RUNTIME, Runtime
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.formats.runtime_yaml import read_runtime
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.transformer import model_work

CONFIG = DecoderConfig(width=256, heads=4, layers=4, vocabulary=1000, positions=None)
WORK = model_work(CONFIG, "m", 64, "bfloat16")
PARAMETERS = 4 * (12 * 256**2 + 13 * 256) + 1000 * 256 + 2 * 256
"""Counted by hand: of four blocks, of an embedding that is the output matrix, too, and of the last norm."""
HOSTED = replace(DEVICE, host_memory=HostMemory(memory=1e9, bandwidth=8e9, link=1e9))
DEEPSPEED = read_runtime("deepspeed").runtime("bf16", "a100")


def price(devices: int, runtime: Runtime = DEFAULT_RUNTIME, **fields: object) -> Estimate:
    """Of data parallelism on one node."""
    strategy = Strategy(micro_batch=1, global_batch=8, dp=devices, offload="optimizer", **fields)  # type: ignore[arg-type]
    return estimated(WORK, strategy, Cluster(1, devices, 1e11, 1e11, 1e12), HOSTED, runtime)


def test_devices_hold_what_deepspeed_says() -> None:
    """Its page "Memory Requirements" (docs/code-docs/source/memory.rst) has 2 bytes a parameter with ZeRO-2, and 2
    divided by the devices with ZeRO-3, beside the largest layer."""
    for zero, expected in ((2, 2.0), (3, 2.0 / 8)):
        assert price(8, DEEPSPEED, zero=zero).memory[0].state == pytest.approx(expected * PARAMETERS)
    assert price(1, DEEPSPEED).memory[0].state == pytest.approx(2.0 * PARAMETERS)


def test_gradients_stay_where_the_framework_keeps_them() -> None:
    """Megatron's HybridDeviceOptimizer copies its main gradients, in fp32, when it updates."""
    memory = price(8, zero=1).memory[0]
    assert (memory.weights, memory.gradients, memory.optimizer) == pytest.approx((2 * PARAMETERS, 4 * PARAMETERS, 0.0))


def test_hosts_hold_sixteen_bytes_a_parameter() -> None:
    """4 of the weight, the gradient and each moment, all in fp32: the same page."""
    assert price(8, DEEPSPEED, zero=2).host == pytest.approx((16.0 * PARAMETERS / 8, 1e9 / 8))


def test_an_update_takes_what_the_host_moves_and_what_goes_there_and_back() -> None:
    """30 bytes of its memory: a gradient read, twelve of state read and written, a weight written. All devices of a
    node share that; each has a link of its own, for 4 and 2 bytes."""
    for devices in (1, 2, 8):
        of_device = PARAMETERS / devices
        expected_s = of_device * (30.0 * devices / 8e9 + 6.0 / 1e9)
        assert price(devices, zero=1).parts.optimizer == pytest.approx(expected_s)


def test_gradients_of_every_micro_batch_go_to_the_host_beside_its_backward_pass() -> None:
    """Over so slow a link they take longer: 8 micro-batches of 2 bytes a parameter, less what the passes take."""
    slow = replace(HOSTED, host_memory=HostMemory(memory=1e9, bandwidth=8e9, link=1e6))
    strategy = Strategy(micro_batch=1, global_batch=8, offload="optimizer")
    estimate = estimated(WORK, strategy, Cluster(1, 1, 1e11, 1e11, 1e12), slow, DEEPSPEED)
    backward_s = sum(estimate.passes_s[1])
    assert estimate.parts.data_parallel == pytest.approx(8 * (2.0 * PARAMETERS / 1e6 - backward_s))


def test_a_host_with_too_little_memory_does_not_fit() -> None:
    small = replace(HOSTED, host_memory=HostMemory(memory=15.9 * PARAMETERS, bandwidth=8e9, link=1e9))
    strategy = Strategy(micro_batch=1, global_batch=8, offload="optimizer")
    cluster = Cluster(1, 1, 1e11, 1e11, 1e12)
    assert estimated(WORK, strategy, cluster, small).verdict == "does not fit"
    assert estimated(WORK, strategy, cluster, HOSTED).verdict == "fits"


def test_a_device_without_a_host_is_refused() -> None:
    strategy = Strategy(micro_batch=1, global_batch=8, offload="optimizer")
    with pytest.raises(BadInput, match="device does not say the memory of its hosts"):
        estimated(WORK, strategy, Cluster(1, 1, 1e11, 1e11, 1e12), DEVICE)


@pytest.mark.parametrize("saving_first", [True, False])
def test_blocks_without_a_host_are_refused_whatever_was_priced_before(saving_first: bool) -> None:
    """Costs of a strategy are at hand for all that differ from it in what they recompute."""
    pricing = StrategyPricing(WORK, Cluster(1, 1, 1e11, 1e11, 1e12), DEVICE)
    for saves in (saving_first, not saving_first) * 2:
        strategy = Strategy(micro_batch=1, global_batch=8, recompute="offload" if saves else "full")
        with pytest.raises(BadInput, match="memory of its hosts") if saves else nullcontext():
            assert pricing.price(strategy)[0] == pytest.approx(pricing.estimate(strategy).step_s)


def blocks_on_hosts(link: float = 1e12, memory: float = 1e9, **fields: object) -> Estimate:
    """Of one device, or of a pipeline of two, whose hosts save for all blocks, or as the fields say."""
    device = replace(DEVICE, host_memory=HostMemory(memory=memory, bandwidth=8e9, link=link))
    strategy = Strategy(**{"micro_batch": 1, "global_batch": 8, "recompute": "offload", **fields})  # type: ignore[arg-type]
    return estimated(WORK, strategy, Cluster(1, strategy.devices, 1e11, 1e11, 1e12), device)


def test_hosts_save_what_devices_no_longer_do() -> None:
    """All that blocks save, of as many blocks as are told to."""
    saved, none = blocks_on_hosts().host[0], blocks_on_hosts(recompute="none")
    assert none.memory[0].activations - blocks_on_hosts().memory[0].activations == pytest.approx(saved)
    assert blocks_on_hosts(recompute_blocks=(3,)).host[0] == pytest.approx(3 / 4 * saved)
    assert none.host[0] == 0.0


def test_two_blocks_are_on_the_device_at_once() -> None:
    """One that a pass runs, and one on its way."""
    wide = blocks_on_hosts(micro_batch=8)
    assert wide.memory[0].temporary == pytest.approx(2 * wide.host[0] / 4)


def test_a_link_that_is_fast_enough_hides_behind_passes() -> None:
    assert blocks_on_hosts(link=1e15).step_s == pytest.approx(blocks_on_hosts(recompute="none").step_s, rel=1e-12)


def test_a_slow_link_lengthens_every_pass_both_ways() -> None:
    """Half as fast it takes as long again, and the passes behind which it hides are no longer: 8 micro-batches there
    and back."""
    slow, slower = blocks_on_hosts(link=2e6), blocks_on_hosts(link=1e6)
    assert slower.step_s - slow.step_s == pytest.approx(8 * 2 * slow.host[0] * (1 / 1e6 - 1 / 2e6))
    assert slower.parts.recompute == pytest.approx(8 * (slow.host[0] / 1e6 - backward_of_blocks()), rel=1e-6)


def backward_of_blocks() -> float:
    """Seconds of the backward passes of all blocks, without what comes before and after them: of twice as many blocks,
    less those of once as many."""
    twice = model_work(replace(CONFIG, layers=8), "m", 64, "bfloat16")
    strategy, cluster = Strategy(micro_batch=1, global_batch=8), Cluster(1, 1, 1e11, 1e11, 1e12)
    both, once = (sum(estimated(work, strategy, cluster, DEVICE).passes_s[1]) for work in (twice, WORK))
    return both - once


def test_hosts_save_for_all_micro_batches_in_flight() -> None:
    """Under 1F1B the first of two ranks has two of them; each has half of the blocks."""
    assert blocks_on_hosts(pp=2).host[0] == pytest.approx(2 * blocks_on_hosts().host[0] / 2)
    assert blocks_on_hosts(pp=2, schedule="gpipe").host[0] == pytest.approx(8 * blocks_on_hosts().host[0] / 2)


def test_hosts_hold_both_what_blocks_save_and_the_state_of_the_optimizer() -> None:
    both = blocks_on_hosts(offload="optimizer").host[0]
    assert both == pytest.approx(blocks_on_hosts().host[0] + 16.0 * PARAMETERS)
    assert blocks_on_hosts(memory=0.999 * both, offload="optimizer").verdict == "does not fit"
    assert blocks_on_hosts(memory=1.001 * both, offload="optimizer").verdict == "fits"


def test_blocks_on_hosts_of_a_device_without_them_are_refused() -> None:
    strategy = Strategy(micro_batch=1, global_batch=8, recompute="offload")
    with pytest.raises(BadInput, match=r"memory of its hosts.*take recompute full"):
        estimated(WORK, strategy, Cluster(1, 1, 1e11, 1e11, 1e12), DEVICE)


def test_ten_billion_parameters_train_on_one_v100() -> None:
    """DeepSpeed's tutorial of ZeRO-Offload trains 50 layers of 4096 in samples of 1024, ten at once, on 32 GB."""
    config = DecoderConfig(width=4096, heads=32, layers=50, vocabulary=50304, positions=1024, tied=True)
    strategy = Strategy(micro_batch=10, global_batch=10, recompute="full", precision="fp16", offload="optimizer")
    runtime = read_runtime("deepspeed").runtime("fp16", "v100")
    work = model_work(config, "gpt-10b", 1024, "float16")
    estimate = estimated(work, strategy, read_cluster("1xv100"), read_device("v100"), runtime)
    assert 20e9 < estimate.memory[0].weights < 21e9
    assert estimate.verdict != "does not fit"
    assert estimated(work, replace(strategy, offload="none"), read_cluster("1xv100"), read_device("v100")).fits is False


def test_published_updates_take_about_as_long() -> None:
    """Qwen 72B with ZeRO-3 on 4 nodes of 8 A100: about 10 s of a step (DeepSpeed's issue 6834). The share of a host's
    memory that updates reach was chosen with this row; a step of Qwen2.5-3B on two A100 of one host, which takes 2.38 s
    with its passes (pull request 7474), was not."""
    host = read_device("a100").host_memory
    assert host is not None
    for parameters, devices, per_node, least_s, most_s in ((72.7e9, 32, 8, 6.7, 15.0), (3.09e9, 2, 2, 0.8, 2.38)):
        update_s = parameters / devices * (32.0 * per_node / host.bandwidth + 8.0 / host.link)
        assert least_s < update_s < most_s
