"""How large the house is, at several commits: what a reader of the code has before them, and what one command executes.

    python benchmarks/house.py [COMMIT …]

Counted are the library and its apps, without tests and benchmarks: files, lines, functions, classes, comments (lines
that begin with #) a hundred lines. A profiler counts the modules of ours, and the calls of their functions, that two
commands execute, warm: `automap infer examples/vgg19_v100.npz --topo C` and `automap plan llama3-8b --topo dgx-h100-4
--sequence 8192 --global-batch 128`. Without a commit the working tree is counted.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, print_rows

PACKAGES = ("automap_models", "infer", "train", "datagen")
ROWS = ("files", "lines", "functions", "classes", "comments a hundred lines")
WALKS = {
    "infer": ("infer", "examples/vgg19_v100.npz", "--topo", "C"),
    "plan": ("plan", "llama3-8b", "--topo", "dgx-h100-4", "--sequence", "8192", "--global-batch", "128"),
}
WALK = """
import collections, importlib.util, os, sys
root, (app, *words) = os.getcwd(), sys.argv[1:]
sys.path.insert(0, root)
import automap_models
automap_models.__path__.append(root)
from automap_models.infer import app as apps
calls = collections.Counter()
def count(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(root) and frame.f_code.co_name != "<module>":
        calls[frame.f_code.co_filename] += 1
sys.argv = ["automap-" + app, *words]
for profiled in (False, True):
    sys.setprofile(count if profiled else None)
    try: getattr(apps, app)()
    except SystemExit: pass
    sys.setprofile(None)
print(len(calls), sum(calls.values()), file=sys.stderr)
"""


def sizes(folder: Path) -> list[float]:
    """ROWS of a tree."""
    files = [file for package in PACKAGES for file in (folder / package).rglob("*.py")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
    classes = sum(isinstance(node, ast.ClassDef) for node in nodes)
    lines = sum(text.count("\n") for text in texts)
    comments = sum(len(re.findall(r"^\s*#", text, re.MULTILINE)) for text in texts)
    return [len(files), lines, functions, classes, round(100.0 * comments / lines, 2)]


def walked(folder: Path, words: tuple[str, ...]) -> str:
    """Modules and calls of a command in a tree; its last error where it does not run here."""
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", WALK, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    return "{} · {:,}".format(*map(int, last.split())) if re.fullmatch(r"\d+ \d+", last) else last


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commits", nargs="*")
    trees: dict[str, list[object]] = {}
    for commit in parser.parse_args().commits or [""]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = ROOT
            if commit:
                folder = Path(scratch)
                archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
                subprocess.run(["tar", "-x", "-C", scratch], input=archive, check=True)
            trees[commit or "today"] = [*sizes(folder), *(walked(folder, words) for words in WALKS.values())]
    names = [*ROWS, *(f"{name}: modules · calls" for name in WALKS)]
    print_rows(("", *trees), [[name, *(str(tree[i]) for tree in trees.values())] for i, name in enumerate(names)])


if __name__ == "__main__":
    main()
