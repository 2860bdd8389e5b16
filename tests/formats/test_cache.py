"""The cache keeps what it was given, and gives nothing back that is not whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from automap_models.formats.cache import Cache, cache_folder, fingerprint


def test_what_is_written_is_read_until_it_is_overwritten(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "cache")
    assert cache.read("key") is None
    for payload in (b"one", b"", b"two\nlines\n", bytes(range(256))):
        cache.write("key", payload)
        assert Cache(tmp_path / "deep" / "cache").read("key") == payload
    assert [path.name for path in (tmp_path / "deep" / "cache").iterdir()] == ["key"]


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"", lambda b: b"X" + b[1:]])
def test_a_damaged_entry_is_none(damage, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.write("key", b"some payload")
    path = tmp_path / "key"
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read("key") is None
    cache.write("key", b"again")
    assert cache.read("key") == b"again"


def test_every_byte_counts(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.write("key", b"some payload")
    whole = (tmp_path / "key").read_bytes()
    for i in range(len(whole)):
        (tmp_path / "key").write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert cache.read("key") is None


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    cache = Cache(None)
    cache.write("key", b"payload")
    assert cache.read("key") is None
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache")
    cache.write("key", b"payload")
    assert cache.read("key") is None


def test_an_entry_that_is_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()
    cache = Cache(tmp_path)
    assert cache.read("key") is None
    cache.write("key", b"payload")


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AUTOMAP_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "automap"
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "automap"
    monkeypatch.setenv("AUTOMAP_CACHE", os.fspath(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_fingerprints_tell_documents_apart_and_not_their_order() -> None:
    assert fingerprint({"a": 1, "b": [2, None]}) == fingerprint({"b": [2, None], "a": 1})
    several = [{"a": 1}, {"a": "1"}, {"a": 1.5}, {"a": [1]}, {"b": 1}, {}]
    assert len({fingerprint(content) for content in several}) == len(several)
