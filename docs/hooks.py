"""What the site's build fills in: a package's modules for the API reference, and the help texts of the commands.

A page writes `{{ api automap_models.core }}` for the public modules of a package, one section each, and
`{{ help infer }}` for what `automap infer --help` prints. Both are read anew with every build.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_MARK = re.compile(r"^\{\{ (api|help) ([\w.-]+) \}\}$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its marks replaced (an event of mkdocs)."""
    fill = {"api": _modules, "help": _help}
    return _MARK.sub(lambda mark: fill[mark[1]](mark[2]), markdown)


def _modules(package: str) -> str:
    """A section for every public module below a package, or for the module itself."""
    folder = ROOT / package.replace(".", "/")
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in files
        if not file.stem.startswith("_")  # __init__.py, too: packages only name what is below them
    ]
    return "\n\n".join(f"::: {name}" for name in names)


def _help(command: str) -> str:
    """What a command prints when it is asked for help."""
    program = Path(sys.executable).parent / "automap"
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1"}
    done = subprocess.run([program, command, "--help"], capture_output=True, text=True, check=True, env=environment)
    return f"```\n{done.stdout}```"
