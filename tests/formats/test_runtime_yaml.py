"""Systems by name and year, and how they split layers that do not divide."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_fields

from automap_models.core.device import USUAL
from automap_models.errors import BadInput
from automap_models.export.targets import training_limits
from automap_models.formats.measured_rows import ASYNC_OVERLAP
from automap_models.formats.runtime_yaml import (
    TODAY,
    Remainder,
    file_with,
    known_runtimes,
    numbers_of,
    read_runtime,
    runtime_named,
    split_layers,
    write_runtime,
    year_named,
)

SYSTEMS = (
    *("Megatron-LM 2021", "Megatron-LM 2023 + zero bubble", "Megatron-Core 2025 (dev)", "Primus 2025 (Megatron)"),
    *("Megatron-Bridge 26.08", "NeMo (24.11.1)", "NeMo 25.04", "NeMo AutoModel 2026", "Megatron-LM CI (dev)"),
    *("Megatron-DeepSpeed 2022", "DeepSpeed ZeRO-3", "DeepSpeed 3D (AMP)", "OneFlow-GPT 2021", "nanotron 2025"),
    *("llm-foundry (PyTorch FSDP)", "transformers 2025 (FSDP)", "InternEvo 2023", "torchtitan 2024-12", "Pax (JAX)"),
)


@pytest.mark.parametrize(
    ("system", "name", "year"),
    [
        ("Megatron-LM 2021", "megatron", 2021),
        ("Megatron-LM 2023 + zero bubble", "zero-bubble", 2023),
        ("Megatron-LM CI (dev)", "megatron-ci", TODAY),
        ("Megatron-DeepSpeed 2022", "megatron-deepspeed", 2022),
        ("DeepSpeed ZeRO-3", "deepspeed", 2021),
        ("torchtitan 2024-12", "torchtitan", 2024),
        ("MaxText (JAX) 2025", "maxtext", 2025),
        ("Megatron-Bridge 26.04.01", "megatron-bridge", TODAY),
        ("Megatron-Bridge 26.08", "megatron-bridge", TODAY),
        ("llm-foundry (PyTorch FSDP)", "llm-foundry", 2023),
        ("torchtune 2025 (eager)", "fsdp", 2025),
        ("fms-fsdp (PyTorch FSDP)", "general", TODAY),
        ("NeMo 25.07", "megatron-bridge", TODAY),
        ("NeMo AutoModel 2026", "automodel", 2026),
        ("nanotron 2025", "nanotron", 2025),
        ("something else", "general", TODAY),
    ],
)
def test_a_system_is_known_by_its_name_and_year(system: str, name: str, year: int) -> None:
    assert (runtime_named(system).name, year_named(system)) == (name, year)


def test_a_runtime_of_graphs_of_a_whole_iteration_is_of_steps_that_say_so() -> None:
    systems = [("Megatron-Bridge 26.08", "all"), ("Megatron-Bridge 26.08", "some"), ("Megatron-Bridge 25.11", "all")]
    names = [runtime_named(system, graph=graph).name for system, graph in systems]  # type: ignore[arg-type]
    assert names == ["megatron-bridge-26.06", "megatron-bridge", "megatron-bridge"]


def test_megatron_of_2025_weighs_experts_before_their_last_product() -> None:
    """NVIDIA/Megatron-LM 2659630721, of April 2025."""
    years = (2024, 2025, TODAY)
    assert [read_runtime("megatron").runtime("bf16", "h100", y).weighs_within for y in years] == [False, True, True]
    assert not read_runtime("torchtitan").runtime("bf16", "h100").weighs_within


def test_layers_that_divide_are_left_to_the_strategy() -> None:
    assert split_layers(96, 12, "ends") is None


def test_a_layer_is_left_out_at_both_ends_where_that_makes_the_rest_equal() -> None:
    """30 layers and two ends are 32 on 8 stages of 4."""
    assert split_layers(30, 8, "last") == split_layers(30, 8, "ends") == (3, 4, 4, 4, 4, 4, 4, 3)


@given(layers=st.integers(1, 200), stages=st.integers(1, 64), remainder=st.sampled_from(["ends", "last"]))
def test_every_layer_is_on_a_stage_and_none_is_fuller_than_needed(
    layers: int, stages: int, remainder: Remainder
) -> None:
    split = split_layers(layers, stages, remainder)
    if split is None:
        assert layers % stages == 0
    else:
        assert len(split) == stages
        assert sum(split) == layers
        assert max(split) == -(-layers // stages)
        assert min(split) >= 0


def test_no_system_has_two_runtimes() -> None:
    """The 40 names that published rows call their systems by; those with graphs may have another, too."""
    files = [read_runtime(name) for name in known_runtimes()]
    for system in SYSTEMS:
        named = [file for file in files if file.systems and re.search(file.systems, system.lower())]
        of_graphs = [file.name for file in named if file.cuda_graph == "all"]
        assert len(named) - len(of_graphs) == 1 >= len(of_graphs), (system, named)


def test_a_file_of_one_s_own_is_a_runtime(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nabout: a test\ncompute: 1.5\ndispatcher: hybridep\ncuda_graph: all\nhost_s: 0.001\n")
    runtime = read_runtime(path).runtime("bf16", "h100")
    assert (runtime.compute, runtime.dispatcher, runtime.graphed, runtime.flash) == (1.5, "hybridep", 1.0, True)


def test_a_written_runtime_is_read_back_with_what_is_not_as_usual(tmp_path: Path) -> None:
    path, file = tmp_path / "mine.yaml", read_runtime("nanotron")
    write_runtime(path, file, "Two\nlines.")
    assert read_runtime(path) == file
    assert path.read_text().startswith("# Two\n# lines.\nname: nanotron\n")
    assert "dropout" not in path.read_text()


def test_numbers_come_from_a_file_or_from_the_device_and_go_back_with_three_figures() -> None:
    constants = replace(USUAL, intra_efficiency=0.5, inter_efficiency=0.25)
    numbers = numbers_of(read_runtime("nanotron"), constants)
    assert (numbers["compute"], numbers["dispatch_across"]) == (1.24, 0.7)
    assert (numbers["exchange_inside"], numbers["exchange_across"]) == (0.5, 0.25)
    file = file_with(read_runtime("nanotron"), {"compute": 1.23456, "exchange_inside": 0.4, "exchange_across": 0.3})
    assert (file.compute, file.exchange_shares, file.dispatch_shares) == (1.23, (0.4, 0.3), (0.6, 0.7))


def test_a_runtime_of_one_s_own_runs_its_systems_and_those_that_nobody_knows() -> None:
    ours = replace_fields(read_runtime("megatron"), name="ours")
    names = [runtime_named(system, ours).name for system in ("Megatron-LM 2025", "our trainer", "nanotron 2025")]
    assert names == ["ours", "ours", "nanotron"]
    assert runtime_named("nanotron 2025", replace_fields(ours, systems="")).name == "ours"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: a\nabout: b\noverlap: 1\n", "overlap"),
        ("about: b\n", "name is missing"),
        ("name: a\nabout: b\ngradient_overlap: 1.5\n", "gradient_overlap is 1.5; give a share from 0 to 1"),
        ("name: a\nabout: b\nreserve: 1\n", "reserve is 1.0; give a share from 0 to 0.9"),
        ("name: a\nabout: b\nimbalance: 0.9\n", "imbalance is 0.9; give a number from 1 on"),
        ("name: a\nabout: b\ncompute: -1\n", "compute is -1"),
        ("name: a\nabout: b\ncompute: 0\n", "compute is 0"),
        ("name: a\nabout: b\ndispatch_shares: [0, 1]\n", "dispatch_shares is 0"),
        ("name: a\nabout: b\nexchange_shares: [0.5, 2]\n", "exchange_shares is 2"),
        ("name: a\nabout: b\ngathers_a_layer: -5\n", "gathers_a_layer is -5"),
        ("name: a\nabout: b\ngradient_moved_bytes: {bf16: -1}\n", "gradient_moved_bytes is -1"),
        ("name: a\nabout: b\ndispatcher: pigeons\n", "pigeons"),
        ("name: a\nabout: b\nhost_s: .inf\n", "is not valid YAML in line 3"),
        ("[1]\n", "not"),
        ("name: a\nabout: b\nruns: {zeros: [1]}\n", "schedules"),
        ("name: a\nabout: b\nruns: {schedules: [1f1b], zeros: [4]}\n", "4"),
    ],
)
def test_a_file_that_is_no_runtime_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=re.escape(sentence)):
        read_runtime(path)


def test_an_unknown_runtime_lists_those_that_there_are() -> None:
    with pytest.raises(BadInput, match="'trainer' is neither a known runtime nor a file; choose from automodel"):
        read_runtime("trainer")


def test_what_runs_beside_its_own_sums_on_ascend_hides_what_asynchronous_products_of_torch_hide() -> None:
    """MindSpeed's rows were priced as of no program in particular, whose sums go beside nothing: 30 % off, 19 % now."""
    assert runtime_named("MindSpeed-LLM 1.0.RC3", None).name == "mindspeed"
    assert read_runtime("mindspeed").tensor_overlap == ASYNC_OVERLAP


