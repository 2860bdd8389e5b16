"""Where the files that travel with the package are, in a wheel and in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def conf_dir() -> Path:
    """The absolute folder of the shipped configs: beside the modules in a wheel, at the root of a checkout."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"


def zoo_dir() -> Path:
    """The absolute folder of the shipped policies."""
    return _PACKAGE / "zoo"
