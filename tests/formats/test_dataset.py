"""A data set is read whole, in part, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from automap_models.errors import BadInput
from automap_models.formats.atomic import write_json
from automap_models.formats.dataset import KIND, read_dataset, read_manifest, write_shard


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three shards of four groups: values 0 … 11."""
    shards = []
    for index in range(3):
        values = np.arange(4, dtype=np.float32) + 4 * index
        arrays = {"wide": np.repeat(values[:, None], 2, axis=1), "narrow": values.astype(np.int32)}
        shards.append(write_shard(tmp_path / f"shard-{index}.npz", arrays))
    manifest = {"schema": 1, "kind": KIND, "granularity": 4, "groups": 12, "seed": 1, "distributions": ["normal"]}
    write_json(tmp_path / "manifest.json", {**manifest, "ranges": {}, "config": {}, "shards": shards})
    return tmp_path


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def entries(folder: Path) -> list[dict[str, object]]:
    return json.loads((folder / "manifest.json").read_text())["shards"]  # type: ignore[no-any-return]


def test_all_groups_come_back_in_order(dataset: Path) -> None:
    arrays = read_dataset(dataset)
    np.testing.assert_array_equal(arrays["narrow"], np.arange(12))
    np.testing.assert_array_equal(arrays["wide"], np.repeat(np.arange(12.0)[:, None], 2, axis=1))
    assert (arrays["narrow"].dtype, arrays["wide"].dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("groups", [1, 4, 5, 12])
def test_a_limited_number_of_groups_opens_only_the_shards_that_hold_them(dataset: Path, groups: int) -> None:
    for index in range(-(-groups // 4), 3):
        (dataset / f"shard-{index}.npz").unlink()
    np.testing.assert_array_equal(read_dataset(dataset, groups)["narrow"], np.arange(groups))


@pytest.mark.parametrize("groups", [0, 13])
def test_more_groups_than_there_are_is_refused(dataset: Path, groups: int) -> None:
    with pytest.raises(BadInput, match=f"has 12 groups, not {groups}"):
        read_dataset(dataset, groups)


def test_a_shard_entry_says_what_the_shard_holds(dataset: Path) -> None:
    entry = read_manifest(dataset).shards[1]
    assert (entry.file, entry.count, entry.ranges) == ("shard-1.npz", 4, {"narrow": (4, 7)})


def test_a_damaged_shard_is_named_with_what_to_do(dataset: Path) -> None:
    path = dataset / "shard-1.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"shard-1\.npz.*damaged.*datagen/run\.py"):
        read_dataset(dataset)


def test_a_missing_shard_is_named(dataset: Path) -> None:
    (dataset / "shard-2.npz").unlink()
    with pytest.raises(BadInput, match=r"shard-2\.npz.*No such file"):
        read_dataset(dataset)


def test_a_shard_that_does_not_fit_the_others_is_refused(dataset: Path) -> None:
    shards = entries(dataset)
    shards[1] = write_shard(dataset / "shard-1.npz", {"wide": np.zeros((4, 3), np.float32), "narrow": np.zeros(4)})
    edit_manifest(dataset, shards=shards)
    with pytest.raises(BadInput, match=r"array wide does not fit the other shards"):
        read_dataset(dataset)


def test_a_shard_with_python_objects_is_never_unpickled(dataset: Path) -> None:
    import hashlib

    path = dataset / "shard-0.npz"
    np.savez(path, narrow=np.array([object()], dtype=object))
    shards = entries(dataset)
    shards[0]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_manifest(dataset, shards=shards)
    with pytest.raises(BadInput, match="holds Python objects"):
        read_dataset(dataset)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "photographs"}, r"kind is 'photographs', not pipeline-dataset"),
        ({"schema": 99}, r"schema is 99, not 1"),
        ({"shards": []}, "shards is \\[\\]"),
        ({"shards": [{"file": "../other/shard.npz", "count": 4, "sha256": ""}]}, r"shards\[0\].file is"),
        ({"shards": [{"file": "shard-0.npz"}]}, r"shards\[0\].count is missing"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(dataset: Path, changes: dict[str, object], message: str) -> None:
    edit_manifest(dataset, **changes)
    with pytest.raises(BadInput, match=message):
        read_dataset(dataset)


def test_an_unfinished_data_set_and_broken_json_are_refused(dataset: Path) -> None:
    (dataset / "manifest.json").write_text("{")
    with pytest.raises(BadInput, match="not valid JSON"):
        read_manifest(dataset)
    (dataset / "manifest.json").unlink()
    with pytest.raises(BadInput, match=r"no manifest\.json.*finished data set"):
        read_manifest(dataset)