def test_a_runtime_runs_what_its_target_does_or_what_its_file_says() -> None:
    targets = training_limits()
    assert read_runtime("megatron").limits(targets) is read_runtime("mindspeed").limits(targets) is targets["megatron"]
    assert read_runtime("general").limits(targets) is None
    nanotron = read_runtime("nanotron").limits(targets)
    assert nanotron is not None
    assert (nanotron.name, nanotron.zeros, [*nanotron.schedules]) == ("nanotron", (0, 1), ["1f1b", "gpipe"])


@pytest.mark.parametrize("year", [2021, 2023, TODAY])
def test_the_zero_bubble_fork_runs_further_schedules_at_megatron_s_prices(year: int) -> None:
    """ZB-2p was refused by the only runtime that its rows named; its gradients go beside nothing in the fork."""
    fork, megatron = (read_runtime(name).runtime("fp16", "a100", year) for name in ("zero-bubble", "megatron"))
    changed = {key for key, value in vars(fork).items() if value != getattr(megatron, key)}
    mixtures = {"exchange_shares", "dispatch_shares", "routing", "mixture_host_s", "experts_apart", "weighs_within"}
    assert changed <= {"name", "gradient_overlap", "casts_weights_once", *mixtures}
    limits = read_runtime("zero-bubble").limits(training_limits())
    assert limits is not None and {"zb-h1", "zb-h2", "zb-v"} <= {*limits.schedules}
