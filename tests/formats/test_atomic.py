"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from automap_models.errors import BadInput
from automap_models.formats.files import require_writable, write_atomically


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
