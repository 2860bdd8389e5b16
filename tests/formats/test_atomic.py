"""Files appear whole or not at all; the cache keeps what it was given, and gives nothing back that is not whole."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

import pytest

from automap_models.errors import BadInput
from automap_models.formats.atomic import Cache, cache_folder, fingerprint, require_writable, write_atomically


def _new(file: BinaryIO) -> None:
    file.write(b"new")


def test_a_new_file_holds_what_was_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.bin", _new)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.bin", b"new")]


def test_an_old_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomically(path, _new)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_gets_the_permissions_that_plain_open_gives(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "a.bin", _new)
    assert (tmp_path / "a.bin").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError, SystemExit, BadInput])
def test_whatever_the_writer_raises_the_old_file_stays_and_no_other_remains(
    tmp_path: Path, raised: type[BaseException]
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def half(file: BinaryIO) -> None:
        file.write(b"half of the n")
        raise raised("stop")

    with pytest.raises(raised):
        write_atomically(path, half)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.bin", b"old")]


def test_a_full_disk_is_named_with_the_file(tmp_path: Path) -> None:
    def full(file: BinaryIO) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(BadInput, match=r"a\.bin: cannot be written \(No space left on device\)"):
        write_atomically(tmp_path / "a.bin", full)
    assert not list(tmp_path.iterdir())


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "a.bin")
    write_atomically(tmp_path / "link", _new)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a.bin").read_bytes() == b"new"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no folder .*nowhere"):
        require_writable(tmp_path / "nowhere" / "a.bin")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a folder"):
        require_writable(tmp_path)


def test_a_device_is_refused_rather_than_replaced() -> None:
    with pytest.raises(BadInput, match="/dev/null: is not a regular file"):
        require_writable(os.devnull)


def test_a_name_that_the_file_system_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        require_writable(tmp_path / ("x" * 300))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("protected", ["folder", "file"])
def test_write_protection_is_respected(tmp_path: Path, protected: str) -> None:
    path = tmp_path / "a.bin"
    path.touch()
    (tmp_path if protected == "folder" else path).chmod(0o500)
    with pytest.raises(BadInput, match=r"not writable|write-protected"):
        require_writable(path)


def test_writability_is_checked_without_touching_the_file(tmp_path: Path) -> None:
    assert require_writable(tmp_path / "a.bin") == (tmp_path / "a.bin").resolve()
    assert not list(tmp_path.iterdir())


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


@dataclass(frozen=True)
class Step:
    """Some record."""

    number: int


def test_a_record_is_made_once_and_again_where_its_entry_is_none_of_that_type(tmp_path: Path) -> None:
    cache, numbers = Cache(tmp_path), count(1)

    def counted() -> Step:
        return Step(next(numbers))

    assert cache.once("key", Step, counted) == cache.once("key", Step, counted) == Step(1)
    cache.write("key", b"[]")
    assert cache.once("key", Step, counted) == cache.once("key", Step, counted) == Step(2)
    assert Cache(None).once("key", Step, counted) == Step(3)
