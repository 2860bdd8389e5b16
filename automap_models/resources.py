"""Where the files that travel with the package are, in a wheel and in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def conf_dir() -> Path:
    """The absolute folder of the shipped configs: beside the modules in a wheel, at the root of a checkout."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; False for a name that none can have, where pathlib raises."""
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a null character
        return False


def is_file(path: Path) -> bool:
    """Whether there is such a file; False for a name that none can have."""
    return exists(path) and path.is_file()


def template(name: str) -> str:
    """The text of a program that an export writes, with `str.format` fields where it depends on the plan."""
    return (_PACKAGE / "export" / "templates" / f"{name}.py.txt").read_text(encoding="utf-8")


def zoo_dir() -> Path:
    """The absolute folder of the shipped policies."""
    return _PACKAGE / "zoo"
