"""sweep.yaml: names, files, lists and ranges, and one clear sentence for everything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.formats.sweep_yaml import SweepSpec, read_sweep

HUNDRED = "{from: 1, to: 100}"
INLINE = "{nodes: 2, devices_per_node: 4, intra: 100e9, inter: 10e9, memory: 16e9, name: mine}"


def read(folder: Path, text: str) -> SweepSpec:
    path = folder / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return read_sweep(path)


def test_the_shipped_example_is_one() -> None:
    spec = read_sweep(Path(__file__).resolve().parents[2] / "examples" / "sweep.yaml")
    assert len(spec.clusters) * len(spec.stages or ()) * len(spec.micro_batches or ()) == 36


def test_names_files_and_inline_clusters(tmp_path: Path) -> None:
    (tmp_path / "beside.yaml").write_text(INLINE.replace("mine", "beside"), encoding="utf-8")
    spec = read(tmp_path, f"clusters: [C, beside.yaml, {INLINE}]")
    assert [cluster.name for cluster in spec.clusters] == ["C", "beside", "mine"]
    assert spec.clusters[0] == read_cluster("C")
    assert (spec.stages, spec.micro_batches, spec.global_batch) == (None, None, None)


def test_lists_make_a_cluster_for_every_combination_named_after_what_differs(tmp_path: Path) -> None:
    spec = read(tmp_path, "clusters: {base: C, nodes: [2, 4], inter: [1e9, 12.5e9]}")
    assert [(c.name, c.nodes, c.inter, c.intra) for c in spec.clusters] == [
        ("C, nodes 2, inter 1 GB/s", 2, 1e9, 130e9),
        ("C, nodes 2, inter 12.5 GB/s", 2, 12.5e9, 130e9),
        ("C, nodes 4, inter 1 GB/s", 4, 1e9, 130e9),
        ("C, nodes 4, inter 12.5 GB/s", 4, 12.5e9, 130e9),
    ]


def test_a_range_of_numbers_is_even_on_a_logarithmic_scale_and_keeps_its_ends(tmp_path: Path) -> None:
    spec = read(tmp_path, "clusters: {base: A, inter: {from: 1 GB/s, to: 800 Gbit/s, steps: 5}}")
    inter = [cluster.inter for cluster in spec.clusters]
    np.testing.assert_allclose(inter, np.geomspace(1e9, 1e11, 5), rtol=1e-12)
    assert (inter[0], inter[-1]) == (1e9, 1e11)


def test_a_range_of_whole_numbers_goes_one_by_one_or_in_steps(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        "{clusters: [A], stages: {from: 2, to: 5}, micro_batches: {from: 1, to: 64, steps: 4}, global_batch: 64}",
    )
    assert (spec.stages, spec.micro_batches, spec.global_batch) == ((2, 3, 4, 5), (1, 4, 16, 64), 64)


def test_auto_stays_auto(tmp_path: Path) -> None:
    spec = read(tmp_path, "{clusters: A, stages: auto, micro_batches: auto, global_batch: 256}")
    assert (spec.stages, spec.micro_batches) == ("auto", "auto")


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "document is None"),
        ("[]", "document is []"),
        ("clusters: [", "not valid YAML in line"),
        ("stages: [1]", "clusters is missing"),
        ("clusters: []", "names no cluster"),
        ("{clusters: [A], batches: 3}", "unknown key 'batches'"),
        ("clusters: [nowhere]", "neither a known cluster nor a file"),
        ("clusters: [3]", "$.clusters[0] is 3"),
        ("clusters: [{base: A, speed: 3}]", "unknown key 'speed'"),
        ("clusters: [{nodes: 2}]", "devices_per_node is missing"),
        ("clusters: [{base: A, inter: fast}]", "$.clusters[0].inter is 'fast', not a bandwidth such as 130 GB/s"),
        ("clusters: [{base: A, inter: []}]", "$.clusters[0].inter is []"),
        ("clusters: [{base: A, inter: [1e9, .nan]}]", "not valid YAML in line 1"),
        ("clusters: [{base: A, inter: -1}]", "inter is -1.0"),
        ("clusters: [{base: A, nodes: 1.5}]", "nodes"),
        ("clusters: [{base: A, inter: {from: 1e9, to: 1e11}}]", "steps is missing"),
        ("clusters: [{base: A, inter: {from: 0, to: 1, steps: 3}}]", "above 0"),
        ("clusters: [{base: A, inter: {from: 1, to: 2, steps: 1}}]", "$.clusters[0].inter.steps is 1"),
        ("clusters: [{base: A, inter: {from: 1, to: 2, steps: 1e12}}]", "at most 10,000"),
        ("clusters: [{base: A, nodes: {from: 1, to: 1e18}}]", "at most 10,000"),
        ("clusters: [A, {base: A, inter: 1e9}]", "two clusters are called A"),
        ("{clusters: [A], stages: 0}", "$.stages is 0"),
        ("{clusters: [A], stages: many}", "$.stages is 'many'"),
        ("{clusters: [A], stages: [1.5]}", "$.stages[0] is 1.5"),
        ("{clusters: [A], stages: [true]}", "$.stages[0] is True"),
        ("{clusters: [A], micro_batches: auto}", "add global_batch"),
        ("{clusters: [A], global_batch: 0}", "0 samples"),
        ("{clusters: [A], global_batch: 1e30}", "$.global_batch is 1e+30"),
        (f"{{clusters: [A], stages: {{from: 1, to: 101}}, micro_batches: {HUNDRED}}}", "10,100 combinations"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, fragment: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(tmp_path, text)
    assert fragment in str(refused.value)
    assert "sweep.yaml" in str(refused.value) or "cluster" in str(refused.value)


def test_aliases_that_multiply_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    bomb = "\n".join(
        ["clusters: [A]", "stages: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]", *(f"x{j}: &b{j} [*a, *a]" for j in range(3))]
    )
    with pytest.raises(BadInput):
        read(tmp_path, bomb)
    nested = "{clusters: [A], stages: [&a [1], &b [*a, *a], [*b, *b]]}"
    with pytest.raises(BadInput, match="not a whole number"):
        read(tmp_path, nested)
