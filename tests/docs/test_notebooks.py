"""The notebooks print what they show: each runs from an empty kernel, and its outputs are those in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"


def outputs(notebook: Any) -> list[str]:
    """What each cell of code shows as text."""
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(part.get("text") or part["data"]["text/plain"] for part in parts) for parts in cells]


@pytest.mark.parametrize("name", ["plan", "fit_and_fine_tune", "own_network"])
def test_a_notebook_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    nbformat, client = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    expected = outputs(notebook)
    assert all(expected)
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert outputs(notebook) == expected


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {"plan", "fit_and_fine_tune", "own_network"}
