"""Where the files that travel with the package are, in a wheel and in a checkout."""

from __future__ import annotations

from pathlib import Path

import automap_models


def conf_dir() -> Path:
    """The absolute folder of the shipped configs: beside the modules in a wheel, at the root of a checkout."""
    package = Path(automap_models.__file__).resolve().parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def zoo_dir() -> Path:
    """The absolute folder of the shipped policies."""
    return Path(automap_models.__file__).resolve().parent / "zoo"
